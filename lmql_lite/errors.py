"""Everything that can go wrong, and the place in the source where it did.

    LmqlLiteError
    ├─ QueryError        the query does not compile; carries every problem that was found
    ├─ InputError        a missing, unknown or unreadable input: wrong usage
    ├─ ConstraintError   the `where` of a hole cannot be met
    ├─ ModelError        a model is unknown, cannot be loaded, or failed while it was asked
    ├─ CacheError        a cache file is corrupt, locked or of another format
    └─ BudgetError       a limit on requests, tokens or money was reached

A Python exception raised by the query's own code is the user's: it is never wrapped in one of these.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Span:
    """A range of a source text, in code points: `text[start:end]`.

    `first_line` is the number of the text's first line in the file called `name`: above 1 when the text is a
    docstring inside a Python module.
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

    def to(self, other: Span) -> Span:
        """From the start of this span to the end of the other one."""
        return Span(self.name, self.text, self.start, other.end, self.first_line)

    def excerpt(self) -> str:
        """The source line with carets under the span (its part on the first line), two lines in all."""
        begin = self.text.rfind("\n", 0, self.start) + 1
        end = self.text.find("\n", begin)
        line = self.text[begin : end if end >= 0 else len(self.text)].rstrip("\r")
        before = _as_drawn(line[: self.start - begin])
        under = _as_drawn(line[self.start - begin : max(self.end - begin, 0)])
        carets = "^" * max(_columns(under), 1)
        return f"    {_as_drawn(line)}\n    {' ' * _columns(before)}{carets}"


def _as_drawn(text: str) -> str:
    return text.replace("\t", "    ")


def _columns(text: str) -> int:
    """Width on a terminal: wide characters take two columns, combining marks none."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def did_you_mean(name: str, names: Iterable[str]) -> str | None:
    """A hint that names the closest of `names`, also when only its case differs; None where none is close."""
    candidates = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), candidates, n=1, cutoff=0.6)
    return f"did you mean {candidates[close[0]]}?" if close else None


class LmqlLiteError(Exception):
    """The root. `message` is one sentence, `span` where it happened, `hint` what would help."""

    def __init__(self, message: str, *, span: Span | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.span = span
        self.hint = hint

    def __str__(self) -> str:
        if self.span is None:
            return self.message
        return f"{self.span.name}:{self.span.line}:{self.span.column}: {self.message}"

    def report(self) -> str:
        """What a person should read: place and sentence, the source line with carets, the hint."""
        lines = [str(self)]
        if self.span is not None:
            lines.append(self.span.excerpt())
        if self.hint:
            lines.append(f"    hint: {self.hint}")
        return "\n".join(lines)


class QueryError(LmqlLiteError):
    """The query does not compile. `problems` holds every error found, this one first, in source order."""

    def __init__(
        self,
        message: str,
        *,
        span: Span | None = None,
        hint: str | None = None,
        others: tuple[QueryError, ...] = (),
    ) -> None:
        super().__init__(message, span=span, hint=hint)
        self.others = others

    @property
    def problems(self) -> tuple[QueryError, ...]:
        return (self, *self.others)

    @staticmethod
    def of(problems: list[QueryError]) -> QueryError:
        """One error to raise for all of them; the first in source order leads."""
        first, *others = sorted(problems, key=lambda problem: problem.span.start if problem.span else 0)
        return QueryError(first.message, span=first.span, hint=first.hint, others=tuple(others))

    def report(self) -> str:
        return "\n".join([super().report(), *(other.report() for other in self.others)])


class InputError(LmqlLiteError):
    """An input of the query is missing, unknown or unreadable."""


class ConstraintError(LmqlLiteError):
    """The `where` of a hole cannot be met. Raised instead of returning a value that violates it."""


class ModelError(LmqlLiteError):
    """A model is unknown, cannot be loaded, or failed while it was asked."""


class BrokenOff(ModelError):
    """A server's answer ended in the middle. What came before stays; the rest may be asked for."""


class CacheError(LmqlLiteError):
    """A cache file is corrupt, locked or of another format."""


class BudgetError(LmqlLiteError):
    """A limit on requests, tokens or money was reached."""
