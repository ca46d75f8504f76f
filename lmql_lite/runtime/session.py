"""The long-lived owner: models, one tree per model, and what is shared between runs. Everything else is a value."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, finalize

from lmql_lite.cache.saved import SavedTrees
from lmql_lite.cache.tokens_file import TokensFile
from lmql_lite.cache.trie import Trie
from lmql_lite.constraints.hole import Engine
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.errors import CacheError, InputError
from lmql_lite.models.base import Scorer
from lmql_lite.models.registry import load
from lmql_lite.program.ops import Program
from lmql_lite.runtime import events
from lmql_lite.runtime.environment import environment_of, evaluate, execute
from lmql_lite.runtime.frontier import Frontier
from lmql_lite.runtime.interpreter import Run
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.settings import Settings, checked

DEFAULT_MODEL = "demo"

Place = tuple[str, SavedTrees | None, bool]
"""Of a frontier: the model's fingerprint, the file that keeps its tree, and whether it only replays."""


class Session:
    """Runs of one session share its models and, for each model, one token tree.

    Threads and event loops may share a session; questions in flight are shared within one loop (S28).
    """

    def __init__(self, model: str | Scorer = DEFAULT_MODEL) -> None:
        self._default = model
        self._runs = itertools.count(1)
        self._models: dict[str, Scorer] = {}
        self._trees: dict[str, Trie] = {}
        self._engines: dict[str, Engine] = {}
        self._files: dict[str, SavedTrees] = {}
        self._frontiers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Place, Frontier]] = WeakKeyDictionary()

    def model(self, model: str | Scorer | None) -> Scorer:
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
        model: str | Scorer | None = None,
    ) -> AsyncIterator[events.Event]:
        """One run, event by event. Raises the errors of the package, and the query's own exceptions as they are."""
        environment = environment_of(program, inputs)
        for let in program.prologue:
            await execute(let.code, environment)
        header = {option.name: await evaluate(option.value, environment) for option in program.options}
        spans = {option.name: option.span for option in program.options}
        wishes = settings.over(checked({"decoder": program.decoder, **header}, spans))
        if model is None and program.model is not None:
            model = await evaluate(program.model.value, environment)
        scorer = self.model(model)
        ledger = Ledger(next(self._runs))
        engine = self._engine(scorer)
        if wishes.is_isolated:
            run = Run(program, environment, wishes, Frontier(scorer, Trie()), engine, ledger, isolated=True)
            async for event in run.stream():
                yield event
            return
        saved = await self._saved(wishes)
        run = Run(program, environment, wishes, self._frontier(scorer, wishes, saved), engine, ledger, isolated=False)
        is_kept = saved is None or wishes.cache_mode in ("ro", "replay")
        told: set[str] = set()
        try:
            async for event in run.stream():
                if isinstance(event, events.Finished) and saved is not None:
                    if not is_kept:
                        is_kept = True
                        await self._save(saved, scorer)
                    event = events.Finished(replace(event.result, notices=saved.notices))
                for notice in saved.notices if saved is not None else ():
                    if notice not in told and not isinstance(event, events.Started):
                        told.add(notice)
                        yield events.Notice(notice)
                yield event
        finally:
            if saved is not None and not is_kept:  # what the model said before an error has been paid for too
                await self._save(saved, scorer)

    async def _saved(self, wishes: Settings) -> SavedTrees | None:
        """The trees of the run's file, with what others have written. Raises CacheError where it is none."""
        if not isinstance(wishes.cache, str):
            if wishes.cache_mode in ("ro", "replay"):
                raise InputError(
                    f"cache_mode={wishes.cache_mode!r} reads a file, and none is named", hint='add cache="x.tokens"'
                )
            return None
        path = os.path.realpath(wishes.cache)
        saved = self._files.get(path)
        if saved is None:
            if wishes.cache_mode in ("ro", "replay") and not os.path.exists(path):
                raise CacheError(
                    f"there is no file {wishes.cache!r} to read", hint="run once with cache_mode='rw' to make it"
                )
            file = await TokensFile.open(wishes.cache)
            saved = self._files.setdefault(path, SavedTrees(file))
            finalize(saved, file.close_at_once)
        await saved.follow()
        return saved

    async def _save(self, saved: SavedTrees, scorer: Scorer) -> None:
        await saved.save(scorer.fingerprint, scorer.name, len(scorer.tokenizer.vocabulary))

    def _frontier(self, scorer: Scorer, wishes: Settings, saved: SavedTrees | None) -> Frontier:
        frontiers = self._frontiers.setdefault(asyncio.get_running_loop(), {})
        replay = wishes.cache_mode == "replay"
        place = (scorer.fingerprint, saved, replay)
        if place not in frontiers:
            if saved is not None:
                tree = saved.tree(scorer.fingerprint)
            else:
                tree = self._trees.setdefault(scorer.fingerprint, Trie())
            frontiers[place] = Frontier(scorer, tree, saved=saved is not None, replay=replay)
        return frontiers[place]

    def _engine(self, scorer: Scorer) -> Engine:
        engine = self._engines.get(scorer.fingerprint)
        if engine is None:
            vocabulary = Vocabulary(scorer.tokenizer.vocabulary, scorer.tokenizer.eos)
            engine = self._engines.setdefault(scorer.fingerprint, Engine(vocabulary))
        return engine
