"""The least text that has a few phrases in it and none of some others, by a table over all that a text may end with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import NEVER
from lmql_lite.constraints.phrases import Finder

IntArray = NDArray[np.intp]

FEW = 4
"""Phrases that are wanted at most: the table has a row for each subset of them."""


class Avoiding:
    """For texts of ASCII. `wanted` and `unwanted` are flags of the finder."""

    def __init__(self, finder: Finder, wanted: int, unwanted: int, flags_at: int) -> None:
        self._bits = [at for at in range(wanted.bit_length()) if wanted >> at & 1]
        many = len(finder.texts)
        steps: list[tuple[int, int, int]] = []
        for node in range(many):
            found = finder.found[node]
            special = finder.moves(node).special
            steps.append((node, 0, 0))  # a byte that is in no phrase
            for byte in {*special, *found}:
                raised = found.get(byte, 0) >> flags_at
                if byte < 0x80 and not raised & unwanted:
                    steps.append((node, special.get(byte, 0), self._subset(raised)))
        source, target, raised = np.array(steps, dtype=np.intp).T
        self.least: IntArray = np.full((1 << len(self._bits), many), NEVER, dtype=np.intp)
        """For every subset of the wanted ones and every state of the finder."""
        self.least[0] = 0
        for subset in range(1, len(self.least)):
            left = subset & ~raised
            here = self.least[subset]
            while True:
                before = here.copy()
                np.minimum.at(here, source, np.minimum(self.least[left, target] + 1, NEVER))
                if (here == before).all():
                    break

    def _subset(self, flags: int) -> int:
        return sum((flags >> bit & 1) << at for at, bit in enumerate(self._bits))

    def missing(self, text: int, wanted: int) -> int:
        return int(self.least[self._subset(wanted), text])

    def missing_of_all(self, texts: IntArray, wanted: list[IntArray], lane: int) -> IntArray:
        """The same for many; `wanted` in lanes of so many flags."""
        subsets = np.zeros(texts.size, dtype=np.intp)
        for at, bit in enumerate(self._bits):
            subsets |= (wanted[bit // lane] >> bit % lane & 1) << at
        return self.least[subsets, texts]
