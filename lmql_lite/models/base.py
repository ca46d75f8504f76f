"""The two kinds of model, as seams (S35). Everything above is written against these and names no vendor."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.language import Language
from lmql_lite.tokens import Role, Sampling, Tokenizer


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
class Turn:
    """A part of a prompt: what one side of a chat says. `role` is None for plain text, which then is the only turn."""

    role: Role | None
    text: str


Prompt = tuple[Turn, ...]
"""What a Completer continues: the last turn is open, plain text or the assistant's."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a Completer is asked for beside the prompt.

    `pushed` is what may be said, as rules or as JSON Schema. `stops` end the text and are part of it: where a server
    leaves them out the Completer adds them again. `banned` are ids of tokens that must not come first. `alternatives`:
    how many other tokens are wanted with each one. `begin`: the answer is to begin with this text, which is no part of
    what `pushed` speaks of. Each is only set where the endpoint takes it, `begin` where it takes languages.
    """

    max_tokens: int
    stops: tuple[str, ...] = ()
    pushed: Language | JsonSchema | None = None
    sampling: Sampling = Sampling()  # noqa: RUF009  a frozen value
    banned: tuple[int, ...] = ()
    alternatives: int = 0
    begin: str = ""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON Schema as JSON text."""

    text: str


@dataclass(frozen=True, slots=True)
class Spent:
    """What the server says that a request cost, in its own tokens. None where it does not say.

    `requests` were sent for it: more than one where some failed, or were refused and put otherwise.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt tokens those that the server had in a cache of its own."""
    completion_tokens: int | None = None
    requests: int = 1


@dataclass(frozen=True, slots=True)
class Piece:
    """One step of a Completer's stream: the bytes of a token where the server tells tokens apart, else of a chunk.

    Bytes of pieces joined are UTF-8 text; a piece may end inside a character. `token` and `logprob` (natural, raw) are
    None where the server does not report them; `alternatives` are other tokens that might have come, best first, with
    their log-probabilities. `finish` is set on the last piece only: `stop` at end-of-text or a stop string, `length` at
    `max_tokens`; `ended_by` then is the stop string, None for end-of-text. `spent`, on any piece, is what is known by
    then of the whole stream; the last piece has it all, if the server tells.
    """

    data: bytes
    token: int | None = None
    logprob: float | None = None
    alternatives: tuple[tuple[bytes, float], ...] = ()
    finish: Literal["stop", "length"] | None = None
    ended_by: str | None = None
    spent: Spent | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """Of texts that a server was given: the log-probability of each, and what it says that they cost."""

    logprobs: tuple[float, ...]
    spent: Spent | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What was found out about a Completer's server, once.

    `fingerprint`: digest of all that it reports about itself, and its address (S4).
    """

    fingerprint: str
    chat_only: bool = False
    """It takes turns, and no plain text."""
    continues_turns: bool = True
    """An open assistant turn is gone on with, and not answered (S29)."""
    takes_languages: bool = False
    most_rules: int = 2000
    """A language of more rules takes it too long."""
    takes_schemas: bool = False
    alternatives: int = 0
    """How many alternatives it gives at most; 0: none."""
    takes_bans: bool = False
    """It heeds `Wish.banned`, and says the ids of its tokens."""
    takes_seeds: bool = False
    scores: bool = False
    """`Completer.score` works."""
    stops: int = 0
    """So many stop strings it takes and tells apart from end-of-text, and from each other; 0: none."""
    context_length: int | None = None
    must_be_asked: bool = False
    """It tells what it is in an answer only: finding out costs a request."""
    spent: Spent | None = None
    """What finding out has cost, one token at most; None where it cost nothing, or has been told before."""


@runtime_checkable
class Completer(Protocol):
    """A model behind a server: text in, a stream of text out."""

    @property
    def name(self) -> str:
        """The id by which a user names it: `openai/NAME`."""
        ...

    @property
    def place(self) -> str:
        """Where it is asked, and for what: known before it is met."""
        ...

    async def meet(self, known: Endpoint | None = None) -> Endpoint:
        """What there is to know about the server; asked once, before anything is spent. Raises ModelError.

        `known` is what was found out here before. Where the server `must_be_asked`, and was not yet in this process, it
        is taken for it: who then asks it something has to meet it first, as it may have become another one (S4).
        """
        ...

    def stream(self, prompt: Prompt, wish: Wish) -> AsyncGenerator[Piece, None]:
        """What the model says after `prompt`; ends with a piece that has `finish`. Closing it cancels the request.

        Raises ModelError, with one sentence and the remedy, where the request fails for good; what came before stays.
        """
        ...

    async def score(self, prompt: Prompt, options: Sequence[str]) -> Scored:
        """The log-probability of each option as what comes next (S25). Raises ModelError where the server cannot."""
        ...


Model = Scorer | Completer
