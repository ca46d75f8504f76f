"""Symbols: the objects that stand for a hole while its `where` is evaluated. Their comparisons are terms.

`X` is a text, `len(X)` a count, `int(X)` a number, `X.age` of a record a place. A comparison that no term expresses
raises Unguided: Python judges it (S21). `X != 1` is `X == 1` that does not hold.
"""

from __future__ import annotations

import datetime
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum, EnumMeta
from fractions import Fraction
from functools import cache
from itertools import pairwise
from numbers import Real
from types import NoneType
from typing import Any, Literal, NamedTuple

from lmql_lite.constraints import formats
from lmql_lite.constraints.pattern import UnsupportedPattern, found, literally, phrase, program
from lmql_lite.constraints.terms import (
    SPACES,
    UNITS,
    And,
    Begins,
    Choice,
    Constant,
    Contains,
    Ends,
    Inside,
    Length,
    Matches,
    Not,
    Occurrences,
    Or,
    PlaceStep,
    PlaceTest,
    Stop,
    StopPattern,
    Term,
    Unit,
    conjuncts,
)
from lmql_lite.errors import ConstraintError, Span
from lmql_lite.program.values import encode, finite, number, wrong

Kind = Literal["int", "float"]
SHAPE: Mapping[Kind, str] = {"int": "INT", "float": "FLOAT"}
"""Maps kinds of number to the names of their shapes (S20)."""
MADE: Mapping[Kind, Callable[[str], float]] = {"int": int, "float": finite}
"""Maps kinds of number to the functions that read them."""
PARTS: Mapping[str, Unit] = {"CHARS" if unit == "characters" else unit.upper(): unit for unit in UNITS}
"""Maps functions of a `where` clause inside `len()` to their units."""
RELATIONS: Mapping[str, str] = {
    "REGEX": "fullmatch",
    "STARTS_WITH": "begins",
    "ENDS_WITH": "ends",
    "STOPS_AT": "stops at",
    "STOPS_BEFORE": "stops before",
}
"""Maps functions of a `where` clause that take a value to relations between a text and that value."""
WAYS = ("match", "fullmatch", "search")
"""Functions of Python's `re`, which are relations too."""
ORDER = ("<", "<=", ">", ">=")
EQUALITY = ("==", "in")
OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
    "in": lambda item, collection: item in collection,
    "is": operator.is_,
}
"""Maps symbols of Python's comparisons to their functions."""
MEANINGFUL = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE | re.ASCII
"""Flags that affect the matches of a pattern."""
WHOLE_TEXT = 200
"""Most characters of `text` in `X in text`, because every part of it is an option."""
LONGEST = 64
"""Most characters that STOPS_BEFORE can hold back because they may still be cut."""
LISTED = 100_000
"""Most numbers that are listed in memory."""
NOWHERE = Span("", "", 0, 0)
CASES = ("lower", "upper")
STRIPS = ("strip", "lstrip", "rstrip")


class Unguided(Exception):
    """A condition that no automaton can follow: Python judges it (S21)."""


class UnknownValue:
    """Type of UNKNOWN, the value of an expression that only a run can evaluate."""


UNKNOWN = UnknownValue()


class Symbol:
    """The value of an expression that reads the hole."""

    def term(self, relation: str, value: Any, holds: bool = True) -> Term:
        """The texts for which a relation to a value holds, or does not hold.

        Raises Unguided if only Python can tell, and ConstraintError for an unsuitable value.
        """
        if not self.knows(relation):
            raise Unguided
        return Constant(True) if value is UNKNOWN else self._term(relation, value, holds)

    def knows(self, relation: str) -> bool:
        """True if a term can express the relation."""
        return False

    def _term(self, relation: str, value: Any, holds: bool) -> Term:
        found = self._holding(relation, value)
        return found if holds else Not(found)

    def _holding(self, relation: str, value: Any) -> Term:
        """The texts for which the relation holds."""
        raise NotImplementedError

    def is_exact(self, relation: str, holds: bool) -> bool:
        """True if the term says all that the comparison says. Otherwise Python judges the value as well."""
        return True

    def attribute(self, name: str) -> Symbol:
        raise Unguided

    def item(self, key: Any) -> Symbol:
        raise Unguided

    def called(self, name: str, given: tuple[Any, ...]) -> Symbol | Term:
        """Result of a method."""
        raise Unguided

    def length(self) -> Symbol:
        raise Unguided

    def number(self, kind: Kind) -> Symbol:
        raise Unguided


