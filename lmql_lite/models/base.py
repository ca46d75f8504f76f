"""Protocols of the two kinds of model (S35): local scorers and servers. Higher floors use these and name no vendor."""

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
    """One sequence to score: `prefix + new_ids`, with scores wanted at some positions of `new_ids`.

    `prefix` has probably been scored before, so the model may hold its keys and values; `new_ids` is fed. A position
    is the number of `new_ids` before the scored token: 0 is the token right after `prefix`, `len(new_ids)` the one
    after everything. Drafts, options and prefills are therefore one request (S35).
    """

    prefix: tuple[int, ...]
    new_ids: tuple[int, ...] = ()
    positions: tuple[int, ...] = (0,)


class Scorer(Protocol):
    """Local model: scores the whole vocabulary after any prefix of token ids."""

    @property
    def name(self) -> str:
        """Id that users write: `demo`, `local:gpt2`."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest of everything that scores depend on: weights, tokenizer, quantisation, adapter (S4)."""
        ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def context_length(self) -> int:
        """Maximum number of tokens in a sequence, bos included."""
        ...

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[NDArray[np.float32]]]:
        """Natural log-probabilities, normalised, shape (vocabulary,), per request and position.

        Scores of a sequence depend neither on the rest of the batch nor on keys and values in memory (S5).
        Raises ModelError for a sequence longer than `context_length`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """Part of a prompt: one turn of a chat. `role` is None for plain text, which is then the only turn."""

    role: Role | None
    text: str


Prompt = tuple[Turn, ...]
"""Input of a Completer. Its last turn is open: plain text, or the assistant's."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Options of one request to a Completer, beside the prompt.

    `pushed` is the server grammar or JSON Schema of the answer. `stops` end the text and are part of it: if a server
    leaves one out, the Completer adds it again. `banned` are token ids that must not come first. `alternatives` is the
    number of other tokens wanted with each token. `begin` is text that the answer has to begin with; `pushed` does not
    cover it. Every option is set only if the endpoint supports it, and `begin` only if it takes languages.
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
    """Usage of a request as the server reports it, in its own tokens. None where it does not report it.

    `requests` is the number of requests sent for it: more than one if some failed, or were refused and sent again
    in another form.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that the server found in a cache of its own."""
    completion_tokens: int | None = None
    requests: int = 1


@dataclass(frozen=True, slots=True)
class Piece:
    """One step of a Completer's stream: the bytes of a token if the server separates tokens, else of a chunk.

    The bytes of all pieces joined are UTF-8 text; a piece may end inside a character. `token` and `logprob` (natural,
    raw) are None if the server does not report them. `alternatives` are other candidates, best first, with their
    log-probabilities. `finish` is set on the last piece only: `stop` at end-of-text or a stop string, `length` at
    `max_tokens`. `ended_by` is then the stop string, or None at end-of-text. `spent`, on any piece, is the usage of
    the stream so far; the last piece has all of it, if the server reports usage.
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
    """Log-probabilities of given texts, one each, and their usage as the server reports it."""

    logprobs: tuple[float, ...]
    spent: Spent | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Capabilities of a Completer's server, found by one probe.

    `fingerprint`: digest of the server's address and of everything it reports about itself (S4).
    """

    fingerprint: str
    chat_only: bool = False
    """The server takes turns, and no plain text."""
    continues_turns: bool = True
    """The server continues an open assistant turn instead of answering it (S29)."""
    takes_languages: bool = False
    most_rules: int = 2000
    """Maximum number of rules in a server grammar; with more the server takes too long."""
    takes_schemas: bool = False
    alternatives: int = 0
    """Maximum number of alternatives per token; 0 means none."""
    takes_bans: bool = False
    """The server honours `Wish.banned` and reports token ids."""
    takes_seeds: bool = False
    scores: bool = False
    """`Completer.score` is supported."""
    stops: int = 0
    """Maximum number of stop strings. The server reports which one it met, or end-of-text; 0 means none."""
    context_length: int | None = None
    must_be_asked: bool = False
    """The server identifies itself only in an answer, so a probe costs a request."""
    spent: Spent | None = None
    """Usage of the probe, at most one token; None if it cost nothing, or was reported before."""


@runtime_checkable
class Completer(Protocol):
    """Model behind a server: text in, a stream of text out."""

    @property
    def name(self) -> str:
        """Id that users write: `openai/NAME`."""
        ...

    @property
    def place(self) -> str:
        """Address of the server and name of the model there; known before the first probe."""
        ...

    async def meet(self, known: Endpoint | None = None) -> Endpoint:
        """Capabilities of the server, probed once before anything is spent. Raises ModelError.

        `known` is the result of an earlier probe. For a server that `must_be_asked` and was not probed in this process,
        it is returned without a probe. The first request then probes the server, which may have changed (S4).
        """
        ...

    def stream(self, prompt: Prompt, wish: Wish) -> AsyncGenerator[Piece, None]:
        """Continuation of `prompt`; the last piece has `finish`. Closing the stream cancels the request.

        Raises ModelError, with one sentence and the remedy, if the request fails for good; earlier pieces stay valid.
        """
        ...

    async def score(self, prompt: Prompt, options: Sequence[str]) -> Scored:
        """Log-probability of each option as the next text (S25). Raises ModelError if the server cannot score."""
        ...


Model = Scorer | Completer
