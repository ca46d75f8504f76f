"""Tokens for people: quoted text with special characters made visible, or ids if the text is not known. Also the first
difference between a path and the stored entries, which explains a miss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmql_lite.cache.tokens.rows import END, MEDIA, TURNS, VOCABULARY

Vocabulary = Sequence[bytes | None]
"""The bytes of every token id; None for ids without text."""

BYTES: Vocabulary = (*(bytes([byte]) for byte in range(256)), None, *[None] * len(TURNS))
"""Vocabulary of the byte tree of a server."""

_MARKS = {END: "end", **{mark: name for name, mark in (TURNS | MEDIA).items()}}
"""Names of the marks in a byte tree."""
_NAMED = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def size_shown(vocabulary_size: int) -> str:
    """Size of a vocabulary, such as `1,536 tokens`; `bytes` for a server."""
    return "bytes" if vocabulary_size == VOCABULARY else f"{vocabulary_size:,} tokens"


def visible(text: str | bytes) -> str:
    """The text with escapes for control characters, invisible characters and bytes outside characters: `\\n`,
    `\\x1b`."""
    text = text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(_NAMED.get(one) or (one if one.isprintable() else _escaped(one)) for one in text)


def quoted(text: str | bytes) -> str:
    """The text in double quotes, or in single quotes if it contains only double ones."""
    shown = visible(text)
    if '"' not in shown:
        return f'"{shown}"'
    if "'" not in shown:
        return f"'{shown}'"
    escaped = shown.replace('"', '\\"')
    return f'"{escaped}"'


def _escaped(character: str) -> str:
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # a byte outside any character
        return f"\\x{number - 0xDC00:02x}"
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def spelled(tokens: Sequence[int], vocabulary: Vocabulary | None) -> str:
    """Tokens as `"text"`, with `<0>` for a token without text and `<user>` for a turn of a chat; without a vocabulary
    as `[0 17 4]`."""
    if vocabulary is None:
        return f"[{' '.join(map(str, tokens))}]"
    parts: list[str] = []
    text = b""
    for token in tokens:
        data = vocabulary[token] if token < len(vocabulary) else None
        if data is None:
            name = f"<{_MARKS.get(token, token) if vocabulary is BYTES else token}>"
            parts += [quoted(text), name] if text else [name]
            text = b""
        else:
            text += data
    return " ".join([*parts, quoted(text)] if text or not parts else parts)


def after_beginning(tokens: Sequence[int], vocabulary: Vocabulary | None) -> Sequence[int]:
    """The tokens without the model's bos."""
    if not tokens or vocabulary is None or vocabulary is BYTES or vocabulary[tokens[0]] is not None:
        return tokens
    return tokens[1:]


# the first difference

NAMED = 3
"""Maximum number of stored continuations that are named."""
SHOWN = 60
"""Maximum number of characters shown of a text."""


@dataclass(frozen=True, slots=True)
class Difference:
    """First difference between a path and stored entries. `before` are the stored tokens of the path; `asked` is the
    next one, None if the whole path is stored.

    `stored` are the tokens of the stored continuations, oldest first.
    """

    before: tuple[int, ...]
    asked: int | None
    stored: tuple[int, ...]

    def describe(self, vocabulary: Vocabulary | None, unit: str = "token") -> str:
        """One clause: `at token 37, after "Q: Why did": stored " the", asked " a"`. The unit of a byte tree is a
        byte."""
        place = self.place(vocabulary, unit)
        named = ", ".join(spelled([token], vocabulary) for token in self.stored[:NAMED])
        named += f" and {len(self.stored) - NAMED} more" if len(self.stored) > NAMED else ""
        if self.asked is not None:
            return f"{place}: stored {named or 'nothing'}, asked {spelled([self.asked], vocabulary)}"
        return f"{place}: the stored text continues with {named or 'nothing'}; no scores are stored"

    def place(self, vocabulary: Vocabulary | None, unit: str = "token") -> str:
        """The place, such as `at token 37, after "Q: Why did"`."""
        before = after_beginning(self.before, vocabulary)
        text = spelled(before, vocabulary)
        if len(text) > SHOWN:
            text = f"…{text[-SHOWN:]}"
        return f"at {unit} {len(self.before) + 1}, {f'after {text}' if before else 'the first'}"
