"""Events of a run, in order. They are plain values that the terminal, the playground and tests all read.

Streamed text is never taken back (S33): a suffix that may still be cut is held back until it is certain. Each branch
has a number, `state`; a run begins with number 0. `observe/lines.py` writes events as lines.

    >>> async def texts(query):
    ...     return [event.text async for event in query.stream() if isinstance(event, lq.events.Text)]
    >>> asyncio.run(texts(lq.compile('"one"\\n"two"')))
    ['one', 'two']
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from lmql_lite.cache.tokens.draws import Mask
from lmql_lite.cache.tokens.nodes import Node
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.constraints.matcher import Engine, Matcher
from lmql_lite.constraints.terms import Ending, Term
from lmql_lite.engine.result import Result
from lmql_lite.engine.tracebacks import shorten
from lmql_lite.errors import Span
from lmql_lite.media import Media
from lmql_lite.program.ops import Hole
from lmql_lite.tokens import Role, Token


@dataclass(frozen=True, slots=True)
class Started:
    """First event of a run. `run` is its id; `returns` is True if the query has a `return` with a value; `results` is
    the requested number of results. `query` is the query's text, `name` its file, `inputs` the caller's values, and
    `date` the start of the run (UTC)."""

    model: str
    decoder: str
    seed: int
    returns: bool = False
    run: str = field(default_factory=partial(secrets.token_hex, 8), compare=False)
    results: int = 1
    name: str = field(default="", compare=False)
    query: str = field(default="", compare=False)
    inputs: Mapping[str, Any] = field(default_factory=dict, compare=False)
    date: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence that the user should read; the run goes on."""

    message: str


@dataclass(frozen=True, slots=True)
class Text:
    """The next part of `result.prompt`; all parts joined are the prompt. `hole` is None for the program's own text.
    `role` is the speaker of the turn in a chat."""

    text: str
    hole: str | None = None
    state: int = 0
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class MediaShown:
    """A picture, video or clip in the text, after the last `Text`; `name` is the end of that text. `thumbnail` is a
    small JPEG as a `data:` URL, or "". It is made from `item` when the event is written."""

    name: str
    thumbnail: str = ""
    state: int = 0
    item: Media | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Thought:
    """A part of the reasoning of a model on a server, before it fills a hole. Thoughts are not part of the text. They
    are emitted as they arrive, and answers from the cache have none."""

    text: str
    hole: str
    state: int = 0


@dataclass(frozen=True, slots=True)
class TokenMoved:
    """A token joined the path at `node` (whose parent is `parent`), or left it, by its fate.

    `choosable` has the alternatives of the token if a model in this process was asked, and `place` is the node of
    `parent`; records leave them out.
    """

    token: Token
    node: int
    parent: int
    state: int = 0
    choosable: Choosable | None = field(default=None, compare=False, repr=False)
    place: Node | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Guessed:
    """A token of a draft: the tree predicted it, and the model was asked for the token after it. If the run takes the
    token, a `TokenMoved` follows."""

    token: Token
    node: int
    parent: int
    state: int = 0


@dataclass(frozen=True, slots=True)
class HoleOpened:
    """The model is about to fill a hole."""

    name: str
    span: Span
    state: int = 0


@dataclass(frozen=True, slots=True)
class HoleClosed:
    """A hole has its value, here as text."""

    name: str
    value: str
    ending: Ending
    state: int = 0


@dataclass(frozen=True, slots=True)
class Forked:
    """One branch became several; each is a state number. The parent goes on if it is one of the children."""

    parent: int
    children: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pruned:
    """A branch was given up."""

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
    """A variable of the query got a value: that of a hole, in its own type."""

    name: str
    value: Any
    state: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event of a successful run. `results` are all results of a run with several, best first."""

    result: Result
    results: tuple[Result, ...] = ()

    def noting(self, notices: tuple[str, ...]) -> Finished:
        """The same event, with further notices in its results."""
        results = tuple(replace(result, notices=(*notices, *result.notices)) for result in self.results)
        return Finished(replace(self.result, notices=(*notices, *self.result.notices)), results)


Told = Text | MediaShown | Thought | Guessed | HoleOpened | HoleClosed | ToolCalled | Bound
"""Events of a branch, but for the moves of its tokens."""

Event = Started | Notice | Told | TokenMoved | Forked | Pruned | Finished

Batch = list[Event]
"""Events without any waiting between them. The first and the last event of a run have batches of their own."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Failure of a run, for records of the run; a reader of the run gets the exception.

    `kind` is the class of the exception, from `errors.py` or from the query's own Python, or `Stopped` if the user
    stopped the run. `others` are further problems of a query that does not compile.
    """

    kind: str
    message: str
    hint: str | None = None
    span: Span | None = None
    others: tuple[Failed, ...] = ()


Record = Event | Failed


class Choosable(NamedTuple):
    """The place where a token was chosen: after `node`, in the hole `op`, among the tokens of `mask`. `matcher` and
    `held` are those of `Matcher.allowed`. `term` is the hole's condition."""

    tree: TokenTree
    engine: Engine
    op: Hole
    term: Term
    node: Node
    matcher: Matcher
    held: bytes
    mask: Mask

    @property
    def allowed(self) -> int:
        """Number of allowed tokens."""
        return int(self.mask.sum())


async def flat(batches: AsyncGenerator[Batch, None]) -> AsyncGenerator[Event, None]:
    """Events of batches, one by one."""
    try:
        async with aclosing(batches):
            async for batch in batches:
                for event in batch:
                    yield event
    except BaseException as error:
        shorten(error)
        raise
