"""What a run tells its watchers, in order. Plain values: the terminal, the playground and tests read the same ones.

Text once streamed is never taken back (S33): a suffix that may still be cut is held until it is certain. Where several
hypotheses are under way each has a number, `state`; a run begins with number 0. `wire.py` writes events as lines.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import Any

from lmql_lite.cache.tree import Node
from lmql_lite.constraints.matcher import Ending
from lmql_lite.errors import Span
from lmql_lite.runtime.alternatives import Choosable
from lmql_lite.runtime.result import Result
from lmql_lite.tokens import Role, Token


def _any_id() -> str:
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Started:
    """First event of a run. `run` names it; `returns`: the query returns a value of its own somewhere."""

    model: str
    decoder: str
    seed: int
    returns: bool = False
    run: str = field(default_factory=_any_id, compare=False)


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence that the user should read; the run goes on."""

    message: str


@dataclass(frozen=True, slots=True)
class Text:
    """The next part of `result.prompt`; `hole` is None for the program's own text, which in a chat stands in a turn of
    `role`. All parts joined are the prompt."""

    text: str
    hole: str | None = None
    state: int = 0
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class TokenMoved:
    """A token joined the path at `node` (its parent is `parent`), or left it: its fate says so.

    `choosable` tells what it was chosen from, where a model in this process was asked; it is in no record.
    """

    token: Token
    node: Node
    parent: Node
    state: int = 0
    choosable: Choosable | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Guessed:
    """The tree guessed that the run would come by a token, and the model was asked what follows it. Where the run does
    come by it, a `TokenMoved` says so."""

    token: Token
    node: Node
    parent: Node
    state: int = 0


@dataclass(frozen=True, slots=True)
class HoleOpened:
    """The model is about to fill a hole."""

    name: str
    span: Span
    state: int = 0


@dataclass(frozen=True, slots=True)
class HoleClosed:
    """A hole has its value, as text."""

    name: str
    value: str
    ending: Ending
    state: int = 0


@dataclass(frozen=True, slots=True)
class Forked:
    """One hypothesis became several; each is a state number. The parent goes on where it is one of the children."""

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
    state: int = 0


@dataclass(frozen=True, slots=True)
class Bound:
    """A name of the query got a value that a watcher may want to show: that of a hole, in its own type."""

    name: str
    value: Any
    state: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event of a run that ends well. Where it has several results `results` are all of them, best first."""

    result: Result
    results: tuple[Result, ...] = ()

    def noting(self, notices: tuple[str, ...]) -> Finished:
        """The same, with sentences that a user should read."""
        results = tuple(replace(result, notices=notices) for result in self.results)
        return Finished(replace(self.result, notices=notices), results)


Event = (
    Started
    | Notice
    | Text
    | TokenMoved
    | Guessed
    | HoleOpened
    | HoleClosed
    | Forked
    | Pruned
    | ToolCalled
    | Bound
    | Finished
)

Batch = list[Event]
"""Events between which nobody was waited for. The first and the last of a run have batches of their own."""


@dataclass(frozen=True, slots=True)
class Failed:
    """How a run ended that did not end well. Who watches a run gets its exception; only records of it have this.

    `kind` is the class of the exception: one of `errors.py`, or of the query's own Python; `Stopped` where somebody
    stopped the run. `others` are further problems of a query that does not compile.
    """

    kind: str
    message: str
    hint: str | None = None
    span: Span | None = None
    others: tuple[Failed, ...] = ()


Record = Event | Failed
