"""The Python inside a query: extents of the source to `ast` trees whose positions are those of the file."""

from __future__ import annotations

import ast
from bisect import bisect_right
from typing import Any, NamedTuple

from lmql_lite.errors import Span
from lmql_lite.lang.nodes import ArgumentNode, Code, Expression
from lmql_lite.lang.source import Problems, Source
from lmql_lite.lang.syntax_messages import (
    TORN_ESCAPE,
    lowered,
    missing_operator,
    said_at_end,
    said_by_compiler,
    sentence,
)

DEEPEST = 200
"""Levels of nesting in one tree. A little deeper, Python itself crashes."""

UNREADABLE = (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError)
"""Exceptions that Python raises on text it cannot parse."""

DOUBLED = "&|=<>!"

PAREN, SUITE, CALL = "(", "if 1:\n", "f"


class SpelledCode(NamedTuple):
    """Code whose characters are not those of the source, because quotes in it had to be escaped there."""

    code: str
    offsets: list[int]
    """Place in the source of each character, and of the end."""


class PythonReader:
    """Reader of extents of one source. If Python refuses one, it reports a problem and returns None."""

    def __init__(self, source: Source, problems: Problems) -> None:
        self.source = source
        self.text = source.text
        self.problems = problems
        self._read: list[tuple[Span, ast.stmt]] = []
        self._line_starts = [0]
        at = source.text.find("\n")
        while at >= 0:
            self._line_starts.append(at + 1)
            at = source.text.find("\n", at + 1)

    # Reading -----------------------------------------------------------------------------------------------------

    def expression(self, start: int, end: int, spelling: SpelledCode | None = None) -> Expression | None:
        # The line break ends a comment, so that the parenthesis is not part of it.
        tree: ast.Expression | None = self._tree(PAREN, start, end, "\n)", mode="eval", spelling=spelling)
        if tree is None:
            return None
        span = self.source.span(start, end)
        holder = ast.Expr(tree.body, lineno=tree.body.lineno, col_offset=tree.body.col_offset)
        self._read.append((span, holder))
        return Expression(span, tree)

    def statement(self, start: int, end: int) -> Code | None:
        """A simple statement, anywhere in a line."""
        tree: ast.Module | None = self._tree("", start, end)
        return self.keep(Code(self.source.span(start, end), tree)) if tree else None

    def keep(self, code: Code) -> Code:
        """Code that is part of the query, so that `check_compiles` checks it."""
        self._read.extend((code.span, node) for node in code.tree.body)
        return code

    def block(self, begin: int, start: int, end: int, *, quiet: bool = False) -> Code | None:
        """A compound statement from `start`; `begin` is where the indentation of its first line begins.

        It may hold a prompt: the caller confirms with `keep` that it does not.
        """
        tree = self._tree(SUITE if begin < start else "", begin, end, quiet=quiet)
        if tree and begin < start:
            tree.body = tree.body[0].body
        return Code(self.source.span(start, end), tree) if tree else None

    def target(self, start: int, end: int) -> ast.expr | None:
        """Target between `for` and `in`."""
        tree = self._tree("for ", start, end, " in x: pass")
        return tree.body[0].target if tree else None

    def arguments(self, start: int, end: int) -> tuple[ArgumentNode, ...]:
        """`(n=2, temperature=0.8)` of a decoder header, parentheses included."""
        tree = self._tree(CALL, start, end, mode="eval")
        if tree is None:
            return ()
        call: ast.Call = tree.body
        hint = "write name=value, for example n=2"
        for value in call.args:
            self.problems.add("a decoder takes named arguments only", self.span(value), hint)
        arguments: list[ArgumentNode] = []
        for keyword in call.keywords:
            if keyword.arg is None:
                self.problems.add("a decoder takes no ** arguments", self.span(keyword), hint)
                continue
            if any(argument.name == keyword.arg for argument in arguments):
                self.problems.add(f"'{keyword.arg}' is given twice", self.span(keyword), "keep one of them")
            given = Expression(self.span(keyword.value), ast.Expression(keyword.value))
            arguments.append(ArgumentNode(self.span(keyword), keyword.arg, given))
        return tuple(arguments)

    def head(self, span: Span, prefix: str, suffix: str) -> ast.stmt | None:
        """The head of a block that holds a prompt, as the smallest statement around it."""
        tree: ast.Module | None = self._tree(prefix, span.start, span.end, suffix)
        if tree is None:
            return None
        self._read.append((span, tree.body[0]))
        return tree.body[0]

    def _tree(
        self,
        prefix: str,
        start: int,
        end: int,
        suffix: str = "",
        *,
        mode: str = "exec",
        spelling: SpelledCode | None = None,
        quiet: bool = False,
    ) -> Any:
        """Tree of an extent between a prefix and a suffix, at its place in the file; None, and a problem, where Python
        cannot read it."""
        code = spelling.code if spelling else self.text[start:end]
        above, _, before = prefix.rpartition("\n")
        first = above.count("\n") + 2 if above else 1
        try:
            tree: Any = ast.parse(f"{prefix}{code}{suffix}", self.source.name, mode)
            if prefix == PAREN and tree.body.lineno == 1 and tree.body.col_offset < len(PAREN):
                _take_out(tree.body, code)
            if spelling:
                self._place_spelled(tree, spelling)
            else:
                lines, columns = self._shift(start, len(before))
                self._place(tree, lines - first + 1, columns, first)
        except UNREADABLE as error:
            if not quiet:
                self._report(error, start, end, prefix, code, spelling)
            return None
        return tree

    def check_compiles(self) -> None:
        """Report what only Python's compiler refuses: a `yield` of the query itself, a repeated parameter."""
        whole = ast.Module([node for _, node in self._read], [])
        if self._compiles(whole) is None:
            return
        for span, node in self._read:
            # One by one: valid statements can clash together, as with `global` after a use.
            error = self._compiles(ast.Module([node], []))
            if error is None:
                continue
            place = span
            if isinstance(error, SyntaxError) and error.lineno and error.lineno >= self.source.first_line:
                start = self._line_starts[min(error.lineno - self.source.first_line, len(self._line_starts) - 1)]
                start = min(max(start + max((error.offset or 1) - 1, 0), span.start), max(span.end - 1, span.start))
                place = self.source.span(start, span.end)
            deep = isinstance(error, (RecursionError, MemoryError))
            message = "this is nested too deeply" if deep else said_by_compiler(str(getattr(error, "msg", error)))
            self.problems.add(message, place)

    @staticmethod
    def _compiles(tree: ast.Module) -> Exception | None:
        try:
            compile(tree, "", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        except UNREADABLE as error:
            return error
        return None

    # Places ------------------------------------------------------------------------------------------------------

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> Span:
        """The place of a node of a tree that was read here."""
        return self.source.span(
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset),
        )

    def _offset(self, lineno: int, column: int) -> int:
        start = self._line_starts[lineno - self.source.first_line]
        line = self.text[start : start + column]
        if line.isascii():
            return start + column
        return start + len(line.encode("utf-8")[:column].decode("utf-8", "ignore"))

    def _shift(self, start: int, wrapped: int) -> tuple[int, int]:
        """Offset of the lines of a piece that starts here, and of the columns of its first line."""
        line = bisect_right(self._line_starts, start) - 1
        before = self.text[self._line_starts[line] : start]
        column = len(before) if before.isascii() else len(before.encode("utf-8"))
        return line + self.source.first_line - 1, column - wrapped

    def _place(self, tree: ast.AST, lines: int, columns: int, first: int = 1) -> None:
        """Move a tree to its place in the file, the columns of its line `first` too.

        Raises RecursionError when it is too deep for later passes.
        """
        level: list[ast.AST] = [tree]
        depth = 0
        while level:
            depth += 1
            if depth > DEEPEST:
                raise RecursionError
            below: list[ast.AST] = []
            for node in level:
                values = node.__dict__
                for name in node._fields:
                    value = values.get(name)
                    if isinstance(value, ast.AST):
                        below.append(value)
                    elif isinstance(value, list):
                        below.extend(child for child in value if isinstance(child, ast.AST))
                if "lineno" in values:
                    if columns and values["lineno"] == first:
                        values["col_offset"] += columns
                    if columns and values["end_lineno"] == first:
                        values["end_col_offset"] += columns
                    if lines:
                        values["lineno"] += lines
                        values["end_lineno"] += lines
            level = below

    def _place_spelled(self, tree: ast.AST, spelling: SpelledCode) -> None:
        self._place(tree, 0, -len(PAREN))
        for node in ast.walk(tree):
            if isinstance(node, (ast.expr, ast.keyword, ast.arg)):
                begin = spelling.offsets[_character(spelling.code, node.lineno, node.col_offset)]
                end = _character(spelling.code, node.end_lineno or 1, node.end_col_offset or 0)
                node.lineno, node.col_offset = self._position(begin)
                node.end_lineno, node.end_col_offset = self._position(spelling.offsets[end])

    def _position(self, offset: int) -> tuple[int, int]:
        lines, column = self._shift(offset, 0)
        return lines + 1, column

    # Sentences ---------------------------------------------------------------------------------------------------

    def _report(
        self, error: Exception, start: int, end: int, prefix: str, code: str, spelling: SpelledCode | None = None
    ) -> None:
        span = self.source.span(start, end)
        if isinstance(error, (RecursionError, MemoryError)) or "too many" in str(error):
            self.problems.add("this is nested too deeply", span, "split it into several statements")
            return
        if not isinstance(error, SyntaxError):
            self.problems.add(f"Python cannot read this: {lowered(str(error))}", span)
            return
        lines = f"{prefix}{code}".split("\n")
        first = max(_offset_in(lines, error.lineno or 1, error.offset or 1) - len(prefix), 0)
        last = _offset_in(lines, error.end_lineno or 1, error.end_offset or 1) - len(prefix)
        if "codec can't decode" in error.msg and (torn := TORN_ESCAPE.search(code)):
            first, last = torn.span(1)
        size = len(code.rstrip())
        if first >= size:
            message, hint = said_at_end(error.msg, code)
            first, last = max(size - 1, 0), size
        else:
            while first and code[first - 1] in DOUBLED and code[first] in DOUBLED:
                first -= 1  # Python points to the second half of `&&`
            message, hint = sentence(error.msg, code[first:])
            is_apart = "forgot a comma" in error.msg or error.msg == "invalid syntax"
            if is_apart and (found := missing_operator(code[first if "comma" in error.msg else 0 :])):
                at, message, hint = found
                first += at if "comma" in error.msg else at - first
            if message.startswith("'"):
                last = first + len(message.split("'")[1])
        last = min(max(last, first + 1), len(code))
        begin, finish = (spelling.offsets[first], spelling.offsets[last]) if spelling else (start + first, start + last)
        self.problems.add(message, self.source.span(begin, max(finish, begin)), hint)


def _take_out(node: ast.expr, code: str) -> None:
    """Take the added parentheses out of the place of `a, b` and of `a for a in b`, which count them as their own."""
    before, _, last = f"{PAREN}{code}".rpartition("\n")
    node.col_offset = len(PAREN)
    node.end_lineno = before.count("\n") + 1 + bool(before)
    node.end_col_offset = len(last.encode("utf-8"))


def _character(code: str, lineno: int, column: int) -> int:
    """Index of the character at a line and a column counted in UTF-8 bytes."""
    lines = code.split("\n")
    before = sum(len(line) + 1 for line in lines[: lineno - 1])
    inside = len(lines[lineno - 1].encode("utf-8")[: max(column, 0)].decode("utf-8", "ignore"))
    return min(before + inside, len(code))


def _offset_in(lines: list[str], lineno: int, offset: int) -> int:
    """Characters before a line and a column counted from 1. A line that is not there is the end."""
    if lineno > len(lines):
        return sum(len(line) + 1 for line in lines) - 1
    return sum(len(line) + 1 for line in lines[: lineno - 1]) + min(max(offset, 1) - 1, len(lines[lineno - 1]))
