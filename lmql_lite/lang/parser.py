"""From the text of a query to its nodes, by recursive descent over its logical lines.

`grammar/lq.lark` is the reference of the structure (D51).
"""

from __future__ import annotations

import difflib
import re
import threading
import warnings
from dataclasses import dataclass, field

from lmql_lite.errors import QueryError
from lmql_lite.lang import nodes
from lmql_lite.lang import soft_keywords as soft
from lmql_lite.lang.block_parser import ORPHANS, BlockParser
from lmql_lite.lang.keywords import DECODERS, DECODERS_NOT_YET
from lmql_lite.lang.python_reader import PythonReader
from lmql_lite.lang.scanner import Indent, Lexeme, LogicalLine, Scanner
from lmql_lite.lang.source import Problems, Source
from lmql_lite.options import NEAREST

UNTEXT = re.compile("[\0\ud800-\udfff]|\r(?!\n)")
ODD = {
    "\0": ("the text holds a NUL character", "remove it"),
    "\r": ("a line ends in a lone carriage return", "end lines with a line feed"),
}
SURROGATE = ("the text holds half of a character (a lone surrogate)", "save the text as UTF-8")

DEEPEST = 60
"""Levels of nested blocks. Python allows 100."""

# Python warns of a "\d" while it parses, which is of no use to the user of a query. Filters of warnings belong to the
# whole process, so only one thread may set and restore them at a time.
QUIET = threading.Lock()


def parse(source: Source) -> nodes.QueryNode:
    """Nodes of a query. Raises one QueryError that holds every problem found; names are left to `scope.check`."""
    problems = Problems()
    if odd := UNTEXT.search(source.text):
        message, hint = ODD.get(odd.group(), SURROGATE)
        raise QueryError(message, span=source.span(odd.start(), odd.end()), hint=hint)
    with QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lines = Scanner(source, problems).lines()
        if not lines:
            message = "there is nothing but comments" if source.text.strip() else "the file is empty"
            raise QueryError(message, span=source.span(0, 0), hint='write a prompt, for example "Say hello:[GREETING]"')
        if "from" in source.text or "FROM" in source.text:
            lines = [part for line in lines for part in soft.model_apart(line, lines[0].indent)]
        parser = _Parser(source, lines, problems, PythonReader(source, problems), header=soft.find_header(lines))
        query = parser.query()
        if not problems:
            parser.python.check_compiles()
    problems.raise_any()
    return query


