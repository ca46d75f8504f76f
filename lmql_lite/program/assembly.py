"""The ops of a program as they are written down: jumps that are aimed later, and the blocks that are open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from lmql_lite.errors import Span
from lmql_lite.program.ops import EndFinally, EndTry, Jump, Jumping, Leave, Op, Return, Try


@dataclass(slots=True)
class Loop:
    """Where `continue` and `break` go. Breaks are aimed when the end of the loop is known."""

    head: int
    depth: int
    """Blocks that are open where its test stands."""
    around: int
    """Blocks that are open around it."""
    breaks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Final:
    """A `finally`."""

    depth: int
    """Blocks that are open around it."""
    start: int | None = None
    """Its first op, once what it belongs to is written."""
    end: int = -1
    onward: set[int] = field(default_factory=set)


class Assembly:
    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.depth = 0
        self.loops: list[Loop] = []
        self._finals: list[Final] = []
        """Those that are under way, outermost first."""
        self._ways: dict[int, list[Final]] = {}
        """Those that an op comes by on its way out, innermost first."""
        self._slots = 0

    def add(self, op: Op) -> int:
        self.ops.append(op)
        return len(self.ops) - 1

    def write(self, op: Op) -> None:
        self.add(op)

    def slot(self) -> str:
        """A name that no query can spell."""
        self._slots += 1
        return f"#{self._slots}"

    def jump(self, span: Span) -> int:
        return self.add(Jump(span, -1))

    def land(self, *jumps: int) -> None:
        """Lets the jumps at these ops come here."""
        for at in jumps:
            op = self.ops[at]
            assert isinstance(op, Jumping)
            self.ops[at] = replace(op, target=len(self.ops))

    def leave_loop(self, span: Span) -> None:
        """`break`."""
        loop = self.loops[-1]
        loop.breaks.append(self._leave(span, loop.around, -1))

    def go_on(self, span: Span) -> None:
        """`continue`."""
        loop = self.loops[-1]
        self._leave(span, loop.depth, loop.head)

    def give_back(self, op: Return) -> None:
        """`return`."""
        self._note_way(self.add(op), 0)

    def guarded(self, span: Span, body: Callable[[], None], final: Callable[[], None]) -> None:
        """`try: body finally: final`, each of which writes its ops."""
        place = Final(self.depth)
        guard = self.add(Try(span, -1, always=True))
        self.depth += 1
        self._finals.append(place)
        body()
        self._finals.pop()
        self.add(EndTry(span))
        self.land(guard)
        place.start = len(self.ops)
        final()
        place.end = self.add(EndFinally(span))
        self.depth -= 1

    def finished(self) -> list[Op]:
        """The ops, with each `finally` that is on the way of another op noted in both."""
        for at, finals in self._ways.items():
            op = self.ops[at]
            assert isinstance(op, Leave | Return)
            self.ops[at] = replace(op, via=finals[0].start)
            for inner, outer in pairwise(finals):
                assert outer.start is not None
                inner.onward.add(outer.start)
            if isinstance(op, Leave):
                finals[-1].onward.add(op.target)
        for final in {id(final): final for finals in self._ways.values() for final in finals}.values():
            end = self.ops[final.end]
            assert isinstance(end, EndFinally)
            self.ops[final.end] = replace(end, onward=tuple(sorted(final.onward)))
        return self.ops

    def _leave(self, span: Span, depth: int, target: int) -> int:
        if depth == self.depth:
            return self.add(Jump(span, target))
        at = self.add(Leave(span, depth, target))
        self._note_way(at, depth)
        return at

    def _note_way(self, at: int, depth: int) -> None:
        passed = [final for final in reversed(self._finals) if final.depth >= depth]
        if passed:
            self._ways[at] = passed
