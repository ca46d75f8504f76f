"""Chat turns as the chat template of a model's tokenizer writes them: the delimiters before and after each text.

The template is rendered once, with marker texts, when the model is loaded (S30); never with text of a user or of the
model. Its output may depend on nothing but the order of the turns; a template that breaks this rule is refused by
name. It gets no tools and always the same date, so that yesterday's cache entries still answer today.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import tokenizers

from lmql_lite.errors import ModelError
from lmql_lite.tokens import Role, common_length

TODAY = datetime(2024, 7, 26)
"""Date for templates that print one. Many templates fall back to it by themselves."""
TALK: tuple[Role, ...] = ("user", "assistant", "user", "assistant", "user")
"""Conversation that every template must be able to write."""
SYSTEM_TALK: tuple[Role, ...] = ("system", *TALK)
OTHER_TALKS: tuple[tuple[Role, ...], ...] = (
    SYSTEM_TALK,
    ("assistant", "user", "assistant", "user"),
    ("user", "user", "assistant", "user"),
)
"""Conversations that find out which turn may follow which. A query cannot use those that a template refuses."""
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

Delimiter = tuple[int | bytes, ...]
"""Output of a template between two texts: ids of special tokens, and plain text."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Delimiters between the turns of a chat.

    `opens` holds the beginning of a turn by the role before it (None: at the start) and its own role. The beginning of
    an assistant's turn is followed by `said` if a text of the query starts the turn, and by `asked` if the model does.
    `ends` are the tokens that end an answer. `strips` are the roles whose texts lose their surrounding white space
    before the model reads them. `problem` is the reason for having no turns, or no system turns.
    """

    opens: Mapping[tuple[Role | None, Role], Delimiter] = field(default_factory=dict)
    said: Delimiter = ()
    asked: Delimiter = ()
    ends: frozenset[int] = frozenset()
    strips: frozenset[Role] = frozenset()
    problem: str = ""

    @property
    def borders(self) -> frozenset[int]:
        """Special tokens at the end of a turn's beginning, directly before its text."""
        return frozenset(opening[-1] for opening in self.opens.values() if opening and isinstance(opening[-1], int))

    def opening(self, last: Role | None, role: Role) -> Delimiter:
        """Delimiter before a turn of `role` after one of `last`. Raises ModelError if the template has no such turn."""
        found = self.opens.get((last, role))
        if found is not None:
            return found
        if not self.opens:
            hint = "leave out the role tags: a text without them is sent as plain text"
            raise ModelError(f"the model's chat template cannot be used: {self.problem}", hint=hint)
        if self.problem and role == "system":
            hint = "write it into the first {:user} turn"
            raise ModelError(f"the model's chat template has no {{:system}} turn: {self.problem}", hint=hint)
        if last is None:
            raise ModelError(f"the model's chat template does not allow a conversation to begin with {{:{role}}}")
        hint = "put both texts into one turn" if role == last else "add a turn of another role between them"
        raise ModelError(f"the model's chat template does not allow {{:{role}}} after {{:{last}}}", hint=hint)


def chat_of(tokenizer: object) -> ChatFormat | None:
    """Chat format of a tokenizer; None for a model without turns."""
    return getattr(tokenizer, "chat", None)


def read_chat(folder: Path, backend: tokenizers.Tokenizer) -> ChatFormat | None:
    """Chat format of a model in Hugging Face format; None if its folder has no chat template.

    A template that cannot be used gives a format without turns, whose `problem` is the reason. `backend` is the
    tokenizer as saved; it stays unchanged.
    """
    settings = settings_in(folder / "tokenizer_config.json")
    try:
        template = _template(folder, settings)
        if template is None:
            return None
        names = {**settings_in(folder / "special_tokens_map.json"), **settings}
        spelled = {name: found for name in _SPECIAL_NAMES if (found := spelling_of(names.get(name)))}
        return _TemplateReader(_Renderer(template, spelled), _Splitter.of(backend)).read()
    except _Unfit as problem:
        return ChatFormat(problem=str(problem))


