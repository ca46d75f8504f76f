"""The demo model: a small Llama, in numpy, that ships with the package.

It knows the domain of the examples and nothing else (`demo/model/README.md`); `demo/train.py` makes it.

Its scores are the same to the last bit alone, in a batch, with and without cached keys and values (S5, D12). BLAS
chooses the order of a sum by the shapes, so no result may depend on that order. Every number that enters a sum is
rounded to a multiple of a power of two: fine enough to do no harm (1e-6), and coarse enough that products and all
their partial sums fit into the 53 bits of a float64. Such sums are exact in any order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from threadpoolctl import ThreadpoolController

from lmql_lite.assets import asset
from lmql_lite.errors import ModelError
from lmql_lite.models.base import ModelObject, ScoreRequest
from lmql_lite.models.chat import template_text
from lmql_lite.models.kv_rows import SHARED, Lane
from lmql_lite.models.tokenizer import HFTokenizer
from lmql_lite.tokens import common_length

Array = NDArray[np.float64]

_WEIGHT_BITS = 18
"""Weights are multiples of 2**-18; the trainer rounds them."""
_VALUE_BITS = 20
"""Activations are multiples of 2**-20. Sums with weights are exact below 2**15, among themselves below 2**13."""
_GATED_BITS = 19
"""Activations inside the feed-forward layers, which grow larger."""
_SHARE_BITS = 26
"""Attention shares, about 1 in sum: exact while no value reaches 2**7."""
_SQUARE_BITS = 24
_CHANCE_BITS = 40

_SLOTS = 12
"""Maximum number of sequences that keep their keys and values, 6 MiB each when full."""
_REDO_TOKENS = 4
"""A sequence that leaves a cached one at most this many tokens before its end replaces it: copying costs more."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Matrices as (in, out); q, k and v side by side, gate and up side by side."""

    attention_norm: Array
    qkv: Array
    output: Array
    mlp_norm: Array
    gate_up: Array
    down: Array


class _Slot:
    """Keys and values of one sequence, (layers, heads, context, head size); the first `len(ids)` are valid."""

    def __init__(self, shape: tuple[int, int, int, int]) -> None:
        self.ids: tuple[int, ...] = ()
        self.keys = np.empty(shape)
        self.values = np.empty(shape)
        self.last_use = 0
        self.lane = SHARED


class _Pending(NamedTuple):
    """Request that is in no wave yet."""

    place: int
    ids: tuple[int, ...]
    ends: tuple[int, ...]
    lane: Lane


@dataclass(slots=True)
class _Job:
    """Request in progress: all ids, the number of them that `slot` holds already, and the positions to score."""

    place: int
    ids: tuple[int, ...]
    ends: tuple[int, ...]
    slot: _Slot
    known: int


