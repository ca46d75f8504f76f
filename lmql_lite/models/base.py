"""The two kinds of model, as seams (S35). Everything above is written against these and names no vendor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from lmql_lite.tokens import Tokenizer


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """One sequence to score: `prefix + new_ids`, scores wanted at some places of `new_ids`.

    `prefix` is what the model has probably seen before and may hold keys and values for; `new_ids` is fed.
    A position counts how many of `new_ids` stand before the scored token: 0 is the token right after `prefix`,
    `len(new_ids)` the one after everything. Drafts, options and prefills are thus one request (S35).
    """

    prefix: tuple[int, ...]
    new_ids: tuple[int, ...] = ()
    positions: tuple[int, ...] = (0,)


class Scorer(Protocol):
    """A model in this process: it scores the whole vocabulary after any prefix of token ids."""

    @property
    def name(self) -> str:
        """The id by which a user names it: `demo`, `local:gpt2`."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest of everything its scores depend on: weights, tokenizer, quantisation, adapter (S4)."""
        ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def context_length(self) -> int:
        """The most tokens a sequence may have, bos included."""
        ...

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[NDArray[np.float32]]]:
        """Natural log-probabilities, normalised, shape (vocabulary,), per request and position.

        The scores of a sequence do not depend on what else is in the batch nor on what the model remembers (S5).
        Raises ModelError where a sequence is longer than `context_length`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Wish:
    """What a Completer is asked for beside the prompt. A server that cannot honour a field leaves it unheeded: what
    arrives is checked in any case."""

    max_tokens: int
    stops: tuple[str, ...] = ()
    temperature: float = 0.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """One step of a Completer's stream: the bytes of a token where the server tells tokens apart, else of a chunk.

    `token` and `logprob` are None where the server does not report them; `finish` is set on the last piece.
    """

    data: bytes
    token: int | None = None
    logprob: float | None = None
    finish: Literal["stop", "length"] | None = None


class Completer(Protocol):
    """A model behind a server: text in, a stream of text out."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str:
        """Digest of all that the endpoint reports about itself, and its address (S4)."""
        ...

    def stream(self, prompt: bytes, wish: Wish) -> AsyncIterator[Piece]:
        """What the model says after `prompt`. Leaving the iterator cancels the request."""
        ...
