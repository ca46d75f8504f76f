"""Reads the records of a log into trees: the one reader of runs and of tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmql_lite.cache.codec import Parser, Payload, join
from lmql_lite.cache.columns import ANCHORS, GREEDY, NODES, SAMPLED, TOPKS, Entries, Model
from lmql_lite.cache.framing import RECORD, Frame, FrameError
from lmql_lite.cache.node_index import NodeIndex
from lmql_lite.cache.nodes import ROOT

RUN_BYTES = 2**26
"""Payloads whose nodes are added together: a tree grows once then."""
CHUNK_BYTES = 2**22
"""Columns that are put together at once."""


ExtendMany = Callable[[ArrayLike, ArrayLike], NDArray[np.int32]]
"""Adds nodes to a tree whose root is `ROOT`: see `Nodes.extend_many`."""


class Added(NamedTuple):
    """Entries of records of one model, at nodes of its tree; `written`, shape (entries,), is when, in unix seconds.

    What was known at the nodes before is superseded where they replace it."""

    model: Model
    entries: Entries
    written: NDArray[np.int64]
    replaces: bool


class Lost(NamedTuple):
    """A frame that cannot be used, by its place among those that were read, and why."""

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
    """A reader's place in a log: for each model, where its nodes stand. `extending` a model's tree adds nodes to it."""

    def __init__(self, extending: Callable[[Model], ExtendMany]) -> None:
        self._extending = extending
        self._parser = Parser()
        self._indexes: dict[str, NodeIndex] = {}

    def index(self, fingerprint: str) -> NodeIndex:
        """Where the nodes of a model stand in the log."""
        return self._indexes.setdefault(fingerprint, NodeIndex(ROOT))

    def start_over(self) -> None:
        """The log is another one now."""
        self._indexes.clear()

    def read(self, frames: Sequence[Frame]) -> Iterator[Added | Lost]:
        """What frames say, in the order of the log for each model. Frames of unknown kinds are lost."""
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
                self._extending(payload.model)  # trees come in the order in which their models do
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
        """Records one behind the other; where one of them is wrong, all are looked at singly."""
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
            yield Lost(run.places[0], "what it hangs on cannot be read")
            return
        for place, address, payload in zip(run.places, run.addresses, run.payloads, strict=True):
            yield from self._admit(_Run([place], [address], [payload]))

    def _added(self, model: Model, run: _Run, index: NodeIndex) -> list[Added]:
        """Adds the nodes of all records at once. Entries stay in chunks, which a processor's cache holds."""
        size, chunks = 0, list[list[Payload]]()
        for payload in run.payloads:
            if not chunks or size > CHUNK_BYTES:
                size = 0
                chunks.append([])
            size += len(payload.soft) + len(payload.hard)
            chunks[-1].append(payload)
        parts = [join(chunk) for chunk in chunks]
        counts = np.concatenate([part for _, part in parts])
        begins = np.cumsum([0, *(part[:, [ANCHORS, NODES]].sum() for _, part in parts)]).tolist()
        whole = replace(
            parts[0][0],
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
