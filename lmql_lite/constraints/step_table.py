"""The steps of an automaton by byte, as arrays: a walk takes one for many places at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import Atoms
from lmql_lite.constraints.counters import Counts

IntArray = NDArray[np.intp]

UNKNOWN = 0
"""Stands in the table where a step was not taken yet: rows of zeros cost no memory until they are written."""
NOWHERE = 1
"""The state of a text that no continuation makes valid. The others are numbered from 2."""
Step = tuple[int, int]
"""The next state, and what is added to the counts, tokens left out."""
NO_STEP: Step = NOWHERE, 0
ROWS = 64

Successor = tuple[Atoms, int, int]
"""Automaton of a condition, byte by byte: the machines' states, UTF-8, and the flags that it raises."""


class Expanded(NamedTuple):
    """The kind of every byte of a state, and what each kind leads to, with the step once it was asked for. Bytes with
    which no text goes on are of the last kind, -1."""

    kinds: NDArray[np.int16]
    successors: list[Successor]
    steps: list[Step | None]


class StepTable:
    """For each state and byte the next state times 256: so that another byte is added, and not more.

    Threads may read it while one writes.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._after: IntArray = np.zeros((ROWS, 256), dtype=np.intp)
        self._added: list[IntArray] = [np.zeros((ROWS, 256), dtype=np.intp) for _ in range(counts.num_lanes)]
        self._after[NOWHERE] = NOWHERE << 8

    def write(self, state: int, expanded: Expanded) -> None:
        kinds, _, steps = expanded
        if self._added:
            lanes = [self._counts.lanes(step[1] if step else 0) for step in steps]
            for added, lane in zip(self._added, zip(*lanes, strict=True), strict=True):
                added[state] = np.array(lane)[kinds]
        # last: whoever sees it may read what it adds
        self._after[state] = np.array([step[0] << 8 if step else UNKNOWN for step in steps])[kinds]

    def make_room(self, states: int, written: Iterable[int]) -> None:
        """Rows that were never written stay untouched."""
        if states <= len(self._after):
            return
        rows, kept = states * 3 // 2 + ROWS, list(written)

        def grown(table: IntArray) -> IntArray:
            larger = np.zeros((rows, 256), dtype=np.intp)
            larger[kept] = table[kept]
            return larger

        self._after, self._added = grown(self._after), list(map(grown, self._added))

    def is_known(self, state: int, byte: int) -> bool:
        return bool(self._after[state, byte] != UNKNOWN)

    def after(self, places: IntArray, out: IntArray | None) -> IntArray:
        """The next states, each times 256, for places that are a state times 256 and a byte."""
        return self._after.ravel().take(places, mode="clip", out=out)

    def added(self, lane: int) -> IntArray:
        """For every place of `after` what it adds to one of `Counts.lanes`."""
        return self._added[lane].ravel()
