"""Batches of nodes to add at once: their parents, their duplicates, and the order in which they are added.

`above[i]` is a node, or `~j` for the node of an earlier entry `j`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

_WIDE = 48
"""Minimum entries of a vectorised level: a level costs about 60 us, a single entry 1.3 us."""
_ROUNDS = 4
"""Vectorised rounds in the search for equal entries; each finds those below the ones found before."""


def checked(parents: ArrayLike, tokens: ArrayLike, known: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    above, ids = np.asarray(parents), np.asarray(tokens)
    if above.ndim != 1 or above.shape != ids.shape:
        raise ValueError(f"parents of shape {above.shape} and tokens of shape {ids.shape} are not a list of entries")
    if not all(numbers.size == 0 or np.issubdtype(numbers.dtype, np.integer) for numbers in (above, ids)):
        raise ValueError("parents and tokens must be integers")
    above, ids = np.ascontiguousarray(above, dtype=np.int64), np.ascontiguousarray(ids, dtype=np.int64)
    wrong = np.flatnonzero((above >= known) | (~above >= np.arange(len(above))))
    if wrong.size:
        raise ValueError(f"the parent of entry {wrong[0]} is neither a node nor an earlier entry: {above[wrong[0]]}")
    wrong = np.flatnonzero(ids != ids.astype(np.int32))
    if wrong.size:
        raise ValueError(f"the token of entry {wrong[0]} has more than 32 bits: {ids[wrong[0]]}")
    return above, ids


def levels(above: NDArray[np.int64]) -> NDArray[np.int32]:
    """Number of entries of the batch above each entry. Chains, in which each entry is below the last, are followed in
    doubling steps."""
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
    """Entries in order of their levels, with True for one wide level; narrow levels are collected up to the next wide
    one."""
    widths = np.bincount(levels_of).tolist()
    # numpy sorts short integers by radix, ten times as fast
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
    """The first equal entry of each entry, which may be itself. None if the search would take long.

    Equal entries have the same parent. Most entries are the only ones below their parent, and are not compared.
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
        stands_for = stands_for[stands_for]  # a representative may now have an earlier one itself
        left = stands_for == entries
    return None