class DemoModel(ModelObject):
    """A Scorer (S35). Threads take turns, because every call changes the cached sequences (S28)."""

    name = "demo"
    sequences = 8
    """Texts that advance at once. The other slots are for branches, drafts and prompts that several texts share."""

    def __init__(
        self, tokenizer: HFTokenizer, fingerprint: str, config: dict[str, Any], weights: dict[str, Any]
    ) -> None:
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint
        self.context_length = int(config["max_position_embeddings"])
        self.forward_passes = 0
        self._heads = int(config["num_attention_heads"])
        self._epsilon = float(config["rms_norm_eps"])
        self._embedding: Array = weights["model.embed_tokens.weight"].astype(np.float64)
        self._norm: Array = weights["model.norm.weight"].astype(np.float64)
        self._layers = [_layer(weights, f"model.layers.{number}.") for number in range(config["num_hidden_layers"])]
        self._head_size = self._embedding.shape[1] // self._heads
        self._cos, self._sin = _rotations(self.context_length, self._head_size, float(config["rope_theta"]))
        self._slots: list[_Slot] = []
        self._calls = 0
        self._turn = Lock()
        self._blas = ThreadpoolController()

    @classmethod
    def load(cls, folder: Path | None = None) -> DemoModel:
        """Model from a folder in Hugging Face format; by default the one that ships with the package."""
        folder = folder or asset("demo/model", "config.json").parent
        try:
            parts = [(folder / name).read_bytes() for name in ("config.json", "tokenizer.json", "model.safetensors")]
            config, weights = json.loads(parts[0]), load_tensors(parts[2])
        except (OSError, ValueError, SafetensorError) as error:
            raise ModelError(f"the demo model in {folder} cannot be read: {error}") from error
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(hashlib.blake2b(part).digest())
        digest.update(template_text(folder).encode())
        return cls(HFTokenizer.from_folder(folder), f"demo:{digest.hexdigest()}", config, weights)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[NDArray[np.float32]]]:
        """See `Scorer.score`. Requests with a common beginning compute it once."""
        # such small matrices gain nothing from a second thread, and lose much if other processes want that core (D28)
        with self._turn, self._blas.limit(limits=1, user_api="blas"):
            return self._score(requests)

    def _score(self, requests: Sequence[ScoreRequest]) -> list[list[NDArray[np.float32]]]:
        pending = [
            _Pending(place, *request.checked("the demo model", self.context_length), Lane.of(0, request.scope))
            for place, request in enumerate(requests)
            if request.positions
        ]
        results: list[list[NDArray[np.float32]]] = [[] for _ in requests]
        while pending:
            wave: list[_Job] = []
            later: list[_Pending] = []
            for waiting in pending:
                if len(wave) < _SLOTS and self._worth_now(waiting, wave):
                    wave.append(self._admitted(waiting, wave))
                else:
                    later.append(waiting)
            for job, scores in zip(wave, self._run(wave), strict=True):
                results[job.place] = scores
            pending = later
        return results

    def logits(self, ids: Sequence[int]) -> Array:
        """Raw logits after each of the ids, shape (len(ids), vocabulary), without cached keys and values. For tests."""
        slot = _Slot(self._slot_shape)
        hidden = self._hidden([_Job(0, tuple(ids), (), slot, 0)])
        return _grid(hidden, _VALUE_BITS) @ self._embedding.T

    @property
    def _slot_shape(self) -> tuple[int, int, int, int]:
        return len(self._layers), self._heads, self.context_length, self._head_size

    def _worth_now(self, waiting: _Pending, wave: list[_Job]) -> bool:
        """False if the wave is about to compute more of this sequence than is cached now."""
        remembered = max((common_length(slot.ids, waiting.ids) for slot in self._of(waiting.lane)), default=0)
        others = (job.ids for job in wave if job.slot.lane == waiting.lane)
        return all(common_length(ids, waiting.ids) <= remembered + _REDO_TOKENS for ids in others)

    def _of(self, lane: Lane) -> list[_Slot]:
        return [slot for slot in self._slots if slot.lane == lane]

    def _admitted(self, waiting: _Pending, wave: list[_Job]) -> _Job:
        """Job with a slot for the sequence, filled with as much of it as is cached in its lane."""
        place, ids, ends, lane = waiting
        self._calls += 1
        taken = [job.slot for job in wave]
        best = max(self._of(lane), key=lambda slot: (common_length(slot.ids, ids), slot.last_use), default=None)
        # the last hidden state of a known prefix is not kept, so the first scored position is computed again
        known = 0 if best is None else min(common_length(best.ids, ids), min(ends, default=1) - 1)
        if best is not None and best not in taken and len(best.ids) - known <= _REDO_TOKENS:
            slot = best
        else:
            slot = self._free_slot(taken)
            if best is not None and slot is not best:
                slot.keys[:, :, :known] = best.keys[:, :, :known]
                slot.values[:, :, :known] = best.values[:, :, :known]
        slot.ids, slot.lane = ids[:known], lane
        slot.last_use = self._calls
        return _Job(place, ids, ends, slot, known)

    def _free_slot(self, taken: list[_Slot]) -> _Slot:
        if len(self._slots) < _SLOTS:
            self._slots.append(_Slot(self._slot_shape))
            return self._slots[-1]
        return min((slot for slot in self._slots if slot not in taken), key=lambda slot: slot.last_use)

    def _run(self, wave: list[_Job]) -> list[list[NDArray[np.float32]]]:
        hidden = self._hidden(wave)
        rows: list[int] = []
        first = 0
        for job in wave:
            rows += [first + end - 1 - job.known for end in job.ends]
            first += len(job.ids) - job.known
        scores = _log_softmax(_grid(hidden[rows], _VALUE_BITS) @ self._embedding.T)
        found = iter(scores)
        return [[next(found) for _ in job.ends] for job in wave]

    def _hidden(self, wave: list[_Job]) -> Array:
        """Normalised last hidden states of the new ids of all jobs, concatenated; fills the slots of the jobs."""
        self.forward_passes += 1
        counts = [len(job.ids) - job.known for job in wave]
        x = self._embedding[np.array([number for job in wave for number in job.ids[job.known :]], dtype=np.intp)]
        positions = np.concatenate([np.arange(job.known, len(job.ids)) for job in wave])
        cos, sin = self._cos[positions, None], self._sin[positions, None]
        for number, layer in enumerate(self._layers):
            qkv = _grid(self._normed(x, layer.attention_norm), _VALUE_BITS) @ layer.qkv
            q, k, v = qkv.reshape(len(x), 3, self._heads, self._head_size).swapaxes(0, 1)
            q, k, v = _rotated(q, cos, sin), _rotated(k, cos, sin), _grid(v, _VALUE_BITS)
            mixed = np.empty((len(x), self._heads * self._head_size))
            first = 0
            for job, count in zip(wave, counts, strict=True):
                span, end = slice(first, first + count), len(job.ids)
                keys, values = job.slot.keys[number], job.slot.values[number]
                keys[:, job.known : end] = k[span].swapaxes(0, 1)
                values[:, job.known : end] = v[span].swapaxes(0, 1)
                mixed[span] = _attention(q[span].swapaxes(0, 1), keys[:, :end], values[:, :end])
                first += count
            x = x + _grid(mixed, _VALUE_BITS) @ layer.output
            gate, up = np.split(_grid(self._normed(x, layer.mlp_norm), _VALUE_BITS) @ layer.gate_up, 2, axis=1)
            x = x + _grid(gate / (1.0 + np.exp(-gate)) * up, _GATED_BITS) @ layer.down
        for job in wave:
            job.slot.ids = job.ids
        return self._normed(x, self._norm)

    def _normed(self, x: Array, weight: Array) -> Array:
        mean = _grid(x * x, _SQUARE_BITS).sum(axis=1, keepdims=True) / x.shape[1]
        normed: Array = x / np.sqrt(mean + self._epsilon) * weight
        return normed


