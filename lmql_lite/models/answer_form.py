"""Form of a chat's answer if the server takes no grammar: an object that a JSON Schema describes, or a sentence in the
prompt that lists the permitted answers. Every answer is still checked on arrival.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace

from lmql_lite.constraints.language import Language
from lmql_lite.models.base import JsonSchema, Prompt, PromptTurn, StreamPiece
from lmql_lite.models.grammars import united

TOLD = "Say nothing but the answer. It has to be {allowed}."
"""The sentence that is added to the last turn of the user."""
MAX_TEXTS = 100
"""Maximum number of texts that are listed. More are described by a pattern."""
MAX_PATTERN_LENGTH = 400
MAX_PLACES = 32
"""Characters at the beginning of a text of which each has a class of its own in a pattern."""
ROOM = 24
"""Tokens that the object around an answer may take."""
_KEY = "answer"
_FENCE = re.compile(r"\s*```\w*\n(.*?)\n?```\s*", re.DOTALL)
_SPECIAL = frozenset("\\^$.|?*+()[]{}/-")


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """An answer is `begin` followed by one of `texts`, or by a text that matches the regular expression `pattern`.
    `is_in_prompt`: a sentence in the prompt says so, instead of a schema. The sentence also names `excluded` answers.
    """

    begin: str = ""
    texts: tuple[str, ...] = ()
    pattern: str = ""
    is_in_prompt: bool = False
    excluded: tuple[str, ...] = ()

    @classmethod
    def of(cls, language: Language, *, is_in_prompt: bool) -> AnswerForm | None:
        """Form of a language; None if it is too large to be told, or leaves no choice."""
        begin = ""
        while len(edges := language.rules[0].edges) == 1 and not language.rules[0].accepts:
            low, high, _ = edges[0]
            after = language.after(chr(low))
            if low != high or not chr(low).isspace() or after is None:
                break
            begin, language = begin + chr(low), after
        texts = language.texts(MAX_TEXTS)
        if texts is not None:
            return cls(begin, texts, is_in_prompt=is_in_prompt) if len(texts) > 1 else None
        pattern = _pattern(language)
        return None if pattern is None else cls(begin, pattern=pattern, is_in_prompt=is_in_prompt)

    def without(self, text: str, language: Language) -> AnswerForm:
        """The same without an answer that was rejected; `language` has the others."""
        other = AnswerForm.of(language, is_in_prompt=self.is_in_prompt)
        if other is not None and other.texts:
            return other
        return replace(self, excluded=(*self.excluded, text.removeprefix(self.begin)))

    @property
    def schema(self) -> JsonSchema | None:
        """Schema of the object with the answer; None where the sentence stands in its place."""
        if self.is_in_prompt:
            return None
        shown = self._shown
        kind = {"enum": list(shown)} if shown else {"pattern": f"^(?:{self.pattern})$"}
        answer = {_KEY: {"type": "string", **kind}}
        whole = {"type": "object", "properties": answer, "required": [_KEY], "additionalProperties": False}
        return JsonSchema(json.dumps(whole, ensure_ascii=False))

    @property
    def sentence(self) -> str:
        """The sentence in the prompt; "" if a schema says it all."""
        if not self.is_in_prompt and not self.excluded:
            return ""
        allowed = f"one of {_listed(tuple(self._shown))}" if self.texts else f"a text that matches ^{self.pattern}$"
        return TOLD.format(allowed=allowed + (f", but not {_listed(self.excluded)}" if self.excluded else ""))

    def told(self, prompt: Prompt) -> Prompt:
        """The prompt with the sentence at the end of the user's last turn."""
        if not self.sentence:
            return prompt
        *before, last = prompt
        if last.role != "user":
            return (*prompt, PromptTurn("user", self.sentence))
        return (*before, replace(last, text=f"{last.text.rstrip()}\n\n{self.sentence}"))

    def read(self, answer: str) -> str:
        """The text that an answer stands for: one of the allowed ones where it differs from it in case, quotes or
        punctuation at its end only, or goes on after it; else what it says."""
        if fenced := _FENCE.fullmatch(answer):
            answer = fenced[1]
        with suppress(ValueError):
            found = json.loads(answer, parse_int=str, parse_float=str)
            if isinstance(found, dict) and isinstance(found.get(_KEY), str):
                answer = found[_KEY]
        if self.texts:
            shown = self._shown
            if answer in self.texts or answer in shown:
                return self.begin + shown.get(answer, answer)
            alike = [text for name, text in shown.items() if _plain(name) == _plain(answer)]
            return self.begin + alike[0] if len(alike) == 1 else answer
        for text in dict.fromkeys((answer, answer.strip(), answer.strip(" \t\r\n.!\"'`"))):
            if re.fullmatch(self.pattern, text):
                return self.begin + text
        begun = re.match(rf"(?:{self.pattern})(?=\s)", answer.strip())
        return self.begin + begun[0] if begun else answer

    @property
    def _shown(self) -> dict[str, str]:
        """Texts by what is shown of them: without blanks around them, where they then differ."""
        stripped = {text.strip(): text for text in self.texts}
        return stripped if len(stripped) == len(self.texts) and "" not in stripped else {t: t for t in self.texts}


