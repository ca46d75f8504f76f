"""Segment: texts and holes that no Python stands between, which one question to a server may cover (S16)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lmql_lite.constraints.terms import Term
from lmql_lite.program.ops import Hole, Program, PromptText


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


def lookahead_at(program: Program, number: int, term: Callable[[int], Term], schema: str | None = None) -> Lookahead:
    """Lookahead from the hole of this number to the end of its segment (S16), or to the first text that needs Python.

    `term` returns the condition on the text of the hole of a number; `schema` is that of the first hole.
    """
    parts: list[Term | bytes] = [term(number)]
    while (following := program.onward[number]) is not None:
        part = program.parts[following]
        if isinstance(part, PromptText):
            literal = [each for each in part.parts if isinstance(each, str)]
            if len(literal) < len(part.parts):
                break
            parts.append("".join(literal).encode())
        elif isinstance(part, Hole) and part.continues_segment:
            parts.append(term(following))
        else:
            break
        number = following
    return Lookahead(tuple(parts), goes_on=program.asks_later[number], schema=schema)
