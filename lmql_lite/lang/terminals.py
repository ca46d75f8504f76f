"""From logical lines to the terminals of `grammar/lq.lark`: the one place that tells soft keywords from names.

A line that is valid Python and could be a clause stays Python. How the terminals nest is the grammar's affair: all that
is remembered here are the columns of the blocks that are open.
"""

from __future__ import annotations

import difflib
import keyword
from dataclasses import dataclass, field
from typing import NamedTuple

from lmql_lite.lang.keywords import CLAUSES, DECODERS, DECODERS_NOT_YET, INLINE_CLAUSES
from lmql_lite.lang.lines import INFIX_WORDS, UNBRACKETED_WORDS, Lexeme, Lexemes, LogicalLine, are_apart, ends_operand
from lmql_lite.lang.source import Problems, Source

COMPOUND = ("if", "for", "while", "with", "try", "elif", "else", "except", "finally")
STATEMENT_WORDS = UNBRACKETED_WORDS | {"if", "for", "else", "async"}
"""Words that cannot begin an expression."""
OPERAND_OPENERS = frozenset({"(", "[", "{", "-", "+", "~", "..."})


class Terminal(NamedTuple):
    """A terminal with its place. STRING has its literals, and EXPRESSION its lexemes, none if it cannot be read."""

    type: str
    start: int
    end: int
    lexemes: tuple[Lexeme, ...] = ()


class NoPython(NamedTuple):
    """Range of the source that is no Python: a prompt with its clauses, or clauses of the query."""

    start: int
    end: int
    is_prompt: bool


# Tests on the lexemes of a line ---------------------------------------------------------------------------------------


def is_word(lexemes: Lexemes, index: int, *words: str) -> bool:
    return index < len(lexemes) and lexemes[index].kind == "name" and lexemes[index].text in words


def is_op(lexemes: Lexemes, index: int, text: str) -> bool:
    return index < len(lexemes) and lexemes[index].kind == "op" and lexemes[index].text == text


def is_assignment(lexemes: Lexemes) -> bool:
    operators = [each.text for each in lexemes if each.depth == 0 and each.kind == "op" and each.text[-1] == "="]
    return any(each not in ("==", "!=", "<=", ">=", ":=") for each in operators)


def clause_word(lexeme: Lexeme, words: tuple[str, ...] = CLAUSES) -> str | None:
    """The clause that this word would begin. `where` and `WHERE`, as in LMQL, but not `Where`."""
    if lexeme.kind != "name" or not (lexeme.text.islower() or lexeme.text.isupper()):
        return None
    word = lexeme.text.lower()
    return word if word in words else None


def begins_clause(lexemes: Lexemes, words: tuple[str, ...] = CLAUSES) -> bool:
    """True if this line is a clause, and not Python."""
    word = clause_word(lexemes[0], words)
    if word is None or len(lexemes) == 1:
        return word is not None
    following = lexemes[1]
    if word == "from":
        return following.text != "." and not any(is_word(lexemes, index, "import") for index in range(1, len(lexemes)))
    if following.kind == "op":
        return word == "where" and following.text in OPERAND_OPENERS and not is_assignment(lexemes)
    if following.kind == "name" and following.text in INFIX_WORDS:
        return following.text == "not" and not is_word(lexemes, 2, "in")
    return True


def strings_end(lexemes: Lexemes, start: int) -> int:
    """Index after the string literals, perhaps in parentheses, that stand at `start`; `start` when there are none."""
    opened = 0
    end = start
    for index in range(start, len(lexemes)):
        lexeme = lexemes[index]
        if lexeme.text == "(" and lexeme.kind == "op":
            opened += 1
        elif lexeme.text == ")" and opened and lexemes[index - 1].text != "(":
            opened -= 1
        elif lexeme.kind != "string":
            break
        end = end if opened else index + 1
    return end


def is_prompt(lexemes: Lexemes, start: int = 0, words: tuple[str, ...] = INLINE_CLAUSES) -> bool:
    """A string that stands alone, or before one of its clauses or the end of the statement."""
    end = strings_end(lexemes, start)
    if end == start:
        return False
    return end == len(lexemes) or is_op(lexemes, end, ";") or clause_word(lexemes[end], words) is not None


def is_statement(lexemes: Lexemes) -> bool:
    """True if this line must be a statement, and cannot continue an expression begun above."""
    return (
        is_word(lexemes, 0, *STATEMENT_WORDS)
        or lexemes[0].text == "@"
        or is_assignment(lexemes)
        or begins_clause(lexemes)
    )


