"""From logical lines to the terminals of grammar/lq.lark.

Indentation becomes explicit, soft words become keywords, and stretches of Python become single terminals. The layout
never stops: what it cannot place is a problem and a BROKEN terminal, and the lines after it are read as usual.
"""

from __future__ import annotations

import ast

from lmql_lite.lang import shapes
from lmql_lite.lang.cursor import Cursor
from lmql_lite.lang.grammars import Terminal
from lmql_lite.lang.lines import Lines
from lmql_lite.lang.nodes import Code
from lmql_lite.lang.problems import Problems
from lmql_lite.lang.python import Python
from lmql_lite.lang.scanner import Indent, Lexeme, Line
from lmql_lite.lang.source import Source

DEEPEST = 60
"""Levels of nested blocks. Python allows 100."""


class Layout:
    def __init__(self, source: Source, lines: list[Line], python: Python, problems: Problems) -> None:
        lines = [part for line in lines for part in model_apart(line, lines[0].indent)]
        self.cursor = Cursor(source, lines, problems)
        self.lines = Lines(self.cursor)
        self.python = python
        self.depth = 0
        self.codes: dict[int, Code] = {}
        self.header = shapes.find_header(lines)

    def run(self) -> list[Terminal]:
        while self.cursor.line:
            self._statements(self.cursor.lines[0].indent, top=True)
        return self.cursor.terminals

    # Blocks ------------------------------------------------------------------------------------------------------

    def _statements(self, level: Indent, *, top: bool = False) -> None:
        """Lay out lines up to the first one that is less indented than `level`."""
        self.depth += 1
        while line := self.cursor.line:
            if self.depth > DEEPEST:
                self.cursor.problem(line.lexemes[0], "this is nested too deeply", "move the inner part into a function")
            if self.depth > DEEPEST or self.cursor.problems.enough:
                self.cursor.broken(line.lexemes[0])
                self.cursor.at = len(self.cursor.lines)
                break
            if line.indent.mixes_with(level):
                self.cursor.problem(
                    line.lexemes[0], "tabs and spaces are mixed in the indentation", "indent with spaces only"
                )
            elif line.indent.columns < level.columns:
                if not top:
                    break
                self.cursor.problem(
                    line.lexemes[0], "this line is indented less than the first line of the query", None
                )
            if line.indent.columns > level.columns and not (top and shapes.begins_clause(line.lexemes)):
                self._unexpected_indent(line)
            else:
                self._statement(line, top)
        self.depth -= 1

    def _unexpected_indent(self, line: Line) -> None:
        above = self.cursor.lines[self.cursor.at - 1] if self.cursor.at else line
        if above.indent.columns > line.indent.columns:
            self.cursor.problem(
                line.lexemes[0], "this indentation fits no line above", "align it with the block it belongs to"
            )
        else:
            hint = "begin it where the line above begins"
            self.cursor.problem(line.lexemes[0], "this line is indented, but nothing above it opens a block", hint)
        self._statements(line.indent)

    def _statement(self, line: Line, top: bool) -> None:
        lexemes = line.lexemes
        if top and self.cursor.at == self.header:
            self._header(line)
        elif line.broken:
            self._broken(line, top)
        elif shapes.begins_clause(line.lexemes):
            if top:
                self.lines.clauses(line)
            else:
                self.lines.misplaced_clause(line)
        elif shapes.is_definition(lexemes):
            self._definition(line)
        elif word := shapes.compound_word(lexemes):
            self._compound(line, word)
        elif self.cursor.at == 0 and self.header and shapes.is_docstring(lexemes):
            self.cursor.emit("CODE", lexemes[0])
            self.cursor.mark("_NEWLINE")
            self.cursor.at += 1
        else:
            known = len(self.cursor.problems)
            self.lines.simple(line, 0)
            if shapes.is_op(lexemes, len(lexemes) - 1, ":") and len(self.cursor.problems) > known:
                self._flat(line)  # the head of a block of another language

    def _header(self, line: Line) -> None:
        lexemes = line.lexemes
        self.cursor.emit("DECODER", lexemes[0])
        end = shapes.header_end(lexemes)
        if end is None:  # broken
            self.cursor.at += 1
        else:
            if end > 1:
                self.cursor.emit("ARGUMENTS", lexemes[1], lexemes[end - 1])
            if shapes.is_op(lexemes, end, ":"):
                self.cursor.problem(lexemes[end], "no ':' stands after a decoder", "remove the ':'")
                end += 1
            if end < len(lexemes):
                begin = len(self.cursor.terminals)
                self.lines.simple(line, end, header=True)
                below = self.cursor.below(line)
                if below and not shapes.begins_clause(below.lexemes):
                    self.cursor.terminals.insert(begin, Terminal("_INDENT", lexemes[end].start, lexemes[end].start))
                    self._statements(below.indent)
                    self.cursor.mark("_DEDENT")
                return
            self.cursor.at += 1
        following = self.cursor.line
        if following is None or shapes.begins_clause(following.lexemes):
            if not line.broken:
                self.cursor.problem(lexemes[0], "the query has no body", "write the prompt below the decoder")
            self.cursor.broken(lexemes[0])
        elif following.indent.columns > line.indent.columns:
            self.cursor.mark("_INDENT")
            self._statements(following.indent)
            self.cursor.mark("_DEDENT")

    def _broken(self, line: Line, top: bool) -> None:
        clause = top and shapes.begins_clause(line.lexemes)
        self.cursor.at += 1
        if not clause:
            self.cursor.broken(line.lexemes[0])
        self._flat(line, skip=clause)
        while (after := self.cursor.line) and after.indent == line.indent:
            if not shapes.is_word(after.lexemes, 0, *shapes.CONTINUATIONS):
                break
            self.cursor.at += 1
            self._flat(after)
        if clause:
            self.cursor.emit("BROKEN_CLAUSE", line.lexemes[0])
            self.cursor.mark("_NEWLINE")

    def _flat(self, line: Line, *, skip: bool = False) -> None:
        """Lay out the block below a line that could not be read, as if it were not indented."""
        while below := self.cursor.below(line):
            if skip:
                self.cursor.at += 1
            else:
                self._statements(below.indent)

    def _definition(self, line: Line) -> None:
        end = self.cursor.at
        while end + 1 < len(self.cursor.lines) and shapes.is_op(self.cursor.lines[end].lexemes, 0, "@"):
            if self.cursor.lines[end + 1].indent != line.indent:
                break
            end += 1
        self._code_block(line, self._extent(end))

    def _extent(self, first: int, continuations: frozenset[str] = frozenset()) -> int:
        """Index after the block that begins at line `first`."""
        level = self.cursor.lines[first].indent.columns
        end = first + 1
        while end < len(self.cursor.lines):
            line = self.cursor.lines[end]
            continued = line.indent.columns == level and shapes.is_word(line.lexemes, 0, *continuations)
            if line.indent.columns <= level and not continued:
                break
            end += 1
        return end

    def _code_block(self, line: Line, end: int) -> None:
        last = self.cursor.lines[end - 1]
        code = None
        if not any(inner.broken for inner in self.cursor.lines[self.cursor.at : end]):
            code = self.python.block(line.begin, line.start, last.end)
        self.cursor.at = end
        if code:
            self._emit_code(line, code)
        else:
            self.cursor.broken(line.lexemes[0])

    def _emit_code(self, line: Line, code: Code) -> None:
        self.codes[line.start] = self.python.keep(code)
        self.cursor.terminals.append(Terminal("CODE_BLOCK", line.start, code.span.end))
        self.cursor.mark("_NEWLINE")

    def _compound(self, line: Line, word: str) -> None:
        """Python as a whole where no prompt is inside; else head and suite, so that prompts inside are found."""
        if word in shapes.CONTINUATIONS or word == "case":
            self._headed(line, word)
            return
        end = self._extent(self.cursor.at, shapes.CONTINUATIONS)
        lines = self.cursor.lines[self.cursor.at : end]
        if any(each.broken for each in lines) or _prompts(lines):
            self._headed(line, word)
            return
        extent = (line.begin, line.start, self.cursor.lines[end - 1].end)
        code = self.python.block(*extent, quiet=True)
        if code and not speaks(code.tree):
            self.cursor.at = end
            self._emit_code(line, code)
            return
        known, begin = len(self.cursor.problems), len(self.cursor.terminals)
        self._headed(line, word)
        silent = not any(terminal.type == "STRING" for terminal in self.cursor.terminals[begin:])
        alone = word == "try" and not any(shapes.is_word(each.lexemes, 0, "except", "finally") for each in lines)
        if code is None and silent and not alone and len(self.cursor.problems) == known:
            # Its parts are sound one by one; only Python itself knows what is wrong with the whole.
            self.python.block(*extent)

    def _headed(self, line: Line, word: str) -> None:
        lexemes = line.lexemes
        at = shapes.colon(lexemes)
        if at is None:
            braces = [each for each in lexemes if each.text == "{" and not each.depth]
            if braces and lexemes[-1].text == "}":
                brace = braces[0]
                hint = "write ':' instead of '{', and remove the '}'"
                self.cursor.problem(brace, f"the block of this '{word}' stands in braces", hint)
            else:
                self.cursor.problem(lexemes[-1], f"the ':' after this '{word}' is missing", "end the line with ':'")
            self.cursor.at += 1
            if self.cursor.below(line):
                self._head(lexemes, word)
                self._suite(line, lexemes[0], word)
            else:
                self.cursor.broken(lexemes[0])
            return
        if word == "case" and at == 1:
            self.cursor.problem(lexemes[0], "this 'case' has no pattern", "write case VALUE: or, for all else, case _:")
        self._head(lexemes[:at], word)
        if at + 1 < len(lexemes):
            self.cursor.emit("_COLON", lexemes[at])
            self.lines.simple(line, at + 1)
            return
        self.cursor.at += 1
        self._suite(line, lexemes[at], word)

    def _suite(self, line: Line, colon: Lexeme, word: str) -> None:
        self.cursor.emit("_COLON", colon)
        self.cursor.mark("_NEWLINE")
        self.cursor.mark("_INDENT")
        if below := self.cursor.below(line):
            self._statements(below.indent)
        else:
            self.cursor.problem(colon, f"nothing stands inside this '{word}'", "indent the lines that belong to it")
            self.cursor.broken(colon)
        self.cursor.mark("_DEDENT")

    def _head(self, lexemes: list[Lexeme], word: str) -> None:
        first, last = lexemes[0], lexemes[-1]
        if word in ("if", "elif", "while"):
            self.cursor.emit(word.upper(), first)
            self._emit_expression(lexemes[1:], first, f"no condition follows this '{word}'")
        elif word == "for":
            if first.text == "async":
                self.cursor.emit("ASYNC", first)
                lexemes = lexemes[1:]
            self.cursor.emit("FOR", lexemes[0])
            self._for_head(lexemes)
        elif word in ("else", "try", "finally"):
            if last is not first:
                hint = "write elif for another condition" if word == "else" else None
                self.cursor.problem(lexemes[1], f"nothing can stand between '{word}' and ':'", hint)
            self.cursor.emit(word.upper(), first)
        else:
            self.cursor.emit(word.upper(), first, last)

    def _for_head(self, lexemes: list[Lexeme]) -> None:
        inside = next((i for i, each in enumerate(lexemes) if each.text == "in" and each.depth == 0), None)
        if inside is None or inside == 1:
            self.cursor.problem(lexemes[0], "this 'for' has no 'in'", "write: for NAME in VALUES:")
            self.cursor.mark("TARGET")
            self.cursor.mark("_IN")
            self.cursor.mark("EXPRESSION")
            return
        self.cursor.emit("TARGET", lexemes[1], lexemes[inside - 1])
        self.cursor.emit("_IN", lexemes[inside])
        self._emit_expression(lexemes[inside + 1 :], lexemes[inside], "nothing follows this 'in'")

    def _emit_expression(self, lexemes: list[Lexeme], before: Lexeme, empty: str) -> None:
        if lexemes:
            self.cursor.emit("EXPRESSION", lexemes[0], lexemes[-1])
        else:
            self.cursor.problem(before, empty, None)
            self.cursor.terminals.append(Terminal("EXPRESSION", before.end, before.end))


