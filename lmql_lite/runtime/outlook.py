"""How far a segment can be seen from where it begins: by a run, which knows the values, or by a plan, which may not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lmql_lite.constraints.terms import Term
from lmql_lite.program.ops import Hole, Jump, Next, Op, Text
from lmql_lite.runtime.writer import Outlook


def outlook_of(ops: Sequence[Op], at: int, term: Callable[[int], Term], schema: str | None = None) -> Outlook:
    """From the hole at this place to the end of its segment (S16). Texts that Python has yet to make end it earlier.

    `term` tells of each hole that is come by what its text has to be; `schema` is that of the first one.
    """
    parts: list[Term | bytes] = [term(at)]
    end, is_whole = at + 1, True
    while isinstance(ops[end], Text | Hole):
        op = ops[end]
        if isinstance(op, Text):
            literal = [part for part in op.parts if isinstance(part, str)]
            is_whole = len(literal) == len(op.parts)
            if not is_whole:
                break
            parts.append("".join(literal).encode())
        elif isinstance(op, Hole):
            if not op.continues_segment:
                break
            parts.append(term(end))
        end += 1
    goes_on = any(isinstance(op, Hole | Jump | Next) for op in ops[end:])
    return Outlook(tuple(parts), goes_on=goes_on, is_whole=is_whole, schema=schema)
