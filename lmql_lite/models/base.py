"""Protocols of the two kinds of model (S35): local scorers and servers. Higher floors use these and name no vendor."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.kv.block_policy import BlockPolicy
from lmql_lite.constraints.language import Language
from lmql_lite.errors import BrokenOff, ModelError
from lmql_lite.media import Media
from lmql_lite.options import Sampling
from lmql_lite.tokens import Role, Tokenizer


@dataclass(slots=True)
class PassCounts:
    """Counters of a model in this process: tokens `fed` to its network, and tokens whose keys and values were known, by
    tier (`memory`, `disk`, `redis`)."""

    fed: int = 0
    reused: dict[str, int] = field(default_factory=dict)


class KVScope:
    """Scope of keys and values: of one hole of a run whose `use_caches` is False. They are reused within it only."""

    __slots__ = ("__weakref__",)


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
    counts: PassCounts | None = field(default=None, compare=False)
    """Counts of the run that asks."""
    scope: KVScope | None = field(default=None, compare=False)
    """The request reuses only what requests of the same scope computed; with None, whatever those of no scope did."""

    def checked(self, model: str, context_length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids up to the last scored position, and the prefix lengths to score. Raises ModelError for what is too long,
        for positions outside `new_ids`, and for scores before the first token.
        """
        ids = self.prefix + self.new_ids
        ends = tuple(len(self.prefix) + position for position in self.positions)
        if len(ids) > context_length:
            raise ModelError(
                f"the text is {len(ids)} tokens long, but {model} reads at most {context_length}",
                hint="shorten the prompt, or use a model with a longer context",
            )
        if not all(0 <= position <= len(self.new_ids) for position in self.positions):
            raise ModelError(f"positions {self.positions} are not within the {len(self.new_ids)} new tokens")
        if not all(ends):
            raise ModelError(f"{model} has no scores before the first token", hint="begin the prompt with some text")
        return ids[: max(ends, default=0)], ends


class Scorer(Protocol):
    """Local model: scores the whole vocabulary after any prefix of token ids.

    It may have `sequences`, the number of texts that it can advance at once without recomputing any of them; without
    it, 8 rows of a data set run at a time.
    """

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


@runtime_checkable
class NoisyScorer(Scorer, Protocol):
    """Local model that states how much its scores depend on what else is in a pass."""

    @property
    def epsilon(self) -> float:
        """Two tokens whose scores are further apart than this, in nats, never change places; 0 for an exact model,
        whose scores are the same bits in every pass (S5)."""
        ...


@runtime_checkable
class MediaScorer(Scorer, Protocol):
    """Local model that also accepts pictures, videos or clips."""

    @property
    def marks(self) -> frozenset[int]:
        """Token ids of which each is the first one of an item on a path. The model never chooses one."""
        ...

    def show(self, item: Media) -> tuple[int, ...]:
        """Tokens that stand for an item in the ids of a request: a mark, and the bytes of its digest.

        The item can be asked about as long as the caller keeps it. Raises ModelError where the model takes none of its
        modality.
        """
        ...


@runtime_checkable
class ReusesBlocks(Protocol):
    """Scorer whose blocks can be reused at other places."""

    def with_blocks(self, policy: BlockPolicy) -> Scorer:
        """Scorer over the same network, which reuses blocks by this policy. Raises ModelError where it cannot."""
        ...


@runtime_checkable
class BlockScorer(Protocol):
    """Scorer that reuses the blocks of a prompt at other places. On its paths, a mark stands before each block."""

    @property
    def notices(self) -> Sequence[str]:
        """Sentences about blocks that a user should read."""
        ...

    def mark(self, length: int) -> int:
        """Token that stands before a block of `length` tokens: beyond the vocabulary, so that no text has it."""
        ...


@dataclass(frozen=True, slots=True)
class PromptTurn:
    """Part of a prompt: one turn of a chat. `role` is None for plain text, which is then the only turn.

    `media` are the items of the turn, each with its place in the text, in characters.
    """

    role: Role | None
    text: str
    media: tuple[tuple[int, Media], ...] = ()


