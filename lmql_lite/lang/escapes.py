"""Text between the quotes of a prompt string, as Python decodes it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from lmql_lite.lang.python_reader import SpelledCode
from lmql_lite.lang.scanner import OPENING
from lmql_lite.lang.source import Problems, Source

ESCAPE = re.compile(
    r"""
      \\(?: (?P<line>\r?\n)
          | (?P<octal>[0-7]{1,3})
          | x(?P<x>[0-9a-fA-F]{2}) | u(?P<u>[0-9a-fA-F]{4}) | U(?P<U>[0-9a-fA-F]{8})
          | (?P<name>N\{[^}]*\})
          | (?P<torn>[xuUN])
          | (?P<other>.)
        )
    """,
    re.VERBOSE | re.DOTALL,
)

SIMPLE = {"\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}

AFTER = {
    "x": "two hexadecimal digits",
    "u": "four hexadecimal digits",
    "U": "eight hexadecimal digits",
    "N": "a name in braces",
}

PIECE = re.compile(ESCAPE.pattern + r" | (?P<doubled>\[\[|\]\]|\{\{|\}\}) | (?P<newline>\r?\n)", ESCAPE.flags)
RAW_PIECE = re.compile(r"(?P<doubled>\[\[|\]\]|\{\{|\}\})|(?P<newline>\r?\n)")


@dataclass(frozen=True, slots=True)
class StringLiteral:
    """One string literal of a prompt: where its text stands, and how to read it."""

    source: Source
    problems: Problems
    start: int
    end: int
    prefix: str
    quote: str
    is_raw: bool
    indent: int
    """Columns removed from each later line of a text in triple quotes: the indentation of its statement (S27)."""

    @staticmethod
    def at(source: Source, problems: Problems, start: int, end: int, indent: int = 0) -> StringLiteral:
        match = OPENING.match(source.text, start)
        assert match is not None
        prefix, quote = match[1].lower(), match[2]
        return StringLiteral(source, problems, match.end(), end - len(quote), prefix, quote, "r" in prefix, indent)

    def decoded(self, start: int, end: int) -> str:
        """Text of the source at `[start, end)`, its escapes decoded."""
        text = self.source.text
        spelled = text[start:end]
        if not self.is_raw and "\\" not in spelled and "\n" not in spelled:
            return spelled.replace("[[", "[").replace("]]", "]").replace("{{", "{").replace("}}", "}")
        pieces = []
        position = start
        pattern = RAW_PIECE if self.is_raw else PIECE
        while position < end:
            match = pattern.search(text, position, end)
            if match is None:
                pieces.append(text[position:end])
                break
            pieces.append(text[position : match.start()])
            position = match.end()
            if match["doubled"]:
                pieces.append(match["doubled"][0])
                continue
            newline = match["newline"] is not None
            pieces.append("\n" if newline else self._escape(match))
            if len(self.quote) == 3 and (newline or match["line"]):
                position = self._skip_indent(position, end)
        return "".join(pieces)

    def spelling(self, start: int, end: int) -> SpelledCode:
        """Code with escaped quotes: its characters, and the place of each in the source."""
        code: list[str] = []
        offsets: list[int] = []
        position = start
        while position < end:
            match = ESCAPE.match(self.source.text, position, end)
            decoded = (self._escape(match) if match else self.source.text[position]).replace("\r", "\n")
            code.append(decoded)
            offsets.extend([position] * len(decoded))
            position = match.end() if match else position + 1
        return SpelledCode("".join(code), [*offsets, end])

    def _skip_indent(self, position: int, end: int) -> int:
        column = 0
        while position < end and column < self.indent and self.source.text[position] in " \t":
            column = column + 1 if self.source.text[position] == " " else (column // 8 + 1) * 8
            if column > self.indent:
                break  # a tab that reaches further belongs to the text
            position += 1
        return position

    def _escape(self, match: re.Match[str]) -> str:
        if match["line"]:
            return ""
        if match["octal"]:
            return chr(int(match["octal"], 8))
        digits = match["x"] or match["u"] or match["U"]
        if digits:
            code = int(digits, 16)
            if code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
                return chr(code)
            self._problem(match, "no character has this number", None)
            return ""
        if match["name"]:
            try:
                return str(ast.literal_eval(f'"{match.group()}"'))
            except (SyntaxError, ValueError):
                self._problem(match, "no character has this name", "see the Unicode names list")
                return ""
        if match["torn"]:
            letter = match["torn"]
            self._problem(match, f"'\\{letter}' must be followed by {AFTER[letter]}", r"write \\ for a plain backslash")
            return ""
        return SIMPLE.get(match["other"], match.group())

    def _problem(self, match: re.Match[str], message: str, hint: str | None) -> None:
        self.problems.add(message, self.source.span(match.start(), match.end()), hint)
