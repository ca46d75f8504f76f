"""Walks over the trees of a query, and the names that a piece of Python binds and reads from around it."""

from __future__ import annotations

import ast
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import CONSTRAINTS, OF_LMQL

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

BINDING = (
    *(ast.Import, ast.ImportFrom, ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping),
    *(ast.Global, ast.Nonlocal),
)
"""Nodes that bind names by something other than an `ast.Name`."""

Form = Literal["value", "function", "type"]
"""Use of an input in the query."""


def identifier(written: str) -> str:
    """A name as Python stores it: other forms of the same letters are the same name."""
    return unicodedata.normalize("NFKC", str(written))


def every_statement(statements: Iterable[ast.stmt]) -> list[ast.stmt]:
    """All statements of a query in the order of the source, with those inside them, but not inside functions."""
    found: list[ast.stmt] = []
    stack: list[ast.AST] = [*statements]
    stack.reverse()
    while stack:
        node = stack.pop()
        if isinstance(node, ast.stmt):
            found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            stack += [each for each in children(node) if isinstance(each, nodes.BLOCKS)][::-1]
    return found


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes of `ast.iter_child_nodes`, in a third of its time."""
    found: list[ast.AST] = []
    fields = node.__dict__
    for name in node._fields:
        value = fields.get(name)
        if isinstance(value, ast.AST):
            found.append(value)
        elif isinstance(value, list):
            found += [each for each in value if isinstance(each, ast.AST)]
    return found


def every_node(tree: ast.AST) -> list[ast.AST]:
    """The nodes of `ast.walk`, in its order."""
    found = [tree]
    for node in found:
        found += children(node)
    return found


def reads(tree: ast.AST, name: str) -> bool:
    """True if a tree reads this name."""
    return any(isinstance(node, ast.Name) and node.id == name for node in every_node(tree))


def is_named(node: ast.expr) -> bool:
    """True if this is a name, or an attribute of one: it can be looked up without calling anything."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def words(tree: ast.AST) -> list[ast.Name]:
    """Functions of the language that a clause calls. Elsewhere such a word is an ordinary name."""
    calls = [node.func for node in every_node(tree) if isinstance(node, ast.Call)]
    return [name for name in calls if isinstance(name, ast.Name) and name.id in CONSTRAINTS]


def values(tree: ast.AST) -> list[ast.Name]:
    """Names in a clause that stand for values: all but the functions of the language that it calls."""
    found = every_node(tree)
    called = {id(node.func) for node in found if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    names = [node for node in found if isinstance(node, ast.Name)]
    return [name for name in names if id(name) not in called or name.id not in CONSTRAINTS]


@dataclass(slots=True, eq=False)
class Names:
    """Names of one scope of Python. A scope inside it adds the names that it reads from outside."""

    bound: set[str] = field(default_factory=set)
    reads: list[ast.Name] = field(default_factory=list)
    stars: list[ast.ImportFrom] = field(default_factory=list)
    """Each `from module import *`: the names that it binds are unknown."""
    outer: Names | None = None
    """The scope around; None for that of the module."""
    is_class: bool = False
    elsewhere: set[str] = field(default_factory=set)
    """Names declared `global` or `nonlocal`: bound in another scope."""
    globals: list[tuple[ast.Global, bool]] = field(default_factory=list)
    """Of the module: each `global` statement, and True if it is inside a function or a class."""

    def scan(self, trees: Iterable[ast.AST]) -> Names:
        """Add the names of these nodes."""
        stack = list(trees)[::-1]
        while stack:
            node = stack.pop()
            if isinstance(node, ast.Name):
                if isinstance(node.ctx, ast.Load):
                    self.reads.append(node)
                else:
                    self._bind(node.id)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                stack.extend(self._function(node))
            elif isinstance(node, ast.ClassDef):
                self._bind(node.name)
                stack.extend([*node.decorator_list, *node.bases, *node.keywords])
                self._inside(node.body, _type_parameters(node), is_class=True)
            elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
                stack.append(self._comprehension(node))
            else:
                if isinstance(node, BINDING):
                    self._bindings(node)
                stack += children(node)[::-1]
        return self

    @property
    def _module(self) -> Names:
        return self.outer._module if self.outer else self

    def _bind(self, name: str) -> None:
        if name not in self.elsewhere:
            self.bound.add(name)

    def _bindings(self, node: ast.AST) -> None:
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            if known := OF_LMQL.get(node.module or ""):
                for name in known:
                    self._bind(name)
            else:
                self.stars.append(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                self._bind(alias.asname or alias.name.partition(".")[0])
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            self._bind(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            self._bind(node.rest)
        elif isinstance(node, ast.Global):
            self._module.globals.append((node, self.outer is not None))
            if self.outer:
                self.elsewhere.update(node.names)
        elif isinstance(node, ast.Nonlocal):
            self.elsewhere.update(node.names)

    def _function(self, node: Function) -> list[ast.AST]:
        """Scan its body, and return its other parts, which belong to the scope around."""
        given = node.args
        parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        parameters.extend(each for each in (given.vararg, given.kwarg) if each)
        around: list[ast.AST] = [*given.defaults, *(default for default in given.kw_defaults if default)]
        around.extend(each.annotation for each in parameters if each.annotation)
        body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
        if not isinstance(node, ast.Lambda):
            self._bind(node.name)
            around.extend(node.decorator_list)
            around.extend([node.returns] if node.returns else [])
        self._inside(body, {each.arg for each in parameters} | _type_parameters(node))
        return around

    def _comprehension(self, node: Comprehension) -> ast.AST:
        """Scan a comprehension. Its first iterable is read outside, and a `:=` inside it binds outside."""
        first = node.generators[0]
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        inside: list[ast.AST] = [first.target, *first.ifs, *node.generators[1:], *results]
        for each in inside:
            for walrus in every_node(each):
                if isinstance(walrus, ast.NamedExpr):
                    self._bind(walrus.target.id)
        self._inside(inside, set())
        return first.iter

    def _inside(self, trees: Iterable[ast.AST], bound: set[str], *, is_class: bool = False) -> None:
        inner = Names(set(bound), outer=self, is_class=is_class).scan(trees)
        # Functions inside a class do not see the names that it binds.
        target = self.outer if self.is_class and not is_class and self.outer else self
        target.reads.extend(name for name in inner.reads if name.id not in inner.bound)
        self._module.stars.extend(inner.stars)


def _type_parameters(node: ast.AST) -> set[str]:
    """`def f[T](x: T)`, Python 3.12."""
    return {each.name for each in getattr(node, "type_params", ())}
