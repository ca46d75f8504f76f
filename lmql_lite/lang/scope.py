"""Names of a query: its holes, inputs and variables, and a check that its clauses name holes that exist."""

from __future__ import annotations

import ast
import builtins
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from lmql_lite.errors import QueryError, Span, did_you_mean
from lmql_lite.lang import nodes
from lmql_lite.lang.docstrings import Embedded, FreeName, moved, offers, read
from lmql_lite.lang.keywords import (
    CONSTRAINTS,
    CONTEXT,
    DATES,
    DECODERS,
    MEDIA,
    NOT_OF_LMQL,
    OF_LMQL,
    PROVIDED,
    STOPS,
    TYPES,
)
from lmql_lite.lang.names import Form, Names, every_node, values, words
from lmql_lite.lang.prompt import PROMPTING
from lmql_lite.lang.source import Problems, span_of

BUILTINS = frozenset(dir(builtins))
CALLED = re.compile(r"[ \t]*\(")
HOLE = re.compile(r"(?<!\[)(?:\[\[)*(\[[^\W\d]\w*\])")
"""A hole in a string that Python has read."""


@dataclass(frozen=True, slots=True)
class Scope:
    holes: tuple[str, ...]
    """In the order of their first place in the source."""
    inputs: tuple[FreeName, ...]
    """Names that the caller must pass, in the order of their first use."""
    locals: frozenset[str]
    """Names that the query's own Python binds. A hole may be one of them, too."""
    builtins: frozenset[str]
    """Python's built-in names that the query uses and does not bind."""
    builtin_values: frozenset[str]
    """Those of them that it reads as values and not only calls: `{id}` may be meant as an input."""
    constraints: frozenset[str]
    """Constraint functions that its `where` clauses use."""
    queries: tuple[tuple[Embedded, Scope], ...] = ()
    """Its functions that are queries."""


def check(query: nodes.QueryNode) -> Scope:
    """Names of a query. Raises one QueryError with every clause that names no hole and every unknown function."""
    problems = Problems()
    scope = _Check(query, problems).scope()
    problems.raise_any()
    return scope


