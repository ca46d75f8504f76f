"""Reading of a log's records into trees, and making of records from entries of trees.

Records refer to one another by address (D19). Each reader numbers nodes for itself, so that readers and writers need
not agree on numbers.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmql_lite.cache.codec import Parser, Payload, encode, join
from lmql_lite.cache.columns import (
    AGE_SECONDS,
    ANCHORS,
    GREEDY,
    MAX_NODES,
    MAX_TOKENS,
    NODES,
    PARENTS,
    SAMPLED,
    TOPKS,
    Entries,
    Model,
    Record,
)
from lmql_lite.cache.framing import RECORD, FrameError, LogFrame, address_of
from lmql_lite.cache.node_table import ROOT

RUN_BYTES = 2**26
"""Bytes of payloads whose nodes are added together, so that a tree grows only once."""
CHUNK_BYTES = 2**22
"""Bytes of columns that are joined at once."""
ENTRIES_PER_RECORD = 100_000
_ROOT_ADDRESS = b""
"""Address of the root, which counts as a record of one node that is in no file."""


class NodeIndex:
    """Nodes of the records of one model, numbered in the order of reading or writing."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._nodes = array("i", [root])
        """Node of each number."""
        self._numbers = array("i", [0])
        """Last number of each node; 0 for the root, and for a node without one. A process writes a node again if it
        cannot read the first record of it."""
        self._addresses = [_ROOT_ADDRESS]
        self._begins = [0]
        """Number of the first node of each record."""
        self._range_of = {_ROOT_ADDRESS: (0, 1)}
        """First and last number of a record's nodes, by address."""

    @property
    def end(self) -> int:
        """Upper bound of the numbers."""
        return len(self._nodes)

    def has(self, node: int) -> bool:
        """True if a record may hang on this node."""
        return node == self._root or (node < len(self._numbers) and self._numbers[node] > 0)

    def knows_all(self, records: Iterable[tuple[bytes, Sequence[bytes]]]) -> bool:
        """True if records, given by address and parents, hang only on known records and on one another."""
        new: set[bytes] = set()
        for address, parents in records:
            if any(each not in self._range_of and each not in new for each in parents):
                return False
            new.add(address)
        return True

    def add(self, addresses: Sequence[bytes], many: NDArray[np.int64], nodes: NDArray[np.int32]) -> None:
        """Adds records that were read or written, in order, and their nodes; `many` are the numbers of nodes."""
        ends = len(self._nodes) + np.cumsum(many)
        for address, begin, end in zip(addresses, (ends - many).tolist(), ends.tolist(), strict=True):
            self._range_of[address] = begin, end
            if begin < end:  # nothing can hang on a record without nodes
                self._addresses.append(address)
                self._begins.append(begin)
        missing = int(nodes.max(initial=-1)) + 1 - len(self._numbers)
        if missing > 0:
            self._numbers.frombytes(bytes(4 * missing))
        numbers = np.arange(len(self._nodes), len(self._nodes) + len(nodes), dtype=np.int32)
        np.frombuffer(self._numbers, np.int32)[nodes] = numbers
        self._nodes.frombytes(nodes.tobytes())

    def nodes_from(self, begin: int) -> NDArray[np.int32]:
        """Nodes with numbers from `begin` on."""
        return np.array(self._nodes[begin:], np.int32)

    def anchors(self, nodes: Sequence[int]) -> tuple[tuple[bytes, ...], NDArray[np.int64], NDArray[np.int64]]:
        """`parents`, `anchor_records` and `anchor_nodes` of a record that hangs on these nodes."""
        numbers = np.array([self._numbers[node] if node != self._root else 0 for node in nodes], np.int64)
        records = np.searchsorted(self._begins, numbers, side="right") - 1
        offsets = numbers - np.array(self._begins, np.int64)[records]
        used, which = np.unique(np.append(0, records), return_inverse=True)  # the root is always the first
        parents = tuple(self._addresses[record] for record in used[1:].tolist())
        return parents, which.reshape(-1)[1:].astype(np.int64), offsets

    def resolved(self, whole: Record, counts: NDArray[np.int64], addresses: Sequence[bytes]) -> NDArray[np.int64]:
        """The node at each place of these records, or `~i` for the i-th of all their own nodes.

        `addresses` are those of the records, which may hang on one another. Raises FrameError if an anchor is missing.
        """
        first = self.end
        ends = first + np.cumsum(counts[:, NODES])
        ranges: list[tuple[int, int]] = []
        new: dict[bytes, tuple[int, int]] = {}
        at = 0
        own = list(zip(addresses, (ends - counts[:, NODES]).tolist(), ends.tolist(), strict=True))
        for (address, begin, end), many in zip(own, counts[:, PARENTS].tolist(), strict=True):
            ranges.append((0, 1))
            ranges += [new.get(each) or self._range_of[each] for each in whole.parents[at : at + many]]
            new[address] = begin, end
            at += many
        bounds = np.array(ranges, np.int64)
        tables = np.cumsum(counts[:, PARENTS] + 1) - counts[:, PARENTS] - 1
        hangs_on = bounds[np.repeat(tables, counts[:, ANCHORS]) + whole.anchor_records]
        numbers = hangs_on[:, 0] + whole.anchor_nodes
        if (numbers >= hangs_on[:, 1]).any():
            raise FrameError("the record hangs on a missing node")
        known = np.frombuffer(self._nodes, np.int32)
        places = np.zeros(len(whole.anchor_records) + len(whole.tokens), np.int64)
        starts = np.cumsum(counts[:, ANCHORS] + counts[:, NODES]) - counts[:, ANCHORS] - counts[:, NODES]
        is_anchor = np.zeros(len(places), np.bool_)
        before = np.cumsum(counts[:, ANCHORS]) - counts[:, ANCHORS]
        is_anchor[np.arange(len(numbers)) + np.repeat(starts - before, counts[:, ANCHORS])] = True
        places[is_anchor] = np.where(numbers < first, known[np.minimum(numbers, first - 1)], ~(numbers - first))
        places[~is_anchor] = ~np.arange(len(whole.tokens))
        return places


