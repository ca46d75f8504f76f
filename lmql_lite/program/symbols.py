"""Symbols: the objects that stand for a hole while its `where` is evaluated. Their comparisons are terms.

`X` is a text, `len(X)` a count, `int(X)` a number, `X.age` of a record a place. A comparison that no term expresses
raises Unguided: Python judges it (S21). `X != 1` is `X == 1` that does not hold.
"""

from __future__ import annotations

import datetime
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby
from numbers import Real
from typing import Any, ClassVar, Literal

from lmql_lite.constraints import formats
from lmql_lite.constraints.pattern import UnsupportedPattern, check_stop, literally, program
from lmql_lite.constraints.terms import (
    UNITS,
    And,
    Begins,
    Choice,
    Constant,
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
    Term,
    Unit,
    Way,
    conjuncts,
    contains,
)
from lmql_lite.errors import ConstraintError, QueryError, Span, did_you_mean
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
COMPARISONS = ORDER + EQUALITY
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
MAX_LENGTH = 64
"""Most characters that STOPS_BEFORE can hold back because they may still be cut."""
LISTED = 100_000
"""Most numbers that are listed in memory."""
NOWHERE = Span("", "", 0, 0)
ANY = "(?s:.*)"
PART = "part"


INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("contains", "includes", "has"), 'write ".." in X'),
    **dict.fromkeys(("len", "length", "size"), "write len(X) < 80"),
    **dict.fromkeys(("matches", "test"), 'write REGEX(X, r"..")'),
}
"""Methods of text in other languages, and conditions of this one."""


class Unguided(Exception):
    """A condition that no automaton can follow: Python judges it (S21)."""


COLLECTIONS = (list, tuple, set, frozenset, range)


class UnknownValue:
    """Type of UNKNOWN, the value of an expression that only a run can evaluate."""


UNKNOWN = UnknownValue()


