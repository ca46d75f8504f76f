"""The Python inside a query: pieces of the source to `ast` trees whose positions are those of the file."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lmql_lite.errors import Span
from lmql_lite.lang.lines import LEXEME, LINE_INDENT, LogicalLine, columns_of, line_at, string_end
from lmql_lite.lang.nodes import ArgumentNode, Expression
from lmql_lite.lang.sentences import Mistake, lowered, mistake, simple_mistake
from lmql_lite.lang.source import Places, Problems, Source, places, span_of
from lmql_lite.lang.terminals import NoPython

MAX_DEPTH = 200
"""Levels of nesting in one tree. A little deeper, Python itself crashes."""

MAX_BLOCK_DEPTH = 60
"""Levels of nested statements, of which each `elif` is one. Python allows 100."""

UNREADABLE = (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError)
"""Exceptions that Python raises on text it cannot parse."""

TOO_DEEP = Mistake(0, 0, "this is nested too deeply", "split it into several statements")

PAREN, SUITE, CALL = "(", "if 1:\n", "f"

ESCAPE = re.compile(r"\\(\r\n|.)", re.DOTALL)
FIELD = re.compile(r"(?<!\{)(?:\{\{)*\{([^{}]+)")
"""Code in the braces of an f-string."""
OCTAL = re.compile(r"\\[4-7][0-7]{2}")
"""An octal escape beyond the last byte."""
DIGITS = r"\d(?:_?\d)*"
RUN_ON = re.compile(
    rf"(?>0[xX](?:_?[\da-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+"
    rf"|(?:{DIGITS}\.?|\.)(?:{DIGITS})?(?:[eE][-+]?{DIGITS})?[jJ]?)(?:and|else|for|if|in|is|not|or)"
)
"""A number with a word of Python right after it."""
ESCAPES = frozenset("\r\n\\'\"abfnrtvx01234567NuU")
UNUSUAL = (*map(chr, range(1, 9)), *map(chr, range(14, 32)), "\x7f")
NOT_A_BREAK = re.compile(r"[^\r\n]")


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
        self.whole = source.span(0, len(source.text))
        self._places = places(source.text)

    # Reading -----------------------------------------------------------------------------------------------------

    def expression(self, start: int, end: int, spelling: SpelledCode | None = None) -> Expression | None:
        code = spelling.code if spelling else self.text[start:end]
        lines, columns = (0, -len(PAREN)) if spelling else self._shift(start, len(PAREN))
        try:
            # The line break ends a comment, so that the parenthesis is not part of it.
            tree: ast.Expression = parsed(f"{PAREN}{code}\n)", self.source.name, "eval")
            if tree.body.lineno == 1 and tree.body.col_offset < len(PAREN):
                _take_out(tree.body, code)
            if _place(tree, lines, columns):
                raise RecursionError
        except UNREADABLE as error:
            places = spelling.offsets if spelling else range(start, end + 1)
            self._report(error, f"{PAREN}{code}", lambda at: places[min(max(at - 1, 0), len(code))], start, end)
            return None
        if spelling:
            self._place_spelled(tree, spelling)
        return Expression(self.source.span(start, end), tree)

    def arguments(self, start: int, end: int) -> tuple[ArgumentNode, ...]:
        """`(n=2, temperature=0.8)` of a decoder header, parentheses included."""
        code = self.text[start:end]
        try:
            call = parsed(f"{CALL}{code}", self.source.name, "eval").body
            if _place(call, *self._shift(start, len(CALL))):
                raise RecursionError
        except UNREADABLE as error:
            self._report(error, f"{CALL}{code}", lambda at: min(start + max(at - 1, 0), end), start, end)
            return ()
        arguments: list[ArgumentNode] = []
        for value in (*call.args, *(each.value for each in call.keywords if each.arg is None)):
            hint = "write name=value, for example n=2"
            self.problems.add("a decoder takes named arguments only", self.span(value), hint)
        for keyword in call.keywords:
            if any(argument.name == keyword.arg for argument in arguments):
                self.problems.add(f"'{keyword.arg}' is given twice", self.span(keyword), "keep one of them")
            given = Expression(self.span(keyword.value), ast.Expression(keyword.value))
            arguments.append(ArgumentNode(self.span(keyword), keyword.arg or "", given))
        return tuple(arguments)

    def statements(self, start: int, end: int, regions: Sequence[NoPython], lines: list[LogicalLine]) -> list[ast.stmt]:
        """Statements of an extent and its logical lines, in which regions that are no Python are blank. A prompt is a
        `0` at its place."""
        code = blanked(self.text, start, end, regions)
        if not lines or code.isspace():
            return []
        is_inside = start > lines[0].begin  # on the line of a header
        prefix = SUITE if lines[0].columns and not is_inside else ""
        start += len(code) - len(code.lstrip(" \t\f")) if is_inside else 0
        code = code.lstrip(" \t\f") if is_inside else code
        shift, columns = self._shift(start, 0)
        try:
            tree: ast.Module = parsed(prefix + code, self.source.name, "exec")
            deep = _place(tree, shift - bool(prefix), columns, 1 + bool(prefix))
        except (RecursionError, MemoryError, OverflowError):
            longest = max(lines, key=lambda line: len(line.lexemes))
            self._add(TOO_DEEP, longest.start, longest.end)
            return []
        except (SyntaxError, ValueError) as error:
            self._report_statement(error, f"{prefix}{code}", shift - bool(prefix), columns, lines)
            return []
        if deep:
            place = line_at(lines, self.span(deep).start)
            self._add(TOO_DEEP, place.start, place.end)
        inside = tree.body[0] if prefix else None
        return [*inside.body, *tree.body[1:]] if isinstance(inside, ast.If) else tree.body

    # Places ------------------------------------------------------------------------------------------------------

    def span(self, node: ast.expr | ast.stmt | ast.keyword | ast.excepthandler | ast.pattern) -> Span:
        """The place of a node of a tree that was read here."""
        return span_of(node, self.whole)

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset as Python has them."""
        line, column = self._places.position(offset)
        return line + self.source.first_line, column

    def indent(self, offset: int) -> int:
        """Columns of the indentation of the line with this offset."""
        start = self._places.lines[self._places.position(offset)[0]]
        space = LINE_INDENT.match(self.text, start, offset)
        return columns_of(space.group()) if space else 0

    def _shift(self, start: int, wrapped: int) -> tuple[int, int]:
        """Offset of the lines of a piece that starts here, and of the columns of its first line."""
        line, column = self.position(start)
        return line - 1, column - wrapped

    def _place_spelled(self, tree: ast.AST, spelling: SpelledCode) -> None:
        code = Places(spelling.code)
        for node in ast.walk(tree):
            if isinstance(node, (ast.expr, ast.keyword, ast.arg)):
                begin = code.offset(node.lineno - 1, max(node.col_offset, 0))
                end = code.offset((node.end_lineno or 1) - 1, max(node.end_col_offset or 0, 0))
                node.lineno, node.col_offset = self.position(spelling.offsets[begin])
                node.end_lineno, node.end_col_offset = self.position(spelling.offsets[end])

    # Problems ----------------------------------------------------------------------------------------------------

    def _add(self, found: Mistake, start: int, end: int) -> None:
        self.problems.add(found.sentence, self.source.span(start, end), found.hint)

    def _report(self, error: Exception, given: str, place: Callable[[int], int], start: int, end: int) -> None:
        """Report why Python cannot read the source from `start` to `end`. `place` is where an offset in the code that
        Python was given stands in the source."""
        if not isinstance(error, SyntaxError | ValueError) or "too many" in str(error):
            self._add(TOO_DEEP, start, end)
        elif not isinstance(error, SyntaxError):
            self._add(Mistake(0, 0, f"Python cannot read this: {lowered(str(error))}"), start, end)
        else:
            known = Places(given)
            first = max(place(known.blamed(error.lineno, error.offset)), start)
            last = place(known.blamed(error.end_lineno, error.end_offset))
            if "codec can't decode" in error.msg:  # each version of Python points elsewhere
                first, last = start, end
            found = mistake(error.msg, self.text[start:end], first - start, last - start)
            self._add(found, start + found.start, start + found.end)

    def _report_statement(
        self, error: Exception, code: str, shift: int, columns: int, lines: list[LogicalLine]
    ) -> None:
        """Report why Python cannot read statements."""
        given = Places(code)

        def place(blamed: int) -> int:
            line, column = given.position(blamed)
            below = max(line + 1 + shift - self.source.first_line, 0)
            return len(self.text) if blamed == given.size else self._places.offset(below, column + columns * (not line))

        blamed = place(given.blamed(error.lineno, error.offset)) if isinstance(error, SyntaxError) else lines[0].start
        line = line_at(lines, blamed)
        is_plain = isinstance(error, SyntaxError) and error.msg == "invalid syntax"
        if isinstance(error, SyntaxError) and "'except' or 'finally'" in error.msg:
            head = _head(lines, blamed, "try")
            self._add(Mistake(0, 0, "this 'try' has neither 'except' nor 'finally'"), head.start, head.lexemes[0].end)
            return
        if isinstance(error, SyntaxError) and "'from ... import ...'" in error.msg:  # from Python 3.12 on
            blamed = next(each.start for each in line.lexemes if each.text == "from")
            self._add(Mistake(0, 0, "'from' is not expected here"), blamed, blamed + len("from"))
            return
        if is_plain and (found := simple_mistake(line.lexemes, blamed)):
            self._add(found, found.start, found.end)
        else:
            self._report(error, code, place, line.start, line.end)


