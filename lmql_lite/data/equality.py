"""Equality of answers and targets: as values, as options of a choice, and as words.

Every comparison folds what cannot be seen: invisible characters, decomposed letters, the many hyphens and minus signs
of Unicode, line ends of Windows, and white space at both ends. `same` folds nothing else. A sign or a symbol is always
part of an answer: -1 is not 1, and C++ is not C.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any
from unicodedata import normalize

_INVISIBLE = (
    *(0xAD, 0x61C, 0x200B, 0x200E, 0x200F, 0xFE0E, 0xFE0F, 0xFEFF),
    *range(0x202A, 0x202F),
    *range(0x2060, 0x2070),
)
_DASHES = "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"
_FOLDED = {**dict.fromkeys(_INVISIBLE), **dict.fromkeys(map(ord, _DASHES), "-")}
_QUOTES = {**dict.fromkeys(map(ord, "“”„‟«»″"), '"'), **dict.fromkeys(map(ord, "‘’‚‛‹›′ʼ"), "'")}
_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_SPELLED = {"true": True, "false": False}
_NUMERAL = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_EXACT_INTEGERS = 2**53
_AROUND = [
    re.compile(rf"(?s:{pattern})")
    for pattern in (
        r"""(["'`])(?P<inside>[^"'`]+)\1""",
        r"[(\[](?P<inside>[^()\[\],;]+)[)\]]",
        r"(\*{1,3})(?P<inside>[^\s*][^*]*)\1",
        r"_(?P<inside>[^\s_][^_]*)_",
        r"[-*•]\s+(?P<inside>\w.*)",
        r"(?P<inside>[^()\[\]]*\w)[)\]]",
        r"(?P<inside>.*[^\s.,;:?!…。、])[.,;:?…。、]+",
        r"(?P<inside>.*[^\W\d_])!+",
    )
]
"""Surroundings of an answer: quotes, brackets around one thing, emphasis, a mark of a list, and marks behind it."""
_UNSPACED = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
"""Characters of scripts without blanks between words."""
_WORD = re.compile(rf"{_UNSPACED}[\u0300-\u036f\u0e31-\u0e4e]*|(?:(?!{_UNSPACED})\S)+")
_MARKS_AROUND = re.compile(
    r"""^(?:["'`(\[]|\*\*)+(?=\w)|(?<=[^\W\d_])!+$|(?:["`)\].,;:?…。、]|\*\*|(?<=\w\w)'|(?<=\W)')+$"""
)
_JOINED = re.compile(r"(?<=[^\W\d_])[.'/](?=[^\W\d_])")
"""Marks inside a word: `U.S`, `don't`, `N/A`."""
_ARTICLES = ("a", "an", "the")


def text(value: Any) -> str:
    """A value as a text to compare: JSON for what is not a text."""
    if isinstance(value, str):
        return _visible(value).strip()
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_INTEGERS:
        value = int(value)
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def is_blank(value: Any) -> bool:
    return isinstance(value, str) and not text(value)


def same(value: Any, target: Any) -> bool:
    """Equality of an answer and a target. If one is a number, a bool, an object or a list, the text of the other one is
    read as such; an answer of None equals null, and the texts None and null. Two texts are compared as texts."""
    if value is None:
        return target is None or (isinstance(target, str) and text(target).casefold() in ("none", "null"))
    if target is None:
        return False
    if isinstance(value, bool) or isinstance(target, bool):
        left, right = _bool(value), _bool(target)
        return left is not None and left is right
    if isinstance(value, int | float) or isinstance(target, int | float):
        number = numeral(value)
        return number is not None and number == numeral(target)
    if isinstance(value, dict | list) or isinstance(target, dict | list):
        return bool(json_value(value) == json_value(target))
    return text(value) == text(target)


def _bool(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    return _SPELLED.get(text(value).casefold()) if isinstance(value, str) else None


def equal(value: Any, expected: Any) -> bool:
    """Equality of JSON data as in Python, except that a bool is no number."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(equal, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(equal(each, expected[name]) for name, each in value.items())
    return bool(value == expected)


def numeral(value: Any) -> Decimal | None:
    """The number of a value or of its text, exactly; None for what is no decimal number. `1,000` is a thousand."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    spelled = text(value)
    if _NUMERAL.fullmatch(spelled) is None:
        return None
    try:
        return Decimal(spelled.replace(",", ""))
    except InvalidOperation:  # an exponent beyond all bounds
        return None


def index(value: Any, count: int) -> int | None:
    """A value, or its text, as an index of one of `count` things."""
    number = numeral(value)
    if number is None or not 0 <= number < count or number != number.to_integral_value():
        return None
    return int(number)


def json_value(value: Any) -> Any:
    """A value to compare as JSON, where 1 equals 1.0 and true is no number. A text is read as JSON if it is, and as a
    bool if it is one of any case."""
    if isinstance(value, str):
        try:
            value = json.loads(text(value), parse_float=Decimal, parse_int=Decimal, parse_constant=str)
        except (ValueError, RecursionError, InvalidOperation):
            value = text(value) if (spelled := _bool(value)) is None else spelled
    return _typed(value)


def _typed(value: Any) -> Any:
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, dict):
        return {_visible(key): _typed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_typed(each) for each in value]
    if isinstance(value, str):
        shown = _visible(value)
        return Decimal(shown) if re.fullmatch(r"-?\d{16,400}", shown) else shown  # as `plain` writes large numbers
    return numeral(value) if isinstance(value, int | float) else value


def holds(answer: Any, target: Any) -> bool:
    """True if a target is in an answer. A number or a bool is only found whole: 5 is not in 15, -5 or 5.2."""
    around, wanted = text(answer), text(target)
    if isinstance(target, bool):
        return re.search(rf"\b{wanted}\b", around.casefold()) is not None
    if _NUMERAL.fullmatch(wanted) is None:
        return wanted in around
    before = r"(?<![\w.])(?<!\d,)" if wanted[0] in "+-" else r"(?<![\d.])(?<!\d,)(?<!(?<!\w)-)"
    return re.search(rf"{before}{re.escape(wanted)}(?!\d)(?![.,]\d)", around) is not None


def bare(value: Any) -> str:
    """The text of an option without case and without the punctuation around it: `(A)`, `A.`, `"A"` and `**A**` are A.

    Signs and symbols are kept, brackets around several things too, and a text of nothing else stays as it is.
    """
    found = " ".join(_plain_text(value).split())
    while inside := next((peeled["inside"] for each in _AROUND if (peeled := each.fullmatch(found))), None):
        found = inside.strip()
    return _ungrouped(found)


def words(value: Any) -> list[str]:
    """Words of a text without case, articles and the punctuation around them. In scripts without blanks each character
    is a word."""
    chunks = [_ungrouped(_JOINED.sub("", _unmarked(chunk))) for chunk in bare(value).split()]
    found = [word for chunk in chunks for word in _WORD.findall(chunk)]
    kept = [word for word in found if any(map(str.isalnum, word))] or found
    return [word for place, word in enumerate(kept) if word not in _ARTICLES or place == len(kept) - 1]


def _unmarked(chunk: str) -> str:
    return _MARKS_AROUND.sub("", chunk) or chunk


def _visible(value: str) -> str:
    return normalize("NFC", value.translate(_FOLDED)).replace("\r\n", "\n")


def _plain_text(value: Any) -> str:
    """Text without case, with straight quotes and letters of one width."""
    return text(value).translate(_WIDE).translate(_QUOTES).casefold().strip()


def _ungrouped(found: str) -> str:
    return found.replace(",", "") if "," in found and _NUMERAL.fullmatch(found) else found