class Symbol:
    """The value of an expression that reads the hole."""

    relations: ClassVar[tuple[str, ...]] = ()
    """Relations that a term can express."""

    @property
    def examples(self) -> tuple[Any, ...]:
        """Values of a type, which have its attributes."""
        return ()

    def knows(self, relation: str) -> bool:
        return relation in self.relations

    def term(self, relation: str, value: Any, holds: bool = True) -> Term:
        """The texts for which a relation to a value holds, or does not hold.

        Raises Unguided if only Python can tell, and ConstraintError for an unsuitable value.
        """
        if not self.knows(relation):
            raise Unguided
        if value is UNKNOWN:
            return Constant(True)
        found = self.holding(relation, value)
        return found if holds else self.opposite(found)

    def holding(self, relation: str, value: Any) -> Term:
        """The texts for which the relation holds."""
        raise NotImplementedError

    def opposite(self, term: Term) -> Term:
        return Not(term)

    def is_exact(self, relation: str, value: Any, holds: bool) -> bool:
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
    """`X`, `X.lower()`.

    `typed` is the symbol of its value, if its type has values of its own. With a `kind`, it is both a text and a number
    (S20). If it `is_made` by a query or a decorator, its value need not be text. `case` is the method that changes its
    letters, or PART: of `X[0]` and `X.strip()` only Python knows the text, but it is one.
    """

    typed: Symbol | None = None
    kind: Kind | None = None
    case: str | None = None
    is_made: bool = False

    @property
    def is_text(self) -> bool:
        """True if its value is certainly text."""
        return not (self.typed or self.kind or self.is_made)

    def _compared(self, relation: str, value: Any = UNKNOWN) -> Symbol | None:
        """Symbol of the value, where that is compared and not the text."""
        several = value if relation == "in" and isinstance(value, Collection) else (value,)
        is_number = relation in ORDER or (self.kind == "float" and not all(isinstance(each, str) for each in several))
        if self.kind and is_number and relation in COMPARISONS:
            return NumberSymbol(self.kind)
        return self.typed if relation in COMPARISONS else None

    def knows(self, relation: str) -> bool:
        if relation in ORDER:
            return self._compared(relation) is not None
        methods = (*EQUALITY, "contains", "startswith", "endswith")
        return relation in methods or (not self.case and relation in (*WAYS, *RELATIONS.values()))

    def is_exact(self, relation: str, value: Any, holds: bool) -> bool:
        if compared := self._compared(relation, value):
            return compared.is_exact(relation, value, holds)
        return not self.case or (holds and self.case != PART)  # some spellings, such as ß for SS, are left out

    def term(self, relation: str, value: Any, holds: bool = True) -> Term:
        if compared := self._compared(relation, value):
            return compared.term(relation, value, holds)
        if self.is_text and isinstance(value, int | float) and not isinstance(value, bool) and relation in ORDER:
            sentence = "a hole is text and cannot be compared with a number"
            raise wrong(sentence, value, "len(X) is its length, int(X) is the number in it")
        if self.is_text and isinstance(value, str | int | float) and relation == "is":
            raise ConstraintError("'is' compares objects, not their text", hint="write == or !=")
        return Symbol.term(self, relation, value, holds)

    def holding(self, relation: str, value: Any) -> Term:
        match relation:
            case "==":
                return self._one_of([value])
            case "in":
                return self._one_of(_several(value))
            case "contains":
                sentence = "a hole is text and can only contain text"
                return self._standing(_texts([value], sentence, "a text has quotes"), at_start=False, at_end=False)
            case "startswith" | "endswith" | "begins" | "ends":
                return self._edge(relation, value)
            case "match" | "fullmatch" | "search":
                return _fits(relation, value)
        return _stops(relation == "stops at", value)

    def attribute(self, name: str) -> Symbol:
        self.refuse_unknown(name)
        if self.typed is None or self.case:
            raise Unguided
        return self.typed.attribute(name)

    def refuse_unknown(self, name: str) -> None:
        """Raises QueryError for an attribute or a method that neither the text nor its value has."""
        examples = ("", *(self.typed.examples if self.typed else ()))
        if self.kind or self.is_made or any(hasattr(each, name) for each in examples):
            return
        hint = did_you_mean(name, [each for each in dir(examples[-1]) if each[0] != "_"])
        if self.typed:
            raise QueryError(f"a value of this type has no attribute '{name}'", hint=hint)
        hint = INSTEAD.get(name.lower()) or hint or 'for example X.startswith("a")'
        raise QueryError(f"text has no method '{name}'", hint=hint)

    def item(self, key: Any) -> Symbol:
        examples = self.typed.examples if self.typed else ()
        if self.kind or self.is_made:
            raise Unguided
        if self.typed and not any(hasattr(each, "__getitem__") for each in examples):
            raise QueryError("a value of this type has no items", hint="str(X) is its text")
        if not all(isinstance(each, str) for each in examples):
            raise Unguided
        for each in (key.start, key.stop) if isinstance(key, slice) else (key,):
            if not isinstance(each, int | UnknownValue | None):
                raise wrong("a place in a text is a whole number", each, 'X[0] == "a"')
        return replace(self, case=PART, typed=None)

    def called(self, name: str, given: tuple[Any, ...]) -> Symbol | Term:
        match name, given:
            case "lower" | "upper", () if self.case in (None, name):
                return replace(self, case=name, kind=None, typed=None)
            case "lower" | "upper" | "strip" | "lstrip" | "rstrip", ():
                return replace(self, case=PART, kind=None, typed=None)
            case _ if self.case:
                raise Unguided
            case name, () if name in formats.METHODS:
                return formats.method(name, NOWHERE)
            case "split", ():
                return PartsSymbol("words")
            case "count", (phrase,):
                return _occurrences(phrase)
        raise Unguided

    def length(self) -> Symbol:
        if self.case:
            raise Unguided
        return CountSymbol("characters")

    def number(self, kind: Kind) -> Symbol:
        if self.case:
            raise Unguided
        return NumberSymbol(kind)

    def _one_of(self, values: Iterable[Any]) -> Term:
        """Term of several options, which may also be numbers if the hole has a kind of number."""
        values = list(values)
        numbers = [each for each in values if self.kind and isinstance(each, Real)]
        options = values if not numbers else [each for each in values if not isinstance(each, Real)]
        hint = "a text has quotes; numbers are compared with int(X) or float(X)"
        texts = _texts(options, "a hole is text and can only be one of several texts", hint)
        term = self._standing(texts, at_start=True, at_end=True)
        return Or((term, NumberSymbol("int").term("in", numbers))) if numbers else term

    def _edge(self, relation: str, value: Any) -> Term:
        """`X.startswith(value)`, `ENDS_WITH(X, value)`, `X.lower().endswith(value)`: a text, or any of several.

        As in Python the methods take a tuple only; the functions take any collection.
        """
        at_start, tuple_only = relation in ("startswith", "begins"), relation in ("startswith", "endswith")
        several = isinstance(value, tuple) or (
            not tuple_only and isinstance(value, Iterable) and not isinstance(value, str)
        )
        sentence = (
            f"a hole begins and ends with a text, or with one of a {'tuple' if tuple_only else 'collection'} of texts"
        )
        hint = 'X.startswith(("a", "b")), STARTS_WITH(X, ["a", "b"])'
        texts = _texts(list(value) if several else [value], sentence, hint)
        return self._standing(sorted(texts), at_start=at_start, at_end=not at_start)

    def _standing(self, texts: list[str], *, at_start: bool, at_end: bool) -> Term:
        """The texts that, once changed, begin with one of these, end with it, are it or contain it."""
        if self.case == PART:
            raise Unguided
        if self.case is None:
            data = tuple(text.encode() for text in texts)
            if at_start and at_end:
                return Choice(data)
            return Begins(data) if at_start else Ends(data) if at_end else contains(data[0])
        spelled = [each for text in texts if (each := self._spelled(text)) is not None]
        if not spelled:
            return Constant(False)
        before, after = ANY * (not at_start), ANY * (not at_end)
        return matches(f"{before}(?:{'|'.join(spelled)}){after}", delimits=at_start and at_end)

    def _spelled(self, text: str) -> str | None:
        """Pattern of the texts that become this one character by character; None if there are none."""
        spellings = [
            "".join(other for other in dict.fromkeys((each, each.lower(), each.upper())) if self._becomes(other, each))
            for each in text
        ]
        return "".join(f"[{literally(each)}]" for each in spellings) if all(spellings) else None

    def _becomes(self, character: str, wanted: str) -> bool:
        is_one = len(character) == 1 and character != "Σ"  # two characters are its lower case
        return is_one and getattr(character, self.case or "lower")() == wanted


