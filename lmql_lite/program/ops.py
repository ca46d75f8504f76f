"""A program: a flat tuple of ops. Data, not Python text: a state is a place in it, a jump is a number.

Python inside a query stands here as code objects, compiled with the source's own name and line numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType

from lmql_lite.errors import Span
from lmql_lite.program.conditions import Condition


@dataclass(frozen=True, slots=True)
class Interpolated:
    """A value to be formatted into the text, as an f-string does."""

    span: Span
    code: CodeType
    conversion: str
    format: str


@dataclass(frozen=True, slots=True)
class Text:
    """Adds text to the prompt: literals and values."""

    span: Span
    parts: tuple[str | Interpolated, ...]


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition that only Python can judge, on a value that is complete (S21)."""

    span: Span
    code: CodeType


@dataclass(frozen=True, slots=True)
class Hole:
    """Asks the model for the value of `name`: `condition` guides it, `predicates` may reject what it says.

    `following` is the text that comes after the hole in every case, b"" where that is not known (S18).
    """

    span: Span
    name: str
    condition: Condition
    predicates: tuple[Predicate, ...] = ()
    following: bytes = b""


@dataclass(frozen=True, slots=True)
class Let:
    """Runs Python statements in the environment."""

    span: Span
    code: CodeType


@dataclass(frozen=True, slots=True)
class Jump:
    span: Span
    target: int


@dataclass(frozen=True, slots=True)
class JumpIf:
    """Jumps when the test's truth is `when`."""

    span: Span
    test: CodeType
    when: bool
    target: int


@dataclass(frozen=True, slots=True)
class Enter:
    """Begins a loop: keeps the iterator of a value under `slot`, a name that no query can spell."""

    span: Span
    slot: str
    iterable: CodeType


@dataclass(frozen=True, slots=True)
class Next:
    """Takes the next item of `slot` and assigns it (`assign` reads ITEM); jumps to `target` when there is none."""

    span: Span
    slot: str
    assign: CodeType
    target: int


@dataclass(frozen=True, slots=True)
class Return:
    """Ends the query. `value` is None for a bare return and for the end of the body."""

    span: Span
    value: CodeType | None


Op = Text | Hole | Let | Jump | JumpIf | Enter | Next | Return

ITEM = "#item"
"""Where `Next` leaves the item for its `assign` code; no name of a query."""


@dataclass(frozen=True, slots=True)
class Option:
    """One argument of the decoder header, evaluated when a run begins."""

    span: Span
    name: str
    value: CodeType


@dataclass(frozen=True, slots=True)
class Input:
    """A name that the query reads and never binds: the caller gives it. `span` is its first use."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled query.

    `prologue` runs first, then `options` and `model` are evaluated, then `ops` from 0. The last op is a Return.
    """

    span: Span
    ops: tuple[Op, ...]
    prologue: tuple[Let, ...] = ()
    decoder: str | None = None
    options: tuple[Option, ...] = ()
    model: Option | None = None
    holes: tuple[str, ...] = ()
    inputs: tuple[Input, ...] = ()