def chat_of_template(
    template: str, spelled: Mapping[str, str], special: Mapping[str, int], *, adds_space: bool
) -> ChatFormat:
    """Chat format of a template, with a `problem` as in `read_chat`. `spelled` are the special tokens that it may name,
    such as `bos_token`, and `special` all of them. `adds_space`: a space stands between one of them and a text.
    """
    splitter = _Splitter({text: (number, False, False) for text, number in special.items() if text}, adds_space)
    try:
        return _TemplateReader(_Renderer(template, spelled), splitter).read()
    except _Unfit as problem:
        return ChatFormat(problem=str(problem))


def template_text(folder: Path) -> str:
    """Text that the format depends on, for a fingerprint; "" without a template."""
    try:
        return _template(folder, settings_in(folder / "tokenizer_config.json")) or ""
    except _Unfit as problem:
        return str(problem)


class _Unfit(Exception):
    """Reason why a template or a conversation cannot be used."""


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """Template source: from its own file, from a string, or the `default` one of several named templates."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise _Unfit(f"{path.name} cannot be read ({error})") from None
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {
            each.get("name"): each.get("template")
            for each in found
            if isinstance(each, dict) and isinstance(each.get("template"), str)
        }
        if len(named) == 1:
            return str(next(iter(named.values())))
        if named and "default" not in named:
            raise _Unfit(f"there are several ({', '.join(map(str, named))}), but none is called default")
        found = named.get("default")
    return found if isinstance(found, str) and found.strip() else None


class _Renderer:
    """Renderer of a template with marker texts. A template is a program and runs in a sandbox."""

    def __init__(self, template: str, spelled: Mapping[str, str]) -> None:
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation_tag()]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = TODAY.strftime
        self._spelled = dict(spelled)
        self._source = template
        try:
            self._template = environment.from_string(template)
        except Exception as error:  # of many classes: a template may hold anything
            raise _Unfit(f"it is not a template ({_first_line(error)})") from None

    def gaps(self, roles: Sequence[Role], *, asks: bool = False, around: str = "", where: Role | None = None) -> Gaps:
        """Gaps before, between and after the texts of such turns; with `asks` the template requests an answer.

        Texts of the role `where` get `around` on both sides. Raises _Unfit if the template refuses, or changes the
        order of the texts.
        """
        marks = [self._mark(at) for at in range(len(roles))]
        messages = [
            {"role": role, "content": f"{around}{mark}{around}" if role == where else mark}
            for role, mark in zip(roles, marks, strict=True)
        ]
        given = {"tools": None, "documents": None, "add_generation_prompt": asks, **self._spelled}
        try:
            text = self._template.render(messages=messages, **given)
        except Exception as error:  # any exception makes the template unusable
            raise _Unfit(f"it raises: {_first_line(error)}") from None
        found: list[str] = []
        for mark in marks:
            before, there, text = text.partition(mark)
            if not there or mark in text:
                raise _Unfit("it does not write each text once and in order")
            found.append(before)
        return (*found, text)

    def _mark(self, at: int) -> str:
        mark = f"Turn{at}Text"
        while mark in self._source:
            mark += "x"
        return mark


Gaps = tuple[str, ...]


def _generation_tag() -> Any:
    """Jinja extension for `{% generation %}`, which marks the model's text for trainers and has no effect here."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012  as the base class has it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    return Generation


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **others: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **others)


def _refuse(message: str) -> None:
    raise _Unfit(message)


