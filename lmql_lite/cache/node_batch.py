"""Entries of nodes to be added at once: what hangs on what, which of them are equal, in what order they are added.

`above[i]` is a node, or `~j` for the node of entry `j`, which stands before.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

_WIDE = 48
"""Levels with fewer entries are quicker one by one: a vectorised level costs about 60 us, an entry alone 1.3 us."""
_ROUNDS = 4
"""Rounds in which equal entries are looked for all at once: each time, those below the ones found before."""


def checked(parents: ArrayLike, tokens: ArrayLike, known: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    above, ids = np.asarray(parents), np.asarray(tokens)
    if above.ndim != 1 or above.shape != ids.shape:
        raise ValueError(f"parents of shape {above.shape} and tokens of shape {ids.shape} are not a list of entries")
    if not all(numbers.size == 0 or np.issubdtype(numbers.dtype, np.integer) for numbers in (above, ids)):
        raise ValueError("parents and tokens are integers")
    above, ids = np.ascontiguousarray(above, dtype=np.int64), np.ascontiguousarray(ids, dtype=np.int64)
    wrong = np.flatnonzero((above >= known) | (~above >= np.arange(len(above))))
    if wrong.size:
        raise ValueError(f"the parent of entry {wrong[0]} is neither a node nor an earlier entry: {above[wrong[0]]}")
    wrong = np.flatnonzero(ids != ids.astype(np.int32))
    if wrong.size:
        raise ValueError(f"the token of entry {wrong[0]} has more than 32 bits: {ids[wrong[0]]}")
    return above, ids


def levels(above: NDArray[np.int64]) -> NDArray[np.int32]:
    """Number of entries of the same call above each entry. Chains, each entry below the last one, are followed in steps
    that double."""
    places = np.arange(len(above))
    begins = above != -places  # ~(place - 1)
    begins[:1] = True
    starts = np.flatnonzero(begins)
    chain_of = np.cumsum(begins) - 1
    depths = places - starts[chain_of]
    over = above[starts]
    inner = over < 0
    jump = np.where(inner, chain_of[np.maximum(~over, 0)], np.arange(len(starts)))
    steps = np.where(inner, depths[np.maximum(~over, 0)] + 1, 0)
    while (beyond := steps[jump]).any():
        steps += beyond
        jump = jump[jump]
    levels_of: NDArray[np.int32] = (steps[chain_of] + depths).astype(np.int32)
    return levels_of


def stretches(levels_of: NDArray[np.int32]) -> Iterator[tuple[NDArray[np.intp], bool]]:
    """Entries from above, and whether they are one wide level; narrow levels wait for the next wide one."""
    widths = np.bincount(levels_of).tolist()
    # numpy sorts short integers by radix, ten times as quickly
    order = np.argsort(levels_of.astype(np.uint16) if len(widths) <= 2**16 else levels_of, kind="stable")
    begin = end = 0
    for width in widths:
        if width >= _WIDE:
            if begin < end:
                yield order[begin:end], False
            begin, end = end + width, end + width
            yield order[end - width : end], True
        else:
            end += width
    if begin < end:
        yield order[begin:end], False


def merged(above: NDArray[np.int64], ids: NDArray[np.int64], known: int) -> NDArray[np.intp] | None:
    """The first equal entry of each entry, which may be itself. None where finding them would take long.

    Equal entries have the same parent: most entries are alone below theirs, and are not looked at twice.
    """
    entries = np.arange(len(above))
    stands_for = entries.copy()
    left = np.ones(len(above), dtype=np.bool_)
    for _ in range(_ROUNDS):
        over = np.where(above < 0, known + stands_for[np.maximum(~above, 0)], above)
        youngest = np.zeros(known + len(above), dtype=np.intp)
        youngest[over] = entries
        crowded = np.zeros(known + len(above), dtype=np.bool_)
        crowded[over[youngest[over] != entries]] = True
        some = np.flatnonzero(crowded[over] & left)
        _, firsts, which = np.unique(
            (over[some] << 32) | (ids[some] & 0xFFFF_FFFF), return_index=True, return_inverse=True
        )
        if len(firsts) == len(some):
            return stands_for
        stands_for[some] = some[firsts[which.reshape(-1)]]
        stands_for = stands_for[stands_for]  # who stood for others may stand behind an earlier one now
        left = stands_for == entries
    return None
