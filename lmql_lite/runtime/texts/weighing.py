"""What a server thinks of whole texts, where it tells: the options of a `distribution` hole, and of `context.score`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from lmql_lite.cache.texts import Said
from lmql_lite.cache.tree import Answer
from lmql_lite.runtime.choosing import Candidate
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.state import State
from lmql_lite.runtime.texts.frontier import TextFrontier
from lmql_lite.runtime.texts.path import TextPath

SCORED = 0
"""The token of an answer that is a score alone."""


class TextWeighing:
    """One request for all options that are not known; what it tells is kept as the answer to that very question."""

    def __init__(self, hole: str, path: TextPath, frontier: TextFrontier, ledger: Ledger, *, isolated: bool) -> None:
        self._hole = hole
        self._path = path
        self._frontier = frontier
        self._ledger = ledger
        self._isolated = isolated
        self._answers: list[Answer] = []

    def settle(self, state: State) -> State:
        return self._path.settle(self._path.answer(state))

    def spelled(self, state: State, texts: tuple[str, ...]) -> list[tuple[tuple[int, ...], int]]:
        """Not known: an option counts as one token."""
        return [((), 1) for _ in texts]

    async def weigh(self, state: State, left: list[Candidate]) -> tuple[float, ...]:
        return await self.scores(state, [candidate.text for candidate in left])

    async def scores(self, state: State, texts: Sequence[str]) -> tuple[float, ...]:
        """The log-probability of each text after a settled state."""
        tree, known = self._frontier.texts.tree, dict[str, Answer]()
        for text in () if self._isolated else texts:
            answer = tree.verdict(state.node, _question(text))
            if answer is not None:
                known[text] = answer
        unknown = [text for text in texts if text not in known]
        for text, logprob in zip(unknown, await self._frontier.score(state.node, unknown, self._ledger), strict=True):
            told = Answer(SCORED, float(np.float32(logprob)), self._ledger.run)  # as a file keeps it
            known[text] = told if self._isolated else tree.add_verdict(state.node, _question(text), told)
        self._answers = [known[text] for text in texts]
        return tuple(answer.logprob for answer in self._answers)

    def path_hash(self, state: State) -> int:
        return self._frontier.texts.tree.path_hash(state.node)

    def force(self, state: State, text: str) -> State:
        return self._path.force(state, text.encode(), self._hole)

    def insert(self, state: State, at: int, text: str) -> State:
        answer = self._answers[at]
        return self._path.choose(state, Said(text.encode(), answer.logprob, answer.run), self._hole)


def _question(text: str) -> bytes:
    return hashlib.blake2b(b"score\0" + text.encode(), digest_size=16).digest()
