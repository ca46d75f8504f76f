"""Session: models, one token tree per model, and schedulers, shared by its runs."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, repeat
from typing import Any
from weakref import WeakKeyDictionary

from lmql_lite.cache.kv.blocks import EXACT, BlockPolicy
from lmql_lite.cache.tokens.draws import seeds
from lmql_lite.cache.tokens.server import is_redis_url
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.cache.tokens.trees import ModelTrees, TokenCache
from lmql_lite.engine import events
from lmql_lite.engine.budget import Account, Budget
from lmql_lite.engine.calls import Calls
from lmql_lite.engine.capability_cache import CapabilityCache
from lmql_lite.engine.decode.decoder import Batches, decoding
from lmql_lite.engine.decode.sample import together
from lmql_lite.engine.environment import environment_of, evaluate
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.local import LocalModel
from lmql_lite.engine.recording import Recording
from lmql_lite.engine.run import Run
from lmql_lite.engine.server import ServerModel
from lmql_lite.engine.settings import Settings, header
from lmql_lite.errors import BudgetError, CacheError, InputError, ModelError
from lmql_lite.models.base import Capabilities, Completer, Model, Scorer, as_model
from lmql_lite.models.registry import load
from lmql_lite.program.ops import Program

DEMO = "demo"
UNNAMED = "no model was named, so this ran on demo, a toy; name one with --model, model= or LQ_MODEL"

SharedModel = LocalModel | ServerModel
"""A model with everything that its runs share."""
Schedulers = dict[SharedModel, Any]
"""Schedulers of one cache for one event loop (S28)."""
FileOptions = tuple[str, int, int | None, bool, bool]
"""The real path of a file, the options of its `TokenCache`, and True if it is only read. Each combination has its own
trees."""


class Session:
    """Runs of one session share its models and, for each model, one token tree.

    Threads and event loops may share a session; questions in flight are shared within one loop (S28).

    >>> session, model = lq.Session(), lq.ScriptedModel("Say: hi")
    >>> runs = [lq.run_sync('"Say:[X]"', model=model, session=session) for _ in range(2)]
    >>> runs[1].usage.forward_passes
    0
    """

    def __init__(self, model: str | Model | None = None) -> None:
        self.default = model
        """Model of runs that name none; None for that of LQ_MODEL, or else demo with a notice."""
        self.recording: Recording | None = None
        """Recording that replaces the caches of its runs; that of the default session is for all that have none."""
        self._models: dict[str, Model] = {}
        self._memory = ModelTrees()
        self._local: dict[str, LocalModel] = {}
        """Shared models by fingerprint; equal fingerprints are interchangeable."""
        self._servers: dict[Completer, ServerModel] = {}
        self._reused: WeakKeyDictionary[Model, dict[BlockPolicy, Scorer]] = WeakKeyDictionary()
        self._capabilities = CapabilityCache()
        self._files: dict[FileOptions, ModelTrees] = {}
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakKeyDictionary[ModelTrees, Schedulers]]
        self._loops = WeakKeyDictionary()

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases models, trees and files, whose memory becomes free when the last run that uses them ends.

        Cache files need no close, because every run writes its own entries. A later run loads again what it needs.
        """
        self._memory = ModelTrees()
        for held in (self._models, self._local, self._servers, self._files, self._loops):
            held.clear()

    @property
    def names_no_model(self) -> bool:
        """True if runs that name no model fall back to demo."""
        return self.default is None and not os.environ.get("LQ_MODEL")

    @property
    def written_files(self) -> tuple[str, ...]:
        """Real paths of the cache files that runs of this session have written."""
        return tuple(path for path, *_, reads_only in self._files if not reads_only)

    def model(self, model: str | Model | None) -> Model:
        """A model by its id, loaded once; a model object is returned as a Scorer or Completer. Raises ModelError."""
        wanted = (self.default or os.environ.get("LQ_MODEL") or DEMO) if model is None else model
        if not isinstance(wanted, str):
            return as_model(wanted)
        if wanted not in self._models:
            self._models[wanted] = load(wanted)
        return self._models[wanted]

    async def stream(
        self,
        program: Program,
        inputs: Mapping[str, Any],
        settings: Settings,
        model: str | Model | None = None,
        calls: Calls | None = None,
        account: Account | None = None,
    ) -> AsyncGenerator[events.Batch, None]:
        """Events of one run, in batches. `calls` collects the calls of models; runs with the same `account` share their
        limits. Raises errors of the package, and exceptions of the query unchanged.

        The entries of a run are stored before its last event (S34), which has the notices of the cache.
        """
        account = account or Account()
        is_unnamed = model is None and program.model is None and self.names_no_model and bool(program.holes)
        first = (UNNAMED,) if is_unnamed else ()
        opened = await self._open(program, inputs, settings, model, calls, account)
        first = (*first, *opened.settings.notices)
        is_kept, recording, shown = opened.reads_only, opened.recording, dict[str, None]()
        try:
            async with aclosing(opened.batches) as batches:
                async for batch in batches:
                    last = batch[-1]
                    if isinstance(last, events.Started):
                        yield [last, *map(events.Notice, first)]
                        continue
                    if isinstance(last, events.Finished) and not is_kept:
                        is_kept = True
                        await opened.keep()
                    new = dict.fromkeys(notice for source in opened.sources for notice in source if notice not in shown)
                    notices = list(map(events.Notice, new))
                    shown |= new
                    if isinstance(last, events.Finished):
                        for notice in notices:
                            yield [notice]
                        yield [last.noting((*first, *shown)) if first or shown else last]
                        continue
                    if recording is not None:
                        recording.see(batch)
                    yield [*notices, *batch]
        except CacheError as error:
            if recording is None:
                raise
            raise recording.stale(error) from None
        finally:
            if not is_kept:  # answers before an error are paid for too
                await opened.keep()

    async def _open(
        self,
        program: Program,
        inputs: Mapping[str, Any],
        settings: Settings,
        model: str | Model | None,
        calls: Calls | None,
        account: Account,
    ) -> Opened:
        """The runs of a query, one for each drawn result. They share one budget."""
        environment = environment_of(program, inputs)
        if settings.given or program.prologue or program.decoder or program.options:
            settings = settings.over(await header(program, environment))
        if (recording := self.recording or default_session().recording) is not None:
            settings = recording.over(settings)
        if calls is not None:
            calls.options = settings.given
        if model is None and program.model is not None:
            model = await evaluate(program.model.value, environment)
        trees = None if settings.is_isolated else await self._trees(settings, recording)
        own = found = self.model(model)
        if not getattr(found, "use_caches", True) and recording is None:
            settings, trees = settings.without_caches(), None
        if settings.has_beams and isinstance(found, Completer):
            raise InputError(
                f"{settings.decoder_name} needs the scores of all next tokens, but {found.name} is on a server",
                hint=f"write sample(n={settings.results}) for the same number of results, or use a local: model",
            )
        known = None if settings.cache_mode == "refresh" else trees
        replays = trees is not None and settings.cache_mode == "replay"
        first, budget = settings.sampling(), settings.budget
        count = 1 if settings.has_beams else settings.results
        speculates = trees is not None and settings.speculate and not replays
        ledgers = [
            Ledger(number, budget, account, calls, speculates=speculates, replays=replays)
            for number in islice(repeat(1) if trees is None else trees.runs, count)
        ]
        if settings.blocks != EXACT:
            found = self._reusing(found, BlockPolicy.parse(settings.blocks))
        entry: SharedModel | None = self._local.get(getattr(found, "fingerprint", ""))
        if entry is None:
            entry = await self._shared(found, known, ledgers[0], recording)
        fresh: TokenTree | None = None
        shared: Any = None
        if trees is not None and settings.cache_mode == "refresh":  # a fresh tree has no entries
            fresh = TokenTree(trees.max_bytes, records=True)
        elif trees is not None:  # the runs of a loop share a scheduler
            loop = self._loops.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())
            schedulers = loop.setdefault(trees, {})
            shared = schedulers.get(entry)
            if shared is None:
                shared = schedulers[entry] = entry.scheduler(trees.tree(entry.fingerprint))
        runs: list[Batches] = []

        def is_here(model: str | Model) -> bool:
            return self.model(model) == own

        for seed, ledger in zip((first.seed,) if count == 1 else seeds(first.seed, count), ledgers, strict=True):
            if runs:
                environment = environment_of(program, inputs)
                await header(program, environment)
            sampling = replace(first, seed=seed)
            scheduler: Any = shared or entry.scheduler(TokenTree() if fresh is None else fresh)
            generator = entry.generator(scheduler, ledger, settings, sampling)
            generator.record.number = len(runs)
            run = Run(program, environment, settings, sampling, generator, is_here, inputs)
            runs.append(decoding(settings.decoder_name)(run))
        batches = runs[0] if count == 1 else together(runs, at_once=not budget.counts_tokens)
        reads_only = trees is None or settings.cache_mode in ("ro", "replay")
        sources = [*(each.notices for each in ledgers), entry.notices]
        if trees is not None and trees.has_file:
            sources.append(trees.notices)
        elif isinstance(entry, LocalModel) and fresh is None:
            reads_only = True
        if trees is not None and not reads_only:
            trees.begin()
        if trees is None:
            recording = None
        if recording is not None:
            recording.names(entry.fingerprint, entry.vocabulary)
        return Opened(batches, settings, entry, trees, fresh, reads_only, sources, self._capabilities, recording)

    def _reusing(self, model: Model, policy: BlockPolicy) -> Model:
        """The model with block reuse by this policy. Raises ModelError if it does not support that."""
        known = self._reused.setdefault(model, {})
        if policy not in known:
            known[policy] = model.with_blocks(policy)
        return known[policy]

    async def _trees(self, settings: Settings, recording: Recording | None) -> ModelTrees:
        """The trees of a run: in memory, of a recording, or of a file with the latest entries of other processes.
        Raises CacheError for a file of another format."""
        if recording is not None:
            return await recording.trees()
        cache, reads_only = settings.cache, settings.cache_mode in ("ro", "replay")
        if not isinstance(cache, TokenCache) or cache.path is None:
            if reads_only:
                raise InputError(
                    f"cache_mode={settings.cache_mode!r} needs a cache file", hint='name one: cache="x.tokens"'
                )
            return cache.trees if isinstance(cache, TokenCache) else self._memory
        is_server = is_redis_url(cache.path)
        path = str(cache.path) if is_server else os.path.realpath(cache.path)
        place = (path, cache.max_bytes, cache.max_file_bytes, cache.durable, reads_only)
        saved = self._files.get(place)
        if saved is None:
            if reads_only and not is_server and not os.path.exists(path):
                raise CacheError(
                    f"{os.fspath(cache.path)!r} does not exist",
                    hint="run once with cache_mode='rw' to make it",
                )
            saved = await ModelTrees.open(
                cache.path,
                cache.max_bytes,
                durable=cache.durable,
                reads_only=reads_only,
                max_file_bytes=cache.max_file_bytes,
            )
            saved = self._files.setdefault(place, saved)  # runs that open it at once share the first result
        await saved.follow()
        return saved

    async def _shared(
        self, model: Model, trees: ModelTrees | None, ledger: Ledger, recording: Recording | None
    ) -> SharedModel:
        """A model with everything that its runs share. `ledger` pays for the probe; a replay does not probe."""
        if isinstance(model, Completer):
            earlier = self._capabilities.known(trees, model) if trees else None
            if ledger.replays and earlier is None and recording is not None:
                raise recording.stale(CacheError(f"it knows nothing of {model.place}"))
            found = earlier if ledger.replays else None
            capabilities = found or await ledger.probed(partial(model.probe, earlier))
            known = self._servers.get(model)
            if known is None or known.fingerprint != capabilities.fingerprint:
                known = self._servers[model] = ServerModel(model, capabilities)
            return known
        return self._local.setdefault(model.fingerprint, LocalModel(model))

    async def capabilities(self, model: Completer, settings: Settings) -> Capabilities | None:
        """Capabilities of a server if they are free; None if a probe would cost money."""
        recording = self.recording or default_session().recording
        trees = None if settings.is_isolated else await self._trees(settings, recording)
        try:
            return await Ledger(0, Budget(max_requests=0)).probed(
                partial(model.probe, self._capabilities.known(trees, model) if trees else None)
            )
        except BudgetError:
            return None


