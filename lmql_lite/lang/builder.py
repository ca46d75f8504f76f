"""From Lark's tree, made by grammar/lq.lark, to the nodes of a query."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lmql_lite.errors import Span
from lmql_lite.lang import nodes
from lmql_lite.lang.blocks import Blocks
from lmql_lite.lang.grammars import extent
from lmql_lite.lang.keywords import DECODERS, DECODERS_NOT_YET, NEAREST
from lmql_lite.lang.layout import Layout
from lmql_lite.lang.names import identifier
from lmql_lite.lang.problems import Problems
from lmql_lite.lang.prompt_lexer import PROMPTING
from lmql_lite.lang.prompts import Prompts
from lmql_lite.lang.python import Python
from lmql_lite.lang.scanner import Indent
from lmql_lite.lang.source import Source

if TYPE_CHECKING:
    from lark import Token, Tree

    Branch = Tree[Token]
    Child = Branch | Token | None

LONGEST_ELIF = 60
"""Each `elif` is one level deeper in the tree."""


class Builder:
    """Builds the nodes of one query. What is wrong becomes a problem, and the node is left out."""

    def __init__(self, source: Source, python: Python, layout: Layout, problems: Problems) -> None:
        self.source = source
        self.python = python
        self.problems = problems
        self.codes = layout.codes
        self.prompts = Prompts(source, python, problems)
        self.blocks = Blocks(source, python, problems)
        self.loops = 0

    def query(self, tree: Branch) -> nodes.Query:
        decoder: nodes.Decoder | None = None
        before: list[nodes.Statement] = []
        body: list[nodes.Statement] = []
        clauses: dict[str, tuple[nodes.Expression | nodes.Distribution, Span]] = {}
        for child in _branches(tree):
            if child.data == "header":
                decoder = self._decoder(child)
                before, body = body, []
            elif child.data == "body":
                body = self._statements(child)
            elif str(child.data).endswith("_clause"):
                self._clause(child, clauses)
            else:
                body.extend(self._statement(child))
        prologue = self._prologue(before)
        if not body and not self.problems:
            place = decoder.span if decoder else self._span(tree)
            self.problems.add("the query has no body", place, "write the prompt above its clauses")
        where, model, distribution = (clauses.get(word) for word in ("where", "from", "distribution"))
        return nodes.Query(
            self.source.span(0, len(self.source.text)),
            tuple(body),
            decoder,
            prologue,
            _expression(model),
            _expression(where),
            distribution[0] if distribution and isinstance(distribution[0], nodes.Distribution) else None,
        )

    def _prologue(self, statements: list[nodes.Statement]) -> tuple[nodes.Code, ...]:
        codes = []
        for statement in statements:
            if isinstance(statement, nodes.Code):
                codes.append(statement)
            elif isinstance(statement, nodes.Prompt):
                self.problems.add(
                    "this string stands before the decoder header", statement.span, "move it below the header"
                )
            else:
                self.problems.add(
                    "only plain Python can stand before the decoder header", statement.span, "move it below the header"
                )
        return tuple(codes)

    def _decoder(self, tree: Branch) -> nodes.Decoder:
        name, arguments = tree.children
        assert isinstance(name, str)
        span = self._span(name)
        known = str(name).lower()
        if known in DECODERS_NOT_YET:
            self.problems.add(f"the decoder '{name}' is not in this version", span, NEAREST[known])
        elif known not in DECODERS:
            close = difflib.get_close_matches(known, DECODERS + DECODERS_NOT_YET, 1)
            meant = f"; did you mean '{close[0]}'?" if close else ""
            self.problems.add(f"no decoder is called '{name}'{meant}", span, f"there are {', '.join(DECODERS)}")
        given: tuple[nodes.Argument, ...] = ()
        if arguments is not None:
            place = self._span(arguments)
            given = self.python.arguments(place.start, place.end)
            span = span.to(place)
        return nodes.Decoder(span, known, given)

    def _clause(self, tree: Branch, clauses: dict[str, tuple[nodes.Expression | nodes.Distribution, Span]]) -> None:
        word = str(tree.data).removesuffix("_clause")
        span = self._span(tree)
        first = self.source.span(span.start, span.start + len(word))
        value: nodes.Expression | nodes.Distribution | None
        if word == "distribution":
            value = self._distribution(tree)
        elif word == "where":
            value = self._where(tree)
        else:
            value = self._expression(tree.children[1])
        if word in clauses:
            line = clauses[word][1].line
            hint = "join the two with 'and'" if word == "where" else "keep one of them"
            self.problems.add(f"there is a second '{word}'; the first is in line {line}", first, hint)
        elif value is not None:
            clauses[word] = (value, span)

    # Statements --------------------------------------------------------------------------------------------------

    def _statements(self, tree: Branch) -> list[nodes.Statement]:
        return [statement for child in _branches(tree) for statement in self._statement(child)]

    def _statement(self, tree: Branch) -> list[nodes.Statement]:
        match str(tree.data):
            case "simple_line":
                return self._statements(tree)
            case "code_block":
                return [self.codes[extent(tree)[0]]]
            case "broken":
                return []
            case "prompt":
                built: nodes.Statement | None = self._prompt(tree)
            case "code":
                built = self._code(tree)
            case "break" | "continue" | "return":
                built = self._jump(tree)
            case "if":
                built = self._if(tree)
            case "while":
                built = self._while(tree)
            case "for":
                built = self._for(tree)
            case "with" | "try" | "match":
                built = self.blocks.statement(tree, self._suite)
            case other:
                raise AssertionError(other)
        return [built] if built else []

    def _code(self, tree: Branch) -> nodes.Code | None:
        code = self.python.statement(*extent(tree))
        if code and len(code.tree.body) == 1 and isinstance(code.tree.body[0], ast.Expr):
            hint = _lost(code.tree.body[0].value)
            if hint:
                message = "this string is not added to the prompt: it is part of an expression"
                self.problems.add(message, code.span, hint)
        return code

    def _jump(self, tree: Branch) -> nodes.Statement | None:
        span = self._span(tree)
        if tree.data == "return":
            value = tree.children[1]
            if value is None:
                return nodes.Return(span)
            expression = self._expression(value)
            return nodes.Return(span, expression) if expression else None
        if not self.loops:
            self.problems.add(f"'{tree.data}' stands outside a loop", span, None)
        return nodes.Break(span) if tree.data == "break" else nodes.Continue(span)

    def _if(self, tree: Branch) -> nodes.If | None:
        tests: list[tuple[Span, nodes.Expression | None, tuple[nodes.Statement, ...]]] = []
        orelse: tuple[nodes.Statement, ...] = ()
        _, test, suite, *others = tree.children
        end = self._span(tree).end
        tests.append((self._span(tree), self._expression(test), self._suite(suite)))
        for other in others:
            if other is None:
                continue
            assert not isinstance(other, str)
            if other.data == "else":
                orelse = self._suite(other.children[1])
            else:
                _, test, suite = other.children
                place = self.source.span(self._span(other).start, end)
                tests.append((place, self._expression(test), self._suite(suite)))
        if len(tests) > LONGEST_ELIF:
            self.problems.add("this 'if' has too many branches", tests[0][0], "put the choices into a dict")
            return None
        built: nodes.If | None = None
        for span, condition, body in reversed(tests):
            if condition is None:
                return None
            built = nodes.If(span, condition, body, (built,) if built else orelse)
        return built

    def _while(self, tree: Branch) -> nodes.While | None:
        _, test, suite, orelse = tree.children
        condition = self._expression(test)
        body = self._loop(suite)
        after = self._else(orelse)
        return nodes.While(self._span(tree), condition, body, after) if condition else None

    def _for(self, tree: Branch) -> nodes.For | None:
        is_async, _, target, values, suite, orelse = tree.children
        place = self._span(target)
        bound = self.python.target(place.start, place.end) if place.start < place.end else None
        iterable = self._expression(values)
        body = self._loop(suite)
        after = self._else(orelse)
        if bound is None or iterable is None:
            return None
        return nodes.For(self._span(tree), bound, iterable, body, after, is_async is not None)

    def _loop(self, suite: Child) -> tuple[nodes.Statement, ...]:
        self.loops += 1
        body = self._suite(suite)
        self.loops -= 1
        return body

    def _else(self, tree: Child) -> tuple[nodes.Statement, ...]:
        if tree is None:
            return ()
        assert not isinstance(tree, str)
        return self._suite(tree.children[1])

    def _suite(self, tree: Child) -> tuple[nodes.Statement, ...]:
        assert tree is not None and not isinstance(tree, str)
        return tuple(self._statements(tree))

    # Prompts -----------------------------------------------------------------------------------------------------

    def _prompt(self, tree: Branch) -> nodes.Prompt | None:
        span = self._span(tree)
        line_start = self.source.text.rfind("\n", 0, span.start) + 1
        line = self.source.text[line_start : span.start]
        indent = Indent.of(line[: len(line) - len(line.lstrip(" \t\f"))]).columns
        parts: list[nodes.Part] = []
        where: nodes.Expression | None = None
        distribution: nodes.Distribution | None = None
        for child in tree.children:
            start, end = extent(child)
            if isinstance(child, str):
                if child.type == "STRING":
                    parts.extend(self.prompts.parts(start, end, indent))
                continue
            assert child is not None
            word = str(child.data).removeprefix("inline_")
            if (where if word == "where" else distribution) is not None:
                first = self.source.span(start, start + len(word))
                hint = "join the two with 'and'" if word == "where" else "keep one of them"
                self.problems.add(f"this string has a second '{word}'", first, hint)
            elif word == "where":
                where = self._where(child)
            else:
                distribution = self._distribution(child)
        return nodes.Prompt(span, tuple(parts), where, distribution)

    def _distribution(self, tree: Branch) -> nodes.Distribution | None:
        _, name, options = tree.children
        expression = self._expression(options)
        return nodes.Distribution(self._span(tree), identifier(str(name)), expression) if expression else None

    def _where(self, tree: Branch) -> nodes.Expression | None:
        where = self._expression(tree.children[1])
        if where and isinstance(where.tree.body, ast.Tuple):
            several = bool(where.tree.body.elts)
            message = "conditions cannot be listed with commas" if several else "nothing stands between the parentheses"
            hint = "join them with 'and'" if several else "write a condition, such as len(X) < 80"
            self.problems.add(message, where.span, hint)
        return where

    def _expression(self, token: Child) -> nodes.Expression | None:
        start, end = extent(token)
        return self.python.expression(start, end) if start < end else None

    def _span(self, child: Child) -> Span:
        return self.source.span(*extent(child))


def _branches(tree: Branch) -> Iterator[Branch]:
    for child in tree.children:
        if child is not None and not isinstance(child, str):
            yield child


def _is_string(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _lost(value: ast.expr) -> str | None:
    """What to write instead of an expression statement with a prompt in it; None where there is none."""
    match value:
        case ast.BoolOp(_, strings) | ast.Tuple(strings) if any(map(_is_prompt, strings)):
            return "write each string on a line of its own"
        case ast.IfExp(_, first, second) if _is_prompt(first) or _is_prompt(second):
            return "write an if statement, with each string on a line of its own"
        case ast.Lambda(_, string) if _is_prompt(string):
            return "a string is a prompt where it stands alone; @query makes a function prompt"
    first = _first_part(value)
    is_lost = _is_string(first) if isinstance(value, ast.BinOp) else first is not value and _is_prompt(first)
    return "write one string with {...} for each value" if is_lost else None


def _is_prompt(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and PROMPTING.search(node.value) is not None


def _first_part(node: ast.expr) -> ast.expr:
    """The operand at the very left: `"a"` of `"a".format(x) + y`."""
    while True:
        match node:
            case ast.BinOp(left) | ast.Compare(left) | ast.Attribute(left) | ast.Subscript(left):
                node = left
            case ast.Call(ast.Attribute(left)):
                node = left
            case _:
                return node


def _expression(
    clause: tuple[nodes.Expression | nodes.Distribution, Span] | None,
) -> nodes.Expression | None:
    return clause[0] if clause and isinstance(clause[0], nodes.Expression) else None