def model_apart(line: Line, top: Indent) -> list[Line]:
    """`argmax "Hello[WHO]" from "demo" where ...` is one line, as LMQL has it, and two for all that reads lines: from
    its `from` on it is the query's clauses."""
    at = shapes.model_behind_prompt(line.lexemes)
    if at is None or line.broken:
        return [line]
    return [
        Line(line.begin, line.indent, line.lexemes[:at]),
        Line(line.lexemes[at].start, top, line.lexemes[at:]),
    ]


def _prompts(lines: list[Line]) -> bool:
    """Is there certainly a prompt in these lines? A string in a function may be its docstring."""
    if any(shapes.is_definition(line.lexemes) for line in lines):
        return False
    return any(line.lexemes[0].kind == "string" and shapes.is_prompt(line.lexemes) for line in lines)


def speaks(tree: ast.Module) -> bool:
    """Does a statement prompt, return from the query, or leave a loop that stands around it?"""
    stack: list[tuple[ast.AST, bool]] = [(statement, False) for statement in tree.body]
    while stack:
        node, looped = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if isinstance(node, ast.Return):
            return True
        if isinstance(node, (ast.Break, ast.Continue)) and not looped:
            return True
        if isinstance(node, ast.Expr):
            value = node.value
            if isinstance(value, ast.JoinedStr) or (
                isinstance(value, ast.Constant) and isinstance(value.value, (str, bytes))
            ):
                return True
            continue
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            stack.extend((child, True) for child in node.body)
            stack.extend((child, looped) for child in node.orelse)
        elif isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            children = ast.iter_child_nodes(node)
            stack.extend((child, looped) for child in children if not isinstance(child, (ast.expr, ast.pattern)))
    return False
