"""What every task writes: a text, and the content it is about.

The content decides on which side of the split a text falls, so a held-out text holds a combination (names with
colours, a joke under a heading, a place with a list) that no training text has, not only another random draw.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

HELD_OUT_IN = 20
"""One content combination in this many is held out."""


@dataclass(frozen=True, slots=True)
class Draft:
    content: str
    text: str

    @property
    def held_out(self) -> bool:
        return zlib.crc32(self.content.encode()) % HELD_OUT_IN == 0
