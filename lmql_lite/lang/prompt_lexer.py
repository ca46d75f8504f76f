"""A prompt string to the terminals of grammar/prompt.lark.

The text is cut as it is spelled in the source: an escape is always text, and code between brackets or braces means
what it would mean outside the string. The terminals always fit the grammar; what does not is reported here.
"""

from __future__ import annotations

import keyword
import re
from typing import NamedTuple

from lmql_lite.lang.escapes import Literal
from lmql_lite.lang.grammars import Terminal
from lmql_lite.lang.keywords import DECODERS, DECODERS_NOT_YET, ROLES
from lmql_lite.lang.problems import Problems
from lmql_lite.lang.scanner import CLOSER_OF
from lmql_lite.lang.source import Source

TEXT = re.compile(r"(?:[^\[\]{}\\]+|\\(?:N\{[^}\n]*\}|\r\n|.)|\[\[|\]|\{\{|\}\})+", re.DOTALL)
RAW_TEXT = re.compile(r"(?:[^\[\]{}]+|\[\[|\]|\{\{|\}\})+")
PLAIN_HOLE = re.compile(r"\[([^\W\d]\w*)\]")
PROMPTING = re.compile(r"(?<!\[)(?:\[\[)*\[[A-Z][A-Z0-9_]*[\]:]")
"""A hole in capitals: a string with one is meant as a prompt, wherever it stands; `[i]` may be anything."""
TAG = re.compile(r"\{\s*:([^{}\[\]\r\n]*)\}")
SQUARE_TAG = re.compile(r"\[\s*:\s*(\w*)\s*\]")
OPEN_TAG = re.compile(r"\{\s*:\s*(\w*)")
DOTTED = re.compile(r"[^\W\d]\w*(?:\s*\.\s*[^\W\d]\w*)*")
SPACE = re.compile(r"\s*")
WORD = re.compile(r"\w*")

NAME_HINT = "a hole is named like a variable: [ANSWER]; write [[ for a plain bracket"
JSON = "'{' begins a value that is filled in, and what follows looks like JSON"
JSON_HINT = "write {{ and }} around JSON that belongs to the text"
BRACE_HINT = "write {{ for a plain brace"


class Extent(NamedTuple):
    """A stretch of Python in a prompt, up to where the next thing begins."""

    start: int
    end: int
    escaped: bool
    """Quotes in it are escaped: the code is what the literal says, not what the source spells."""