# Texts ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextSymbol(Symbol):
    """`X`, `X.strip().lower()`.

    `typed` is the symbol of its value, if its type has values of its own. With a `kind`, it is both a text and a number
    (S20).
    """

    typed: Symbol | None = None
    kind: Kind | None = None
    case: str | None = None
    left: bool = False
    right: bool = False

    @property
    def is_plain(self) -> bool:
        return not (self.case or self.left or self.right)

    def knows(self, relation: str) -> bool:
        if relation in ORDER:
            return self.typed is not None or self.kind is not None
        if relation in ("==", "in", "startswith", "endswith"):
            return True
        if relation == "contains":
            return not (self.left or self.right)
        return self.is_plain and relation in (*WAYS, *RELATIONS.values())

    def is_exact(self, relation: str, holds: bool) -> bool:
        if relation in (*ORDER, *EQUALITY):
            if self.typed is not None:
                return self.typed.is_exact(relation, holds)
            if self.kind == "float":
                return False
        return holds or not self.case  # some spellings, such as ß for SS, are left out

    def _term(self, relation: str, value: Any, holds: bool) -> Term:
        if self.typed is not None and relation in (*ORDER, *EQUALITY):
            return self.typed.term(relation, value, holds)
        if self.kind and relation in ORDER:
            return NumberSymbol(self.kind).term(relation, value, holds)
        if self.kind == "float" and relation in EQUALITY:  # as a number, or as a text
            return Constant(True)
        return Symbol._term(self, relation, value, holds)

    def _holding(self, relation: str, value: Any) -> Term:
        match relation:
            case "==":
                return self._one_of([value])
            case "in":
                return self._one_of(_several(value))
            case "contains":
                return self._contains(value)
            case "startswith" | "endswith" | "begins" | "ends":
                return self._edge(relation, value)
            case "match" | "fullmatch" | "search":
                return _fits(relation, value)
        return _stops(relation == "stops at", value)

    def called(self, name: str, given: tuple[Any, ...]) -> Symbol | Term:
        if not given and name in CASES and self.case in (None, name):
            return replace(self, case=name, kind=None, typed=None)
        if not given and name in STRIPS:
            return replace(
                self, left=self.left or name != "rstrip", right=self.right or name != "lstrip", kind=None, typed=None
            )
        if self.is_plain:
            match name, given:
                case name, () if name in formats.METHODS:
                    return formats.method(name, NOWHERE)
                case "split", ():
                    return PartsSymbol("words")
                case "count", (phrase,):
                    return _occurrences(phrase)
        raise Unguided

    def length(self) -> Symbol:
        if not self.is_plain:
            raise Unguided
        return CountSymbol("characters")

    def number(self, kind: Kind) -> Symbol:
        if not self.is_plain:
            raise Unguided
        return NumberSymbol(kind)

    def item(self, key: Any) -> Symbol:
        for each in (key.start, key.stop) if isinstance(key, slice) else (key,):
            if not isinstance(each, int | UnknownValue | None):
                raise wrong("a place in a text is a whole number", each)
        return SliceSymbol()

    def _one_of(self, values: Iterable[Any]) -> Term:
        """Term of several options, which may also be numbers if the hole has a kind of number."""
        options: dict[str, None] = {}
        numbers: list[Any] = []
        for option in values:
            if self.kind and isinstance(option, Real):
                numbers.append(option)
            elif isinstance(option, str):
                encode(option)
                options[option] = None
            else:
                hint = "a text has quotes; numbers are compared with int(X) or float(X)"
                if isinstance(option, Enum):
                    hint = f"write the type in the prompt: [X: {type(option).__name__}]"
                raise wrong("a hole is text and can only be one of several texts", option, hint)
        texts: Term = Choice(tuple(option.encode() for option in options))
        if not self.is_plain:
            space = _space("*")
            kept = [each for each in options if each == self._stripped(each)]
            spelled = [each for option in kept if (each := _spelled(option, self.case)) is not None]
            either = f"{space if self.left else ''}(?:{'|'.join(spelled)}){space if self.right else ''}"
            texts = matches(either) if spelled else Constant(False)
        return Or((texts, NumberSymbol("int").term("in", numbers))) if numbers else texts

    def _stripped(self, text: str) -> str:
        text = text.lstrip() if self.left else text
        return text.rstrip() if self.right else text

    def _contains(self, value: Any) -> Term:
        if not isinstance(value, str):
            raise wrong("a hole is text and can only contain text", value, "a text has quotes")
        data = encode(value)
        spelled = _spelled(value, self.case)
        if self.case is None or spelled is None:
            return Contains(data) if self.case is None else Constant(False)
        return matches(f"(?s:.*){spelled}(?s:.*)", delimits=False)

    def _edge(self, relation: str, value: Any) -> Term:
        """`X.startswith(value)`, `ENDS_WITH(X, value)`, `X.lower().endswith(value)`: a text, or any of several.

        As in Python the methods take a tuple only; the functions take any collection.
        """
        at_start, tuple_only = relation in ("startswith", "begins"), relation in ("startswith", "endswith")
        several = isinstance(value, tuple) or (
            not tuple_only and isinstance(value, Iterable) and not isinstance(value, str)
        )
        texts: set[str] = set()
        for option in list(value) if several else [value]:
            if not isinstance(option, str):
                kind = "a tuple of texts" if tuple_only else "a collection of texts"
                sentence = f"a hole begins and ends with a text, or with one of {kind}"
                raise wrong(sentence, option, 'X.startswith(("a", "b")), STARTS_WITH(X, ["a", "b"])')
            encode(option)
            texts.add(option)
        if self.is_plain:
            return (Begins if at_start else Ends)(tuple(text.encode() for text in sorted(texts)))
        make = self._starting if at_start else self._ending
        patterns = [pattern for text in sorted(texts) if (pattern := make(text)) is not None]
        return matches("|".join(patterns), delimits=False) if patterns else Constant(False)

    def _starting(self, text: str) -> str | None:
        begin = _spelled(text, self.case)
        if begin is None or (text and self.left and text[0].isspace()):
            return None
        more = f"(?s:.*){_space('', negated=True)}" if text and self.right and text[-1].isspace() else ""
        return f"{_space('*') if self.left and text else ''}{begin}{more}(?s:.*)"

    def _ending(self, text: str) -> str | None:
        end = _spelled(text, self.case)
        if end is None or (text and self.right and text[-1].isspace()):
            return None
        more = f"{_space('', negated=True)}(?s:.*)" if text and self.left and text[0].isspace() else ""
        return f"(?s:.*){more}{end}{_space('*') if self.right and text else ''}"


