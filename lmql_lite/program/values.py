"""What Python gave for a value in a `where` clause, if the clause can use it; else an error with the clause's place."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Rational, Real
from types import CodeType
from typing import Literal, cast

from lmql_lite.constraints.pattern import UnsupportedPattern, program
from lmql_lite.constraints.terms import Matches, Term
from lmql_lite.errors import ConstraintError, Span

Evaluate = Callable[[CodeType], object]
Comparison = Literal["<", "<=", "==", "!=", ">=", ">"]
SHOWN = 80
"""Characters of a value in a sentence."""


def once(evaluate: Evaluate) -> Evaluate:
    """Evaluates each code object once: the middle of `a < b < c` is one, and stands in two comparisons."""
    known: dict[int, object] = {}

    def remembered(code: CodeType) -> object:
        if id(code) not in known:
            known[id(code)] = evaluate(code)
        return known[id(code)]

    return remembered


def number(span: Span, sentence: str, value: object) -> float:
    """Any kind of number as one that is compared without rounding: as an int or a fraction where it is one."""
    if not isinstance(value, Real) or value != value:
        raise wrong(span, sentence, value, "a number has no quotes, and is not nan")
    exact = int(value) if isinstance(value, Integral) else value if isinstance(value, Rational) else float(value)
    return cast(float, exact)


def finite(text: str) -> float:
    """The number. Raises ValueError where it is too large for a float: `inf` is not what the text says."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:SHOWN]} is too large for a float")
    return value


def encode(span: Span, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        hint = "characters beyond \\uffff are written \\U0001f600, or as themselves"
        raise wrong(span, "half of a surrogate pair is no text that a model could say", text, hint) from None


def followed(term: Term) -> Term:
    """The term, if its pattern can be followed."""
    if isinstance(term, Matches):
        try:
            program(term.pattern, term.flags)
        except UnsupportedPattern as error:
            raise ConstraintError(error.sentence, span=term.span, hint=error.hint) from None
    return term


def wrong(span: Span, sentence: str, value: object, hint: str | None = None) -> ConstraintError:
    try:
        shown = repr(value)
    except Exception:  # an integer of 5,000 digits has no text, and a repr may do anything
        shown = "a value that cannot be shown"
    shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}.."
    return ConstraintError(f"{sentence}; this is {shown} ({type(value).__name__})", span=span, hint=hint)
