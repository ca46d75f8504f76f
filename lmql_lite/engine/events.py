"""Events of a run, in order. Plain values: the terminal, the playground and tests read the same ones.

Text once streamed is never taken back (S33): a suffix that may still be cut is held until it is certain. Where several
branches are open each has a number, `state`; a run begins with number 0. `observe/lines.py` writes events as lines.

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

from lmql_lite.cache.entry import Node
from lmql_lite.cache.scores import Mask
from lmql_lite.cache.token_tree import TokenTree
from lmql_lite.cache.top_k import TopK
from lmql_lite.constraints.hole_matcher import Engine, HoleMatcher
from lmql_lite.constraints.matcher import Ending, Matcher
from lmql_lite.constraints.terms import And, Term
from lmql_lite.engine.result import Result
from lmql_lite.engine.tracebacks import shorten
from lmql_lite.errors import ConstraintError, Span
from lmql_lite.media import Media
from lmql_lite.program.ops import Hole
from lmql_lite.tokens import Role, Token


@dataclass(frozen=True, slots=True)
class Started:
    """First event of a run. `run` names it; `returns`: the query returns a value of its own somewhere; `results` is the
    number of results asked for. `query` is the query's text, `name` its file, `inputs` what the caller gave, and `date`
    when the run began (UTC)."""

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
    """The next part of `result.prompt`; `hole` is None for the program's own text, which in a chat stands in a turn of
    `role`. All parts joined are the prompt."""

    text: str
    hole: str | None = None
    state: int = 0
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class MediaShown:
    """A picture, video or clip stands in the text, where the last `Text` ended: `name` is its end. `thumbnail` is a
    small JPEG as a `data:` address, empty where there is none; it is made from `item` when the event is written."""

    name: str
    thumbnail: str = ""
    state: int = 0
    item: Media | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Thought:
    """A part of what a reasoning model on a server thinks before it fills a hole. Thoughts are no part of the text;
    they are emitted as they arrive, and a run that is answered from the cache has none."""

    text: str
    hole: str
    state: int = 0


@dataclass(frozen=True, slots=True)
class TokenMoved:
    """A token joined the path at `node` (its parent is `parent`), or left it: its fate says so.

    `choosable` tells what it was chosen from, where a model in this process was asked; it is in no record.
    """

    token: Token
    node: int
    parent: int
    state: int = 0
    choosable: Choosable | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Guessed:
    """The tree guessed that the run would come by a token, and the model was asked what follows it. Where the run does
    come by it, a `TokenMoved` says so."""

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
    """A hole has its value, as text."""

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
    """A branch was given up. Where it was the only one, one with another number begins at the beginning: the server has
    changed, and is asked anew."""

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
    | MediaShown
    | Thought
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
    """A failure of a run, for records of it; a reader of the run gets its exception.

    `kind` is the class of the exception: one of `errors.py`, or of the query's own Python; `Stopped` where somebody
    stopped the run. `others` are further problems of a query that does not compile.
    """

    kind: str
    message: str
    hint: str | None = None
    span: Span | None = None
    others: tuple[Failed, ...] = ()


Record = Event | Failed


LEAST = -7.0
"""The raw log-probability below which a token is no alternative: one in a thousand."""
LONGEST = 4096
"""Bytes of a value up to which clauses are told apart: each is asked anew about all of it."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that was likely at a place. `data` is None for the end of the text.

    `clause`: the source of the clause that forbids it all by itself; None where it is allowed, and where it takes
    several clauses, or the number of tokens that are left.
    """

    id: int
    data: bytes | None
    logprob: float
    is_allowed: bool
    clause: str | None


class Choosable(NamedTuple):
    """The place where a token was chosen: after `node`, in the hole `op`, among those that `mask` allows. `matcher` and
    `held` as in `Matcher.allowed`. `term` is the hole's condition."""

    tree: TokenTree
    node: Node
    engine: Engine
    op: Hole
    matcher: Matcher
    held: bytes
    mask: Mask
    term: Term | None = None

    @property
    def allowed(self) -> int:
        """Number of tokens that were allowed."""
        return int(self.mask.sum())

    def alternatives(self, most: int) -> list[Alternative]:
        """At most `most` alternatives, likeliest first; none if the scores are evicted."""
        entry = self.tree.scores(self.node)
        if entry is None:
            return []
        head = entry.scores if isinstance(entry.scores, TopK) else entry.scores.top_k()
        vocabulary = self.engine.vocabulary
        likely = [
            (token, float(logprob))
            for token, logprob in zip(head.ids.tolist(), head.logprobs, strict=True)
            if logprob >= LEAST and (vocabulary.tokens[token] is not None or token in vocabulary.eos)
        ][:most]
        allowed = [bool(self.mask[token]) for token, _ in likely]
        clauses = [] if all(allowed) or len(self.matcher.text) > LONGEST else self._clauses()
        return [
            Alternative(token, vocabulary.tokens[token], logprob, may, None if may else self._guilty(clauses, token))
            for (token, logprob), may in zip(likely, allowed, strict=True)
        ]

    def _clauses(self) -> list[tuple[str, Matcher]]:
        """Each conjunct on its own, where the hole stands now. A value of JSON has one: its type."""
        op = self.op
        if not isinstance(self.matcher, HoleMatcher):
            return [(op.type.span.source, self.matcher)] if op.type else []
        parts = self.term.terms if isinstance(self.term, And) else (self.term,)
        found: list[tuple[str, Matcher]] = []
        for part in parts:
            if part is None or part.span is None:
                continue
            try:
                alone: Matcher = self.engine.matcher(part, b"", LONGEST, op.name, op.span)
                if self.matcher.text:
                    alone = alone.advance(self.matcher.text, tokens=0)
            except (ConstraintError, ValueError):  # too few tokens for it alone, or ended in the middle
                continue
            if alone.ending is None:
                found.append((part.span.source, alone))
        return found

    def _guilty(self, clauses: list[tuple[str, Matcher]], token: int) -> str | None:
        data = self.engine.vocabulary.tokens[token]
        for source, matcher in clauses:
            if data is None:
                if not matcher.may_end:
                    return source
            elif data.startswith(self.held):
                new = data[len(self.held) :]
                if matcher.longest_valid(new) < len(new):
                    return source
        return None


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
