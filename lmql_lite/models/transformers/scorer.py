"""Causal language models in Hugging Face format, run in this process by torch: `local:FOLDER_OR_NAME`.

Requests of all runs, event loops and threads are collected, and each pass answers all waiting ones (`rows.py`).
Networks that cannot be fed rows, as a probe finds (`exactness.py`), compute one sequence after the other.
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
from typing import Any, Literal

from lmql_lite.cache.kv.blocks import BlockPolicy
from lmql_lite.cache.kv.config import KVCacheConfig
from lmql_lite.cache.kv.engine import KVCacheEngine
from lmql_lite.errors import ModelError
from lmql_lite.models.base import Row, Scorer, ScoreRequest
from lmql_lite.models.collector import PassCollector
from lmql_lite.models.live import ScoreJob
from lmql_lite.models.transformers.blocks import BlockModel
from lmql_lite.models.transformers.checkpoint import (
    Checkpoint,
    loading,
    rows_of,
    within_memory,
)
from lmql_lite.models.transformers.exactness import facts_of
from lmql_lite.models.transformers.rows import PackedRows, SingleRows
from lmql_lite.models.transformers.tiers import kv_engine


class TransformersModel(Scorer):
    """Causal language model of transformers. Threads and event loops share it; requests that arrive at about the same
    time are one pass.

    Sequences scored before keep their keys and values, so that a longer or branching one pays for its new tokens only.
    This changes scores by less than `epsilon`, and by nothing where that is 0 (S5).
    """

    def __init__(
        self, checkpoint: Checkpoint, kv: str | KVCacheConfig | None = None, exact: bool | Literal["auto"] = "auto"
    ) -> None:
        """Scorer over a loaded network. `kv` as in `kv_engine`.

        `exact` demands scores of the same bits in every pass, or allows others (S5); `auto` has them in half precision,
        where noise would change tokens, if the probe finds that they can be had. Raises ModelError for a demand that
        cannot be met.
        """
        network = self.network = checkpoint.network
        self.name, self.fingerprint = checkpoint.name, checkpoint.fingerprint
        self.tokenizer, self.context_length = checkpoint.tokenizer, checkpoint.context_length
        wants_exact = exact is True or (exact == "auto" and network.dtype.itemsize <= 2)
        facts = facts_of(network, self.fingerprint, exact=wants_exact)
        if exact is True and not facts.step:
            problem = f"on this device, scores differ between passes by up to {facts.noise:.1g} nats"
            problem = problem if facts.is_fed_rows else "its network is fed one sequence after the other"
            raise ModelError(f"{self.name} cannot be exact: {problem}", hint="leave exact= out")
        self.epsilon = 2 * facts.noise
        self._width = facts.width
        self._rows: PackedRows | SingleRows
        if facts.is_fed_rows:
            self.sequences = 32
            engine, most = kv_engine(checkpoint, kv, exact=bool(facts.step))
            self._rows = PackedRows(network, most, step=facts.step, engine=engine)
            if engine is not None:
                weakref.finalize(self, engine.close)  # also when the process ends
        else:
            self._rows = SingleRows(network, facts.kind)
        self._lock = threading.Lock()
        self._collector = PassCollector(self.name)

    @property
    def kv(self) -> KVCacheEngine | None:
        """Engine that keeps prompts on disk or on a server; None without one. `kv.report()` has its hit rates."""
        return self._rows.engine

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
        device: str | None = None,
        dtype: str | None = None,
        label: str = "",
        kv: str | KVCacheConfig | None = None,
        exact: bool | Literal["auto"] = "auto",
    ) -> TransformersModel:
        """Model from a folder or a GGUF file, or by its name on the model hub if it was downloaded from there.
        `label` is its id, by default `local:NAME`. `device` and `dtype` are those of torch, None for the default.

        Prints nothing. A model from the hub is identified by its commit, others by the content of their files.
        """
        with loading(str(name)):
            checkpoint = Checkpoint.load(str(name), device, dtype)
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

    def with_blocks(self, policy: BlockPolicy) -> Scorer:
        """Scorer over the same network that reuses blocks of prompts. See `BlockModel`."""
        return BlockModel(self, self.network, self.kv, self.exclusively, policy)

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Context in which nobody else runs the network."""
        import torch

        with self._lock, torch.inference_mode():
            yield

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[Row]]:
        """See `Scorer.score`. A thread of the model computes, so that the event loop stays free."""
        jobs = [ScoreJob.of(request, self.name, self.context_length, self._width) for request in requests]
        return await self._collector.score(jobs, self._answered, self._rows.settle)

    def _answered(self, jobs: Sequence[ScoreJob]) -> list[list[Row]]:
        """Scores of all jobs. Raises a sentence where memory runs out."""
        import torch

        longest = max(len(job.ids) for job in jobs)
        with within_memory(self.name, longest), self._lock, torch.inference_mode():
            self._rows.run(jobs)
            return [self._scores(job) for job in jobs]

    def _scores(self, job: ScoreJob) -> list[Row]:
        """Normalised scores at the job's ends, one for every token of the vocabulary."""
        import torch

        ends = sorted(job.rows)
        logits = torch.stack([job.rows[end] for end in ends]) if len(ends) > 1 else job.rows[ends[0]][None]  # no copy
        rows = dict(zip(ends, rows_of(logits, self.name, len(self.tokenizer.vocabulary)), strict=True))
        return [rows[end] for end in job.ends]
