"""Terms of conditions on a number or a value of a hole: its length, the `int()` of its text, a value of its type.

Every function takes the span of the condition before its values, and raises ConstraintError for an unsuitable value.
"""

from __future__ import annotations

import datetime
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, Literal

from lmql_lite.constraints import formats
from lmql_lite.constraints.terms import (
    Choice,
    Constant,
    Length,
    Matches,
    Not,
    Or,
    Term,
)
from lmql_lite.constraints.units import Occurrences, Unit
from lmql_lite.errors import ConstraintError, Span
from lmql_lite.program.values import encode, finite, number, wrong

Comparison = Literal["<", "<=", "==", "!=", ">=", ">"]
OPPOSITE: Mapping[Comparison, Comparison] = {"<": ">=", "<=": ">", "==": "!=", "!=": "==", ">=": "<", ">": "<="}
OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
    "in": lambda item, collection: item in collection,
    "not in": lambda item, collection: item not in collection,
    "is": operator.is_,
    "is not": operator.is_not,
}
"""Maps symbols of Python's comparisons to their functions."""
Kind = Literal["int", "float"]
SHAPE: dict[Kind, str] = {"int": "INT", "float": "FLOAT"}
"""Maps kinds of number to the names of their shapes (S20)."""
MADE: dict[Kind, Callable[[str], float]] = {"int": int, "float": finite}
"""Maps kinds of number to the functions that read them."""
AT_ONCE = 100
"""Most numbers with which `float()` of a hole is compared one by one."""
TRIED = 4_000
"""Number of lengths for which Python is called one by one."""
PERIOD = 60
"""Longest period of lengths that is recognised: `len(X) % 7 == 0` has 7."""
COUNTS = "the result of count() is compared with numbers"
LISTED = 100_000
"""Most numbers that are listed in memory."""


def compared(symbol: str, span: Span, left: object, right: object) -> Term:
    """The part `a < b` of a chain such as `a < b < len(X)`."""
    return Constant(bool(OPERATORS[symbol](left, right)), span)


# Lengths -------------------------------------------------------------------------------------------------------------


def length_is(unit: Unit, comparison: Comparison, span: Span, value: object) -> Term:
    """`len(X) < value`, `len(WORDS(X)) < value`."""
    return length_term(comparison, number(span, "a length is compared with a number", value), span, unit)


def length_in(unit: Unit, span: Span, value: object) -> Term:
    """`len(X) in value`."""
    sentence = "a length is one of a list, a range or another collection of numbers"
    among = _collection(span, sentence, value)
    if isinstance(among, range) and abs(among.step) == 1:
        first, last = _ends(among)
        low = max(first, 0)
        return Length(low, last, unit, span) if low <= last else Constant(False, span)
    numbers = {number(span, sentence, each) for each in among}
    lengths = sorted(math.floor(each) for each in numbers if 0 <= each < math.inf and each % 1 == 0)
    runs = [0, *(at for at, (one, two) in enumerate(pairwise(lengths), 1) if two > one + 1), len(lengths)]
    terms = tuple(Length(lengths[start], lengths[end - 1], unit, span) for start, end in pairwise(runs) if end > start)
    return terms[0] if len(terms) == 1 else Or(terms, span) if terms else Constant(False, span)


def counted(span: Span, phrase: object) -> Length:
    """`X.count(phrase) >= 0`, which is true of all texts. An empty phrase occurs once more than there
    are characters."""
    if not isinstance(phrase, str):
        raise wrong(span, "count() takes a text", phrase, "a text has quotes")
    data = encode(span, phrase)
    return Length(0, None, Occurrences(data), span) if data else Length(-1, None, "characters", span)


def count_is(comparison: Comparison, span: Span, phrase: object, value: object) -> Term:
    """`X.count(phrase) < value`."""
    base = counted(span, phrase)
    return length_term(comparison, number(span, COUNTS, value) + base.at_least, span, base.unit)


def count_in(span: Span, phrase: object, value: object) -> Term:
    """`X.count(phrase) in value`."""
    base = counted(span, phrase)
    if not base.at_least:
        return length_in(base.unit, span, value)
    return length_in(base.unit, span, [number(span, COUNTS, each) - 1 for each in _collection(span, COUNTS, value)])


def length_fits(unit: Unit, span: Span, function: object) -> Term:
    """Any Python condition on `len(X)` alone, as a function of the length, which also judges the value at the end.

    It is called for every length below TRIED. If its results are not periodic by then, it guides nothing.
    """
    holds = _truth(function)
    start, period = _repetition(holds)
    changes = [at for at in range(1, start) if holds[at] != holds[at - 1]]
    guides = any(holds) and (period == 1 or unit == "characters") and len(changes) <= AT_ONCE
    if not period or not guides:
        return Constant(True, span)
    runs = [(low, high - 1) for low, high in pairwise([0, *changes, start]) if low < high and holds[low]]
    terms: list[Term] = [Length(low, high, unit, span) for low, high in runs]
    for length in (at for at in range(start, start + period) if holds[at]):
        if period == 1:
            terms.append(Length(length, None, unit, span))
        else:
            terms.append(Matches(f"(?s:.{{{length}}})(?:(?s:.{{{period}}}))*", delimits=False, span=span))
    return Or(tuple(terms), span)


