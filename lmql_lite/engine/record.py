"""Record of a branch: every token that was on its path, with source and fate, and the answers that its Python got.

Counts (law 6), events and results are made from the tokens, and forks replay the answers (S23): a fork runs the Python
again, which must ask the same questions, or the fork is refused. A value that is no function of the answers (a clock, a
random number, `next(x)`) would contradict the text. Runs without beams keep no answers.
"""

from __future__ import annotations

import copy
from asyncio import CancelledError, Future
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from lmql_lite.cache.tokens.draws import Penalties
from lmql_lite.cache.tokens.nodes import Node
from lmql_lite.constraints.terms import Term
from lmql_lite.engine.events import Choosable, Event, TokenMoved, Told
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.settings import Settings
from lmql_lite.errors import QueryError, Span
from lmql_lite.models.base import KVScope
from lmql_lite.options import Sampling
from lmql_lite.tokens import Fate, Token

# Tokens ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A token of a path, which leads from the node `parent` to `node`. `before` is the step before it on the path, and
    `earlier` the one before it in the record, which may have left the path."""

    token: Token
    parent: Node
    node: Node
    before: Step | None
    earlier: Step | None

    def is_of(self, hole: str | None) -> bool:
        """True if the token belongs to this hole."""
        return hole is not None and self.token.hole == hole


def back(newest: Step | None) -> Iterator[Step]:
    """The step and all before it on the path, newest first."""
    while newest is not None:
        yield newest
        newest = newest.before


def steps_between(before: Step | None, newest: Step | None) -> list[Step]:
    """Steps after `before` on the path to `newest`, oldest first."""
    steps = []
    while newest is not before:
        assert newest is not None, "one path is the beginning of the other"
        steps.append(newest)
        newest = newest.before
    return steps[::-1]


def penalties(newest: Step | None, sampling: Sampling) -> Penalties:
    """Penalties of the tokens on the path to a step."""
    in_text, said = Counter[int](), Counter[int]()
    for step in back(newest):
        if step.node != step.parent and step.token.id >= 0:
            in_text[step.token.id] += 1
            said[step.token.id] += step.token.hole is not None
    ids = np.fromiter(in_text, np.int32)
    counts = (np.fromiter(map(each.__getitem__, in_text), np.int32) for each in (in_text, said))
    return Penalties.of(sampling, ids, *counts)


# Answers of the query's Python -----------------------------------------------------------------------------------


class GivenUp(CancelledError):
    """Cancellation of a branch that nobody reads any more. Its `finally` blocks and exits of `with` run."""


CANCELLATIONS = (CancelledError, KeyboardInterrupt, GeneratorExit)
"""Exceptions that end the run from outside: no handler of the query catches them."""
AWAITED = -1
"""Number of an answer that the query's Python awaited."""
HINT = "pass clocks, random numbers and iterators as inputs that do not change, or use argmax or sample"


@dataclass(frozen=True, slots=True)
class FromText:
    """The answer of a hole that the model or a query filled: its value is made anew, from the text or by the query's
    Python."""

    text: str


@dataclass(frozen=True, slots=True)
class Copied:
    """An answer that was copied when it arrived. An answer that cannot be copied has a `problem`."""

    value: Any
    problem: str | None = None

    def anew(self, span: Span | None) -> Any:
        if self.problem is not None:
            raise QueryError(
                f"the branches of the run fork after an answer that cannot be copied: {self.problem}",
                span=span,
                hint="keep only the data that is needed from it, or use argmax or sample",
            )
        return copy.deepcopy(self.value)


@dataclass(frozen=True, slots=True)
class Begun:
    """The beginning of a query in a hole, with its settings."""

    settings: Settings


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that was raised instead of an answer."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Decorated:
    """The answer of a hole with decorators, which run again: the answer that they got, the texts that they were told
    while the hole was filled, and the text that they made of it."""

    answer: Answer
    before: str
    told: tuple[str, ...]
    text: str


