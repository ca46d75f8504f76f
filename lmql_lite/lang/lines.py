"""From text to logical lines of lexemes, split as Python does, up to an unclosed quote or bracket.

Python's own `tokenize` differs between versions.
"""

from __future__ import annotations

import keyword
import re
import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lmql_lite.lang.source import Problems, Source

TAB_COLUMNS = 8

LEXEME = re.compile(
    r"""
    (?> (?:[ \t\f]|\\\r?\n)* ) (?:
      (?P<nothing>\#[^\r\n]*|\Z)
    | (?P<newline>\r?\n)
    | (?P<string>(?i:br|rb|fr|rf|[rbuf])?(?:\"\"\"|'''|"|'))
    | (?P<number>\.?\d(?:[eE][+-]\d|[\w.])*)
    | (?P<name>[^\W\d]\w*)
    | (?P<op>:=|->|\.\.\.|(?:\*\*|//|>>|<<|[-+*/%@&|^<>=!])=|\*\*|//|>>|<<|.)
    )""",
    re.VERBOSE | re.DOTALL,
)

OPENING = re.compile(r"(?i:(br|rb|fr|rf|[rbuf]|))(\"\"\"|'''|\"|')")

NESTED = sys.version_info >= (3, 12)
"""True if the code in the braces of an f-string may hold the very quotes that surround it."""

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


Lexemes = Sequence[Lexeme]


def ends_operand(lexeme: Lexeme) -> bool:
    """True if an expression may be complete after this lexeme."""
    if lexeme.kind == "name":
        return not keyword.iskeyword(lexeme.text) or lexeme.text in OPERAND_WORDS
    return lexeme.kind in ("number", "string") or lexeme.text in (")", "]", "}", "...")


def are_apart(left: Lexeme, right: Lexeme) -> bool:
    """True if these are two operands without an operator between them; a string goes on with a string."""
    begins = right.kind in ("number", "string") or (right.kind == "name" and right.text not in INFIX_WORDS)
    return begins and ends_operand(left) and not left.kind == right.kind == "string"