class Unclosed(Exception):
    """The end of the literal came before the end of what began here; `at` is the place of a bracket inside it that is
    to blame."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at


class PromptLexer:
    """Cuts one literal."""

    def __init__(self, source: Source, literal: Literal, problems: Problems) -> None:
        self.source = source
        self.text = source.text
        self.literal = literal
        self.problems = problems
        self.terminals: list[Terminal] = []
        self.escaped: set[int] = set()
        """Where code begins in which quotes are escaped: what it says is not what the source spells."""
        self.named: dict[int, tuple[int, int]] = {}
        """Where code begins that is followed by `=`, as in `{x=}`: the extent that is shown before the value."""

    def lex(self) -> list[Terminal]:
        position, end = self.literal.start, self.literal.end
        text_at = (RAW_TEXT if self.literal.raw else TEXT).match
        while position < end:
            match = text_at(self.text, position, end)
            if match:
                self._emit("TEXT", position, match.end())
                position = match.end()
                continue
            mark = len(self.terminals)
            try:
                if self.text[position] == "[":
                    position = self._hole(position)
                elif self.text[position] == "{":
                    position = self._value(position)
                else:
                    self._problem("this '}' closes nothing", position, position + 1, "write }} for a plain brace")
                    position += 1
            except Unclosed as unclosed:
                del self.terminals[mark:]
                self._unclosed(position, position if unclosed.at is None else unclosed.at)
                position = end
        return self.terminals

    def _unclosed(self, begin: int, at: int) -> None:
        """Report the bracket at `at`, in the hole or the value that begins at `begin`."""
        opener = self.text[at]
        tag = OPEN_TAG.match(self.text, begin, self.literal.end)
        hint = f"add the missing '{CLOSER_OF[opener]}'"
        if tag and tag.group(1) in ROLES:
            hint = f"write {{:{tag.group(1)}}}"
        elif at == begin:
            hint += f", or write {opener * 2} for a plain '{opener}'"
        self._problem(f"'{opener}' is never closed", at, at + 1, hint)

    def _hole(self, opener: int) -> int:
        plain = PLAIN_HOLE.match(self.text, opener, self.literal.end)
        if plain and not keyword.iskeyword(plain.group(1)):
            self._emit("LSQB", opener, opener + 1)
            self._emit("NAME", *plain.span(1))
            self._emit("RSQB", plain.end() - 1, plain.end())
            return plain.end()
        mark = len(self.terminals)
        try:
            return self._full_hole(opener)
        except Unclosed:
            # `[don't]` is no open string but a bad name.
            closer = self.text.find("]", opener, self.literal.end)
            quoted = closer >= 0 and any(quote in self.text[opener:closer] for quote in "'\"")
            if not quoted or ":" in self.text[opener:closer]:
                raise
            del self.terminals[mark:]
            self._emit("LSQB", opener, opener + 1)
            self._bad_name(opener, opener + 1, closer)
            self._emit("RSQB", closer, closer + 1)
            return closer + 1

    def _full_hole(self, opener: int) -> int:
        self._emit("LSQB", opener, opener + 1)
        position = self._skip_space(opener + 1)
        while position < self.literal.end and self.text[position] == "@":
            name = DOTTED.match(self.text, self._skip_space(position + 1), self.literal.end)
            if name is None:
                closer = self._extent(position + 1, "]").end
                self._problem("a decorator's name is missing after '@'", position, position + 1, None)
                self._drop_hole()
                self._emit("RSQB", closer, closer + 1)
                return closer + 1
            after = name.end()
            if after < self.literal.end and self.text[after] == "(":
                after = self._call_end(after)
            self._emit_code("DECORATOR", Extent(name.start(), after, self._is_escaped(name.start(), after)))
            position = self._skip_space(after)
        main = self._extent(position, ":]")
        self._hole_name(opener, *self._trimmed(main.start, main.end))
        position = main.end
        if self.text[position] == ":":
            annotation = self._extent(position + 1, "]")
            start, end = self._trimmed(annotation.start, annotation.end)
            if start == end:
                self._problem("nothing stands after this ':'", position, position + 1, "write a type: [NAME: int]")
            else:
                self._emit("_COLON", position, position + 1)
                self._emit_code("ANNOTATION", Extent(start, end, annotation.escaped))
            position = annotation.end
        self._emit("RSQB", position, position + 1)
        return position + 1

    def _hole_name(self, opener: int, start: int, end: int) -> None:
        """`NAME`, `decoder(args) NAME` or `f(NAME, args)`."""
        head = DOTTED.match(self.text, start, end)
        if head is None:
            self._bad_name(opener, start, end)
            return
        if head.end() == end:
            self._emit_name(opener, start, end)
            return
        position = self._skip_space(head.end())
        if self.text[position] == "(":
            after = self._call_end(position)
            call = Extent(start, after, self._is_escaped(start, after))
            name = self._skip_space(after)
            if name >= end:
                self._emit_code("ACTION", call)
                return
            self._emit_code("CALL", call)
            self._emit_name(opener, name, end)
        elif head.group().lower() in DECODERS + DECODERS_NOT_YET and position > head.end():
            self._emit_code("CALL", Extent(start, head.end(), escaped=False))
            self._emit_name(opener, position, end)
        else:
            self._bad_name(opener, start, end)

    def _emit_name(self, opener: int, start: int, end: int) -> None:
        name = self.text[start:end]
        if name.isidentifier() and not keyword.iskeyword(name):
            self._emit("NAME", start, end)
        else:
            self._bad_name(opener, start, end)

    def _bad_name(self, opener: int, start: int, end: int) -> None:
        """Report it; a NAME keeps the hole whole for the grammar."""
        name = self.text[start:end]
        if not name:
            tag = SQUARE_TAG.match(self.text, opener, self.literal.end)
            hint = f"a tag stands in braces: {{:{tag.group(1)}}}" if tag and tag.group(1) in ROLES else NAME_HINT
            self._problem("this hole has no name", opener, min(end + 1, self.literal.end), hint)
        elif keyword.iskeyword(name):
            self._problem(f"'{name}' is a word of Python and cannot name a hole", start, end, "choose another name")
        else:
            said = " ".join(name.split())
            said = said if len(said) <= 30 else said[:30] + "..."
            self._problem(f"'{said}' cannot name a hole", start, end, NAME_HINT)
        self._drop_hole()

    def _drop_hole(self) -> None:
        while self.terminals[-1].type != "LSQB":
            self.terminals.pop()
        at = self.terminals[-1].end
        self._emit("NAME", at, at)

    def _value(self, opener: int, depth: int = 0) -> int:
        tag = TAG.match(self.text, opener, self.literal.end)
        self._emit("LBRACE", opener, opener + 1)
        if tag:
            start, end = self._trimmed(*tag.span(1))
            self._emit("_COLON", tag.start(1) - 1, tag.start(1))
            self._emit("ROLE", start, end)
            self._emit("RBRACE", tag.end() - 1, tag.end())
            return tag.end()
        if OPEN_TAG.match(self.text, opener, self.literal.end):
            raise Unclosed
        value = self._extent(opener + 1, "!:}")
        position = value.end
        start, end = self._trimmed(value.start, value.end)
        if end > start and self.text[end - 1] == "=" and self.text[end - 2] not in "=!<>":
            self.named[start] = (value.start, value.end)
            start, end = self._trimmed(start, end - 1)
        if self.text[position] == ":" and self.text[start : start + 2].lstrip("\\")[:1] in ("'", '"'):
            self._problem(JSON, opener, opener + 1, JSON_HINT)
            start = end
            position = self._extent(opener + 1, "}").end
        elif start == end:
            self._problem("nothing stands between these braces", opener, position + 1, BRACE_HINT)
        self._emit_code("EXPRESSION", Extent(start, end, value.escaped))
        if self.text[position] == "!":
            conversion = WORD.match(self.text, position + 1, self.literal.end)
            assert conversion is not None
            self._emit("CONVERSION", *conversion.span())
            if conversion.group() not in ("r", "s", "a"):
                self._problem("after '!' comes r, s or a", position, conversion.end(), "write {value!r}")
            position = conversion.end()
            if self.text[position : position + 1] not in (":", "}") or position >= self.literal.end:
                position = self._extent(position, ":}").end
        if self.text[position] == ":":
            position = self._format(position + 1, depth)
        self._emit("RBRACE", position, position + 1)
        return position + 1

    def _format(self, position: int, depth: int) -> int:
        """Up to the brace that closes the value."""
        start = position
        while position < self.literal.end:
            character = self.text[position]
            if character in "{}" and (position > start or character == "}"):
                self._emit("FORMAT", start, position)
            if character == "}":
                return position
            if character == "{":
                if depth:
                    hint = "compute the format before, and write {value:{format}}"
                    self._problem("a format stands inside the format of a format", position, position + 1, hint)
                    return self._extent(position, "}").end
                start = position = self._value(position, depth + 1)
            else:
                position += 1
        raise Unclosed

    def _extent(self, start: int, stops: str) -> Extent:
        """Python from `start` up to one of `stops` outside brackets and strings. Raises Unclosed when none comes."""
        text, end, raw = self.text, self.literal.end, self.literal.raw
        openers: list[int] = []
        escaped = False
        position = start
        while position < end:
            character = text[position]
            if character == "\\" and not raw:
                escaped = True
                quote = text[position : position + 2]
                position += 2
                if quote[1:] in ("'", '"'):
                    closer = text.find(quote, position, end)
                    if closer < 0:
                        raise Unclosed
                    position = closer + 2
                continue
            if character in "'\"":
                position = self._string_end(position)
                continue
            if not openers and character in stops and not (character == "!" and text[position + 1] == "="):
                return Extent(start, position, escaped)
            if character in CLOSER_OF:
                openers.append(position)
            elif character in ")]}":
                if not openers or CLOSER_OF[text[openers[-1]]] != character:
                    raise Unclosed(openers[-1] if openers else None)
                openers.pop()
            position += 1
        raise Unclosed

    def _string_end(self, start: int) -> int:
        text, end = self.text, self.literal.end
        quote = text[start]
        quote = quote * 3 if text.startswith(quote * 3, start) else quote
        position = start + len(quote)
        while position < end:
            if text.startswith(quote, position):
                return position + len(quote)
            position += 2 if text[position] == "\\" else 1
        raise Unclosed

    def _call_end(self, opener: int) -> int:
        """After the parenthesis that closes the one at `opener`."""
        return self._extent(opener + 1, ")").end + 1

    def _is_escaped(self, start: int, end: int) -> bool:
        """Does a backslash stand outside the strings of this piece of Python?"""
        position = start
        while position < end:
            if self.text[position] == "\\":
                return not self.literal.raw
            position = self._string_end(position) if self.text[position] in "'\"" else position + 1
        return False

    def _skip_space(self, position: int) -> int:
        match = SPACE.match(self.text, position, self.literal.end)
        assert match is not None
        return match.end()

    def _trimmed(self, start: int, end: int) -> tuple[int, int]:
        piece = self.text[start:end]
        stripped = piece.strip()
        if not stripped:
            return start, start
        start += len(piece) - len(piece.lstrip())
        return start, start + len(stripped)

    def _emit(self, type: str, start: int, end: int) -> None:
        self.terminals.append(Terminal(type, start, end))

    def _emit_code(self, type: str, extent: Extent) -> None:
        if extent.escaped:
            self.escaped.add(extent.start)
        self._emit(type, extent.start, extent.end)

    def _problem(self, message: str, start: int, end: int, hint: str | None) -> None:
        self.problems.add(message, self.source.span(start, end), hint)
