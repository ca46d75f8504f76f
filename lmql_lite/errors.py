"""Errors of the package, with their place in the source.

    LmqlLiteError
    ├─ QueryError        the query does not compile
    ├─ InputError        an input is missing, unknown or unreadable: wrong usage
    ├─ ConstraintError   the `where` of a hole cannot be met, found before or during the run
    ├─ ModelError        a model is unknown, cannot be loaded, or failed during a call
    │  ├─ AuthenticationError   a server refused the key, or there was none
    │  └─ RateLimitError        a server refused for now: too many requests
    ├─ CacheError        a cache file is corrupt, locked or of another format
    └─ BudgetError       a limit on requests, tokens or money was reached

The compiler raises one error for all problems of a query: a ConstraintError if all of them are, else a QueryError.
A Python exception raised by the query's own code is the user's: it is never wrapped in one of these.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

MACHINERY = ("/lmql_lite/", "/asyncio/", "/concurrent/", "/IPython/", "/ipykernel/")
"""Folders whose frames a notebook does not show."""

MAX_EXCERPT_COLUMNS = 160
"""Columns of a source line that is shown whole, unless a terminal has fewer."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of a source text, in code points: `text[start:end]`.

    `first_line` is the number of the text's first line in the file called `name`: above 1 when the text is a
    docstring inside a Python module.

    >>> lq.Span("q.lq", "[X] [Y]", 4, 7).column
    5
    """

    name: str
    text: str = field(repr=False)
    start: int
    end: int
    first_line: int = 1

    @property
    def line(self) -> int:
        """Line number, counted from 1, of the first character."""
        return self.first_line + self.text.count("\n", 0, self.start)

    @property
    def column(self) -> int:
        """Column, counted from 1 in code points, of the first character."""
        return self.start - self.text.rfind("\n", 0, self.start)

    @property
    def source(self) -> str:
        """The characters that the span covers."""
        return self.text[self.start : self.end]

    def at(self, start: int, end: int) -> Span:
        """Another range of the same text."""
        return Span(self.name, self.text, start, end, self.first_line)

    def to(self, other: Span) -> Span:
        """From the start of this span to the end of the other one."""
        return self.at(self.start, other.end)

    def excerpt(self, width: int = MAX_EXCERPT_COLUMNS) -> str:
        """The first source line of the span, and below it carets under the span.

        A line of more than `width` columns is cut around the carets.
        """
        begin = self.text.rfind("\n", 0, self.start) + 1
        end = self.text.find("\n", begin)
        line = self.text[begin : end if end >= 0 else len(self.text)].rstrip("\r")
        before = _as_drawn(line[: self.start - begin])
        under = _as_drawn(line[self.start - begin : max(self.end - begin, 0)])
        after = _as_drawn(line[max(self.end, self.start) - begin :])
        columns = _columns(before + under + after)
        if columns > width:  # a third each for what stands before, above and after the carets
            most = max((width - 9) // 3 * (len(before) + len(under) + len(after)) // columns, 1)
            before = f"...{before[-most:]}" if len(before) > most else before
            under, after = (part if len(part) <= most else f"{part[:most]}..." for part in (under, after))
        carets = "^" * max(_columns(under), 1)
        return f"    {before}{under}{after}\n    {' ' * _columns(before)}{carets}"


def _as_drawn(text: str) -> str:
    return text.replace("\t", "    ")


def _columns(text: str) -> int:
    """Width on a terminal: wide characters take two columns, combining marks none."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def did_you_mean(name: str, names: Iterable[str]) -> str | None:
    """A hint with the closest of `names`, whatever its case; None if no name is close."""
    import difflib

    candidates = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), candidates, n=1, cutoff=0.6)
    return f"did you mean {candidates[close[0]]}?" if close else None


def _is_callers(file: str) -> bool:
    return not any(folder in file.replace("\\", "/") for folder in MACHINERY)


