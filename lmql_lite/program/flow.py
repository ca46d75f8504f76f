"""Flow: what may come after each part of a query's prompts, read from its `ast`.

S16, S18 and S20 need it: the text that always follows a hole, the holes that may still be filled after it, and those
that may be the last of a run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(slots=True, eq=False)
class Point:
    """A place that a run passes: a `part` of a prompt, by its number, or some Python of the query. A run ends at a
    point without successors."""

    onward: list[Point] = field(default_factory=list)
    """Possible successors; of a part, the first is the usual one, and at the others an exception is handled."""
    part: int | None = None

    def reached(self, passes: Callable[[Point], bool] = lambda point: True) -> Iterator[Point]:
        """The points after this one, without those that come only after points at which `passes` is false."""
        seen, left = set[int](), list(self.onward)
        while left:
            point = left.pop()
            if id(point) in seen:
                continue
            seen.add(id(point))
            yield point
            left += point.onward if passes(point) else point.onward[1:]


@dataclass(slots=True)
class Final:
    """A `finally` block: its first point and its last."""

    entry: Point
    end: Point


@dataclass(slots=True)
class Loop:
    """A loop: the targets of `continue` and `break`, and the number of `finally` blocks around it."""

    head: Point
    out: Point
    finals: int
    depth: int
    """Number of `with` and `try` around it."""


class Flow:
    """The points of a query. `parts_of` returns the numbers of the parts of a statement that is a prompt, and None for
    other statements; `speaks` is true for a statement with prompts, returns or jumps in it. `holes` are the numbers
    of the parts that are holes."""

    def __init__(
        self,
        parts_of: Callable[[ast.stmt], Sequence[int] | None],
        speaks: Callable[[ast.stmt], bool],
        holes: frozenset[int],
    ) -> None:
        self._parts_of = parts_of
        self._speaks = speaks
        self._holes = holes
        self._loops: list[Loop] = []
        self._finals: list[Final] = []
        self._handlers: list[Point] = []
        """Places at which the run goes on after a hole fails here."""
        self._depth = 0
        self.points: dict[int, Point] = {}
        """The point of each part."""
        self._all: list[Point] = []

    def _point(self, onward: Sequence[Point] = (), part: int | None = None) -> Point:
        self._all.append(Point(list(onward), part))
        return self._all[-1]

    @cached_property
    def asks(self) -> frozenset[int]:
        """Identities of the points from which a run may come to a hole, and of the holes."""
        before: dict[int, list[Point]] = {}
        for point in self._all:
            for after in point.onward:
                before.setdefault(id(after), []).append(point)
        found, left = set[int](), [point for point in self._all if point.part in self._holes]
        while left:
            point = left.pop()
            if id(point) not in found:
                found.add(id(point))
                left += before.get(id(point), ())
        return frozenset(found)

    def block(self, statements: Sequence[ast.stmt], after: Point) -> Point:
        """The first point of a block that `after` follows."""
        for statement in reversed(statements):
            after = self._statement(statement, after)
        return after

    def _statement(self, statement: ast.stmt, after: Point) -> Point:
        parts = self._parts_of(statement)
        if parts is not None:
            for part in reversed(parts):
                after = self._point([after, *(self._handlers if part in self._holes else ())], part)
                self.points[part] = after
            return after
        if not self._speaks(statement):
            return self._point([after])
        match statement:
            case ast.If(_, body, orelse):
                return self._point([self.block(body, after), self.block(orelse, after)])
            case ast.While(_, body, orelse):
                return self._loop(self._point(), body, self.block(orelse, after), after)
            case ast.For(_, _, body, orelse) | ast.AsyncFor(_, _, body, orelse):
                return self._point([self._loop(self._point(), body, self.block(orelse, after), self._point([after]))])
            case ast.With(_, body) | ast.AsyncWith(_, body):
                return self._with(body, after)
            case ast.Try():
                return self._try(statement, after)
            case ast.Match(_, cases):
                others = after
                for case in reversed(cases):
                    others = self._point([self.block(case.body, after), others])
                return self._point([others])
            case ast.Return():
                return self._through(self._finals, self._point())
            case ast.Break() | ast.Continue() if self._loops:
                loop = self._loops[-1]
                target = loop.out if isinstance(statement, ast.Break) else loop.head
                target = target if loop.depth == self._depth else self._point([target])
                return self._through(self._finals[loop.finals :], target)
        return self._point([after])

    def _loop(self, head: Point, body: Sequence[ast.stmt], orelse: Point, out: Point) -> Point:
        self._loops.append(Loop(head, out, len(self._finals), self._depth))
        head.onward = [self.block(body, head), orelse]
        self._loops.pop()
        return head

    def _with(self, body: Sequence[ast.stmt], after: Point) -> Point:
        """A `with`, whose exit may swallow an exception."""
        first = self._guarded(body, self._point([after]), after)
        return self._point([first, after])

    def _guarded(self, body: Sequence[ast.stmt], after: Point, handler: Point) -> Point:
        """A block whose failing holes go on at a handler."""
        self._handlers.append(handler)
        self._depth += 1
        first = self.block(body, after)
        self._depth -= 1
        self._handlers.pop()
        return first

    def _try(self, statement: ast.Try, after: Point) -> Point:
        if not statement.finalbody:
            return self._handled(statement, after)
        self._depth += 1
        end = self._point([after])
        final = Final(self.block(statement.finalbody, end), end)
        self._finals.append(final)
        self._handlers.append(final.entry)
        first = self._handled(statement, self._point([final.entry]))
        self._handlers.pop()
        self._finals.pop()
        self._depth -= 1
        return self._point([first, final.entry])

    def _handled(self, statement: ast.Try, after: Point) -> Point:
        """A `try` without its `finally`."""
        if not statement.handlers:
            return self.block(statement.body, after)
        handler = self._point()
        self._depth += 1
        for each in reversed(statement.handlers):
            handler = self._point([self.block(each.body, self._point([after])), *([handler] if each.type else [])])
        self._depth -= 1
        first = self._guarded(statement.body, self._point([self.block(statement.orelse, after)]), handler)
        return self._point([first, handler])

    def _through(self, finals: Sequence[Final], target: Point) -> Point:
        """The first point of a jump that passes these `finally` blocks, outermost first."""
        for final in finals:
            final.end.onward.append(target)
            target = final.entry
        return self._point([target]) if finals else target