def _truth(function: object) -> list[bool]:
    """Truth of a function for each length below TRIED. A length that raises an arithmetic error does not fit."""
    assert callable(function), "the code is a function"
    holds = []
    for length in range(TRIED):
        try:
            holds.append(bool(function(length)))
        except ArithmeticError:
            holds.append(False)
    return holds


def _repetition(holds: list[bool]) -> tuple[int, int]:
    """Start and period of the repetition; (0, 0) if there is none."""
    for period in range(1, PERIOD + 1):
        start = len(holds) - period
        while start and holds[start - 1] == holds[start - 1 + period]:
            start -= 1
        if start <= len(holds) // 2:
            return start, period
    return 0, 0


def length_term(comparison: Comparison, value: float, span: Span, unit: Unit = "characters") -> Term:
    """Comparison of a count with a number, as bounds that are whole numbers."""
    if comparison == "!=":
        return Not(length_term("==", value, span, unit), span)
    least, high = _bounds(comparison, value)
    low = max(least or 0, 0)
    return Constant(False, span) if high is not None and high < low else Length(low, high, unit, span)


def _bounds(comparison: Comparison, value: float) -> tuple[int | None, int | None]:
    """Least and greatest whole number for which a comparison other than `!=` is true; None if unbounded."""
    if value in (math.inf, -math.inf):
        below = comparison in ("<", "<=") if value > 0 else comparison in (">", ">=")
        return (None, None) if below else (1, 0)
    match comparison:
        case "<":
            return None, math.ceil(value) - 1
        case "<=":
            return None, math.floor(value)
        case ">=":
            return math.ceil(value), None
        case ">":
            return math.floor(value) + 1, None
    return math.ceil(value), math.floor(value)


# Numbers -------------------------------------------------------------------------------------------------------------


def number_is(kind: Kind, comparison: Comparison, span: Span, value: object) -> Term:
    """`int(X) < value`: true only of texts of this kind of number (S20)."""
    bound = _bound(span, kind, value)
    if kind == "float":
        return formats.compared(comparison, bound, span)
    term = formats.integers(*_bounds("==" if comparison == "!=" else comparison, bound), span)
    return formats.other_integers(term, span) if comparison == "!=" else term


def number_reach(kind: Kind, comparison: Comparison, span: Span, value: object) -> tuple[float, float]:
    """Least and greatest number for which `int(X) < value` may be true."""
    bound = _bound(span, kind, value)
    if comparison == "!=":
        return -math.inf, math.inf
    if kind == "int":
        least, most = _bounds(comparison, bound)
        return -math.inf if least is None else least, math.inf if most is None else most
    return bound if comparison in (">", ">=", "==") else -math.inf, bound if comparison in (
        "<",
        "<=",
        "==",
    ) else math.inf


def is_number(kind: Kind, span: Span, *values: object) -> Term:
    """The texts that are such a number."""
    return formats.shape(SHAPE[kind], span)


def number_in(kind: Kind, span: Span, value: object, inside: bool = True) -> Term:
    """`int(X) in value`, `float(X) not in value`."""
    among = _collection(span, f"{kind}() of a hole is one of a list, a range or another collection of numbers", value)
    if kind == "float":
        floats: list[float] = []
        for each in among:
            floats.append(_bound(span, "float", each))
            if len(floats) > AT_ONCE:
                sentence = f"float() of a hole is compared with at most {AT_ONCE} numbers one by one"
                raise ConstraintError(sentence, span=span, hint="write bounds, such as 3 <= float(X) < 9")
        return (formats.one_of_numbers if inside else formats.none_of_numbers)(floats, span)
    term: Term
    if isinstance(among, range) and abs(among.step) == 1:
        low, high = (int(_bound(span, "int", end)) for end in _ends(among))
        term = formats.integers(low, high, span)
    else:
        numbers = [_bound(span, "int", each) for each in among]
        term = Choice(tuple({str(math.floor(each)).encode(): None for each in numbers if each % 1 == 0}), span)
    return term if inside else formats.other_integers(term, span)


def number_not_in(kind: Kind, span: Span, value: object) -> Term:
    return number_in(kind, span, value, inside=False)


def _ends(numbers: range) -> tuple[int, int]:
    """Least and greatest of a range without gaps; (1, 0) if it is empty."""
    return (min(numbers[0], numbers[-1]), max(numbers[0], numbers[-1])) if numbers else (1, 0)