PLAIN = TextSymbol()
"""Symbol of a hole without a type."""


def matches(pattern: str, flags: int = 0, *, delimits: bool = True) -> Matches:
    """The texts of a pattern. Raises ConstraintError if the pattern cannot be followed."""
    try:
        program(pattern, flags)
    except UnsupportedPattern as error:
        raise ConstraintError(error.sentence, hint=error.hint) from None
    return Matches(pattern, flags, delimits)


def _several(value: Any) -> Iterable[Any]:
    """Items that may be found `in` a value: those of a collection, or the parts of a text."""
    if not isinstance(value, str):
        if isinstance(value, Iterable):
            return value
        raise wrong("the options of a hole are a list, set or other collection of texts", value, 'X in ["yes", "no"]')
    if len(value) > WHOLE_TEXT:
        sentence = f"a hole can be a part of a text of up to {WHOLE_TEXT} characters; this one has {len(value):,}"
        raise ConstraintError(sentence, hint="to choose among texts, put them into a list")
    ends = range(len(value) + 1)
    return [value[start:end] for start in ends for end in ends[start:]]


def _fits(way: str, value: Any) -> Term:
    """`REGEX(X, value)`, `value.search(X)`: a pattern as text, or a compiled one with its flags."""
    pattern, flags = (value.pattern, value.flags & MEANINGFUL) if isinstance(value, re.Pattern) else (value, 0)
    if not isinstance(pattern, str):
        own = f"an object with its own {way}() can be used inside a function"
        hint = 'REGEX(X, r"[a-z]+")' if way == "fullmatch" else own
        raise wrong("a regular expression is a text, or what re.compile makes of one", value, hint)
    whole = True
    try:
        if way != "fullmatch":
            pattern, flags, whole = found(pattern, flags, from_start=way == "match")
    except UnsupportedPattern as error:
        raise ConstraintError(error.sentence, hint=error.hint) from None
    return matches(pattern, flags & MEANINGFUL, delimits=whole)


