"""Where the layout stands in the lines, and the terminals that it wrote so far."""

from __future__ import annotations

from lmql_lite.lang.grammars import Terminal
from lmql_lite.lang.problems import Problems
from lmql_lite.lang.scanner import Lexeme, Line
from lmql_lite.lang.source import Source


class Cursor:
    def __init__(self, source: Source, lines: list[Line], problems: Problems) -> None:
        self.source = source
        self.lines = lines
        self.problems = problems
        self.at = 0
        self.terminals: list[Terminal] = []

    @property
    def line(self) -> Line | None:
        """The line that comes next."""
        return self.lines[self.at] if self.at < len(self.lines) else None

    def below(self, line: Line) -> Line | None:
        """The next line, if it is indented deeper than this one."""
        following = self.line
        return following if following and following.indent.columns > line.indent.columns else None

    def emit(self, type: str, first: Lexeme, last: Lexeme | None = None) -> None:
        self.terminals.append(Terminal(type, first.start, (last or first).end))

    def mark(self, type: str) -> None:
        """A terminal without text, at the end of what was read so far."""
        end = self.terminals[-1].end
        self.terminals.append(Terminal(type, end, end))

    def broken(self, first: Lexeme, last: Lexeme | None = None) -> None:
        """A line that was reported and is left out."""
        self.emit("BROKEN", first, last)
        self.mark("_NEWLINE")

    def problem(self, lexeme: Lexeme, message: str, hint: str | None = None) -> None:
        self.problems.add(message, self.source.span(lexeme.start, lexeme.end), hint)
