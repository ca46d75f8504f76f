"""The long-lived owner: models, one tree per model, and what is shared between runs. Everything else is a value."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, finalize

from lmql_lite.cache.sampling import seeds
from lmql_lite.cache.saved import SavedTrees
from lmql_lite.cache.token_cache import MemoryTrees, TokenCache
from lmql_lite.cache.tokens_file import TokensFile
from lmql_lite.cache.trie import Trie
from lmql_lite.errors import CacheError, InputError, ModelError
from lmql_lite.models.base import Completer, Model, Spent
from lmql_lite.models.registry import load
from lmql_lite.program.ops import Program
from lmql_lite.runtime import events
from lmql_lite.runtime.backends import Backend, Desk, TextBackend, TokenBackend
from lmql_lite.runtime.beams import Beams
from lmql_lite.runtime.environment import environment_of, evaluate
from lmql_lite.runtime.header import header
from lmql_lite.runtime.interpreter import Run
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.nested import NestedCall
from lmql_lite.runtime.result import Result
from lmql_lite.runtime.samples import together
from lmql_lite.runtime.settings import Settings
from lmql_lite.runtime.shown.trace import Trace, trace_to, traced
from lmql_lite.runtime.texts import acquaintance

DEFAULT_MODEL = "demo"

Trees = MemoryTrees | SavedTrees
Place = tuple[Backend, bool, bool]
"""Of a desk on some trees: the model, whether it only replays, and whether it guesses."""
Desks = WeakKeyDictionary[Trees, dict[Place, Desk]]
FileWishes = tuple[str, int, bool, bool]
"""A file's real path, what a `TokenCache` wishes besides, and whether the file is only read: who wishes otherwise has
trees of their own."""


class Session:
    """Runs of one session share its models and, for each model, one token tree.

    Threads and event loops may share a session; questions in flight are shared within one loop (S28).
    """

    def __init__(self, model: str | Model = DEFAULT_MODEL) -> None:
        self._default = model
        self._models: dict[str, Model] = {}
        self._memory = MemoryTrees()
        self._backends: dict[str, Backend] = {}
        """Of models in this process, by fingerprint: one is as good as the other."""
        self._servers: dict[Completer, Backend] = {}
        self._files: dict[FileWishes, SavedTrees] = {}
        self._desks: WeakKeyDictionary[asyncio.AbstractEventLoop, Desks] = WeakKeyDictionary()

    def model(self, model: str | Model | None) -> Model:
        """A model by its id, loaded once; a model object is taken as it is. Raises ModelError."""
        wanted = self._default if model is None else model
        if not isinstance(wanted, str):
            if isinstance(wanted, type) or not (isinstance(wanted, Completer) or hasattr(wanted, "fingerprint")):
                hint = 'give its name, such as model="demo", or a model object such as lq.model("demo")'
                raise ModelError(f"{wanted!r} is no model", hint=hint)
            return wanted
        if wanted not in self._models:
            self._models[wanted] = load(wanted)
        return self._models[wanted]

    def stream(
        self,
        program: Program,
        inputs: Mapping[str, Any],
        settings: Settings,
        model: str | Model | None = None,
    ) -> AsyncGenerator[events.Batch, None]:
        """One run: its events, in batches. Raises the errors of the package, and the query's own exceptions as they
        are."""
        if settings.trace is None:
            return self._stream(program, inputs, settings, model, None, [])
        trace = trace_to(settings.trace)
        return traced(self._stream(program, inputs, settings, model, trace, []), trace, settings.trace)

    async def _stream(
        self,
        program: Program,
        inputs: Mapping[str, Any],
        settings: Settings,
        model: str | Model | None,
        trace: Trace | None,
        purse: list[Ledger],
        before: str = "",
    ) -> AsyncGenerator[events.Batch, None]:
        """`before` is text that the query goes on with; runs with one `purse` spend from one budget."""
        environment = environment_of(program, inputs)
        wishes = settings.over(await header(program, environment))
        if trace is not None:
            trace.wish(wishes)
        if model is None and program.model is not None:
            model = await evaluate(program.model.value, environment)
        trees = None if wishes.is_isolated else await self._trees(wishes)
        here = self.model(model)
        if wishes.has_beams and isinstance(here, Completer):
            raise InputError(
                f"{wishes.decoder_name} weighs every token that may come next, and {here.name} is behind an API",
                hint=f"write sample(n={wishes.results}) for as many results, or use a model in this process",
            )
        backend, spent = await self._backend(here, None if wishes.cache_mode == "refresh" else trees)
        fresh = None
        if trees is not None and wishes.cache_mode == "refresh":  # on a tree of its own nothing is known
            fresh = Trie(trees.max_bytes)
            fresh.record()
        sampling, budget, runs = wishes.sampling(), wishes.budget, list[Run]()
        for seed in seeds(sampling.seed, 1 if wishes.has_beams else wishes.results):
            if runs:
                environment = environment_of(program, inputs)
                await header(program, environment)
            ledger = Ledger(next(trees.runs) if trees else 1, budget, purse, trace.calls if trace else None)
            if not runs:
                ledger.learn(spent)
            desk = self._desk(backend, wishes, trees, fresh)
            writer = desk.writer(ledger, replace(sampling, seed=seed), isolated=trees is None)
            elsewhere = partial(self._elsewhere, here, trace, purse)
            run = Beams if wishes.has_beams else Run
            run_sampling = replace(sampling, seed=seed)
            runs.append(run(program, environment, wishes, run_sampling, writer, elsewhere, before))
        async with aclosing(together(runs, at_once=not budget.counts_tokens)) as stream:
            if trees is None:
                async for batch in stream:
                    yield batch
                return
            async with aclosing(_kept(stream, wishes, trees, backend, fresh)) as kept:
                async for batch in kept:
                    yield batch

    async def _elsewhere(
        self,
        here: Model,
        trace: Trace | None,
        purse: list[Ledger],
        nested: NestedCall,
        settings: Settings,
        before: str,
    ) -> Result | None:
        """What a query with a model of its own says behind this text; None where that is the model which is here."""
        model, wished = nested.model, nested.program.model
        if model is None and wished is not None:
            environment = environment_of(nested.program, nested.inputs)
            await header(nested.program, environment)
            model = await evaluate(wished.value, environment)
        if model is None or self.model(model) is here:
            return None
        settings = replace(settings, n=None, decoder="argmax" if settings.has_beams else settings.decoder)
        stream = self._stream(nested.program, nested.inputs, settings, model, trace, purse, before)
        async with aclosing(stream):
            async for last, *_ in stream:
                if isinstance(last, events.Finished):
                    return last.result
        raise AssertionError("a run ends with Finished or raises")

    async def _trees(self, wishes: Settings) -> Trees:
        """Where the run's trees are: memory, or a file with what others have written. Raises CacheError where it is
        none."""
        cache, reads_only = wishes.cache, wishes.cache_mode in ("ro", "replay")
        if not isinstance(cache, TokenCache) or cache.path is None:
            if reads_only:
                raise InputError(
                    f"cache_mode={wishes.cache_mode!r} reads a file, and none is named", hint='add cache="x.tokens"'
                )
            return cache.trees if isinstance(cache, TokenCache) else self._memory
        place = (os.path.realpath(cache.path), cache.max_bytes, cache.durable, reads_only)
        saved = self._files.get(place)
        if saved is None:
            if reads_only and not os.path.exists(place[0]):
                raise CacheError(
                    f"there is no file {os.fspath(cache.path)!r} to read",
                    hint="run once with cache_mode='rw' to make it",
                )
            file = await TokensFile.open(cache.path, durable=cache.durable)
            saved = SavedTrees(file, cache.max_bytes, reads_only=reads_only)
            finalize(saved, file.close_at_once)
            saved = self._files.setdefault(place, saved)  # of runs that opened it at once the first one's counts
        await saved.follow()
        return saved

    def _desk(self, backend: Backend, wishes: Settings, trees: Trees | None, fresh: Trie | None) -> Desk:
        if trees is None:
            return backend.desk(Trie(), speculate=False, replay=False)
        replay, speculate = wishes.cache_mode == "replay", wishes.speculate is not False
        if fresh is not None:
            return backend.desk(fresh, speculate=speculate, replay=False)
        here = self._desks.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())
        desks, place = here.setdefault(trees, {}), (backend, replay, speculate)
        if place not in desks:
            desks[place] = backend.desk(trees.tree(backend.fingerprint), speculate=speculate, replay=replay)
        return desks[place]

    async def _backend(self, model: Model, trees: Trees | None) -> tuple[Backend, Spent | None]:
        """What is kept of a model, and what it cost to find out what it can do."""
        if isinstance(model, Completer):
            endpoint = await model.meet(acquaintance.known(trees, model) if trees else None)
            known = self._servers.get(model)
            if known is None or known.fingerprint != endpoint.fingerprint:
                known = self._servers[model] = TextBackend(model, endpoint)
            return known, endpoint.spent
        if model.fingerprint not in self._backends:
            self._backends[model.fingerprint] = TokenBackend(model)
        return self._backends[model.fingerprint], None


async def _kept(
    stream: AsyncGenerator[events.Batch, None], wishes: Settings, trees: Trees, backend: Backend, fresh: Trie | None
) -> AsyncGenerator[events.Batch, None]:
    """The events of a run whose facts are kept: before the last one they are (S34); with what is to be said of that."""
    is_kept = wishes.cache_mode in ("ro", "replay")
    told: set[str] = set()
    try:
        async for batch in stream:
            first = batch[0]
            if isinstance(first, events.Finished):
                if not is_kept:
                    is_kept = True
                    await _keep(trees, backend, fresh)
                batch = [first.noting(trees.notices)]
            for notice in trees.notices:
                if notice not in told and not isinstance(first, events.Started):
                    told.add(notice)
                    yield [events.Notice(notice)]
            yield batch
    finally:
        if not is_kept:  # what the model said before an error has been paid for too
            await _keep(trees, backend, fresh)


async def _keep(trees: Trees, backend: Backend, fresh: Trie | None) -> None:
    """What a run learned is written where it is kept; what it learned on a `fresh` tree replaces what was known."""
    if fresh is not None:
        trees.tree(backend.fingerprint).overwrite(fresh)
    await trees.save(backend.fingerprint, backend.name, backend.vocabulary_size)
    if isinstance(backend, TextBackend):
        await acquaintance.keep(trees, backend.completer)
