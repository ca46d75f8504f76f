"""From text to logical lines of lexemes, split as Python does, but going on after a mistake.

Python's own `tokenize` ends at the first error and differs between versions; this one reports an unclosed quote or
bracket, marks the line as broken and resumes at the next line that can be trusted.
"""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass, field
from typing import NamedTuple

from lmql_lite.lang.source import Problems, Source

TAB_COLUMNS = 8

LEXEME = re.compile(
    r"""
      (?P<space>(?:[ \t\f]|\\\r?\n)+)
    | (?P<comment>\#[^\r\n]*)
    | (?P<newline>\r?\n)
    | (?P<string>(?i:br|rb|fr|rf|[rbuf])?(?:\"\"\"|'''|"|'))
    | (?P<number>\.?\d(?:[eE][+-]\d|[\w.])*)
    | (?P<name>[^\W\d]\w*)
    | (?P<op>:=|->|\.\.\.|(?:\*\*|//|>>|<<|[-+*/%@&|^<>=!])=|\*\*|//|>>|<<|.)
    """,
    re.VERBOSE | re.DOTALL,
)

NESTED = sys.version_info >= (3, 12)
"""True if the code in the braces of an f-string may hold the very quotes that surround it."""

DEEPEST = 20
"""Levels of nested f-strings."""

OPENING = re.compile(r"(?i:(br|rb|fr|rf|[rbuf]|))(\"\"\"|'''|\"|')")

PLAIN_REST = {
    '"': re.compile(r'[^"\\\r\n]*(?:\\(?:\r\n|.)[^"\\\r\n]*)*"', re.DOTALL),
    "'": re.compile(r"[^'\\\r\n]*(?:\\(?:\r\n|.)[^'\\\r\n]*)*'", re.DOTALL),
    '"""': re.compile(r'[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""', re.DOTALL),
    "'''": re.compile(r"[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''", re.DOTALL),
}

CLOSER_OF = {"(": ")", "[": "]", "{": "}"}
OPENER_OF = {closer: opener for opener, closer in CLOSER_OF.items()}

INFIX_WORDS = frozenset({"and", "or", "not", "in", "is", "if", "else", "for", "async"})
"""Names that may follow an operand inside an expression."""

OPERAND_WORDS = frozenset({"None", "True", "False"})

# No line inside an open bracket begins with one of these: the bracket must have been forgotten.
UNBRACKETED_WORDS = frozenset(
    {"def", "class", "return", "while", "with", "try", "except", "finally", "raise", "import", "from", "pass", "break"}
    | {"continue", "del", "global", "nonlocal", "assert", "elif"}
)

LINE_INDENT = re.compile(r"[ \t\f]*")


class Lexeme(NamedTuple):
    kind: str
    text: str
    start: int
    end: int
    depth: int
    """Open brackets around it. A bracket itself counts as outside."""


def ends_operand(lexeme: Lexeme) -> bool:
    """True if an expression may be complete after this lexeme."""
    if lexeme.kind == "name":
        return not keyword.iskeyword(lexeme.text) or lexeme.text in OPERAND_WORDS
    return lexeme.kind in ("number", "string") or lexeme.text in (")", "]", "}", "...")


def begins_operand(lexeme: Lexeme) -> bool:
    """True if an operand begins here: a number, a string or a name."""
    return lexeme.kind in ("number", "string") or (lexeme.kind == "name" and lexeme.text not in INFIX_WORDS)


def are_apart(left: Lexeme, right: Lexeme) -> bool:
    """True if these are two operands without an operator between them; a string goes on with a string."""
    return ends_operand(left) and begins_operand(right) and not left.kind == right.kind == "string"


