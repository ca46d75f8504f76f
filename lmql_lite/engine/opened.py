"""Runs of a query that are about to begin, with their model and their cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lmql_lite.cache.model_trees import ModelTrees
from lmql_lite.cache.token_tree import TokenTree
from lmql_lite.engine import events
from lmql_lite.engine.decode.decoding import Decoding, Reading, numbered
from lmql_lite.engine.generate.capability_cache import CapabilityCache
from lmql_lite.engine.generate.local import LocalModel
from lmql_lite.engine.generate.remote import RemoteModel
from lmql_lite.engine.generate.remote_scheduler import ServerChanged
from lmql_lite.engine.recording import RecordedRun, Recording
from lmql_lite.engine.settings import Settings
from lmql_lite.errors import ModelError
from lmql_lite.program.ops import Program

ONCE = re.compile(r"\b(input|tools)\b")
"""Words of queries that must not run a second time: their questions to the user and their tool calls cannot be
undone."""


@dataclass(frozen=True, slots=True)
class Opened:
    """Runs that are about to begin; `run` is the only one, or all together. `trees` are their cache, None if every hole
    asks anew. Entries of a `fresh` tree replace the known ones. `reads_only`: new entries are not stored. `sources` are
    the lists of notices of the cache and of a model that reuses blocks; notices may still be added to them."""

    runs: list[Decoding]
    run: Reading
    settings: Settings
    model: LocalModel | RemoteModel
    trees: ModelTrees | None
    fresh: TokenTree | None
    reads_only: bool
    sources: list[Sequence[str]]
    capabilities: CapabilityCache
    number: int = 0
    """Number of the first branch; above 0 if these runs replace others that had read text of the model."""

    @property
    def has_read(self) -> bool:
        """True if a run has read text of the model."""
        return any(each.run.generator.ledger.has_read for each in self.runs)

    def given_up(self, error: ModelError, program: Program) -> list[events.Pruned]:
        """Events of the end of these runs, which others replace because the server has changed. There are none if these
        runs have read no text of the model.

        Raises the error if it has another cause, or if the query must not run a second time.
        """
        if not isinstance(error.__cause__, ServerChanged) or (self.has_read and ONCE.search(program.span.text)):
            raise error
        return [events.Pruned(each) for each in range(self.number, self.next_number)]

    @property
    def next_number(self) -> int:
        """Number of the first branch of runs that replace these."""
        return self.number + len(self.runs) if self.has_read else self.number

    def numbered(self, batch: events.Batch) -> events.Batch:
        """Events with the numbers of their branches."""
        return [numbered(event, getattr(event, "state", 0) + self.number) for event in batch]

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
        if self.fresh is not None:
            trees.tree(model.fingerprint).replace_with(self.fresh)
        await trees.save(model.fingerprint, model.name, model.vocabulary_size)
        if isinstance(model, RemoteModel):
            await self.capabilities.keep(trees, model.completer)
