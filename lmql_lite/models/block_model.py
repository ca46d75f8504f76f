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
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.kv.block_policy import BlockPolicy
from lmql_lite.cache.kv.block_reuse import BlockReuse, KeptBlocks, Span, unsupported_reason
from lmql_lite.cache.kv.kv_blocks import Divergence, divergence
from lmql_lite.cache.kv.kv_engine import KVCacheEngine
from lmql_lite.cache.kv.scattered_pass import KVSlots
from lmql_lite.errors import ModelError
from lmql_lite.models.base import PassCounts, Scorer, ScoreRequest
from lmql_lite.models.kv_tiers import block_engine
from lmql_lite.store.contract import Notices
from lmql_lite.tokens import Tokenizer, common_length

_LIVE_BYTES = 1 << 30
"""Bytes of keys and values of sequences that may go on; the latest one always stays."""
_REDO_TOKENS = 4
"""A sequence that leaves a live one at most this many tokens before its end replaces it: copying costs more."""


class BlockSource(Scorer, Protocol):
    """Exact model that lends its network to one user at a time."""

    @property
    def network(self) -> Any:
        """Causal language model of transformers."""
        ...

    @property
    def kv(self) -> KVCacheEngine | None:
        """Engine that keeps the model's prompts on disk or on a server; None without one."""
        ...

    def exclusively(self) -> AbstractContextManager[object]:
        """Context in which nobody else runs the network."""
        ...

    def rows(self, logits: Any) -> list[NDArray[np.float32]]:
        """Scores over the vocabulary from logits."""
        ...