# reading


ExtendMany = Callable[[ArrayLike, ArrayLike], NDArray[np.int32]]
"""Function that adds nodes to a tree whose root is `ROOT`: see `NodeTable.extend_many`."""


class Added(NamedTuple):
    """Entries of records of one model, at nodes of its tree. `written`, shape (entries,), are times in Unix seconds.

    If they replace, earlier entries at their nodes are superseded."""

    model: Model
    entries: Entries
    written: NDArray[np.int64]
    replaces: bool


class Lost(NamedTuple):
    """An unusable frame: its index among the frames read, and the reason."""

    frame: int
    why: str


@dataclass(slots=True)
class _Run:
    """Records of one model that are decoded together."""

    places: list[int] = field(default_factory=list)
    addresses: list[bytes] = field(default_factory=list)
    payloads: list[Payload] = field(default_factory=list)
    size: int = 0


class RecordReader:
    """Reader of a log, with the index of each model's nodes. `extending` returns the function that adds nodes to a
    model's tree."""

    def __init__(self, extending: Callable[[Model], ExtendMany]) -> None:
        self._extending = extending
        self._parser = Parser()
        self._indexes: dict[str, NodeIndex] = {}

    def index(self, fingerprint: str) -> NodeIndex:
        """Index of the nodes of a model in the log."""
        return self._indexes.setdefault(fingerprint, NodeIndex(ROOT))

    def start_over(self) -> None:
        """Forgets all records, because the log is another one now."""
        self._indexes.clear()

    def read(self, frames: Sequence[LogFrame]) -> Iterator[Added | Lost]:
        """Entries of the frames, for each model in the order of the log. Frames of unknown kinds are lost."""
        runs: dict[str, _Run] = {}
        for place, frame in enumerate(frames):
            if frame.payload is None or frame.kind != RECORD:
                yield Lost(place, "its checksum is wrong" if frame.payload is None else "a newer lmql-lite wrote it")
                continue
            try:
                payload = self._parser.parse(frame.payload)
            except FrameError as error:
                yield Lost(place, error.message)
                continue
            run = runs.get(payload.model.fingerprint)
            if run is None:
                run = runs[payload.model.fingerprint] = _Run()
                self._extending(payload.model)  # creates trees in the order of their models
            if run.payloads and (
                run.size > RUN_BYTES
                or payload.model != run.payloads[0].model
                or payload.replaces
                or run.payloads[0].replaces
            ):
                yield from self._admit(run)
                run = runs[payload.model.fingerprint] = _Run()
            run.places.append(place)
            run.addresses.append(frame.address)
            run.payloads.append(payload)
            run.size += len(frame.payload)
        for run in runs.values():
            yield from self._admit(run)

    def _admit(self, run: _Run) -> Iterator[Added | Lost]:
        """Entries of the records of a run, decoded together, or one by one if any of them is invalid."""
        model = run.payloads[0].model
        index = self.index(model.fingerprint)
        if index.knows_all(zip(run.addresses, (payload.parents for payload in run.payloads), strict=True)):
            try:
                yield from self._added(model, run, index)
                return
            except FrameError as error:
                if len(run.payloads) == 1:
                    yield Lost(run.places[0], error.message)
                    return
        elif len(run.payloads) == 1:
            yield Lost(run.places[0], "it hangs on a record that cannot be read")
            return
        for place, address, payload in zip(run.places, run.addresses, run.payloads, strict=True):
            yield from self._admit(_Run([place], [address], [payload]))

    def _added(self, model: Model, run: _Run, index: NodeIndex) -> list[Added]:
        """Adds the nodes of all records at once. Entries stay in chunks that fit into a processor's cache."""
        size, chunks = 0, list[list[Payload]]()
        for payload in run.payloads:
            if not chunks or size > CHUNK_BYTES:
                size = 0
                chunks.append([])
            size += len(payload.soft) + len(payload.hard)
            chunks[-1].append(payload)
        parts = [join(chunk) for chunk in chunks]
        whole, counts = parts[0]
        begins = np.cumsum([0, *(part[:, [ANCHORS, NODES]].sum() for _, part in parts)]).tolist()
        if len(parts) > 1:
            counts = np.concatenate([part for _, part in parts])
            whole = replace(
                whole,
                parents=tuple([address for record, _ in parts for address in record.parents]),
                anchor_records=np.concatenate([record.anchor_records for record, _ in parts]),
                anchor_nodes=np.concatenate([record.anchor_nodes for record, _ in parts]),
                above=np.concatenate([record.above + begin for (record, _), begin in zip(parts, begins, strict=False)]),
                tokens=np.concatenate([record.tokens for record, _ in parts]),
            )
        places = index.resolved(whole, counts, run.addresses)
        nodes = self._extending(model)(places[whole.above], whole.tokens)
        own = places < 0
        places[own] = nodes[~places[own]]
        index.add(run.addresses, counts[:, NODES], nodes)
        added = []
        for (record, part), chunk, begin, end in zip(parts, chunks, begins, begins[1:], strict=False):
            times = np.array([payload.written for payload in chunk], np.int64)
            written = np.concatenate([np.repeat(times, part[:, kind]) for kind in (TOPKS, GREEDY, SAMPLED)])
            entries = record.entries.moved(places[begin:end].__getitem__)
            added.append(Added(model, entries, written, run.payloads[0].replaces))
        return added


