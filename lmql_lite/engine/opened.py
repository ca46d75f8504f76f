"""Runs of a query that are about to begin, with their model and their cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.cache.tokens.trees import ModelTrees
from lmql_lite.engine import events
from lmql_lite.engine.decode.decoder import Decoder
from lmql_lite.engine.generate.capability_cache import CapabilityCache
from lmql_lite.engine.generate.local import LocalModel
from lmql_lite.engine.generate.remote import RemoteModel
from lmql_lite.engine.recording import RecordedRun, Recording
from lmql_lite.engine.settings import Settings


@dataclass(frozen=True, slots=True)
class Opened:
    """Runs that are about to begin; `run` is the only one, or all together. `trees` are their cache, None if every hole
    asks anew. Entries of a `fresh` tree replace the known ones. `reads_only`: new entries are not stored. `sources` are
    the lists of notices of the cache and of a model that reuses blocks; notices may still be added to them."""

    run: Decoder
    settings: Settings
    model: LocalModel | RemoteModel
    trees: ModelTrees | None
    fresh: TokenTree | None
    reads_only: bool
    sources: list[Sequence[str]]
    capabilities: CapabilityCache

    def new_notices(self, shown: dict[str, None]) -> list[events.Notice]:
        """Notices that are not shown yet."""
        new = [notice for notices in self.sources for notice in notices if notice not in shown]
        shown.update(dict.fromkeys(new))
        return [events.Notice(notice) for notice in new]

    def recorded(self, recording: Recording) -> RecordedRun | None:
        """The record of these runs for a recording; None without a cache."""
        if self.trees is None:
            return None
        vocabulary = self.model.scorer.tokenizer.vocabulary if isinstance(self.model, LocalModel) else None
        return recording.run(self.trees.tree(self.model.fingerprint), self.model.fingerprint, vocabulary)

    async def keep(self) -> None:
        """Stores the new entries of the runs."""
        trees, model = self.trees, self.model
        assert trees is not None, "there is a cache"
        try:
            if self.fresh is not None:
                trees.tree(model.fingerprint).replace_with(self.fresh)
            await trees.save(model.fingerprint, model.name, model.vocabulary_size)
            if isinstance(model, RemoteModel):
                await self.capabilities.keep(trees, model.completer)
        finally:
            await trees.end()