def colon(lexemes: Lexemes) -> int | None:
    """Index of the colon that ends the head of a compound statement."""
    lambdas = 0
    for index, lexeme in enumerate(lexemes):
        if not lexeme.depth and lexeme.kind == "name" and lexeme.text == "lambda":
            lambdas += 1
        elif not lexeme.depth and lexeme.kind == "op" and lexeme.text == ":":
            if not lambdas:
                return index
            lambdas -= 1
    return None


def is_compound(lexemes: Lexemes) -> bool:
    """True if a compound statement other than a definition begins here. `match` only where the line ends in a colon."""
    first = lexemes[0]
    if first.kind != "name" or first.text not in ("match", "case"):
        return is_word(lexemes, 0, *COMPOUND) or (first.text == "async" and is_word(lexemes, 1, "for", "with"))
    if len(lexemes) < 3:
        return first.text == "case" and is_op(lexemes, 1, ":")
    following, at = lexemes[1], colon(lexemes)
    is_operand = following.kind != "op" or following.text in OPERAND_OPENERS or following.text == "*"
    is_infix = following.kind == "name" and following.text in INFIX_WORDS - {"not"}
    return is_operand and not is_infix and at is not None and (first.text == "case" or at == len(lexemes) - 1)


def is_definition(lexemes: Lexemes) -> bool:
    return is_word(lexemes, 0, "def", "class") or (is_word(lexemes, 0, "async") and is_word(lexemes, 1, "def"))


# The header -----------------------------------------------------------------------------------------------------------


def header_end(lexemes: Lexemes) -> int | None:
    """Index after the name and the arguments of a line with the shape of a decoder header, whether or not the name is
    known.

    A header stands alone, or before the first string.
    """
    first = lexemes[0]
    if first.kind != "name" or keyword.iskeyword(first.text):
        return None
    end = 1
    if is_op(lexemes, 1, "("):
        end = 1 + next(at for at, each in enumerate(lexemes) if at > 1 and not each.depth and each.text == ")")
    is_alone = end >= len(lexemes) or (is_op(lexemes, end, ":") and end == len(lexemes) - 1)
    return end if is_alone or is_prompt(lexemes, end, CLAUSES) else None


def is_decoder(name: str) -> bool:
    return name.lower() in DECODERS or name.lower() in DECODERS_NOT_YET


def find_header(lines: list[LogicalLine]) -> int | None:
    """Index of the line with the decoder header, also of one whose name is misspelt.

    After the first prompt, `sample(3)` is a call like any other; a string as the very first line may be a docstring.
    """
    prompted = False
    for index, line in enumerate(lines):
        lexemes = line.lexemes
        if line.columns != lines[0].columns:
            continue
        if begins_clause(lexemes):
            return None
        if is_prompt(lexemes, words=CLAUSES):
            prompted = prompted or index > 0
        elif (end := header_end(lexemes)) is not None:
            if is_decoder(lexemes[0].text):
                call = 1 < end == len(lexemes)
                if not call or not (prompted or (is_prompt(lines[0].lexemes) and not _opens_body(lines, index))):
                    return index
            elif not prompted and _is_misspelt(lines, index, end):
                return index
    return None


def _opens_body(lines: list[LogicalLine], index: int) -> bool:
    """True if a block or a prompt follows."""
    following = lines[index + 1] if index + 1 < len(lines) else None
    return following is not None and (following.columns > lines[index].columns or is_prompt(following.lexemes))


def _is_misspelt(lines: list[LogicalLine], index: int, end: int) -> bool:
    """True if the rest of the query treats this line as a header with a misspelt decoder."""
    line = lines[index]
    claused = any(begins_clause(other.lexemes) for other in lines if other.columns <= line.columns)
    if end < len(line.lexemes):
        close = difflib.get_close_matches(line.lexemes[0].text.lower(), DECODERS + DECODERS_NOT_YET, 1)
        return (claused or bool(close)) and not is_op(line.lexemes, end, ":")
    deeper = index + 1 < len(lines) and lines[index + 1].columns > line.columns
    return _opens_body(lines, index) and (deeper or claused or end == 1)


