"""Tokens as a person reads them: text in quotes, every special character visible; or ids, where text is not known. And
the first difference between a path and what is stored, which explains a miss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lmql_lite.cache.byte_tree import END, MEDIA, TURNS, VOCABULARY
from lmql_lite.cache.node_table import ROOT

Vocabulary = Sequence[bytes | None]
"""The bytes of every token id; None for those that have no text."""

BYTES: Vocabulary = (*(bytes([byte]) for byte in range(256)), None, *[None] * len(TURNS))
"""Of the tree of a server that speaks text."""

_MARKS = {END: "end", **{mark: name for name, mark in (TURNS | MEDIA).items()}}
"""Marks that stand in that tree beside the bytes."""
_NAMED = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def size_shown(vocabulary_size: int) -> str:
    """`1,536 tokens`; `bytes` of the tree of a server."""
    return "bytes" if vocabulary_size == VOCABULARY else f"{vocabulary_size:,} tokens"


def visible(text: str | bytes) -> str:
    """Without any character that a terminal would act upon or not show: `\\n`, `\\x1b`, a byte of no character."""
    text = text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(_NAMED.get(one) or (one if one.isprintable() else _escaped(one)) for one in text)


def quoted(text: str | bytes) -> str:
    """In double quotes, or in single ones where it holds double ones only."""
    shown = visible(text)
    if '"' not in shown:
        return f'"{shown}"'
    if "'" not in shown:
        return f"'{shown}'"
    escaped = shown.replace('"', '\\"')
    return f'"{escaped}"'


def _escaped(character: str) -> str:
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # a byte that is no part of a character
        return f"\\x{number - 0xDC00:02x}"
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def spelled(tokens: Sequence[int], vocabulary: Vocabulary | None) -> str:
    """`"text"`; `<0>` is a token without text, `<user>` the turn of a chat. Without a vocabulary `[0 17 4]`."""
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
    """The tokens without the one that a model's tokenizer sets before every text."""
    if not tokens or vocabulary is None or vocabulary is BYTES or vocabulary[tokens[0]] is not None:
        return tokens
    return tokens[1:]


def shortened(text: str, width: int) -> str:
    """Beginning and end of a long text."""
    if len(text) <= width:
        return text
    end = (width - 3) * 2 // 5
    return f"{text[: width - 3 - end]} … {text[-end:]}"


# the first difference

NAMED = 3
"""Stored continuations that are named, at most."""
SHOWN = 60
"""Characters of a text that are shown."""


Children = Callable[[int], Iterable[tuple[int, int]]]
"""Token and node of each child that is stored."""


@dataclass(frozen=True, slots=True)
class Difference:
    """`before`: the tokens of the path that are stored. `asked`: the one that follows, None where all of it is stored.

    `stored`: the tokens by which what is stored goes on from there, by the numbers of their nodes.
    """

    before: tuple[int, ...]
    asked: int | None
    stored: tuple[int, ...]

    def __str__(self) -> str:
        return self.describe(None)

    def describe(self, vocabulary: Vocabulary | None, unit: str = "token") -> str:
        """One clause: `at token 37, after "Q: Why did": stored " the", asked " a"`. In a tree of text the unit is a
        byte."""
        place = self.place(vocabulary, unit)
        named = ", ".join(spelled([token], vocabulary) for token in self.stored[:NAMED])
        if len(self.stored) > NAMED:
            others = len(self.stored) - NAMED
            named += f" and {others} other{'' if others == 1 else 's'}"
        if self.asked is not None:
            return f"{place}: stored {named or 'nothing'}, asked {spelled([self.asked], vocabulary)}"
        if named:
            return f"{place}: the text that is stored went on with {named}; no scores are stored"
        return f"{place}: nothing is stored"

    def place(self, vocabulary: Vocabulary | None, unit: str = "token") -> str:
        """`at token 37, after "Q: Why did"`."""
        before = after_beginning(self.before, vocabulary)
        text = spelled(before, vocabulary)
        if len(text) > SHOWN:
            text = f"…{text[-SHOWN:]}"
        return f"at {unit} {len(self.before) + 1}, {f'after {text}' if before else 'the first'}"


def difference(stored: Children, path: Sequence[int]) -> Difference:
    """The first difference between a path of tokens and what is stored."""
    node = ROOT
    for depth, token in enumerate(path):
        children = dict(stored(node))
        if token not in children:
            return Difference(tuple(path[:depth]), token, _by_number(children))
        node = children[token]
    return Difference(tuple(path), None, _by_number(dict(stored(node))))


def _by_number(children: dict[int, int]) -> tuple[int, ...]:
    return tuple(sorted(children, key=children.__getitem__))