def _stops(inclusive: bool, value: Any) -> Term:
    """`STOPS_AT(X, value)`, `STOPS_BEFORE(X, value)`: one or several phrases or patterns, each of them a stop."""
    several = isinstance(value, Iterable) and not isinstance(value, str)
    stops = [_stop(inclusive, each) for each in (list(value) if several else [value])]
    if not stops:
        sentence = "a stop is a text or a pattern, or a list of them that is not empty"
        raise wrong(sentence, value, "a hole needs no stop: leave the clause out")
    if isinstance(value, Set):  # the order of a set differs from process to process
        stops.sort(key=lambda stop: stop.phrase if isinstance(stop, Stop) else stop.pattern.encode())
    return stops[0] if len(stops) == 1 else And(tuple(stops))


def _stop(inclusive: bool, value: Any) -> Stop | StopPattern:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        try:
            pattern, flags = phrase(value.pattern, value.flags & MEANINGFUL, None if inclusive else LONGEST)
        except UnsupportedPattern as error:
            raise ConstraintError(error.sentence, hint=error.hint) from None
        return StopPattern(pattern, flags & MEANINGFUL, inclusive)
    if not isinstance(value, str) or not value:
        sentence = "a stop is a text that is not empty, or what re.compile makes of one"
        raise wrong(sentence, value, 'STOPS_AT(X, [".", re.compile(r"\\s+")])')
    return Stop(encode(value), inclusive)


def _space(repeated: str, *, negated: bool = False) -> str:
    return f"[{'^' if negated else ''}{literally(''.join(SPACES))}]{repeated}"


def _spelled(text: str, case: str | None) -> str | None:
    """Pattern of the texts that become this one character by character; None if there are none."""
    if case is None:
        return literally(text)
    spellings = [_spellings(case).get(each, "") + (each if getattr(each, case)() == each else "") for each in text]
    return "".join(f"[{literally(each)}]" for each in spellings) if all(spellings) else None


@cache
def _spellings(case: str) -> Mapping[str, str]:
    """Maps each character to the others that a method turns into it, wherever they stand."""
    found: dict[str, str] = {}
    for character in map(chr, range(0x1F000)):
        made = getattr(character, case)()
        if made != character and len(made) == 1 and character != "Σ":  # two characters are its lower case
            found[made] = found.get(made, "") + character
    return found


@dataclass(frozen=True, slots=True)
class SliceSymbol(Symbol):
    """`X[0]`, `X[:2]`. Python compares it, but with texts only."""

    def knows(self, relation: str) -> bool:
        return relation in EQUALITY

    def is_exact(self, relation: str, holds: bool) -> bool:
        return False

    def _term(self, relation: str, value: Any, holds: bool) -> Term:
        for each in [value] if relation == "==" else _several(value):
            if not isinstance(each, str):
                raise wrong("a part of a hole is a text", each, "a text has quotes")
        return Constant(True)


# Lengths and counts --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartsSymbol(Symbol):
    """`WORDS(X)`, `X.split()`: it has a length, and nothing else."""

    unit: Unit

    def length(self) -> Symbol:
        return CountSymbol(self.unit)


