"""Models that are asked nothing: each remembers the first thing that it would be asked, and fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.spelling import BYTES, Vocabulary
from lmql_lite.cache.texts import TURNS
from lmql_lite.errors import ModelError
from lmql_lite.models.base import Completer, Endpoint, Model, Piece, Prompt, Scored, Scorer, ScoreRequest, Turn, Wish
from lmql_lite.runtime.session import Session
from lmql_lite.runtime.texts.frontier import GO_ON
from lmql_lite.tokens import Token


class Unasked:
    """What both kinds have in common. `path` is where the model would be asked, from the root of its tree on.

    `unit` is what a node of the tree stands for, `start` the path of an empty text.
    """

    def __init__(self, name: str, fingerprint: str, vocabulary: Vocabulary, unit: str, start: tuple[int, ...]) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self.vocabulary = vocabulary
        self.unit = unit
        self.start = start
        self.path: tuple[int, ...] | None = None

    def fail(self, path: tuple[int, ...]) -> NoReturn:
        if self.path is None:
            self.path = path
        raise ModelError(f"{self.name} is not asked")

    def ids(self, token: Token) -> tuple[int, ...]:
        """The steps of the tree that a token of a run makes."""
        return (token.id,) if self.unit == "token" else tuple(token.data)


class UnaskedScorer(Unasked):
    def __init__(self, scorer: Scorer) -> None:
        super().__init__(
            scorer.name, scorer.fingerprint, scorer.tokenizer.vocabulary, "token", tuple(scorer.tokenizer.bos)
        )
        self.tokenizer = scorer.tokenizer
        self.context_length = scorer.context_length

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[NDArray[np.float32]]]:
        first = requests[0]
        self.fail((first.prefix + first.new_ids)[: len(first.prefix) + first.positions[0]])


class UnaskedServer(Unasked):
    """Its server is asked what it is, at most for one token, and no more."""

    def __init__(self, completer: Completer) -> None:
        super().__init__(completer.name, "", BYTES, "byte", ())
        self._completer = completer

    @property
    def place(self) -> str:
        return self._completer.place

    async def meet(self, known: Endpoint | None = None) -> Endpoint:
        endpoint = await self._completer.meet(known)
        self.fingerprint = endpoint.fingerprint
        self.start = (TURNS["user"],) if endpoint.chat_only else ()
        return endpoint

    async def stream(self, prompt: Prompt, wish: Wish) -> AsyncGenerator[Piece, None]:
        self.fail(_path(prompt))
        yield Piece(b"")

    async def score(self, prompt: Prompt, options: Sequence[str]) -> Scored:
        self.fail(_path(prompt))


def _path(prompt: Prompt) -> tuple[int, ...]:
    """A prompt as a path of the tree that it was made from."""
    if len(prompt) > 1 and prompt[-1] == Turn("user", GO_ON):
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

    def model(self, model: str | Model | None) -> Model:
        if self.unasked is None:
            found = super().model(model)
            self.unasked = UnaskedServer(found) if isinstance(found, Completer) else UnaskedScorer(found)
        return self.unasked