PLAIN = TextSymbol()
"""Symbol of a hole without a type."""


def matches(pattern: str, flags: int = 0, *, way: Way = "fullmatch", delimits: bool | None = None) -> Matches:
    """The texts of a pattern. Unless `delimits` is given, it does if nothing may stand around its matches.

    Raises ConstraintError if the pattern cannot be followed.
    """
    try:
        anchored = program(pattern, flags, way).anchored
    except UnsupportedPattern as error:
        raise ConstraintError(error.sentence, hint=error.hint) from None
    return Matches(pattern, flags, anchored if delimits is None else delimits, way)


def _texts(values: Iterable[Any], sentence: str, hint: str) -> list[str]:
    """The values, once each. Raises ConstraintError for one that is no text, or none that a model can write."""
    texts: dict[str, None] = {}
    for value in values:
        if not isinstance(value, str):
            of_enum = f"write the type in the prompt: [X: {type(value).__name__}]"
            raise wrong(sentence, value, of_enum if isinstance(value, Enum) else hint)
        encode(value)
        texts[value] = None
    return list(texts)


def _several(value: Any) -> Iterable[Any]:
    """Items that may be found `in` a value. Those of a text are its parts, which Python judges."""
    if isinstance(value, str):
        raise Unguided
    if isinstance(value, Iterable):
        return value
    raise wrong("the options of a hole are a list, set or other collection of texts", value, 'X in ["yes", "no"]')


def _fits(way: Way, value: Any) -> Term:
    """`REGEX(X, value)`, `value.search(X)`: a pattern as text, or a compiled one with its flags."""
    pattern, flags = (value.pattern, value.flags & MEANINGFUL) if isinstance(value, re.Pattern) else (value, 0)
    if not isinstance(pattern, str):
        own = f"an object with its own {way}() can be used inside a function"
        hint = 'REGEX(X, r"[a-z]+")' if way == "fullmatch" else own
        raise wrong("a regular expression is a text, or what re.compile makes of one", value, hint)
    return matches(pattern, flags, way=way)


