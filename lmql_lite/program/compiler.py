"""From a query to its program: the code of a coroutine that awaits the parts of the query's prompts.

Prompts are swapped for awaits; all other statements stay Python's own, at their places in the source.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import CO_ASYNC_GENERATOR
from types import CodeType
from typing import Any, NamedTuple, get_args

from lmql_lite.errors import ConstraintError, InputError, QueryError, Span, joined
from lmql_lite.lang import nodes
from lmql_lite.lang.docstrings import OFFERED, Function, moved, offers
from lmql_lite.lang.keywords import OF_LMQL
from lmql_lite.lang.names import every_node
from lmql_lite.lang.scope import Scope, check
from lmql_lite.lang.source import span_of
from lmql_lite.options import clash, decoder_named, option_problem, value_problem
from lmql_lite.program.bytecode import (
    code_of,
    codes_of,
    compiled,
    constant,
    names_of,
    names_read_later,
)
from lmql_lite.program.flow import Flow, Point
from lmql_lite.program.holes import Holes, clauses_of_query, clauses_of_string
from lmql_lite.program.ops import (
    CALL,
    FRAME,
    REFLECTION,
    STEP,
    Distribution,
    Hole,
    Input,
    Interpolated,
    OptionCode,
    Part,
    Program,
    PromptText,
    Snippet,
    Turn,
)
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


class Compiler:
    def __init__(self, tree: nodes.QueryNode, scope: Scope) -> None:
        self._tree = tree
        self._names = scope.holes
        self._offers_query = bool(scope.queries) and OFFERED not in scope.locals
        self._bound = scope.locals.union(scope.holes)
        self._builtins = scope.builtin_values
        self._holes = Holes(self._bound, self._bound.union(free.name for free in scope.inputs))
        self._problems: list[QueryError | ConstraintError] = []
        self._python: list[Snippet] = []
        self._own = 0
        """Number of statements before the header."""
        self._reads: dict[int, set[str]] = {}
        """Names that the values in a text read, by the number of the text."""
        self._parts: list[Part] = []
        self._numbers: dict[nodes.Place, range] = {}
        """Numbers of the parts of each prompt."""
        self._runs: list[int] = []
        """For each part, the number of its run of prompts that follow one another."""
        self._run = 0
        self._open: list[OpenNode] = []
        """Holes whose parts are still to be written."""
        self._guards: list[Around] = []
        """The blocks around the current statement."""
        self._return_spans: list[Span] = []

    def program(self, inputs: tuple[Input, ...]) -> Program:
        tree = self._tree
        decoder = tree.decoder
        if decoder is not None:
            self._check_header(decoder)
        if tree.distribution is not None:
            self._check_options(tree.distribution)
        prologue = tuple([self._snippet(self._plain(statement)) for statement in tree.prologue])
        self._problems += self._python_problems()
        self._own = len(self._python)
        body = self._block(tree.body)
        flow = Flow(self._parts_of, tree.speaks, frozenset(each.number for each in self._open))
        flow.block(tree.body, Point())
        self._write_holes(flow)
        code = self._code(body)
        if code is None or self._problems:
            raise joined(self._problems)
        self._mark_segments(flow, code)
        points = [flow.points[number] for number in range(len(self._parts))]
        return Program(
            span=tree.span,
            code=code,
            parts=tuple(self._parts),
            onward=tuple(point.onward[0].part for point in points),
            asks_later=tuple(not flow.asks.isdisjoint(map(id, point.onward)) for point in points),
            python=tuple(self._python[self._own :]),
            returns=bool(self._return_spans),
            return_spans=tuple(self._return_spans),
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

    def _code(self, body: list[ast.stmt]) -> CodeType | None:
        """Code of an async function, the query. All names that it assigns are global: they are the variables of the
        run."""
        module = ast.parse("async def query(): pass")
        (function,) = module.body
        assert isinstance(function, ast.AsyncFunctionDef)
        shared = [ast.Global(sorted(self._bound))] if self._bound else []
        function.name, function.body = "<module>", [*shared, *body]  # the name that a traceback shows
        try:
            found = compiled(module, self._tree.span)
        except QueryError as problem:
            self._problems += self._python_problems() or [problem]
            return None
        (code,) = [each for each in found.co_consts if isinstance(each, CodeType)]
        if code.co_flags & CO_ASYNC_GENERATOR:  # a `yield`, which is refused in a query
            self._problems += self._python_problems()
        return code

    def _python_problems(self) -> list[QueryError]:
        """Why snippets of the query's Python cannot be compiled, each at its place."""
        found: list[QueryError] = []
        for snippet in self._python[self._own :]:
            try:
                snippet.code  # noqa: B018
            except QueryError as problem:
                found.append(problem)
        return found

    def _parts_of(self, statement: ast.stmt) -> range | None:
        return self._numbers.get((statement.lineno, statement.col_offset)) if isinstance(statement, ast.Expr) else None

    # Statements --------------------------------------------------------------------------------------------------

    def _block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements, each prompt as a row of questions to the branch."""
        written: list[ast.stmt] = []
        self._run += 1
        for statement in statements:
            try:
                if prompt := self._tree.prompt(statement):
                    written += self._prompt(prompt, statement)
                    continue
                self._run += 1
                if self._tree.speaks(statement):
                    written.append(self._control(statement))
                else:
                    written.append(self._plain(statement))
                    self._snippet(written[-1])
            except (QueryError, ConstraintError) as problem:
                self._problems.append(problem)
        self._run += 1
        return written or [ast.Pass()]

    def _span(self, node: ast.stmt | ast.expr | ast.excepthandler | ast.pattern) -> Span:
        return span_of(node, self._tree.span)

    def _snippet(self, tree: ast.stmt | ast.expr, span: Span | None = None) -> Snippet:
        """A snippet of the query's Python."""
        code = ast.Module([tree], []) if isinstance(tree, ast.stmt) else tree
        self._python.append(Snippet(span or self._span(tree), code))
        return self._python[-1]

    def _plain(self, statement: ast.stmt) -> ast.stmt:
        """A statement without prompts, with what the run needs to know of it."""
        kinds = {type(node) for node in every_node(statement)}
        if self._offers_query and kinds.intersection(get_args(Function)):
            statement = Offering().visit(copy.deepcopy(statement))
        if kinds & {ast.While, ast.Await, ast.AnnAssign, ast.ImportFrom}:
            statement = Watched().visit(copy.deepcopy(statement))
        return statement

    def _read(self, node: ast.expr) -> ast.expr:
        """An expression beside prompts; an awaitable is awaited."""
        self._snippet(node)
        node = watched(node)
        return asked("value", node, node) if isinstance(node, MAY_BE_AWAITABLE) else node

    def _control(self, statement: ast.stmt) -> ast.stmt:
        """A statement that speaks."""
        match statement:
            case ast.If(test, body, orelse):
                new: ast.stmt = ast.If(self._read(test), self._block(body), self._block(orelse) if orelse else [])
            case ast.While() | ast.For() | ast.AsyncFor():
                new = self._loop(statement)
            case ast.With(items, body) | ast.AsyncWith(items, body):
                is_async = isinstance(statement, ast.AsyncWith)
                entered = [self._manager(item, is_async=is_async) for item in items]
                with self._within(guards=True, last_words=True):
                    new = type(statement)(entered, self._block(body))
            case ast.Try():
                new = self._try(statement)
            case ast.TryStar():
                raise QueryError(
                    "no prompt, `return` or loop's `break` can stand in a `try` with `except*`",
                    span=self._span(statement.handlers[0]),
                    hint="catch the group with `except`, or move the `try` into a function",
                )
            case ast.Match(subject, cases):
                self._snippet(subject)
                chosen = [
                    ast.match_case(each.pattern, each.guard and watched(each.guard), self._block(each.body))
                    for each in cases
                ]
                new = ast.Match(watched(subject), chosen)
            case ast.Return(value):
                if value:
                    self._return_spans.append(self._span(statement))
                new = ast.Return(ast.Tuple([self._read(value)] if value else [], ast.Load()))
            case _:
                new = statement
        return ast.copy_location(new, statement)

    def _loop(self, loop: ast.While | ast.For | ast.AsyncFor) -> ast.stmt:
        if isinstance(loop, ast.While):
            test = self._read(loop.test)
        else:
            iterable = self._read(loop.iter)
        body = [step(loop), *self._block(loop.body)]
        orelse = self._block(loop.orelse) if loop.orelse else []
        if isinstance(loop, ast.While):
            return ast.While(test, body, orelse)
        return type(loop)(loop.target, iterable, body, orelse)

    def _manager(self, item: ast.withitem, *, is_async: bool) -> ast.withitem:
        manager, target = item.context_expr, item.optional_vars
        span = self._span(manager).to(self._span(target)) if target else self._span(manager)
        self._snippet(manager, span)
        number = ast.Constant(len(self._python) - 1 - self._own)
        return ast.withitem(asked("manager", manager, number, ast.Constant(is_async), watched(manager)), target)

    def _try(self, block: ast.Try) -> ast.stmt:
        with self._within(last_words=bool(block.finalbody)):
            with self._within(guards=bool(block.handlers)):
                body = self._block(block.body)
            handlers = [unless_final(block)] if block.handlers else []
            for handler in block.handlers:
                if handler.type:
                    self._snippet(handler.type)
                inside = self._block(handler.body)
                handlers.append(ast.copy_location(ast.ExceptHandler(handler.type, handler.name, inside), handler))
            orelse = self._block(block.orelse) if block.orelse else []
        final = self._block(block.finalbody) if block.finalbody else []
        return ast.Try(body, handlers, orelse, final)

    @contextmanager
    def _within(self, *, guards: bool = False, last_words: bool = False) -> Iterator[None]:
        self._guards.append(Around(guards, last_words))
        yield
        self._guards.pop()

    # Prompts -----------------------------------------------------------------------------------------------------

    def _prompt(self, prompt: nodes.PromptNode, statement: ast.stmt) -> list[ast.stmt]:
        """The prompt as statements, each of which asks for one part."""
        if prompt.distribution is not None:
            self._check_options(prompt.distribution)
        holes = [part.name for part in prompt.parts if isinstance(part, nodes.HoleNode)]
        clauses = iter(clauses_of_string(prompt.where, holes, self._names))
        first, written = len(self._parts), list[ast.stmt]()

        def add(part: Part, *values: ast.expr) -> None:
            self._parts.append(part)
            self._runs.append(self._run)
            call = asked("ask", statement, ast.Constant(len(self._parts) - 1), *values)
            written.append(ast.copy_location(ast.Expr(call), statement))

        text: list[str | Interpolated] = []
        values: list[ast.expr] = []

        def flush() -> None:
            if text:
                add(PromptText(prompt.span, tuple(text)), *values)
                text.clear()
                values.clear()

        for part in prompt.parts:
            match part:
                case nodes.LiteralNode(_, literal):
                    text.append(literal)
                case nodes.InterpolationNode(span, value, conversion, format):
                    node = value.tree.body
                    self._snippet(node, span)
                    self._reads.setdefault(len(self._parts), set()).update(mentioned(node))
                    place = ast.Constant(len(self._parts)), ast.Constant(len(text))
                    awaited = node.value if isinstance(node, ast.Await) else node  # `shown` awaits it
                    values.append(asked("shown", node, *place, watched(awaited)))
                    text.append(Interpolated(span, conversion, format))
                case nodes.TagNode(span, role):
                    flush()
                    add(Turn(span, role))
                case nodes.HoleNode(span, name):
                    flush()
                    options = [each for each in (prompt.distribution, self._tree.distribution) if each]
                    distribution = self._distribution(name, options) if options else None
                    guards = any(guard.guards for guard in self._guards)
                    last_words = any(guard.last_words for guard in self._guards)
                    number = len(self._parts)
                    self._open.append(OpenNode(number, part, next(clauses), distribution, guards, last_words))
                    add(Hole(span, name))
        flush()
        self._numbers[statement.lineno, statement.col_offset] = range(first, len(self._parts))
        return written

    def _write_holes(self, flow: Flow) -> None:
        """Write the holes, last: their clauses at the end of the query depend on the whole flow."""
        where = self._tree.where
        names = {each.number: each.node.name for each in self._open if each.number in flow.points}
        clauses = clauses_of_query(where, self._names, names, flow.points) if where else {}
        for each in self._open:
            try:
                of_query = clauses.get(each.number, ())
                hole = self._holes.hole(each.node, [*each.clauses, *of_query], each.distribution)
            except (QueryError, ConstraintError) as problem:
                self._problems.append(problem)
                continue
            self._parts[each.number] = replace(hole, is_guarded=each.is_guarded, has_last_words=each.has_last_words)

    def _mark_segments(self, flow: Flow, code: CodeType) -> None:
        """Mark each hole that continues the segment of the one before it (S16), with the text that always follows.

        Between the two is only text that is known when the segment starts: no statement and no value of a hole of the
        segment. A hole that Python judges begins a new segment, and so does the hole after it.
        """
        above = [names_read_later(each.code) for each in self._python[: self._own]]
        later = names_read_later(code).union(*above)
        segment: set[str] = set()
        run = 0
        for number, part in enumerate(self._parts):
            if self._runs[number] != run or isinstance(part, Turn):
                segment = set()
            run = self._runs[number]
            read = self._reads.get(number, set()) if isinstance(part, PromptText) else _read_by(part)
            if read:  # a called function of the query may read the same names
                read = read | later
            if read & (segment | REFLECTION):
                segment = set()
            if isinstance(part, Hole):
                joins = bool(segment) and not part.stands_alone
                following = self._following(flow.points[number])
                self._parts[number] = replace(
                    part, continues_segment=joins, following=following.encode("utf-8", "replace")
                )
                segment = set() if part.stands_alone else {*segment, part.name} if joins else {part.name}

    def _following(self, point: Point) -> str:
        """The literal text that always comes after a point."""
        said, seen = "", set[int]()
        is_known = True
        while True:
            point = point.onward[0]
            part = self._parts[point.part] if point.part is not None else None
            if not isinstance(part, PromptText) or id(point) in seen:
                return said
            seen.add(id(point))
            for each in part.parts:
                is_known = is_known and isinstance(each, str)
                said += each if isinstance(each, str) and is_known else ""

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
        problem = clash(decoder_named(decoder.name), known)
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


