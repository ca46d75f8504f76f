"""Values computed by the query's Python: checks and conversions, with errors at the place of the code."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date
from enum import Enum
from numbers import Integral, Rational, Real
from typing import Any, cast

from lmql_lite.errors import ConstraintError, InputError, Span

SHOWN = 80
"""Most characters of a value in an error message."""


def number(sentence: str, value: object) -> float:
    """A number in a form that compares without rounding: an int or a fraction if it is one, else a float."""
    if not isinstance(value, Real) or value != value:
        raise wrong(sentence, value, "a number has no quotes, and is not nan")
    exact = int(value) if isinstance(value, Integral) else value if isinstance(value, Rational) else float(value)
    return cast(float, exact)


def finite(text: str) -> float:
    """`float(text)`. Raises ValueError if the result is infinite."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:SHOWN]} is too large for a float")
    return value


def encode(text: str, span: Span | None = None) -> bytes:
    """UTF-8 of a text. Raises ConstraintError for half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        hint = "characters beyond \\uffff are written \\U0001f600, or as themselves"
        raise wrong("half of a surrogate pair is not text that a model could generate", text, hint, span) from None


def wrong(sentence: str, value: object, hint: str | None = None, span: Span | None = None) -> ConstraintError:
    return ConstraintError(f"{sentence}; this is {_shown(value)} ({type(value).__name__})", span=span, hint=hint)


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except Exception:  # an integer of 5,000 digits has no text, and a repr may do anything
        return "a value that cannot be shown"
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}.."


def texts_of(options: Any) -> tuple[str, ...]:
    """The options of a `distribution`, or of a scoring, as texts in their order.

    Numbers and dates are written as `str` does, enum members as their values. Raises InputError if there are none, if
    one is empty, repeated or not a text, or if they have no order.
    """
    if isinstance(options, str | bytes) or not isinstance(options, Iterable):
        raise InputError(f"the options are a list of texts; this is {_shown(options)}", hint='write ["yes", "no"]')
    if isinstance(options, set | frozenset):
        raise InputError("a set of options has no fixed order", hint="write a list, or sorted(...)")
    texts: dict[str, None] = {}
    for number, option in enumerate(options, start=1):
        text = _text(option, number)
        if text in texts:
            raise InputError(
                f"the option {_shown(text)} is repeated", hint="options share one probability: list each once"
            )
        texts[text] = None
    if not texts:
        raise InputError("there are no options", hint="a choice needs at least one")
    return tuple(texts)


def _text(option: Any, number: int) -> str:
    if isinstance(option, Enum):
        option = option.value
    if not isinstance(option, str | int | float | date):
        raise InputError(f"option {number} is not a text: {_shown(option)}", hint="write it as a text, such as str(x)")
    text = str(option)
    if not text:
        raise InputError(f"option {number} is empty", hint="an option has at least one character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"option {number} has a character that cannot be encoded: {_shown(text)}") from None
    return text
