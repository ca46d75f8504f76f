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
NAMING = (
    *(ast.Name, ast.arg, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.ExceptHandler),
    *(ast.MatchAs, ast.MatchStar, ast.MatchMapping, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
"""Nodes that bind or read names, or have a scope of their own."""

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
    """Names of one scope of Python. A scope inside it adds the names that it reads from outside.

    Not Python's own `symtable`: from Python 3.12 on that counts variables of a comprehension in the scope around it.
    """

    bound: set[str] = field(default_factory=set)
    reads: list[ast.Name] = field(default_factory=list)
    stores: list[ast.Name] = field(default_factory=list)
    """Names that are assigned or deleted, of this scope alone."""
    stars: list[ast.ImportFrom] = field(default_factory=list)
    """Each `from module import *`, also of the scopes inside: the names that it binds are unknown."""
    globals: list[tuple[ast.Global, bool]] = field(default_factory=list)
    """Each `global` statement, and True if it is in a scope inside."""
    outer: Names | None = None
    """The scope around; None for that of the module."""
    is_class: bool = False
    elsewhere: set[str] = field(default_factory=set)
    """Names declared `global` or `nonlocal`: bound in another scope."""

    def scan(self, trees: Iterable[ast.AST]) -> Names:
        """Add the names of these nodes."""
        stack = list(trees)[::-1]
        while stack:
            node = stack.pop()
            if not isinstance(node, NAMING):
                stack += children(node)[::-1]
                continue
            self.bound.update(set(_binds(node)) - self.elsewhere)
            match node:
                case ast.Name(ctx=ast.Load()):
                    self.reads.append(node)
                case ast.Name():
                    self.stores.append(node)
                case ast.ImportFrom(names=[ast.alias("*")]) if not OF_LMQL.get(node.module or ""):
                    self.stars.append(node)
                case ast.Global(names) | ast.Nonlocal(names):
                    self.elsewhere.update(names if self.outer else ())
                    self.globals += [(node, False)] if isinstance(node, ast.Global) else []
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | ast.ClassDef():
                    inside = _inside(node)
                    stack += [each for each in _around(node) if each]
                    self._add(Names(outer=self, is_class=isinstance(node, ast.ClassDef)).scan(inside))
                case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                    first, *others = node.generators
                    results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                    inner = Names(outer=self).scan([first.target, *first.ifs, *others, *results])
                    # A `:=` inside it binds outside.
                    self.bound.update(each.target.id for each in every_node(node) if isinstance(each, ast.NamedExpr))
                    self._add(inner)
                    stack.append(first.iter)
                case ast.arg():  # its annotation belongs to the scope around
                    pass
                case _:
                    stack += children(node)[::-1]
        return self

    def _add(self, inner: Names) -> None:
        """Add what a scope inside reads from around it. Names that a class binds are not seen inside its functions."""
        target = self
        while target.is_class and target.outer:
            target = target.outer
        target.reads += [name for name in inner.reads if name.id not in inner.bound]
        self.stars += inner.stars
        self.globals += [(statement, True) for statement, _ in inner.globals]


def _binds(node: ast.AST) -> Iterable[str]:
    """Names that a node binds in its scope, without those of the nodes inside it."""
    match node:
        case ast.Name(name, ast.Store() | ast.Del()) | ast.arg(name):
            return (name,)
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            return (name,)
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(str(name)):
            return (name,)
        case ast.MatchMapping(rest=str(name)):
            return (name,)
        case ast.ImportFrom(module, [ast.alias("*")]):
            return OF_LMQL.get(module or "", ())
        case ast.Import(aliases) | ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name.partition(".")[0] for alias in aliases]
    return ()


def _parameters(node: Function) -> list[ast.arg]:
    given = node.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [each for each in every if each]


def _around(node: Function | ast.ClassDef) -> list[ast.AST | None]:
    """Parts of a function or a class that are read in the scope around it."""
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases, *node.keywords]
    found: list[ast.AST | None] = [*node.args.defaults, *node.args.kw_defaults]
    if not isinstance(node, ast.Lambda):
        found += [*(each.annotation for each in _parameters(node)), *node.decorator_list, node.returns]
    return found


def _inside(node: Function | ast.ClassDef) -> list[ast.AST]:
    """Parts in a scope of their own: parameters, `def f[T](x: T)` of Python 3.12, and the body."""
    types = [ast.arg(each.name) for each in getattr(node, "type_params", ())]
    parameters = [] if isinstance(node, ast.ClassDef) else _parameters(node)
    return [*types, *parameters, *([node.body] if isinstance(node, ast.Lambda) else node.body)]
