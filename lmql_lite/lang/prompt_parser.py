"""Prompt strings to their parts: text, holes, values and role tags. `grammar/prompt.lark` is the reference.

The text is split as it is spelled in the source: an escape is always text, and code in brackets or braces means the
same as outside the string.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lmql_lite.lang import nodes
from lmql_lite.lang.escapes import StringLiteral
from lmql_lite.lang.keywords import DECODERS, DECODERS_NOT_YET, ROLES
from lmql_lite.lang.names import identifier
from lmql_lite.lang.python_reader import PythonReader
from lmql_lite.lang.scanner import CLOSER_OF
from lmql_lite.lang.source import Source
from lmql_lite.options import NEAREST

TEXT = re.compile(r"(?:[^\[\]{}\\]+|\\(?:N\{[^}\n]*\}|\r\n|.)|\[\[|\]|\{\{|\}\})+", re.DOTALL)
RAW_TEXT = re.compile(r"(?:[^\[\]{}]+|\[\[|\]|\{\{|\}\})+")
PLAIN_HOLE = re.compile(r"\[([^\W\d]\w*)\]")
PROMPTING = re.compile(r"(?<!\[)(?:\[\[)*\[[A-Z][A-Z0-9_]*[\]:]")
"""A hole in capitals: a string with one is meant as a prompt; `[i]` may be an index."""
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

Field = ast.Constant | ast.FormattedValue


class Extent(NamedTuple):
    """A piece of Python in a prompt."""

    start: int
    end: int
    is_escaped: bool
    """True if quotes in it are escaped: the code is the decoded literal, not the text of the source."""


class Unclosed(Exception):
    """The literal ended before the hole or the value. `at` is the place of the unclosed bracket inside it."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at


def prompt_parts(python: PythonReader, start: int, end: int, indent: int) -> list[nodes.Part]:
    """Parts of the literal at `[start, end)`, whose statement is indented by `indent` columns."""
    literal = StringLiteral.at(python.source, python.problems, start, end, indent)
    prefix = python.source.span(start, literal.start)
    if "f" in literal.prefix:
        hint = "a prompt fills in {...} by itself: drop the f"
        python.problems.add("an f-string cannot be a prompt", prefix, hint)
    elif "b" in literal.prefix:
        python.problems.add("a bytes string cannot be a prompt", prefix, "drop the b")
    return _PromptParser(python, python.source, python.text, literal, literal.end).parts()