async def unwrapped(pieces: AsyncGenerator[StreamPiece, None], form: AnswerForm) -> AsyncGenerator[StreamPiece, None]:
    """The text that the answer stands for, as one piece."""
    answer = b""
    async with aclosing(pieces):
        async for piece in pieces:
            answer += piece.data
            if piece.finish is not None:
                text = form.read(answer.decode("utf-8", "replace")).encode()
                yield StreamPiece(text, spent=piece.spent)
                yield replace(piece, data=b"")
            elif piece.thought or piece.spent:
                yield StreamPiece(b"", thought=piece.thought, spent=piece.spent)


def _plain(text: str) -> str:
    return text.strip(" \t\r\n.!\"'`").casefold()


def _listed(texts: tuple[str, ...]) -> str:
    return ", ".join(json.dumps(text, ensure_ascii=False) for text in texts)


def _pattern(language: Language) -> str | None:
    """Regular expression of a language, place by place: it matches all texts, and others, as every answer is checked
    anyway. None if it gets too long."""
    rules = language.rules
    places, optional, seen = list[str](), list[bool](), list[frozenset[int]]()
    numbers = frozenset({0})
    while edges := [edge for number in numbers for edge in rules[number].edges]:
        if numbers in seen or len(places) == MAX_PLACES:  # from here on any character of the language
            rest = f"{_class([(low, high) for rule in rules for low, high, _ in rule.edges])}*"
            break
        seen.append(numbers)
        optional.append(any(rules[number].accepts for number in numbers))
        places.append(_class([(low, high) for low, high, _ in edges]))
        numbers = frozenset(after for _, _, after in edges)
    else:
        rest = ""
    for place, is_optional in zip(reversed(places), reversed(optional), strict=True):
        rest = f"(?:{place}{rest})?" if is_optional else place + rest
    return rest if len(rest) <= MAX_PATTERN_LENGTH else None


def _class(characters: list[tuple[int, int]]) -> str:
    """Class of characters, without those beyond ASCII where there are others."""
    whole = united(characters)
    ranges = tuple((low, min(high, 0x7E)) for low, high in whole if low <= 0x7E) or whole
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _character(ranges[0][0])
    parts = [_character(low) if low == high else f"{_character(low)}-{_character(high)}" for low, high in ranges]
    return f"[{''.join(parts)}]"


def _character(code: int) -> str:
    character = chr(code)
    if character in _SPECIAL:
        return f"\\{character}"
    return character if character.isprintable() or code > 0xFFFF else f"\\u{code:04x}"
