"""Holes of prompt strings to ops: type, decoder, decorators, callees and clauses."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from dataclasses import replace
from types import CodeType
from typing import Literal

from lmql_lite.errors import ConstraintError, QueryError, Span
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import CONSTRAINTS, DECODERS
from lmql_lite.lang.names import every_node
from lmql_lite.options import Problem, decoder_named, decoder_problem, hole_clash, option_problem, value_problem
from lmql_lite.program.bytecode import NotWritten, compile_call, compile_expression, constant, span_of
from lmql_lite.program.clauses import asked
from lmql_lite.program.conditions import All
from lmql_lite.program.ops import CALL, Callee, Clause, Hole, HoleDecoder, HoleDecorator, HoleType, OptionCode
from lmql_lite.program.types import NAMES, typed, written_type
from lmql_lite.program.where import WAYS, mentioned

OF_TOOLS = ("tools", "max_calls")
"""Options of a hole that say what the model may call, not how tokens are chosen."""


class Holes:
    """The holes of one query. `bound` are names that it binds, `own` those and its inputs."""

    def __init__(self, bound: frozenset[str], own: frozenset[str]) -> None:
        self._bound = bound
        self._own = own

    def hole(self, hole: nodes.HoleNode, clauses: Sequence[Clause]) -> Hole:
        """Raises QueryError for what the hole cannot be."""
        call = hole.call
        op = replace(
            Hole(hole.span, hole.name, All(hole.span, ())),
            decoder=self._decoder(hole.name, call) if call and not _is_action(hole, call) else None,
            decorators=tuple(
                HoleDecorator(each.span, _code(each), compile_call(CALL, each.tree.body, each.span, is_async=True))
                for each in hole.decorators
            ),
            callees=tuple(self._callees(hole, clauses)),
        )
        if hole.annotation is None:
            return asked(op, clauses)
        op = replace(op, type=self._type(hole.name, hole.annotation, tuple(clauses)))
        if op.type and op.type.spec:
            return asked(op, clauses)
        called = _callee("type", hole.annotation.tree.body, hole.annotation.span)
        return replace(op, callees=(called, *op.callees)) if called else op

    def _type(self, name: str, annotation: nodes.Expression, clauses: tuple[Clause, ...]) -> HoleType:
        """Type of the hole, if it is written out; else the run finds it out, and reads the clauses then."""
        try:
            spec = typed(written_type(annotation.tree.body, self._own), name, annotation.span)
        except NotWritten:
            spec = None
        except ConstraintError as error:
            raise QueryError(error.message, span=error.span, hint=error.hint) from None
        offered = tuple(each for each in mentioned(annotation, NAMES) if each not in self._bound)
        return HoleType(annotation.span, _code(annotation), offered, clauses, spec)

    # Decoders ----------------------------------------------------------------------------------------------------

    def _decoder(self, hole: str, call: nodes.Expression) -> HoleDecoder:
        node = call.tree.body
        function = node.func if isinstance(node, ast.Call) else node
        name = ast.unparse(function)
        if not isinstance(function, ast.Name) or name.lower() not in DECODERS:
            problem = decoder_problem(name)
            hint = f"a query that fills the hole stands behind it: [{hole}: {ast.unparse(node)}]"
            near = problem.hint if problem and problem.hint and problem.hint.startswith("did you mean") else hint
            raise QueryError(f"no decoder is called {name!r}", span=span_of(function, call.span), hint=near)
        name = decoder_named(name)
        if not isinstance(node, ast.Call):
            _refuse(hole_clash(hole, name, None, None), call.span)
            return HoleDecoder(call.span, name)
        for argument in node.args:
            hint = "write name=value, for example temperature=0.8"
            raise QueryError("a decoder takes named arguments only", span=span_of(argument, call.span), hint=hint)
        options = tuple(self._option(name, keyword, call.span) for keyword in node.keywords)
        known = {each.arg: constant(each.value) for each in node.keywords}
        _refuse(hole_clash(hole, name, known.get("temperature"), known.get("n")), call.span)
        return HoleDecoder(call.span, name, options)

    def _option(self, decoder: str, keyword: ast.keyword, around: Span) -> OptionCode:
        span = span_of(keyword.value, around)
        if keyword.arg is None:
            raise QueryError("a decoder takes no ** arguments", span=span, hint="write each one as name=value")
        if keyword.arg not in OF_TOOLS:
            _refuse(option_problem(keyword.arg, decoder, at_hole=True), span)
            if (value := constant(keyword.value)) is not None:
                _refuse(value_problem(keyword.arg, value), span)
        return OptionCode(span, keyword.arg, compile_expression(keyword.value, span))

    # Queries in a hole -------------------------------------------------------------------------------------------

    def _callees(self, hole: nodes.HoleNode, clauses: Sequence[Clause]) -> list[Callee]:
        """Functions that its call form and its clauses call with the hole as first argument: perhaps queries."""
        found = []
        if hole.call and _is_action(hole, hole.call):
            found.append(_callee("hole", hole.call.tree.body, hole.call.span, hole.name))
        found += [
            _callee("where", each.tree.body, each.span, hole.name)
            for each in (clause.expression for clause in clauses)
            if self._calls(each, hole)
        ]
        return [each for each in found if each]

    def _calls(self, clause: nodes.Expression, hole: nodes.HoleNode) -> bool:
        """True if this is `f(X, ...)` with an f that only the run knows."""
        match clause.tree.body:
            case ast.Call(function, [ast.Name(hole.name), *others], named):
                first = ast.unparse(function).partition(".")[0]
                is_python = first in CONSTRAINTS or (first not in self._own and hasattr(builtins, first))
                is_pattern = isinstance(function, ast.Attribute) and function.attr in WAYS
                rest = [*others, *(each.value for each in named)]
                return not is_python and not is_pattern and not any(_reads(each, hole.name) for each in rest)
        return False


def _callee(
    form: Literal["type", "where", "hole"], node: ast.expr, span: Span, first: str | None = None
) -> Callee | None:
    """`node`, if it names something or calls something that has a name. `first` is the hole that it is called with."""
    if not isinstance(node, ast.Call):
        return Callee(span, form, compile_expression(node, span), None) if _is_named(node) else None
    if not _is_named(node.func):
        return None
    everything = ast.arguments([], [], ast.arg("by_place"), [], [], ast.arg("by_name"), [])
    pair = ast.Tuple([ast.Name("by_place", ast.Load()), ast.Name("by_name", ast.Load())], ast.Load())
    given = ast.Call(ast.Lambda(everything, pair), node.args[1:] if first else node.args, node.keywords)
    arguments = compile_expression(ast.copy_location(given, node), span)
    return Callee(span, form, compile_expression(node.func, span), arguments)


def _is_named(node: ast.expr) -> bool:
    """True if it can be looked up without calling anything."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _is_action(hole: nodes.HoleNode, call: nodes.Expression) -> bool:
    """True if this is `[f(X)]`, not `[f() X]`."""
    behind = hole.span.text[call.span.end : hole.span.end].lstrip()
    return behind[:1] in ("]", ":")


def _reads(node: ast.expr, name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in every_node(node))


def _refuse(problem: Problem | None, span: Span) -> None:
    if problem is not None:
        raise QueryError(problem.sentence, span=span, hint=problem.hint)


def _code(expression: nodes.Expression) -> CodeType:
    return compile_expression(expression.tree.body, expression.span)