@dataclass(frozen=True, slots=True)
class Opened:
    """Runs that are about to begin, with the events of all of them. `trees` are their cache, None if every hole asks
    anew. Entries of a `fresh` tree replace the known ones. `reads_only`: new entries are not stored. `sources` are the
    lists of notices of the cache and of a model that reuses blocks. `recording` has what the runs read and write."""

    batches: Batches
    settings: Settings
    model: SharedModel
    trees: ModelTrees | None
    fresh: TokenTree | None
    reads_only: bool
    sources: list[Sequence[str]]
    capabilities: CapabilityCache
    recording: Recording | None

    async def keep(self) -> None:
        """Stores the new entries of the runs."""
        trees, model = self.trees, self.model
        assert trees is not None, "there is a cache"
        try:
            if self.fresh is not None:
                trees.tree(model.fingerprint).replace_with(self.fresh)
            await trees.save(model.fingerprint, model.name, model.vocabulary_size)
            if isinstance(model, ServerModel):
                await self.capabilities.keep(trees, model.completer)
        finally:
            await trees.end()


@functools.cache
def default_session() -> Session:
    """The session of all runs that name none (S28)."""
    return Session()


def configure(*, model: str | Model | None = None, base_url: str | None = None) -> None:
    """Sets the default model of the process, for runs that name no model in the call or the header and have no session.

    An id is loaded at once, with `base_url` as the address of its server. Without `model` the default is that of
    LQ_MODEL again. Raises ModelError.

    >>> lq.configure(model=lq.ScriptedModel("Say: hi"))
    >>> lq.run_sync('"Say:[X]"')["X"]
    ' hi'
    >>> lq.configure()
    """
    if isinstance(model, str):
        model = load(model, base_url=base_url)
    elif base_url is not None:
        raise ModelError("base_url= needs the id of a model on a server", hint='for example model="openai/NAME"')
    default_session().default = model