@dataclass(slots=True, eq=False)
class _PromptParser:
    """Parser of one literal."""

    python: PythonReader
    source: Source
    text: str
    literal: StringLiteral
    end: int

    def parts(self) -> list[nodes.Part]:
        position, end = self.literal.start, self.end
        text_at = (RAW_TEXT if self.literal.is_raw else TEXT).match
        parts: list[nodes.Part] = []
        while position < end:
            match = text_at(self.text, position, end)
            if match:
                said = self.literal.decoded(position, match.end())
                parts.append(nodes.LiteralNode(self.source.span(position, match.end()), said))
                position = match.end()
                continue
            try:
                if self.text[position] == "[":
                    found, position = self._hole(position)
                elif self.text[position] == "{":
                    found, position = self._tag_or_value(position)
                else:
                    self._problem("this '}' closes nothing", position, position + 1, "write }} for a plain brace")
                    found, position = (), position + 1
                parts += found
            except Unclosed as unclosed:
                self._unclosed(position, position if unclosed.at is None else unclosed.at)
                position = end
        return parts

    def _unclosed(self, begin: int, at: int) -> None:
        """Report the bracket at `at`, in the hole or the value that begins at `begin`."""
        opener = self.text[at]
        tag = OPEN_TAG.match(self.text, begin, self.end)
        hint = f"add the missing '{CLOSER_OF[opener]}'"
        if tag and tag.group(1) in ROLES:
            hint = f"write {{:{tag.group(1)}}}"
        elif at == begin:
            hint += f", or write {opener * 2} for a plain '{opener}'"
        self._problem(f"'{opener}' is never closed", at, at + 1, hint)

    # Holes -------------------------------------------------------------------------------------------------------

    def _hole(self, opener: int) -> tuple[Sequence[nodes.Part], int]:
        plain = PLAIN_HOLE.match(self.text, opener, self.end)
        if plain and not keyword.iskeyword(plain.group(1)):
            hole = nodes.HoleNode(self.source.span(opener, plain.end()), identifier(plain.group(1)))
            return (hole,), plain.end()
        try:
            return self._full_hole(opener)
        except Unclosed:
            # `[don't]` is a bad name, not an open string.
            closer = self.text.find("]", opener, self.end)
            quoted = closer >= 0 and any(quote in self.text[opener:closer] for quote in "'\"")
            if not quoted or ":" in self.text[opener:closer]:
                raise
            self._bad_name(opener, opener + 1, closer)
            return (), closer + 1

    def _full_hole(self, opener: int) -> tuple[Sequence[nodes.Part], int]:
        decorators: list[Extent] = []
        position = self._skip_space(opener + 1)
        while position < self.end and self.text[position] == "@":
            name = DOTTED.match(self.text, self._skip_space(position + 1), self.end)
            if name is None:
                closer = self._extent(position + 1, "]").end
                self._problem("a decorator's name is missing after '@'", position, position + 1, None)
                return (), closer + 1
            after = name.end()
            if after < self.end and self.text[after] == "(":
                after = self._call_end(after)
            decorators.append(Extent(name.start(), after, self._is_escaped(name.start(), after)))
            position = self._skip_space(after)
        main = self._extent(position, ":]")
        named = self._named(opener, *self._trimmed(main.start, main.end))
        position, annotation = main.end, None
        if self.text[position] == ":":
            extent = self._extent(position + 1, "]")
            start, end = self._trimmed(extent.start, extent.end)
            if start == end:
                self._problem(
                    "something is missing after this ':'", position, position + 1, "write a type: [NAME: int]"
                )
            else:
                annotation = Extent(start, end, extent.is_escaped)
            position = extent.end
        built = [self._expression(each) for each in decorators]
        type = self._expression(annotation) if annotation else None
        is_sound = all(built) and (type or not annotation)
        if named is None:
            return (), position + 1
        name_, call = named
        action = self._expression(call) if call else None
        if action is not None:
            self._refuse_missing_decoder(action)
            name_ = name_ or self._first_argument(action)
        if not is_sound or not name_ or (call and not action):
            return (), position + 1
        span = self.source.span(opener, position + 1)
        return (nodes.HoleNode(span, name_, type, tuple(each for each in built if each), action),), position + 1

    def _named(self, opener: int, start: int, end: int) -> tuple[str, Extent | None] | None:
        """Name and call before the type: `NAME`, `decoder(args) NAME` or `f(NAME, args)`, where the name is one of the
        arguments and "" here; None where it names no hole."""
        head = DOTTED.match(self.text, start, end)
        if head is None:
            self._bad_name(opener, start, end)
            return None
        name, call = start, None
        if head.end() < end:
            name = self._skip_space(head.end())
            if self.text[name] == "(":
                after = self._call_end(name)
                call = Extent(start, after, self._is_escaped(start, after))
                name = self._skip_space(after)
                if name >= end:
                    return "", call
            elif head.group().lower() in DECODERS + DECODERS_NOT_YET and name > head.end():
                call = Extent(start, head.end(), is_escaped=False)
            else:
                self._bad_name(opener, start, end)
                return None
        written = self.text[name:end]
        if not written.isidentifier() or keyword.iskeyword(written):
            self._bad_name(opener, name, end)
            return None
        return identifier(written), call

    def _bad_name(self, opener: int, start: int, end: int) -> None:
        name = self.text[start:end]
        if not name:
            tag = SQUARE_TAG.match(self.text, opener, self.end)
            hint = f"a tag stands in braces: {{:{tag.group(1)}}}" if tag and tag.group(1) in ROLES else NAME_HINT
            self._problem("this hole has no name", opener, min(end + 1, self.end), hint)
        elif keyword.iskeyword(name):
            self._problem(f"'{name}' is a word of Python and no name for a hole", start, end, "choose another name")
        else:
            shown = " ".join(name.split())
            shown = shown if len(shown) <= 30 else shown[:30] + "..."
            self._problem(f"'{shown}' is not a valid name for a hole", start, end, NAME_HINT)

    def _refuse_missing_decoder(self, call: nodes.Expression) -> None:
        node = call.tree.body
        function = node.func if isinstance(node, ast.Call) else node
        if isinstance(function, ast.Name) and function.id.lower() in DECODERS_NOT_YET:
            message = f"this version does not have the decoder '{function.id}'"
            self.python.problems.add(message, call.span, NEAREST[function.id.lower()])

    def _first_argument(self, call: nodes.Expression) -> str:
        node = call.tree.body
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name):
            return node.args[0].id
        hint = f"write [f(NAME, ...)], or [f(...) NAME]; {NAME_HINT}"
        self.python.problems.add("this hole has no name", call.span, hint)
        return ""

    # Values ------------------------------------------------------------------------------------------------------

    def _tag_or_value(self, opener: int) -> tuple[Sequence[nodes.Part], int]:
        tag = TAG.match(self.text, opener, self.end)
        if tag is None:
            return self._value(opener)
        name = self.text[slice(*self._trimmed(*tag.span(1)))]
        if name in ROLES:
            return (nodes.TagNode(self.source.span(opener, tag.end()), ROLES[name]),), tag.end()
        message = f"there is no role '{name}'" if name else "this tag names no role"
        known = ", ".join(f"{{:{each}}}" for each in ROLES)
        self._problem(message, opener, tag.end(), f"roles are {known}")
        return (), tag.end()

    def _value(self, opener: int, depth: int = 0) -> tuple[list[nodes.LiteralNode | nodes.InterpolationNode], int]:
        """The value in these braces, after the code that `{x=}` shows, and the place after them."""
        if OPEN_TAG.match(self.text, opener, self.end):
            raise Unclosed
        value = self._extent(opener + 1, "!:}")
        position = value.end
        start, end = self._trimmed(value.start, value.end)
        is_shown = end > start and self.text[end - 1] == "=" and self.text[end - 2] not in "=!<>"
        if is_shown:
            start, end = self._trimmed(start, end - 1)
        if self.text[position] == ":" and self.text[start : start + 2].lstrip("\\")[:1] in ("'", '"'):
            self._problem(JSON, opener, opener + 1, JSON_HINT)
            return [], self._extent(opener + 1, "}").end + 1
        if start == end:
            self._problem("nothing stands between these braces", opener, position + 1, BRACE_HINT)
        letter, form = "", list[Field]()
        if self.text[position] == "!":
            conversion = WORD.match(self.text, position + 1, self.end)
            assert conversion is not None
            letter, position = conversion.group(), conversion.end()
            if letter not in ("r", "s", "a"):
                self._problem("after '!' comes r, s or a", conversion.start() - 1, position, "write {value!r}")
            after, position = position, self._extent(position, ":}").end
            if self._skip_space(after) < position and letter in ("r", "s", "a"):
                sentence = f"after '!{letter}' comes ':' or '}}'"
                self._problem(sentence, after, position, f"write {{value!{letter}}} or {{value!{letter}:>10}}")
        elif is_shown and self.text[position] != ":":
            letter = "r"
        if self.text[position] == ":":
            form, position = self._format(position + 1, depth)
        if start == end:
            return [], position + 1
        expression = self._expression(Extent(start, end, value.is_escaped))
        if expression is None:
            return [], position + 1
        span = self.source.span(opener, position + 1)
        built: list[nodes.LiteralNode | nodes.InterpolationNode] = []
        if is_shown:
            spelled = self.literal.spelling(value.start, value.end).code if value.is_escaped else None
            shown = self.source.span(value.start, value.end)
            built.append(nodes.LiteralNode(shown, spelled or shown.source))
        if all(isinstance(part, ast.Constant) for part in form):
            text = "".join(ast.literal_eval(part) for part in form)
            built.append(nodes.InterpolationNode(span, expression, letter, text))
        else:
            built.append(nodes.InterpolationNode(span, _formatted(expression, letter, form)))
        return built, position + 1

    def _format(self, position: int, depth: int) -> tuple[list[Field], int]:
        """Format before the brace that closes the value, and the place of that brace."""
        form: list[Field] = []
        start = position
        while position < self.end:
            character = self.text[position]
            if character in "{}" and position > start:
                form.append(ast.Constant(self.literal.decoded(start, position)))
            if character == "}":
                return form, position
            if character != "{":
                position += 1
                continue
            if depth:
                hint = "compute the format before, and write {value:{format}}"
                self._problem("a format stands inside the format of a format", position, position + 1, hint)
                return form, self._extent(position, "}").end
            built, after = self._value(position, depth + 1)
            for part in built:
                if isinstance(part, nodes.InterpolationNode):
                    inner = [ast.Constant(part.format)] if part.format else []
                    form.append(_field(part.value, part.conversion, inner))
                else:
                    message = "a value inside a format cannot end in '='"
                    self._problem(message, position, after, "write its name alone")
            start = position = after
        raise Unclosed

    # Extents -----------------------------------------------------------------------------------------------------

    def _extent(self, start: int, stops: str) -> Extent:
        """Python from `start` up to one of `stops` outside brackets and strings. Raises Unclosed when none comes."""
        text, end, raw = self.text, self.end, self.literal.is_raw
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
        text, end = self.text, self.end
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
        """True if this piece of Python has a backslash outside its strings."""
        position = start
        while position < end:
            if self.text[position] == "\\":
                return not self.literal.is_raw
            position = self._string_end(position) if self.text[position] in "'\"" else position + 1
        return False

    def _skip_space(self, position: int) -> int:
        match = SPACE.match(self.text, position, self.end)
        assert match is not None
        return match.end()

    def _trimmed(self, start: int, end: int) -> tuple[int, int]:
        piece = self.text[start:end]
        stripped = piece.strip()
        if not stripped:
            return start, start
        start += len(piece) - len(piece.lstrip())
        return start, start + len(stripped)

    def _expression(self, extent: Extent) -> nodes.Expression | None:
        start, end = extent.start, extent.end
        return self.python.expression(start, end, self.literal.spelling(start, end) if extent.is_escaped else None)

    def _problem(self, message: str, start: int, end: int, hint: str | None) -> None:
        self.python.problems.add(message, self.source.span(start, end), hint)


def _formatted(value: nodes.Expression, conversion: str, form: Sequence[Field]) -> nodes.Expression:
    """An f-string of this value alone, whose format has values in it."""
    joined = ast.JoinedStr([_field(value, conversion, form)])
    return nodes.Expression(value.span, ast.Expression(ast.copy_location(joined, value.tree.body)))


def _field(value: nodes.Expression, conversion: str, form: Sequence[Field]) -> ast.FormattedValue:
    letter = ord(conversion) if conversion else -1
    field = ast.FormattedValue(value.tree.body, letter, ast.JoinedStr([*form]) if form else None)
    return ast.copy_location(field, value.tree.body)
