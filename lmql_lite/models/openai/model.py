"""Models behind the OpenAI protocol: `openai/NAME`, at OpenAI or at any compatible server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from functools import reduce
from threading import Lock
from typing import Any

from lmql_lite.errors import BrokenOff, ModelError
from lmql_lite.models.base import (
    Capabilities,
    Completer,
    CompletionRequest,
    Prompt,
    PromptTurn,
    RanOutEarly,
    Scored,
    ServerUsage,
    StreamPiece,
)
from lmql_lite.models.openai.address import Address
from lmql_lite.models.openai.assembler import Assembler, ThoughtFilter
from lmql_lite.models.openai.decoder import usage_of
from lmql_lite.models.openai.dialects import Body, Dialect
from lmql_lite.models.openai.negotiation import Exchange, Sender, is_about_length
from lmql_lite.models.openai.probe import entries, probe
from lmql_lite.models.openai.refusals import ServerRefusal
from lmql_lite.tokens import Tokenizer

CONCURRENCY = 32
"""Maximum number of simultaneous requests to one server."""
Whole = tuple[dict[str, Any], ServerUsage]
"""Response in one piece, and its usage."""
Row = Sequence[tuple[object, float | None]]
"""Tokens of a scored text: identity and log-probability of each; the first one has none."""


class OpenAIModel(Completer):
    """A Completer (S35). Threads and event loops may share it."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        revision: str | None = None,
        tokenizer: Tokenizer | None = None,
        timeout: float | None = None,
        concurrency: int = CONCURRENCY,
        client: object = None,
    ) -> None:
        """Sends no request yet. Raises ModelError for an invalid address and for a missing key.

        `base_url` and `api_key` default to OPENAI_BASE_URL and OPENAI_API_KEY. `revision` vouches for the model behind
        the address: the fingerprint is then the revision and the model's name (S4). With the model's own `tokenizer`,
        the bytes of all tokens are known if the server reports ids, and prompts of plain text are sent as ids if it
        takes them; the spelling of a special token is then ordinary text (S12). `timeout` is the permitted silence in
        seconds. `concurrency` is the maximum number of simultaneous requests. `client` is an `openai.AsyncOpenAI` of
        the user's, which has an address, a key and headers of its own; it stays open.
        """
        if timeout is not None and not timeout > 0:
            raise ModelError(f"timeout must be a number of seconds above 0, not {timeout!r}")
        if concurrency < 1:
            raise ModelError(f"concurrency must be a number of requests of at least 1, not {concurrency!r}")
        self.name = f"openai/{model}"
        self.tokenizer = tokenizer
        self._model = model
        self._revision = revision
        if client is None:
            self._address, lent = Address.of(base_url, api_key), None
        elif base_url or api_key:
            raise ModelError("client= has an address and a key of its own", hint="leave base_url= and api_key= out")
        else:
            from lmql_lite.models.openai.client import usable

            lent = usable(client)
            self._address = Address.of_client(lent)
        self._timeout, self._lent = timeout, lent
        self._made: Sender | None = None
        self._making = Lock()
        self.sequences = concurrency
        self.place = f"{self.name} at {self._address.place}" + ("" if revision is None else f", {revision}")
        self._is_met = False
        """The server was probed."""
        self._served: str | None = None
        """Name of the model in the last answer."""

    def __repr__(self) -> str:
        return f"OpenAIModel({self._model!r}, base_url={self._address.shown!r})"

    @property
    def requests(self) -> int:
        """Number of billable requests, retries included."""
        return 0 if self._made is None else self._made.client.requests

    @property
    def _sender(self) -> Sender:
        """Sender of requests, made with the first one, because it imports the package `openai`."""
        with self._making:
            if self._made is None:
                try:
                    from lmql_lite.models.openai.client import Client
                except ImportError as error:
                    hint = "pip install -U 'openai>=3.20,<4'"
                    raise ModelError(f"the package openai is missing or too old: {error}", hint=hint) from None
                client = Client(self._address, timeout=self._timeout, concurrency=self.sequences, lent=self._lent)
                vocabulary = self.tokenizer.vocabulary if self.tokenizer is not None else ()
                self._made = Sender(client, self.name, vocabulary)
            return self._made

    async def probe(self, known: Capabilities | None = None) -> Capabilities:
        """See `Completer.probe`. The cost of the probe is reported once, to the caller that waited for it."""
        if not self._is_met and known is not None and known.probe_costs:
            return known
        if not self._is_met:
            async with self._sender.client.exclusive():
                if not self._is_met:
                    by_ids = self.tokenizer is not None
                    try:
                        with self._address.scrubbing():
                            found = await probe(self._sender, self._model, self._revision, by_ids=by_ids)
                    except ServerRefusal as refusal:
                        raise self._explained(refusal) from None
                    self._is_met = True
                    return found
        return self._sender.dialect.can

    async def models(self) -> tuple[str, ...]:
        """Ids of the models that the server lists. Raises ModelError if it lists none."""
        try:
            with self._address.scrubbing():
                listed = [str(entry["id"]) for entry in await entries(self._sender.client)]
        except ServerRefusal as refusal:
            raise refusal.as_error() from None
        if not listed:
            raise ModelError(f"{self._address.shown} does not list its models", hint="its own page may name them")
        return tuple(listed)

    async def stream(self, prompt: Prompt, request: CompletionRequest) -> AsyncGenerator[StreamPiece, None]:
        """See `Completer.stream`. Raises BrokenOff if the answer ends in the middle."""
        await self.probe()
        with self._address.scrubbing():
            async with aclosing(self._pieces(prompt, request)) as pieces:
                async for piece in pieces:
                    yield piece

    async def score(self, prompt: Prompt, options: Sequence[str]) -> Scored:
        """See `Completer.score`. All options are one request, or one each in a chat.

        A server tokenises prompt and option in one piece, so a token may span their border. The prompt is therefore
        scored alone, too. The tokens that all texts share with it are the prompt, the rest of each text is its option.
        """
        await self.probe()
        dialect = self._sender.dialect
        if not dialect.can.scores or (prompt[-1].role is not None and dialect.kind != "vllm"):
            raise ModelError(
                f"{self.name} cannot score options: its server does not report scores of the text of a prompt",
                hint="use vLLM, SGLang or a local: model",
            )
        if not any(turn.text for turn in prompt):
            raise ModelError(f"{self.name} cannot score options after an empty prompt", hint="begin with some text")
        prompts = [prompt, *(_extended(prompt, option) for option in options)]
        try:
            with self._address.scrubbing():
                answers = await _all(self._whole(body) for body in self._score_bodies(dialect, prompts))
            rows = [row for answer, _ in answers for row in _rows(dialect, answer)]
        except ServerRefusal as refusal:
            raise self._explained(refusal) from None
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):
            raise ModelError(f"the scores that the server of {self.name} returned cannot be read") from None
        base, *others = rows
        begin = min((_shared_tokens(base, row) for row in others), default=0)
        logprobs = [[score for _, score in row[begin:] if score is not None] for row in others]
        if any(len(scores) < len(row) - begin for scores, row in zip(logprobs, others, strict=True)):
            raise ModelError(f"{self.name} has no score of the first token", hint="begin the prompt with some text")
        return Scored(tuple(map(sum, logprobs)), reduce(ServerUsage.plus, (spent for _, spent in answers)))

    def _score_bodies(self, dialect: Dialect, prompts: Sequence[Prompt]) -> list[Body]:
        """Request bodies: one for all texts, in a chat one for each. With a tokenizer, texts are sent as ids (S12)."""
        common: Body = {"model": self._model, "max_tokens": 1, "temperature": 0.0}
        common |= {"prompt_logprobs": 0} if dialect.kind == "vllm" else {"echo": True, "logprobs": 1}
        bodies = [dialect.prompted(self._model, prompt, self.tokenizer) for prompt in prompts]
        if prompts[0][-1].role is None:
            return [common | {"prompt": [body["prompt"] for body in bodies]}]
        return [common | body for body in bodies]

    async def _whole(self, body: Body) -> Whole:
        async def read(exchange: Exchange) -> dict[str, Any]:
            return await anext(exchange.events, {})

        answer, requests = await self._sender.answered(body, read)
        return answer, replace(usage_of(answer.get("usage")) or ServerUsage(), requests=requests)

    async def _pieces(self, prompt: Prompt, request: CompletionRequest) -> AsyncGenerator[StreamPiece, None]:
        """Pieces of one request."""
        chat, dialect = prompt[-1].role is not None, self._sender.dialect
        thoughts = ThoughtFilter() if chat and not (prompt[-1].role == "assistant" and prompt[-1].text) else None
        body = dialect.body(self._model, prompt, request, tokenizer=self.tokenizer)
        try:
            async with AsyncExitStack() as stack:
                exchange = await stack.enter_async_context(self._sender.send(body))
                deltas = await stack.enter_async_context(aclosing(self._sender.deltas(exchange)))
                assembler = Assembler(request.stops, raw=dialect.is_raw(request), requests=exchange.requests)
                watches = bool(request.stops) and "stop" not in exchange.body
                count = 0
                async for delta in deltas:
                    if delta.served:
                        self._check_served(delta.served)
                    is_over = assembler.is_stopped and bool(delta.text)
                    for piece in assembler.take(thoughts.split(delta) if thoughts else delta):
                        count += 1
                        yield piece
                    if is_over or (watches and assembler.is_stopped):
                        break
        except ServerRefusal as refusal:
            raise self._explained(refusal, greedy=request.sampling.temperature == 0) from None
        for piece in assembler.rest():
            yield piece
        yield self._last(assembler, request, exchange, count)

    def _check_served(self, served: str) -> None:
        """Raises ModelError if another model answers than before. Snapshots of one model may take turns."""
        before, self._served = self._served, served
        is_snapshot = before is not None and before.startswith(self._model) and served.startswith(self._model)
        if before is None or before == served or is_snapshot or self._revision is not None:
            return
        self._is_met, self._served = False, None  # the next run finds out anew what this is
        raise ModelError(
            f"{self._address.shown} answers as model {served!r}, and answered as {before!r} before",
            hint="run it again: what was answered before is in the cache; revision= vouches that they are the same",
        )

    def _last(self, end: Assembler, request: CompletionRequest, exchange: Exchange, count: int) -> StreamPiece:
        """Final piece after `count` pieces, with the reason for the end. Raises if the answer has no proper end.

        `[DONE]` is an end, with or without a word for it.
        """
        if end.is_stopped:
            return end.last("stop")
        if not end.finish and end.is_done and not end.size:
            raise ModelError(f"the server of {self.name} returned no answer", hint="see its own log")
        if not end.finish and not end.is_done:
            raise BrokenOff(f"the answer of {self.name} broke off in the middle", hint="see the server's own log")
        if end.finish in ("abort", "error"):
            raise BrokenOff(f"the server of {self.name} aborted the answer", hint="see its own log")
        told = None if end.spent is None else end.spent.completion_tokens
        used = count if told is None and not end.finish else told
        is_early = exchange.is_shortened or (used is not None and used < request.max_tokens - 1)
        if end.finish == "length" and is_early and end.size:
            raise RanOutEarly(
                f"{self.name} ended its answer before {request.max_tokens} tokens: its context may be full"
            )
        if end.finish == "length" and end.has_thoughts and not end.size:
            raise ModelError(
                f"{self.name} spent all {request.max_tokens} tokens on reasoning before its answer",
                hint="raise max_tokens, or use a model that answers without reasoning",
            )
        ran_out = end.finish == "length" or (end.finish != "stop" and used is not None and used >= request.max_tokens)
        return end.last("length" if ran_out else "stop")

    def _explained(self, refusal: ServerRefusal, *, greedy: bool = False) -> ModelError:
        reason = refusal.reason
        if refusal.status == 404 and reason:
            hint = f"{self._address.shown}/models lists the models that it has"
            return ModelError(f"the server has no model called {self._model!r}: {reason}", hint=hint)
        if refusal.status in (400, 413, 422) and is_about_length(reason):
            return ModelError(
                f"the text is longer than the context of {self.name}: {reason}",
                hint="shorten the prompt, or use a model with a longer context",
            )
        if greedy and refusal.status == 400 and "temperature" in reason:
            return ModelError(
                f"{self.name} does not support greedy decoding: {reason}", hint="use sample(temperature=1)"
            )
        return refusal.as_error()


