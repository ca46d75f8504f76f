"""What is missing of the phrases that a text shall have, and of those that it shall have several times."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from lmql_lite.constraints.atoms import Need
from lmql_lite.constraints.superstrings import IntArray, Superstrings, meet
from lmql_lite.constraints.terms import Occurrences


class Demand:
    """`texts` are those that a text may end with; sets of the wanted phrases are bits."""

    def __init__(self, wanted: Sequence[bytes], repeated: Sequence[Occurrences], texts: Sequence[bytes]) -> None:
        self._repeated = [each.phrase for each in repeated]
        self._sizes = [(len(phrase), len(phrase.decode())) for phrase in self._repeated]
        self._wanted = wanted
        self._all = (1 << len(wanted)) - 1
        self._is_plain = all(map(bytes.isascii, (*wanted, *self._repeated)))
        self._in_bytes = Superstrings(wanted, texts)
        self._in_characters = self._in_bytes if self._is_plain else Superstrings(wanted, texts, characters=True)
        self._are_apart = not any(meet(*pair) for pair in combinations(self._repeated, 2)) and not any(
            meet(one, other) for one in self._repeated for other in wanted
        )
        """Whether what is counted shares no byte with anything else."""

    @property
    def is_exact(self) -> bool:
        """Whether overlaps of all phrases are made use of."""
        return self._in_bytes.is_exact

    def is_attained(self) -> bool:
        """Whether a text that has just what is demanded can always be said, and others between and behind it."""
        if not self._is_plain or not self._repeated:
            return self._is_plain
        counted = set(b"".join(self._repeated))
        return self._are_apart and any(byte not in counted for byte in range(0x20, 0x7F))

    def least(self, text: int, wanted: int, missing: Sequence[int], begun: Sequence[int]) -> Need:
        """Behind the text with this number: phrases that are wanted, and how many of each counted one are missing, of
        which so many bytes have begun."""
        wanted &= self._all
        sizes = self._in_bytes.least(text, wanted)
        num_bytes = self._joined(sizes, missing, begun, 0)
        if self._is_plain:
            return Need(num_bytes, num_bytes)
        return Need(num_bytes, self._joined(self._in_characters.least(text, wanted), missing, begun, 1))

    def _joined(self, wanted: tuple[int, int], missing: Sequence[int], begun: Sequence[int], unit: int) -> int:
        total, gained = wanted
        if not self._are_apart:
            each = [more * size[unit] - done for more, size, done in zip(missing, self._sizes, begun, strict=True)]
            return max(total - gained, *each)
        for more, size, done in zip(missing, self._sizes, begun, strict=True):
            if more:
                total += more * size[unit]
                gained = max(gained, done)
        return total - gained

    def least_of_all(
        self, texts: IntArray, wanted: Sequence[IntArray], missing: Sequence[IntArray], begun: Sequence[IntArray]
    ) -> IntArray:
        """The same for many places, in bytes, where it `is_attained`."""
        total, gained = (
            self._in_bytes.least_of_all(texts, wanted)
            if self._wanted
            else (np.zeros(texts.size, dtype=np.intp), np.zeros(texts.size, dtype=np.intp))
        )
        for more, size, done in zip(missing, self._sizes, begun, strict=True):
            total = total + more * size[0]
            gained = np.maximum(gained, np.where(more > 0, done, 0))
        return total - gained