@dataclass(frozen=True, slots=True)
class OpenNode:
    """A hole whose part is not written yet, with the clauses and the distribution of its string."""

    number: int
    node: nodes.HoleNode
    clauses: list[Clause]
    distribution: Distribution | None
    is_guarded: bool
    has_last_words: bool


class Around(NamedTuple):
    """A block around a statement: it `guards` if it may handle an exception, and has `last_words` if it runs in any
    case at its end."""

    guards: bool
    last_words: bool


MAY_BE_AWAITABLE = (
    ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Await, ast.IfExp, ast.BoolOp, ast.NamedExpr, ast.BinOp,
)  # fmt: skip
"""Expressions whose value may be awaitable."""


def asked(method: str, place: ast.AST, *values: ast.expr) -> ast.expr:
    """`await frame.method(values)`, as if it stood in that place, so that a traceback shows it."""
    call = ast.Call(ast.Attribute(ast.Name(FRAME, ast.Load()), method, ast.Load()), list(values), [])
    return ast.copy_location(ast.Await(ast.copy_location(call, place)), place)


def step(loop: ast.While | ast.For | ast.AsyncFor) -> ast.stmt:
    """A call of STEP."""
    place = loop.test if isinstance(loop, ast.While) else loop.iter
    return ast.copy_location(ast.Expr(ast.Call(ast.Name(STEP, ast.Load()), [], [])), place)


