"""One logical line to nodes: its small statements, its prompts, and the clauses of both prompt and query.

A clause may go on in the lines below; these are taken from the lines that are still to be read.
"""

from __future__ import annotations

import ast
import difflib
import keyword
from dataclasses import dataclass
from typing import NamedTuple

from lmql_lite.errors import Span
from lmql_lite.lang import nodes
from lmql_lite.lang import soft_keywords as soft
from lmql_lite.lang.keywords import CLAUSES, INLINE_CLAUSES
from lmql_lite.lang.names import identifier
from lmql_lite.lang.prompt import PROMPTING, prompt_parts
from lmql_lite.lang.python_reader import PythonReader
from lmql_lite.lang.scanner import Indent, Lexeme, LogicalLine, are_apart, begins_operand, ends_operand
from lmql_lite.lang.source import Problems, Source


class ClauseExtent(NamedTuple):
    """A clause whose extent is known. `value` is empty if a problem with it has been reported."""

    word: str
    keyword: Lexeme
    name: Lexeme | None
    value: list[Lexeme]


@dataclass(eq=False)
class LineParser:
    """Reader of the logical lines of one query, from the first to the last."""

    source: Source
    lines: list[LogicalLine]
    problems: Problems
    python: PythonReader
    at: int = 0
    """Index of the line that is read next."""
    end: int = 0
    """End of the last thing that was read, without white space and punctuation."""
    loops: int = 0
    """Loops that are open."""

    @property
    def line(self) -> LogicalLine | None:
        """The line that is read next."""
        return self.lines[self.at] if self.at < len(self.lines) else None

    def below(self, line: LogicalLine) -> LogicalLine | None:
        """The next line, if it is indented deeper than this one."""
        following = self.line
        return following if following and following.indent.columns > line.indent.columns else None

    def problem(self, lexeme: Lexeme, message: str, hint: str | None = None) -> None:
        self.problems.add(message, self.source.span(lexeme.start, lexeme.end), hint)

    def span_from(self, start: int) -> Span:
        """Span from a place to the end of the last thing that was read."""
        return self.source.span(start, max(self.end, start))

    # Statements --------------------------------------------------------------------------------------------------

    def simple(self, line: LogicalLine, index: int, *, header: bool = False) -> list[nodes.Statement]:
        """Statements between semicolons, from the lexeme at `index` to the end of the line.

        A `where` at the end of the line takes the lines below that continue it.
        """
        lexemes = list(line.lexemes)
        self.at += 1
        statements: list[nodes.Statement] = []
        while index < len(lexemes):
            if soft.is_op(lexemes, index, ";"):
                self.problem(lexemes[index], "nothing stands before this ';'", "remove it")
            elif soft.is_prompt(lexemes, index):
                prompt, index = self._prompt(lexemes, index, line, header)
                statements.append(prompt)
            else:
                ends = (i for i in range(index, len(lexemes)) if lexemes[i].depth == 0 and lexemes[i].text == ";")
                end = next(ends, len(lexemes))
                statement = self._small(lexemes, index, end)
                statements += [statement] if statement else []
                index = end
            index += 1  # over the semicolon
        return statements

    def _small(self, lexemes: list[Lexeme], index: int, end: int) -> nodes.Statement | None:
        """A statement that is not a prompt; `end` is the index after it."""
        first, last = lexemes[index], lexemes[end - 1]
        mistake = self._mistake(lexemes, index, end)
        if mistake is not None:
            self.problem(*mistake)
            return None
        self.end = last.end
        span = self.source.span(first.start, last.end)
        if last is first and first.text in ("break", "continue"):
            if not self.loops:
                self.problem(first, f"'{first.text}' stands outside a loop")
            return nodes.BreakNode(span) if first.text == "break" else nodes.ContinueNode(span)
        if first.kind == "name" and first.text == "return":
            if last is first:
                return nodes.ReturnNode(span)
            value = self.python.expression(lexemes[index + 1].start, last.end)
            return nodes.ReturnNode(span, value) if value else None
        code = self.python.statement(first.start, last.end)
        if code and len(code.tree.body) == 1 and isinstance(code.tree.body[0], ast.Expr):
            hint = _lost(code.tree.body[0].value)
            if hint:
                message = "this string is not added to the prompt: it is part of an expression"
                self.problems.add(message, code.span, hint)
        return code

    def _mistake(self, lexemes: list[Lexeme], index: int, end: int) -> tuple[Lexeme, str, str | None] | None:
        """Error of a statement that is not Python: the lexeme to blame, the sentence and the hint."""
        first = lexemes[index]
        after = soft.strings_end(lexemes, index)
        if after > index and _no_operator(lexemes, after, end):
            return _after_string(lexemes, after)
        is_apart = _no_operator(lexemes, index + 1, end)
        if first.kind == "name" and is_apart and not keyword.iskeyword(first.text):
            # `were len(X) < 3`: no Python begins with two operands
            close = difflib.get_close_matches(first.text.lower(), CLAUSES, 1, 0.7)
            if close:
                return first, f"there is no clause '{first.text}'", f"did you mean '{close[0]}'?"
        if first.text == "{" and soft.is_op(lexemes, index + 1, ":"):
            role = lexemes[index + 2].text if index + 2 < end and lexemes[index + 2].kind == "name" else "user"
            hint = f'write it at the beginning of the string: "{{:{role}}}..."'
            return first, "a role tag stands inside a prompt string", hint
        if first.kind == "name" and is_apart and first.text in soft.FOREIGN:
            return first, f"'{first.text}' is not a word of Python", soft.FOREIGN[first.text]
        if _is_prose(lexemes[index:end]):
            return first, "this is not Python; a prompt needs quotes around it", 'write "..." around it'
        return None

    # Prompts -----------------------------------------------------------------------------------------------------

    def _prompt(
        self, lexemes: list[Lexeme], index: int, line: LogicalLine, header: bool
    ) -> tuple[nodes.PromptNode, int]:
        """The prompt at `index` with its clauses, and the index after it."""
        start = lexemes[index].start
        after = soft.strings_end(lexemes, index)
        strings = [lexeme for lexeme in lexemes[index:after] if lexeme.kind == "string"]
        self.end = lexemes[after - 1].end
        clauses: list[ClauseExtent] = []
        index = after
        while True:
            below = self.below(line)
            if below and index == len(lexemes) and not header and soft.begins_inline_clause(below.lexemes):
                # On a line of its own a clause belongs to the string above when it is deeper than that.
                self.at += 1
                lexemes.extend(below.lexemes)
            if index >= len(lexemes) or not soft.clause_word(lexemes[index], INLINE_CLAUSES):
                break
            clause, index = self._clause(lexemes, index, line, INLINE_CLAUSES)
            clauses += [clause] if clause.value else []
        return self._built(start, strings, clauses), index

    def _built(self, start: int, strings: list[Lexeme], clauses: list[ClauseExtent]) -> nodes.PromptNode:
        begin = self.source.text.rfind("\n", 0, start) + 1
        before = self.source.text[begin:start]
        indent = Indent.of(before[: len(before) - len(before.lstrip(" \t\f"))]).columns
        parts: list[nodes.Part] = []
        for each in strings:
            parts += prompt_parts(self.python, each.start, each.end, indent)
        where: nodes.Expression | None = None
        distribution: nodes.DistributionNode | None = None
        for clause in clauses:
            if (where if clause.word == "where" else distribution) is not None:
                hint = "join the two with 'and'" if clause.word == "where" else "keep one of them"
                self.problem(clause.keyword, f"this string has a second '{clause.word}'", hint)
            elif clause.word == "where":
                where = self.where(clause)
            else:
                distribution = self.distribution(clause)
        return nodes.PromptNode(self.span_from(start), tuple(parts), where, distribution)

    # Clauses -----------------------------------------------------------------------------------------------------

    def clauses(self, line: LogicalLine) -> list[ClauseExtent]:
        """The clauses of the query that begin on this line."""
        lexemes = list(line.lexemes)
        self.at += 1
        clauses: list[ClauseExtent] = []
        index = 0
        while index < len(lexemes):
            if not soft.clause_word(lexemes[index]):
                self.problem(lexemes[index], "a clause of the query cannot be followed by this", "begin a new line")
                break
            clause, index = self._clause(lexemes, index, line, CLAUSES)
            clauses += [clause] if clause.value else []
        return clauses

    def expression(self, lexemes: list[Lexeme]) -> nodes.Expression | None:
        return self.python.expression(lexemes[0].start, lexemes[-1].end)

    def distribution(self, clause: ClauseExtent) -> nodes.DistributionNode | None:
        assert clause.name is not None, "one without a name is reported"
        options = self.expression(clause.value)
        span = self.source.span(clause.keyword.start, clause.value[-1].end)
        return nodes.DistributionNode(span, identifier(clause.name.text), options) if options else None

    def where(self, clause: ClauseExtent) -> nodes.Expression | None:
        where = self.expression(clause.value)
        if where and isinstance(where.tree.body, ast.Tuple):
            several = bool(where.tree.body.elts)
            message = "conditions cannot be listed with commas" if several else "nothing stands between the parentheses"
            hint = "join them with 'and'" if several else "write a condition, such as len(X) < 80"
            self.problems.add(message, where.span, hint)
        return where

    def _clause(
        self, lexemes: list[Lexeme], index: int, line: LogicalLine, words: tuple[str, ...]
    ) -> tuple[ClauseExtent, int]:
        """The clause at `index`, and the index after it; lines below that continue it are added to `lexemes`."""
        first = before = lexemes[index]
        word, name = first.text.lower(), None
        index += 1
        sound = True
        if word == "distribution":
            self._extend(lexemes, index, line, word, None)  # the name may stand in the next line
            if index < len(lexemes) and lexemes[index].kind == "name":
                name = lexemes[index]
                index += 1
            if name is not None and soft.is_word(lexemes, index, "in"):
                before = lexemes[index]
                index += 1
            else:
                sound = False
                self.problem(first, "this 'distribution' is incomplete", "write: distribution NAME in [...]")
        start = index
        index, is_whole = self._extend(lexemes, index, line, word, words)
        value = lexemes[start:index] if sound and is_whole else []
        if sound and is_whole and not value:
            self.problem(before, f"something is missing after '{before.text}'")
        elif value and not ends_operand(value[-1]):
            self.problem(value[-1], f"something is missing after '{value[-1].text}'")
            value = []
        if value:
            self.end = value[-1].end
        return ClauseExtent(word, first, name, value), index

    def _extend(
        self, lexemes: list[Lexeme], start: int, line: LogicalLine, word: str, words: tuple[str, ...] | None
    ) -> tuple[int, bool]:
        """End of the expression that begins at `start`, after adding the lines below that continue it, and whether
        all of them could be read. Without `words`, those that end it, one line is added at most."""
        index, is_whole = start, True
        while True:
            while index < len(lexemes):
                lexeme = lexemes[index]
                if lexeme.depth == 0:
                    complete = ends_operand(lexemes[index - 1]) if index > start else lexeme.text == "from"
                    if lexeme.text == ";" or (complete and soft.clause_word(lexeme, words or ())):
                        return index, is_whole
                index += 1
            following = self.line
            if following is None or not _continues(lexemes[start:], following, line, word):
                return index, is_whole
            self.at += 1
            if index > start and are_apart(lexemes[index - 1], following.lexemes[0]):
                hint = "join the two with 'and', or begin the line where the clause begins"
                self.problem(following.lexemes[0], "nothing joins this line to the condition above it", hint)
                is_whole = False
            is_whole = is_whole and not following.broken
            lexemes.extend(following.lexemes)
            if words is None:
                return index, is_whole


