"""Record: what the Python of a query asked so far, and the answers (S23).

A fork runs the Python again on these answers. It must ask the same questions, or the fork is refused: a value that is
no function of the answers (a clock, a random number, `next(x)`) would contradict the text. Runs without beams keep no
record.
"""

from __future__ import annotations

import copy
from asyncio import CancelledError, Future
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NoReturn

from lmql_lite.constraints.terms import Term
from lmql_lite.engine.settings import Settings
from lmql_lite.errors import QueryError, Span
from lmql_lite.options import Sampling


class GivenUp(CancelledError):
    """Cancellation of a branch that nobody reads any more. Its `finally` blocks and exits of `with` run."""


CANCELLATIONS = (CancelledError, KeyboardInterrupt, GeneratorExit)
"""Exceptions that end the run from outside: no handler of the query catches them."""
AWAITED = -1
"""Number of an answer that the query's Python awaited."""
HINT = "pass clocks, random numbers and iterators as inputs that do not change, or use argmax or sample"


@dataclass(frozen=True, slots=True)
class FromText:
    """The answer of a hole that the model filled: its value is made anew from the text."""

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
class Returned:
    """The answer of a query in a hole: its text. The value is that which its Python returns when it runs again."""

    text: str


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


Answer = FromText | Copied | Begun | Returned | Decorated | Raised | None


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


class Record:
    """The entries of one branch, with those of the queries in its holes. Runs without beams have none."""

    def __init__(self, *, is_kept: bool) -> None:
        self.is_kept = is_kept
        self.entries: list[Entry] = []
        self.depth = 1
        """Number of queries that are executed."""
        self.at: int | None = None
        """The next entry while the Python runs again."""
        self.managers: list[Span] = []
        """Places of open managers that cannot be entered again."""

    def fork(self) -> Record:
        fork = Record(is_kept=True)
        fork.entries, fork.depth = list(self.entries), self.depth
        return fork

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
        if self.is_kept:
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
        case FromText(text) | Returned(text) | Decorated(_, _, _, text):
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
