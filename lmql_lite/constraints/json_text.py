r"""Text of JSON, read piece by piece: the character that an escape stands for, and the keys of the open objects.

A string may be written with any escape that JSON has: `"\u00e9"`, `"\u00E9"` and `"é"` are one text. llguidance knows
one spelling of most characters, so it is given the character, and this module follows the bytes that the model wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

QUOTE, BACKSLASH, DELETE = b'"', b"\\", b"\x7f"
SIMPLE = {b'"': '"', b"\\": "\\", b"/": "/", b"b": "\b", b"f": "\f", b"n": "\n", b"r": "\r", b"t": "\t"}
"""Characters of the escapes of two bytes, by the second byte."""
HEX = frozenset(b"0123456789abcdefABCDEF")
LAST = 0x10FFFF
LEADS, TRAILS = (0xD800, 0xDBFF), (0xDC00, 0xDFFF)
"""Halves of surrogate pairs. A half alone is no character, so it cannot be written."""
CodeRange = tuple[int, int]
"""First and last code point."""
CHARACTERS: tuple[CodeRange, ...] = ((0, LEADS[0] - 1), (TRAILS[1] + 1, LAST))
LONGEST_ESCAPE = len(rb"\ud83d\ude00")

_IN_STRING = re.compile(rb'["\\\x7f]')
_OUTSIDE = re.compile(rb'["{}\[\],]')


def characters(escape: bytes) -> tuple[CodeRange, ...]:
    r"""Characters that these first bytes of an escape may still become, one range of one character if it is complete.

    >>> characters(rb"\u00e9"), characters(rb"\ud83d\ude0"), characters(rb"\ude")
    (((233, 233),), ((128512, 128527),), ())
    """
    if escape == BACKSLASH:
        return CHARACTERS
    if escape[1:2] != b"u":
        character = SIMPLE.get(escape[1:])
        return ((ord(character), ord(character)),) if character else ()
    units = _units(escape[2:6])
    if units is None:
        return ()
    found = [_common(units, each) for each in CHARACTERS] if len(escape) <= 6 else []
    leads, trails = _common(units, LEADS), _trails(escape[6:])
    if leads and trails:
        found.append((_pair(leads[0], trails[0]), _pair(leads[1], trails[1])))
    return tuple(each for each in found if each)


def _trails(escape: bytes) -> CodeRange | None:
    """Second halves of surrogate pairs that an escape with these first bytes may become."""
    if not rb"\u".startswith(escape[:2]):
        return None
    units = _units(escape[2:])
    return units and _common(units, TRAILS)


def _units(digits: bytes) -> CodeRange | None:
    """Numbers of four hexadecimal digits that begin with these digits."""
    if not HEX.issuperset(digits):
        return None
    return int(digits.ljust(4, b"0"), 16), int(digits.ljust(4, b"f"), 16)


def _common(one: CodeRange, other: CodeRange) -> CodeRange | None:
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return (low, high) if low <= high else None


def _pair(lead: int, trail: int) -> int:
    return 0x10000 + ((lead - LEADS[0]) << 10) + trail - TRAILS[0]


def written(code: int) -> bytes:
    """A character as `json.dumps` writes it inside quotes, with letters unescaped."""
    return json.dumps(chr(code), ensure_ascii=False)[1:-1].encode()


def incomplete(data: bytes) -> int:
    """Number of bytes at the end that begin a character and do not complete it."""
    for back in range(1, min(len(data), 4) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            return back if back < 2 + (byte >= 0xE0) + (byte >= 0xF0) else 0
        if byte < 0x80:
            break
    return 0


def _in_string(byte: int) -> bytes:
    return written(byte) if byte < 0x7F else bytes([byte])


def escaped(code: int, begun: bytes) -> bytes:
    r"""Rest of the escape for a character after its first bytes.

    >>> escaped(0xE9, rb"\u00E"), escaped(0x1F600, rb"\ud83d"), escaped(ord("\n"), b"\\")
    (b'9', b'\\ude00', b'n')
    """
    short = next((letter for letter, character in SIMPLE.items() if ord(character) == code), None)
    if begun == BACKSLASH and short is not None:
        return short
    units = chr(code).encode("utf-16-be")
    return b"".join(rb"\u" + units[at : at + 2].hex().encode() for at in range(0, len(units), 2))[len(begun) :]


class JsonLevel(NamedTuple):
    """An open object or list. Strings are UTF-8 without escapes."""

    outer: JsonLevel | None
    keys: frozenset[bytes] | None
    """Keys that the object has; None for a list."""
    key: bytes | None
    """Beginning of the key that is read, b"" before it begins; None where no key is next."""


class JsonPiece(NamedTuple):
    """Some of the bytes that are read, up to `end`, as llguidance reads them, and the place after them."""

    end: int
    plain: bytes
    after: JsonPlace


class JsonPlace(NamedTuple):
    """Place in a JSON text. It knows the bytes of JSON, but no schema."""

    inside: bool = False
    """True inside a string."""
    escape: bytes = b""
    """First bytes of an escape that is not complete."""
    level: JsonLevel | None = None

    @property
    def awaits_other_key(self) -> bool:
        """True if a key is next, or being read, that must differ from one that the object has."""
        return next(self.known_keys, None) is not None

    @property
    def is_key(self) -> bool:
        """True if a key is next, or being read."""
        return self.level is not None and self.level.key is not None

    @property
    def known_keys(self) -> Iterator[bytes]:
        """Rests of the keys of the object that begin like the one that is read, as `json.dumps` writes them."""
        level = self.level
        if level is not None and level.key is not None:
            for key in level.keys or ():
                if key.startswith(level.key):
                    yield b"".join(map(_in_string, key[len(level.key) :]))

    def typed(self, code: int) -> JsonPlace:
        """The place after a character in a string."""
        return self._read(chr(code).encode())

    def takes(self, data: bytes) -> bool:
        """True if all these bytes may stand here."""
        return not data or max((piece.end for piece in self.pieces(data)), default=0) == len(data)

    def pieces(self, data: bytes) -> Iterator[JsonPiece]:
        """The longest beginning of `data` that may stand here, in pieces: runs of bytes, and escapes.

        It ends before a byte that no escape has, and before the quote that would close a key which the object has.
        """
        place, at = self, 0
        while at < len(data):
            start = at
            if place.escape or (place.inside and data.startswith(BACKSLASH, at)):
                escape, found = place.escape, CHARACTERS
                while at < len(data) and found[0][0] != found[-1][1]:
                    found = characters(escape + data[at : at + 1])
                    if not found:
                        break
                    escape += data[at : at + 1]
                    at += 1
                if found and found[0][0] == found[-1][1]:
                    code = found[0][0]
                    place = place._replace(escape=b"")._read(chr(code).encode())
                    yield JsonPiece(at, written(code), place)
                    continue
                if at > start:
                    yield JsonPiece(at, b"", place._replace(escape=escape))
                return
            if place.inside:
                special = _IN_STRING.search(data, at)
                at = len(data) if special is None else special.start()
                place = place._read(data[start:at])
                closes = special is not None and special[0] == QUOTE
                if closes and place._closed is not None:
                    place, at = place._closed, at + 1
                if at > start:
                    yield JsonPiece(at, data[start:at], place)
                if special is not None and special[0] == DELETE:
                    at += 1
                    place = place._read(DELETE)
                    yield JsonPiece(at, DELETE, place)
                elif closes and place.inside:
                    return  # the key occurs twice
            else:
                place, at = place._outside(data, at)
                yield JsonPiece(at, data[start:at], place)

    def _read(self, text: bytes) -> JsonPlace:
        """The place after text in a string."""
        level = self.level
        if level is None or level.key is None:
            return self
        return self._replace(level=level._replace(key=level.key + text))

    @property
    def _closed(self) -> JsonPlace | None:
        """The place after the quote that ends a string; None if it ends a key that the object has already."""
        level = self.level
        if level is None or level.key is None or level.keys is None:
            return self._replace(inside=False)
        if level.key in level.keys:
            return None
        return JsonPlace(level=JsonLevel(level.outer, level.keys | {level.key}, None))

    def _outside(self, data: bytes, at: int) -> tuple[JsonPlace, int]:
        """The place after the quote that begins the next string, or at the end, and its index."""
        level = self.level
        for found in _OUTSIDE.finditer(data, at):
            match found[0]:
                case b'"':
                    return JsonPlace(inside=True, level=level), found.end()
                case b"{":
                    level = JsonLevel(level, frozenset(), b"")
                case b"[":
                    level = JsonLevel(level, None, None)
                case b",":
                    level = level and level._replace(key=None if level.keys is None else b"")
                case _:
                    level = level and level.outer
        return JsonPlace(level=level), len(data)


BEGINNING = JsonPlace()