def _continues(expression: list[Lexeme], following: LogicalLine, line: LogicalLine, word: str) -> bool:
    """True if the expression of a clause goes on in the next line."""
    lexemes = following.lexemes
    if soft.begins_clause(lexemes):
        return False
    if following.indent.columns > line.indent.columns:
        # below a condition that is complete, a statement is one that is indented for no reason
        is_apart = bool(expression) and are_apart(expression[-1], lexemes[0])
        return not (is_apart and (soft.is_prompt(lexemes) or soft.is_statement(lexemes)))
    if following.indent.columns < line.indent.columns:
        return False
    if soft.is_word(lexemes, 0, "and", "or", "in", "is"):
        return True
    if soft.is_statement(lexemes) or (soft.is_prompt(lexemes) and (word != "from" or bool(expression))):
        return False
    return not expression or not ends_operand(expression[-1])


def _no_operator(lexemes: list[Lexeme], after: int, end: int) -> bool:
    return after < end and begins_operand(lexemes[after])


def _is_prose(lexemes: list[Lexeme]) -> bool:
    """`Say hello: [GREETING]`: two words that cannot stand side by side in Python."""
    words = [lexeme.text for lexeme in lexemes[:2] if lexeme.kind == "name"]
    if len(words) < 2 or words[0] == "print" or soft.is_assignment(lexemes):
        return False
    return not any(keyword.iskeyword(word) or keyword.issoftkeyword(word) for word in words)