# writing


def record_groups(
    entries: Entries, written: NDArray[np.int64], replaced: NDArray[np.bool_]
) -> Iterator[tuple[Entries, int, bool]]:
    """Groups of entries that fit into one record, each with its time of writing and `replaces`, oldest first.

    `written` and `replaced` have shape (entries,): the time of each entry, and True if earlier entries at its node are
    superseded. Every hour has two groups, of which the first replaces and the second does not. If entries of a node are
    superseded, its first entry is in a group that replaces. All others come later, so that none of them is superseded.
    """
    groups = 2 * (written // AGE_SECONDS) + 1
    if replaced.any():
        order = np.argsort(groups, kind="stable")
        _, first = np.unique(entries.nodes[order], return_index=True)
        first = order[first]
        groups[first[replaced[first]]] -= 1
    order = np.argsort(groups, kind="stable")
    groups = groups[order]
    within = np.arange(len(order)) - np.searchsorted(groups, groups)  # index among the entries of the group
    most = min(ENTRIES_PER_RECORD, MAX_TOKENS // int(entries.topks.sizes.max(initial=1)))
    begins = np.flatnonzero(within % most == 0).tolist()
    for begin, end in zip(begins, [*begins[1:], len(order)], strict=False):
        places = np.sort(order[begin:end])
        yield entries.pick(places), int(written[places].min()), bool(groups[begin] % 2 == 0)


class PathTree(Protocol):
    """Tree with the entries."""

    def parent(self, node: int) -> int: ...

    def token(self, node: int) -> int: ...


def payloads(
    index: NodeIndex, tree: PathTree, model: Model, entries: Entries, *, written: int, replaces: bool
) -> Iterator[bytes]:
    """Payload of a record with these entries, after those of records with the nodes on the paths to them, if needed.

    Each record is added to the index when the next is requested, because it is written by then.
    """
    while True:
        anchors: dict[int, int] = {}
        new: list[int] = []
        _find(index, tree, entries, anchors, new)
        own, rest = new[:MAX_NODES], new[MAX_NODES:]
        places = anchors | {node: len(anchors) + place for place, node in enumerate(own)}
        above = np.array([places[tree.parent(node)] for node in own], np.int64)
        tokens = np.array([tree.token(node) for node in own], np.int32)
        here = Entries() if rest else _at_places(entries, places)
        record = Record(model, *index.anchors(list(anchors)), above, tokens, here, written, replaces and not rest)
        payload = encode(record)
        yield payload
        index.add([address_of(payload)], np.array([len(own)]), np.array(own, np.int32))
        if not rest:
            return


def _find(index: NodeIndex, tree: PathTree, entries: Entries, anchors: dict[int, int], new: list[int]) -> None:
    """Collects the nodes on the paths to the entries: those in the log into `anchors`, the others into `new`, parents
    first and without duplicates."""
    seen: set[int] = set()
    for node in entries.nodes.tolist():
        way: list[int] = []
        while node not in seen:
            seen.add(node)
            if index.has(node):
                anchors[node] = len(anchors)
                break
            way.append(node)
            node = tree.parent(node)
        new += reversed(way)


def _at_places(entries: Entries, places: dict[int, int]) -> Entries:
    return entries.moved(lambda nodes: np.array([places[node] for node in nodes.tolist()], np.int64))
