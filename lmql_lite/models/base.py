"""The two kinds of model (S35): local scorers and servers. Higher floors use these and name no vendor."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.kv.blocks import BlockPolicy
from lmql_lite.constraints.language import Language
from lmql_lite.errors import BrokenOff, ModelError
from lmql_lite.media import Media, article
from lmql_lite.options import Sampling
from lmql_lite.tokens import Role, Tokenizer

Row = NDArray[np.float32]
"""Natural log-probabilities of the whole vocabulary."""


@dataclass(slots=True)
class PassCounts:
    """Counters of a model in this process: tokens `fed` to its network, and tokens whose keys and values were known, by
    tier (`memory`, `disk`, `redis`)."""

    fed: int = 0
    reused: dict[str, int] = field(default_factory=dict)

    def add(self, fed: int, known: int, tier: str = "memory") -> None:
        """Counts a sequence: its tokens that were fed, and those that a tier had; "" for a row of the same pass."""
        self.fed += fed
        if known and tier:
            self.reused[tier] = self.reused.get(tier, 0) + known


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


class ModelObject:
    """Base of model objects. Methods of LMQL's models raise an error that says what to write instead."""

    name: str
    """Id that users write: `demo`, `local:gpt2`, `openai/NAME`."""
    sequences: int = 8
    """Rows of a data set that run at the same time: texts that a local model advances at once without recomputing any,
    or simultaneous requests to a server."""
    use_caches: bool = True
    """False if every hole of every run computes its prompt anew, as with the option of a run."""

    def with_blocks(self, policy: BlockPolicy) -> Scorer:
        """Scorer over the same network, which reuses blocks at other places by this policy. Raises ModelError where it
        cannot."""
        raise ModelError(
            f"{self.name} does not support blocks={policy}: it cannot move blocks of a prompt",
            hint="leave blocks= out, or use a model in this process, such as local:NAME",
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            function = name if name.removesuffix("_sync") in ("score", "generate") else ""
            instead = f"; write lq.{function}(prompt, ..., model=...)" if function else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{instead}")


class Scorer(ModelObject):
    """Local model: scores the whole vocabulary after any prefix of token ids. A class of one's own needs `name`,
    `fingerprint`, `tokenizer`, `context_length` and `score`, and need not be derived from this one."""

    fingerprint: str
    """Digest of everything that scores depend on: weights, tokenizer, precision (S4)."""
    tokenizer: Tokenizer
    context_length: int
    """Maximum number of tokens in a sequence, bos included."""
    epsilon: float | None = None
    """Two tokens whose scores are further apart than this, in nats, never change places, whatever else is in a pass; 0
    for an exact model, whose scores are the same bits in every pass; None where that is not known (S5)."""
    marks: frozenset[int] = frozenset()
    """Token ids of which each is the first one of an item on a path. The model never chooses one."""
    reuses_blocks: bool = False
    """True if the blocks of a prompt are reused at other places: then a mark stands before each of them on a path."""
    notices: Sequence[str] = ()
    """Sentences that a user should read."""

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[Row]]:
        """Natural log-probabilities, normalised, shape (vocabulary,), per request and position.

        Scores of a sequence depend neither on the rest of the batch nor on keys and values in memory (S5).
        Raises ModelError for a sequence longer than `context_length`.
        """
        raise NotImplementedError

    def show(self, item: Media) -> tuple[int, ...]:
        """Tokens that stand for an item in the ids of a request: a mark, and the bytes of its digest.

        The item can be asked about as long as the caller keeps it. Raises ModelError where the model takes none of its
        modality.
        """
        raise ModelError(
            f"{self.name} only reads text, so it cannot be shown {article(item.modality)}",
            span=item.span,
            hint="use a vision-language or audio model, such as local:Qwen/Qwen2-VL-2B-Instruct",
        )

    def mark(self, length: int) -> int:
        """Token that stands before a block of `length` tokens: beyond the vocabulary, so that no text has it."""
        return len(self.tokenizer.vocabulary) + length


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
    leaves one out, the Completer adds it again. `alternatives` is the number of other tokens wanted with each token.
    `begin` is text that the answer has to begin with; `pushed` does not cover it. Every option is set only if the
    server supports it, and `begin` only if it takes grammars.
    """

    max_tokens: int
    stops: tuple[str, ...] = ()
    pushed: Language | JsonSchema | None = None
    sampling: Sampling = Sampling()  # noqa: RUF009  a frozen value
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


class Completer(ModelObject):
    """Model behind a server: text in, a stream of text out. A class of one's own needs `name`, `place`, `probe` and
    `stream`, and need not be derived from this one."""

    place: str
    """Address of the server and name of the model there; known before the first probe."""

    async def probe(self, known: Capabilities | None = None) -> Capabilities:
        """Capabilities of the server, probed once before anything is spent. Raises ModelError.

        `known` is the result of an earlier probe. For a server that `probe_costs` and was not probed in this process,
        it is returned without a probe. The first request then probes the server, which may have changed (S4).
        """
        raise NotImplementedError

    def stream(self, prompt: Prompt, request: CompletionRequest) -> AsyncGenerator[StreamPiece, None]:
        """Continuation of `prompt`; the last piece has `finish`. Closing the stream cancels the request.

        Raises ModelError, with one sentence and the remedy, if the request fails for good; earlier pieces stay valid.
        """
        raise NotImplementedError

    async def score(self, prompt: Prompt, options: Sequence[str]) -> Scored:
        """Log-probability of each option as the next text (S25). Raises ModelError if the server cannot score."""
        raise ModelError(f"{self.name} does not report log-probabilities")


Model = Scorer | Completer


class _Foreign:
    """Model object of a class that is not derived from ours, with our defaults for what it lacks. Two of one object are
    equal."""

    def __init__(self, model: object) -> None:
        self._model = model

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "_model")
        return getattr(own, name) if not name.startswith("_") and hasattr(own, name) else super().__getattribute__(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Foreign) and other._model is self._model

    def __hash__(self) -> int:
        return id(self._model)


class _ForeignScorer(_Foreign, Scorer):
    pass


class _ForeignCompleter(_Foreign, Completer):
    pass


def as_model(given: object) -> Model:
    """A model object as a Scorer or Completer: itself, or wrapped where its class is not derived from ours. Raises
    ModelError for what is neither."""
    if isinstance(given, Scorer | Completer):
        return given
    for kind, needs in ((_ForeignScorer, _SCORER), (_ForeignCompleter, _COMPLETER)):
        if not isinstance(given, type) and all(hasattr(given, name) for name in needs):
            return kind(given)
    hint = 'give its name, such as model="demo", or a model object such as lq.model("demo")'
    raise ModelError(f"{given!r} is not a model", hint=hint)


_SCORER = ("name", "fingerprint", "tokenizer", "context_length", "score")
_COMPLETER = ("name", "place", "probe", "stream")

MAX_BROKEN = 3
"""Number of answers to one request that may break off: after the last of them it is given up."""


class RanOutEarly(BrokenOff):
    """An answer ended for want of tokens although fewer were generated than requested. Another try ends there again."""


def broken_again(error: BrokenOff) -> ModelError:
    """Error for a request whose answers all broke off, for the last of them."""
    hint = "see the server's own log; what arrived is in the cache: run it again"
    return ModelError(f"{error.message}, {MAX_BROKEN} times in a row", hint=hint)


BEFORE_REQUEST: ContextVar[Callable[[], None]] = ContextVar("BEFORE_REQUEST", default=lambda: None)
"""Called by a Completer before each request that may cost something, those of a probe and repeated ones included.

It counts the request for the run that waits, and raises BudgetError where it would be one too many.
"""