def _head(lines: Sequence[LogicalLine], before: int, word: str) -> LogicalLine:
    """The last line above a place that begins with a word, and whose block no line between ends."""
    columns = sys.maxsize
    for line in reversed(lines):
        if line.end <= before and line.columns < columns:
            columns = line.columns
            if line.lexemes[0].text == word:
                return line
    return line_at(lines, before)


def blanked(text: str, start: int, end: int, regions: Sequence[NoPython]) -> str:
    """The text of an extent, as long in UTF-8, with spaces for its regions and a `0` for each prompt."""
    pieces: list[str] = []
    at = start
    for region in regions:
        if at <= region.start < end:
            blank = _blank(text[region.start : region.end])
            if region.is_prompt:
                blank = f"({blank[1:-1].replace(' ', '0', 1)})" if "\n" in blank else f"0{blank[1:]}"
            pieces += [text[at : region.start], blank]
            at = region.end
    return "".join([*pieces, text[at:end]])


def _blank(text: str) -> str:
    if not text.isascii():
        text = "".join(character if character.isascii() else " " * len(character.encode()) for character in text)
    return NOT_A_BREAK.sub(" ", text)


def parsed(code: str, name: str, mode: str) -> Any:
    """Tree of some code. Python would warn the whole process of a `\\d` in a string; it sees another character.

    Raises SyntaxError also for `1if x` and for `"\\777"`, of which Python warns as well.
    """
    odd = _odd_escapes(code, 0, len(code)) if "\\" in code or RUN_ON.search(code) else []
    for stands_for in UNUSUAL if odd else ():
        characters = list(code)
        for at in odd:
            characters[at] = stands_for
        tree = _tree("".join(characters), name, mode)
        strings = [each for each in ast.walk(tree) if isinstance(each, ast.Constant) and stands_for in _text(each)]
        if sum(_text(each).count(stands_for) for each in strings) == len(odd):  # no escape means this character
            for each in strings:
                text = _text(each).replace(stands_for, "\\")
                each.value = text if isinstance(each.value, str) else text.encode("latin-1")
            return tree
    return _tree(code, name, mode)


