"""From the text of a query to its tree."""

from __future__ import annotations

import re
import threading
import warnings
from typing import TYPE_CHECKING

from lmql_lite.lang import nodes
from lmql_lite.lang.builder import Builder
from lmql_lite.lang.grammars import Terminal, read
from lmql_lite.lang.keywords import DECODERS
from lmql_lite.lang.layout import Layout
from lmql_lite.lang.problems import Problems
from lmql_lite.lang.python import Python
from lmql_lite.lang.scanner import Scanner
from lmql_lite.lang.source import Source

if TYPE_CHECKING:
    from lark import Token, Tree

UNTEXT = re.compile("[\0\ud800-\udfff]|\r(?!\n)")

# Python warns of a "\d" while it parses. That is no business of whoever runs a query; but filters of warnings belong
# to the whole process, so only one thread may set and restore them at a time.
_QUIET = threading.Lock()

ORPHANS = {
    "ELIF": "this 'elif' has no 'if' above it",
    "ELSE": "this 'else' has no 'if', 'for', 'while' or 'try' above it",
    "EXCEPT": "this 'except' has no 'try' above it",
    "FINALLY": "this 'finally' has no 'try' above it",
    "CASE": "this 'case' has no 'match' above it",
}


def parse(source: Source) -> nodes.Query:
    """Raises one QueryError that holds every problem found. What the names mean is left to `scope.check`."""
    problems = Problems()
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        query = _Parser(source, problems).query()
    problems.raise_any()
    assert query is not None
    return query


class _Parser:
    def __init__(self, source: Source, problems: Problems) -> None:
        self.source = source
        self.problems = problems

    def query(self) -> nodes.Query | None:
        """None when there is nothing to build a tree from."""
        if not self._is_text():
            return None
        lines = list(Scanner(self.source, self.problems).lines())
        if not lines:
            self._empty()
            return None
        python = Python(self.source, self.problems)
        layout = Layout(self.source, lines, python, self.problems)
        terminals = layout.run()
        tree = self._tree(terminals)
        if tree is None:
            return None
        query = Builder(self.source, python, layout, self.problems).query(tree)
        if not self.problems:
            python.check_compiles()
        return query

    def _is_text(self) -> bool:
        odd = UNTEXT.search(self.source.text)
        if odd is None:
            return True
        message, hint = {
            "\0": ("the text holds a NUL character", "remove it"),
            "\r": ("a line ends in a lone carriage return", "end lines with a line feed"),
        }.get(odd.group(), ("the text holds half of a character (a lone surrogate)", "save the text as UTF-8"))
        self.problems.add(message, self.source.span(odd.start(), odd.end()), hint)
        return False

    def _empty(self) -> None:
        comments = bool(self.source.text.strip())
        message = "there is nothing but comments" if comments else "the file is empty"
        hint = 'write a prompt, for example "Say hello:[GREETING]"'
        self.problems.add(message, self.source.span(0, 0), hint)

    def _tree(self, terminals: list[Terminal]) -> Tree[Token] | None:
        """Parse; replace what does not fit by BROKEN and parse again, until it does."""
        from lark.exceptions import UnexpectedToken

        for _ in range(len(terminals) + 1):
            try:
                return read("lq", terminals, self.source.text)
            except UnexpectedToken as error:
                index = error.token.line if error.token.type != "$END" else None
                if index is None or self.problems.enough:
                    break
                terminals = self._without(terminals, index)
        if not self.problems:
            end = len(self.source.text)
            self.problems.add("this query cannot be read to its end", self.source.span(end, end))
        return None

    def _without(self, terminals: list[Terminal], index: int) -> list[Terminal]:
        first = terminals[index]
        if first.type == "BROKEN":
            return terminals[:index] + terminals[_statement_end(terminals, index) :]
        if first.type == "_DEDENT" and terminals[index - 1].type == "_INDENT":
            # The lines of this block were all left out.
            types = ("CASE", "_COLON") if terminals[max(index - 4, 0)].type == "MATCH" else ()
            filler = [Terminal(type, first.start, first.start) for type in (*types, "BROKEN", "_NEWLINE")]
            return [*terminals[:index], *filler, *terminals[index:]]
        claused = any(_begins_clause(terminals, at) for at in range(index))
        span = self.source.span(first.start, first.end)
        if first.type in ORPHANS:
            self.problems.add(ORPHANS[first.type], span, "check its indentation")
        elif any(each.type == "MATCH" for each in terminals[:index]) and terminals[index - 1].type == "_INDENT":
            self.problems.add("only 'case' can stand directly inside 'match'", span, None)
        elif _depth(terminals, index) == 0:
            end = _next_clause(terminals, index)
            header = next((each for each in terminals[:index] if each.type == "DECODER"), None)
            if header and self.source.text[first.start : first.end].partition("(")[0].strip().lower() in DECODERS:
                line = self.source.span(header.start, header.end).line
                self.problems.add(f"there is a second decoder; the first is in line {line}", span, "keep one of them")
            elif claused:
                self.problems.add("this line comes after the clauses, which end the query", span, "move it above them")
            else:
                self.problems.add("this line stands outside the body of the query", span, "indent it like the body")
            return terminals[:index] + terminals[end:]
        else:
            self.problems.add("this is not expected here", span, None)
        end = _statement_end(terminals, index)
        broken = [Terminal("BROKEN", first.start, first.end), Terminal("_NEWLINE", first.end, first.end)]
        return [*terminals[:index], *broken, *terminals[max(end, index + 1) :]]


def _statement_end(terminals: list[Terminal], index: int) -> int:
    """Index after the statement that begins at `index`, with the blocks inside it."""
    depth = 0
    while index < len(terminals):
        type = terminals[index].type
        depth += (type == "_INDENT") - (type == "_DEDENT")
        if depth < 0:
            return index
        index += 1
        following = terminals[index].type if index < len(terminals) else ""
        if depth == 0 and type in ("_NEWLINE", "_DEDENT") and following != "_INDENT":
            return index
    return index


def _depth(terminals: list[Terminal], index: int) -> int:
    return sum((each.type == "_INDENT") - (each.type == "_DEDENT") for each in terminals[:index])


def _begins_clause(terminals: list[Terminal], index: int) -> bool:
    """A clause of the query; one of a string does not stand at the start of its line."""
    words = ("FROM", "WHERE", "DISTRIBUTION", "BROKEN_CLAUSE")
    return terminals[index].type in words and (index == 0 or terminals[index - 1].type in ("_NEWLINE", "_DEDENT"))


def _next_clause(terminals: list[Terminal], index: int) -> int:
    while index < len(terminals) and not _begins_clause(terminals, index):
        index += 1
    return index
