"""The long-lived owner: models, one tree per model, and what is shared between runs. Everything else is a value."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from lmql_lite.cache.trie import Trie
from lmql_lite.constraints.hole import Engine
from lmql_lite.constraints.vocabulary import Vocabulary
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
NO_CACHE_FILE = (
    "the cache file {!r} is not written in this version: what is learned is shared by the runs of this process and "
    "then forgotten"
)


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
        self._frontiers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Frontier]] = WeakKeyDictionary()

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
        isolated = wishes.cache is False
        frontier = Frontier(scorer, Trie()) if isolated else self._frontier(scorer)
        notices = (NO_CACHE_FILE.format(wishes.cache),) if isinstance(wishes.cache, str) else ()
        run = Run(program, environment, wishes, frontier, self._engine(scorer), ledger, isolated, notices)
        async for event in run.stream():
            yield event

    def _frontier(self, scorer: Scorer) -> Frontier:
        frontiers = self._frontiers.setdefault(asyncio.get_running_loop(), {})
        if scorer.fingerprint not in frontiers:
            tree = self._trees.setdefault(scorer.fingerprint, Trie())
            frontiers[scorer.fingerprint] = Frontier(scorer, tree)
        return frontiers[scorer.fingerprint]

    def _engine(self, scorer: Scorer) -> Engine:
        engine = self._engines.get(scorer.fingerprint)
        if engine is None:
            vocabulary = Vocabulary(scorer.tokenizer.vocabulary, scorer.tokenizer.eos)
            engine = self._engines.setdefault(scorer.fingerprint, Engine(vocabulary))
        return engine
