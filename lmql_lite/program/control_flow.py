"""Python's compound statements, `break`, `continue` and `return` to ops (S23).

The target of a jump is set when the op there is written; open blocks are counted.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import CodeType

from lmql_lite.errors import QueryError, Span
from lmql_lite.lang.nodes import Expression
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

    def block(self, statements: Sequence[ast.stmt]) -> None:
        raise NotImplementedError

    def span(self, node: ast.stmt | ast.expr | ast.pattern | ast.ExceptHandler) -> Span:
        """Place of a node in the query."""
        raise NotImplementedError

    def placed(self, node: ast.expr) -> Expression:
        return Expression(self.span(node), ast.Expression(node))

    def control(self, statement: ast.stmt) -> None:
        """Write a statement that speaks."""
        match statement:
            case ast.If():
                self._if(statement)
            case ast.While(test):
                head = len(self.ops)
                out = self._jump_unless(test)
                self._loop(statement, OpenLoop(head, self.depth, self.depth), out)
            case ast.For() | ast.AsyncFor():
                self._for(statement)
            case ast.With(items) | ast.AsyncWith(items):
                self._with(items, statement)
            case ast.Try() | ast.TryStar():
                self._try(statement)
            case ast.Match():
                self._match(statement)
            case ast.Return(value):
                code = code_of(self.placed(value)) if value else None
                self.note_way(self.add(Return(self.span(statement), code)), 0)
            case ast.Break() | ast.Continue():
                self._leave(statement)

    def _leave(self, statement: ast.Break | ast.Continue) -> None:
        span = self.span(statement)
        if not self.loops:
            hint = "a query ends by return"
            raise QueryError(f"'{span.source}' stands outside a loop", span=span, hint=hint)
        loop = self.loops[-1]
        if isinstance(statement, ast.Break):
            loop.breaks.append(self.leave(span, loop.around, -1))
        else:
            self.leave(span, loop.depth, loop.head)

    def _if(self, branch: ast.If) -> None:
        over_body = self._jump_unless(branch.test)
        self.block(branch.body)
        if not branch.orelse:
            self.land(over_body)
            return
        over_else = self.jump(self.span(branch))
        self.land(over_body)
        self.block(branch.orelse)
        self.land(over_else)

    # Loops -------------------------------------------------------------------------------------------------------

    def _for(self, loop: ast.For | ast.AsyncFor) -> None:
        around, slot, span, is_async = self.depth, self.slot(), self.span(loop), isinstance(loop, ast.AsyncFor)
        iterable = self.placed(loop.iter)
        self.add(Enter(span, slot, code_of(iterable), code_of_call(CALL, iterable), is_async))
        self.depth += 1
        assign = _assignment(loop.target, ITEM, span)
        here = code_of_call(CALL, iterable, is_async=is_async)
        head = self.add(Next(span, slot, assign, -1, here, is_async))
        self._loop(loop, OpenLoop(head, around + 1, around), head)

    def _loop(self, loop: ast.For | ast.AsyncFor | ast.While, place: OpenLoop, out: int) -> None:
        """Body and `else` of a loop. Its test, at `out`, jumps to the `else`; `break` skips it."""
        self.loops.append(place)
        self.block(loop.body)
        self.leave(self.span(loop), place.depth, place.head)
        self.loops.pop()
        self.depth = place.around
        self.land(out)
        self.block(loop.orelse)
        self.land(*place.breaks)

    # Blocks ------------------------------------------------------------------------------------------------------

    def _with(self, items: Sequence[ast.withitem], block: ast.With | ast.AsyncWith) -> None:
        """`with a, b:` is `with a:` around `with b:`."""
        if not items:
            self.block(block.body)
            return
        item, *rest = items
        slot, is_async = self.slot(), isinstance(block, ast.AsyncWith)
        manager, target = self.placed(item.context_expr), item.optional_vars
        span = manager.span.to(self.span(target)) if target else manager.span
        here = code_of_call(CALL, manager, is_async=is_async)
        enter = self.add(EnterWith(span, slot, code_of(manager), -1, here, is_async))
        self.depth += 1
        if target:
            self.add(Let(span, _assignment(target, ITEM, span)))
        self._with(rest, block)
        self.add(ExitWith(span))
        self.depth -= 1
        self.land(enter)

    def _try(self, block: ast.Try | ast.TryStar) -> None:
        if isinstance(block, ast.TryStar):
            raise QueryError(
                "no prompt, `return` or loop's `break` can stand in a `try` with `except*`",
                span=self.span(block.handlers[0]),
                hint="catch the group with `except`, or move the `try` into a function",
            )
        for handler in block.handlers[:-1]:
            if handler.type is None:
                span = self.span(handler)
                word = Span(span.name, span.text, span.start, span.start + len("except"), span.first_line)
                raise QueryError("an 'except' without a type is the last one", span=word, hint="put it last")
        if block.finalbody:
            self.guarded(self.span(block), lambda: self._handled(block), lambda: self.block(block.finalbody))
        else:
            self._handled(block)

    def _handled(self, block: ast.Try) -> None:
        """A `try` without its `finally`."""
        if not block.handlers:
            self.block(block.body)
            return
        span = self.span(block)
        guard = self.add(Try(span, -1))
        self.depth += 1
        self.block(block.body)
        self.add(EndTry(span))
        self.depth -= 1
        self.block(block.orelse)
        outs = [self.jump(span)]
        self.land(guard)
        self.depth += 1
        for handler in block.handlers:
            outs.append(self._handler(handler))
        if block.handlers[-1].type:
            self.add(Reraise(span))
        self.depth -= 1
        self.land(*outs)

    def _handler(self, handler: ast.ExceptHandler) -> int:
        """Write a handler, and return its last op, which jumps to the end of the statement."""
        other, span = None, self.span(handler)
        type = self.placed(handler.type) if handler.type else None
        if type:
            other = self.add(Except(type.span, code_of_call(CALL, type, type), -1))
        if type and handler.name:
            target = ast.copy_location(ast.Name(handler.name, ast.Store()), type.tree.body)
            self.add(Let(span, _assignment(target, ERROR, span)))
            gone = Let(span, _deletion(target, span))
            # as in Python, the name is deleted at every exit of the handler
            self.guarded(span, lambda: self.block(handler.body), lambda: self.add(gone))
        else:
            self.block(handler.body)
        end = self.add(EndExcept(span, -1))
        if other is not None:
            self.land(other)
        return end

    def _match(self, block: ast.Match) -> None:
        """Python itself finds the case and binds its names; then the program jumps there."""
        cases = [
            ast.match_case(case.pattern, case.guard, [_chosen(number, case.pattern)])
            for number, case in enumerate(block.cases)
        ]
        match = ast.copy_location(ast.Match(block.subject, cases), block.subject)
        module = ast.Module([_chosen(-1, block.subject), match], [])
        self.add(Let(self.span(block.subject), compiled(module, self.span(block))))
        outs = []
        for number, case in enumerate(block.cases):
            holds = ast.Compare(ast.Name(CASE, ast.Load()), [ast.Eq()], [ast.Constant(number)])
            span = self.span(case.pattern)
            other = self.add(JumpIf(span, compiled(ast.copy_location(holds, case.pattern), span), False, -1))
            self.block(case.body)
            outs.append(self.jump(span))
            self.land(other)
        self.land(*outs)

    def _jump_unless(self, test: ast.expr) -> int:
        place = self.placed(test)
        return self.add(JumpIf(place.span, code_of(place), False, -1))


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