def _collection(span: Span, sentence: str, value: object) -> Iterable[object]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise wrong(span, sentence, value, "[3, 5, 8] or range(3, 9)")
    if isinstance(value, range) and abs(value.step) > 1 and value and (value[-1] - value[0]) // value.step >= LISTED:
        sentence = f"a range with steps is listed number by number, and this one has more than {LISTED:,}"
        raise ConstraintError(sentence, span=span, hint="write bounds, and leave the steps to Python: int(X) % 3 == 0")
    return value


def _bound(span: Span, kind: Kind, value: object) -> float:
    """A number that `int(X)` or `float(X)` is compared with."""
    exact = number(span, f"{kind}() of a hole is compared with a number", value)
    if abs(exact) >= 10**formats.DIGITS_BUDGET and abs(exact) != math.inf:
        sentence = f"{kind}() of a hole is compared with numbers of up to {formats.DIGITS_BUDGET} digits"
        raise ConstraintError(sentence, span=span, hint="INT(X) or FLOAT(X) alone sets no bound")
    return exact


# Values of a type ----------------------------------------------------------------------------------------------------

Moment = Literal["datetime", "time"]
Day = Literal["date", "datetime", "time"]
Listed = tuple[tuple[bytes, object], ...]
"""All values of a type, as pairs of text and value."""


def listed_is(listed: Listed, comparison: Comparison, span: Span, value: object) -> Term:
    """`X < value`: the listed values for which this is true in Python."""
    compare = OPERATORS[comparison]
    return Choice(tuple(text for text, each in listed if compare(each, value)), span)


def listed_in(listed: Listed, span: Span, value: object) -> Term:
    """`X in value`."""
    if not isinstance(value, Iterable):
        raise wrong(span, "a hole is one of a list, a set or another collection of values", value)
    among: Any = value if hasattr(value, "__contains__") else list(value)
    return Choice(tuple(text for text, each in listed if each in among), span)


def date_is(comparison: Comparison, span: Span, value: object) -> Term:
    """`X < value`."""
    day = _day(span, value).toordinal()
    least, most = _bounds("==" if comparison == "!=" else comparison, day)
    first = datetime.date.min.toordinal() if least is None else least
    last = datetime.date.max.toordinal() if most is None else most
    days = formats.days(first, last, span)
    return Not(days, span) if comparison == "!=" else days


def date_in(span: Span, value: object) -> Term:
    """`X in value`."""
    if not isinstance(value, Iterable):
        raise wrong(span, "a date is one of a list, a set or another collection of dates", value)
    return Choice(tuple({_day(span, day).isoformat().encode(): None for day in value}), span)


def moment_is(kind: Moment, comparison: Comparison, span: Span, value: object) -> Term:
    """`X < value` for a datetime or a time, both without a time zone."""
    return formats.moments(comparison, _moment(kind, span, value), span)


def moment_in(kind: Moment, span: Span, value: object) -> Term:
    """`X in value`."""
    among = _collection(span, f"a {kind} is one of a list or another collection of these", value)
    return Or(tuple(moment_is(kind, "==", span, each) for each in among), span)


def is_moment(kind: Moment, span: Span, value: object) -> Term:
    """The texts that Python can compare with a value that has no time zone."""
    return formats.without_zone(span, has_day=kind == "datetime")


def _moment(kind: Moment, span: Span, value: object) -> datetime.datetime | datetime.time:
    is_right = isinstance(value, datetime.datetime if kind == "datetime" else datetime.time)
    if not is_right or not isinstance(value, datetime.datetime | datetime.time):
        raise wrong(span, f"a {kind} is compared with a {kind}", value)
    if value.tzinfo is not None:
        hint = "compare in Python behind the hole, or write [X: AwareDatetime], pydantic's type with a time zone"
        raise wrong(span, f"a {kind} that may lack a time zone is not compared with one that has it", value, hint)
    return value


def date_part_is(kind: Day, part: str, comparison: Comparison, span: Span, value: object) -> Term:
    """`X.year < value`."""
    bound = number(span, f"the {part} of a {kind} is compared with a number", value)
    compare = OPERATORS[comparison]
    return _of_part(kind, part, lambda each: compare(each, bound), span)


def date_part_in(kind: Day, part: str, span: Span, value: object) -> Term:
    """`X.year in value`."""
    sentence = f"the {part} of a {kind} is one of a list, a range or another collection of numbers"
    among = _collection(span, sentence, value)
    numbers = (
        among if isinstance(among, range) else {number(span, f"a part of a {kind} is a number", each) for each in among}
    )
    return _of_part(kind, part, numbers.__contains__, span)


def _of_part(kind: Day, part: str, fits: Callable[[int], bool], span: Span) -> Term:
    numbers = [each for each in {**formats.DATE_PARTS, **formats.CLOCK_PARTS}[part] if fits(each)]
    if kind == "date":
        return formats.date_part(part, numbers, span)
    return formats.moment_part(part, numbers, span, has_day=kind == "datetime")


def _day(span: Span, value: object) -> datetime.date:
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        raise wrong(span, "a date is compared with a date", value)
    return value