class BlockModel:
    """Scorer of one policy over a loaded model. Raises ModelError for a network whose blocks cannot be moved."""

    def __init__(self, exact: BlockSource, policy: BlockPolicy) -> None:
        with exact.exclusively():
            reason = unsupported_reason(exact.network)
        if reason is not None:
            raise ModelError(
                f"{exact.name} cannot move blocks of a prompt: {reason}",
                hint="leave blocks= out: blocks are then reused where they are a prefix, exactly",
            )
        self.name = f"{exact.name} blocks={policy}"
        digest = hashlib.sha256(f"{exact.fingerprint}\n{policy}\n2".encode()).hexdigest()
        self.fingerprint = f"blocks:{digest[:32]}"
        self.notices = Notices()
        self._exact = exact
        self._policy = policy
        self.kv = block_engine(exact.name, exact.fingerprint, exact.network, exact.kv)
        """Engine that keeps the blocks."""
        weakref.finalize(self, self.kv.close)  # also when the process ends
        self._kept = KeptBlocks(self.kv, exact.network)
        self._reuse = BlockReuse(exact.network, policy, self._kept)
        self._live: list[tuple[tuple[int, ...], KVSlots]] = []
        self._measured: dict[bytes, Divergence] = {}
        """Distance from a full prefill, by the digest of a path up to its last block."""

    @property
    def tokenizer(self) -> Tokenizer:
        return self._exact.tokenizer

    @property
    def context_length(self) -> int:
        return self._exact.context_length

    def mark(self, length: int) -> int:
        """See `BlockScorer.mark`."""
        return len(self.tokenizer.vocabulary) + length

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[NDArray[np.float32]]]:
        """See `Scorer.score`. Paths with blocks are scored one after the other, the others as by the exact model."""
        vocabulary = len(self.tokenizer.vocabulary)
        rows: list[list[NDArray[np.float32]] | None] = [None] * len(requests)
        for at, request in enumerate(requests):
            if request.prefix and max(request.prefix) >= vocabulary:
                rows[at] = await asyncio.to_thread(self._score, request)
        plain = [at for at, found in enumerate(rows) if found is None]
        exact = [self._plain(requests[at]) for at in plain]
        for at, found in zip(plain, await self._exact.score(exact) if exact else (), strict=True):
            rows[at] = found
        return [found for found in rows if found is not None]

    def _plain(self, request: ScoreRequest) -> ScoreRequest:
        """The request for the exact model: without marks."""
        vocabulary = len(self.tokenizer.vocabulary)
        prefix = tuple(token for token in request.prefix if token < vocabulary)
        return ScoreRequest(prefix, request.new_ids, request.positions, request.counts, request.scope)

    def _score(self, request: ScoreRequest) -> list[NDArray[np.float32]] | None:
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
        identity = hashlib.sha256(np.asarray(base, np.int64).tobytes()).digest()
        places = sorted({one - 1 for one in ends})
        with self._exact.exclusively(), self._counted(request.counts):
            if not self._is_near(identity):
                return None
            slots = self._resumed(marked, len(base), len(spans), places[0])
            if slots is None:
                slots = self._reuse.slots(ids[:end], blocks, alike)
                if self._policy.max_kl is not None and identity not in self._measured:
                    behind = range(end - 1, len(ids))
                    self._measure(identity, ids, end, self._reuse.ask(slots, ids, behind))
                    if not self._is_near(identity):
                        return None
                    slots.length = places[0]
            rows = dict(zip(places, self._exact.rows(self._reuse.ask(slots, ids, places)), strict=True))
            self._keep(marked, slots)
        return [rows[one - 1] for one in ends]

    @contextmanager
    def _counted(self, counts: PassCounts | None) -> Iterator[None]:
        """Adds what is computed and found inside to the counts of a run."""
        fed, found = self._kept.fed + self._reuse.fed, Counter(self._kept.found)
        yield
        if counts is not None:
            counts.fed += self._kept.fed + self._reuse.fed - fed
            for tier, count in (self._kept.found - found).items():
                counts.reused[tier] = counts.reused.get(tier, 0) + count

    def _marked(self, ids: tuple[int, ...], spans: Sequence[Span]) -> tuple[int, ...]:
        """The ids with a mark before each block."""
        marked, at = list[int](), 0
        for begin, end in spans:
            marked += [*ids[at:begin], self.mark(end - begin)]
            at = begin
        return (*marked, *ids[at:])

    def _spans(self, marked: tuple[int, ...]) -> list[Span]:
        """Begin and end of each block, in tokens without marks."""
        vocabulary, spans = len(self.tokenizer.vocabulary), list[Span]()
        for at, token in enumerate(marked):
            if token >= vocabulary:
                begin = at - len(spans)
                spans.append((begin, begin + token - vocabulary))
        return spans

    def _is_near(self, identity: bytes) -> bool:
        """False if the blocks were measured and are further from a full prefill than allowed."""
        found, most = self._measured.get(identity), self._policy.max_kl
        return found is None or most is None or found.mean_kl <= most

    def _measure(self, identity: bytes, ids: tuple[int, ...], base_end: int, logits: Any) -> None:
        """Compares the scores behind the blocks with those of a full prefill, once for each set of blocks."""
        full = self._reuse.full(ids[: base_end - 1], ids[base_end - 1 :])
        found = self._measured[identity] = divergence(full, logits)
        judged = "used" if self._is_near(identity) else f"computed exactly, since max_kl={self._policy.max_kl:g}"
        self.notices.add(
            f"blocks of {base_end} tokens: mean KL {found.mean_kl:.3g}, p95 {found.p95_kl:.3g} nats on the "
            f"{len(logits)} tokens behind them: {judged}"
        )

    def _resumed(self, marked: tuple[int, ...], base: int, marks: int, limit: int) -> KVSlots | None:
        """Slots of the live sequence that shares most with this one, cut to at most `limit` tokens; None where none
        shares all blocks. They are the caller's."""
        best = max(self._live, key=lambda live: common_length(live[0], marked), default=None)
        common = 0 if best is None else common_length(best[0], marked)
        if best is None or common < base:
            return None
        known = min(common - marks, limit)
        self._live.remove(best)
        self._kept.found["memory"] += known
        if best[1].length - known <= _REDO_TOKENS:
            best[1].length = known
            return best[1]
        self._live.append(best)
        return best[1].cut(known)

    def _keep(self, marked: tuple[int, ...], slots: KVSlots) -> None:
        self._live.append((marked, slots))
        while len(self._live) > 1 and sum(live.nbytes for _, live in self._live) > _LIVE_BYTES:
            del self._live[0]
