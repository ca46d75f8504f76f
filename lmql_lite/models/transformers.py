"""Causal language models in Hugging Face format, run in this process by torch: `local:FOLDER_OR_NAME`.

Requests of all runs, event loops and threads are collected, and each pass answers all waiting ones (`packed_rows.py`).
Networks that cannot be fed rows, as a probe finds, compute one sequence after the other (`single_rows.py`).
`checkpoint.py` loads the model and chooses its precision; scores are float32 in any case.

torch is imported when a model is loaded, not with this module.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.kv.block_policy import BlockPolicy
from lmql_lite.cache.kv.kv_config import KVCacheConfig
from lmql_lite.cache.kv.kv_engine import KVCacheEngine
from lmql_lite.cache.kv.kv_layout import Unsupported
from lmql_lite.cache.kv.rotation import Rotation
from lmql_lite.errors import ModelError
from lmql_lite.models.base import ModelObject, Scorer, ScoreRequest
from lmql_lite.models.block_model import BlockModel
from lmql_lite.models.checkpoint import AS_STATED, Checkpoint, LoadOptions, free_bytes, is_out_of_memory, loading
from lmql_lite.models.collector import PassCollector
from lmql_lite.models.exact_step import MOST_ROWS, exact_step
from lmql_lite.models.kv_tiers import kv_engine
from lmql_lite.models.packed_rows import PackedRows, ScoreJob
from lmql_lite.models.packed_weights import pack_weights
from lmql_lite.models.pass_probe import can_pack, noise, price
from lmql_lite.models.single_rows import SingleRows

if TYPE_CHECKING:
    import torch

Row = NDArray[np.float32]

_LIVE_SHARE, _LIVE_BYTES = 0.25, 4 << 30
"""Keys and values of live sequences take at most this share of free memory, and at most so many bytes."""


class TransformersModel(ModelObject):
    """A Scorer (S35). Threads and event loops share it; requests that arrive at about the same time are one pass.

    Sequences scored before keep their keys and values, so that a longer or branching one pays for its new tokens only.
    This changes scores by less than `epsilon`, and by nothing where that is 0 (S5).
    """

    sequences = 32
    """Number of sequences that are worth asking about at the same time."""

    def __init__(
        self, checkpoint: Checkpoint, kv: str | KVCacheConfig | None = None, exact: bool | Literal["auto"] = "auto"
    ) -> None:
        """Scorer over a loaded network, which is run a few times to probe what it can do. `kv` as in `kv_engine`.

        `exact` demands scores of the same bits in every pass, or allows others (S5); `auto` has them in half precision,
        where noise would change tokens, if the probe finds that they can be had. Raises ModelError for a demand that
        cannot be met.
        """
        self.name = checkpoint.name
        self.fingerprint = checkpoint.fingerprint
        self.tokenizer = checkpoint.tokenizer
        self.context_length = checkpoint.context_length
        self._network = checkpoint.network
        try:
            Rotation(checkpoint.network)
        except Unsupported as error:
            hint = "use a model whose rope_type is one of those of transformers"
            raise ModelError(f"{self.name} cannot be scored: {error.message}", hint=hint) from error
        self._width, packs = can_pack(checkpoint.network)
        step, difference = self._found(packs, exact)
        self.epsilon = 2 * difference
        """See `NoisyScorer.epsilon`."""
        self._rows: PackedRows | SingleRows
        if packs:
            engine, most = kv_engine(checkpoint, kv, exact=bool(step))
            free = free_bytes(checkpoint.network.device) or _LIVE_BYTES
            most = min(_LIVE_BYTES, int(_LIVE_SHARE * free)) if most is None else most
            self._rows = PackedRows(checkpoint.network, most, step=step, engine=engine)
            if engine is not None:
                weakref.finalize(self, engine.close)  # also when the process ends
        else:
            self._rows = SingleRows(checkpoint.network, self.context_length)
            self.sequences = 8
        self._lock = threading.Lock()
        self._collector = PassCollector(self.name)

    def _found(self, packs: bool, exact: bool | Literal["auto"]) -> tuple[int, float]:
        """Step of exact passes, 0 for others, and the largest difference of scores between passes."""
        network = self._network
        if exact is True or (exact == "auto" and network.dtype.itemsize <= 2):
            wrong = "its network is fed one sequence after the other"
            if packs:
                few = exact_step(network)
                for step in dict.fromkeys((few, max(few, MOST_ROWS))):
                    found = noise(PackedRows(network, _LIVE_BYTES, step=step), network, self.fingerprint)
                    if not found:
                        return step, 0.0
                wrong = f"on this device, scores differ between passes by up to {found:.1g} nats"
            if exact is True:
                raise ModelError(f"{self.name} cannot be exact: {wrong}", hint="leave exact= out")
        rows = PackedRows(network, _LIVE_BYTES) if packs else SingleRows(network, self.context_length)
        return 0, noise(rows, network, self.fingerprint)

    @property
    def kv(self) -> KVCacheEngine | None:
        """Engine that keeps prompts on disk or on a server; None without one. `kv.report()` has its hit rates."""
        return self._rows.engine if isinstance(self._rows, PackedRows) else None

    @property
    def forward_passes(self) -> int:
        """Number of passes so far, of all runs together."""
        return self._rows.passes

    @property
    def tokens_fed(self) -> int:
        """Number of tokens fed to the network so far, of all runs together."""
        return self._rows.fed

    @classmethod
    def load(
        cls,
        name: str | Path,
        options: LoadOptions = AS_STATED,
        label: str = "",
        kv: str | KVCacheConfig | None = None,
        exact: bool | Literal["auto"] = "auto",
    ) -> TransformersModel:
        """Model from a folder or a GGUF file, or by its name on the model hub if it was downloaded from there.
        `label` is its id, by default `local:NAME`.

        Prints nothing. A model from the hub is identified by its commit, others by the content of their files.
        """
        with loading(str(name)):
            checkpoint = Checkpoint.load(str(name), options)
            pack_weights(checkpoint.network)
            return cls(replace(checkpoint, name=label) if label else checkpoint, kv, exact)

    @classmethod
    def of(
        cls,
        network: Any,
        tokenizer: Any,
        kv: str | KVCacheConfig | None = None,
        exact: bool | Literal["auto"] = "auto",
    ) -> TransformersModel:
        """Model from a loaded network of transformers and its tokenizer, which stay the caller's."""
        with loading(type(network).__name__):
            return cls(Checkpoint.of(network, tokenizer), kv, exact)

    def exact_price(self) -> tuple[float, float] | None:
        """Time of exact passes as a multiple of fast ones, for a prompt and a step; None where none are to be had."""
        if not isinstance(self._rows, PackedRows):
            return None
        with self._lock:
            return price(self._network)

    def with_blocks(self, policy: BlockPolicy) -> Scorer:
        """Scorer over the same network that reuses blocks of prompts. See `BlockModel`."""
        return BlockModel(self, policy)

    @property
    def network(self) -> Any:
        """Causal language model of transformers."""
        return self._network

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Context in which nobody else runs the network. Exhausted memory is a ModelError."""
        import torch

        with self._lock, torch.inference_mode():
            try:
                yield
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                raise ModelError(
                    f"{self.name} ran out of memory", hint="shorten the prompt, or use a smaller model"
                ) from error

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[Row]]:
        """See `Scorer.score`. A thread of the model computes, so that the event loop stays free."""
        jobs = [self._checked(request) for request in requests]
        return await self._collector.score(jobs, self._answered, self._rows.settle)

    def _checked(self, request: ScoreRequest) -> ScoreJob:
        ids, ends = request.checked(self.name, self.context_length)
        if ids and not 0 <= min(ids) <= max(ids) < self._width:
            raise ModelError(f"{self.name} has scores for {self._width} tokens, but the text contains token {max(ids)}")
        return ScoreJob(ids, ends, request.counts, scope=request.scope)

    def _answered(self, jobs: Sequence[ScoreJob]) -> list[list[Row]]:
        """Scores of all jobs. Raises a sentence where memory runs out."""
        import torch

        try:
            with self._lock, torch.inference_mode():
                self._rows.run(jobs)
                return [self._scores(job) for job in jobs]
        except BaseException as error:
            raise self._explained(error, max(len(job.ids) for job in jobs)) from error.__cause__

    def _explained(self, error: BaseException, longest: int) -> BaseException:
        if not is_out_of_memory(error):
            return error
        told = ModelError(
            f"{self.name} ran out of memory on a text of {longest} tokens",
            hint="shorten the prompt, or use a smaller model",
        )
        told.__cause__ = error
        return told

    def _scores(self, job: ScoreJob) -> list[Row]:
        """Normalised scores at the job's ends, one for every token of the vocabulary."""
        import torch

        ends = sorted(job.rows)
        logits = [job.rows[end] for end in ends]
        rows = dict(zip(ends, self.rows(torch.stack(logits) if len(ends) > 1 else logits[0][None]), strict=True))
        return [rows[end] for end in job.ends]

    def rows(self, logits: torch.Tensor) -> list[Row]:
        """Scores over the vocabulary from logits. Raises ModelError for what is not a number."""
        import torch

        scores = torch.log_softmax(logits.float(), dim=-1).cpu().numpy()
        if np.isnan(scores.sum()):  # a sum of numbers, minus infinity among them, is none
            raise ModelError(
                f"{self.name} returned scores that are not numbers",
                hint="check its weights, and its precision on this device",
            )
        return [self._as_row(row, is_only=len(scores) == 1) for row in scores]

    def _as_row(self, scores: Row, *, is_only: bool) -> Row:
        """One score for every token of the vocabulary. A copy where a view would keep other rows alive."""
        size = len(self.tokenizer.vocabulary)
        if is_only and len(scores) == size:
            return scores
        return np.concatenate([scores[:size], np.full(max(size - len(scores), 0), -np.inf, dtype=np.float32)])
