"""Text of a query with its origin, the places in it, and the problems found in it."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from lmql_lite.errors import InputError, QueryError, Span, joined

BOM = b"\xef\xbb\xbf"

ENOUGH = 20
"""Number of problems after which parsing stops, so that a file of another kind costs little time."""


@dataclass(frozen=True, slots=True)
class Source:
    """A query as it was written, line ends included, so that every offset is an offset in the file.

    `first_line` is the number of the text's first line in the file `name`: above 1 for a docstring.
    """

    name: str
    text: str = field(repr=False)
    first_line: int = 1

    def span(self, start: int, end: int) -> Span:
        return Span(self.name, self.text, start, end, self.first_line)

    @staticmethod
    def from_file(path: str | Path) -> Source:
        """Read a UTF-8 file. Raises `InputError` if the file cannot be read."""
        name = str(path)
        try:
            raw = Path(path).read_bytes()
        except FileNotFoundError:
            raise InputError(f"there is no file '{name}'", hint="check the spelling and the current folder") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"'{name}' cannot be read: {reason.lower()}", hint="name a text file that you may read"
            ) from None
        return Source.from_bytes(name, raw)

    @staticmethod
    def from_bytes(name: str, raw: bytes) -> Source:
        """Decode UTF-8, a leading byte order mark left out. Raises `InputError` for anything else."""
        raw = raw.removeprefix(BOM)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
            raise InputError(
                f"'{name}' is not UTF-8: line {line}, byte {column} is 0x{raw[error.start]:02x}",
                hint="save the file as UTF-8",
            ) from None
        return Source(name, text)


class Places:
    """Places in a text by lines from 0, and by columns in bytes of UTF-8, as Python's trees have them."""

    __slots__ = ("_bytes", "lines", "size")

    def __init__(self, text: str) -> None:
        self.size = len(text)
        self.lines = [0, *(match.end() for match in re.finditer("\n", text))]
        """Offset of each line."""
        widths = (len(character.encode("utf-8", "surrogatepass")) for character in text)
        self._bytes = None if text.isascii() else [*accumulate(widths, initial=0)]
        """Bytes before each character."""

    def offset(self, line: int, column: int) -> int:
        """Offset of a column; that of the end for one that is not there."""
        start = self.lines[min(line, len(self.lines) - 1)]
        if self._bytes is None:
            return min(start + column, self.size)
        return min(bisect_left(self._bytes, self._bytes[start] + column), self.size)

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset."""
        line = bisect_right(self.lines, offset) - 1
        start = self.lines[line]
        return line, offset - start if self._bytes is None else self._bytes[offset] - self._bytes[start]

    def blamed(self, line: int | None, character: int | None) -> int:
        """Offset to which a syntax error points: both numbers count from 1. A line that is not there is the end."""
        line = line or 1
        if line > len(self.lines):
            return self.size
        end = self.lines[line] - 1 if line < len(self.lines) else self.size
        return min(self.lines[line - 1] + max((character or 1) - 1, 0), end)


@lru_cache(maxsize=16)
def places(text: str) -> Places:
    return Places(text)


def span_of(node: ast.expr | ast.stmt | ast.keyword | ast.excepthandler | ast.pattern, around: Span) -> Span:
    """Place of a node of Python, read from the text of this span; the span itself for a node without a place."""
    if node.end_lineno is None or node.end_col_offset is None:
        return around
    known = places(around.text)
    start = known.offset(node.lineno - around.first_line, node.col_offset)
    end = known.offset(node.end_lineno - around.first_line, node.end_col_offset)
    return around.at(start, end)


@dataclass(slots=True, eq=False)
class Problems:
    """Problems of one query, the first of each source line: later ones on a line mostly follow from it."""

    _by_line: dict[tuple[str, int], QueryError] = field(default_factory=dict)

    def add(self, message: str, span: Span, hint: str | None = None) -> None:
        self._by_line.setdefault((span.name, span.line), QueryError(message, span=span, hint=hint))

    def found(self) -> tuple[QueryError, ...]:
        """In source order."""
        return tuple(sorted(self._by_line.values(), key=lambda each: each.span.start if each.span else 0))

    def raise_any(self) -> None:
        if self._by_line:
            raise joined(list(self._by_line.values())[:ENOUGH])
