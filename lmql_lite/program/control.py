"""Python's compound statements, `break`, `continue` and `return` to ops (S23)."""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import CodeType

from lmql_lite.errors import QueryError, Span
from lmql_lite.lang import nodes
from lmql_lite.program.assembly import Assembly, Loop
from lmql_lite.program.ops import (
    CALL,
    CASE,
    ERROR,
    ITEM,
    EndExcept,
    EndTry,
    Enter,
    EnterWith,
    Except,
    ExitWith,
    JumpIf,
    Let,
    Next,
    Reraise,
    Return,
    Try,
)
from lmql_lite.program.python import compile_call, compile_expression, compile_statements


class Control:
    """Writes the statements that hold others; `block` writes what is inside."""

    def __init__(self, assembly: Assembly, block: Callable[[tuple[nodes.Statement, ...]], None]) -> None:
        self._assembly = assembly
        self._block = block

    def statement(self, statement: nodes.Compound | nodes.Break | nodes.Continue | nodes.Return) -> None:
        match statement:
            case nodes.If():
                self._if(statement)
            case nodes.While():
                self._while(statement)
            case nodes.For():
                self._for(statement)
            case nodes.With(span, items):
                self._with(span, items, statement)
            case nodes.Try():
                self._try(statement)
            case nodes.Match():
                self._match(statement)
            case nodes.Break(span):
                self._assembly.leave_loop(span)
            case nodes.Continue(span):
                self._assembly.go_on(span)
            case nodes.Return(span, value):
                self._assembly.give_back(Return(span, _code(value) if value else None))

    def _if(self, branch: nodes.If) -> None:
        over_body = self._jump_if(branch.test, when=False)
        self._block(branch.body)
        if not branch.orelse:
            self._assembly.land(over_body)
            return
        over_else = self._assembly.jump(branch.span)
        self._assembly.land(over_body)
        self._block(branch.orelse)
        self._assembly.land(over_else)

    # Loops -------------------------------------------------------------------------------------------------------

    def _while(self, loop: nodes.While) -> None:
        head = len(self._assembly.ops)
        out = self._jump_if(loop.test, when=False)
        self._loop(loop, Loop(head, self._assembly.depth, self._assembly.depth), out)

    def _for(self, loop: nodes.For) -> None:
        around, slot = self._assembly.depth, self._assembly.slot()
        iterable, here = _code(loop.iterable), _here(loop.iterable)
        self._assembly.add(Enter(loop.span, slot, iterable, here, loop.is_async))
        self._assembly.depth += 1
        assign = _assignment(loop.target, ITEM, loop.span)
        head = self._assembly.add(
            Next(loop.span, slot, assign, -1, _here(loop.iterable, is_async=loop.is_async), loop.is_async)
        )
        self._loop(loop, Loop(head, around + 1, around), head)

    def _loop(self, loop: nodes.For | nodes.While, place: Loop, out: int) -> None:
        """Body and `else` of a loop whose test, at `out`, leaves it; only `break` skips the `else`."""
        self._assembly.loops.append(place)
        self._block(loop.body)
        self._assembly.go_on(loop.span)
        self._assembly.loops.pop()
        self._assembly.depth = place.around
        self._assembly.land(out)
        self._block(loop.orelse)
        self._assembly.land(*place.breaks)

    # Blocks ------------------------------------------------------------------------------------------------------

    def _with(self, span: Span, items: tuple[nodes.Item, ...], block: nodes.With) -> None:
        """`with a, b:` is `with a:` around `with b:`."""
        if not items:
            self._block(block.body)
            return
        item, *rest = items
        slot, is_async = self._assembly.slot(), block.is_async
        enter = self._assembly.add(
            EnterWith(item.span, slot, _code(item.manager), -1, _here(item.manager, is_async=is_async), is_async)
        )
        self._assembly.depth += 1
        if item.target:
            self._assembly.add(Let(item.span, _assignment(item.target, ITEM, item.span)))
        self._with(span, tuple(rest), block)
        self._assembly.add(ExitWith(item.span))
        self._assembly.depth -= 1
        self._assembly.land(enter)

    def _try(self, block: nodes.Try) -> None:
        if block.final:
            self._assembly.guarded(block.span, lambda: self._handled(block), lambda: self._block(block.final))
        else:
            self._handled(block)

    def _handled(self, block: nodes.Try) -> None:
        """A `try` without its `finally`."""
        if block.of_groups:
            raise QueryError(
                "no prompt, `return` or loop's `break` can stand in a `try` with `except*`",
                span=block.handlers[0].span,
                hint="catch the group with `except`, or move the `try` into a function",
            )
        if not block.handlers:
            self._block(block.body)
            return
        guard = self._assembly.add(Try(block.span, -1))
        self._assembly.depth += 1
        self._block(block.body)
        self._assembly.add(EndTry(block.span))
        self._assembly.depth -= 1
        self._block(block.orelse)
        outs = [self._assembly.jump(block.span)]
        self._assembly.land(guard)
        self._assembly.depth += 1
        for handler in block.handlers:
            outs.append(self._handler(handler))
        if block.handlers[-1].type:
            self._assembly.add(Reraise(block.span))
        self._assembly.depth -= 1
        self._assembly.land(*outs)

    def _handler(self, handler: nodes.Handler) -> int:
        """Its end jumps to what comes after the statement."""
        other = None
        if handler.type:
            other = self._assembly.add(Except(handler.type.span, _here(handler.type, handler.type), -1))
        if handler.type and handler.name:
            target = ast.copy_location(ast.Name(handler.name, ast.Store()), handler.type.tree.body)
            self._assembly.add(Let(handler.span, _assignment(target, ERROR, handler.span)))
            gone = Let(handler.span, _deletion(target, handler.span))
            # as in Python, the name is gone behind the handler, however that is left
            self._assembly.guarded(handler.span, lambda: self._block(handler.body), lambda: self._assembly.write(gone))
        else:
            self._block(handler.body)
        end = self._assembly.add(EndExcept(handler.span, -1))
        if other is not None:
            self._assembly.land(other)
        return end

    def _match(self, block: nodes.Match) -> None:
        """Python itself finds the case, once, and binds its names; then it is jumped to."""
        cases = [
            ast.match_case(case.pattern, case.guard.tree.body if case.guard else None, [_chosen(number, case.pattern)])
            for number, case in enumerate(block.cases)
        ]
        subject = block.subject.tree.body
        match = ast.copy_location(ast.Match(subject, cases), subject)
        module = ast.Module([_chosen(-1, subject), match], [])
        self._assembly.add(Let(block.subject.span, compile_statements(module, block.span)))
        outs = []
        for number, case in enumerate(block.cases):
            holds = ast.Compare(ast.Name(CASE, ast.Load()), [ast.Eq()], [ast.Constant(number)])
            code = compile_expression(ast.copy_location(holds, case.pattern), case.span)
            other = self._assembly.add(JumpIf(case.span, code, False, -1))
            self._block(case.body)
            outs.append(self._assembly.jump(case.span))
            self._assembly.land(other)
        self._assembly.land(*outs)

    def _jump_if(self, test: nodes.Expression, *, when: bool) -> int:
        return self._assembly.add(JumpIf(test.span, _code(test), when, -1))


def _code(expression: nodes.Expression) -> CodeType:
    return compile_expression(expression.tree.body, expression.span)


def _here(place: nodes.Expression, *given: nodes.Expression, is_async: bool = False) -> CodeType:
    return compile_call(CALL, place.tree.body, place.span, *(each.tree.body for each in given), is_async=is_async)


def _assignment(target: ast.expr, name: str, span: Span) -> CodeType:
    """`target = name`."""
    value = ast.copy_location(ast.Name(name, ast.Load()), target)
    return compile_statements(ast.Module([ast.copy_location(ast.Assign([target], value), target)], []), span)


def _deletion(target: ast.Name, span: Span) -> CodeType:
    """`name = None; del name`: it may be gone already."""
    none = ast.copy_location(ast.Assign([target], ast.copy_location(ast.Constant(None), target)), target)
    name = ast.copy_location(ast.Name(target.id, ast.Del()), target)
    return compile_statements(ast.Module([none, ast.copy_location(ast.Delete([name]), target)], []), span)


def _chosen(number: int, place: ast.expr | ast.pattern) -> ast.Assign:
    assign = ast.Assign([ast.Name(CASE, ast.Store())], ast.Constant(number))
    return ast.copy_location(assign, place)
