"""Facts of whole logs as the fewest entries that keep what a log must: order, bounds of a batch, ages, and where
something was replaced. What is packed is packed the same for ever: packing it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.facts import Facts, picked, rows
from lmql_lite.cache.frames import MAX_NODES, MAX_ROW_ENTRIES, Batch, Entry
from lmql_lite.cache.framing import FILE_HEAD_BYTES, FRAME_HEAD_BYTES
from lmql_lite.cache.payloads import encode

FACTS_PER_BATCH = 100_000
AGE_SECONDS = 3600
"""Facts of one batch have one age, that of the oldest: they were written within so long."""


def packed(all_facts: Iterable[Facts]) -> list[Entry]:
    """Entries for an empty log. A model without facts is left out."""
    entries: list[Entry] = []
    for number, facts in enumerate((facts for facts in all_facts if len(facts)), start=1):
        entries.append(replace(facts.model, number=number))
        entries += _batches(facts, number)
    return entries


def file_bytes(entries: Sequence[Entry]) -> int:
    """How long a file of these entries is."""
    return FILE_HEAD_BYTES + sum(FRAME_HEAD_BYTES + len(encode(entry).payload or b"") for entry in entries)


def by_age(facts: Facts) -> NDArray[np.intp]:
    """Places of the facts, the oldest first; facts of unknown age are the oldest."""
    return np.lexsort((facts.batch, facts.written // AGE_SECONDS))


def _batches(facts: Facts, number: int) -> Iterator[Batch]:
    """The oldest first. A node stands in the first batch that needs it."""
    order, groups = _grouped(facts)
    within = np.arange(len(order)) - np.searchsorted(groups, groups)  # place among the facts of the group
    most = min(FACTS_PER_BATCH, MAX_ROW_ENTRIES // int(facts.heads.sizes.max(initial=1)))
    begins = np.flatnonzero(within % most == 0)
    stops = np.append(begins[1:], len(order))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    needed = facts.needed(rank)
    nodes = np.argsort(needed, kind="stable")  # in the order of the facts, which follow paths; parents before children
    nodes = nodes[: int(np.count_nonzero(needed < len(order)))]
    numbers = np.zeros(len(facts.tree), np.int64)
    numbers[nodes] = np.arange(len(nodes))  # the root is the first of all
    parents, tokens = facts.tree.columns(nodes.astype(np.int32))
    above = numbers[np.maximum(parents, 0)]
    ends = np.searchsorted(needed[nodes], stops)
    heads, verdicts = len(facts.heads.nodes), len(facts.verdicts.nodes)
    begin = 1
    for start, stop, end in zip(begins.tolist(), stops.tolist(), ends.tolist(), strict=True):
        while end - begin > MAX_NODES:
            yield Batch(number, begin, above[begin : begin + MAX_NODES], tokens[begin : begin + MAX_NODES])
            begin += MAX_NODES
        mine = np.sort(order[start:stop])
        some_heads, some_verdicts = np.searchsorted(mine, (heads, heads + verdicts))
        of_heads = rows(facts.heads, mine[:some_heads])
        of_verdicts = picked(facts.verdicts, mine[some_heads:some_verdicts] - heads)
        of_draws = picked(facts.draws, mine[some_verdicts:] - heads - verdicts)
        yield Batch(
            number,
            begin,
            above[begin:end],
            tokens[begin:end],
            replace(of_heads, nodes=numbers[of_heads.nodes]),
            replace(of_verdicts, nodes=numbers[of_verdicts.nodes]),
            replace(of_draws, nodes=numbers[of_draws.nodes]),
            written=int(facts.written[mine].min()),
            replaces=bool(groups[start] % 2 == 0),
        )
        begin = end


def _grouped(facts: Facts) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Places of the facts in the order of their groups, and the group of each in that order.

    Two groups for every hour: the first one replaces, the second one (an odd number) does not. Of a node where
    something was replaced, the first fact of all is in one that does: all others come later, and none is taken back.
    """
    groups = 2 * (facts.written // AGE_SECONDS) + 1
    nodes, order = facts.nodes, np.argsort(groups, kind="stable")
    _, first = np.unique(nodes[order], return_index=True)
    first = order[first]
    groups[first[facts.replaced[nodes[first]]]] -= 1
    order = np.argsort(groups, kind="stable")
    return order, groups[order]
