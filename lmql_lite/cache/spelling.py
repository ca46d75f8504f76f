"""Tokens as a person reads them: text in quotes, every special character visible; or ids, where text is not known."""

from __future__ import annotations

from collections.abc import Sequence

from lmql_lite.cache.texts import END, TURNS, VOCABULARY

Vocabulary = Sequence[bytes | None]
"""The bytes of every token id; None for those that have no text."""

BYTES: Vocabulary = (*(bytes([byte]) for byte in range(256)), None, *[None] * len(TURNS))
"""Of the tree of a server that speaks text."""

_MARKS = {END: "end", **{mark: role for role, mark in TURNS.items()}}
"""What stands in that tree beside the bytes."""
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


def shortened(text: str, width: int) -> str:
    """Beginning and end of a long text."""
    if len(text) <= width:
        return text
    end = (width - 3) * 2 // 5
    return f"{text[: width - 3 - end]} … {text[-end:]}"
