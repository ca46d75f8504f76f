"""What a run tells its watchers, in order. Plain values: the terminal, the playground and tests read the same ones.

Text once streamed is never taken back (S33): a suffix that may still be cut is held until it is certain.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmql_lite.cache.tree import Node
from lmql_lite.constraints.matcher import Ending
from lmql_lite.errors import Span
from lmql_lite.runtime.result import Result
from lmql_lite.tokens import Token


@dataclass(frozen=True, slots=True)
class Started:
    """First event of a run."""

    model: str
    decoder: str
    seed: int


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence that the user should read; the run goes on."""

    message: str


@dataclass(frozen=True, slots=True)
class Text:
    """The next part of `result.prompt`; `hole` is None for the program's own text. All parts joined are the prompt."""

    text: str
    hole: str | None = None


@dataclass(frozen=True, slots=True)
class TokenMoved:
    """A token joined the path at `node` (its parent is `parent`), or left it: its fate says so."""

    token: Token
    node: Node
    parent: Node


@dataclass(frozen=True, slots=True)
class HoleOpened:
    """The model is about to fill a hole."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class HoleClosed:
    """A hole has its value."""

    name: str
    value: str
    ending: Ending


@dataclass(frozen=True, slots=True)
class Forked:
    """One hypothesis became several; each is a state number."""

    parent: int
    children: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pruned:
    """A hypothesis was given up."""

    state: int


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A tool ran; `output` was inserted into the prompt."""

    name: str
    arguments: str
    output: str


@dataclass(frozen=True, slots=True)
class Bound:
    """A name of the query got a value that a watcher may want to show."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event of a run that ends well."""

    result: Result


Event = Started | Notice | Text | TokenMoved | HoleOpened | HoleClosed | Forked | Pruned | ToolCalled | Bound | Finished