class Indent(NamedTuple):
    """Width of a line's indentation, counted twice (tab stops of 8 and of 1) as Python does to find mixtures."""

    columns: int = 0
    characters: int = 0

    @staticmethod
    def of(space: str) -> Indent:
        if "\t" not in space and "\f" not in space:
            return Indent(len(space), len(space))
        columns = characters = 0
        for character in space:
            if character == "\f":
                columns = characters = 0
                continue
            columns = (columns // TAB_COLUMNS + 1) * TAB_COLUMNS if character == "\t" else columns + 1
            characters += 1
        return Indent(columns, characters)

    def mixes_with(self, other: Indent) -> bool:
        by_columns = (self.columns > other.columns) - (self.columns < other.columns)
        by_characters = (self.characters > other.characters) - (self.characters < other.characters)
        return by_columns != by_characters


@dataclass(slots=True)
class LogicalLine:
    """A logical line: it may run over several lines of the file. `begin` is where its indentation starts."""

    begin: int
    indent: Indent
    lexemes: list[Lexeme] = field(default_factory=list)
    broken: bool = False

    @property
    def start(self) -> int:
        return self.lexemes[0].start

    @property
    def end(self) -> int:
        return self.lexemes[-1].end


class _Opener(NamedTuple):
    lexeme: Lexeme
    doubt: bool
    """Two operands met across a line break while this bracket was the innermost one."""


@dataclass(slots=True)
class Scanner:
    """Reader of the logical lines of a source."""

    source: Source
    problems: Problems
    position: int = 0

    def lines(self) -> list[LogicalLine]:
        text, size = self.source.text, len(self.source.text)
        lines: list[LogicalLine] = []
        while self.position < size and not self.problems.enough:
            begin = self.position
            indent = LINE_INDENT.match(text, begin)
            assert indent is not None
            self.position = indent.end()
            line = LogicalLine(begin, Indent.of(indent.group()))
            self._logical_line(line)
            if line.lexemes:
                lines.append(line)
        return lines

    def _logical_line(self, line: LogicalLine) -> None:
        """Read up to the end of the line, or to the place after a mistake from where reading may go on."""
        text, size, lexemes = self.source.text, len(self.source.text), line.lexemes
        openers: list[_Opener] = []
        fresh = False  # is the next lexeme the first one of a physical line?
        position = self.position
        match_at = LEXEME.match
        while position < size:
            match = match_at(text, position)
            assert match is not None
            kind, start, position = str(match.lastgroup), position, match.end()
            if kind in ("space", "comment"):
                continue
            if kind == "newline":
                if not openers:
                    break
                fresh = True
                continue
            if kind == "string":
                opening = OPENING.match(text, start)
                assert opening is not None
                end = string_end(text, opening)
                if end is None:
                    self._unclosed_string(line, start, opening[2], bool(openers))
                    return
                position = end
            lexeme = Lexeme(kind, text[start:position], start, position, len(openers))
            if fresh and openers:
                fresh = False
                if kind == "name" and lexeme.text in UNBRACKETED_WORDS and lexemes[-1].text != "yield":
                    self._unclosed_bracket(line, openers[-1].lexeme)
                    return
                if are_apart(lexemes[-1], lexeme):
                    openers[-1] = openers[-1]._replace(doubt=True)
            if kind == "op":
                if lexeme.text in CLOSER_OF:
                    openers.append(_Opener(lexeme, doubt=False))
                elif lexeme.text in OPENER_OF:
                    if openers and openers[-1].lexeme.text == OPENER_OF[lexeme.text]:
                        openers.pop()
                        lexeme = Lexeme(kind, lexeme.text, start, position, len(openers))
                    else:
                        self._wrong_closer(line, lexeme, openers)
                        return
            lexemes.append(lexeme)
        if openers:
            self._unclosed_bracket(line, openers[-1].lexeme)
            return
        self.position = position

    # Mistakes ----------------------------------------------------------------------------------------------------

    def _unclosed_string(self, line: LogicalLine, start: int, quote: str, inside_brackets: bool) -> None:
        span_end = self._physical_end(start)
        line.lexemes.append(Lexeme("string", self.source.text[start:span_end], start, span_end, 0))
        line.broken = True
        if len(quote) == 3:
            hint = f"end it with {quote}"
            self.position = len(self.source.text)
        else:
            hint = f"end it with {quote} on the same line, or write {quote * 3} around a text of several lines"
            self.position = self._resume(line, start) if inside_brackets else self._next_line(span_end)
        opened = self.source.text.index(quote, start)
        self.problems.add("this string is never closed", self.source.span(start, opened + len(quote)), hint)

    def _unclosed_bracket(self, line: LogicalLine, opener: Lexeme) -> None:
        closer = CLOSER_OF[opener.text]
        self.problems.add(
            f"'{opener.text}' is never closed",
            self.source.span(opener.start, opener.end),
            f"add the missing '{closer}'",
        )
        line.broken = True
        self.position = self._resume(line, opener.start)
        line.lexemes[:] = [lexeme for lexeme in line.lexemes if lexeme.end <= self.position]

    def _wrong_closer(self, line: LogicalLine, closer: Lexeme, openers: list[_Opener]) -> None:
        span = self.source.span(closer.start, closer.end)
        if not openers:
            self.problems.add(f"'{closer.text}' closes nothing", span, "remove it, or add what it should close")
        elif openers[-1].doubt:
            self._unclosed_bracket(line, openers[-1].lexeme)
            return
        else:
            opener = openers[-1].lexeme
            where = self.source.span(opener.start, opener.end)
            place = "" if where.line == span.line else f" in line {where.line}"
            self.problems.add(
                f"'{closer.text}' does not close the '{opener.text}'{place}", span, f"'{CLOSER_OF[opener.text]}' would"
            )
        line.broken = True
        line.lexemes.append(closer._replace(depth=0))
        self.position = self._resume(line, closer.start)

    def _physical_end(self, position: int) -> int:
        end = self.source.text.find("\n", position)
        end = len(self.source.text) if end < 0 else end
        return end - 1 if end > position and self.source.text[end - 1] == "\r" else end

    def _next_line(self, position: int) -> int:
        end = self.source.text.find("\n", position)
        return len(self.source.text) if end < 0 else end + 1

    def _resume(self, line: LogicalLine, position: int) -> int:
        """The first line after `position` that is not deeper than the broken one, nor only closes its brackets."""
        position = self._next_line(position)
        while position < len(self.source.text):
            match = LINE_INDENT.match(self.source.text, position)
            assert match is not None
            first = self.source.text[match.end() : match.end() + 1]
            if first and first not in "\r\n#)]}" and Indent.of(match.group()).columns <= line.indent.columns:
                return position
            position = self._next_line(position)
        return position


# The end of a string -------------------------------------------------------------------------------------------------


def string_end(text: str, opening: re.Match[str]) -> int | None:
    """Place after the closing quote of the string literal that begins with this match of OPENING."""
    prefix, quote = opening.groups()
    if NESTED and "f" in prefix.lower():
        return _fstring_end(text, opening.end(), quote, 0)
    rest = PLAIN_REST[quote].match(text, opening.end())
    return rest.end() if rest else None


def _fstring_end(text: str, position: int, quote: str, depth: int) -> int | None:
    at: int | None = position
    while at is not None and at < len(text) and depth < DEEPEST:
        if text.startswith(quote, at):
            return at + len(quote)
        character = text[at]
        if text.startswith("\\N{", at):
            at = text.find("}", at) + 1 or None
        elif character == "\\" and text[at + 1 : at + 2] not in ("{", "}"):
            at += 3 if text.startswith("\r\n", at + 1) else 2
        elif text.startswith("{{", at):
            at += 2
        elif character == "{":
            at = _field_end(text, at + 1, quote, depth)
        elif character in "\r\n" and len(quote) == 1:
            return None
        else:
            at += 1
    return None


def _field_end(text: str, position: int, quote: str, depth: int) -> int | None:
    """Place after the brace that closes the code, or its format, at `position`."""
    brackets = 0
    at: int | None = position
    while at is not None and at < len(text):
        character = text[at]
        if opening := OPENING.match(text, at):
            if "f" in opening[1].lower():
                at = _fstring_end(text, opening.end(), opening[2], depth + 1)
            else:
                at = string_end(text, opening)
            continue
        if character == "}" and brackets == 0:
            return at + 1
        if character == ":" and brackets == 0:
            return _format_end(text, at + 1, quote, depth)
        if character == "#":
            at = text.find("\n", at) + 1 or None
            continue
        brackets += (character in "([{") - (character in ")]}")
        if brackets < 0:
            return None
        at += 1
    return None


def _format_end(text: str, position: int, quote: str, depth: int) -> int | None:
    at: int | None = position
    while at is not None and at < len(text) and depth < DEEPEST:
        if text[at] == "}":
            return at + 1
        if text[at] == "{":
            at = _field_end(text, at + 1, quote, depth + 1)
        elif text.startswith(quote, at):
            return None
        else:
            at += 1
    return None