def _after_string(lexemes: list[Lexeme], after: int) -> tuple[Lexeme, str, str | None]:
    """Error of the lexeme at `after`, which follows a string."""
    string, lexeme = lexemes[after - 1], lexemes[after]
    if string.end == lexeme.start and (string.text.count("{") > string.text.count("}") or "[" in string.text):
        other = "'" if string.text[-1] == '"' else '"'
        hint = f"inside a {string.text[-1]}...{string.text[-1]} string write {other}, or use triple quotes"
        return string, "a quote inside {...} or [...] ends this string", hint
    close = difflib.get_close_matches(lexeme.text.lower(), INLINE_CLAUSES, 1)
    hint = f"did you mean '{close[0]}'?" if close else "put other code on a line of its own"
    return lexeme, "only 'where' or 'distribution' can follow a prompt string", hint


# Strings in expressions ----------------------------------------------------------------------------------------------


def _lost(value: ast.expr) -> str | None:
    """Hint for an expression statement with a prompt in it; None if it has none."""
    match value:
        case ast.BoolOp(_, strings) | ast.Tuple(strings) if any(map(_is_prompt, strings)):
            return "write each string on a line of its own"
        case ast.IfExp(_, first, second) if _is_prompt(first) or _is_prompt(second):
            return "write an if statement, with each string on a line of its own"
        case ast.Lambda(_, string) if _is_prompt(string):
            return "a string is a prompt where it stands alone; @query makes a function prompt"
    first = _first_part(value)
    is_string = isinstance(first, ast.JoinedStr) or (isinstance(first, ast.Constant) and isinstance(first.value, str))
    is_lost = is_string if isinstance(value, ast.BinOp) else first is not value and _is_prompt(first)
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
