"""`with`, `try` and `match`: their heads are Python, and a prompt may stand in what is below them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from lmql_lite.errors import Span
from lmql_lite.lang import nodes
from lmql_lite.lang.grammars import extent
from lmql_lite.lang.problems import Problems
from lmql_lite.lang.python import Python
from lmql_lite.lang.source import Source

if TYPE_CHECKING:
    from lark import Token, Tree

    Branch = Tree[Token]
    Child = Branch | Token | None
    Suite = Callable[[Child], tuple[nodes.Statement, ...]]


class Blocks:
    """Builds these statements. A head that Python cannot read became a problem, and its statement is left out."""

    def __init__(self, source: Source, python: Python, problems: Problems) -> None:
        self.source = source
        self.python = python
        self.problems = problems

    def statement(self, tree: Branch, suite: Suite) -> nodes.Statement | None:
        match str(tree.data):
            case "with":
                return self._with(tree, suite)
            case "try":
                return self._try(tree, suite)
        return self._match(tree, suite)

    def _with(self, tree: Branch, suite: Suite) -> nodes.With | None:
        head, inner = tree.children
        statement = self.python.head(self._span(head), "", ": pass")
        body = suite(inner)
        if not isinstance(statement, ast.With | ast.AsyncWith):
            return None
        items = tuple(self._item(item) for item in statement.items)
        return nodes.With(self._span(tree), items, body, isinstance(statement, ast.AsyncWith))

    def _item(self, item: ast.withitem) -> nodes.Item:
        manager, target = self._expression(item.context_expr), item.optional_vars
        span = manager.span.to(self.python.span(target)) if target else manager.span
        return nodes.Item(span, manager, target)

    def _try(self, tree: Branch, suite: Suite) -> nodes.Try | None:
        first, inner, *clauses = tree.children
        body = suite(inner)
        read: list[tuple[nodes.Handler, bool]] = []
        orelse: tuple[nodes.Statement, ...] = ()
        final: tuple[nodes.Statement, ...] = ()
        sound, many = True, 0
        for clause in clauses:
            if clause is None:
                continue
            assert not isinstance(clause, str)
            below = suite(clause.children[1])
            if clause.data == "else":
                orelse = below
            elif clause.data == "finally":
                final = below
            else:
                many += 1
                found = self._handler(clause, below)
                sound = sound and found is not None
                read.extend([found] if found else [])
        if not many and not any(each is not None and getattr(each, "data", "") == "finally" for each in clauses):
            self.problems.add("this 'try' has neither 'except' nor 'finally'", self._span(first), None)
        handlers = tuple(handler for handler, _ in read)
        of_groups = [is_star for _, is_star in read]
        for handler in handlers[:-1]:
            if handler.type is None:
                self.problems.add("an 'except' without a type is the last one", self._head(handler.span), None)
        if len(set(of_groups)) > 1:
            place = handlers[of_groups.index(not of_groups[0])].span
            self.problems.add("'except' and 'except*' cannot stand under one 'try'", self._head(place), None)
        return nodes.Try(self._span(tree), body, handlers, orelse, final, any(of_groups)) if sound else None

    def _handler(self, tree: Branch, body: tuple[nodes.Statement, ...]) -> tuple[nodes.Handler, bool] | None:
        """With whether it is an `except*`."""
        statement = self.python.head(self._span(tree.children[0]), "try: pass\n", ": pass")
        if not isinstance(statement, ast.Try | ast.TryStar):
            return None
        (read,) = statement.handlers
        type = self._expression(read.type) if read.type else None
        return nodes.Handler(self._span(tree), type, read.name, body), isinstance(statement, ast.TryStar)

    def _match(self, tree: Branch, suite: Suite) -> nodes.Match | None:
        head, *branches = tree.children
        statement = self.python.head(self._span(head), "", ":\n case _: pass")
        cases = []
        sound = True
        for branch in branches:
            if branch is None or isinstance(branch, str):
                continue
            case = self._case(branch, suite)
            sound = sound and case is not None
            cases.extend([case] if case else [])
        for case in cases[:-1]:
            if case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None:
                span = self.source.span(case.span.start, case.span.start + len("case"))
                self.problems.add("this 'case' takes whatever is left, and others follow", span, "put it last")
        if not isinstance(statement, ast.Match) or not sound:
            return None
        return nodes.Match(self._span(tree), self._expression(statement.subject), tuple(cases))

    def _case(self, tree: Branch, suite: Suite) -> nodes.Case | None:
        head, inner = tree.children
        span = self._span(head)
        statement = self.python.head(span, "match x:\n ", ": pass") if span.source else None
        body = suite(inner)
        if not isinstance(statement, ast.Match):
            return None
        (read,) = statement.cases
        return nodes.Case(self._span(tree), read.pattern, self._expression(read.guard) if read.guard else None, body)

    def _expression(self, node: ast.expr) -> nodes.Expression:
        return nodes.Expression(self.python.span(node), ast.Expression(node))

    def _head(self, span: Span) -> Span:
        """The first word of a clause."""
        return self.source.span(span.start, span.start + len("except"))

    def _span(self, child: Child) -> Span:
        return self.source.span(*extent(child))
