"""Explanation of a miss: a run that never asks its model, and goes as far as a `.tokens` file knows it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from lmql_lite.api import Query
from lmql_lite.apps.terminal import counted
from lmql_lite.cache.byte_tree import TURNS
from lmql_lite.cache.file_contents import ModelEntries, fingerprint_shown, model_shown, read_file
from lmql_lite.cache.model_trees import ModelTrees
from lmql_lite.cache.node_table import ROOT
from lmql_lite.cache.token_text import BYTES, Difference, Vocabulary, difference, size_shown
from lmql_lite.engine import events
from lmql_lite.engine.generate.remote_scheduler import GO_ON
from lmql_lite.engine.session import Session
from lmql_lite.engine.settings import Settings
from lmql_lite.errors import ModelError
from lmql_lite.models.base import (
    Capabilities,
    Completer,
    CompletionRequest,
    Model,
    Prompt,
    PromptTurn,
    Scored,
    Scorer,
    ScoreRequest,
    StreamPiece,
    as_model,
)
from lmql_lite.tokens import Source


class Unasked:
    """Model that is never asked: it fails, and records the `path` at which it would have been asked. `unit` names what
    a node of its tree is.
    """

    def __init__(self, name: str, fingerprint: str, vocabulary: Vocabulary, unit: str) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self.vocabulary = vocabulary
        self.unit = unit
        self.path: tuple[int, ...] | None = None

    def fail(self, path: tuple[int, ...]) -> NoReturn:
        if self.path is None:
            self.path = path
        raise ModelError(f"{self.name} is not asked")


class UnaskedScorer(Unasked):
    def __init__(self, scorer: Scorer) -> None:
        super().__init__(scorer.name, scorer.fingerprint, scorer.tokenizer.vocabulary, "token")
        self.tokenizer = scorer.tokenizer
        self.context_length = scorer.context_length

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[NDArray[np.float32]]]:
        first = requests[0]
        self.fail((first.prefix + first.new_ids)[: len(first.prefix) + first.positions[0]])


class UnaskedServer(Unasked):
    """Server that is only probed for its capabilities."""

    def __init__(self, completer: Completer) -> None:
        super().__init__(completer.name, "", BYTES, "byte")
        self._completer = completer

    @property
    def place(self) -> str:
        return self._completer.place

    async def probe(self, known: Capabilities | None = None) -> Capabilities:
        endpoint = await self._completer.probe(known)
        self.fingerprint = endpoint.fingerprint
        return endpoint

    async def stream(self, prompt: Prompt, request: CompletionRequest) -> AsyncGenerator[StreamPiece, None]:
        self.fail(_path(prompt))
        yield StreamPiece(b"")

    async def score(self, prompt: Prompt, options: Sequence[str]) -> Scored:
        self.fail(_path(prompt))


def _path(prompt: Prompt) -> tuple[int, ...]:
    """A prompt as a path of the tree that it was made from."""
    if len(prompt) > 1 and prompt[-1] == PromptTurn("user", GO_ON):
        prompt = prompt[:-1]
    path: list[int] = []
    for turn in prompt:
        path += [TURNS[turn.role]] if turn.role is not None else []
        path += turn.text.encode()
    if prompt[-1].role == "user":  # the answer is about to begin
        path.append(TURNS["assistant"])
    return tuple(path)


class UnaskedSession(Session):
    """For one run."""

    unasked: UnaskedScorer | UnaskedServer | None = None
    trees: ModelTrees | None = None

    async def _trees(self, settings: Settings) -> ModelTrees:
        self.trees = await super()._trees(settings)
        return self.trees

    def written(self, node: int) -> int:
        """The time at which the entry that the run read at a node was written: unix seconds, 0 if it is not known."""
        assert self.trees is not None and self.unasked is not None, "a run has begun"
        return self.trees.tree(self.unasked.fingerprint).written(node) or 0

    def model(self, model: str | Model | None) -> Model:
        if self.unasked is None:
            found = super().model(model)
            self.unasked = UnaskedServer(found) if isinstance(found, Completer) else UnaskedScorer(found)
        return as_model(self.unasked)


@dataclass(slots=True)
class Filled:
    """A hole, with the numbers of tokens that the file knows and that conditions force. `is_whole`: it has its value.
    `oldest` and `newest` are the write times of the entries that were read (S4), in unix seconds; 0 if unknown.
    """

    name: str
    line: int
    known: int = 0
    forced: int = 0
    oldest: int = 0
    newest: int = 0
    is_whole: bool = False

    def take(self, source: Source, written: int) -> None:
        """Counts a token, whose entry was written at that time."""
        self.forced += source == "forced"
        if source == "cache":
            self.oldest = min(self.oldest, written) if self.known else written
            self.newest = max(self.newest, written)
            self.known += 1


@dataclass(frozen=True, slots=True)
class FirstMiss:
    """The first miss. `difference` is the place where the path leaves the file's tree. Reasons: `model`: the file knows
    nothing of this model; `prefix`: the text before differs; `question`: the place is known, but under other
    conditions, sampling or seed.
    """

    reason: Literal["model", "prefix", "question"]
    difference: Difference
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunExplanation:
    """A run as far as the file knows it. `miss` is None if the file knows all of it."""

    model: str
    fingerprint: str
    seed: int
    is_sampled: bool
    holes: tuple[Filled, ...]
    miss: FirstMiss | None
    vocabulary: Vocabulary


async def explained(
    query: Query, inputs: Mapping[str, Any], file: str, *, model: str | Model | None, seed: int | None
) -> RunExplanation:
    """Runs the query up to the first thing that the file does not know. Raises what a run raises, and CacheError as
    `read_file`."""
    known, session = read_file(file).by_model, UnaskedSession()
    holes: dict[str, list[Filled]] = {}
    order: list[Filled] = []
    started: events.Started | None = None
    stream = query.stream(inputs, model=model, cache=file, cache_mode="ro", seed=seed, speculate=False, session=session)
    try:
        async for event in stream:
            match event:
                case events.Started():
                    started = event
                case events.HoleOpened(name, span):
                    order.append(Filled(name, span.line))
                    holes.setdefault(name, []).append(order[-1])
                case events.HoleClosed(name):
                    holes[name][-1].is_whole = True
                case events.TokenMoved(token, _, parent) if token.fate == "kept" and token.hole in holes:
                    holes[token.hole][-1].take(token.source, session.written(parent))
    except ModelError:
        if session.unasked is None or session.unasked.path is None:
            raise
    unasked = session.unasked
    assert unasked is not None and started is not None, "a run begins with Started"
    miss = None if unasked.path is None else _miss(known, unasked, unasked.path, started, file)
    sampled = started.decoder == "sample"
    return RunExplanation(
        unasked.name, unasked.fingerprint, started.seed, sampled, tuple(order), miss, unasked.vocabulary
    )


def _miss(
    known: Mapping[str, ModelEntries], unasked: Unasked, path: tuple[int, ...], started: events.Started, file: str
) -> FirstMiss:
    mine, vocabulary = known.get(unasked.fingerprint), unasked.vocabulary
    if mine is None or not len(mine):
        return FirstMiss(
            "model", Difference((), path[0] if path else None, ()), tuple(_other_models(known, unasked, file))
        )
    found = difference(mine.tree.children, path)
    node, entries = mine.tree.walk(ROOT, path)[0], mine.entries
    if found.asked is not None or not (entries.nodes == node).any():
        return FirstMiss("prefix", found, (found.describe(vocabulary, unasked.unit),))
    greedy, sampled = entries.greedy.nodes == node, entries.sampled.nodes == node
    sizes = entries.topks.sizes[entries.topks.nodes == node].tolist()
    seeds = sorted(set(entries.sampled.seeds[sampled].tolist()))
    free = "what is said without conditions"
    stored = [f"the scores of its {many} best tokens" if unasked.unit == "token" else free for many in sizes[:1]]
    if greedy.any():
        stored.append(f"{counted(int(greedy.sum()), 'answer')} under other conditions")
    if sampled.any():
        stored.append(f"answers sampled under seed {', '.join(map(str, seeds[:5]))}{' and others' * (len(seeds) > 5)}")
    wanted = f"the conditions and seed {started.seed}" if started.decoder == "sample" else "the conditions"
    place = found.place(vocabulary, unasked.unit)
    sentence = f"{place}: stored {' and '.join(stored)}, and that does not decide {wanted} of this hole"
    return FirstMiss("question", found, (sentence,))


def _other_models(known: Mapping[str, ModelEntries], unasked: Unasked, file: str) -> list[str]:
    size = "bytes" if unasked.unit == "byte" else f"{len(unasked.vocabulary):,} tokens"
    asked = f"{unasked.name} ({fingerprint_shown(unasked.fingerprint)}, {size})"
    others = [one.model for one in known.values() if len(one)]
    if not others:
        return [f"{file} holds nothing yet"]
    sentences = [f"{file} holds nothing of {asked}"]
    for model in others:
        also = ": the name is the same, weights or tokenizer are not" if model.name == unasked.name else ""
        sentences.append(f"it knows {model_shown(model)}, {size_shown(model.vocabulary_size)}{also}")
    return sentences