@dataclass(eq=False)
class _Parser(BlockParser):
    """Parser of a whole query: its header, its body and its clauses.

    It never stops: a line that it cannot place is a problem, and the lines after it are read as usual.
    """

    header: int | None = None
    """Index of the line with the decoder."""
    decoder: nodes.DecoderNode | None = None
    prologue: list[nodes.Statement] = field(default_factory=list)
    given: dict[str, nodes.Expression | nodes.DistributionNode] = field(default_factory=dict)
    """The clauses of the query."""
    clause_lines: dict[str, int] = field(default_factory=dict)
    closed: str | None = None
    """Reason that no statement can follow at the top level: "clauses" or "body"."""
    depth: int = 1
    """Blocks that are open, the query's own among them."""

    def query(self) -> nodes.QueryNode:
        body = self._body()
        prologue: list[nodes.Code] = []
        for statement in self.prologue:
            if isinstance(statement, nodes.Code):
                prologue.append(statement)
            else:
                is_prompt = isinstance(statement, nodes.PromptNode)
                what = "this string stands" if is_prompt else "only plain Python can stand"
                self.problems.add(f"{what} before the decoder header", statement.span, "move it below the header")
        if not body and not self.problems:
            place = self.decoder.span if self.decoder else self.span_from(self.lines[0].start)
            self.problems.add("the query has no body", place, "the prompt goes above `from` and `where`")
        where, model, distribution = (self.given.get(word) for word in ("where", "from", "distribution"))
        return nodes.QueryNode(
            self.source.span(0, len(self.source.text)),
            tuple(body),
            self.decoder,
            tuple(prologue),
            model if isinstance(model, nodes.Expression) else None,
            where if isinstance(where, nodes.Expression) else None,
            distribution if isinstance(distribution, nodes.DistributionNode) else None,
        )

    # Blocks ------------------------------------------------------------------------------------------------------

    def statements(self, level: Indent) -> list[nodes.Statement]:
        statements: list[nodes.Statement] = []
        self.depth += 1
        while line := self.line:
            if self.depth > DEEPEST:
                self.problem(line.lexemes[0], "this is nested too deeply", "move the inner part into a function")
            if self.depth > DEEPEST or self.problems.enough:
                self.at = len(self.lines)
                break
            if line.indent != level and self.is_shallower(line, level):
                break
            is_deeper = line.indent.columns > level.columns
            statements += self.unexpected_indent(line) if is_deeper else self.statement(line)
        self.depth -= 1
        return statements

    def is_shallower(self, line: LogicalLine, level: Indent) -> bool:
        """True if the line is indented less. An ambiguous indentation is reported, and counts as not less."""
        if line.indent.mixes_with(level):
            self.problem(line.lexemes[0], "tabs and spaces are mixed in the indentation", "indent with spaces only")
            return False
        return line.indent.columns < level.columns

    def statement(self, line: LogicalLine) -> list[nodes.Statement]:
        lexemes = line.lexemes
        if line.broken:
            return self.broken_block(line)
        if lexemes[0].kind != "string":
            if soft.begins_clause(lexemes):
                hint = "write it behind the string it belongs to, or outside the body for the whole query"
                self.problem(lexemes[0], f"'{lexemes[0].text}' stands inside the body of the query", hint)
                self.clauses(line)
                return []
            if soft.is_definition(lexemes):
                return self.definition(line)
            if word := soft.compound_word(lexemes):
                return self.compound(line, word)
        known = len(self.problems)
        statements = self.simple(line, 0)
        if soft.is_op(lexemes, len(lexemes) - 1, ":") and len(self.problems) > known:
            statements += self.flat_block(line)  # the head of a block of another language
        return statements

    # The top of the query ----------------------------------------------------------------------------------------

    def _body(self) -> list[nodes.Statement]:
        """Statements of the query below its header. Those above it, and the clauses, are kept in `prologue` and
        `given`."""
        statements: list[nodes.Statement] = []
        level = self.lines[0].indent
        while (line := self.line) and not self.problems.enough:
            if line.indent != level and self.is_shallower(line, level):
                self.problem(line.lexemes[0], "this line is indented less than the first line of the query")
            is_clause = soft.begins_clause(line.lexemes)
            if line.indent.columns > level.columns and not is_clause:
                statements += self.unexpected_indent(line)
            elif self.at == self.header:
                self.prologue, statements = statements, self._header(line)
            elif is_clause:
                self.closed = "clauses"
                self._clauses(line)
            elif self.closed and not line.broken:
                self._outside(line)
            elif self.at == 0 and self.header and soft.is_docstring(line.lexemes):
                self.at += 1
                code = self.python.statement(line.start, line.end)
                statements += [code] if code else []
            else:
                statements += self.statement(line)
        return statements

    def _header(self, line: LogicalLine) -> list[nodes.Statement]:
        """Read the decoder, and the body that it opens."""
        lexemes = line.lexemes
        end = soft.header_end(lexemes)
        if end is None or line.broken:
            self._decoder(lexemes[:1])
            self.at += 1
            return self._below_header(line)
        if soft.is_op(lexemes, end, ":"):
            self.problem(lexemes[end], "no ':' stands after a decoder", "remove the ':'")
        self._decoder(lexemes[:end])
        end += soft.is_op(lexemes, end, ":")
        if end == len(lexemes):
            self.at += 1
            return self._below_header(line)
        body = self.simple(line, end, header=True)
        below = self.below(line)
        if below and not soft.begins_clause(below.lexemes):
            body += self.statements(below.indent)
            self.closed = "body"
        return body

    def _below_header(self, line: LogicalLine) -> list[nodes.Statement]:
        """Statements below the header, if they are indented."""
        following = self.line
        if following is None or soft.begins_clause(following.lexemes):
            if not line.broken:
                self.problem(line.lexemes[0], "the query has no body", "write the prompt below the decoder")
            return []
        if following.indent.columns <= line.indent.columns:
            return []
        self.closed = "body"
        return self.statements(following.indent)

    def _decoder(self, lexemes: list[Lexeme]) -> None:
        name = lexemes[0]
        known = name.text.lower()
        if known in DECODERS_NOT_YET:
            self.problem(name, f"this version does not have the decoder '{name.text}'", NEAREST[known])
        elif known not in DECODERS:
            close = difflib.get_close_matches(known, DECODERS + DECODERS_NOT_YET, 1)
            meant = f"; did you mean '{close[0]}'?" if close else ""
            self.problem(name, f"no decoder is called '{name.text}'{meant}", f"there are {', '.join(DECODERS)}")
        given = self.python.arguments(lexemes[1].start, lexemes[-1].end) if len(lexemes) > 1 else ()
        self.decoder = nodes.DecoderNode(self.source.span(name.start, lexemes[-1].end), known, given)

    def _clauses(self, line: LogicalLine) -> None:
        if line.broken:
            self.at += 1
            while self.below(line):
                self.at += 1
            return
        for clause in self.clauses(line):
            word = clause.word
            if word == "distribution":
                value: nodes.Expression | nodes.DistributionNode | None = self.distribution(clause)
            else:
                value = self.where(clause) if word == "where" else self.expression(clause.value)
            if word in self.given:
                hint = "join the two with 'and'" if word == "where" else "keep one of them"
                first = self.clause_lines[word]
                self.problem(clause.keyword, f"there is a second '{word}'; the first is in line {first}", hint)
            elif value is not None:
                self.given[word] = value
                self.clause_lines[word] = self.source.span(clause.keyword.start, clause.keyword.end).line

    def _outside(self, line: LogicalLine) -> None:
        """Refuse the lines that stand after the body of the query, up to its next clause."""
        first, end = line.lexemes[0], soft.header_end(line.lexemes)
        while (each := self.line) and not each.broken and not soft.begins_clause(each.lexemes):
            self.statement(each)
        # After the problems of the lines themselves: only the first problem of a line is reported.
        if self.decoder and first.text.lower() in DECODERS and end == len(line.lexemes):
            message = f"there is a second decoder; the first is in line {self.decoder.span.line}"
            self.problem(first, message, "keep one of them")
        elif soft.compound_word(line.lexemes) in ORPHANS:
            pass
        elif self.closed == "clauses":
            self.problem(first, "this line comes after the clauses, which end the query", "move it above them")
        else:
            self.problem(first, "this line stands outside the body of the query", "indent it like the body")
