"""The ways through a program: how often its ops run at most, and what the heaviest way comes to."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from math import inf

from lmql_lite.errors import Span
from lmql_lite.program.ops import Enter, Jump, JumpIf, Next, Program, Return
from lmql_lite.program.ways import ways
from lmql_lite.runtime.planning.foreseen import Foreseen, NotForeseen


@dataclass(frozen=True, slots=True)
class Loop:
    """The ops from `head` to `last`, which jumps back; `passes` is inf where nothing is known of them."""

    span: Span
    head: int
    last: int
    passes: float

    def holds(self, at: int) -> bool:
        return self.head <= at <= self.last


class Flow:
    """Each loop is gone through once, whatever it weighs being taken as often as it has passes: then all ways lead
    forwards."""

    def __init__(self, program: Program, foreseen: Foreseen) -> None:
        self._ops = program.ops
        self._foreseen = foreseen
        lasts = {op.target: at for at, op in enumerate(self._ops) if isinstance(op, Jump) and op.target <= at}
        self.loops = tuple(
            Loop(self._ops[head].span, head, last, self._passes(head)) for head, last in sorted(lasts.items())
        )
        self._ways = ways(self._ops)
        self._nexts = [self._after(at) for at in range(len(self._ops))]

    def times(self, at: int, within: Loop | None = None) -> float:
        """How often an op runs at most, or in one pass of a loop."""
        times = 1.0
        for loop in self.loops:
            inside = within is None or (within.holds(loop.head) and loop is not within)
            if inside and loop.holds(at):
                times = loop.passes * times if loop.passes and times else 0.0
        return times

    def heaviest(self, weights: Sequence[float], within: Loop | None = None) -> list[float]:
        """What the heaviest way to each op weighs, that op included; -inf where none leads. The last one is the way
        out: of the program, or of one pass of a loop."""
        first, last = (within.head, within.last) if within else (0, len(self._ops) - 1)
        found = [-inf] * len(self._ops)
        out = 0.0
        for at in range(first, last + 1):
            before = [found[other] for other in range(first, at) if at in self._nexts[other]]
            if at > first and not any(weight > -inf for weight in before):
                continue
            own = weights[at] * self.times(at, within) if weights[at] else 0.0
            found[at] = max(before, default=0.0) + own
            out = max(out, found[at])
        return [*found, out]

    def is_certain(self, at: int) -> bool:
        """Whether every run that ends comes by this op."""
        reached = {0} - {at}
        for place in range(len(self._ops)):
            if place in reached:
                if isinstance(self._ops[place], Return) and not self._nexts[place]:
                    return False
                reached.update(after for after in self._nexts[place] if after != at)
        return True

    def _passes(self, head: int) -> float:
        op, before = self._ops[head], self._ops[head - 1]
        try:
            if isinstance(op, JumpIf):
                return inf if self._foreseen.value(op.test) else 0.0
            if isinstance(op, Next) and isinstance(before, Enter):
                items = self._foreseen.value(before.iterable)
                return float(len(items)) if isinstance(items, Sized) else inf
        except NotForeseen:
            pass
        return inf

    def _after(self, at: int) -> tuple[int, ...]:
        """Where an op leads, as far as it is not known where it does not."""
        op = self._ops[at]
        loop = next((loop for loop in self.loops if loop.head == at), None)
        match op:
            case Next(target=target) if loop is not None and loop.passes < inf:
                return (at + 1,) if loop.passes else (target,)
            case JumpIf(_, test, when, target):
                try:
                    return (target if bool(self._foreseen.value(test)) == when else at + 1,)
                except NotForeseen:
                    return (at + 1, target)
        return tuple(self._forwards(at, target) for target in self._ways[at])

    def _forwards(self, at: int, target: int) -> int:
        """The way out of a loop in the place of the way back into it."""
        if target > at:
            return target
        head = self._ops[target]
        assert isinstance(head, Next | JumpIf), "a loop begins with its test"
        return head.target
