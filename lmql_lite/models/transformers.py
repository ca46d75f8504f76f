"""Causal language models in Hugging Face format, run in this process by torch: `local:FOLDER_OR_NAME`.

This module scores: one sequence after the other, reusing keys and values of sequences scored before. `checkpoint.py`
loads the model and chooses its precision; scores are float32 in any case.

torch is imported when a model is loaded, not with this module.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from lmql_lite.errors import ModelError
from lmql_lite.models.base import ScoreRequest
from lmql_lite.models.checkpoint import Checkpoint, is_out_of_memory, loading

if TYPE_CHECKING:
    import torch

Row = NDArray[np.float32]
Past = Any
"""Keys and values of one sequence: a DynamicCache, or in some models of older releases a tuple of pairs."""

_LIVE_SEQUENCES = 8
"""Maximum number of sequences that keep keys and values; together they hold at most one full context of tokens."""
_REDO_TOKENS = 4
"""A sequence that leaves a cached one at most this many tokens before its end replaces it: copying costs more."""
_PLAIN_LAYERS = {"DynamicLayer", "DynamicSlidingWindowLayer"}


@dataclass(frozen=True, slots=True)
class _Live:
    ids: tuple[int, ...]
    past: Past


@dataclass(frozen=True, slots=True)
class _Job:
    """Ids up to the last scored position, and the prefix lengths to score."""

    ids: tuple[int, ...]
    ends: tuple[int, ...]


class TransformersModel:
    """A Scorer (S35). Threads and event loops may share it; their calls take turns.

    Sequences scored before keep their keys and values, so that a longer or branching one pays for its new tokens only.
    This changes scores by no more than the floating-point noise of another batch shape (S5).
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Scorer over a loaded network, which is run once to probe its outputs."""
        self.name = checkpoint.name
        self.fingerprint = checkpoint.fingerprint
        self.tokenizer = checkpoint.tokenizer
        self.context_length = checkpoint.context_length
        self.forward_passes = 0
        self._network = checkpoint.network
        self._lock = threading.Lock()
        self._live: list[_Live] = []
        self._width, self._past_kind = _probe(checkpoint.network)
        self._picks_places = "logits_to_keep" in inspect.signature(checkpoint.network.forward).parameters

    @classmethod
    def load(cls, name: str | Path) -> TransformersModel:
        """Model from a folder, or by its name on the model hub: from the local cache, downloaded if necessary.

        Prints nothing. Reads all weights twice, once for the fingerprint; a model from the hub is identified by its
        commit.
        """
        with loading(str(name)):
            return cls(Checkpoint.load(str(name)))

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[Row]]:
        """See `Scorer.score`. One sequence after the other, in a thread, so that the event loop stays free."""
        return await asyncio.to_thread(self._score, [self._checked(request) for request in requests])

    def _checked(self, request: ScoreRequest) -> _Job:
        ids = request.prefix + request.new_ids
        ends = tuple(len(request.prefix) + position for position in request.positions)
        if len(ids) > self.context_length:
            raise ModelError(
                f"the text is {len(ids)} tokens long, {self.name} reads at most {self.context_length}",
                hint="shorten the prompt, or name a model with a longer context",
            )
        if not all(0 <= position <= len(request.new_ids) for position in request.positions):
            raise ModelError(f"positions {request.positions} do not lie in the {len(request.new_ids)} new tokens")
        if not all(ends):
            raise ModelError(
                f"{self.name} has no scores before the first token", hint="begin the prompt with some text"
            )
        if ids and not 0 <= min(ids) <= max(ids) < self._width:
            raise ModelError(f"{self.name} has scores for {self._width} tokens, the text holds token {max(ids)}")
        return _Job(ids[: max(ends, default=0)], ends)

    def _score(self, jobs: Sequence[_Job]) -> list[list[Row]]:
        import torch

        with self._lock, torch.inference_mode():
            try:
                return [self._rows(job) if job.ends else [] for job in jobs]
            except (MemoryError, RuntimeError) as error:
                self._live.clear()
                if not is_out_of_memory(error):
                    raise
                longest = max(len(job.ids) for job in jobs)
                raise ModelError(
                    f"{self.name} ran out of memory on a text of {longest} tokens",
                    hint="shorten the prompt, or name a smaller model",
                ) from error

    def _rows(self, job: _Job) -> list[Row]:
        import torch

        wanted = sorted(set(job.ends))
        # the last hidden state of a known prefix is not kept, so the first scored position is computed again
        past, known = self._resumed(job.ids, wanted[0] - 1)
        logits, past = self._forward(job.ids[known:], past, [end - 1 - known for end in wanted])
        self._remember(job.ids, past)
        scores = torch.log_softmax(logits.float(), dim=-1).cpu().numpy()
        if np.isnan(scores).any():
            raise ModelError(
                f"{self.name} gave scores that are not numbers",
                hint="its weights may be damaged, or its precision too low for this device",
            )
        rows = dict(zip(wanted, scores, strict=True))
        return [self._as_row(rows[end]) for end in job.ends]

    def _as_row(self, scores: Row) -> Row:
        """Copy with one score for every token of the vocabulary; a view would keep the other rows alive."""
        size = len(self.tokenizer.vocabulary)
        return np.concatenate([scores[:size], np.full(max(size - len(scores), 0), -np.inf, dtype=np.float32)])

    def _resumed(self, ids: tuple[int, ...], limit: int) -> tuple[Past, int]:
        """Keys and values of the longest cached prefix, at most `limit` tokens, and its length.

        The result belongs to the caller: a pass changes it in place.
        """
        best = max(self._live, key=lambda live: _common(live.ids, ids), default=None)
        known = 0 if best is None else min(_common(best.ids, ids), limit)
        if best is None or known == 0:
            return _empty(self._past_kind), 0
        self._live.remove(best)
        if known == len(best.ids):
            return best.past, known
        if len(best.ids) - known > _REDO_TOKENS:
            self._live.append(best)
        return _cut(best.past, known), known

    def _remember(self, ids: tuple[int, ...], past: Past) -> None:
        if self._past_kind == "none" or not _is_whole(past, len(ids)):
            return
        self._live.append(_Live(ids, past))
        while len(self._live) > 1 and (
            len(self._live) > _LIVE_SEQUENCES or sum(len(live.ids) for live in self._live) > self.context_length
        ):
            del self._live[0]

    def _forward(self, new_ids: tuple[int, ...], past: Past, places: list[int]) -> tuple[torch.Tensor, Past]:
        """One pass: the logits at `places` of `new_ids`, and the extended keys and values."""
        import torch

        self.forward_passes += 1
        device = self._network.device
        tokens, rows = torch.tensor([new_ids], device=device), torch.tensor(places, device=device)
        if self._past_kind == "none":
            return self._network(input_ids=tokens, use_cache=False).logits[0, rows], None
        if not self._picks_places:
            output = self._network(input_ids=tokens, past_key_values=past, use_cache=True)
            return output.logits[0, rows], output.past_key_values
        output = self._network(input_ids=tokens, past_key_values=past, use_cache=True, logits_to_keep=rows)
        return output.logits[0], output.past_key_values


def _probe(network: Any) -> tuple[int, Literal["none", "pairs", "cache"]]:
    """Number of scores per position, and the form of keys and values that can be kept and cut.

    Recurrent layers and caches with shapes of their own are not kept: such models compute every text again.
    """
    import torch

    with torch.inference_mode():
        output = network(input_ids=torch.zeros((1, 2), dtype=torch.long, device=network.device), use_cache=True)
    width, past = int(output.logits.shape[-1]), getattr(output, "past_key_values", None)
    if past is None or not _is_whole(past, 2):
        return width, "none"
    if isinstance(past, tuple):
        return width, "pairs"
    layers = {type(layer).__name__ for layer in getattr(past, "layers", ())}
    return width, "cache" if type(past).__name__ == "DynamicCache" and layers <= _PLAIN_LAYERS else "none"


def _empty(kind: Literal["none", "pairs", "cache"]) -> Past:
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


def _common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Length of the common prefix of two sequences of ids, by bisection: comparing slices is fast."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