def _stops(inclusive: bool, value: Any) -> Term:
    """`STOPS_AT(X, value)`, `STOPS_BEFORE(X, value)`: one or several phrases or patterns, each of them a stop."""
    several = isinstance(value, Iterable) and not isinstance(value, str)
    stops = [_stop(inclusive, each) for each in (list(value) if several else [value])]
    if not stops:
        sentence = "a stop is a text or a pattern, or a list of them that is not empty"
        raise wrong(sentence, value, "a hole needs no stop: leave the clause out")
    if isinstance(value, Set):  # the order of a set differs from process to process
        stops.sort(key=lambda stop: stop.phrase)
    return stops[0] if len(stops) == 1 else And(tuple(stops))


def _stop(inclusive: bool, value: Any) -> Stop:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        flags = value.flags & MEANINGFUL
        try:
            check_stop(value.pattern, flags, None if inclusive else MAX_LENGTH)
        except UnsupportedPattern as error:
            raise ConstraintError(error.sentence, hint=error.hint) from None
        return Stop(encode(value.pattern), inclusive, flags)
    if not isinstance(value, str) or not value:
        sentence = "a stop is a text that is not empty, or what re.compile makes of one"
        raise wrong(sentence, value, 'STOPS_AT(X, [".", re.compile(r"\\s+")])')
    return Stop(encode(value), inclusive)


# Lengths and numbers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartsSymbol(Symbol):
    """`WORDS(X)`, `X.split()`: it has a length, and nothing else."""

    unit: Unit

    def length(self) -> Symbol:
        return CountSymbol(self.unit)


Bounds = tuple[int | None, int | None]
"""Least and greatest whole number; None for no bound. There is none between (1, 0)."""


def whole_bounds(relation: str, value: Any) -> Bounds:
    """Bounds of the whole numbers for which a comparison with a number is true."""
    if value in (math.inf, -math.inf):
        return (None, None) if relation in (("<", "<=") if value > 0 else (">", ">=")) else (1, 0)
    low = math.floor(value) + 1 if relation == ">" else math.ceil(value)
    high = math.ceil(value) - 1 if relation == "<" else math.floor(value)
    return None if "<" in relation else low, None if ">" in relation else high


class WholeSymbol(Symbol):
    """A value that is compared with numbers."""

    relations = COMPARISONS

    @property
    def subject(self) -> str:
        """The value, in the words of an error."""
        return "a length"

    def bound(self, value: Any) -> float:
        """The number to compare with."""
        return number(f"{self.subject} is compared with a number", value)

    def bounds(self, relation: str, value: Any) -> list[Bounds]:
        """Bounds of the whole numbers that are meant, in order."""
        if relation != "in":
            return [whole_bounds(relation, self.bound(value))]
        among = self.among(value)
        if isinstance(among, range) and abs(among.step) == 1:
            ends = sorted(int(self.bound(each)) for each in (among[0], among[-1])) if among else (1, 0)
            return [(ends[0], ends[1])]
        wholes = {int(each) for each in map(self.bound, among) if each % 1 == 0}
        return [(each, each) for each in sorted(wholes)]

    def among(self, value: Any) -> Any:
        """The collection of numbers to look in."""
        if isinstance(value, str) or not isinstance(value, Iterable):
            sentence = f"{self.subject} is one of a list, a range or another collection of numbers"
            raise wrong(sentence, value, "[3, 5, 8] or range(3, 9)")
        if (
            isinstance(value, range)
            and abs(value.step) > 1
            and value
            and (value[-1] - value[0]) // value.step >= LISTED
        ):
            sentence = f"a range with steps is listed number by number, and this one has more than {LISTED:,}"
            raise ConstraintError(sentence, hint="write bounds, and leave the steps to Python: int(X) % 3 == 0")
        return value