class _Splitter:
    """Converter of delimiters to tokens: special tokens are parsed, everything else is plain text (S12)."""

    def __init__(self, special: Mapping[str, tuple[int, bool, bool]], adds_space: bool) -> None:
        """`special`: id of each special token by its text, and whether it takes the spaces left and right of it.
        `adds_space`: the tokenizer writes a space between a special token and the text after it, as Llama 2 does."""
        self._special, self._adds_space = special, adds_space
        longest_first = sorted(special, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> _Splitter:
        special = {
            added.content: (number, added.lstrip, added.rstrip)
            for number, added in backend.get_added_tokens_decoder().items()
            if added.special
        }
        ids = backend.encode(max(special, key=len) + "a", add_special_tokens=False).ids if special else []
        return cls(special, len(ids) > 1 and str(backend.id_to_token(ids[1])).startswith("\u2581"))

    def split(self, text: str, *, before_text: bool) -> Delimiter:
        """Delimiter for `text`. With `before_text`, a text of the query follows, not the model's own."""
        found: list[int | bytes] = []
        start = 0
        for match in self._pattern.finditer(text):
            number, takes_left, takes_right = self._special[match[0]]
            plain = text[start : match.start()]
            found += self._plain(plain.rstrip() if takes_left else plain, found)
            found.append(number)
            start = match.end()
            if takes_right:
                start += len(text) - start - len(text[start:].lstrip())
        found += self._plain(text[start:], found)
        if before_text and self._adds_space and found and isinstance(found[-1], int):
            found.append(b" ")
        return tuple(found)

    def _plain(self, text: str, before: list[int | bytes]) -> Iterator[bytes]:
        if text:
            yield (" " if before and self._adds_space else "").encode() + text.encode()


class _TemplateReader:
    """Analyser of a template, which lets it write conversations of all kinds."""

    def __init__(self, renderer: _Renderer, splitter: _Splitter) -> None:
        self._renderer = renderer
        self._splitter = splitter
        self._between: dict[tuple[Role | None, Role], str] = {}

    def read(self) -> ChatFormat:
        self._learn(TALK)
        problem = ""
        for talk in OTHER_TALKS:
            try:
                self._learn(talk)
            except _Unfit as reason:
                problem = str(reason) if talk == SYSTEM_TALK else problem
        split = self._splitter.split
        said = _units(split(self._between["user", "assistant"], before_text=True))
        asked = _units(split(self._asking(), before_text=False))
        alike = common_length(said, asked)
        said, asked = said[alike:], asked[alike:]
        opens: dict[tuple[Role | None, Role], Delimiter] = {}
        for (last, role), text in self._between.items():
            opening = split(text, before_text=True)
            if role == "assistant":
                units = _units(opening)
                begun = len(units) - len(said)
                if units[begun:] != said:
                    continue
                opening = _joined(units[:begun])
            opens[last, role] = opening
        closing = split(self._between["assistant", "user"], before_text=True)
        ends = [part for part in closing if isinstance(part, int)]
        return ChatFormat(opens, _joined(said), _joined(asked), frozenset(ends[:1]), frozenset(self._strips()), problem)

    def _learn(self, talk: Sequence[Role]) -> None:
        """Adds the gaps of a conversation. Raises _Unfit, adding none, if it is refused or contradicts known gaps."""
        learned = dict(self._between)
        for pair, text in zip(zip((None, *talk), talk, strict=False), self._renderer.gaps(talk), strict=False):
            if learned.setdefault(pair, text) != text:
                raise _Unfit("what it writes between two turns depends on more than their roles")
        self._between = learned

    def _asking(self) -> str:
        """Output of the template after a user's turn when the model is to answer."""
        *before, asked = self._renderer.gaps(TALK, asks=True)
        written = self._between["user", "assistant"]
        if before != list(self._renderer.gaps(TALK)[:-1]):
            raise _Unfit("it writes a conversation differently when an answer is requested")
        # a template that cannot request an answer stops before the text that begins it
        return written if written.startswith(asked) and written.removeprefix(asked).strip() else asked

    def _strips(self) -> Iterator[Role]:
        talk = SYSTEM_TALK if (None, "system") in self._between else TALK
        plain = self._renderer.gaps(talk)
        for role in dict.fromkeys(talk):
            try:
                if self._renderer.gaps(talk, around=" \n", where=role) == plain:
                    yield role
            except _Unfit:  # the template refuses such white space, so none is stripped silently
                continue


def _units(delimiter: Delimiter) -> Delimiter:
    """Ids and single bytes of a delimiter."""
    parts = ([part] if isinstance(part, int) else [part[at : at + 1] for at in range(len(part))] for part in delimiter)
    return tuple(unit for part in parts for unit in part)


def _joined(units: Delimiter) -> Delimiter:
    """Delimiter of these units, with neighbouring bytes in one piece."""
    found: list[int | bytes] = []
    for unit in units:
        last = found[-1] if found else 0
        if isinstance(unit, bytes) and isinstance(last, bytes):
            found[-1] = last + unit
        else:
            found.append(unit)
    return tuple(found)


def settings_in(path: Path) -> dict[str, Any]:
    """Settings in a JSON file of a model's folder; {} without the file. Raises ModelError for what is not JSON."""
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    return settings if isinstance(settings, dict) else {}


def spelling_of(token: Any) -> str | None:
    """Spelling of a special token, given as a string or as `{"content": ...}`."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")
