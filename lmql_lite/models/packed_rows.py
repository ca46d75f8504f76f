"""Scores of many requests from few passes: shared tokens are computed once, known ones not again.

Each request is a sequence of ids and places to score. It becomes a row of a pass: new tokens after the longest known
beginning, which a live sequence, another row of the same pass or the attention-KV engine may have.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmql_lite.cache.kv.kv_layout import cache_keyword
from lmql_lite.cache.kv.rotation import Rotation
from lmql_lite.models.base import KVScope, PassCounts
from lmql_lite.models.kv_rows import PAGE, KVSequence, Lane, LiveSequences
from lmql_lite.models.passes import PassRow, forward
from lmql_lite.tokens import common_length

if TYPE_CHECKING:
    from lmql_lite.cache.kv.kv_engine import KVCacheEngine

PASS_TOKENS = 2048
"""At most this many new tokens are fed in one pass; longer prompts take several."""
_STORED_TOKENS = 16
"""A row of at least this many new tokens is a prompt, for which the tiers are asked, and which is stored there."""


@dataclass(eq=False, slots=True)
class ScoreJob:
    """A request in progress: all ids up to the last place to score, the places to score, and the receiver of the
    counts."""

    ids: tuple[int, ...]
    ends: tuple[int, ...]
    counts: PassCounts | None = None
    rows: dict[int, Any] = field(default_factory=dict)
    """Logits by end."""
    last: PassRow | None = None
    scope: KVScope | None = None

    def by_band(self, rotation: Rotation) -> dict[int, ScoreJob]:
        """The job in parts whose ends are in one band of a rotation each, with the same receivers."""
        ends: dict[int, list[int]] = {}
        for end in self.ends:
            ends.setdefault(rotation.band(end), []).append(end)
        if len(ends) == 1:
            return dict.fromkeys(ends, self)
        return {
            band: ScoreJob(self.ids[: max(own)], tuple(own), self.counts, self.rows, scope=self.scope)
            for band, own in ends.items()
        }


class PackedRows:
    """One network and the keys and values of its live sequences. One call at a time."""

    def __init__(self, network: Any, max_bytes: int, *, step: int = 0, engine: KVCacheEngine | None = None) -> None:
        """`step` is that of exact passes (`exact_step`), or 0."""
        self.step, self.engine = step, engine
        self.live = LiveSequences(max_bytes)
        self.passes = self.fed = 0
        self._fresh: list[tuple[PassRow, Lane]] = []
        """Rows of the last call."""
        self._network, self._keyword = network, cache_keyword(network)
        self._rotation = Rotation(network)
        self._picks_places = "logits_to_keep" in inspect.signature(network.forward).parameters

    def run(self, jobs: Sequence[ScoreJob]) -> None:
        """Computes the logits of all jobs. After an error nothing is known."""
        bands: dict[int, list[ScoreJob]] = {}
        for job in jobs:
            for band, part in job.by_band(self._rotation).items():
                bands.setdefault(band, []).append(part)
        try:
            self._fresh = [row for band, parts in bands.items() for row in self._run(parts, band)]
        except BaseException:
            self.forget()
            raise

    def _run(self, jobs: Sequence[ScoreJob], band: int) -> list[tuple[PassRow, Lane]]:
        """Computes the logits of jobs whose texts have one band. Returns the rows that can be gone on from."""
        scopes: dict[KVScope | None, list[ScoreJob]] = {}
        for job in jobs:
            scopes.setdefault(job.scope, []).append(job)
        rows = list[tuple[PassRow, Lane]]()
        for scope, own in scopes.items():
            lane = Lane.of(band, scope)
            rows += [(row, lane) for row in self._plan(own, lane)]
        for wave in _waves([row for row, _ in rows]):
            self._pass(wave, jobs, band)
        if self._rotation.is_single(band):
            return []
        for row, lane in rows:
            self.live.put(row.ids, row.kv, lane)
        return rows

    def forget(self) -> None:
        """Gives up all live sequences."""
        self.live.clear()
        self._fresh = []

    def settle(self) -> None:
        """Work after a call that no answer waits for: stores prompts on the tiers, and evicts what is too much."""
        rows, self._fresh = self._fresh, []
        self._store(rows)
        self.live.evict()

    def _plan(self, jobs: Sequence[ScoreJob], lane: Lane) -> list[PassRow]:
        """Rows of all jobs, each after the row that it goes on from. Neighbours in the order of ids share most."""
        rows: list[PassRow] = []
        last: PassRow | None = None
        engine = None if self._rotation.is_single(lane.band) or lane.scope is not None else self.engine
        for job in sorted(jobs, key=lambda job: job.ids):
            low = min(job.ends) - 1  # the first scored place is computed again: logits are not kept
            live, known = self.live.longest(job.ids, low, lane)
            shared = 0
            if last is not None:
                shared = common_length(last.ids, job.ids)
                shared = shared if low >= last.start else min(shared, low)
            tier, parent = "memory", None
            if last is not None and shared >= known:
                before, parent, tier = last.kv.cut(shared), last, ""
                known = shared
            elif live is not None:
                before = self.live.take(live, known, [kv for row in rows for kv in (row.known, row.kv)])
            else:
                before = KVSequence()
            if engine is not None and len(job.ids) - known >= _STORED_TOKENS:
                found = _from_tiers(engine, _chain(job.ids, lane.band), low)
                if found[0].length > known:
                    before, parent, tier = found[0], None, found[1]
                    known = before.length
            self._count(job, known, tier, parent)
            while known < len(job.ids) or parent is None:
                count = min(len(job.ids) - known, PASS_TOKENS)
                kv, filled = before.grown(count, PAGE if self.step else 1)
                start = parent.start if parent is not None and known > parent.start else known
                parent = PassRow(job.ids[: known + count], known, before, kv, filled, parent, start)
                rows.append(parent)
                before, known = kv, known + count
            job.last = last = parent
        return rows

    def _count(self, job: ScoreJob, known: int, tier: str, parent: PassRow | None) -> None:
        self.fed += len(job.ids) - known
        if job.counts is not None:
            job.counts.fed += len(job.ids) - known
            if tier and known:
                job.counts.reused[tier] = job.counts.reused.get(tier, 0) + known

    def _pass(self, rows: Sequence[PassRow], jobs: Iterable[ScoreJob], band: int) -> None:
        """One forward pass, and the logits that it computes."""
        inside = set(map(id, rows))
        for number, row in enumerate(rows):
            row.offset = sum(each.count for each in rows[:number])
        wanted: dict[int, list[tuple[ScoreJob, int]]] = {}
        for job in jobs:
            for end in set(job.ends):
                row = _row_of(job, end)
                if id(row) in inside:
                    wanted.setdefault(row.offset + end - 1 - row.first, []).append((job, end))
        places = sorted(wanted) or [rows[-1].offset + rows[-1].count - 1]
        self.passes += 1
        self._rotation.reset()
        logits = forward(
            self._network,
            rows,
            places,
            step=self.step,
            keyword=self._keyword,
            picks_places=self._picks_places,
            band=band,
        )
        for place, values in zip(places, logits, strict=True):
            for job, end in wanted.get(place, ()):
                job.rows[end] = values

    def _store(self, rows: Iterable[tuple[PassRow, Lane]]) -> None:
        """Stores prompts on the tiers, if there are any."""
        if self.engine is None:
            return
        pieces = {id(row.parent) for row, _ in rows if row.parent is not None and row.first == len(row.parent.ids)}
        for row, lane in rows:
            if lane.scope is not None:
                continue
            chain = _chain(row.ids, lane.band)
            if row.count >= _STORED_TOKENS and id(row) not in pieces:
                size = self.engine.config.chunk_size
                begin = row.start - row.start % size
                mask = [False] * begin + [True] * (len(row.ids) - begin)
                self.engine.store(chain, row.kv.kv(begin), mask if begin else None, blocking=False)
            elif self.engine.config.save_decode_cache and len(row.ids) % self.engine.config.chunk_size == 0:
                self.engine.save_decoded(chain, row.kv.kv)


def _chain(ids: tuple[int, ...], band: int) -> tuple[int, ...]:
    """Numbers that identify a text's keys on the tiers: its ids, but for the first one where the keys are rotated in
    another way than those of short texts."""
    return ids if not band else (-1 - (band << 32 | ids[0]), *ids[1:])


def _row_of(job: ScoreJob, end: int) -> PassRow:
    row = job.last
    while row is not None and end - 1 < row.first:
        row = row.parent
    assert row is not None, "the plan computes every wanted place"
    return row


def _waves(rows: Sequence[PassRow]) -> Iterable[list[PassRow]]:
    """Consecutive rows in passes of a bounded number of tokens."""
    wave: list[PassRow] = []
    for row in rows:
        if wave and sum(each.count for each in wave) + row.count > PASS_TOKENS:
            yield wave
            wave = []
        wave.append(row)
    if wave:
        yield wave


def _from_tiers(engine: KVCacheEngine, ids: tuple[int, ...], limit: int) -> tuple[KVSequence, str]:
    """The longest beginning that the tiers have, at most `limit` tokens, and the tier that had most of it."""
    kv, known = engine.longest(ids)
    known = min(known, limit)
    if not known:
        return KVSequence(), ""
    found = engine.requests[-1].by_tier
    return KVSequence.of(kv, known), max(found, key=lambda tier: found[tier])