@dataclass(frozen=True, slots=True)
class CountSymbol(WholeSymbol):
    """`len(X)`, `len(WORDS(X))`, `X.count("a")`: the number of a unit."""

    unit: Unit

    def holding(self, relation: str, value: Any) -> Term:
        lengths: list[tuple[int, int | None]] = []
        for low, high in self.bounds(relation, value):
            least, most = max(low or 0, 0), high
            if lengths and lengths[-1][1] == least - 1:
                lengths[-1] = lengths[-1][0], most
            elif most is None or least <= most:
                lengths.append((least, most))
        terms = tuple(Length(least, most, self.unit) for least, most in lengths)
        return terms[0] if len(terms) == 1 else Or(terms) if terms else Constant(False)


def _occurrences(phrase: Any) -> CountSymbol:
    if phrase is UNKNOWN:
        return CountSymbol("characters")
    data = _texts([phrase], "count() takes a text", "a text has quotes")[0].encode()
    if not data:
        raise Unguided
    return CountSymbol(Occurrences(data))


@dataclass(frozen=True, slots=True)
class NumberSymbol(WholeSymbol):
    """`int(X)`, `float(X)`. A text that is no such number meets neither a comparison nor its opposite (S20).

    Python compares floats; the part before the point guides.
    """

    kind: Kind

    @property
    def examples(self) -> tuple[Any, ...]:
        return (MADE[self.kind]("0"),)

    @property
    def subject(self) -> str:
        return f"{self.kind}() of a hole"

    def is_exact(self, relation: str, value: Any, holds: bool) -> bool:
        return self.kind == "int"

    def bound(self, value: Any) -> float:
        exact = WholeSymbol.bound(self, value)
        if abs(exact) >= 10**formats.DIGITS_BUDGET and abs(exact) != math.inf:
            sentence = f"{self.subject} is compared with numbers of up to {formats.DIGITS_BUDGET} digits"
            raise ConstraintError(sentence, hint="INT(X) or FLOAT(X) alone sets no bound")
        return exact

    def opposite(self, term: Term) -> Term:
        shape = Matches(formats.SHAPES[SHAPE[self.kind]])
        return And((shape, Not(term))) if self.kind == "int" else shape

    def holding(self, relation: str, value: Any) -> Term:
        if self.kind == "float":
            return self._near(relation, value)
        bounds = self.bounds(relation, value)
        if relation != "in" or any(low != high for low, high in bounds):
            return formats.integers(*bounds[0], NOWHERE)
        return Choice(tuple(str(each).encode() for each, _ in bounds))

    def _near(self, relation: str, value: Any) -> Term:
        """The texts of numbers that may meet a comparison, as far as the part before the point shows."""
        if relation == "in":
            among = [self.bound(each) for each in self.among(value)]
            return Matches(formats.FLOAT, reach=(min(among), max(among))) if among else Constant(False)
        bound = self.bound(value)
        reach = -math.inf if "<" in relation else bound, math.inf if ">" in relation else bound
        if abs(bound) == math.inf:
            return Matches(formats.FLOAT, reach=reach)
        whole = math.trunc(bound)
        low, high = None if "<" in relation else whole, None if ">" in relation else whole
        below_one = r"|-0\.[0-9]+" if (low or 0) <= 0 <= (high or 0) else ""
        bounds = [each.pattern for each in conjuncts(formats.integers(low, high, NOWHERE)) if isinstance(each, Matches)]
        return And(tuple(Matches(rf"(?:{each})(?:\.[0-9]+)?{below_one}", reach=reach) for each in bounds))


# Values that Python compares -----------------------------------------------------------------------------------------


WITHOUT_ZONE = {"time": formats.CLOCK, "datetime": f"[-0-9]{{10}}(?:[T ]{formats.CLOCK})?"}
"""Patterns of times and datetimes that have no time zone."""


MOMENTS: Mapping[str, Any] = {"date": datetime.date, "datetime": datetime.datetime, "time": datetime.time}