@dataclass(frozen=True, slots=True)
class CountSymbol(Symbol):
    """`len(X)`, `len(WORDS(X))`, `X.count("a")`: the number of a unit, and some `more`."""

    unit: Unit
    more: int = 0

    def knows(self, relation: str) -> bool:
        return relation in (*ORDER, *EQUALITY)

    def _holding(self, relation: str, value: Any) -> Term:
        return self._among(value) if relation == "in" else self._compared(relation, value)

    def _compared(self, relation: str, value: Any) -> Term:
        bound = number("a length is compared with a number", value)
        return self._lengths(each.whole() for each in compared(relation, bound - self.more))

    def _among(self, value: Any) -> Term:
        sentence = "a length is one of a list, a range or another collection of numbers"
        among = _collection(sentence, value)
        if isinstance(among, range) and abs(among.step) == 1:
            return self._lengths([(least - self.more, most - self.more) for least, most in [_ends(among)]])
        numbers = {number(sentence, each) - self.more for each in among}
        lengths = sorted(math.floor(each) for each in numbers if 0 <= each < math.inf and each % 1 == 0)
        runs = [0, *(at for at, (one, two) in enumerate(pairwise(lengths), 1) if two > one + 1), len(lengths)]
        return self._lengths((lengths[start], lengths[end - 1]) for start, end in pairwise(runs) if end > start)

    def _lengths(self, bounds: Iterable[Bounds]) -> Term:
        """The texts whose length is within one of these bounds."""
        least = [(max(low or 0, 0), high) for low, high in bounds]
        terms = tuple(Length(low, high, self.unit) for low, high in least if high is None or low <= high)
        return terms[0] if len(terms) == 1 else Or(terms) if terms else Constant(False)


def _occurrences(phrase: Any) -> CountSymbol:
    if phrase is UNKNOWN:
        return CountSymbol("characters")
    if not isinstance(phrase, str):
        raise wrong("count() takes a text", phrase, "a text has quotes")
    data = encode(phrase)
    return CountSymbol(Occurrences(data)) if data else CountSymbol("characters", 1)


Bounds = tuple[int | None, int | None]
"""Least and greatest whole number; None for no bound."""


class NumberRange(NamedTuple):
    """Numbers between two bounds, None for no bound. With `open_low` or `open_high`, the bound itself is left out."""

    low: Any = None
    high: Any = None
    open_low: bool = False
    open_high: bool = False

    @property
    def is_empty(self) -> bool:
        if self.low is None or self.high is None or self.low < self.high:
            return False
        return bool(self.low > self.high or self.open_low or self.open_high)

    def whole(self) -> Bounds:
        """The whole numbers of the interval; none where the least is above the greatest."""
        low, high = self.low, self.high
        low = low if low is None else math.floor(low) + 1 if self.open_low else math.ceil(low)
        return low, high if high is None else math.ceil(high) - 1 if self.open_high else math.floor(high)


def compared(relation: str, value: Any) -> list[NumberRange]:
    """The finite numbers for which a comparison with a number, other than `!=`, is true."""
    if value in (math.inf, -math.inf):
        return [NumberRange()] if relation in (("<", "<=") if value > 0 else (">", ">=")) else []
    low = value if relation in (">", ">=", "==") else None
    high = value if relation in ("<", "<=", "==") else None
    return [NumberRange(low, high, open_low=relation == ">", open_high=relation == "<")]


def _ends(numbers: range) -> tuple[int, int]:
    """Least and greatest of a range without gaps; (1, 0) if it is empty."""
    return (min(numbers[0], numbers[-1]), max(numbers[0], numbers[-1])) if numbers else (1, 0)


def _collection(sentence: str, value: Any) -> Iterable[Any]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise wrong(sentence, value, "[3, 5, 8] or range(3, 9)")
    if isinstance(value, range) and abs(value.step) > 1 and value and (value[-1] - value[0]) // value.step >= LISTED:
        sentence = f"a range with steps is listed number by number, and this one has more than {LISTED:,}"
        raise ConstraintError(sentence, hint="write bounds, and leave the steps to Python: int(X) % 3 == 0")
    return value


