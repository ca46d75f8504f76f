"""Transitions of an automaton as arrays, so that a walk can follow those of many places at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import Atoms
from lmql_lite.constraints.counters import Counts

IntArray = NDArray[np.intp]

UNKNOWN = 0
"""Entry of a transition that is not known yet. It is 0 because rows of zeros use no memory until they are written."""
NOWHERE = 1
"""Dead state: no continuation makes the text valid. Other states are numbered from 2."""
Step = tuple[int, int]
"""Next state, and increment of the counts, tokens left out."""
NO_STEP: Step = NOWHERE, 0
ROWS = 64

Successor = tuple[Atoms, int, int]
"""Effect of a byte: the machines' next states, that of UTF-8, and the flags it raises, as part of a count."""


class Expanded(NamedTuple):
    """Transitions of a state: the kind of each byte, the successor of each kind, and its step once it was asked for.

    Bytes that cannot follow are of kind -1, whose step is the last one.
    """

    kinds: NDArray[np.int16]
    successors: list[Successor]
    steps: list[Step | None]


class StepTable:
    """Maps each state and byte to the next state times 256, to which a walk only adds the next byte.

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
        # written last, so that a thread that sees a step also finds its increments
        self._after[state] = np.array([step[0] << 8 if step else UNKNOWN for step in steps])[kinds]

    def make_room(self, states: int, written: Iterable[int]) -> None:
        """Grows the table to hold at least `states` rows. Only those in `written` are copied; others use no memory."""
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
        """Next states, each times 256. A place is a state times 256 plus a byte."""
        return self._after.ravel().take(places, mode="clip", out=out)

    def added(self, lane: int) -> IntArray:
        """Increments in one of `Counts.lanes`, indexed by the places of `after`."""
        return self._added[lane].ravel()
