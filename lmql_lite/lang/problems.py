"""Everything that is wrong with one query, gathered while it is read."""

from __future__ import annotations

from lmql_lite.errors import QueryError, Span, joined

ENOUGH = 20
"""After so many problems nobody reads on, and a file that is no query at all should not cost time."""


class Problems:
    """Keeps the first problem of each source line: what follows it on that line is mostly its echo."""

    def __init__(self) -> None:
        self._by_line: dict[tuple[str, int], QueryError] = {}

    def add(self, message: str, span: Span, hint: str | None = None) -> None:
        self._by_line.setdefault((span.name, span.line), QueryError(message, span=span, hint=hint))

    def __len__(self) -> int:
        return len(self._by_line)

    @property
    def enough(self) -> bool:
        return len(self._by_line) >= ENOUGH

    def found(self) -> tuple[QueryError, ...]:
        """In source order."""
        return tuple(sorted(self._by_line.values(), key=lambda each: each.span.start if each.span else 0))

    def raise_any(self) -> None:
        if self._by_line:
            raise joined(list(self._by_line.values())[:ENOUGH])