def columns_of(space: str) -> int:
    """Width of an indentation, with tab stops of 8 as in Python."""
    columns = 0
    for character in space:
        if character == "\t":
            columns = (columns // TAB_COLUMNS + 1) * TAB_COLUMNS
        else:
            columns = 0 if character == "\f" else columns + 1
    return columns


@dataclass(slots=True)
class LogicalLine:
    """A logical line: it may run over several lines of the file. `begin` is where its indentation starts."""

    begin: int
    columns: int
    """Width of its indentation."""
    lexemes: list[Lexeme] = field(default_factory=list)

    @property
    def start(self) -> int:
        return self.lexemes[0].start

    @property
    def end(self) -> int:
        return self.lexemes[-1].end


def line_at(lines: Sequence[LogicalLine], offset: int) -> LogicalLine:
    """The logical line at this offset, or the last one before it."""
    return lines[max(bisect_right(lines, offset, key=lambda line: line.begin) - 1, 0)]


class Broken(NamedTuple):
    """A mistake that leaves open where a line ends."""

    lexeme: Lexeme
    """The quote or the bracket to blame."""
    sentence: str
    hint: str


@dataclass(slots=True)
class Scanner:
    """Reader of the logical lines of a source."""

    source: Source
    problems: Problems
    position: int = 0

    def lines(self) -> list[LogicalLine]:
        """The lines up to one that cannot be read, which is a problem."""
        text, size = self.source.text, len(self.source.text)
        lines: list[LogicalLine] = []
        while self.position < size:
            begin = self.position
            self.position = _indent_end(text, begin)
            line = LogicalLine(begin, columns_of(text[begin : self.position]))
            if broken := self._logical_line(line):
                start, end = broken.lexeme.start, broken.lexeme.end
                self.problems.add(broken.sentence, self.source.span(start, end), broken.hint)
                break
            if line.lexemes:
                lines.append(line)
        return lines

    def _logical_line(self, line: LogicalLine) -> Broken | None:
        """Read up to the end of the line, or to a mistake."""
        text, size, lexemes = self.source.text, len(self.source.text), line.lexemes
        openers: list[Lexeme] = []
        fresh = False  # is the next lexeme the first one of a physical line?
        position = self.position
        match_at = LEXEME.match
        while position < size:
            match = match_at(text, position)
            assert match is not None
            kind, position = str(match.lastgroup), match.end()
            if kind == "nothing":
                continue
            start = match.start(kind)
            if kind == "newline":
                if not openers:
                    break
                fresh = True
                continue
            if kind == "string":
                end = string_end(text, start)
                if end is None:
                    return _unclosed_string(Lexeme(kind, text[start:position], start, position, len(openers)))
                position = end
            lexeme = Lexeme(kind, text[start:position], start, position, len(openers))
            if fresh and openers:
                fresh = False
                if kind == "name" and lexeme.text in UNBRACKETED_WORDS and lexemes[-1].text != "yield":
                    break
            if kind == "op":
                if lexeme.text in CLOSER_OF:
                    openers.append(lexeme)
                elif lexeme.text in OPENER_OF:
                    if not openers or openers[-1].text != OPENER_OF[lexeme.text]:
                        return self._wrong_closer(lexeme, openers[-1:])
                    openers.pop()
                    lexeme = lexeme._replace(depth=len(openers))
            lexemes.append(lexeme)
        if openers:
            opener = openers[-1].text
            return Broken(openers[-1], f"'{opener}' is never closed", f"add the missing '{CLOSER_OF[opener]}'")
        self.position = position
        return None

    def _wrong_closer(self, closer: Lexeme, opener: Sequence[Lexeme]) -> Broken:
        for each in opener:
            lines = [self.source.span(lexeme.start, lexeme.end).line for lexeme in (each, closer)]
            place = "" if lines[0] == lines[1] else f" in line {lines[0]}"
            sentence = f"'{closer.text}' does not close the '{each.text}'{place}"
            return Broken(closer, sentence, f"'{CLOSER_OF[each.text]}' would")
        return Broken(closer, f"'{closer.text}' closes nothing", "remove it, or add what it should close")


def _unclosed_string(opening: Lexeme) -> Broken:
    quote = opening.text[-3:] if opening.text.endswith(('"""', "'''")) else opening.text[-1]
    hint = f"end it with {quote}"
    if len(quote) == 1:
        hint += f" on the same line, or write {quote * 3} around a text of several lines"
    return Broken(opening, "this string is never closed", hint)


def _indent_end(text: str, position: int) -> int:
    match = LINE_INDENT.match(text, position)
    assert match is not None
    return match.end()


# The end of a string -------------------------------------------------------------------------------------------------


def string_end(text: str, start: int) -> int | None:
    """Place after the closing quote of the string literal that begins here."""
    opening = OPENING.match(text, start)
    assert opening is not None
    prefix, quote = opening.groups()
    if NESTED and "f" in prefix.lower():
        return _fstring_end(text, opening.end(), quote)
    rest = PLAIN_REST[quote].match(text, opening.end())
    return rest.end() if rest else None


def _fstring_end(text: str, at: int, quote: str) -> int | None:
    """Place after the closing quote of an f-string with code in braces, whose strings may hold the same quotes."""
    open_ = [quote]  # quotes around text, "{" around code, ":" around a format, brackets in code
    while at < len(text):
        inner, character = open_[-1], text[at]
        if inner == ":" or inner in PLAIN_REST:
            if text.startswith("\\N{", at):
                at = text.find("}", at) + 1 or len(text)
            elif character == "\\" and text[at + 1 : at + 2] not in ("{", "}"):
                at += 3 if text.startswith("\r\n", at + 1) else 2
            elif inner in PLAIN_REST and text.startswith(inner, at):
                at += len(open_.pop())
                if not open_:
                    return at
            elif inner in PLAIN_REST and text.startswith("{{", at):
                at += 2
            elif character in "\r\n" and len(next(each for each in reversed(open_) if each in PLAIN_REST)) == 1:
                return None
            else:
                if character == "{":
                    open_.append("{")
                elif character == "}" and inner == ":":
                    del open_[-2:]
                at += 1
        elif opening := OPENING.match(text, at):
            if "f" in opening[1].lower():
                open_.append(opening[2])
                at = opening.end()
            else:
                end = string_end(text, at)
                if end is None:
                    return None
                at = end
        elif character == "#":
            at = text.find("\n", at) + 1 or len(text)
        else:
            if character in CLOSER_OF:
                open_.append(character)
            elif character == CLOSER_OF[inner]:
                open_.pop()
            elif character in OPENER_OF:
                return None
            elif character == ":" and inner == "{" and open_[-2] in (*PLAIN_REST, ":"):
                open_.append(":")
            at += 1
    return None