Prompt = tuple[PromptTurn, ...]
"""Input of a Completer. Its last turn is open: plain text, or the assistant's."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Options of one request to a Completer, beside the prompt.

    `pushed` is the server grammar or JSON Schema of the answer. `stops` end the text and are part of it: if a server
    leaves one out, the Completer adds it again. `banned` are token ids that must not come first. `alternatives` is the
    number of other tokens wanted with each token. `begin` is text that the answer has to begin with; `pushed` does not
    cover it. Every option is set only if the server supports it, and `begin` only if it takes grammars.
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
class ServerUsage:
    """Usage of a request as the server reports it, in its own tokens. None where it does not report it.

    `requests` is the number of requests sent for it: more than one if some failed, or were refused and sent again
    in another form.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that the server found in a cache of its own."""
    completion_tokens: int | None = None
    requests: int = 1
    reasoning_tokens: int | None = None
    """Completion tokens that were thoughts, as far as the server reports them."""

    def plus(self, other: ServerUsage | None) -> ServerUsage:
        """Usage of two requests together; a count is unknown if it is unknown of either."""
        other = other or ServerUsage()

        def total(first: int | None, second: int | None) -> int | None:
            return None if first is None or second is None else first + second

        if not self.requests:
            return other
        return ServerUsage(
            total(self.prompt_tokens, other.prompt_tokens),
            total(self.cached_tokens, other.cached_tokens),
            total(self.completion_tokens, other.completion_tokens),
            self.requests + other.requests,
            total(self.reasoning_tokens, other.reasoning_tokens),
        )


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """One step of a Completer's stream: the bytes of a token if the server separates tokens, else of a chunk.

    The bytes of all pieces joined are UTF-8 text; a piece may end inside a character. `token` and `logprob` (natural,
    raw) are None if the server does not report them. `alternatives` are other candidates, best first, with their
    log-probabilities. `finish` is set on the last piece only: `stop` at end-of-text or a stop string, `length` at
    `max_tokens`. `ended_by` is then the stop string, or None at end-of-text. `spent`, on any piece, is the usage of
    the stream so far; the last piece has all of it, if the server reports usage. `thought` is a part of what a
    reasoning model thinks before its answer; such a piece has no bytes.
    """

    data: bytes
    token: int | None = None
    logprob: float | None = None
    alternatives: tuple[tuple[bytes, float], ...] = ()
    finish: Literal["stop", "length"] | None = None
    ended_by: str | None = None
    spent: ServerUsage | None = None
    thought: str = ""


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probabilities of given texts, one each, and their usage as the server reports it."""

    logprobs: tuple[float, ...]
    spent: ServerUsage | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a Completer's server, found by one probe.

    `fingerprint`: digest of the server's address and of everything it reports about itself (S4).
    """

    fingerprint: str = ""
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
    """The server honours `CompletionRequest.banned` and reports token ids."""
    takes_seeds: bool = False
    scores: bool = False
    """`Completer.score` is supported."""
    stops: int = 0
    """Maximum number of stop strings. The server reports which one it met, or end-of-text; 0 means none."""
    context_length: int | None = None
    bills_to_the_end: bool = False
    """The server may generate and bill an answer to its end though its reader has closed the connection."""
    probe_costs: bool = False
    """The server identifies itself only in an answer, so a probe costs a request."""
    spent: ServerUsage | None = None
    """Usage of the probe, at most one token; None if it cost nothing, or was reported before."""


@runtime_checkable
class Completer(Protocol):
    """Model behind a server: text in, a stream of text out. It may have `sequences`, its maximum number of simultaneous
    requests."""

    @property
    def name(self) -> str:
        """Id that users write: `openai/NAME`."""
        ...

    @property
    def place(self) -> str:
        """Address of the server and name of the model there; known before the first probe."""
        ...

    async def probe(self, known: Capabilities | None = None) -> Capabilities:
        """Capabilities of the server, probed once before anything is spent. Raises ModelError.

        `known` is the result of an earlier probe. For a server that `probe_costs` and was not probed in this process,
        it is returned without a probe. The first request then probes the server, which may have changed (S4).
        """
        ...

    def stream(self, prompt: Prompt, request: CompletionRequest) -> AsyncGenerator[StreamPiece, None]:
        """Continuation of `prompt`; the last piece has `finish`. Closing the stream cancels the request.

        Raises ModelError, with one sentence and the remedy, if the request fails for good; earlier pieces stay valid.
        """
        ...

    async def score(self, prompt: Prompt, options: Sequence[str]) -> Scored:
        """Log-probability of each option as the next text (S25). Raises ModelError if the server cannot score."""
        ...


MAX_BROKEN = 3
"""Number of answers to one request that may break off: after the last of them it is given up."""


class RanOutEarly(BrokenOff):
    """An answer ended for want of tokens although fewer were generated than requested. Another try ends there again."""


def broken_again(error: BrokenOff) -> ModelError:
    """Error for a request whose answers all broke off, for the last of them."""
    hint = "see the server's own log; what arrived is in the cache: run it again"
    return ModelError(f"{error.message}, {MAX_BROKEN} times in a row", hint=hint)


Model = Scorer | Completer

BEFORE_REQUEST: ContextVar[Callable[[], None]] = ContextVar("BEFORE_REQUEST", default=lambda: None)
"""Called by a Completer before each request that may cost something, those of a probe and repeated ones included.

It counts the request for the run that waits, and raises BudgetError where it would be one too many.
"""


class ModelObject:
    """Base of model objects. Methods of LMQL's models raise an error that says what to write instead."""

    use_caches = True
    """False if every hole of every run computes its prompt anew, as with the option of a run."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            function = name if name.removesuffix("_sync") in ("score", "generate") else ""
            instead = f"; write lq.{function}(prompt, ..., model=...)" if function else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{instead}")
