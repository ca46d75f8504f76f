"""Vision-language and audio models in Hugging Face format, run in this process: `local:FOLDER_OR_NAME`.

On a path, an item is a mark and the 32 bytes of its digest. Before a pass it becomes the tokens of its span and the
output of its encoder, which the encoder cache has, or `encoding.py` makes.

torch is imported when a model is loaded, not with this module.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from lmql_lite.cache.encoder import EncoderCache, EncoderEntry
from lmql_lite.cache.kv.config import KVCacheConfig
from lmql_lite.cache.kv.engine import KVCacheEngine
from lmql_lite.errors import ModelError
from lmql_lite.media import DIGEST_BYTES, Media, article
from lmql_lite.models.base import KVScope, PassCounts, Row, Scorer, ScoreRequest
from lmql_lite.models.live import ScoreJob
from lmql_lite.models.media.encoding import EMBEDDINGS, TOKENS, ItemEncoder
from lmql_lite.models.media.path import Unfolded, unfolded
from lmql_lite.models.transformers.checkpoint import (
    Checkpoint,
    loading,
    rows_of,
    within_memory,
)
from lmql_lite.models.transformers.rows import SingleRows
from lmql_lite.models.transformers.tiers import kv_engine

if TYPE_CHECKING:
    import torch

_NOISE = 1e-3
"""Largest difference of logits, relative to the largest logit, that another shape of the same pass explains."""


@dataclass(eq=False, slots=True, kw_only=True)
class _MediaJob(ScoreJob):
    """A request in progress for an unfolded path. `seen` gives the inputs of the network for a part of it. With
    `in_one_piece`, no known beginning ends before the last item."""

    whole: Unfolded
    seen: Callable[[Unfolded, int, int], dict[str, Any]]
    in_one_piece: bool

    def length(self, end: int) -> int:
        return int(self.whole.positions[:, :end].max(initial=0)) + 1

    def border(self, place: int) -> int:
        last = max((begin for begin, _ in self.whole.items), default=-1)
        return 0 if self.in_one_piece and place <= last else self.whole.before(place)

    def inputs(self, begin: int, end: int, device: Any) -> dict[str, Any]:
        return self.seen(self.whole, begin, end)


class MultimodalModel(Scorer):
    """Vision-language or audio model. Threads and event loops may share it; their calls take turns.

    `encoder_calls` and `decodes` count what known items do not cost. Keys and values of the latest sequences are kept
    in memory, and with `kv` those of prefixes across processes.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        folder: Path,
        encoder: EncoderCache | None = None,
        kv: str | KVCacheConfig | None = None,
    ) -> None:
        """Scorer over a loaded network, which is run a few times to probe what it can do. `kv` as in `kv_engine`."""
        self.name, self.fingerprint = checkpoint.name, checkpoint.fingerprint
        self.tokenizer, self.context_length = checkpoint.tokenizer, checkpoint.context_length
        self.encoding = ItemEncoder(checkpoint.name, checkpoint.network, folder, checkpoint.fingerprint)
        dtype = str(checkpoint.network.dtype)
        self.encoder = encoder or EncoderCache(KVCacheConfig.load(layer="ec"), checkpoint.name, dtype)
        engine, most = kv_engine(checkpoint, kv, exact=False)
        self._rows = SingleRows(checkpoint.network, "cache", most, engine)
        if engine is not None:
            weakref.finalize(self, engine.close)  # also when the process ends
        self._network = checkpoint.network
        is_rotated = hasattr(getattr(self._network, "model", self._network), "get_rope_index")
        self._axes = 3 if is_rotated else 1
        """Dimensions in which the model counts positions."""
        self._takes = inspect.signature(checkpoint.network.forward).parameters
        self._items: WeakValueDictionary[str, Media] = WeakValueDictionary()
        self._own_entries: WeakKeyDictionary[KVScope, dict[str, EncoderEntry]] = WeakKeyDictionary()
        """Entries of each scope, by the digests of their items."""
        self._lock = threading.Lock()
        self._mark = self._chosen_mark()
        self.marks = frozenset({self._mark})
        self._in_one_piece = False
        """An item is right only in the pass that begins the text: attention in it runs both ways."""
        self._probe()

    @classmethod
    def load(
        cls,
        name: str | Path,
        device: str | None = None,
        dtype: str | None = None,
        kv: str | KVCacheConfig | None = None,
    ) -> MultimodalModel:
        """Model from a folder, or by its name on the model hub. The encoder cache is the one that the environment
        configures (`LMCACHE_CONFIG_FILE`, `LMCACHE_EC_*`), else 5 GiB of memory. Prints nothing."""
        with loading(str(name)):
            checkpoint = Checkpoint.load(str(name), device, dtype, multimodal=True)
            return cls(checkpoint, Path(checkpoint.folder), kv=kv)

    @property
    def kv(self) -> KVCacheEngine | None:
        """Engine that keeps prompts on disk or on a server; None without one."""
        return self._rows.engine

    @property
    def encoder_calls(self) -> int:
        """Calls of an encoder since the model was loaded, without those that probe it."""
        return self.encoding.encoder_calls

    @property
    def decodes(self) -> int:
        """Items that were decoded and preprocessed."""
        return self.encoding.decodes

    def show(self, item: Media) -> tuple[int, ...]:
        """See `Scorer.show`."""
        if item.modality not in self.encoding.modalities:
            kinds = " and ".join(sorted(self.encoding.modalities))
            raise ModelError(
                f"{self.name} cannot be shown {article(item.modality)}", span=item.span, hint=f"it takes {kinds}"
            )
        self._items[item.digest] = item
        return self._mark, *bytes.fromhex(item.digest)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[Row]]:
        """See `Scorer.score`. One sequence after the other, in a thread, so that the event loop stays free."""
        jobs = [request.checked(self.name, 1 << 62) for request in requests]
        items = [self._items_in(ids) for ids, _ in jobs]  # held until the thread has them
        return await asyncio.to_thread(self._score, jobs, items, requests)

    def logits(
        self,
        ids: tuple[int, ...],
        ends: Sequence[int],
        items: dict[str, Media] | None = None,
        counts: PassCounts | None = None,
        scope: KVScope | None = None,
    ) -> torch.Tensor:
        """Logits after each of these lengths of a path, `[ends, vocabulary]`. `items` are those of the path."""
        import torch

        with self._lock, torch.inference_mode():
            items = self._items_in(ids) if items is None else items
            entries = self._entries(list(items.values()), scope)
            whole = self._unfolded(ids, entries)
            return self._logits(whole, [int(whole.starts[end]) for end in sorted(set(ends))], counts, scope)

    def _score(
        self,
        jobs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
        items: Sequence[dict[str, Media]],
        requests: Sequence[ScoreRequest],
    ) -> list[list[Row]]:
        rows = []
        for (ids, ends), own, request in zip(jobs, items, requests, strict=True):
            wanted = sorted(set(ends))
            with within_memory(self.name, len(ids)):
                logits = self.logits(ids, wanted, own, request.counts, request.scope)
                found = dict(zip(wanted, rows_of(logits, self.name, len(self.tokenizer.vocabulary)), strict=True))
            rows.append([found[end] for end in ends])
        return rows

    # One pass -------------------------------------------------------------------------------------------------------

    def _logits(
        self, whole: Unfolded, ends: Sequence[int], counts: PassCounts | None = None, scope: KVScope | None = None
    ) -> torch.Tensor:
        """Logits after each of these numbers of unfolded tokens."""
        import torch

        if len(whole.tokens) > self.context_length:
            raise ModelError(
                f"the text is {len(whole.tokens)} tokens long, but {self.name} reads at most {self.context_length}",
                hint="show fewer or smaller items, or use a model with a longer context",
            )
        is_one = self._in_one_piece
        job = _MediaJob(whole.chain, tuple(ends), counts, scope, whole=whole, seen=self._seen, in_one_piece=is_one)
        self._rows.run([job])
        self._rows.settle()
        return torch.stack([job.rows[end] for end in ends])

    def _entries(self, items: list[Media], scope: KVScope | None = None) -> dict[str, EncoderEntry]:
        """Entry of each item, by its digest. Only unseen ones are decoded and encoded; in a scope, those that it has
        not seen."""
        if scope is not None:
            own = self._own_entries.setdefault(scope, {})
            new = [item for item in items if item.digest not in own]
            own.update(zip((item.digest for item in new), self.encoding.encode(new) if new else (), strict=True))
            return {item.digest: own[item.digest] for item in items}
        keys = [self.encoding.key(item) for item in items]
        device = self._network.device
        found = self.encoder.encoded(keys, lambda at: self.encoding.encode([items[one] for one in at]), device)
        return {item.digest: entry for item, entry in zip(items, found, strict=True)}

    def _unfolded(self, ids: tuple[int, ...], entries: dict[str, EncoderEntry]) -> Unfolded:
        """The path's tokens, each item being its span."""
        return unfolded(ids, self._mark, entries, self._axes)

    def _seen(self, whole: Unfolded, first: int, end: int) -> dict[str, Any]:
        """Inputs of the network: embeddings of the text, and those of the items in the places of their placeholders."""
        import torch

        device = self._network.device
        tokens = torch.from_numpy(whole.tokens[first:end]).to(device)
        embeds = self._network.get_input_embeddings()(tokens)
        is_placed = torch.zeros(len(tokens), dtype=torch.bool, device=device)
        for begin, entry in whole.items:
            if first <= begin < end:
                span = entry.tensors[TOKENS].to(device)
                marks = (span == self.encoding.image_token) if self.encoding.image_token is not None else span < 0
                if self.encoding.audio_token is not None:
                    marks |= span == self.encoding.audio_token
                slots = begin - first + marks.nonzero()[:, 0]
                embeds[slots] = entry.tensors[EMBEDDINGS].to(embeds)
                is_placed[slots] = True
        given: dict[str, Any] = {"inputs_embeds": embeds[None]}
        if self._axes > 1:
            given["position_ids"] = torch.from_numpy(whole.positions[:, None, first:end]).to(device)
        for name in ("token_type_ids", "mm_token_type_ids"):
            if name in self._takes and self._axes == 1 and is_placed.any():
                given[name] = is_placed.long()[None]
        return given

    # Items ----------------------------------------------------------------------------------------------------------

    def _items_in(self, ids: tuple[int, ...]) -> dict[str, Media]:
        """Items of a path, by their digests, in order."""
        found: dict[str, Media] = {}
        at = 0
        while at < len(ids):
            if ids[at] == self._mark:
                digest = bytes(ids[at + 1 : at + 1 + DIGEST_BYTES]).hex()
                if digest not in self._items:
                    raise ModelError(f"{self.name} was shown an item that nobody keeps any more")
                found[digest] = self._items[digest]
                at += DIGEST_BYTES
            at += 1
        return found

    def _chosen_mark(self) -> int:
        """Token id that stands on no path otherwise: it has no text."""
        vocabulary, ends = self.tokenizer.vocabulary, self.tokenizer.eos.union(self.tokenizer.bos)
        own = [self.encoding.image_token, self.encoding.audio_token]
        free = [token for token in own if token is not None and vocabulary[token] is None]
        free += [token for token, data in enumerate(vocabulary) if data is None and token not in ends][-1:]
        if not free or len(vocabulary) < 256:
            raise ModelError(f"{self.name} has no special token that could stand for an item")
        return free[0]

    def _probe(self) -> None:
        """Compares our pass with the network's own on a small picture and a short clip, a pass in two pieces with one,
        and a text with a shorter one.

        Raises ModelError for an architecture that needs more than embeddings in the places of an item.
        """
        import torch

        noise = np.random.default_rng(0)
        with torch.inference_mode():
            if "image" in self.encoding.modalities:
                from PIL import Image

                picture = Image.fromarray(noise.integers(0, 255, (84, 112, 3), dtype=np.uint8))
                inputs = self.encoding.picture_inputs([picture])[1]
                self._compare("picture", self.encoding.span([picture]), inputs, self.encoding.image_token)
            if "audio" in self.encoding.modalities:
                samples = noise.normal(0, 0.1, self.encoding.rate // 2).astype(np.float32)
                inputs = self.encoding.sound_inputs(samples)[1]
                self._compare("clip", self.encoding.sound(samples), inputs, self.encoding.audio_token)
        self._rows.forget()
        self.encoding.encoder_calls = 0

    def _compare(self, what: str, entry: EncoderEntry, inputs: dict[str, Any], mark: int | None) -> None:
        import torch

        text = next(token for token, data in enumerate(self.tokenizer.vocabulary) if data is not None)
        ids, entries = (text, text, self._mark, *bytes(DIGEST_BYTES), text, text), {"00" * DIGEST_BYTES: entry}
        whole, shortened = self._unfolded(ids, entries), self._unfolded(ids[:-1], entries)
        tokens = torch.from_numpy(whole.tokens)[None].to(self._network.device)
        given = {name: value.to(tokens.device) for name, value in inputs.items() if name in self._takes}
        types = torch.eq(tokens, mark or 0).long()
        given |= {name: types for name in ("token_type_ids", "mm_token_type_ids") if name in self._takes}
        own = self._network(input_ids=tokens, attention_mask=torch.ones_like(tokens), **given).logits[0]
        count = len(whole.tokens)
        ours, shorter = self._logits(whole, range(1, count + 1)), self._logits(shortened, range(1, count))
        if not (_close(own, ours) and _close(ours[:-1], shorter)):
            raise ModelError(
                f"{self.name} needs more of a {what} than embeddings in its place",
                hint="this architecture is not supported; use a LLaVA-, Gemma- or Qwen-VL-like model",
            )
        rest = self._logits(whole, range(3, count + 1))  # after two known tokens
        self._in_one_piece = self._in_one_piece or not _close(ours[2:], rest)


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return float((one - other).abs().max()) <= _NOISE * max(float(one.abs().max()), 1.0)