def _rows(dialect: Dialect, answer: Mapping[str, Any]) -> list[Row]:
    """Rows of the texts in an answer. Raises KeyError and the like for an answer without scores."""
    choices = sorted(answer["choices"], key=lambda choice: int(choice.get("index", 0)))
    if dialect.kind == "vllm":
        lists = [choice.get("prompt_logprobs") or answer["prompt_logprobs"] for choice in choices]
        return [[_scored_token(entry) for entry in entries] for entries in lists]
    found = [choice["logprobs"] for choice in choices]
    # the last token is the one that the server had to generate
    return [list(zip(one["tokens"], one["token_logprobs"], strict=True))[:-1] for one in found]


def _shared_tokens(one: Row, other: Row) -> int:
    """Number of leading tokens that two texts share."""
    places = range(min(len(one), len(other)))
    return next((place for place in places if one[place][0] != other[place][0]), len(places))


def _scored_token(entry: Mapping[str, Any] | None) -> tuple[object, float | None]:
    if entry is None:
        return None, None
    number, found = next(iter(entry.items()))
    return number, float(found["logprob"])


async def _all(work: Iterable[Coroutine[Any, Any, Whole]]) -> list[Whole]:
    """Results of concurrent work. The first error is raised after all of it has ended: nothing keeps running."""
    found = await asyncio.gather(*work, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if not isinstance(one, BaseException)]


def _extended(prompt: Prompt, text: str) -> Prompt:
    """Prompt with more of the model's own text at its end."""
    *before, last = prompt
    if last.role in ("system", "user"):
        return (*prompt, PromptTurn("assistant", text))
    return (*before, PromptTurn(last.role, last.text + text))