def _attention(q: Array, keys: Array, values: Array) -> Array:
    """Causal attention of the last positions. Shapes: q (heads, new, size), keys and values (heads, all, size)."""
    heads, new, size = q.shape
    scores = q @ keys.swapaxes(1, 2) / np.sqrt(size)
    if new > 1:
        scores[:, np.arange(keys.shape[1]) > np.arange(keys.shape[1] - new, keys.shape[1])[:, None]] = -np.inf
    shares = _grid(np.exp(scores - scores.max(axis=2, keepdims=True)), _SHARE_BITS)
    shares = _grid(shares / shares.sum(axis=2, keepdims=True), _SHARE_BITS)
    mixed: Array = (shares @ values).swapaxes(0, 1).reshape(new, heads * size)
    return mixed


def _rotated(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary positions in the Hugging Face layout: the two halves of a head's vector are the pairs."""
    left, right = np.split(x, 2, axis=2)
    return _grid(x * cos + np.concatenate([-right, left], axis=2) * sin, _VALUE_BITS)


def _rotations(positions: int, size: int, theta: float) -> tuple[Array, Array]:
    angles = np.outer(np.arange(positions), theta ** (-np.arange(0, size, 2) / size))
    doubled = np.concatenate([angles, angles], axis=1)
    return np.cos(doubled), np.sin(doubled)


def _log_softmax(logits: Array) -> NDArray[np.float32]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = _grid(np.exp(shifted), _CHANCE_BITS).sum(axis=1, keepdims=True)
    scores: NDArray[np.float32] = (shifted - np.log(total)).astype(np.float32)
    return scores


def _grid(x: Array, bits: int) -> Array:
    """Nearest multiples of 2**-bits."""
    scaled = x * 2.0**bits
    np.rint(scaled, out=scaled)
    scaled *= 2.0**-bits
    return scaled


def _layer(weights: dict[str, Any], prefix: str) -> _Layer:
    def side_by_side(*names: str) -> Array:
        return np.ascontiguousarray(np.concatenate([weights[prefix + name] for name in names]).astype(np.float64).T)

    return _Layer(
        attention_norm=weights[f"{prefix}input_layernorm.weight"].astype(np.float64),
        qkv=side_by_side("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
        output=side_by_side("self_attn.o_proj.weight"),
        mlp_norm=weights[f"{prefix}post_attention_layernorm.weight"].astype(np.float64),
        gate_up=side_by_side("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        down=side_by_side("mlp.down_proj.weight"),
    )
