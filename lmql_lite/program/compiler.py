"""From the nodes of a query to its program: statements become ops, control flow becomes jumps."""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

from lmql_lite.errors import ConstraintError, InputError, QueryError, Span, joined
from lmql_lite.lang import nodes
from lmql_lite.lang.docstrings import OFFERED, Function, moved, offers
from lmql_lite.lang.names import every_node
from lmql_lite.lang.scope import Scope, check
from lmql_lite.options import clash, decoder_named, option_problem, value_problem
from lmql_lite.program.bytecode import code_of, code_of_call, compiled, constant, span_of
from lmql_lite.program.control_flow import ControlFlow
from lmql_lite.program.holes import Holes, clauses_of_query, clauses_of_string
from lmql_lite.program.ops import (
    CALL,
    STEP,
    Distribution,
    Hole,
    Input,
    Interpolated,
    Let,
    OptionCode,
    Program,
    PromptText,
    Return,
    Turn,
)
from lmql_lite.program.segments import segmented
from lmql_lite.program.values import texts_of
from lmql_lite.program.where import Clause


def compile(tree: nodes.QueryNode, scope: Scope | None = None) -> Program:
    """Program of a query; its scope is checked unless given. Raises QueryError, with every problem found."""
    scope = scope or check(tree)
    inputs = [Input(free.name, free.span, free.form) for free in scope.inputs]
    program = Compiler(tree, scope).program(tuple(inputs))
    if not scope.queries:
        return program
    queries, problems = dict[int, Program](), list[QueryError | ConstraintError]()
    for inner, names in scope.queries:
        try:
            queries[inner.line] = compile(inner.tree, names)
        except (QueryError, ConstraintError) as error:
            for each in error.problems:
                kind = ConstraintError if isinstance(each, ConstraintError) else QueryError
                problems.append(kind(each.message, span=moved(each.span, inner.place), hint=each.hint))
    if problems:
        raise joined(problems)
    return replace(program, queries=queries)


