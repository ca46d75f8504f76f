"""Prompt strings to their parts: text, holes, values and role tags, as `grammar/prompt.lark` reads them.

The text is read as it is spelled in the source: an escape is always text, and code in brackets or braces means the
same as outside the string.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from lmql_lite.errors import Span
from lmql_lite.lang import nodes
from lmql_lite.lang.grammar import ANY, Grammar, grammar
from lmql_lite.lang.keywords import DECODERS, DECODERS_NOT_YET, ROLES
from lmql_lite.lang.lines import CLOSER_OF, OPENING
from lmql_lite.lang.names import identifier
from lmql_lite.lang.python import PythonReader, SpelledCode
from lmql_lite.lang.source import ENOUGH

if TYPE_CHECKING:
    from lark import UnexpectedInput

PROMPTING = re.compile(r"(?<!\[)(?:\[\[)*\[[A-Z][A-Z0-9_]*[\]:]")
"""A hole in capitals: a string with one is meant as a prompt; `[i]` may be an index."""

DOUBLED = r"(?P<indent>[ \t]*)|(?P<doubled>\[\[|\]\]|\{\{|\}\})"
RAW_PIECE = rf"(?P<break>\r?\n){DOUBLED}"
ESCAPE = r"\\(?:[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|\r?\n|.)"
PIECE = rf"(?P<break>\\?\r?\n){DOUBLED}|{ESCAPE}"
CHARACTER = re.compile(f"{ESCAPE}|.", re.DOTALL)

JSON = re.compile(r"""\{\s*(\\?["']).*?\1\s*:""")
BEFORE_COLON = re.compile(r"[^()\[\]{}:]*(?=:)")
OPEN_TAG = re.compile(r"\{\s*:\s*(\w*)")

NAME_HINT = "a hole is named like a variable: [ANSWER]; write [[ for a plain bracket"
BRACE_HINT = "write {{ for a plain brace"

Token = Any
"""A token of Lark: a str with a `type` and its places."""

Field = ast.Constant | ast.FormattedValue


class Literal(NamedTuple):
    """Prefix in small letters, quotes, and the place of the text between them."""

    prefix: str
    quotes: str
    start: int
    end: int

    @staticmethod
    def at(text: str, start: int, end: int) -> Literal:
        match = OPENING.match(text, start)
        assert match is not None
        return Literal(match[1].lower(), match[2], match.end(), end - len(match[2]))


def prompt_parts(python: PythonReader, start: int, end: int, indent: int) -> list[nodes.Part]:
    """Parts of the literal at `[start, end)`, whose statement is indented by `indent` columns."""
    literal = Literal.at(python.text, start, end)
    prefix = python.source.span(start, literal.start)
    if "f" in literal.prefix:
        hint = "a prompt fills in {...} by itself: drop the f"
        python.problems.add("an f-string cannot be a prompt", prefix, hint)
    elif "b" in literal.prefix:
        python.problems.add("a bytes string cannot be a prompt", prefix, "drop the b")
    is_raw = "r" in literal.prefix
    known = grammar("raw_prompt" if is_raw else "prompt")
    text = python.text[literal.start : literal.end]
    return _Prompt(python, known, text, literal.start, is_raw, indent if len(literal.quotes) == 3 else 0).parts()


@dataclass(slots=True, eq=False)
class _Prompt:
    """One prompt string. All places are places in its text, between the quotes."""

    python: PythonReader
    grammar: Grammar
    text: str
    start: int
    is_raw: bool
    indent: int
    """Columns removed from each later line of a text in triple quotes: the indentation of its statement (S27)."""
    problems: list[tuple[int, int, str, str | None]] = field(default_factory=list)
    """Problems that the grammar found, or that are not Python's: reported in the order of the text."""

    def parts(self) -> list[nodes.Part]:
        tree = self.grammar.parser.parse(self.text, start="prompt", on_error=self._refuse)
        parts: list[nodes.Part] = []
        children: list[Any] = tree.children
        for each in children:
            self._report(each.children[0].start_pos)
            parts += self._part(each)
        self._report(len(self.text) + 1)
        return parts

    def _part(self, tree: Any) -> Sequence[nodes.Part]:
        match str(tree.data), tree.children:
            case "text", [token]:
                text = self._decoded(token.start_pos, token.end_pos)
                return (nodes.LiteralNode(self._span(token.start_pos, token.end_pos), text),)
            case "plain_hole", [token] if keyword.iskeyword(token[1:-1]):
                self._bad_name(token, token.start_pos + 1, token.end_pos - 1)
            case "plain_hole", [token]:
                return (nodes.HoleNode(self._span(token.start_pos, token.end_pos), identifier(token[1:-1])),)
            case "plain_value", [token]:
                if value := self._expression(token.start_pos + 1, token.end_pos - 1):
                    return (nodes.InterpolationNode(self._span(token.start_pos, token.end_pos), value),)
            case "hole", [opener, *decorators, target, colon, closer]:
                return self._hole(opener, decorators, target, colon, closer)
            case "value", children:
                return self._value(*children)
            case "tag", [opener, _, role, closer]:
                if role.strip() in ROLES:
                    return (nodes.TagNode(self._span(opener.start_pos, closer.end_pos), ROLES[role.strip()]),)
                known = ", ".join(f"{{:{each}}}" for each in ROLES)
                message = f"there is no role '{role.strip()}'"
                self._problem(message, opener.start_pos, closer.end_pos, f"roles are {known}")
        return ()

    # Holes -------------------------------------------------------------------------------------------------------

    def _hole(
        self, opener: Token, decorators: list[Any], target: Any, colon: Token | None, closer: Token
    ) -> Sequence[nodes.Part]:
        words = target.children
        start, end = words[0].start_pos, (colon or closer).start_pos
        written = "" if target.data == "called" else words[-1]
        if keyword.iskeyword(written):
            self._bad_name(opener, words[-1].start_pos, words[-1].end_pos)
            return ()
        if target.data == "decoded" and words[0].lower() not in DECODERS + DECODERS_NOT_YET:
            self._bad_name(opener, start, words[-1].end_pos)
            return ()
        signs = [each.children[0] for each in decorators]
        ends = [*(sign.start_pos for sign in signs[1:]), start]
        built = [self._expression(sign.end_pos, end) for sign, end in zip(signs, ends, strict=False)]
        if colon:
            built.append(self._expression(colon.end_pos, closer.start_pos))
        call = None
        if target.data != "named":
            call = self._expression(start, words[-1].start_pos if written else end)
            built.append(call)
        name = identifier(str(written)) if written or not call else self._first_argument(call)
        sound = [each for each in built if each]
        if not name or len(sound) < len(built):
            return ()
        type = sound[len(decorators)] if colon else None
        span = self._span(opener.start_pos, closer.end_pos)
        return (nodes.HoleNode(span, name, type, tuple(sound[: len(decorators)]), call),)

    def _first_argument(self, call: nodes.Expression) -> str:
        match call.tree.body:
            case ast.Call(args=[ast.Name(id=name), *_]):
                return name
        hint = f"write [f(NAME, ...)], or [f(...) NAME]; {NAME_HINT}"
        self._problem("this hole has no name", *self._place(call.span), hint)
        return ""

    def _bad_name(self, opener: Token, start: int, end: int) -> None:
        name = " ".join(self.text[start:end].split())
        if not name:
            self._problem("this hole has no name", opener.start_pos, end + 1, NAME_HINT)
        elif keyword.iskeyword(name):
            self._problem(f"'{name}' is a word of Python and no name for a hole", start, end, "choose another name")
        else:
            shown = name if len(name) <= 30 else name[:30] + "..."
            self._problem(f"'{shown}' is not a valid name for a hole", start, end, NAME_HINT)

    # Values ------------------------------------------------------------------------------------------------------

    def _value(
        self, opener: Token, conversion: Token | None, colon: Token | None, form: Any, closer: Token
    ) -> list[nodes.LiteralNode | nodes.InterpolationNode]:
        """The value in these braces, after the code that `{x=}` shows."""
        begin, finish = opener.end_pos, (conversion or colon or closer).start_pos
        start, end = self._trimmed(begin, finish)
        is_shown = self.text[end - 1] == "=" and self.text[end - 2] not in "=!<>"
        if is_shown:
            start, end = self._trimmed(start, end - 1)
        if colon and self._is_json(opener):
            return []
        if start == end:
            self._problem("nothing stands between these braces", opener.start_pos, closer.end_pos, BRACE_HINT)
            return []
        if conversion and conversion not in ("!r", "!s", "!a"):
            message = "after '!' comes r, s or a"
            self._problem(message, conversion.start_pos, conversion.end_pos, "write {value!r}")
            return []
        letter = conversion[1:] if conversion else "r" if is_shown and not colon else ""
        fields = self._format(form.children) if form else []
        expression = self._expression(start, end)
        if expression is None:
            return []
        span = self._span(opener.start_pos, closer.end_pos)
        shown = [nodes.LiteralNode(self._span(begin, finish), self._code(begin, finish))] if is_shown else []
        if all(isinstance(each, ast.Constant) for each in fields):
            text = "".join(str(each.value) for each in fields if isinstance(each, ast.Constant))
            return [*shown, nodes.InterpolationNode(span, expression, letter, text)]
        joined = ast.copy_location(ast.JoinedStr([_field(expression, letter, fields)]), expression.tree.body)
        whole = nodes.Expression(expression.span, ast.Expression(ast.fix_missing_locations(joined)))
        return [*shown, nodes.InterpolationNode(span, whole)]

    def _format(self, children: Sequence[Any]) -> list[Field]:
        found: list[Field] = []
        for each in children:
            if not hasattr(each, "children"):
                found.append(ast.Constant(self._decoded(each.start_pos, each.end_pos)))
                continue
            for part in self._value(*each.children):
                if isinstance(part, nodes.InterpolationNode):
                    inner = [ast.Constant(part.format)] if part.format else []
                    found.append(_field(part.value, part.conversion, inner))
                else:
                    message, opener = "a value inside a format cannot end in '='", each.children[0]
                    self._problem(message, opener.start_pos, opener.end_pos, "write its name alone")
        return found

    def _is_json(self, opener: Token) -> bool:
        """True, and a problem, for an object of JSON."""
        if not JSON.match(self.text, opener.start_pos):
            return False
        message = "'{' begins a value that is filled in, and what follows looks like JSON"
        hint = "write {{ and }} around JSON that belongs to the text"
        self._problem(message, opener.start_pos, opener.end_pos, hint)
        return True

    # What does not fit the grammar -------------------------------------------------------------------------------

    def _refuse(self, error: UnexpectedInput) -> bool:
        """Report the part that does not fit, and let the parser go on behind it as if it was not there."""
        parser: Any = error.interactive_parser
        states, values = parser.parser_state.state_stack, parser.parser_state.value_stack
        token = getattr(error, "token", None)
        at = len(self.text) if token is not None and token.type == "$END" else error.pos_in_stream or 0
        misfit = self.text[at : at + 1]
        terminals = {each.pattern.value: each.name for each in self.grammar.parser.terminals}
        after = at + 1
        opened = _opened(values)
        row = self.grammar.misfit(states[::-1] if opened else states[:1], terminals.get(misfit, ANY))
        assert row is not None
        if opened:
            opener = opened[0]
            after, unclosed = self._closed(opener)
            if unclosed is not None and row.blame == "NAMED" and misfit in ("'", '"', "\\"):
                after, unclosed = self.text.find("]", at) + 1, None if "]" in self.text[at:] else unclosed
            if opener == "{" and self._is_json(opener):
                pass
            elif unclosed is not None:
                self._unclosed(opener, unclosed)
            elif row.blame == "NAMED":
                start = _name_start(values, at)
                colon = BEFORE_COLON.match(self.text, start, after - 1)
                self._bad_name(opener, *self._trimmed(start, colon.end() if colon else after - 1))
            else:
                blamed = next((each for each in values[::-1] if getattr(each, "type", "") == row.blame), None)
                start, end = (blamed.start_pos, blamed.end_pos) if blamed else (at, at + 1)
                self._problem(row.sentence, start, end, row.hint)
            begin = next(place for place, each in enumerate(values) if each is opener)
            del states[begin + 1 :], values[begin:]
        else:
            self._problem(row.sentence, at, after, row.hint)
        parser.lexer_thread.state.line_ctr.char_pos = after if len(self.problems) < ENOUGH else len(self.text)
        return True

    def _closed(self, opener: Token) -> tuple[int, int | None]:
        """The place after the bracket that closes this one, and None; else the bracket inside that is never closed."""
        from lark import UnexpectedInput

        text = self.text[opener.start_pos :]
        try:
            self.grammar.parser.parse(text, start="group")
        except UnexpectedInput as error:
            parser: Any = error.interactive_parser
            opened = _opened(parser.parser_state.value_stack)
            at = error.pos_in_stream
            if opened:
                is_mismatch = at is not None and text[at] in ")]}"
                return len(self.text), opener.start_pos + (opened[-1].start_pos if is_mismatch else 0)
            text = text[:at]
        return opener.start_pos + len(text.rstrip()), None

    def _unclosed(self, opener: Token, at: int) -> None:
        bracket, hint = self.text[at], f"add the missing '{CLOSER_OF[self.text[at]]}'"
        tag = OPEN_TAG.match(self.text, opener.start_pos)
        if tag and tag[1] in ROLES:
            hint = f"write {{:{tag[1]}}}"
        elif at == opener.start_pos:
            hint += f", or write {bracket * 2} for a plain '{bracket}'"
        self._problem(f"'{bracket}' is never closed", at, at + 1, hint)

    # Pieces ------------------------------------------------------------------------------------------------------

    def _decoded(self, start: int, end: int) -> str:
        """Text of the prompt, its escapes decoded."""

        def piece(match: re.Match[str]) -> str:
            if match["break"]:
                return "\n" * (match["break"][0] != "\\") + self._dedented(match["indent"])
            return match["doubled"][0] if match["doubled"] else self._escape(match.group(), start + match.start())

        pattern = RAW_PIECE if self.is_raw else PIECE
        return re.sub(pattern, piece, self.text[start:end], flags=re.DOTALL)

    def _dedented(self, space: str) -> str:
        column = 0
        for at, character in enumerate(space):
            column = column + 1 if character == " " else (column // 8 + 1) * 8
            if column > self.indent:
                return space[at:]  # a tab that reaches further belongs to the text
        return ""

    def _escape(self, spelled: str, at: int) -> str:
        letter = spelled[1]
        if letter in "01234567":
            return chr(int(spelled[1:], 8))
        if letter not in "\\'\"abfnrtvxuUN\r\n":
            return spelled
        try:
            decoded = spelled.replace("\r", "").encode().decode("unicode_escape")
            decoded.encode()  # half of a character is none
        except UnicodeError:
            message, hint = f"'{spelled}' stands for no character", r"write \\ for a plain backslash"
            self._problem(message, at, at + len(spelled), hint)
            return ""
        return decoded

    def _expression(self, start: int, end: int) -> nodes.Expression | None:
        start, end = self._trimmed(start, end)
        spelling = self._spelling(start, end)
        return self.python.expression(self.start + start, self.start + end, spelling)

    def _code(self, start: int, end: int) -> str:
        spelling = self._spelling(start, end)
        return spelling.code if spelling else self.text[start:end]

    def _spelling(self, start: int, end: int) -> SpelledCode | None:
        """Code with escaped quotes as Python reads it, and the place of each character; None for code without."""
        if self.is_raw or "\\" not in self.text[start:end]:
            return None
        string = self.grammar.parser.get_terminal("_STRING").pattern.to_regexp()
        if "\\" not in re.sub(string, "", self.text[start:end]):
            return None
        code: list[str] = []
        offsets: list[int] = []
        for match in CHARACTER.finditer(self.text, start, end):
            spelled = match.group()
            decoded = (self._escape(spelled, match.start()) if len(spelled) > 1 else spelled).replace("\r", "\n")
            code.append(decoded)
            offsets += [self.start + match.start()] * len(decoded)
        return SpelledCode("".join(code), [*offsets, self.start + end])

    def _trimmed(self, start: int, end: int) -> tuple[int, int]:
        piece = self.text[start:end]
        start += len(piece) - len(piece.lstrip())
        return min(start, end), start + len(piece.strip())

    def _span(self, start: int, end: int) -> Span:
        return self.python.source.span(self.start + start, self.start + end)

    def _place(self, span: Span) -> tuple[int, int]:
        return span.start - self.start, span.end - self.start

    def _problem(self, message: str, start: int, end: int, hint: str | None) -> None:
        if len(self.problems) <= ENOUGH:
            self.problems.append((start, min(end, len(self.text)), message, hint))

    def _report(self, before: int) -> None:
        """Report the problems up to this place."""
        for start, end, message, hint in self.problems:
            if start < before:
                self.python.problems.add(message, self._span(start, end), hint)


def _field(value: nodes.Expression, conversion: str, form: Sequence[Field]) -> ast.FormattedValue:
    letter = ord(conversion) if conversion else -1
    field = ast.FormattedValue(value.tree.body, letter, ast.JoinedStr([*form]) if form else None)
    return ast.copy_location(field, value.tree.body)


def _opened(values: list[Any]) -> list[Token]:
    """Brackets on the parser's stack that are open."""
    found: list[Token] = []
    for each in values:
        kind = getattr(each, "type", "")
        if kind in ("LSQB", "LBRACE", "LPAR"):
            found.append(each)
        elif kind in ("RSQB", "RBRACE", "RPAR"):
            found.pop()
    return found


def _name_start(values: list[Any], at: int) -> int:
    """Beginning of the text that stands for a hole's name: the words before the misfit, but a decorator's."""
    start = at
    for each in reversed(values):
        first = [*getattr(each, "children", ()), each][0]
        kind = getattr(first, "type", "")
        if kind not in ("NAME", "DOT"):
            return at if kind == "AT" else start
        start = first.start_pos
    return start
