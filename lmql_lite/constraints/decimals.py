"""Numbers with a point, compared as `float()` reads them. All are patterns over the texts of `FLOAT`.

Python rounds: `float("1.4999999999999999999")` is 1.5. So a bound lies where rounding goes the other way, half-way to
the next float, and is itself rounded inwards to DECIMALS places. Hence what a term holds for, Python agrees with,
whatever its length; and of texts with up to DECIMALS places nothing is left out of `<`, `<=`, `>` and `>=`. Equal
is what is written as Python writes the number, with or without zeros behind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction

from lmql_lite.constraints.shapes import FLOAT, positive_from, positive_up_to
from lmql_lite.constraints.terms import And, Constant, Matches, Or, Term
from lmql_lite.errors import Span

DECIMALS = 17
SCALE = 10**DECIMALS
UNSIGNED = r"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?"
FINITE = r"-?(?:0|[1-9][0-9]{0,307})(?:\.[0-9]+)?"
"""Python reads longer ones as infinity."""


def compared(comparison: str, value: float, span: Span) -> Term:
    """The texts whose number compares so with a value that is an int, a fraction or a float."""
    if value in (math.inf, -math.inf):
        finite = comparison in (("<", "<=", "!=") if value > 0 else (">", ">=", "!="))
        return Matches(FINITE, span=span) if finite else Constant(False, span)
    exact = Fraction(value)
    match comparison:
        case "<" | "<=":
            return Matches(_at_most(_greatest(exact, below=comparison == "<")), span=span)
        case ">" | ">=":
            return Matches(_at_least(-_greatest(-exact, below=comparison == ">")), span=span)
        case "!=":
            return Or((compared("<", value, span), compared(">", value, span)), span)
    return one_of([value], span)


def one_of(values: Iterable[float], span: Span) -> Term:
    texts = [_equal(Fraction(value)) for value in values if math.isfinite(value) and _is_float(Fraction(value))]
    return Matches("|".join(dict.fromkeys(texts)), span=span) if texts else Constant(False, span)


def none_of(values: Iterable[float], span: Span) -> Term:
    others = tuple(compared("!=", value, span) for value in values)
    return And((Matches(FLOAT, span=span), *others), span)


def _is_float(value: Fraction) -> bool:
    return Fraction(float(value)) == value


def _greatest(value: Fraction, *, below: bool) -> int:
    """In units of the last place, the greatest number that Python reads as one below the value, or up to it."""
    nearest = float(value)
    if Fraction(nearest) > value or (below and Fraction(nearest) == value):
        nearest = math.nextafter(nearest, -math.inf)
    border = (Fraction(nearest) + Fraction(math.nextafter(nearest, math.inf))) / 2
    scaled: int = math.floor(border * SCALE)
    return scaled if float(Fraction(scaled, SCALE)) <= nearest else scaled - 1  # on the border itself it may go up


def _at_least(scaled: int) -> str:
    return _unsigned_from(scaled) if scaled > 0 else f"{UNSIGNED}|-(?:{_unsigned_up_to(-scaled)})"


def _at_most(scaled: int) -> str:
    return f"-(?:{_unsigned_from(-scaled)})" if scaled < 0 else f"-{UNSIGNED}|{_unsigned_up_to(scaled)}"


def _unsigned_from(scaled: int) -> str:
    whole, places = _written(scaled)
    rest = "[0-9]*"
    for digit in reversed(places):
        rest = f"(?:[{int(digit) + 1}-9][0-9]*|{digit}{rest})" if digit < "9" else f"9{rest}"
    equal = rf"{whole}\.{rest}" if places else rf"{whole}(?:\.[0-9]+)?"
    return rf"{equal}|(?:{positive_from(str(whole + 1))})(?:\.[0-9]+)?"


def _unsigned_up_to(scaled: int) -> str:
    whole, places = _written(scaled)
    rest = "0+" if not places else "0*"
    for at in reversed(range(len(places))):
        smaller = f"[0-{int(places[at]) - 1}][0-9]*|" if places[at] > "0" else ""
        rest = f"(?:{smaller}{places[at]}{rest}){'?' if at else ''}"
    equal = rf"{whole}(?:\.{rest})?"
    if whole == 0:
        return equal
    smaller = f"0|{positive_up_to(str(whole - 1))}" if whole > 1 else "0"
    return rf"{equal}|(?:{smaller})(?:\.[0-9]+)?"


def _written(scaled: int) -> tuple[int, str]:
    """What stands before and after the point, without zeros at the end."""
    whole, rest = divmod(scaled, SCALE)
    return whole, f"{rest:0{DECIMALS}}".rstrip("0")


def _equal(value: Fraction) -> str:
    text = format(Decimal(repr(float(value))), "f")
    whole, _, places = text.partition(".")
    places = places.rstrip("0")
    sign = "-?" if value == 0 else ""
    return rf"{sign}{whole.lstrip('-') if value == 0 else whole}" + (rf"\.{places}0*" if places else r"(?:\.0+)?")