# Numbers and values of a type ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NumberSymbol(Symbol):
    """`int(X)`, `float(X)`. A text that is no such number meets neither a comparison nor its opposite (S20).

    Python compares floats; the part before the point guides.
    """

    kind: Kind

    def knows(self, relation: str) -> bool:
        return relation in (*ORDER, *EQUALITY)

    def is_exact(self, relation: str, holds: bool) -> bool:
        return self.kind == "int"

    def _term(self, relation: str, value: Any, holds: bool) -> Term:
        if self.kind == "float":
            return self._near(relation, value, holds)
        found = self._among(value) if relation == "in" else self._compared(relation, value)
        return found if holds else formats.other_integers(found, NOWHERE)

    def _compared(self, relation: str, value: Any) -> Term:
        least, most = next((each.whole() for each in compared(relation, self._bound(value))), (1, 0))
        return formats.integers(least, most, NOWHERE)

    def _among(self, value: Any) -> Term:
        among = self._collection(value)
        if isinstance(among, range) and abs(among.step) == 1:
            low, high = (int(self._bound(end)) for end in _ends(among))
            return formats.integers(low, high, NOWHERE)
        numbers = [self._bound(each) for each in among]
        return Choice(tuple({str(math.floor(each)).encode(): None for each in numbers if each % 1 == 0}))

    def _near(self, relation: str, value: Any, holds: bool) -> Term:
        """The texts of numbers that may meet a comparison, as far as the part before the point shows."""
        if relation == "in":
            is_empty = not [self._bound(each) for each in self._collection(value)]
            return Constant(False) if is_empty and holds else Matches(formats.SHAPES["FLOAT"])
        bound = self._bound(value)
        if not holds or abs(bound) == math.inf:
            return Matches(formats.SHAPES["FLOAT"])
        whole = math.trunc(bound)
        low, high = None if "<" in relation else whole, None if ">" in relation else whole
        wholes = formats.integers(low, high, NOWHERE)
        below_one = r"|-0\.[0-9]+" if (low or 0) <= 0 <= (high or 0) else ""
        bounds = [each.pattern for each in conjuncts(wholes) if isinstance(each, Matches)]
        return And(tuple(Matches(rf"(?:{each})(?:\.[0-9]+)?{below_one}") for each in bounds))

    def _collection(self, value: Any) -> Iterable[Any]:
        return _collection(f"{self.kind}() of a hole is one of a list, a range or another collection of numbers", value)

    def _bound(self, value: Any) -> float:
        exact = number(f"{self.kind}() of a hole is compared with a number", value)
        if abs(exact) >= 10**formats.DIGITS_BUDGET and abs(exact) != math.inf:
            sentence = f"{self.kind}() of a hole is compared with numbers of up to {formats.DIGITS_BUDGET} digits"
            raise ConstraintError(sentence, hint="INT(X) or FLOAT(X) alone sets no bound")
        return exact


@dataclass(frozen=True, slots=True)
class ListedSymbol(Symbol):
    """A value of a type that lists its values, as pairs of text and value."""

    pairs: tuple[tuple[bytes, Any], ...]

    def knows(self, relation: str) -> bool:
        return relation in (*ORDER, *EQUALITY)

    def _term(self, relation: str, value: Any, holds: bool) -> Term:
        if relation == "in" and not isinstance(value, Iterable):
            raise wrong("a hole is one of a list, a set or another collection of values", value)
        among = list(value) if relation == "in" and not hasattr(value, "__contains__") else value
        return Choice(tuple(text for text, each in self.pairs if _is_true(relation, each, among) is holds))


def _is_true(relation: str, left: Any, right: Any) -> bool:
    try:
        return bool(OPERATORS[relation](left, right))
    except TypeError:  # Python cannot compare these
        return False


WITHOUT_ZONE = {"time": formats.CLOCK, "datetime": f"[-0-9]{{10}}(?:[T ]{formats.CLOCK})?"}
"""Patterns of times and datetimes that have no time zone."""


