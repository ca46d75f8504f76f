"""Patterns of named kinds of text: numbers, dates, and the texts that Python's `str.is..` methods accept."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

from lmql_lite.constraints.pattern import accepted, class_text
from lmql_lite.constraints.terms import And, Constant, Matches, Term
from lmql_lite.errors import Span

INT = "0|-?[1-9][0-9]*"
"""An integer as Python writes it (S20): no plus sign, no leading zeros, no `-0`."""
FLOAT = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?"
"""A decimal number. A point has digits on both sides. No exponent, no `inf`, no `nan`."""

YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
FOURTHS = "(?:0[48]|[2468][048]|[13579][26])"
"""Two digits divisible by four, except `00`."""
DATE = (
    f"{YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|(?:[0-9]{{2}}{FOURTHS}|{FOURTHS}00)-02-29"
)
"""The dates that `datetime.date` has, 0001-01-01 to 9999-12-31, leap years by the Gregorian rule."""

CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?"
OFFSET = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_NUMBER = "[0-9]{1,4}"
_SECONDS = rf"{_NUMBER}(?:\.[0-9]{{1,6}})?S"
_HOURS = f"T(?:{_NUMBER}H(?:{_NUMBER}M)?(?:{_SECONDS})?|{_NUMBER}M(?:{_SECONDS})?|{_SECONDS})"
_DAYS = (
    f"(?:{_NUMBER}Y(?:{_NUMBER}M)?(?:{_NUMBER}W)?(?:{_NUMBER}D)?|{_NUMBER}M(?:{_NUMBER}W)?(?:{_NUMBER}D)?"
    f"|{_NUMBER}W(?:{_NUMBER}D)?|{_NUMBER}D)"
)
DURATION = f"-?P(?:{_DAYS}(?:{_HOURS})?|{_HOURS})"
"""Durations of ISO 8601 that pydantic reads, with at most four digits in a row."""
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = "[0-9a-fA-F]{1,4}"
_V4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_V6 = "|".join(
    (
        f"(?:{_GROUP}:){{7}}{_GROUP}",
        *(f"(?:{_GROUP}:){{1,{7 - after}}}(?::{_GROUP}){{1,{after}}}" for after in range(1, 7)),
        f"(?:{_GROUP}:){{1,7}}:",
        f":(?:(?::{_GROUP}){{1,7}}|:)",
    )
)
_V4_BITS, _V6_BITS = "(?:/(?:3[0-2]|[12]?[0-9]))?", "(?:/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9]))?"
_V4_BLOCK, _V6_BLOCK = _V4 + _V4_BITS, f"(?:{_V6}){_V6_BITS}"
_BASE64, _BASE64_URL = "[A-Za-z0-9+/]", "[A-Za-z0-9_-]"
URI_CHARACTERS = r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+"
NAMED: Mapping[str, str] = {
    "date": DATE,
    "time": f"{CLOCK}{OFFSET}?",
    "date-time": f"(?:{DATE})(?:[T ]{CLOCK}{OFFSET}?)?",
    "duration": DURATION,
    "ipv4network": _V4_BLOCK,
    "ipv4interface": _V4_BLOCK,
    "ipv6network": _V6_BLOCK,
    "ipv6interface": _V6_BLOCK,
    "ipvanyaddress": f"{_V4}|{_V6}",
    "ipvanynetwork": f"{_V4_BLOCK}|{_V6_BLOCK}",
    "ipvanyinterface": f"{_V4_BLOCK}|{_V6_BLOCK}",
    "base64": f"(?:{_BASE64}{{4}})*(?:{_BASE64}{{2}}==|{_BASE64}{{3}}=)?",
    "base64url": f"(?:{_BASE64_URL}{{4}})*(?:{_BASE64_URL}{{2}}==|{_BASE64_URL}{{3}}=)?",
    "fraction": "-?(?:0|[1-9][0-9]*)/[1-9][0-9]*",
}
"""Patterns of texts, by the names of their formats in JSON Schemas of the standard and of pydantic."""

SHAPES = {"INT": INT, "FLOAT": FLOAT, "DATE": DATE}
DIGITS_BUDGET = 120
"""Most digits of a number in a comparison. The size of the pattern grows with their square."""


def shape(name: str, span: Span) -> Term:
    return Matches(SHAPES[name], span=span)


def method(name: str, span: Span) -> Term:
    """The texts for which a method of `str` is true.

    A method that lists allowed characters, such as `isdigit`, ends the hole before any other character. A method that
    only excludes characters (`isascii`, `isupper`) does not end it.
    """
    return Matches(_text_of_method(name), delimits=name in ALL_OF, span=span)


def integers(at_least: int | None, at_most: int | None, span: Span) -> Term:
    """The integers between two bounds, both included."""
    if at_least is not None and at_most is not None and at_least > at_most:
        return Constant(False, span)
    terms = [] if at_least is None else [Matches(_from(at_least), span=span, reach=(at_least, math.inf))]
    terms += [] if at_most is None else [Matches(_up_to(at_most), span=span, reach=(-math.inf, at_most))]
    return And(tuple(terms), span) if len(terms) > 1 else terms[0] if terms else Matches(INT, span=span)


def _from(least: int) -> str:
    if least > 0:
        return _at_least(str(least))
    return "0|[1-9][0-9]*" + (f"|-(?:{_at_most(str(-least))})" if least else "")


def _up_to(most: int) -> str:
    if most < 0:
        return f"-(?:{_at_least(str(-most))})"
    return "-[1-9][0-9]*|0" + (f"|{_at_most(str(most))}" if most else "")


def _at_least(digits: str) -> str:
    """Pattern of the integers from this one on: with more digits, or with a greater one where they first differ."""
    greater = [
        f"{digits[:at]}[{int(digit) + 1}-9]{_any_digits(digits, at)}" for at, digit in enumerate(digits) if digit != "9"
    ]
    return "|".join([digits, *greater, f"[1-9][0-9]{{{len(digits)},}}"])


def _at_most(digits: str) -> str:
    smaller = [
        f"{digits[:at]}[{int(at == 0)}-{int(digit) - 1}]{_any_digits(digits, at)}"
        for at, digit in enumerate(digits)
        if int(digit) > int(at == 0)
    ]
    shorter = [f"[1-9][0-9]{{0,{len(digits) - 2}}}"] if len(digits) > 1 else []
    return "|".join([digits, *smaller, *shorter])


def _any_digits(digits: str, at: int) -> str:
    return f"[0-9]{{{len(digits) - at - 1}}}"


# Methods of str ----------------------------------------------------------------------------------------------------


def _has_title_case(character: str) -> bool:
    return character.istitle() and not character.isupper()


def _in_upper_text(character: str) -> bool:
    return not character.islower() and not _has_title_case(character)


def _in_lower_text(character: str) -> bool:
    return not character.isupper() and not _has_title_case(character)


ALL_OF: dict[str, Callable[[str], bool]] = {
    "isalpha": str.isalpha,
    "isalnum": str.isalnum,
    "isdigit": str.isdigit,
    "isdecimal": str.isdecimal,
    "isnumeric": str.isnumeric,
    "isspace": str.isspace,
}
METHODS = (*ALL_OF, "isascii", "isprintable", "isupper", "islower")
"""Methods that guide the model. `istitle()` and `isidentifier()` are left to Python."""


@cache
def _text_of_method(name: str) -> str:
    match name:
        case "isascii":
            return r"[\x00-\x7f]*"
        case "isprintable":
            return f"{_class(str.isprintable)}*"
        case "isupper":  # at least one in upper case, and none in lower or title case
            return f"{_class(_in_upper_text)}*{_class(str.isupper)}{_class(_in_upper_text)}*"
        case "islower":
            return f"{_class(_in_lower_text)}*{_class(str.islower)}{_class(_in_lower_text)}*"
    return f"{_class(ALL_OF[name])}+"


def _class(test: Callable[[str], bool]) -> str:
    return class_text(accepted(test))