Answer = FromText | Copied | Begun | Decorated | Raised | None


@dataclass(frozen=True, slots=True)
class Entry:
    """A question of a query's Python, and the answer: the number of a part, the depth of the query (1 for the
    outermost), the values in a text, the condition of a hole and the options of its own decoder, the whole text before,
    and the probabilities of the options of a distribution."""

    number: int
    depth: int
    answer: Answer = None
    values: tuple[Any, ...] = ()
    term: Term | None = None
    options: Sampling | None = None
    prompt: str = ""
    shares: list[tuple[Any, float]] | None = None


def copied(value: Any) -> Copied:
    try:
        return Copied(copy.deepcopy(value))
    except Exception as error:  # a __deepcopy__ or a __reduce__ may raise anything
        return Copied(None, f"{type(value).__name__}: {error}")


# The record ------------------------------------------------------------------------------------------------------


class Record:
    """Record of one branch, with the queries in its holes. `ledger` has the costs of the run."""

    def __init__(self, ledger: Ledger, *, keeps_answers: bool = False) -> None:
        self.ledger = ledger
        self.keeps_answers = keeps_answers
        self.number = 0
        """Number of the branch in events."""
        self.newest: Step | None = None
        """The token that joined last."""
        self._left: dict[Step, Fate] = {}
        """Fates of the tokens that have left the path."""
        self.events: list[Event] = []
        """Events that were not taken yet, in order."""
        self.guessed: list[Event] = []
        """Events of drafts, which follow the next token of a hole."""
        self.draft: tuple[Node, ...] = ()
        """Nodes of the last draft."""
        self.draft_place: Hashable = None
        """The hole of the last draft."""
        self.scope: KVScope | None = None
        """Scope of the questions of the hole that is open, where nothing else may be reused for it."""
        self.entries: list[Entry] = []
        self.depth = 1
        """Number of queries that are executed."""
        self.at: int | None = None
        """The next entry while the Python runs again."""
        self.managers: list[Span] = []
        """Places of open managers that cannot be entered again."""

    def fork(self, number: int) -> Record:
        """The record of another branch of this number, with the same tokens and answers so far."""
        fork = copy.copy(self)
        fork.number = number
        fork._left, fork.entries = dict(self._left), list(self.entries)
        fork.events, fork.guessed, fork.managers = [], [], []
        return fork

    def join(
        self, token: Token, parent: Node, node: Node, before: Step | None, choosable: Choosable | None = None
    ) -> Step:
        """Adds a token that joins the path after the step `before`."""
        self.newest = step = Step(token, parent, node, before, self.newest)
        self.events.append(TokenMoved(token, node.number, parent.number, self.number, choosable, parent))
        self.ledger.missed.discard(node)
        if self.guessed and token.hole is not None:
            self.events += self.guessed
            self.guessed = []
        return step

    def leave(self, steps: Iterable[Step], fate: Fate) -> None:
        """Gives tokens that leave the path their fate."""
        for step in steps:
            self._left[step] = fate
            token, parent = replace(step.token, fate=fate), step.parent
            self.events.append(TokenMoved(token, step.node.number, parent.number, self.number, place=parent))

    def reject(self, before: Step | None, newest: Step | None) -> None:
        """Rejects the tokens that joined after the step `before`, without those on the path from there to `newest` and
        those that have a fate."""
        kept, rejected, step = set(steps_between(before, newest)), list[Step](), self.newest
        while step is not None and step is not before:
            if step not in kept and step not in self._left:
                rejected.append(step)
            step = step.earlier
        if rejected:
            self.leave(reversed(rejected), "rejected")

    def tokens(self) -> tuple[Token, ...]:
        """All tokens with their fates, in the order in which they joined."""
        tokens, step = list[Token](), self.newest
        while step is not None:
            fate = self._left.get(step)
            tokens.append(step.token if fate is None else replace(step.token, fate=fate))
            step = step.earlier
        return tuple(reversed(tokens))

    def drafted(self) -> int:
        """Number of tokens of the last draft that the run has reached."""
        return sum(node not in self.ledger.missed for node in self.draft)

    def tell(self, event: Told) -> None:
        """Adds an event that is no move of a token."""
        self.events.append(event if event.state == self.number else replace(event, state=self.number))

    # Answers ------------------------------------------------------------------------------------------------------

    def add(
        self,
        number: int,
        answer: Answer = None,
        *,
        values: tuple[Any, ...] = (),
        term: Term | None = None,
        options: Sampling | None = None,
        prompt: str = "",
    ) -> None:
        """Adds a question of the innermost query."""
        if self.keeps_answers:
            self.entries.append(Entry(number, self.depth, answer, values, term, options, prompt))

    def remembering(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function `input`, whose lines are kept for forks."""

        def line(*arguments: Any, **named: Any) -> Any:
            if self.at is not None:
                answer = self.next_entry(AWAITED, None).answer
                assert isinstance(answer, Copied)
                return answer.anew(None)
            value = function(*arguments, **named)
            if isinstance(value, str):  # otherwise the line is awaited
                self.add(AWAITED, copied(value))
            return value

        return line

    def next_entry(self, number: int, span: Span | None) -> Entry:
        """The entry of a question that the Python asks again. Raises QueryError if it asked another one there."""
        assert self.at is not None, "the Python runs again"
        entry = self.entries[self.at] if self.at < len(self.entries) else None
        if entry is None or entry.number != number:
            refuse("took another way", span)
        self.at += 1
        return entry

    async def answer(self, awaitable: Awaitable[Any], span: Span) -> Any:
        """The answer that the query's Python awaits; a copy of it if the Python runs again."""
        if self.at is not None:
            _drop(awaitable)
            entry = self.next_entry(AWAITED, span)
            if isinstance(entry.answer, Raised):
                raise entry.answer.error
            assert isinstance(entry.answer, Copied)
            return entry.answer.anew(span)
        try:
            value = await awaitable
        except CANCELLATIONS:
            raise
        except BaseException as error:
            self.add(AWAITED, Raised(error))
            raise
        self.add(AWAITED, copied(value))
        return value

    @property
    def prompt(self) -> str:
        """The whole text before the next entry."""
        following = (self.entries[at] for at in range(self.at or 0, len(self.entries)))
        return next((entry.prompt for entry in following if entry.number != AWAITED), "")

    @property
    def answers(self) -> list[tuple[int, Any]]:
        """The answers, to compare with those of another branch. Those of queries that have ended do not count."""
        found, depth = list[tuple[int, Any]](), self.depth
        for entry in reversed(self.entries):
            if entry.depth <= depth:
                depth = entry.depth
                if entry.answer is not None:
                    found.append((entry.number, _compared(entry.answer)))
        return found


def _compared(answer: Answer) -> Any:
    match answer:
        case FromText(text) | Decorated(_, _, _, text):
            return text
        case Begun():
            return None
        case Copied(value, None):
            return value
        case Raised(error):
            return repr(error)
    return answer


def refuse(what: str, span: Span | None) -> NoReturn:
    """Raises the error of Python that does something else when it runs again."""
    raise QueryError(
        f"the branches of the run fork, but the query's Python {what} when it ran again", span=span, hint=HINT
    )


def _drop(awaitable: Awaitable[Any]) -> None:
    """Leaves an awaitable alone whose answer is known."""
    if isinstance(awaitable, Coroutine):
        awaitable.close()
    elif isinstance(awaitable, Future):
        awaitable.add_done_callback(_take_error)
        awaitable.cancel()


def _take_error(future: Future[Any]) -> None:
    """Takes the exception of a future that nobody awaits, so that asyncio does not report it."""
    if not future.cancelled():
        future.exception()