@dataclass(frozen=True, slots=True)
class MomentSymbol(Symbol):
    """A date, a datetime or a time, which Python compares."""

    kind: Literal["date", "datetime", "time"]
    relations = COMPARISONS

    @property
    def examples(self) -> tuple[Any, ...]:
        return (MOMENTS[self.kind].min,)

    def holding(self, relation: str, value: Any) -> Term:
        if relation == "in" and not isinstance(value, Iterable):
            raise wrong(f"a {self.kind} is one of a list, a set or another collection", value)
        if relation == "in" and isinstance(value, Collection) and not value:
            return Constant(False)
        among = [value] if relation != "in" else value if isinstance(value, Collection) else []
        for each in among if relation in ORDER or self.kind == "date" else ():
            self._check(each)
        terms = []
        if relation in ORDER and self.kind != "date":
            # Python orders them only with those that have no zone either
            terms.append(Matches(WITHOUT_ZONE[self.kind]))
        if pattern := pattern_of_days(relation, value):
            terms.append(Matches(pattern))
        return And(tuple(terms)) if terms else Constant(True)

    def is_exact(self, relation: str, value: Any, holds: bool) -> bool:
        return False

    def opposite(self, term: Term) -> Term:
        return Constant(True)

    def attribute(self, name: str) -> Symbol:
        if self.kind == "time" or name not in DATE_PARTS:
            raise Unguided
        return DatePartSymbol(name)

    def _check(self, value: Any) -> None:
        kind = MOMENTS[self.kind]
        if not isinstance(value, kind) or (self.kind == "date" and isinstance(value, datetime.datetime)):
            raise wrong(f"a {self.kind} is compared with a {self.kind}", value)
        if getattr(value, "tzinfo", None) is not None:
            hint = "compare in Python after the hole, or write [X: AwareDatetime], pydantic's type with a time zone"
            raise wrong(f"a {self.kind} that may lack a time zone is not compared with one that has it", value, hint)


DATE_PARTS = {
    "year": ("%04d", range(1, 10_000), "", "-.*"),
    "month": ("%02d", range(1, 13), "[0-9]{4}-", "-.*"),
    "day": ("%02d", range(1, 32), "[0-9]{4}-[0-9]{2}-", ".*"),
}
"""Parts of a date: how one is spelled, all that there are, and patterns of the text before and after it."""


def date_pattern(part: str, is_wanted: Callable[[int], bool], before: str | None = None) -> str | None:
    """Pattern of the dates and datetimes with such a year, month or day; None if there are none."""
    spelling, known, any_before, after = DATE_PARTS[part]
    wanted = [spelling % each for each in known if is_wanted(each)]
    return f"{any_before if before is None else before}{_digits(wanted)}{after}" if wanted else None


def pattern_of_days(relation: str, value: Any) -> str | None:
    """Pattern of the dates and datetimes whose day allows a comparison to hold; None if any may."""
    if relation == "in" and isinstance(value, COLLECTIONS):
        days = [each.isoformat()[:10] for each in value if isinstance(each, datetime.date)]
        return f"(?:{'|'.join(days)}).*" if days else None
    if not isinstance(value, datetime.date):
        return None
    year, month, day = value.isoformat()[:10].split("-")
    if relation == "==":
        return f"{year}-{month}-{day}.*"
    if relation not in ORDER:
        return None
    beyond, reached = OPERATORS[relation[0]], OPERATORS[f"{relation[0]}="]
    arms = (
        date_pattern("year", lambda each: beyond(each, value.year)),
        date_pattern("month", lambda each: beyond(each, value.month), f"{year}-"),
        date_pattern("day", lambda each: reached(each, value.day), f"{year}-{month}-"),
    )
    return f"(?:{'|'.join(filter(None, arms))})"


def _digits(spelled: Iterable[str]) -> str:
    """Pattern of numerals of one length."""
    tails: dict[str, list[str]] = {}
    for first, several in groupby(sorted(spelled), key=lambda each: each[:1]):
        if not first:
            return ""
        tails.setdefault(_digits([each[1:] for each in several]), []).append(first)
    arms = [f"[{''.join(firsts)}]{tail}" for tail, firsts in tails.items()]
    return f"(?:{'|'.join(arms)})"