@dataclass(frozen=True, slots=True)
class MomentSymbol(Symbol):
    """A date, a datetime or a time. Python compares them; equal dates guide."""

    kind: Literal["date", "datetime", "time"]

    def knows(self, relation: str) -> bool:
        return relation in (*ORDER, *EQUALITY)

    def is_exact(self, relation: str, holds: bool) -> bool:
        return self.kind == "date" and relation in EQUALITY

    def _term(self, relation: str, value: Any, holds: bool) -> Term:
        if relation in ORDER:
            self._check(value)
            # Python orders times without a zone only with those that have none either
            return Constant(True) if self.kind == "date" else Matches(WITHOUT_ZONE[self.kind])
        if self.kind != "date":
            return Constant(True)
        days = Choice(tuple(dict.fromkeys(self._days([value] if relation == "==" else value))))
        return days if holds else Not(days)

    def _days(self, values: Any) -> Iterable[bytes]:
        if not isinstance(values, Iterable):
            raise wrong("a date is one of a list, a set or another collection of dates", values)
        for value in values:
            self._check(value)
            yield value.isoformat().encode()

    def _check(self, value: Any) -> None:
        kind = {"date": datetime.date, "datetime": datetime.datetime, "time": datetime.time}[self.kind]
        if not isinstance(value, kind) or (self.kind == "date" and isinstance(value, datetime.datetime)):
            raise wrong(f"a {self.kind} is compared with a {self.kind}", value)
        if getattr(value, "tzinfo", None) is not None:
            hint = "compare in Python after the hole, or write [X: AwareDatetime], pydantic's type with a time zone"
            raise wrong(f"a {self.kind} that may lack a time zone is not compared with one that has it", value, hint)


# Places of a JSON value ----------------------------------------------------------------------------------------------

SCALARS = (bool, int, float, str, Decimal, Fraction, datetime.date, datetime.time, Enum)
"""Types of the values that a place is compared with. Others may compare as they like."""
COLLECTIONS = (list, tuple, set, frozenset, dict, EnumMeta)
MAX_LISTED = 1_000
"""Most values of a collection that a place is compared with."""
OF_PLACES = (*ORDER, *EQUALITY, "is", "contains", "startswith", "endswith", *WAYS, "true")


@dataclass(frozen=True, slots=True)
class PlaceSymbol(Symbol):
    """`X.age`, `X["a"][0]`, `len(X.lines)` of a JSON value. Comparisons narrow the schema; Python judges as well."""

    path: tuple[PlaceStep, ...] = ()
    of_length: bool = False

    def knows(self, relation: str) -> bool:
        return relation in OF_PLACES

    def is_exact(self, relation: str, holds: bool) -> bool:
        return False

    def step(self, step: PlaceStep) -> PlaceSymbol:
        if self.of_length:
            raise Unguided
        return PlaceSymbol((*self.path, step))

    def attribute(self, name: str) -> Symbol:
        return self.step(PlaceStep("attribute", name))

    def item(self, key: Any) -> Symbol:
        return self.step(PlaceStep("item", key))

    def called(self, name: str, given: tuple[Any, ...]) -> Symbol | Term:
        match name, given:
            case "get", (_,) | (_, _):
                return self.step(PlaceStep("get", *given))
            case "values", ():
                return self.step(PlaceStep("values"))
        raise Unguided

    def length(self) -> Symbol:
        return replace(self.step(PlaceStep("values")), path=self.path, of_length=True)

    def there(self) -> Term:
        """The values that have such a place."""
        return Inside(self.path, ()) if self.path else Constant(True)

    def _term(self, relation: str, value: Any, holds: bool) -> Term:
        keys = [key for step in self.path for key in (step.key, step.default)]
        if relation == "in" and isinstance(value, (*SCALARS, NoneType)) and not isinstance(value, str):
            raise wrong("a place is one of a list, a set or another collection of values", value)
        if relation == "is":
            is_known = value is None or value is True or value is False
        else:
            is_known = _is_comparable(value, relation)
        if not is_known or not all(_is_comparable(key, "==") for key in keys):
            return Constant(True)
        if isinstance(value, EnumMeta):
            members: list[Any] = list(value)
            value = (*members, *(member.value for member in members))
        elif isinstance(value, COLLECTIONS):
            value = tuple(value)
        return Inside(self.path, (PlaceTest(relation, value, holds, self.of_length),))


def _is_comparable(value: Any, relation: str) -> bool:
    """True if comparisons with the value are those of numbers, texts, dates and listed values."""
    if isinstance(value, str) and relation == "in":  # any part of it
        return False
    if isinstance(value, (range, *COLLECTIONS)) and relation not in ("in", "startswith", "endswith"):
        return False
    if isinstance(value, range):
        return True
    if isinstance(value, COLLECTIONS):
        return len(value) <= MAX_LISTED and all(_is_comparable(each, "==") for each in value)
    is_scalar = value is None or isinstance(value, SCALARS) or (isinstance(value, re.Pattern) and relation in WAYS)
    return is_scalar and value == value
