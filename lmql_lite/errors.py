"""Everything that can go wrong, and the place in the source where it did.

    LmqlLiteError
    ├─ QueryError        the query does not compile
    ├─ InputError        a missing, unknown or unreadable input: wrong usage
    ├─ ConstraintError   the `where` of a hole cannot be met, found before the run or in it
    ├─ ModelError        a model is unknown, cannot be loaded, or failed while it was asked
    ├─ CacheError        a cache file is corrupt, locked or of another format
    └─ BudgetError       a limit on requests, tokens or money was reached

The compiler raises one error for all problems of a query: a ConstraintError if each of them is one, else a QueryError.
A Python exception raised by the query's own code is the user's: it is never wrapped in one of these.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

LONGEST_EXCERPT = 160
"""Characters of a source line that is shown whole."""
PART = 50
"""Characters before, under and after the carets that are shown of a longer one."""


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
        """The source line with carets under the span (its part on the first line), two lines in all.

        A line of more than `LONGEST_EXCERPT` columns is cut around the carets.
        """
        begin = self.text.rfind("\n", 0, self.start) + 1
        end = self.text.find("\n", begin)
        line = self.text[begin : end if end >= 0 else len(self.text)].rstrip("\r")
        before = _as_drawn(line[: self.start - begin])
        under = _as_drawn(line[self.start - begin : max(self.end - begin, 0)])
        after = _as_drawn(line[max(self.end, self.start) - begin :])
        if len(before) + len(under) + len(after) > LONGEST_EXCERPT:
            before = f"...{before[-PART:]}" if len(before) > PART else before
            under, after = (part if len(part) <= PART else f"{part[:PART]}..." for part in (under, after))
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
    """A hint that names the closest of `names`, also when only its case differs; None where none is close."""
    candidates = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), candidates, n=1, cutoff=0.6)
    return f"did you mean {candidates[close[0]]}?" if close else None


class LmqlLiteError(Exception):
    """The root. `message` is one sentence, `span` where it happened, `hint` what would help.

    `others` are further problems of the same query, where the compiler found more than one.
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

    @property
    def problems(self) -> tuple[LmqlLiteError, ...]:
        """Every problem found, this one first, in source order."""
        return (self, *self.others)

    def __str__(self) -> str:
        if self.span is None:
            return self.message
        return f"{self.span.name}:{self.span.line}:{self.span.column}: {self.message}"

    def report(self) -> str:
        """Text for a person: of each problem the place and the sentence, the source line with carets, the hint."""
        lines = [str(self)]
        if self.span is not None:
            lines.append(self.span.excerpt())
        if self.hint:
            lines.append(f"    hint: {self.hint}")
        return "\n".join([*lines, *(other.report() for other in self.others)])


class QueryError(LmqlLiteError):
    """The query does not compile."""


class InputError(LmqlLiteError):
    """An input of the query is missing, unknown or unreadable."""


class ConstraintError(LmqlLiteError):
    """The `where` of a hole cannot be met, found when the query is compiled or when it runs. No result violates it."""


class ModelError(LmqlLiteError):
    """A model is unknown, cannot be loaded, or failed while it was asked."""


class BrokenOff(ModelError):
    """A server's answer ended in the middle. What came before stays; the rest may be asked for."""


class CacheError(LmqlLiteError):
    """A cache file is corrupt, locked or of another format."""


class BudgetError(LmqlLiteError):
    """A limit on requests, tokens or money was reached."""


def joined(problems: Sequence[QueryError | ConstraintError]) -> QueryError | ConstraintError:
    """One error to raise for all problems of a query; the first in source order leads."""
    ordered = sorted(problems, key=lambda problem: problem.span.start if problem.span else 0)
    first, others = ordered[0], tuple(ordered[1:])
    kind = ConstraintError if all(isinstance(each, ConstraintError) for each in ordered) else QueryError
    return kind(first.message, span=first.span, hint=first.hint, others=others)
