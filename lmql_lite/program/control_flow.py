"""Python's compound statements, `break`, `continue` and `return` to ops (S23).

The target of a jump is set when the op there is written; open blocks are counted.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import CodeType
from typing import assert_never

from lmql_lite.errors import QueryError, Span
from lmql_lite.lang import nodes
from lmql_lite.program.bytecode import code_of, code_of_call, compiled
from lmql_lite.program.ops import (
    CALL,
    CASE,
    ERROR,
    ITEM,
    EndExcept,
    EndFinally,
    EndTry,
    Enter,
    EnterWith,
    Except,
    ExitWith,
    Jump,
    JumpIf,
    Jumping,
    Leave,
    Let,
    Next,
    Op,
    Reraise,
    Return,
    Try,
)


@dataclass(slots=True)
class OpenLoop:
    """Targets of `continue` and `break`. Those of `break` are set at the end of the loop."""

    head: int
    depth: int
    """Blocks that are open where its test stands."""
    around: int
    """Blocks that are open around it."""
    breaks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class OpenFinally:
    """A `finally` whose `try` is being written."""

    depth: int
    """Blocks that are open around it."""
    start: int | None = None
    """Its first op, once the guarded body is written."""
    end: int = -1
    onward: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Assembly:
    """The ops of a program as they are written down."""

    ops: list[Op] = field(default_factory=list)
    depth: int = 0
    loops: list[OpenLoop] = field(default_factory=list)
    _finals: list[OpenFinally] = field(default_factory=list)
    """Those that are open, outermost first."""
    ways: dict[int, list[OpenFinally]] = field(default_factory=dict)
    """The `finally` blocks that an op passes on its way out, innermost first."""
    _slots: int = 0

    def add(self, op: Op) -> int:
        self.ops.append(op)
        return len(self.ops) - 1

    def slot(self) -> str:
        """A new name that no query can spell."""
        self._slots += 1
        return f"#{self._slots}"

    def jump(self, span: Span) -> int:
        return self.add(Jump(span, -1))

    def land(self, *jumps: int) -> None:
        """Make the next op the target of the jumps at these places."""
        for at in jumps:
            op = self.ops[at]
            assert isinstance(op, Jumping)
            self.ops[at] = replace(op, target=len(self.ops))

    def guarded(self, span: Span, body: Callable[[], object], final: Callable[[], object]) -> None:
        """`try: body finally: final`, each of which writes its ops."""
        place = OpenFinally(self.depth)
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

    def aim_finals(self) -> None:
        """Connect each `Leave` and `Return` with the `finally` blocks that it passes."""
        for at, finals in self.ways.items():
            op = self.ops[at]
            assert isinstance(op, Leave | Return)
            self.ops[at] = replace(op, via=finals[0].start)
            for inner, outer in pairwise(finals):
                assert outer.start is not None
                inner.onward.add(outer.start)
            if isinstance(op, Leave):
                finals[-1].onward.add(op.target)
        for final in {id(final): final for finals in self.ways.values() for final in finals}.values():
            end = self.ops[final.end]
            assert isinstance(end, EndFinally)
            self.ops[final.end] = replace(end, onward=tuple(sorted(final.onward)))

    def leave(self, span: Span, depth: int, target: int) -> int:
        if depth == self.depth:
            return self.add(Jump(span, target))
        at = self.add(Leave(span, depth, target))
        self.note_way(at, depth)
        return at

    def note_way(self, at: int, depth: int) -> None:
        passed = [final for final in reversed(self._finals) if final.depth >= depth]
        if passed:
            self.ways[at] = passed


class ControlFlow(Assembly):
    """Writer of compound statements; `block` writes the statements inside."""

    def block(self, statements: tuple[nodes.Statement, ...]) -> None:
        raise NotImplementedError

    def control(self, statement: nodes.Compound | nodes.BreakNode | nodes.ContinueNode | nodes.ReturnNode) -> None:
        match statement:
            case nodes.IfNode():
                self._if(statement)
            case nodes.WhileNode():
                self._while(statement)
            case nodes.ForNode():
                self._for(statement)
            case nodes.WithNode(span, items):
                self._with(span, items, statement)
            case nodes.TryNode():
                self._try(statement)
            case nodes.MatchNode():
                self._match(statement)
            case nodes.BreakNode(span):
                self.loops[-1].breaks.append(self.leave(span, self.loops[-1].around, -1))
            case nodes.ContinueNode(span):
                self.leave(span, self.loops[-1].depth, self.loops[-1].head)
            case nodes.ReturnNode(span, value):
                self.note_way(self.add(Return(span, code_of(value) if value else None)), 0)
            case _:
                assert_never(statement)

    def _if(self, branch: nodes.IfNode) -> None:
        over_body = self.jump_unless(branch.test)
        self.block(branch.body)
        if not branch.orelse:
            self.land(over_body)
            return
        over_else = self.jump(branch.span)
        self.land(over_body)
        self.block(branch.orelse)
        self.land(over_else)

    # Loops -------------------------------------------------------------------------------------------------------

    def _while(self, loop: nodes.WhileNode) -> None:
        head = len(self.ops)
        out = self.jump_unless(loop.test)
        self._loop(loop, OpenLoop(head, self.depth, self.depth), out)

    def _for(self, loop: nodes.ForNode) -> None:
        around, slot = self.depth, self.slot()
        self.add(Enter(loop.span, slot, code_of(loop.iterable), code_of_call(CALL, loop.iterable), loop.is_async))
        self.depth += 1
        assign = _assignment(loop.target, ITEM, loop.span)
        here = code_of_call(CALL, loop.iterable, is_async=loop.is_async)
        head = self.add(Next(loop.span, slot, assign, -1, here, loop.is_async))
        self._loop(loop, OpenLoop(head, around + 1, around), head)

    def _loop(self, loop: nodes.ForNode | nodes.WhileNode, place: OpenLoop, out: int) -> None:
        """Body and `else` of a loop. Its test, at `out`, jumps to the `else`; `break` skips it."""
        self.loops.append(place)
        self.block(loop.body)
        self.leave(loop.span, place.depth, place.head)
        self.loops.pop()
        self.depth = place.around
        self.land(out)
        self.block(loop.orelse)
        self.land(*place.breaks)

    # Blocks ------------------------------------------------------------------------------------------------------

    def _with(self, span: Span, items: tuple[nodes.ItemNode, ...], block: nodes.WithNode) -> None:
        """`with a, b:` is `with a:` around `with b:`."""
        if not items:
            self.block(block.body)
            return
        item, *rest = items
        slot, is_async = self.slot(), block.is_async
        here = code_of_call(CALL, item.manager, is_async=is_async)
        enter = self.add(EnterWith(item.span, slot, code_of(item.manager), -1, here, is_async))
        self.depth += 1
        if item.target:
            self.add(Let(item.span, _assignment(item.target, ITEM, item.span)))
        self._with(span, tuple(rest), block)
        self.add(ExitWith(item.span))
        self.depth -= 1
        self.land(enter)

    def _try(self, block: nodes.TryNode) -> None:
        if block.final:
            self.guarded(block.span, lambda: self._handled(block), lambda: self.block(block.final))
        else:
            self._handled(block)

    def _handled(self, block: nodes.TryNode) -> None:
        """A `try` without its `finally`."""
        if block.of_groups:
            raise QueryError(
                "no prompt, `return` or loop's `break` can stand in a `try` with `except*`",
                span=block.handlers[0].span,
                hint="catch the group with `except`, or move the `try` into a function",
            )
        if not block.handlers:
            self.block(block.body)
            return
        guard = self.add(Try(block.span, -1))
        self.depth += 1
        self.block(block.body)
        self.add(EndTry(block.span))
        self.depth -= 1
        self.block(block.orelse)
        outs = [self.jump(block.span)]
        self.land(guard)
        self.depth += 1
        for handler in block.handlers:
            outs.append(self._handler(handler))
        if block.handlers[-1].type:
            self.add(Reraise(block.span))
        self.depth -= 1
        self.land(*outs)

    def _handler(self, handler: nodes.HandlerNode) -> int:
        """Write a handler, and return its last op, which jumps to the end of the statement."""
        other = None
        if handler.type:
            other = self.add(Except(handler.type.span, code_of_call(CALL, handler.type, handler.type), -1))
        if handler.type and handler.name:
            target = ast.copy_location(ast.Name(handler.name, ast.Store()), handler.type.tree.body)
            self.add(Let(handler.span, _assignment(target, ERROR, handler.span)))
            gone = Let(handler.span, _deletion(target, handler.span))
            # as in Python, the name is deleted at every exit of the handler
            self.guarded(handler.span, lambda: self.block(handler.body), lambda: self.add(gone))
        else:
            self.block(handler.body)
        end = self.add(EndExcept(handler.span, -1))
        if other is not None:
            self.land(other)
        return end

    def _match(self, block: nodes.MatchNode) -> None:
        """Python itself finds the case and binds its names; then the program jumps there."""
        cases = [
            ast.match_case(case.pattern, case.guard.tree.body if case.guard else None, [_chosen(number, case.pattern)])
            for number, case in enumerate(block.cases)
        ]
        subject = block.subject.tree.body
        match = ast.copy_location(ast.Match(subject, cases), subject)
        module = ast.Module([_chosen(-1, subject), match], [])
        self.add(Let(block.subject.span, compiled(module, block.span)))
        outs = []
        for number, case in enumerate(block.cases):
            holds = ast.Compare(ast.Name(CASE, ast.Load()), [ast.Eq()], [ast.Constant(number)])
            code = compiled(ast.copy_location(holds, case.pattern), case.span)
            other = self.add(JumpIf(case.span, code, False, -1))
            self.block(case.body)
            outs.append(self.jump(case.span))
            self.land(other)
        self.land(*outs)

    def jump_unless(self, test: nodes.Expression) -> int:
        return self.add(JumpIf(test.span, code_of(test), False, -1))


def _assignment(target: ast.expr, name: str, span: Span) -> CodeType:
    """`target = name`."""
    value = ast.copy_location(ast.Name(name, ast.Load()), target)
    return compiled(ast.Module([ast.copy_location(ast.Assign([target], value), target)], []), span)


def _deletion(target: ast.Name, span: Span) -> CodeType:
    """`name = None; del name`, because it may be deleted already."""
    none = ast.copy_location(ast.Assign([target], ast.copy_location(ast.Constant(None), target)), target)
    name = ast.copy_location(ast.Name(target.id, ast.Del()), target)
    return compiled(ast.Module([none, ast.copy_location(ast.Delete([name]), target)], []), span)


def _chosen(number: int, place: ast.expr | ast.pattern) -> ast.Assign:
    assign = ast.Assign([ast.Name(CASE, ast.Store())], ast.Constant(number))
    return ast.copy_location(assign, place)
