"""Summary of a token tree for people: stretches of tokens without branches, with counts of entries in and below
them."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.file_contents import ModelEntries
from lmql_lite.cache.node_table import ROOT


@dataclass(frozen=True, slots=True)
class Count:
    """Numbers of entries, by kind."""

    topks: int
    greedy: int
    sampled: int

    @property
    def total(self) -> int:
        return self.topks + self.greedy + self.sampled


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens that follow each other without a branch. The first stretch begins at the root and may have no tokens.

    `parent` is the index of the stretch that it branches off from, None for the first; `depth` is the number of
    branches that lead here. `here` and `below` count entries after its tokens and in the stretches under it. `hidden`
    counts the child stretches that are left out.
    """

    parent: int | None
    depth: int
    tokens: tuple[int, ...]
    here: Count
    below: Count
    hidden: int


def survey(known: ModelEntries, *, depth: int | None = None, limit: int | None = None) -> list[Stretch]:
    """The stretches of a tree, parents before children, and siblings by their number of entries, most first.

    At most `limit` stretches, those with most entries in and below them, and at most `depth` branches deep.
    """
    parents, tokens = known.tree.columns(np.arange(len(known.tree), dtype=np.int32))
    begin = _begins(parents)
    starts, which = np.unique(begin, return_inverse=True)  # stretches are numbered, and 0 is the first
    above = which[np.maximum(parents[starts], ROOT)]
    here = _counts(known, which, len(starts))
    whole = here.copy()
    totals, up = whole.tolist(), above.tolist()
    for one in range(len(starts) - 1, 0, -1):  # numbers ascend as those of nodes do, so parents come first
        over, under = totals[up[one]], totals[one]
        for kind in range(3):
            over[kind] += under[kind]
    children: dict[int, list[int]] = {}
    by_parent = np.argsort(above[1:], kind="stable") + 1
    for one in by_parent.tolist():
        children.setdefault(up[one], []).append(one)
    shown = _shown(children, totals, depth, limit)
    nodes = np.argsort(which, kind="stable")
    ends = np.searchsorted(which[nodes], np.arange(len(starts)), side="right").tolist()

    found: list[Stretch] = []
    waiting: list[tuple[int, int | None, int]] = [(0, None, 0)]
    while waiting:
        one, parent, level = waiting.pop()
        members = nodes[ends[one - 1] if one else 0 : ends[one]]
        own, all_of_it = here[one].tolist(), totals[one]
        below = sorted((each for each in children.get(one, ()) if each in shown), key=lambda each: sum(totals[each]))
        waiting += [(each, len(found), level + 1) for each in below]
        found.append(
            Stretch(
                parent,
                level,
                tuple(tokens[members[members != ROOT]].tolist()),
                Count(*own),
                Count(*(every - mine for every, mine in zip(all_of_it, own, strict=True))),
                len(children.get(one, ())) - len(below),
            )
        )
    return found


def _begins(parents: NDArray[np.int32]) -> NDArray[np.int64]:
    """The first node of each node's stretch, which is the node itself if its parent has other children."""
    siblings = np.bincount(parents[1:], minlength=len(parents))
    own = np.arange(len(parents))
    begin = np.where(siblings[np.maximum(parents, ROOT)] == 1, parents, own).astype(np.int64)
    begin[ROOT] = ROOT
    while ((further := begin[begin]) != begin).any():  # in doubling steps
        begin = further
    return begin


def _counts(known: ModelEntries, which: NDArray[np.intp], many: int) -> NDArray[np.int64]:
    """Shape (stretches, 3): entries by kind."""
    kinds = (known.entries.topks.nodes, known.entries.greedy.nodes, known.entries.sampled.nodes)
    return np.stack([np.bincount(which[nodes], minlength=many) for nodes in kinds], axis=1).astype(np.int64)


def _shown(children: dict[int, list[int]], totals: list[list[int]], depth: int | None, limit: int | None) -> set[int]:
    """The stretches with most entries in and below them. A parent never has fewer than its children."""
    shown: set[int] = set()
    best = [(0, 0, 0)]
    while best and (limit is None or len(shown) < limit):
        _, one, level = heapq.heappop(best)
        shown.add(one)
        if depth is None or level < depth:
            for each in children.get(one, ()):
                heapq.heappush(best, (-sum(totals[each]), each, level + 1))
    return shown