class LmqlLiteError(Exception):
    """Root of all errors. `message` is one sentence, `span` the place in the source, `hint` a remedy.

    `others` are the further problems that the compiler found in the same query.

    >>> issubclass(lq.QueryError, lq.LmqlLiteError)
    True
    """

    def __init__(
        self,
        message: str,
        *,
        span: Span | None = None,
        hint: str | None = None,
        others: tuple[LmqlLiteError, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.span = span
        self.hint = hint
        self.others = others
        self._notes: list[str] = []

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        """Lines that Python writes below an uncaught exception: source line, hint, further problems, notes."""
        own = self.report().removeprefix(str(self)).lstrip("\n")
        return [*([own] if own else []), *self._notes]

    def add_note(self, note: str) -> None:
        self._notes.append(note)

    def _render_traceback_(self) -> list[str]:
        """Lines that IPython shows in a notebook: the caller's own frames without the package's, and the report."""
        import traceback

        frames = [frame for frame in traceback.extract_tb(self.__traceback__) if _is_callers(frame.filename)]
        places = [f"{frame.filename}:{frame.lineno}\n    {frame.line}" for frame in frames[-2:]]
        return [*places, f"{type(self).__name__}: {self.report()}", *self._notes]

    @property
    def problems(self) -> tuple[LmqlLiteError, ...]:
        """Every problem found, this one first, in source order."""
        return (self, *self.others)

    def __str__(self) -> str:
        if self.span is None:
            return self.message
        return f"{self.span.name}:{self.span.line}:{self.span.column}: {self.message}"

    def report(self, width: int = MAX_EXCERPT_COLUMNS) -> str:
        """Text for a person: for each problem its place, its sentence, the source line with carets, and the hint.

        `width` is the number of columns that a source line may take.
        """
        lines = [str(self)]
        if self.span is not None:
            lines.append(self.span.excerpt(width))
        if self.hint:
            lines.append(f"    hint: {self.hint}")
        return "\n".join([*lines, *(other.report(width) for other in self.others)])


class QueryError(LmqlLiteError):
    """The query does not compile.

    >>> lq.compile('"[1X]"')
    Traceback (most recent call last):
    lmql_lite.errors.QueryError: <query>:1:3: '1X' is not a valid name for a hole
    """


class InputError(LmqlLiteError):
    """An input of the query is missing, unknown or unreadable.

    >>> lq.run_sync('"Hi {name}"', {"nam": "Ada"})
    Traceback (most recent call last):
    lmql_lite.errors.InputError: the query has no input 'nam'
    """


class ConstraintError(LmqlLiteError):
    """The `where` of a hole cannot be met. The compiler or the run finds this, and no result violates it.

    >>> lq.run_sync('"[X]" where len(X) < n', {"n": 0}, model=lq.ScriptedModel(""))
    Traceback (most recent call last):
    lmql_lite.errors.ConstraintError: ...
    """


class ModelError(LmqlLiteError):
    """A model is unknown, cannot be loaded, or failed during a call.

    >>> lq.run_sync('"Hi"', model="gpt-9")
    Traceback (most recent call last):
    lmql_lite.errors.ModelError: no model is called 'gpt-9'
    """


class AuthenticationError(ModelError):
    """A server refused the key, or there was none.

    >>> issubclass(lq.AuthenticationError, lq.ModelError)
    True
    """


class RateLimitError(ModelError):
    """A server refused for now, after all retries. `retry_after`: seconds to wait, None if the server names none.

    >>> lq.RateLimitError("too many requests", retry_after=2.0).retry_after
    2.0
    """

    def __init__(self, message: str, *, retry_after: float | None = None, **about: Any) -> None:
        super().__init__(message, **about)
        self.retry_after = retry_after


class BrokenOff(ModelError):
    """A server's answer broke off. A run sends the same request again, and raises after the third one in a row."""


class CacheError(LmqlLiteError):
    """A cache file is corrupt, locked or of another format.

    >>> lq.run_sync('"Hi"', cache="nowhere/x.tokens", cache_mode="ro")
    Traceback (most recent call last):
    lmql_lite.errors.CacheError: ...
    """


class BudgetError(LmqlLiteError):
    """A limit on requests, tokens or money was reached.

    `option` is the name of the limit and `limit` its value. `spent` is the amount used, or needed with the next
    request. `partial` is the run so far, its text and values; None if several branches were open.

    >>> try:
    ...     lq.run_sync('while True: pass', step_budget=100)
    ... except lq.BudgetError as error:
    ...     print(error.option, error.limit)
    step_budget 100
    """

    option: str | None = None
    limit: float | None = None
    spent: float | None = None
    partial: Any = None

    def of(self, option: str, limit: float, spent: float) -> BudgetError:
        """This error, with the limit that it reports."""
        self.option, self.limit, self.spent = option, limit, spent
        return self


def joined(problems: Sequence[QueryError | ConstraintError]) -> QueryError | ConstraintError:
    """One error to raise for all problems of a query; the first in source order leads."""
    ordered = sorted(problems, key=lambda problem: problem.span.start if problem.span else 0)
    first, others = ordered[0], tuple(ordered[1:])
    kind = ConstraintError if all(isinstance(each, ConstraintError) for each in ordered) else QueryError
    return kind(first.message, span=first.span, hint=first.hint, others=others)
