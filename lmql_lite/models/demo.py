"""The demo model: a small Llama, in numpy, that ships with the package.

It knows the domain of the examples and nothing else (`demo/model/README.md`); `demo/train.py` makes it.

Its scores are the same to the last bit alone, in a batch, with and without cached keys and values (S5). BLAS
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
from lmql_lite.models.base import Row, Scorer, ScoreRequest
from lmql_lite.models.chat import template_text
from lmql_lite.models.live import REDO_TOKENS, SHARED, Lane, LiveSequences, ScoreJob
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


@dataclass(frozen=True, slots=True)
class _Layer:
    """Matrices as (in, out); q, k and v side by side, gate and up side by side."""

    attention_norm: Array
    qkv: Array
    output: Array
    mlp_norm: Array
    gate_up: Array
    down: Array


class _KV(NamedTuple):
    """Keys and values of one sequence, each (layers, heads, context, head size)."""

    keys: Array
    values: Array


class _Row(NamedTuple):
    """Request in a pass: the number of its ids that `kv` holds already, and the place of its answer."""

    job: ScoreJob
    lane: Lane
    kv: _KV
    known: int
    place: int


class DemoModel(Scorer):
    """The model of the examples. Threads take turns, because every call changes the cached sequences (S28)."""

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
        self._live = LiveSequences[_KV](_SLOTS)
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

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[Row]]:
        """See `Scorer.score`. Requests with a common beginning compute it once."""
        # such small matrices gain nothing from a second thread, and lose much if other processes want that core
        with self._turn, self._blas.limit(limits=1, user_api="blas"):
            return self._score(requests)

    def _score(self, requests: Sequence[ScoreRequest]) -> list[list[Row]]:
        pending = [
            (place, ScoreJob.of(request, "the demo model", self.context_length, len(self._embedding)))
            for place, request in enumerate(requests)
            if request.positions
        ]
        results: list[list[Row]] = [[] for _ in requests]
        while pending:
            wave = list[_Row]()
            pending = [each for each in pending if not self._admits(*each, wave)]
            for row, scores in zip(wave, self._run(wave), strict=True):
                results[row.place] = scores
                self._live.put(row.job.ids, row.kv, row.lane)
            self._live.evict()
        return results

    def logits(self, ids: Sequence[int]) -> Array:
        """Raw logits after each of the ids, shape (len(ids), vocabulary), without cached keys and values. For tests."""
        row = _Row(ScoreJob(tuple(ids), ()), SHARED, self._new_kv(), 0, 0)
        return _grid(self._hidden([row]), _VALUE_BITS) @ self._embedding.T

    def _new_kv(self) -> _KV:
        shape = len(self._layers), self._heads, self.context_length, self._head_size
        return _KV(np.empty(shape), np.empty(shape))

    def _admits(self, place: int, job: ScoreJob, wave: list[_Row]) -> bool:
        """Adds a request to the wave, unless it is full, or is about to compute more of this sequence than is known."""
        lane = Lane.of(0, job.scope)
        # the last hidden state of a known prefix is not kept, so the first scored position is computed again
        limit = min(job.ends) - 1
        live, known = self._live.longest(job.ids, limit, lane)
        kv = None if live is None else live.state
        for row in (row for row in wave if row.lane == lane):
            shared = min(common_length(row.job.ids[: row.known], job.ids), limit)
            if shared > known:
                live, known, kv = None, shared, row.kv
        soon = max((common_length(row.job.ids, job.ids) for row in wave if row.lane == lane), default=0)
        if len(wave) == _SLOTS or min(soon, limit) > known + REDO_TOKENS:
            return False
        if live is None or not self._live.take(live, known):
            copied, kv = kv, self._new_kv()
            if copied is not None:
                for new, old in zip(kv, copied, strict=True):
                    new[:, :, :known] = old[:, :, :known]
        assert kv is not None, "it was taken, or is new"
        wave.append(_Row(job, lane, kv, known, place))
        return True

    def _run(self, wave: list[_Row]) -> list[list[Row]]:
        hidden = self._hidden(wave)
        places: list[int] = []
        first = 0
        for row in wave:
            places += [first + end - 1 - row.known for end in row.job.ends]
            first += len(row.job.ids) - row.known
        found = iter(_log_softmax(_grid(hidden[places], _VALUE_BITS) @ self._embedding.T))
        return [[next(found) for _ in row.job.ends] for row in wave]

    def _hidden(self, wave: list[_Row]) -> Array:
        """Normalised last hidden states of the new ids of all rows, concatenated; fills their keys and values."""
        self.forward_passes += 1
        new_ids = [row.job.ids[row.known :] for row in wave]
        x = self._embedding[np.array([number for ids in new_ids for number in ids], dtype=np.intp)]
        positions = np.concatenate([np.arange(row.known, len(row.job.ids)) for row in wave])
        cos, sin = self._cos[positions, None], self._sin[positions, None]
        for number, layer in enumerate(self._layers):
            qkv = _grid(self._normed(x, layer.attention_norm), _VALUE_BITS) @ layer.qkv
            q, k, v = qkv.reshape(len(x), 3, self._heads, self._head_size).swapaxes(0, 1)
            q, k, v = _rotated(q, cos, sin), _rotated(k, cos, sin), _grid(v, _VALUE_BITS)
            mixed = np.empty((len(x), self._heads * self._head_size))
            first = 0
            for row in wave:
                end = len(row.job.ids)
                span = slice(first, first + end - row.known)
                keys, values = row.kv.keys[number], row.kv.values[number]
                keys[:, row.known : end] = k[span].swapaxes(0, 1)
                values[:, row.known : end] = v[span].swapaxes(0, 1)
                mixed[span] = _attention(q[span].swapaxes(0, 1), keys[:, :end], values[:, :end])
                first = span.stop
            x = x + _grid(mixed, _VALUE_BITS) @ layer.output
            gate, up = np.split(_grid(self._normed(x, layer.mlp_norm), _VALUE_BITS) @ layer.gate_up, 2, axis=1)
            x = x + _grid(gate / (1.0 + np.exp(-gate)) * up, _GATED_BITS) @ layer.down
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