def unless_final(block: ast.Try) -> ast.ExceptHandler:
    """The first handler of a `try`: it raises again what no handler of the query may catch."""
    final = ast.Call(ast.Attribute(ast.Name(FRAME, ast.Load()), "final", ast.Load()), [], [])
    return ast.copy_location(ast.ExceptHandler(final, None, [ast.Raise()]), block)


def mentioned(node: ast.expr) -> set[str]:
    """Every name in an expression, and every attribute."""
    nodes = every_node(node)
    names = {each.id for each in nodes if isinstance(each, ast.Name)}
    return names.union(each.attr for each in nodes if isinstance(each, ast.Attribute))


def _read_by(part: Part) -> set[str]:
    """Names that the Python of a hole reads."""
    return {name for code in codes_of(part) for name in names_of(code)} - {CALL}


class Watched(ast.NodeTransformer):
    """Python of a query, outside its functions, with what the run must see: each turn of a `while` is a step, so that
    an endless loop meets the step budget, and the answer of each `await` is kept for forks.

    What a function of Python refuses is written otherwise: `import *`, and annotated names that are global.
    """

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        node.body.insert(0, step(node))
        return node

    def visit_Await(self, node: ast.Await) -> ast.AST:
        self.generic_visit(node)
        return asked("answer", node, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        node.simple = 0
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.names[0].name == "*":
            node.names = [ast.alias(name) for name in OF_LMQL.get(node.module or "", ())]
        return node if node.names else ast.copy_location(ast.Pass(), node)

    def _as_it_is(self, node: ast.AST) -> ast.AST:
        return node

    visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = visit_GeneratorExp = _as_it_is


def watched(node: ast.expr) -> ast.expr:
    """An expression with what the run must see; a copy, if that is anything."""
    if not any(isinstance(each, ast.Await) for each in every_node(node)):
        return node
    seen: ast.expr = Watched().visit(copy.deepcopy(node))
    return seen


class Offering(ast.NodeTransformer):
    """Gives `@query` the meaning that it has after `from lmql_lite import query`."""

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

    visit_FunctionDef = visit_AsyncFunctionDef = _function