# The lexer ------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Lexer:
    """Lexer of one query: reads its logical lines in order."""

    source: Source
    lines: list[LogicalLine]
    problems: Problems
    header: int | None
    """Index of the line with the decoder."""
    at: int = 0
    """Index of the line that is read next."""
    found: list[Terminal] = field(default_factory=list)
    regions: list[NoPython] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    """Columns of the open blocks, those of the query's own lines first."""
    definition: int | None = None
    """Columns of the function or class that is open, whose strings are its own."""

    def terminals(self) -> list[Terminal]:
        self.levels = [line.columns for line in self.lines[:1]]
        while self.at < len(self.lines):
            line = self.lines[self.at]
            self.at += 1
            self._indentation(line)
            self._line(line)
        end = len(self.source.text)
        self.found += [Terminal("_DEDENT", end, end)] * (len(self.levels) - 1)
        return self.found

    def add(self, type: str, lexemes: Lexemes) -> None:
        if lexemes:
            self.found.append(Terminal(type, lexemes[0].start, lexemes[-1].end, tuple(lexemes)))

    def _end_line(self) -> None:
        end = self.found[-1].end
        self.found.append(Terminal("_NEWLINE", end, end))

    def _indentation(self, line: LogicalLine) -> None:
        place, columns, levels = line.lexemes[:1], line.columns, self.levels
        if self.definition is not None and columns <= self.definition:
            self.definition = None
        while len(levels) > 1 and levels[-1] > columns:
            levels.pop()
            self.add("_DEDENT", place)
        is_clause = len(levels) == 1 and self.definition is None and begins_clause(line.lexemes)
        if columns > levels[-1] and not is_clause:
            levels.append(columns)
            self.add("_INDENT", place)
        elif columns < levels[-1]:
            levels[-1] = columns
            self.add("_DEDENT", place)

    def _line(self, line: LogicalLine) -> None:
        lexemes, index = line.lexemes, 0
        if self.at - 1 == self.header:
            index = header_end(lexemes) or 1
            self.add("DECODER", lexemes[:1])
            self.add("ARGUMENTS", lexemes[1:index])
            if is_op(lexemes, index, ":"):
                self.add("_COLON", lexemes[index : index + 1])
                index += 1
            self._statements(line, index)
        elif self.definition is not None or is_definition(lexemes):
            if self.definition is None and is_definition(lexemes):
                self.definition = line.columns
            self.add("HEAD" if self._head_end(lexemes) == len(lexemes) else "PYTHON", lexemes)
        elif begins_clause(lexemes):
            self._clauses(line)
        elif self._is_second_header(line):
            self.add("DECODER", lexemes[:1])
            self.add("ARGUMENTS", lexemes[1:])
        elif self.at == 1 and self.header and len(lexemes) == 1 and lexemes[0].text.endswith(('"""', "'''")):
            self.add("PYTHON", lexemes)  # the docstring of a query with a header
        else:
            index = self._head_end(lexemes)
            self.add("HEAD", lexemes[:index])
            self._statements(line, index)
        self._end_line()

    @staticmethod
    def _head_end(lexemes: Lexemes) -> int:
        """Index after the head of a block; 0 for a line that has none."""
        at = colon(lexemes) if is_compound(lexemes) or is_definition(lexemes) else None
        return 0 if at is None else at + 1

    def _is_second_header(self, line: LogicalLine) -> bool:
        below = self.lines[self.at] if self.at < len(self.lines) else line
        is_header = is_decoder(line.lexemes[0].text) and header_end(line.lexemes) == len(line.lexemes)
        return self.header is not None and is_header and below.columns > line.columns == self.levels[0]

    # Statements ---------------------------------------------------------------------------------------------------

    def _statements(self, line: LogicalLine, index: int) -> None:
        """Statements between semicolons. A clause at the end of the line takes the lines below that continue it."""
        lexemes = list(line.lexemes)
        may_end = index == 0 or self.at - 1 == self.header
        while index < len(lexemes):
            if is_op(lexemes, index, ";"):
                self.add("_SEMICOLON", lexemes[index : index + 1])
                index += 1
            elif (may_end and is_prompt(lexemes, index, CLAUSES)) or is_prompt(lexemes, index):
                index = self._prompt(lexemes, index, line)
                if may_end and index < len(lexemes) and clause_word(lexemes[index], ("from",)):
                    # `argmax "Hello[WHO]" from "demo"` is one line, as LMQL has it
                    self.lines.insert(self.at, LogicalLine(lexemes[index].start, self.levels[0], lexemes[index:]))
                    return
            else:
                ends = (at for at in range(index, len(lexemes)) if not lexemes[at].depth and lexemes[at].text == ";")
                end = next(ends, len(lexemes))
                self.add("PYTHON", lexemes[index:end])
                index = end
            may_end = False

    def _prompt(self, lexemes: list[Lexeme], index: int, line: LogicalLine) -> int:
        """Add the prompt at `index` with its clauses. Returns the index after them."""
        start, after = lexemes[index].start, strings_end(lexemes, index)
        self.add("STRING", lexemes[index:after])
        index = after
        while True:
            below = self.lines[self.at] if self.at < len(self.lines) and self.at - 1 != self.header else None
            is_clause = below and below.columns > line.columns and begins_clause(below.lexemes, INLINE_CLAUSES)
            if below and is_clause and index == len(lexemes):
                # On a line of its own a clause belongs to the string above when it is deeper than that.
                self.at += 1
                lexemes.extend(below.lexemes)
            if index >= len(lexemes) or not clause_word(lexemes[index], INLINE_CLAUSES):
                break
            index = self._clause(lexemes, index, line)
        self.regions.append(NoPython(start, lexemes[index - 1].end, is_prompt=True))
        return index

    # Clauses ------------------------------------------------------------------------------------------------------

    def _clauses(self, line: LogicalLine) -> None:
        lexemes = list(line.lexemes)
        index = 0
        while index < len(lexemes) and clause_word(lexemes[index]):
            index = self._clause(lexemes, index, line)
        self.regions.append(NoPython(line.start, lexemes[index - 1].end, is_prompt=False))
        self.add("PYTHON", lexemes[index:])

    def _clause(self, lexemes: list[Lexeme], index: int, line: LogicalLine) -> int:
        """Add the clause at `index`. Returns the index after it; lines that continue it are added to `lexemes`."""
        word = lexemes[index].text.lower()
        self.add(word.upper(), lexemes[index : index + 1])
        index += 1
        if word == "distribution":
            self._extend(lexemes, index, line, word, most=1)  # the name may stand in the next line
            if index < len(lexemes) and lexemes[index].kind == "name":
                self.add("NAME", lexemes[index : index + 1])
                index += 1
                if is_word(lexemes, index, "in"):
                    self.add("_IN", lexemes[index : index + 1])
                    index += 1
        end, is_whole = self._extend(lexemes, index, line, word)
        if end > index:
            self.add("EXPRESSION", lexemes[index:end])
            self.found[-1] = self.found[-1] if is_whole else self.found[-1]._replace(lexemes=())
        return end

    def _extend(
        self, lexemes: list[Lexeme], start: int, line: LogicalLine, word: str, most: int | None = None
    ) -> tuple[int, bool]:
        """End of the expression at `start`, after adding `most` of the lines below that continue it, and whether all of
        them could be read."""
        index, is_whole = start, True
        while True:
            while index < len(lexemes):
                lexeme = lexemes[index]
                if lexeme.depth == 0:
                    complete = ends_operand(lexemes[index - 1]) if index > start else lexeme.text == "from"
                    if lexeme.text == ";" or (complete and most is None and clause_word(lexeme)):
                        return index, is_whole
                index += 1
            following = self.lines[self.at] if self.at < len(self.lines) else None
            if following is None or most == 0 or not _continues(lexemes[start:], following, line, word):
                return index, is_whole
            self.at += 1
            most = None if most is None else most - 1
            if index > start and are_apart(lexemes[index - 1], following.lexemes[0]):
                hint = "join the two with 'and', or begin the line where the clause begins"
                span = self.source.span(following.start, following.lexemes[0].end)
                self.problems.add("nothing joins this line to the condition above it", span, hint)
                is_whole = False
            lexemes.extend(following.lexemes)


def _continues(expression: Lexemes, following: LogicalLine, line: LogicalLine, word: str) -> bool:
    """True if the expression of a clause goes on in the next line."""
    lexemes = following.lexemes
    if begins_clause(lexemes):
        return False
    if following.columns > line.columns:
        # below a condition that is complete, a statement is one that is indented for no reason
        is_apart = bool(expression) and are_apart(expression[-1], lexemes[0])
        return not (is_apart and (is_prompt(lexemes) or is_statement(lexemes)))
    if following.columns < line.columns:
        return False
    if is_word(lexemes, 0, "and", "or", "in", "is"):
        return True
    if is_statement(lexemes) or (is_prompt(lexemes) and (word != "from" or bool(expression))):
        return False
    return not expression or not ends_operand(expression[-1])
