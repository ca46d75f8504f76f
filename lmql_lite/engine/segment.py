"""Segment: texts and holes that no Python stands between, which one question to a server may cover (S16)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lmql_lite.constraints.terms import Term
from lmql_lite.program.ops import Hole, Jump, Next, Op, PromptText


@dataclass(frozen=True, slots=True)
class Lookahead:
    """Terms of the holes of a segment, and the texts between and after them, as far as they are known (S16).

    `goes_on`: another hole may follow. `schema` is the JSON Schema of its only hole; the hole's term then does not
    constrain its text.
    """

    parts: tuple[Term | bytes, ...]
    goes_on: bool
    schema: str | None = None

    @property
    def holes(self) -> int:
        return sum(not isinstance(part, bytes) for part in self.parts)

    def beginnings(self) -> Iterator[Lookahead]:
        """The lookahead, and the shorter ones that end with a hole, longest first."""
        yield self
        ends = [at for at, part in enumerate(self.parts, start=1) if not isinstance(part, bytes)]
        for end in reversed(ends):
            if end < len(self.parts):
                yield Lookahead(self.parts[:end], goes_on=True)


def lookahead_at(ops: Sequence[Op], at: int, term: Callable[[int], Term], schema: str | None = None) -> Lookahead:
    """Lookahead from the hole at `at` to the end of its segment (S16), or to the first text that needs Python.

    `term` returns the condition on the text of the hole at a place; `schema` is that of the first hole.
    """
    parts: list[Term | bytes] = [term(at)]
    end = at + 1
    while isinstance(ops[end], PromptText | Hole):
        op = ops[end]
        if isinstance(op, PromptText):
            literal = [part for part in op.parts if isinstance(part, str)]
            if len(literal) < len(op.parts):
                break
            parts.append("".join(literal).encode())
        elif isinstance(op, Hole):
            if not op.continues_segment:
                break
            parts.append(term(end))
        end += 1
    goes_on = any(isinstance(op, Hole | Jump | Next) for op in ops[end:])
    return Lookahead(tuple(parts), goes_on=goes_on, schema=schema)