@dataclass(frozen=True, slots=True)
class DatePartSymbol(Symbol):
    """The year, the month or the day of a date or a datetime. Python judges it as well."""

    part: str
    relations = COMPARISONS

    def is_exact(self, relation: str, value: Any, holds: bool) -> bool:
        return False

    def holding(self, relation: str, value: Any) -> Term:
        if relation == "in" and not hasattr(value, "__contains__"):
            raise Unguided
        pattern = date_pattern(self.part, lambda each: _is_true(relation, each, value))
        return Constant(False) if pattern is None else Matches(pattern)


@dataclass(frozen=True, slots=True)
class ListedSymbol(Symbol):
    """A value of a type that lists its values, as pairs of text and value."""

    pairs: tuple[tuple[bytes, Any], ...]
    relations = COMPARISONS

    @property
    def examples(self) -> tuple[Any, ...]:
        return tuple(value for _, value in self.pairs)

    def holding(self, relation: str, value: Any) -> Term:
        if relation == "in" and not isinstance(value, Iterable):
            raise wrong("a hole is one of a list, a set or another collection of values", value)
        among = list(value) if relation == "in" and not hasattr(value, "__contains__") else value
        return Choice(tuple(text for text, each in self.pairs if _is_true(relation, each, among)))

    def opposite(self, term: Term) -> Term:
        return And((Choice(tuple(text for text, _ in self.pairs)), Not(term)))


def _is_true(relation: str, left: Any, right: Any) -> bool:
    try:
        return bool(OPERATORS[relation](left, right))
    except TypeError:  # Python cannot compare these
        return False


# Places of a JSON value ----------------------------------------------------------------------------------------------

MAX_LISTED = 1_000
"""Most values of a collection that a place is compared with."""


@dataclass(frozen=True, slots=True)
class PlaceSymbol(Symbol):
    """`X.age`, `X["a"]`, `len(X.lines)` of a JSON value. Comparisons narrow the schema; Python judges as well."""

    path: tuple[PlaceStep, ...] = ()
    of_length: bool = False
    relations = (*COMPARISONS, "is", "contains", "startswith", "true")

    def is_exact(self, relation: str, value: Any, holds: bool) -> bool:
        return False

    def step(self, kind: Literal["attribute", "item", "each", "some"], key: object = None) -> PlaceSymbol:
        if self.of_length:
            raise Unguided
        return PlaceSymbol((*self.path, PlaceStep(kind, key)))

    def attribute(self, name: str) -> Symbol:
        return self.step("attribute", name)

    def item(self, key: Any) -> Symbol:
        if not isinstance(key, str | int | UnknownValue) or not _is_text(key):
            raise Unguided
        return self.step("item", key)

    def length(self) -> Symbol:
        if self.of_length:
            raise Unguided
        return replace(self, of_length=True)

    def there(self) -> Term:
        """The values that have such a place: Python fails for others."""
        is_known = self.path and not any(step.key is UNKNOWN for step in self.path)
        return Inside(self.path) if is_known else Constant(True)

    def term(self, relation: str, value: Any, holds: bool = True) -> Term:
        if value is UNKNOWN or any(step.key is UNKNOWN for step in self.path):
            return Constant(True)
        if relation == "in" and (not hasattr(value, "__contains__") or (self.of_length and isinstance(value, str))):
            raise wrong("a place is one of a list, a set or another collection of values", value)
        if not (holds and self.knows(relation)):
            return self.there()
        if relation == "in" and isinstance(value, range) and len(value) > 1 and value.step == 1:
            return And((self.term(">=", value[0]), self.term("<=", value[-1])))
        is_collection = isinstance(value, COLLECTIONS)
        is_several = is_collection and relation in ("in", "startswith") and len(value) <= MAX_LISTED
        among = value if is_several else [value]
        kinds = str | int | float | datetime.date | datetime.time | Enum | None
        is_known = all(isinstance(each, kinds) and each == each and _is_text(each) for each in among)
        if not is_known or (relation == "in" and not is_collection):
            return self.there()
        if relation == "contains":
            return Inside(self.step("some").path, PlaceTest("==", (value,)))
        relation = "==" if relation in ("in", "is") else relation
        return Inside(self.path, PlaceTest(relation, tuple(among), self.of_length))


def _is_text(value: object) -> bool:
    """False for a text that JSON cannot have."""
    return not (isinstance(value, str) and re.search("[\ud800-\udfff]", value))