class Compiler(ControlFlow):
    def __init__(self, tree: nodes.QueryNode, scope: Scope) -> None:
        super().__init__()
        self._tree = tree
        self._names = scope.holes
        self._offers_query = bool(scope.queries) and OFFERED not in scope.locals
        self._bound = scope.locals.union(scope.holes)
        self._builtins = scope.builtin_values
        self._holes = Holes(self._bound, self._bound.union(free.name for free in scope.inputs))
        self._problems: list[QueryError | ConstraintError] = []
        self._open: list[tuple[int, nodes.HoleNode, list[Clause], Distribution | None]] = []
        """Holes whose ops are still to be written, with the clauses and the distributions of their strings."""

    def program(self, inputs: tuple[Input, ...]) -> Program:
        tree = self._tree
        decoder = tree.decoder
        if decoder is not None:
            self._check_header(decoder)
        if tree.distribution is not None:
            self._check_options(tree.distribution)
        prologue = tuple(map(self._let, tree.prologue))
        self.block(tree.body)
        end = Span(tree.span.name, tree.span.text, tree.span.end, tree.span.end, tree.span.first_line)
        self.ops.append(Return(end, None))
        if self.ways:
            self.aim_finals()
        self._write_holes()
        if self._problems:
            raise joined(self._problems)
        return Program(
            span=tree.span,
            ops=segmented(self.ops, prologue),
            prologue=prologue,
            decoder=decoder.name if decoder else None,
            options=tuple(
                OptionCode(argument.span, argument.name, code_of(argument.value))
                for argument in (decoder.arguments if decoder else ())
            ),
            model=OptionCode(tree.model.span, "model", code_of(tree.model)) if tree.model else None,
            holes=self._names,
            inputs=inputs,
            bound=self._bound,
            builtins=self._builtins,
        )

    # Statements --------------------------------------------------------------------------------------------------

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            try:
                if prompt := self._tree.prompt(statement):
                    self._prompt(prompt)
                elif self._tree.speaks(statement):
                    self.control(statement)
                else:
                    self.ops.append(self._let(statement))
            except (QueryError, ConstraintError) as problem:
                self._problems.append(problem)

    def span(self, node: ast.stmt | ast.expr | ast.pattern | ast.ExceptHandler) -> Span:
        return span_of(node, self._tree.span)

    def _let(self, statement: ast.stmt) -> Let:
        kinds = {type(node) for node in every_node(statement)}
        span = self.span(statement)
        if self._offers_query and kinds.intersection(get_args(Function)):
            statement = Offering().visit(copy.deepcopy(statement))
        if ast.While in kinds:
            statement = Counting().visit(copy.deepcopy(statement))
        return Let(span, compiled(ast.Module([statement], []), span))

    # Prompts -----------------------------------------------------------------------------------------------------

    def _prompt(self, prompt: nodes.PromptNode) -> None:
        if prompt.distribution is not None:
            self._check_options(prompt.distribution)
        holes = [part.name for part in prompt.parts if isinstance(part, nodes.HoleNode)]
        clauses = clauses_of_string(prompt.where, holes, self._names)
        place = 0
        text: list[str | Interpolated] = []
        for part in prompt.parts:
            match part:
                case nodes.LiteralNode(_, literal):
                    text.append(literal)
                case nodes.InterpolationNode(span, value, conversion, format):
                    text.append(Interpolated(span, code_of(value), code_of_call(CALL, value), conversion, format))
                case nodes.TagNode(span, role):
                    self._flush(prompt.span, text)
                    self.ops.append(Turn(span, role))
                case nodes.HoleNode(span, name):
                    self._flush(prompt.span, text)
                    options = [each for each in (prompt.distribution, self._tree.distribution) if each]
                    distribution = self._distribution(name, options) if options else None
                    self._open.append((len(self.ops), part, clauses[place], distribution))
                    self.ops.append(Hole(span, name))
                    place += 1
        self._flush(prompt.span, text)

    def _flush(self, span: Span, text: list[str | Interpolated]) -> None:
        if text:
            self.ops.append(PromptText(span, tuple(text)))
            text.clear()

    def _write_holes(self) -> None:
        """Write the ops of the holes, last: their clauses at the end of the query depend on all other ops."""
        where = self._tree.where
        clauses = clauses_of_query(where, self._names, self.ops) if where else {}
        for at, hole, inline, distribution in self._open:
            try:
                self.ops[at] = self._holes.hole(hole, [*inline, *clauses.get(at, ())], distribution)
            except (QueryError, ConstraintError) as problem:
                self._problems.append(problem)

    def _distribution(self, hole: str, given: Sequence[nodes.DistributionNode]) -> Distribution | None:
        """The options of a hole: those of its string, or of the clause at the end of the query."""
        own = [each for each in given if each.name == hole]
        if len(own) > 1:
            problem = f"[{hole}] has two distributions: this one, and the one at the end of the query"
            self._problems.append(QueryError(problem, span=own[0].span, hint="keep one of them"))
        return Distribution(own[0].options.span, code_of(own[0].options)) if own else None

    # Refusals ----------------------------------------------------------------------------------------------------

    def _check_header(self, decoder: nodes.DecoderNode) -> None:
        known = dict[str, Any]()
        for argument in decoder.arguments:
            problem = option_problem(argument.name, decoder.name)
            if problem is None and (value := constant(argument.value.tree.body)) is not None:
                known[argument.name] = value
                problem = value_problem(argument.name, value)
            if problem is not None:
                self._problems.append(QueryError(problem.sentence, span=argument.span, hint=problem.hint))
        if self._problems:
            return
        problem = clash(decoder_named(decoder.name), known.get("temperature"), known.get("n"))
        if problem is not None:
            self._problems.append(QueryError(problem.sentence, span=decoder.span, hint=problem.hint))

    def _check_options(self, distribution: nodes.DistributionNode) -> None:
        """Check options that are written out, before anything runs."""
        try:
            texts_of(ast.literal_eval(distribution.options.tree.body))
        except InputError as error:
            self._problems.append(QueryError(error.message, span=distribution.options.span, hint=error.hint))
        except (ValueError, TypeError):
            pass  # some Python: checked when the query runs


class Counting(ast.NodeTransformer):
    """Makes each turn of a `while` without a prompt a step of the run, so that an endless one meets the step budget.
    Functions are not changed."""

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        step = ast.copy_location(ast.Expr(ast.Call(ast.Name(STEP, ast.Load()), [], [])), node.test)
        node.body.insert(0, step)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return node


class Offering(ast.NodeTransformer):
    """Gives `@query` the meaning that it has after `from lmql_lite import query`."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: Function) -> ast.AST:
        for at, decorator in enumerate(node.decorator_list):
            if name := offers(decorator):
                package = ast.Call(ast.Name("__import__", ast.Load()), [ast.Constant("lmql_lite")], [])
                found = ast.copy_location(ast.Attribute(package, OFFERED, ast.Load()), name)
                if isinstance(decorator, ast.Call):
                    decorator.func = found
                else:
                    node.decorator_list[at] = found
        return self.generic_visit(node)
