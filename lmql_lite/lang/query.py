"""From the text of a query to its nodes: Lark reads the frame, Python's `ast` the body, `prompt.lark` the prompts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lmql_lite.errors import QueryError
from lmql_lite.lang import nodes
from lmql_lite.lang.grammar import Misfit, grammar
from lmql_lite.lang.lines import LogicalLine, Scanner
from lmql_lite.lang.names import every_statement, identifier
from lmql_lite.lang.prompt import PROMPTING, prompt_parts
from lmql_lite.lang.python import PythonReader
from lmql_lite.lang.sentences import simple_mistake
from lmql_lite.lang.source import Problems, Source
from lmql_lite.lang.terminals import Lexer, NoPython, Terminal, find_header
from lmql_lite.options import decoder_problem

UNTEXT = re.compile("[\0\ud800-\udfff]|\r(?!\n)")
HINT = 'write a prompt, for example "Say hello:[GREETING]"'

Tree = Any
"""A tree of Lark, whose leaves are terminals."""

Given = nodes.Expression | nodes.DistributionNode


def parse(source: Source) -> nodes.QueryNode:
    """Nodes of a query. Raises one QueryError with all problems inside prompts and clauses, and the first one of the
    structure; names are left to `scope.check`."""
    if odd := UNTEXT.search(source.text):
        message, hint = f"a query cannot hold the character {odd.group()!a}", "save it as UTF-8, with line feeds"
        raise QueryError(message, span=source.span(odd.start(), odd.end()), hint=hint)
    problems, structure = Problems(), Problems()
    lines = Scanner(source, structure).lines()
    is_whole = not structure.found()
    if not lines and is_whole:
        message = "there is nothing but comments" if source.text.strip() else "the file is empty"
        raise QueryError(message, span=source.span(0, 0), hint=HINT)
    lexer = Lexer(source, lines, problems, find_header(lines))
    terminals = lexer.terminals()
    builder = _Builder(source, problems, structure)
    builder.read(terminals)
    query = builder.query(builder.frame(terminals), terminals, lexer.regions, lines) if is_whole else None
    for first in structure.found()[:1]:
        problems.add(first.message, first.span or source.span(0, 0), first.hint)
    problems.raise_any()
    assert query is not None, "what cannot be read is a problem"
    return query


@dataclass(eq=False)
class _Builder:
    """Builder of the nodes of one query."""

    source: Source
    problems: Problems
    structure: Problems
    """Problems of its structure, of which the first is reported: the others mostly follow from it."""
    parts: dict[int, tuple[nodes.Part, ...]] = field(default_factory=dict)
    """Parts of each prompt, by its place."""
    values: dict[int, nodes.Expression | None] = field(default_factory=dict)
    """Expressions of the clauses, by their places."""

    def __post_init__(self) -> None:
        self.python = PythonReader(self.source, self.problems)

    # Pieces ------------------------------------------------------------------------------------------------------

    def read(self, terminals: Sequence[Terminal]) -> None:
        """Read what stands inside prompts and clauses, also where the frame is broken."""
        before = None
        for each in terminals:
            if each.type == "STRING":
                self.parts[each.start] = tuple(self._parts(each))
            elif each.type == "EXPRESSION":
                value = self.python.expression(each.start, each.end) if each.lexemes else None
                self.values[each.start] = value
                if value and before == "WHERE" and isinstance(value.tree.body, ast.Tuple):
                    self.problems.add("conditions cannot be listed with commas", value.span, "join them with 'and'")
            before = each.type

    def _parts(self, prompt: Terminal) -> Iterator[nodes.Part]:
        indent = self.python.indent(prompt.start)
        for each in prompt.lexemes:
            if each.kind == "string":
                yield from prompt_parts(self.python, each.start, each.end, indent)

    # The frame ---------------------------------------------------------------------------------------------------

    def frame(self, terminals: Sequence[Terminal]) -> Tree | None:
        """Lark's tree of the terminals; None, and a problem, if the grammar refuses one."""
        from lark import UnexpectedToken

        lq = grammar("lq")
        parser: Any = lq.parser.parse_interactive("")
        end = len(self.source.text)
        fed = 0
        try:
            for terminal in terminals:
                parser.feed_token(terminal)
                fed += 1
            tree: Tree = parser.feed_token(Terminal("$END", end, end))
        except UnexpectedToken as error:
            states = parser.parser_state.state_stack
            self._refuse(terminals, fed, lq.misfit((states[-1], states[0]), error.token.type))
            return None
        return tree

    def _refuse(self, terminals: Sequence[Terminal], at: int, misfit: Misfit | None) -> None:
        """Report that the grammar does not take the terminal at this index."""
        if terminals[0].type in ("FROM", "WHERE", "DISTRIBUTION"):
            span, hint = self.source.span(terminals[0].start, terminals[0].end), "the prompt goes above its clauses"
            self.structure.add("the query has no body", span, hint)
            return
        blamed = terminals[min(at, len(terminals) - 1)]
        if misfit and misfit.blame != "@":
            blamed = next(each for each in reversed(terminals[:at]) if each.type == misfit.blame)
        lexemes = blamed.lexemes
        if blamed.type == "PYTHON" and (found := simple_mistake(lexemes, -1)):
            self.structure.add(found.sentence, self.source.span(found.start, found.end), found.hint)
            return
        word = next((each for each in lexemes if each.text != "async"), None)
        place = lexemes[-1] if blamed.type == "HEAD" and misfit and misfit.blame == "HEAD" else word
        sentence = misfit.sentence if misfit else "'{}' is not expected here"
        span = self.source.span(place.start, place.end) if place else self.source.span(blamed.start, blamed.end)
        self.structure.add(sentence.format(word.text if word else ""), span, misfit.hint if misfit else None)

    # The whole ---------------------------------------------------------------------------------------------------

    def query(
        self, tree: Tree | None, terminals: Sequence[Terminal], regions: Sequence[NoPython], lines: list[LogicalLine]
    ) -> nodes.QueryNode:
        """The query of a frame. Without the frame it is checked as far as it can be."""
        heading = [each for each in terminals if each.type in ("DECODER", "ARGUMENTS", "_COLON")][:3]
        decoder = self._decoder(heading) if heading else None
        prologue, body = self._statements(heading, regions, lines)
        given: dict[str, Given] = {}
        prompts: dict[nodes.Place, nodes.PromptNode] = {}
        if tree:
            for prompt in tree.find_data("prompt"):
                prompts[self.python.position(prompt.children[0].start)] = self._prompt(prompt)
            clauses = [each for line in tree.find_data("clause_line") for each in line.children]
            given = self._given(clauses, "there is a second '{}'; the first is in line {}")
        where, model, distribution = (given.get(word) for word in ("where", "from", "distribution"))
        query = nodes.QueryNode(
            self.source.span(0, len(self.source.text)),
            tuple(body),
            dict(sorted(prompts.items())),
            decoder,
            tuple(prologue),
            model if isinstance(model, nodes.Expression) else None,
            where if isinstance(where, nodes.Expression) else None,
            distribution if isinstance(distribution, nodes.DistributionNode) else None,
        )
        self._check(query)
        return query

    def _statements(
        self, heading: Sequence[Terminal], regions: Sequence[NoPython], lines: list[LogicalLine]
    ) -> tuple[list[ast.stmt], list[ast.stmt]]:
        """Python's statements above and below the header."""
        python, end = PythonReader(self.source, self.structure), len(self.source.text)
        if not heading:
            return [], python.statements(0, end, regions, lines)
        at = next(index for index, line in enumerate(lines) if line.start == heading[0].start)
        above, header, below = lines[:at], lines[at], lines[at + 1 :]
        prologue = python.statements(0, header.begin, regions, above)
        rest = replace(header, lexemes=[each for each in header.lexemes if each.start >= heading[-1].end])
        body = python.statements(heading[-1].end, header.end, regions, [rest]) if rest.lexemes else []
        body += python.statements(below[0].begin, end, regions, below) if below else []
        return prologue, body

    def _decoder(self, heading: Sequence[Terminal]) -> nodes.DecoderNode:
        name, *others = heading
        written = self.source.text[name.start : name.end]
        if problem := decoder_problem(written):
            self.problems.add(problem.sentence, self.source.span(name.start, name.end), problem.hint)
        given = next((each for each in others if each.type == "ARGUMENTS"), None)
        arguments = self.python.arguments(given.start, given.end) if given else ()
        return nodes.DecoderNode(self.source.span(name.start, (given or name).end), written.lower(), arguments)

    def _prompt(self, prompt: Tree) -> nodes.PromptNode:
        string, *clauses = prompt.children
        given = self._given(clauses, "this string has a second '{}'")
        where, distribution = given.get("where"), given.get("distribution")
        last = clauses[-1].children[-1] if clauses else string
        return nodes.PromptNode(
            self.source.span(string.start, last.end),
            self.parts[string.start],
            where if isinstance(where, nodes.Expression) else None,
            distribution if isinstance(distribution, nodes.DistributionNode) else None,
        )

    def _given(self, clauses: Sequence[Tree], second: str) -> dict[str, Given]:
        """The clauses by their words; of two of a kind the second is a problem."""
        found: dict[str, Given] = {}
        lines: dict[str, int] = {}
        for clause in clauses:
            keyword, value = clause.children[0], self.values[clause.children[-1].start]
            word = keyword.type.lower()
            span = self.source.span(keyword.start, keyword.end)
            if word in lines:
                hint = "join the two with 'and'" if word == "where" else "keep one of them"
                self.problems.add(second.format(word, lines[word]), span, hint)
            elif value and word == "distribution":
                name = clause.children[1]
                written = identifier(self.source.text[name.start : name.end])
                found[word] = nodes.DistributionNode(span.to(value.span), written, value)
            elif value:
                found[word] = value
            lines.setdefault(word, span.line)
        return found

    # Statements --------------------------------------------------------------------------------------------------

    def _check(self, query: nodes.QueryNode) -> None:
        """Report prompts above the header, and strings that are no prompts though they look like them."""
        for statement in query.prologue:
            if query.speaks(statement):
                message = "only plain Python can stand before the decoder header"
                self.problems.add(message, self.python.span(statement), "move it below the header")
        for statement in every_statement(query.body):
            if isinstance(statement, ast.Expr) and not query.prompt(statement) and _is_lost(statement.value):
                message = "this string is not added to the prompt: it is part of an expression"
                hint = "write each string on a line of its own, with {...} for each value"
                self.problems.add(message, self.python.span(statement), hint)


def _is_lost(value: ast.expr) -> bool:
    """True if an expression statement has a string at the left of its parts that was meant as a prompt."""
    is_added = isinstance(value, ast.BinOp)
    parts = [value]
    for part in parts:
        match part:
            case ast.BinOp(left) | ast.Compare(left) | ast.Attribute(left) | ast.Subscript(left):
                parts.append(left)
            case ast.Call(ast.Attribute(left)) | ast.Lambda(body=left):
                parts.append(left)
            case ast.IfExp(_, left, right):
                parts += [left, right]
            case ast.BoolOp(values=several) | ast.Tuple(several):
                parts += several
            case ast.Constant(str(text)) if part is not value and (is_added or PROMPTING.search(text)):
                return True
            case ast.JoinedStr() if is_added:
                return True
    return False
