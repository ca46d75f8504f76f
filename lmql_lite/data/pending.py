"""Attempts without an answer, as sorted columns: 17 bytes per attempt."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable

import numpy as np


class PendingAttempts:
    """Keys (64 bits of each), digests of their rows' columns, and marks for those that are done."""

    def __init__(self, attempts: Iterable[tuple[int, int]]) -> None:
        keys, digests = array("Q"), array("q")
        for key, digest in attempts:
            keys.append(key)
            digests.append(digest)
        order = np.argsort(np.frombuffer(keys, np.uint64), kind="stable")
        self._keys = array("Q", np.frombuffer(keys, np.uint64)[order].tobytes())
        self._digests = array("q", np.frombuffer(digests, np.int64)[order].tobytes())
        self._is_settled = bytearray(len(keys))
        self._left = len(keys)

    def __len__(self) -> int:
        return self._left

    def __contains__(self, key: int) -> bool:
        return self._place(key) >= 0

    def digest(self, key: int) -> int | None:
        """Digest of the columns of a key; None where the key is settled or not asked for."""
        place = self._place(key)
        return None if place < 0 else self._digests[place]

    def settle(self, key: int) -> None:
        """Takes a key out; nothing where it is not there."""
        if (place := self._place(key)) >= 0:
            self._is_settled[place] = 1
            self._left -= 1

    def _place(self, key: int) -> int:
        """Place of the first unsettled key that equals `key`; -1 without one."""
        place = bisect_left(self._keys, key)
        while place < len(self._keys) and self._keys[place] == key:
            if not self._is_settled[place]:
                return place
            place += 1
        return -1
