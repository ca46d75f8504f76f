"""The long-lived owner: models, one tree per model, and what is shared between runs. Everything else is a value."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, finalize

from lmql_lite.cache.saved import SavedTrees
from lmql_lite.cache.token_cache import MemoryTrees, TokenCache
from lmql_lite.cache.tokens_file import TokensFile
from lmql_lite.cache.trie import Trie
from lmql_lite.errors import CacheError, InputError
from lmql_lite.models.base import Completer, Model, Spent
from lmql_lite.models.registry import load
from lmql_lite.program.ops import Program
from lmql_lite.runtime import events
from lmql_lite.runtime.backends import Backend, Desk, TextBackend, TokenBackend
from lmql_lite.runtime.environment import environment_of, evaluate, execute
from lmql_lite.runtime.interpreter import Run
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.settings import Settings, checked

DEFAULT_MODEL = "demo"

Trees = MemoryTrees | SavedTrees
Place = tuple[Backend, bool, bool]
"""Of a desk on some trees: the model, whether it only replays, and whether it guesses."""
Desks = WeakKeyDictionary[Trees, dict[Place, Desk]]
FileWishes = tuple[str, int, bool]
"""A file's real path, and what a `TokenCache` wishes besides: who wishes otherwise has trees of their own."""


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
            return wanted
        if wanted not in self._models:
            self._models[wanted] = load(wanted)
        return self._models[wanted]

    async def stream(
        self,
        program: Program,
        inputs: Mapping[str, Any],
        settings: Settings,
        model: str | Model | None = None,
    ) -> AsyncGenerator[events.Event, None]:
        """One run, event by event. Raises the errors of the package, and the query's own exceptions as they are."""
        environment = environment_of(program, inputs)
        for let in program.prologue:
            await execute(let.code, environment)
        header = {option.name: await evaluate(option.value, environment) for option in program.options}
        spans = {option.name: option.span for option in program.options}
        wishes = settings.over(checked({"decoder": program.decoder, **header}, spans))
        if model is None and program.model is not None:
            model = await evaluate(program.model.value, environment)
        budget, sampling = wishes.budget, wishes.sampling()
        backend, spent = await self._backend(self.model(model))
        if wishes.is_isolated:
            alone, ledger = backend.desk(Trie(), speculate=False, replay=False), Ledger(1, budget)
            ledger.learn(spent)
            writer = alone.writer(ledger, sampling, isolated=True)
            async with aclosing(Run(program, environment, wishes, sampling, writer, ledger).stream()) as stream:
                async for event in stream:
                    yield event
            return
        trees = await self._trees(wishes)
        fresh = None
        if wishes.cache_mode == "refresh":  # on a tree of its own nothing is known
            fresh = Trie(trees.max_bytes)
            fresh.record()
        ledger = Ledger(next(trees.runs), budget)
        ledger.learn(spent)
        writer = self._desk(backend, wishes, trees, fresh).writer(ledger, sampling, isolated=False)
        run = Run(program, environment, wishes, sampling, writer, ledger)
        is_kept = wishes.cache_mode in ("ro", "replay")
        told: set[str] = set()
        try:
            async with aclosing(run.stream()) as stream:
                async for event in stream:
                    if isinstance(event, events.Finished):
                        if not is_kept:
                            is_kept = True
                            await _keep(trees, backend, fresh)
                        event = events.Finished(replace(event.result, notices=trees.notices))
                    for notice in trees.notices:
                        if notice not in told and not isinstance(event, events.Started):
                            told.add(notice)
                            yield events.Notice(notice)
                    yield event
        finally:
            if not is_kept:  # what the model said before an error has been paid for too
                await _keep(trees, backend, fresh)

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
        place = (os.path.realpath(cache.path), cache.max_bytes, cache.durable)
        saved = self._files.get(place)
        if saved is None:
            if reads_only and not os.path.exists(place[0]):
                raise CacheError(
                    f"there is no file {os.fspath(cache.path)!r} to read",
                    hint="run once with cache_mode='rw' to make it",
                )
            file = await TokensFile.open(cache.path, durable=cache.durable)
            saved = SavedTrees(file, cache.max_bytes)
            finalize(saved, file.close_at_once)
            saved = self._files.setdefault(place, saved)  # of runs that opened it at once the first one's counts
        await saved.follow()
        return saved

    def _desk(self, backend: Backend, wishes: Settings, trees: Trees, fresh: Trie | None) -> Desk:
        replay, speculate = wishes.cache_mode == "replay", wishes.speculate is not False
        if fresh is not None:
            return backend.desk(fresh, speculate=speculate, replay=False)
        here = self._desks.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())
        desks, place = here.setdefault(trees, {}), (backend, replay, speculate)
        if place not in desks:
            desks[place] = backend.desk(trees.tree(backend.fingerprint), speculate=speculate, replay=replay)
        return desks[place]

    async def _backend(self, model: Model) -> tuple[Backend, Spent | None]:
        """What is kept of a model, and what it cost to find out what it can do."""
        if isinstance(model, Completer):
            endpoint = await model.meet()
            if model not in self._servers:
                self._servers[model] = TextBackend(model, endpoint)
            return self._servers[model], endpoint.spent
        if model.fingerprint not in self._backends:
            self._backends[model.fingerprint] = TokenBackend(model)
        return self._backends[model.fingerprint], None


async def _keep(trees: Trees, backend: Backend, fresh: Trie | None) -> None:
    """What a run learned is written where it is kept; what it learned on a `fresh` tree replaces what was known."""
    if fresh is not None:
        trees.tree(backend.fingerprint).overwrite(fresh.changes())
    await trees.save(backend.fingerprint, backend.name, backend.vocabulary_size)
