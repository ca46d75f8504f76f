"""Boolean terms over atoms: the conditions of `where` on one hole. Plain data; equal terms share one automaton.

Every value in a term is known, because earlier holes and Python expressions were evaluated before.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, NamedTuple, assert_never, get_args

from lmql_lite.errors import Span

NamedUnit = Literal["characters", "words", "sentences", "lines", "tokens"]
"""Characters are code points. Words are the parts that `str.split()` returns. A sentence ends where white space follows
`.`, `!` or `?`. A line ends with a line feed, which the last line may lack. Tokens are those that were chosen for the
hole, including tokens that a stop cuts off (S15)."""
UNITS: tuple[NamedUnit, ...] = get_args(NamedUnit)


@dataclass(frozen=True, slots=True, order=True)
class Occurrences:
    """Non-overlapping occurrences of a phrase, counted as `str.count` does."""

    phrase: bytes

    def __str__(self) -> str:
        return f"times {self.phrase.decode()!r}"


Unit = NamedUnit | Occurrences
MARKS = ".!?"
SPACES = tuple(filter(str.isspace, map(chr, range(0x3001))))
"""All white space characters of Unicode."""


def starts_character(byte: int) -> bool:
    """True if a byte is the first byte of a UTF-8 character; a text has as many of these as code points."""
    return byte & 0xC0 != 0x80


def measured(text: str, unit: Unit) -> int:
    """Number of parts in a text. For tokens, which the text alone does not determine, the number of characters."""
    match unit:
        case Occurrences(phrase):
            return text.count(phrase.decode())
        case "characters" | "tokens":
            return len(text)
        case "words":
            return len(text.split())
        case "sentences":
            return len(re.split(r"(?<=[.!?])\s+", text.strip())) if text.strip() else 0
        case "lines":
            return text.count("\n") + (not text.endswith("\n") and text != "")
    assert_never(unit)


Way = Literal["fullmatch", "match", "search"]
Ending = Literal["stop", "end-of-text", "bound", "forced"]
"""Reason for a hole's end: a stop phrase, the model's own decision, a length limit, or no other possibility."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A condition that does not depend on the hole."""

    holds: bool
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Length:
    """The number of characters, or of another unit, is in `at_least .. at_most`. None means no upper bound."""

    at_least: int
    at_most: int | None
    unit: Unit = "characters"
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Choice:
    """The text is one of these."""

    options: tuple[bytes, ...]
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Matches:
    """Python's `re` finds this regular expression in the text, in one of its ways.

    With `delimits`, a token that cannot continue a complete match ends the hole (S18). Without, such tokens are
    forbidden, and the model has to choose another one.
    """

    pattern: str
    flags: int = 0
    delimits: bool = True
    way: Way = "fullmatch"
    span: Span | None = field(default=None, compare=False)
    reach: tuple[float, float] = (-math.inf, math.inf)
    """Least and greatest number of these texts, if they are numbers."""


@dataclass(frozen=True, slots=True)
class Begins:
    """The text begins with one of these."""

    phrases: tuple[bytes, ...]
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Ends:
    """The text ends with one of these."""

    phrases: tuple[bytes, ...]
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Lacks:
    """The text contains none of these phrases. `simplify` makes it from negated phrases."""

    phrases: tuple[bytes, ...]
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Stop:
    """The hole ends where this phrase is complete and the rest of the condition holds (S13).

    An observation, not a demand: the phrase need not occur, and a token may run past it (S14). `inclusive` is True for
    STOPS_AT, where the value keeps the phrase, and False for STOPS_BEFORE.

    With `flags`, the phrase is a regular expression with these flags. The hole ends at the first place where a match
    ends, and STOPS_BEFORE cuts off the longest match that ends there, whose length is bounded.
    """

    phrase: bytes
    inclusive: bool
    flags: int | None = None
    span: Span | None = field(default=None, compare=False)


class PlaceStep(NamedTuple):
    """One step of the path to a place inside a value: to an attribute, to an item, or to each or some item of a
    collection."""

    kind: Literal["attribute", "item", "each", "some"]
    key: object = None


class PlaceTest(NamedTuple):
    """A relation of a place, or of its length, to one of some values."""

    relation: str
    values: tuple[Any, ...]
    of_length: bool = False


@dataclass(frozen=True, slots=True)
class Inside:
    """A JSON value has a place to which `path` leads, and the `test`, if any, holds for it (S21).

    It narrows the schema of the value; no automaton follows it.
    """

    path: tuple[PlaceStep, ...]
    test: PlaceTest | None = None
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Not:
    term: Term
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class And:
    terms: tuple[Term, ...]
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Or:
    terms: tuple[Term, ...]
    span: Span | None = field(default=None, compare=False)


Atom = Constant | Length | Choice | Matches | Begins | Ends | Lacks | Stop | Inside
Term = Atom | Not | And | Or

ANYTHING = And(())
"""The term of a hole without conditions."""


def contains(phrase: bytes, span: Span | None = None) -> Term:
    """The texts that contain a phrase: a count that stops at one."""
    return Length(1, None, Occurrences(phrase), span) if phrase else Constant(True, span)


def conjunction(terms: tuple[Term, ...]) -> Term:
    """Conjunction of the terms, with nested conjunctions flattened."""
    flat: list[Term] = []
    for term in terms:
        flat.extend(term.terms if isinstance(term, And) else (term,))
    if len(flat) == 1:
        return flat[0]
    spans = [term.span for term in flat if term.span]
    return And(tuple(flat), spans[0].to(spans[-1]) if spans and spans[0].text == spans[-1].text else None)


def conjuncts(term: Term) -> tuple[Term, ...]:
    """The terms that a conjunction joins; any other term alone."""
    return term.terms if isinstance(term, And) else (term,)


def atoms(term: Term) -> Iterator[Atom]:
    """Atoms in the order in which they stand in the term."""
    match term:
        case And(terms) | Or(terms):
            for part in terms:
                yield from atoms(part)
        case Not(part):
            yield from atoms(part)
        case _:
            yield term


def mapped(term: Term, change: Callable[[Atom | Not], Term]) -> Term:
    """The term with each atom and each negation changed, wherever `and` and `or` join them."""
    match term:
        case And(terms):
            return And(tuple(mapped(part, change) for part in terms), term.span)
        case Or(terms):
            return Or(tuple(mapped(part, change) for part in terms), term.span)
    return change(term)


def identity(part: object) -> object:
    """Key of a term without its places in the source. Two terms have equal keys exactly if they are equal.

    It consists of tuples, texts, bytes and numbers, so that its `repr` is the same in every process.
    """
    if isinstance(part, tuple):
        return tuple(identity(each) for each in part)
    if is_dataclass(part):
        names = [name.name for name in fields(part) if name.compare]
        return (type(part).__name__, *(identity(getattr(part, name)) for name in names))
    return part


def is_closed(term: Term) -> bool:
    """True if the term itself defines where its text ends. Then a token that cannot continue it ends the hole.

    Choices do (S18), and so do patterns that delimit: after `12` of `[0-9]+`, a line break ends the number.
    """
    match term:
        case Choice():
            return True
        case Matches():
            return term.delimits
        case And(terms):
            return any(is_closed(part) for part in terms)
        case Or(terms):
            return bool(terms) and all(is_closed(part) for part in terms)
    return False