class _Check:
    def __init__(self, query: nodes.QueryNode, problems: Problems) -> None:
        self.query = query
        self.problems = problems
        self.prompts = list(query.prompts.values())
        self.statements = [*query.prologue, *query.body]
        self.holes_of = [[part for part in each.parts if isinstance(part, nodes.HoleNode)] for each in self.prompts]
        every = [hole for holes in self.holes_of for hole in holes]
        self.holes = dict.fromkeys([hole.name for hole in every])
        wheres = [prompt.where for prompt in self.prompts]
        self.wheres = [where for where in [*wheres, query.where] if where]
        self.words = [name for where in self.wheres for name in words(where.tree)]
        """The functions of the language that they call."""
        self.trees: list[ast.AST] = [*self.statements, *(tree for prompt in self.prompts for tree in python_of(prompt))]
        """All Python of the query except its `where` clauses and the annotations of its holes."""
        self.trees += [argument.value.tree for argument in query.decoder.arguments] if query.decoder else []
        self.trees += [query.model.tree] if query.model else []
        self.trees += [query.distribution.options.tree] if query.distribution else []
        self.names = Names().scan(self.trees)
        self.clauses = Names().scan([where.tree for where in self.wheres])
        self.annotations = Names().scan([hole.annotation.tree for hole in every if hole.annotation])
        self.bound = self.names.bound | self.clauses.bound | self.annotations.bound
        self.known = self.bound.union(self.holes, BUILTINS, PROVIDED)
        self.constraints = set(CONSTRAINTS) - self.bound
        self.nodes = [node for statement in self.statements for node in every_node(statement)]
        self.queries = [*read(self.nodes, query.span, problems)]
        self.inner = [(each, scope) for each in self.queries if (scope := self._inner(each))]

    def scope(self) -> Scope:
        for star in self.names.stars:
            hint = "import the names that are used"
            self.problems.add("'import *' hides which names the query needs", self._span(star), hint)
        self._functions()
        self._imports()
        self._globals()
        for where in self.wheres:
            self._where(where)
        for prompt, holes in zip(self.prompts, self.holes_of, strict=True):
            if prompt.where:
                self._mentions(prompt.where, [hole.name for hole in holes], "its string")
            if prompt.distribution:
                self._distribution(prompt.distribution, holes)
        if self.query.where:
            self._mentions(self.query.where, list(self.holes), "the query")
        if self.query.distribution:
            self._distribution(self.query.distribution, [hole for holes in self.holes_of for hole in holes])
        reads = self._reads()
        own = self.bound | self.holes.keys()
        context = {id(name) for name in reads if name.id == "context"}
        if context and "context" not in own:
            self._context(context)
        free = [name for name in reads if name.id not in own and name.id not in PROVIDED]
        values = {name.id for name in free if not self._is_called(name)}
        free = [name for name in free if name.id not in MEDIA or name.id in values]
        first: dict[str, FreeName] = {}
        for name in free:
            if name.id not in BUILTINS:
                first.setdefault(name.id, FreeName(name.id, self._span(name), self._form(name)))
        return Scope(
            tuple(self.holes),
            tuple(first.values()),
            frozenset(self.bound),
            frozenset([name.id for name in free if name.id in BUILTINS]),
            frozenset(values & BUILTINS),
            frozenset([name.id for name in self.words if name.id in self.constraints]),
            tuple(self.inner),
        )

    def _span(self, node: ast.expr | ast.stmt) -> Span:
        return span_of(node, self.query.span)

    def _form(self, name: ast.Name) -> Form:
        if any(name is each for each in self.annotations.reads):
            return "type"
        return "function" if self._is_called(name) else "value"

    def _is_called(self, name: ast.Name) -> bool:
        span = self._span(name)
        return CALLED.match(span.text, span.end) is not None

    def _context(self, own: set[int]) -> None:
        """Check the attributes of the run's own `context`; `own` are the names that mean it."""
        trees = [*self.trees, *(where.tree for where in self.wheres)]
        for node in (node for tree in trees for node in every_node(tree)):
            match node:
                case ast.Attribute(ast.Name() as name, attribute) if id(name) in own and attribute not in CONTEXT:
                    hint = f"it has {' and '.join(CONTEXT)}; result.usage counts calls and tokens"
                    self.problems.add(f"context has no '{attribute}'", self._span(node), hint)
        for prompt in self.prompts:
            for part in prompt.parts:
                if isinstance(part, nodes.InterpolationNode) and id(part.value.tree.body) in own:
                    hint = "write {context.prompt} for the text so far, or give the input another name"
                    self.problems.add("'context' is the run's own object, not a text", part.span, hint)

    def _functions(self) -> None:
        """Report strings in functions that look like prompts: a function is Python, and they do nothing."""
        for function in self.nodes:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for string in _strings(function):
                    if hole := HOLE.search(str(string.value)):
                        hint = "prompt outside of it, or make it a query: @query, and the query as its docstring"
                        message = f"nothing fills {hole.group(1)} inside a function"
                        self.problems.add(message, self._span(string), hint)

    def _imports(self) -> None:
        """Report imports of what LMQL's modules lack here. `lmql` itself is this package."""
        names = [f"{module}.{name}" for module, names in OF_LMQL.items() for name in names]
        for node in self.nodes:
            match node:
                case ast.Import(aliases):
                    asked, known = [each.name for each in aliases], [*OF_LMQL]
                case ast.ImportFrom(str(module), aliases, 0) if module != "lmql":
                    asked, known = [f"{module}.{each.name}".removesuffix(".*") for each in aliases], [*OF_LMQL, *names]
                case _:
                    continue
            for name in asked:
                if name.startswith("lmql.") and name not in known:
                    hint = NOT_OF_LMQL.get(name.split(".")[1]) or did_you_mean(name, known)
                    self.problems.add(f"{name} is not here", self._span(node), hint)

    def _globals(self) -> None:
        """Report `global` for names that the query does not assign: those of a module are out of its reach."""
        hint = "to change a variable of the module, call a function of the module that does"
        for statement, is_inside in self.names.globals:
            span = self._span(statement)
            if not is_inside:
                message = "'global' can stand only inside a function, and a query is not a function"
                self.problems.add(message, span, hint)
                continue
            for name in statement.names:
                if name not in self.bound and name not in self.holes:
                    message = f"'global' names a variable of the query, and the query assigns no '{name}'"
                    self.problems.add(message, span, f"assign it before the function: {name} = ...; {hint}")

    def _inner(self, query: Embedded) -> Scope | None:
        """The names of a query inside this one."""
        try:
            return check(query.tree)
        except QueryError as error:
            for problem in error.problems:
                self.problems.add(problem.message, moved(problem.span, query.place), problem.hint)
        return None

    def _reads(self) -> list[ast.Name]:
        """Every name that is read as a value, in source order."""
        reads = list(self.names.reads)
        called = {id(name) for name in self.words}
        offered = set(DATES) - {name.id for name in reads}
        for name in self.clauses.reads:
            if (id(name) not in called or name.id in self.bound) and name.id not in offered:
                reads.append(name)
        reads += [name for name in self.annotations.reads if name.id not in TYPES or name.id in self.bound]
        decorators = {id(name) for each in self.queries for name in map(offers, each.function.decorator_list)}
        reads = [name for name in reads if id(name) not in decorators]
        for query, scope in self.inner:
            reads += query.reads(scope.inputs)
        return sorted(reads, key=attrgetter("lineno", "col_offset"))

    # Clauses -----------------------------------------------------------------------------------------------------

    def _where(self, where: nodes.Expression) -> None:
        for node in every_node(where.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                self._call(node, node.func)
            elif isinstance(node, ast.NamedExpr) and node.target.id in self.holes:
                self.problems.add("':=' gives a value and compares nothing", self._span(node), "write == to compare")
        for name in values(where.tree):
            # `len(JOEK) < 9` reads an input called JOEK, or so it seems
            if name.id.isupper() and name.id not in self.known and self._close(name.id):
                self._no_hole(name.id, self._span(name))

    def _call(self, call: ast.Call, function: ast.Name) -> None:
        name = function.id
        if name in self.constraints:
            first = call.args[0] if call.args else None
            if first is None:
                self.problems.add(f"'{name}' names no hole", self._span(call), f"write {name}(HOLE, ...)")
            elif not isinstance(first, ast.Name):
                hint = "put the hole's name first"
                self.problems.add(f"'{name}' begins with the name of a hole", self._span(first), hint)
            elif first.id not in self.holes:
                self._no_hole(first.id, self._span(first))
        elif name.isupper() and len(name) > 1 and name not in self.known:
            close = difflib.get_close_matches(name, CONSTRAINTS, 1)
            hint = f"there are {', '.join(CONSTRAINTS)}"
            message = f"no constraint is called '{name}'{_meant(close)}"
            self.problems.add(message, self._span(function), None if close else hint)
        elif name not in self.known and (close := difflib.get_close_matches(name.upper(), STOPS, 1, 0.85)):
            # a name in small letters is an input, which may be a function, but hardly this one
            hint = "the words of the language are written in capitals"
            self.problems.add(f"no constraint is called '{name}'{_meant(close)}", self._span(function), hint)

    def _no_hole(self, name: str, span: Span) -> None:
        close = self._close(name)
        known = f"the holes are {', '.join(self.holes)}" if self.holes else "write a hole: [NAME]"
        hint = f"'{name}' is a variable; {known}" if name in self.bound else known
        self.problems.add(f"no hole is called '{name}'", span, f"did you mean '{close}'?" if close else hint)

    def _close(self, name: str) -> str | None:
        """A hole with this name in another case or with a typing mistake."""
        by_case = {hole.casefold(): hole for hole in self.holes}
        close = difflib.get_close_matches(name.casefold(), by_case, 1, 0.7)
        return by_case[close[0]] if close else None

    def _mentions(self, where: nodes.Expression, holes: list[str], whose: str) -> None:
        if not holes:
            message = f"this 'where' has nothing to constrain: there is no hole in {whose}"
            self.problems.add(message, where.span, "write a hole: [NAME]")
        elif not any(name.id in holes for name in values(where.tree)):
            hint = f"{'its holes are' if len(holes) > 1 else 'its hole is'} {', '.join(dict.fromkeys(holes))}"
            self.problems.add(f"this 'where' uses no hole of {whose}", where.span, hint)

    def _distribution(self, distribution: nodes.DistributionNode, holes: list[nodes.HoleNode]) -> None:
        name = distribution.name
        if any(hole.name == name for hole in holes):
            return
        first = max(distribution.span.source.find(name, len("distribution")), 0)  # its letters may have other forms
        start = distribution.span.start + first
        span = distribution.span.at(start, start + len(name))
        if name in self.holes:
            hint = f"write [{name}] into it"
            self.problems.add(f"the string of this distribution has no hole '{name}'", span, hint)
        else:
            self._no_hole(name, span)


def _meant(close: list[str]) -> str:
    return f"; did you mean '{close[0]}'?" if close else ""


def _strings(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Iterator[ast.Constant]:
    """Strings that stand alone in it, without its docstring and those of functions inside it.

    If its only statement is a string, that is meant as a prompt, unless a decorator may read it.
    """
    docstring: ast.stmt | None = function.body[0]
    if len(function.body) == 1 and not function.decorator_list and PROMPTING.search(ast.get_docstring(function) or ""):
        docstring = None
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) and node is not docstring:
                yield node.value
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            stack.extend(ast.iter_child_nodes(node))


def python_of(prompt: nodes.PromptNode) -> list[ast.AST]:
    """The Python of a prompt but for its `where` and the types of its holes."""
    found: list[ast.AST] = []
    for part in prompt.parts:
        if isinstance(part, nodes.InterpolationNode):
            found.append(part.value.tree)
        elif isinstance(part, nodes.HoleNode):
            found += [decorator.tree for decorator in part.decorators]
            found += _call_trees(part.call.tree.body) if part.call else []
    return found + ([prompt.distribution.options.tree] if prompt.distribution else [])


def _call_trees(call: ast.expr) -> Iterator[ast.AST]:
    """`sample(temperature=x)` before a hole reads x; `sample` itself is a word of the language there."""
    function = call.func if isinstance(call, ast.Call) else call
    if not (isinstance(function, ast.Name) and function.id.lower() in DECODERS):
        yield call
    elif isinstance(call, ast.Call):
        yield from (*call.args, *(keyword.value for keyword in call.keywords))
