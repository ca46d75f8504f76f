"""Scorer that reuses the blocks of a prompt at other places. It has its own name and fingerprint.

On its paths, a mark precedes each block: a number beyond the vocabulary that encodes the number of the block's tokens.
So a tree never mistakes approximate scores for exact ones, and a score depends only on the path. The exact model scores
paths without a block.
"""

from __future__ import annotations

import asyncio
import hashlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from lmql_lite.cache.kv.block_reuse import BlockReuse, KeptBlocks, Span, unsupported_reason
from lmql_lite.cache.kv.blocks import BlockPolicy
from lmql_lite.cache.kv.engine import KVCacheEngine
from lmql_lite.cache.kv.scattered_pass import KVSlots
from lmql_lite.errors import ModelError
from lmql_lite.models.base import PassCounts, Row, Scorer, ScoreRequest
from lmql_lite.models.live import LiveSequences
from lmql_lite.models.transformers.checkpoint import rows_of, within_memory
from lmql_lite.models.transformers.tiers import block_engine
from lmql_lite.store.tier import Notices

_LIVE_BYTES = 1 << 30
"""Bytes of keys and values of sequences that may go on; the latest one always stays."""


class BlockModel(Scorer):
    """Scorer of one policy over a loaded model. Raises ModelError for a network whose blocks cannot be moved."""

    reuses_blocks = True

    def __init__(
        self,
        exact: Scorer,
        network: Any,
        kv: KVCacheEngine | None,
        exclusively: Callable[[], AbstractContextManager[None]],
        policy: BlockPolicy,
    ) -> None:
        """`exact` is the exact model, `network` and `kv` are its own; nobody else runs the network in the context that
        `exclusively` returns."""
        with exclusively():
            reason = unsupported_reason(network)
        if reason is not None:
            raise ModelError(
                f"{exact.name} cannot move blocks of a prompt: {reason}",
                hint="leave blocks= out: blocks are then reused where they are a prefix, exactly",
            )
        self.name = f"{exact.name} blocks={policy}"
        digest = hashlib.sha256(f"{exact.fingerprint}\n{policy}\n2".encode()).hexdigest()
        self.fingerprint = f"blocks:{digest[:32]}"
        self.tokenizer, self.context_length = exact.tokenizer, exact.context_length
        self.notices = Notices()
        self._exact, self._exclusively = exact, exclusively
        self._width = len(exact.tokenizer.vocabulary)
        self.kv = block_engine(exact.name, exact.fingerprint, network, kv)
        """Engine that keeps the blocks."""
        weakref.finalize(self, self.kv.close)  # also when the process ends
        self._kept = KeptBlocks(self.kv, network)
        self._reuse = BlockReuse(network, policy, self._kept)
        self._live = LiveSequences[KVSlots](_LIVE_BYTES, lambda all_slots: sum(slots.nbytes for slots in all_slots))

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[Row]]:
        """See `Scorer.score`. Paths with blocks are scored one after the other, the others as by the exact model."""
        rows: list[list[Row] | None] = [None] * len(requests)
        for at, request in enumerate(requests):
            if request.prefix and max(request.prefix) >= self._width:
                rows[at] = await asyncio.to_thread(self._score, request)
        plain = [at for at, found in enumerate(rows) if found is None]
        exact = [self._plain(requests[at]) for at in plain]
        for at, found in zip(plain, await self._exact.score(exact) if exact else (), strict=True):
            rows[at] = found
        return [found for found in rows if found is not None]

    def _plain(self, request: ScoreRequest) -> ScoreRequest:
        """The request for the exact model: without marks."""
        prefix = tuple(token for token in request.prefix if token < self._width)
        return ScoreRequest(prefix, request.new_ids, request.positions, request.counts, request.scope)

    def _score(self, request: ScoreRequest) -> list[Row] | None:
        """Rows for a path with blocks; None where the exact model is to score it."""
        ids, ends = self._plain(request).checked(self.name, self.context_length)
        if not ends:
            return []
        spans = [span for span in self._spans(request.prefix) if span[1] <= min(ends)]
        blocks = [(begin, end) for begin, end in spans if begin < end]
        if not blocks:
            return None
        end, alike = blocks[-1][1], next((begin for begin, end in spans if begin == end), None)
        spans = [span for span in spans if span[1] <= end]
        base, marked = self._marked(ids[:end], spans), self._marked(ids, spans)
        places = sorted({one - 1 for one in ends})
        with within_memory(self.name, len(ids)), self._exclusively(), self._counted(request.counts):
            slots = self._resumed(marked, len(base), len(spans), places[0])
            if slots is None:
                slots = self._reuse.slots(ids[:end], blocks, alike)
            rows = dict(zip(places, rows_of(self._reuse.ask(slots, ids, places), self.name, self._width), strict=True))
            self._live.put(marked, slots)
            self._live.evict()
        return [rows[one - 1] for one in ends]

    @contextmanager
    def _counted(self, counts: PassCounts | None) -> Iterator[None]:
        """Adds what is computed and found inside to the counts of a run."""
        fed, found = self._kept.fed + self._reuse.fed, Counter(self._kept.found)
        yield
        if counts is not None:
            counts.add(self._kept.fed + self._reuse.fed - fed, 0)
            for tier, count in (self._kept.found - found).items():
                counts.add(0, count, tier)

    def _marked(self, ids: tuple[int, ...], spans: Sequence[Span]) -> tuple[int, ...]:
        """The ids with a mark before each block."""
        marked, at = list[int](), 0
        for begin, end in spans:
            marked += [*ids[at:begin], self.mark(end - begin)]
            at = begin
        return (*marked, *ids[at:])

    def _spans(self, marked: tuple[int, ...]) -> list[Span]:
        """Begin and end of each block, in tokens without marks."""
        spans = list[Span]()
        for at, token in enumerate(marked):
            if token >= self._width:
                begin = at - len(spans)
                spans.append((begin, begin + token - self._width))
        return spans

    def _resumed(self, marked: tuple[int, ...], base: int, marks: int, limit: int) -> KVSlots | None:
        """Slots of the live sequence that shares most with this one, cut to at most `limit` tokens; None where none
        shares all blocks. They are the caller's."""
        live, common = self._live.longest(marked, len(marked))
        if live is None or common < base:
            return None
        known = min(common - marks, limit)
        self._kept.found["memory"] += known
        if self._live.take(live, known + marks):
            live.state.length = known
            return live.state
        return live.state.cut(known)
