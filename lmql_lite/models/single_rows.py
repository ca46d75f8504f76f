"""Scores of one sequence after the other, for networks that cannot be fed rows. Their own caches are kept between
passes.

`cache`: keys and values that can be cut. `state`: recurrent and hybrid models, whose state only moves on; it is copied
where a sequence may branch, and a token costs a token. `none`: nothing is kept, and every text is computed again.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lmql_lite.cache.kv.kv_layout import cache_keyword, cache_of
from lmql_lite.cache.kv.rotation import Rotation
from lmql_lite.models.kv_rows import SHARED, Lane
from lmql_lite.models.packed_rows import ScoreJob
from lmql_lite.tokens import common_length

if TYPE_CHECKING:
    import torch

Past = Any
"""Cache of one sequence: a DynamicCache, in some models of older releases a tuple of pairs, or a recurrent state."""
Kind = Literal["none", "pairs", "cache", "state"]

_LIVE_SEQUENCES = 8
_REDO_TOKENS = 4
"""A sequence that leaves a cached one at most this many tokens before its end replaces it: copying costs more."""
_PLAIN_LAYERS = {"DynamicLayer", "DynamicSlidingWindowLayer"}


@dataclass(frozen=True, slots=True)
class _Live:
    ids: tuple[int, ...]
    past: Past
    lane: Lane


class SingleRows:
    """One network and the caches of at most eight sequences. One call at a time."""

    def __init__(self, network: Any, max_tokens: int, kind: Kind | None = None) -> None:
        """`max_tokens`: of all sequences together. `kind` is found by running the network."""
        self.passes = self.fed = 0
        self._network, self._max_tokens = network, max_tokens
        self._rotation = Rotation(network)
        self.kind: Kind = kind or cache_kind(network)
        if self.kind == "state" and self._rotation.changes:
            self.kind = "none"
        self._live: list[_Live] = []
        parameters = inspect.signature(network.forward).parameters
        self._picks_places = "logits_to_keep" in parameters
        self._takes_place = "cache_position" in parameters
        self._keyword = cache_keyword(network)

    def run(self, jobs: Sequence[ScoreJob]) -> None:
        """Computes the logits of all jobs. After an error nothing is known."""
        try:
            self._live = [live for live in self._live if not live.lane.is_left]
            for job in jobs:
                for band, part in job.by_band(self._rotation).items():
                    self._rotation.reset()
                    lane = Lane.of(band, job.scope)
                    rows = self._stepped(part, lane) if self.kind == "state" else self._rows(part, lane)
                    job.rows.update(rows)
        except BaseException:
            self.forget()
            raise

    def forget(self) -> None:
        """Gives up all live sequences."""
        self._live.clear()

    def settle(self) -> None:
        """Nothing is left to do after a call."""

    def _rows(self, job: ScoreJob, lane: Lane) -> dict[int, Any]:
        wanted = sorted(set(job.ends))
        # the last hidden state of a known prefix is not kept, so the first scored position is computed again
        past, known = self._resumed(job.ids, wanted[0] - 1, lane)
        self._count(job, known)
        logits, past = self._forward(job.ids[known:], past, [end - 1 - known for end in wanted])
        if self.kind != "none" and _is_whole(past, len(job.ids)) and not self._rotation.is_single(lane.band):
            self._remember(job.ids, past, lane)
        return dict(zip(wanted, logits, strict=True))

    def _stepped(self, job: ScoreJob, lane: Lane) -> dict[int, Any]:
        """Logits of a recurrent network: the prompt in one pass, every further token in a pass of its own."""
        wanted, rows = sorted(set(job.ends)), {}
        live = [each for each in self._live if each.lane == lane and len(each.ids) < wanted[0]]
        live = [each for each in live if each.ids == job.ids[: len(each.ids)]]
        best = max(live, key=lambda each: len(each.ids), default=None)
        known, past = (0, None) if best is None else (len(best.ids), best.past)
        self._count(job, known)
        if best is not None:
            self._live.remove(best)
        if past is None:
            known = wanted[0]
            logits, past = self._forward(job.ids[:known], None, [known - 1])
            rows[known] = logits[0]
        elif wanted[0] - known > 1:  # another text may go on from here as well
            self._remember(job.ids[:known], copy.deepcopy(past), lane)
        if known == wanted[0] < len(job.ids):
            self._remember(job.ids[:known], copy.deepcopy(past), lane)
        for end in range(known + 1, len(job.ids) + 1):
            logits, past = self._forward(job.ids[end - 1 : end], past, [0], end - 1)
            rows[end] = logits[0]
            if end == wanted[0] < len(job.ids):  # before a draft, which may be wrong
                self._remember(job.ids[:end], copy.deepcopy(past), lane)
        self._remember(job.ids, past, lane)
        return {end: rows[end] for end in wanted}

    def _count(self, job: ScoreJob, known: int) -> None:
        self.fed += len(job.ids) - known
        if job.counts is not None:
            job.counts.fed += len(job.ids) - known
            if known:
                job.counts.reused["memory"] = job.counts.reused.get("memory", 0) + known

    def _resumed(self, ids: tuple[int, ...], limit: int, lane: Lane) -> tuple[Past, int]:
        """Keys and values of the longest cached prefix of a lane, at most `limit` tokens, and its length.

        The result belongs to the caller: a pass changes it in place.
        """
        own = (live for live in self._live if live.lane == lane)
        best = max(own, key=lambda live: common_length(live.ids, ids), default=None)
        known = 0 if best is None else min(common_length(best.ids, ids), limit)
        if best is None or known == 0:
            return _empty(self.kind), 0
        self._live.remove(best)
        if known == len(best.ids):
            return best.past, known
        if len(best.ids) - known > _REDO_TOKENS:
            self._live.append(best)
        return _cut(best.past, known), known

    def _remember(self, ids: tuple[int, ...], past: Past, lane: Lane = SHARED) -> None:
        self._live = [live for live in self._live if live.ids != ids or live.lane != lane]
        self._live.append(_Live(ids, past, lane))
        while len(self._live) > 1 and (
            len(self._live) > _LIVE_SEQUENCES or sum(len(live.ids) for live in self._live) > self._max_tokens
        ):
            del self._live[0]

    def _forward(
        self, new_ids: tuple[int, ...], past: Past, places: list[int], first: int | None = None
    ) -> tuple[torch.Tensor, Past]:
        """One pass: the logits at `places` of `new_ids`, and the cache after them. `first` is the place of the first
        new token, for networks whose cache does not tell."""
        import torch

        self.passes += 1
        device = self._network.device
        tokens, rows = torch.tensor([new_ids], device=device), torch.tensor(places, device=device)
        options: dict[str, Any] = {"input_ids": tokens, "use_cache": self.kind != "none"}
        if self.kind != "none" and past is not None:
            options[self._keyword] = past
        if self.kind == "state" and first is not None and self._takes_place:
            # older releases fill a window of a convolution from its beginning, as if no zeros stood before the text
            place = max(first, getattr(self._network.config, "conv_kernel", 0))
            options["cache_position"] = torch.tensor([place], device=device)
        if self._picks_places:
            options["logits_to_keep"] = rows
        output = self._network(**options)
        logits = output.logits[0] if self._picks_places else output.logits[0, rows]
        return logits, None if self.kind == "none" else cache_of(output)


def cache_kind(network: Any) -> Kind:
    """Form of the cache that a network fills, found by running it."""
    import torch

    with torch.inference_mode():
        tokens = torch.zeros((1, 2), dtype=torch.long, device=network.device)
        past = cache_of(network(input_ids=tokens, use_cache=True))
    if past is None:
        return "none"
    if isinstance(past, tuple):
        return "pairs" if _is_whole(past, 2) else "none"
    layers = {type(layer).__name__ for layer in getattr(past, "layers", ())}
    if type(past).__name__ == "DynamicCache" and layers <= _PLAIN_LAYERS and _is_whole(past, 2):
        return "cache"
    return "state" if _moves_on(network) else "none"


def _moves_on(network: Any) -> bool:
    """True if single steps behind a prefill, and behind a copy of its cache, give the scores of one pass."""
    import torch

    ids = tuple(number % 7 + 1 for number in range(9))
    rows = SingleRows(network, 0, "state")
    try:
        with torch.inference_mode():
            device = network.device
            whole = network(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0].float()
            for first in (1, 5):  # a convolution may read more than one token back
                _, past = rows._forward(ids[:first], None, [first - 1])
                spare = copy.deepcopy(past)
                for kept in (past, spare):
                    for end in range(first + 1, 10):
                        logits, kept = rows._forward(ids[end - 1 : end], kept, [0], end - 1)
                        if not torch.allclose(logits[0].float(), whole[end - 1], atol=2e-2, rtol=1e-3):
                            return False
    except Exception:  # of any class: the model's own code says no
        return False
    return True


def _empty(kind: Kind) -> Past:
    """Empty keys and values, made without the config: with it, a cache drops tokens that left a sliding window, and
    cannot be cut."""
    from transformers import DynamicCache

    return DynamicCache() if kind == "cache" else None


def _pairs(past: Past) -> list[tuple[Any, Any]]:
    if isinstance(past, tuple):
        return [layer[:2] for layer in past]
    if hasattr(past, "layers"):
        return [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in past.layers]
    return list(zip(past.key_cache, past.value_cache, strict=True)) if hasattr(past, "key_cache") else []


def _is_whole(past: Past, length: int) -> bool:
    """True where every layer holds (1, heads, length, head size)."""
    shapes: list[Any] = [getattr(part, "shape", ()) for pair in _pairs(past) for part in pair]
    return bool(shapes) and all(len(shape) == 4 and shape[0] == 1 and shape[2] == length for shape in shapes)


def _cut(past: Past, length: int) -> Past:
    """Keys and values of the first tokens; the argument stays unchanged. Built from slices, because releases of the
    library differ in how a cache is cropped."""
    from transformers import DynamicCache

    pairs = [(keys[:, :, :length], values[:, :, :length]) for keys, values in _pairs(past)]
    if isinstance(past, tuple):
        return tuple(pairs)
    shorter = DynamicCache()
    for number, (keys, values) in enumerate(pairs):
        shorter.update(keys, values, number)
    return shorter