def _tree(code: str, name: str, mode: str) -> Any:
    """Tree of some code. Up to Python 3.12.0, a parse in another thread at the same time may raise SystemError here:
    both count the depth of their trees in one place."""
    for _ in range(3):
        try:
            return ast.parse(code, name, mode)
        except SystemError:
            continue
    return ast.parse(code, name, mode)


def _text(node: ast.Constant) -> str:
    if isinstance(node.value, bytes):
        return node.value.decode("latin-1")
    return node.value if isinstance(node.value, str) else ""


def _odd_escapes(code: str, at: int, end: int) -> list[int]:
    """Places of the backslashes in strings that begin no escape, in a part of the code. Raises SyntaxError for what
    Python would warn of, where no other character can stand."""
    found: list[int] = []
    while at < end and (match := LEXEME.match(code, at, end)):
        at = match.end()
        if match["number"] and RUN_ON.match(code, match.start("number"), at):
            raise _refusal("a word follows this number", code, *match.span("number"))
        if opening := match["string"]:
            start = match.start("string")
            at = string_end(code, start) or at
            for field in FIELD.finditer(code, start, at) if "f" in opening.lower() else ():
                _odd_escapes(code, *field.span(1))
            if "r" not in opening.lower():
                escapes = ESCAPES - set("NuU") if "b" in opening.lower() else ESCAPES
                for each in ESCAPE.finditer(code, start, at):
                    if too_large := OCTAL.match(code, each.start()):
                        raise _refusal("an octal escape is too large", code, *too_large.span())
                    if each[1][0] not in escapes:
                        found.append(each.start())
    return found


def _refusal(message: str, code: str, start: int, end: int) -> SyntaxError:
    line, column = code.count("\n", 0, start) + 1, start - code.rfind("\n", 0, start)
    return SyntaxError(message, ("", line, column, None, line, column + end - start))


def _place(tree: ast.AST, lines: int, columns: int, first: int = 1) -> Any:
    """Move a tree to its place in the file, the columns of its line `first` too. Returns its first node that is too
    deep for later passes, None if there is none."""
    level: list[Any] = [tree]
    depth, deep = 0, None
    while level:
        depth += 1
        below: list[Any] = []
        for node in level:
            values = node.__dict__
            for name in node._fields:
                value = values.get(name)
                if isinstance(value, ast.AST):
                    below.append(value)
                elif isinstance(value, list):
                    below.extend(child for child in value if isinstance(child, ast.AST))
            if "lineno" not in values:
                continue
            if columns and values["lineno"] == first:
                values["col_offset"] += columns
            if columns and values["end_lineno"] == first:
                values["end_col_offset"] += columns
            if lines:
                values["lineno"] += lines
                values["end_lineno"] += lines
            if deep is None and (depth > MAX_DEPTH or (depth > MAX_BLOCK_DEPTH + 2 and isinstance(node, ast.stmt))):
                deep = node
        level = below
    return deep


def _take_out(node: ast.expr, code: str) -> None:
    """Take the added parentheses out of the place of `a, b` and of `a for a in b`, which count them as their own."""
    before, _, last = f"{PAREN}{code}".rpartition("\n")
    node.col_offset = len(PAREN)
    node.end_lineno = before.count("\n") + 1 + bool(before)
    node.end_col_offset = len(last.encode("utf-8"))
