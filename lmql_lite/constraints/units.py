"""Units in which lengths are counted, and their meaning in Python.

A new unit needs a name in `NamedUnit`, a case in `measured` and one in `counts.PartCounter`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, assert_never, get_args

NamedUnit = Literal["characters", "words", "sentences", "lines", "tokens"]
"""Characters are code points. Words are the parts that `str.split()` returns. A sentence ends where white space follows
`.`, `!` or `?`. A line ends with a line feed, which the last line may lack. Tokens are those that were chosen for the
hole, including tokens that a stop cuts off (S15)."""
UNITS: tuple[NamedUnit, ...] = get_args(NamedUnit)


@dataclass(frozen=True, slots=True, order=True)
class Occurrences:
    """Non-overlapping occurrences of a phrase, counted as `str.count` does."""

    phrase: bytes

    def __str__(self) -> str:
        return f"times {self.phrase.decode()!r}"


Unit = NamedUnit | Occurrences
MARKS = ".!?"
SPACES = tuple(filter(str.isspace, map(chr, range(0x3001))))
"""All white space characters of Unicode."""


def starts_character(byte: int) -> bool:
    """True if a byte is the first byte of a UTF-8 character; a text has as many of these as code points."""
    return byte & 0xC0 != 0x80


def measured(text: str, unit: Unit) -> int:
    """Number of parts in a text. For tokens, which the text alone does not determine, the number of characters."""
    match unit:
        case Occurrences(phrase):
            return text.count(phrase.decode())
        case "characters" | "tokens":
            return len(text)
        case "words":
            return len(text.split())
        case "sentences":
            return len(re.split(r"(?<=[.!?])\s+", text.strip())) if text.strip() else 0
        case "lines":
            return text.count("\n") + (not text.endswith("\n") and text != "")
    assert_never(unit)
