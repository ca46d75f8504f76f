"""Scores of many requests from few passes: shared tokens are computed once, known ones not again.

Each request is a sequence of ids and places to score. It becomes a row of a pass: new tokens after the longest known
beginning, which a live sequence, another row of the same pass or the attention-KV engine may have. Networks that cannot
be fed rows compute one sequence after the other, with the library's own caches, and so do those that take pictures.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from lmql_lite.cache.kv.layout import KV, Unsupported, cache_keyword, cache_of, from_cache, to_cache
from lmql_lite.cache.kv.rotation import Rotation
from lmql_lite.models.live import Lane, Live, LiveSequences, ScoreJob
from lmql_lite.models.transformers.passes import PAGE, KVSequence, PassRow, forward
from lmql_lite.tokens import common_length

if TYPE_CHECKING:
    from lmql_lite.cache.kv.engine import KVCacheEngine

CacheKind = Literal["cache", "state", "none"]
"""Cache of a network that is fed one sequence after the other: keys and values that can be cut, the state of a
recurrent or hybrid network, which only moves on, or none that can be kept."""
PASS_TOKENS = 2048
"""At most this many new tokens are fed in one pass; longer prompts take several."""
STORED_TOKENS = 16
"""A row of at least this many new tokens is a prompt, for which the tiers are asked, and which is stored there."""
_REDO_TOKENS = 16
"""A sequence that leaves another at most this many tokens before its end replaces it, so that it grows in place."""
_LIVE_STATES = 8
_LIVE_BYTES = 1 << 30

State = TypeVar("State")
Fresh = TypeVar("Fresh")


class _Rows(Generic[State, Fresh]):
    """One network, its live sequences, and the engine on whose tiers prompts are. One call at a time."""

    def __init__(self, network: Any, live: LiveSequences[State], engine: KVCacheEngine | None) -> None:
        self.live, self.engine = live, engine
        self.passes = self.fed = 0
        self._fresh: list[Fresh] = []
        """Sequences of the last call, with what the tiers have to know of them."""
        self._network, self._keyword = network, cache_keyword(network)
        self._rotation = Rotation(network)
        self._parameters = inspect.signature(network.forward).parameters

    def run(self, jobs: Sequence[ScoreJob]) -> None:
        """Computes the logits of all jobs. After an error nothing is known."""
        bands: dict[int, list[ScoreJob]] = {}
        for job in jobs:
            for band, part in self._by_band(job).items():
                bands.setdefault(band, []).append(part)
        self._fresh = []
        try:
            for band, parts in bands.items():
                self._run(parts, band)
        except BaseException:
            self.forget()
            raise

    def _run(self, jobs: Sequence[ScoreJob], band: int) -> None:
        """Computes the logits of jobs whose texts have one band of a rotation."""
        raise NotImplementedError

    def forget(self) -> None:
        """Gives up all live sequences."""
        self.live.all.clear()
        self._fresh = []

    def settle(self) -> None:
        """Work after a call that no answer waits for: stores prompts on the tiers, and evicts what is too much."""
        if self.engine is not None:
            self._store(self.engine)
        self._fresh = []
        self.live.evict()

    def _store(self, engine: KVCacheEngine) -> None:
        """Stores the sequences of the last call that are of no scope."""
        raise NotImplementedError

    def _by_band(self, job: ScoreJob) -> dict[int, ScoreJob]:
        """A job in parts whose ends are in one band of a rotation each, with the same receivers."""
        ends: dict[int, list[int]] = {}
        for end in job.ends:
            ends.setdefault(self._rotation.band(job.length(end)), []).append(end)
        if len(ends) == 1:
            return dict.fromkeys(ends, job)
        return {band: replace(job, ids=job.ids[: max(own)], ends=tuple(own)) for band, own in ends.items()}

    def _stored(self, job: ScoreJob, known: int, limit: int, lane: Lane) -> tuple[KV, int, str]:
        """Keys and values of the longest beginning on the tiers, of at most `limit` tokens, its length, and its tier.
        The length is 0 where it is not longer than what is `known`."""
        engine = None if self._rotation.is_single(lane.band) or lane.scope is not None else self.engine
        if engine is not None and len(job.ids) - known >= STORED_TOKENS:
            kv, tiers = engine.found(_chain(job.ids, lane.band))
            if (count := job.border(min(sum(tiers.values()), limit))) > known:
                return kv, count, max(tiers, key=lambda tier: tiers[tier])
        return (), 0, ""


class PackedRows(_Rows[KVSequence, tuple[PassRow, Lane]]):
    """Rows of one network and the keys and values of its live sequences."""

    def __init__(self, network: Any, max_bytes: int, *, step: int = 0, engine: KVCacheEngine | None = None) -> None:
        """`step` is that of exact passes (`exactness.py`), or 0."""
        super().__init__(network, LiveSequences[KVSequence](max_bytes, _bytes_of), engine)
        self.step = step

    def _run(self, jobs: Sequence[ScoreJob], band: int) -> None:
        lanes: dict[Lane, list[ScoreJob]] = {}
        for job in jobs:
            lanes.setdefault(Lane.of(band, job.scope), []).append(job)
        rows = [(row, lane) for lane, own in lanes.items() for row in self._plan(own, lane)]
        for wave in _waves([row for row, _ in rows]):
            self._pass(wave, band)
        if not self._rotation.is_single(band):
            self._fresh += rows
            for row, lane in rows:
                self.live.put(row.ids, row.kv, lane)

    def _plan(self, jobs: Sequence[ScoreJob], lane: Lane) -> list[PassRow]:
        """Rows of all jobs, each after the row that it goes on from. Neighbours in the order of ids share most."""
        rows: list[PassRow] = []
        last: PassRow | None = None
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
                before = self._cut(live, known, rows)
            else:
                before = KVSequence()
            kv, count, place = self._stored(job, known, low, lane)
            if count:
                known, parent, tier, before = count, None, place, KVSequence.of(kv, count)
            self.fed += job.count(known, tier)
            while known < len(job.ids) or parent is None:
                count = min(len(job.ids) - known, PASS_TOKENS)
                after, filled = before.grown(count, PAGE if self.step else 1)
                start = parent.start if parent is not None and known > parent.start else known
                parent = PassRow(job.ids[: known + count], known, before, after, filled, parent, start)
                rows.append(parent)
                before, known = after, known + count
            assert parent is not None, "a job has a row"
            last = parent
            for end in set(job.ends):
                row = parent
                while end - 1 < row.first:
                    assert row.parent is not None, "the plan computes every wanted place"
                    row = row.parent
                row.wanted.setdefault(end, []).append(job)
        return rows

    def _cut(self, live: Live[KVSequence], length: int, rows: Sequence[PassRow]) -> KVSequence:
        """The first tokens of a live sequence. If they are nearly all of it, and nobody else needs the rest, the rest
        is given up, so that the sequence grows in place."""
        last = live.state.buffers[-1]
        if 0 < len(live.ids) - length <= _REDO_TOKENS and last.begin < length and last.end == len(live.ids):
            others = [other.state for other in self.live.all if other is not live]
            if not any(last in kv.buffers for kv in (*others, *(kv for row in rows for kv in (row.known, row.kv)))):
                self.live.all.remove(live)
                last.end = length
        return live.state.cut(length)

    def _pass(self, rows: Sequence[PassRow], band: int) -> None:
        """One forward pass, and the logits that it computes."""
        self.passes += 1
        self._rotation.reset()
        logits = forward(
            self._network,
            rows,
            step=self.step,
            keyword=self._keyword,
            picks_places="logits_to_keep" in self._parameters,
            band=band,
        )
        wanted = [(end, row.wanted[end]) for row in rows for end in sorted(row.wanted)]
        for (end, jobs), values in zip(wanted, logits, strict=False):  # a pass has logits where nobody wants any
            for job in jobs:
                job.rows[end] = values

    def _store(self, engine: KVCacheEngine) -> None:
        rows = [(row, lane) for row, lane in self._fresh if lane.scope is None]
        pieces = {id(row.parent) for row, _ in rows if row.parent is not None and row.first == len(row.parent.ids)}
        size = engine.config.chunk_size
        for row, lane in rows:
            chain = _chain(row.ids, lane.band)
            if row.count >= STORED_TOKENS and id(row) not in pieces:
                begin = row.start - row.start % size
                mask = [False] * begin + [True] * (len(row.ids) - begin)
                engine.store(chain, row.kv.kv(begin), mask if begin else None, blocking=False)
            else:
                engine.save_decoded(chain, row.kv.kv)


class SingleRows(_Rows[Any, tuple[ScoreJob, int, Any, Lane]]):
    """One network that is not fed rows, and the library's own caches of the latest sequences.

    Keys and values are cut where a text leaves a sequence. A state serves the text that goes on from its very end, a
    token at a time; any other text is computed anew.
    """

    def __init__(
        self, network: Any, kind: CacheKind, max_bytes: int = _LIVE_BYTES, engine: KVCacheEngine | None = None
    ) -> None:
        """`engine` stores keys and values; states are not stored."""
        cuts = kind == "cache"
        live = LiveSequences[Any](max_bytes, _bytes_of_caches) if cuts else LiveSequences(_LIVE_STATES, can_cut=False)
        super().__init__(network, live, engine if cuts else None)
        self.kind: CacheKind = "none" if kind == "state" and self._rotation.changes else kind

    def _run(self, jobs: Sequence[ScoreJob], band: int) -> None:
        for job in jobs:
            self._rotation.reset()
            self._score(job, Lane.of(band, job.scope))

    def _store(self, engine: KVCacheEngine) -> None:
        for job, known, past, lane in self._fresh:
            if lane.scope is None:
                kv, chain = from_cache(past, len(job.ids)), _chain(job.ids, lane.band)
                if len(chain) - known >= STORED_TOKENS:
                    engine.store(chain, kv, blocking=False)
                else:
                    engine.save_decoded(chain, partial(tuple, kv))

    def _score(self, job: ScoreJob, lane: Lane) -> None:
        wanted = sorted(set(job.ends))
        # the last hidden state of a known prefix is not kept, so the first scored position is computed again
        past, begin, tier = self._resumed(job, wanted[0] - 1, lane)
        self.fed += job.count(begin, tier)
        known, has_state = begin, self.kind == "state"
        for end in range(known + 1 if known else wanted[0], len(job.ids) + 1) if has_state else [len(job.ids)]:
            asked = [place for place in wanted if known < place <= end]
            logits, past = self._forward(job, known, end, past, asked)
            job.rows.update(zip(asked, logits, strict=False))
            if has_state and end == wanted[0] < len(job.ids):  # before a draft, which may be wrong
                self.live.put(job.ids[:end], copy.deepcopy(past), lane)
            known = end
        is_kept = has_state or (self.kind == "cache" and is_whole(past, known))
        if is_kept and not self._rotation.is_single(lane.band):
            self.live.put(job.ids, past, lane)
            self._fresh.append((job, begin, past, lane))
        self.live.evict()

    def _resumed(self, job: ScoreJob, limit: int, lane: Lane) -> tuple[Any, int, str]:
        """Cache of the longest known beginning of at most `limit` tokens, its length and its tier. A pass changes
        it."""
        live, known = self.live.longest(job.ids, limit, lane)
        known = job.border(known)
        kv, count, tier = self._stored(job, known, limit, lane)
        if not count and live is not None and known:
            is_own = self.live.take(live, known)
            if known == len(live.ids) and is_own:
                return live.state, known, "memory"
            kv, count, tier = from_cache(live.state, len(live.ids)), known, "memory"
        # without the config, or else a cache drops tokens that left a sliding window, and cannot be cut
        cut = tuple((keys[:, :count], values[:, :count]) for keys, values in kv)
        return to_cache(cut, self._network.device) if self.kind == "cache" else None, count, tier

    def _forward(self, job: ScoreJob, begin: int, end: int, past: Any, asked: Sequence[int]) -> tuple[Any, Any]:
        """One pass over the tokens between two places: the logits at those asked for, and the cache after it."""
        import torch

        self.passes += 1
        device = self._network.device
        rows = torch.tensor([place - begin - 1 for place in asked] or [end - begin - 1], device=device)
        options: dict[str, Any] = {**job.inputs(begin, end, device), "use_cache": self.kind != "none"}
        if past is not None:
            options[self._keyword] = past
        if self.kind == "state" and begin and "cache_position" in self._parameters:
            # older releases fill a window of a convolution from its beginning, as if no zeros stood before the text
            place = max(begin, getattr(self._network.config, "conv_kernel", 0))
            options["cache_position"] = torch.tensor([place], device=device)
        picks_places = "logits_to_keep" in self._parameters
        if picks_places:
            options["logits_to_keep"] = rows
        output = self._network(**options)
        logits = output.logits[0] if picks_places else output.logits[0, rows]
        return logits, None if self.kind == "none" else cache_of(output)


def is_whole(past: Any, length: int) -> bool:
    """True where every layer has keys and values of this many tokens."""
    try:
        return bool(from_cache(past, length)[0][0].shape[1] == length)
    except Unsupported:
        return False


def _bytes_of(sequences: Iterable[KVSequence]) -> int:
    """Bytes of all buffers; shared ones count once."""
    return sum(each.nbytes for each in {buffer for kv in sequences for buffer in kv.buffers})


def _bytes_of_caches(caches: Iterable[Any]) -> int:
    """Bytes of the library's caches of keys and values."""
    return sum(layer.keys.nbytes + layer.values.nbytes for cache in caches for layer in cache.layers)


def _chain(ids: tuple[int, ...], band: int) -> tuple[int, ...]:
    """Numbers that identify a text's keys on the tiers: its ids, but for the first one where the keys are rotated in
    another way than those of short texts."""
    return ids if not band else (hashed(f"{band} {ids[0]}"), *ids[1:])


def hashed(text: str) -> int:
    """Hash of a text, of 63 bits, as a number below 0, as no id is."""
    return -1 - (int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1)


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
