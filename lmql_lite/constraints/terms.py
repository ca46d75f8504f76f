"""The algebra of `where` for one hole: boolean terms over atoms. Plain data; two equal terms share one automaton.

Every value in a term is known: earlier holes and Python expressions were evaluated before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass

from lmql_lite.constraints.units import Unit
from lmql_lite.errors import Span


@dataclass(frozen=True, slots=True)
class Constant:
    """A condition that does not look at the hole."""

    holds: bool
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Length:
    """The number of characters, or of another unit, lies in `at_least .. at_most` (no upper bound: None)."""

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
    """The whole text matches this regular expression, as `re.fullmatch` says it.

    With `delimits` a complete text ends where the model says what the pattern cannot go on with (S18); without, the
    pattern only forbids, and the model has to say something else.
    """

    pattern: str
    flags: int = 0
    delimits: bool = True
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Contains:
    """The text has this phrase in it."""

    phrase: bytes
    span: Span | None = field(default=None, compare=False)


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
    """The text has none of these phrases in it: what `simplify` makes of `not` before phrases."""

    phrases: tuple[bytes, ...]
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Stop:
    """The hole ends where this phrase has been said and the rest of the condition holds (S13).

    An observation, not a demand: the phrase need not occur, and a token may run past it (S14). `inclusive` tells
    STOPS_AT (the value keeps the phrase) from STOPS_BEFORE.
    """

    phrase: bytes
    inclusive: bool
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class StopPattern:
    """A stop whose phrase is anything that this regular expression matches: the first place where a match ends.

    STOPS_BEFORE cuts the longest match that ends there, as the leftmost one; such a pattern has a bounded length.
    """

    pattern: str
    flags: int
    inclusive: bool
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


Atom = Constant | Length | Choice | Matches | Contains | Begins | Ends | Lacks | Stop | StopPattern
Term = Atom | Not | And | Or

ANYTHING = And(())
"""The term of a hole without conditions."""


def conjunction(terms: tuple[Term, ...]) -> Term:
    """All of them, flat: nested conjunctions become one."""
    flat: list[Term] = []
    for term in terms:
        flat.extend(term.terms if isinstance(term, And) else (term,))
    if len(flat) == 1:
        return flat[0]
    spans = [term.span for term in flat if term.span]
    return And(tuple(flat), spans[0].to(spans[-1]) if spans and spans[0].text == spans[-1].text else None)


def identity(part: object) -> object:
    """Identity of a term, its places in the source left out: equal terms, and no others, have equal ones.

    Made of tuples, texts and numbers, so that its `repr` is the same in every process.
    """
    if isinstance(part, tuple):
        return tuple(identity(each) for each in part)
    if is_dataclass(part):
        names = [name.name for name in fields(part) if name.compare]
        return (type(part).__name__, *(identity(getattr(part, name)) for name in names))
    return part


def is_closed(term: Term) -> bool:
    """True if the term tells by itself where its text is over: then a token that cannot continue it ends the hole.

    Listed texts do (S18), and so does a pattern: after `12` of `[0-9]+` a line break is no digit that went wrong.
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
