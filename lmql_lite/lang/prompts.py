"""Prompt strings to their parts: text, holes, values and role tags."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lmql_lite.lang import nodes
from lmql_lite.lang.escapes import Decoder, Literal
from lmql_lite.lang.grammars import Terminal, extent, read
from lmql_lite.lang.keywords import DECODERS_NOT_YET, NEAREST, ROLES
from lmql_lite.lang.names import identifier
from lmql_lite.lang.problems import Problems
from lmql_lite.lang.prompt_lexer import NAME_HINT, PromptLexer
from lmql_lite.lang.python import Python
from lmql_lite.lang.source import Source

if TYPE_CHECKING:
    from lark import Token, Tree


class Prompts:
    """Reads the string literals of one source."""

    def __init__(self, source: Source, python: Python, problems: Problems) -> None:
        self.source = source
        self.python = python
        self.problems = problems
        self.decoder = Decoder(source, problems)

    def parts(self, start: int, end: int, indent: int) -> tuple[nodes.Part, ...]:
        """What the literal at `[start, end)` adds to the prompt; its statement is indented by `indent` columns."""
        literal = Literal.at(self.source, start, end)
        prefix = self.source.span(start, literal.start)
        if "f" in literal.prefix:
            self.problems.add("an f-string cannot be a prompt", prefix, "a prompt fills in {...} by itself: drop the f")
        elif "b" in literal.prefix:
            self.problems.add("a bytes string cannot be a prompt", prefix, "drop the b")
        lexer = PromptLexer(self.source, literal, self.problems)
        terminals = lexer.lex()
        if len(terminals) == 1 and terminals[0].type == "TEXT":
            return (self._text(terminals[0], literal, indent),)
        parts: list[nodes.Part | None] = []
        tree = read("prompt", terminals, self.source.text)
        for child in tree.children:
            assert not isinstance(child, str)
            part = self._part(child, lexer, literal, indent)
            if isinstance(part, nodes.Interpolation) and part.value.span.start in lexer.named:
                parts.append(self._name(*lexer.named[part.value.span.start], part.value, lexer))
            parts.append(part)
        return tuple(part for part in parts if part is not None)

    def _text(self, terminal: Terminal, literal: Literal, indent: int) -> nodes.Literal:
        span = self.source.span(terminal.start, terminal.end)
        return nodes.Literal(span, self.decoder.decode(terminal.start, terminal.end, literal, indent))

    def _part(self, tree: Tree[Token], lexer: PromptLexer, literal: Literal, indent: int) -> nodes.Part | None:
        if tree.data == "text":
            return self._text(_terminal(tree.children[0]), literal, indent)
        if tree.data == "value":
            return self._value(tree, lexer, literal, indent)
        children = [_terminal(child) if child is not None else None for child in tree.children[1:-1]]
        span = self.source.span(*extent(tree))
        if tree.data == "hole":
            return self._hole(span.start, span.end, children, lexer)
        return self._tag(span.start, span.end, _present(children[0]))

    def _value(
        self, tree: Tree[Token], lexer: PromptLexer, literal: Literal, indent: int
    ) -> nodes.Interpolation | None:
        span = self.source.span(*extent(tree))
        _, value, conversion, form, _ = tree.children
        expression = self._expression(_terminal(value), lexer)
        if expression is None:
            return None
        letter = "" if form or expression.span.start not in lexer.named else "r"
        if conversion:
            given = _terminal(conversion)
            letter = self.source.text[given.start : given.end]
        if not form:
            return nodes.Interpolation(span, expression, letter)
        assert not isinstance(form, str)
        shown = [self._format(part, lexer, literal, indent) for part in form.children]
        if all(isinstance(part, ast.Constant) for part in shown):
            return nodes.Interpolation(span, expression, letter, "".join(ast.literal_eval(part) for part in shown))
        return nodes.Interpolation(span, _formatted(expression, letter, shown))

    def _format(
        self, part: Token | Tree[Token], lexer: PromptLexer, literal: Literal, indent: int
    ) -> ast.Constant | ast.FormattedValue:
        """A piece of a format: text, or a value that makes a part of it."""
        if isinstance(part, str):
            piece = _terminal(part)
            return ast.Constant(self.decoder.decode(piece.start, piece.end, literal, indent))
        inner = self._value(part, lexer, literal, indent)
        if inner is None:
            return ast.Constant("")  # reported there
        if inner.value.span.start in lexer.named:
            self.problems.add("a value inside a format cannot end in '='", inner.span, "write its name alone")
        return _field(inner.value, inner.conversion, [ast.Constant(inner.format)] if inner.format else [])

    def _name(self, start: int, end: int, value: nodes.Expression, lexer: PromptLexer) -> nodes.Literal:
        """What `{x=}` shows before the value: the code and its `=`, as they are written."""
        is_escaped = value.span.start in lexer.escaped
        code = self.decoder.spelling(start, end).code if is_escaped else self.source.text[start:end]
        return nodes.Literal(self.source.span(start, end), code)

    def _tag(self, start: int, end: int, role: Terminal) -> nodes.Tag | None:
        name = self.source.text[role.start : role.end]
        span = self.source.span(start, end)
        if name in ROLES:
            return nodes.Tag(span, ROLES[name])
        message = f"there is no role '{name}'" if name else "this tag names no role"
        known = ", ".join(f"{{:{each}}}" for each in ROLES)
        self.problems.add(message, span, f"roles are {known}")
        return None

    def _hole(self, start: int, end: int, children: Sequence[Terminal | None], lexer: PromptLexer) -> nodes.Hole | None:
        decorators: list[nodes.Expression] = []
        name, call, annotation = "", None, None
        sound = True
        for child in children:
            if child is None:
                continue
            if child.type == "NAME":
                name = identifier(self.source.text[child.start : child.end])
                continue
            code = self._expression(child, lexer)
            if code is None:
                sound = False
            elif child.type == "DECORATOR":
                decorators.append(code)
            elif child.type == "ANNOTATION":
                annotation = code
            else:
                call = code
                self._known_decoder(code)
                if child.type == "ACTION":
                    name = self._first_argument(code)
        if not sound or not name:
            return None
        return nodes.Hole(self.source.span(start, end), name, annotation, tuple(decorators), call)

    def _known_decoder(self, call: nodes.Expression) -> None:
        node = call.tree.body
        function = node.func if isinstance(node, ast.Call) else node
        if isinstance(function, ast.Name) and function.id.lower() in DECODERS_NOT_YET:
            hint = NEAREST[function.id.lower()]
            self.problems.add(f"the decoder '{function.id}' is not in this version", call.span, hint)

    def _first_argument(self, call: nodes.Expression) -> str:
        node = call.tree.body
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name):
            return node.args[0].id
        self.problems.add("this hole has no name", call.span, f"write [f(NAME, ...)], or [f(...) NAME]; {NAME_HINT}")
        return ""

    def _expression(self, terminal: Terminal, lexer: PromptLexer) -> nodes.Expression | None:
        start, end = terminal.start, terminal.end
        if start == end:
            return None  # reported where it was missed
        spelling = self.decoder.spelling(start, end) if start in lexer.escaped else None
        return self.python.expression(start, end, spelling)


def _formatted(
    value: nodes.Expression, conversion: str, form: Sequence[ast.Constant | ast.FormattedValue]
) -> nodes.Expression:
    """An f-string of this value alone, whose format has values in it."""
    joined = ast.JoinedStr([_field(value, conversion, form)])
    return nodes.Expression(value.span, ast.Expression(ast.copy_location(joined, value.tree.body)))


def _field(
    value: nodes.Expression, conversion: str, form: Sequence[ast.Constant | ast.FormattedValue]
) -> ast.FormattedValue:
    letter = ord(conversion) if conversion else -1
    field = ast.FormattedValue(value.tree.body, letter, ast.JoinedStr([*form]) if form else None)
    return ast.copy_location(field, value.tree.body)


def _terminal(token: object) -> Terminal:
    from lark import Token

    assert isinstance(token, Token) and token.start_pos is not None and token.end_pos is not None
    return Terminal(token.type, token.start_pos, token.end_pos)


def _present(terminal: Terminal | None) -> Terminal:
    assert terminal is not None
    return terminal
