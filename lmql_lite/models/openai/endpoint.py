"""Models behind the OpenAI protocol: `openai/NAME`, at OpenAI or at any compatible server.

Capabilities are probed once and never taken from a model's name: `survey.py` reads free routes, and if these do not
tell, one token is requested. A field that a server refuses is left out from then on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import reduce
from typing import Any

from lmql_lite.constraints.language import Language
from lmql_lite.errors import BrokenOff, ModelError
from lmql_lite.models.base import Endpoint, JsonSchema, Piece, Prompt, Scored, Spent, Turn, Wish
from lmql_lite.models.openai import scores
from lmql_lite.models.openai.address import Address
from lmql_lite.models.openai.asking import Asker, Request
from lmql_lite.models.openai.client import CONCURRENCY, TIMEOUT, Connection, Refusal
from lmql_lite.models.openai.dialects import Body, Server, is_about_length
from lmql_lite.models.openai.pieces import Assembler, Delta, read, spent_of
from lmql_lite.models.openai.survey import Survey, survey
from lmql_lite.tokens import Sampling, Tokenizer

_TEXT_PROBE: Prompt = (Turn(None, "1 2 3"),)
_CHAT_PROBE: Prompt = (Turn("user", "Hi"),)
_SCHEMA_PROBE = JsonSchema(
    '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false}'
)
_DRAWN = Sampling(temperature=1.0)
"""Sampling of the probes: every model takes it, even those that take no other temperature."""
Whole = tuple[dict[str, Any], Spent]
"""Answer in one piece, and its usage."""
_WHOLE_CHARACTER = 4
"""Number of tokens that hold at least one character, however it is spelled."""


class OpenAIModel:
    """A Completer (S35). Threads and event loops may share it."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        revision: str | None = None,
        tokenizer: Tokenizer | None = None,
        timeout: float = TIMEOUT,
        concurrency: int = CONCURRENCY,
    ) -> None:
        """Sends no request yet. Raises ModelError for an invalid address and for a missing key.

        `base_url` and `api_key` default to OPENAI_BASE_URL and OPENAI_API_KEY. `revision` vouches for the model behind
        the address: the fingerprint is then the revision and the model's name (S4). With the model's own `tokenizer`,
        the bytes of all tokens are known if the server reports ids, and prompts of plain text are sent as ids if it
        takes them; the spelling of a special token is then ordinary text (S12). `timeout` is the permitted silence in
        seconds. `concurrency` is the maximum number of simultaneous requests.
        """
        if not timeout > 0:
            raise ModelError(f"timeout is a number of seconds above 0; this is {timeout!r}")
        if concurrency < 1:
            raise ModelError(f"concurrency is a number of requests, at least 1; this is {concurrency!r}")
        self.name = f"openai/{model}"
        self.tokenizer = tokenizer
        self._model = model
        self._revision = revision
        self._connection = Connection(Address.of(base_url, api_key), timeout=timeout, concurrency=concurrency)
        self._vocabulary = tokenizer.vocabulary if tokenizer is not None else ()
        self._server = Server("unknown")
        self._endpoint: Endpoint | None = None
        self._asker = Asker(self._connection)

    def __repr__(self) -> str:
        return f"OpenAIModel({self._model!r}, base_url={self._connection.address.shown!r})"

    @property
    def requests(self) -> int:
        """Number of billable requests, retries included."""
        return self._connection.requests

    @property
    def place(self) -> str:
        """See `Completer.place`."""
        version = "" if self._revision is None else f", {self._revision}"
        return f"{self.name} at {self._connection.address.shown}{version}"

    async def meet(self, known: Endpoint | None = None) -> Endpoint:
        """See `Completer.meet`. The cost of the probe is reported once, to the caller that waited for it."""
        if self._endpoint is None and known is not None and known.must_be_asked:
            return known
        if self._endpoint is None:
            async with self._connection.alone():
                if self._endpoint is None:
                    found = await self._found_out()
                    self._endpoint = replace(found, spent=None)
                    return found
        return self._asker.narrowed(self._endpoint)

    async def stream(self, prompt: Prompt, wish: Wish) -> AsyncGenerator[Piece, None]:
        """See `Completer.stream`. Raises BrokenOff if the answer ends in the middle."""
        await self.meet()
        pieces = self._without_banned(prompt, wish) if wish.banned else self._pieces(prompt, wish)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def score(self, prompt: Prompt, options: Sequence[str]) -> Scored:
        """See `Completer.score`. All options are one request, or one each in a chat.

        The server tokenises. All tokens of an option after those shared with the prompt alone count.
        """
        endpoint = await self.meet()
        chat = prompt[-1].role is not None
        if not endpoint.scores or (chat and self._server.kind != "vllm"):
            raise scores.refuse(self.name, self._server)
        if not any(turn.text for turn in prompt):
            raise ModelError("an empty prompt cannot be gone on with", hint="begin the prompt with some text")
        prompts = [prompt, *(_said(prompt, option) for option in options)]
        bodies = scores.bodies(self._server, self._model, prompts, self.tokenizer)
        try:
            answers = await _all(self._whole(chat, body) for body in bodies)
            found = [row for answer, _ in answers for row in scores.rows(self._server, answer)]
        except Refusal as refusal:
            raise self._explained(refusal) from None
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):
            raise ModelError(f"the server of {self.name} gives no scores of a prompt that can be read") from None
        return Scored(scores.sums(self.name, found), reduce(_both, (spent for _, spent in answers)))

    async def _whole(self, chat: bool, body: Body) -> Whole:
        async with self._asker.asked(self._server, chat, body) as request, aclosing(request.answer.events) as events:
            answer: dict[str, Any] = await anext(events, {})
            return answer, replace(spent_of(answer.get("usage")) or Spent(), requests=request.answer.requests)

    async def _pieces(self, prompt: Prompt, wish: Wish, *, before: bytes = b"") -> AsyncGenerator[Piece, None]:
        """Pieces of one request. `before` is earlier output of the same answer; a stop string may have begun in it."""
        chat = prompt[-1].role is not None
        assembler = Assembler(wish.stops, raw=self._server.is_raw(wish), before=before)
        end = _End()
        body = self._server.body(self._model, prompt, wish, tokenizer=self.tokenizer)
        try:
            async with self._asker.asked(self._server, chat, body) as request:
                watches = bool(wish.stops) and "stop" not in request.body
                requests = request.answer.requests  # reported on the first piece, in case the caller leaves the answer
                sent = Spent(requests=requests) if requests > 1 else None
                async for event in request.answer.events:
                    delta = self._read(event)
                    end.take(delta)
                    is_over = assembler.is_stopped and bool(delta.text)
                    for piece in assembler.take(delta):
                        yield replace(piece, spent=sent) if sent else piece
                        sent = None
                    if is_over or (watches and assembler.is_stopped):
                        break
        except Refusal as refusal:
            raise self._explained(refusal, greedy=wish.sampling.temperature == 0) from None
        for piece in assembler.rest(end.stop):
            yield piece
        yield self._last(assembler, end, wish, request)

    def _last(self, assembler: Assembler, end: _End, wish: Wish, request: Request) -> Piece:
        """Final piece, with the reason for the end. Raises if the answer has no proper end."""
        spent = replace(end.spent or Spent(), requests=request.answer.requests)
        if assembler.is_stopped:
            return assembler.last("stop", spent)
        if end.finish is None and end.done and not assembler.said:
            raise ModelError(f"the server of {self.name} answers without a choice", hint="its own log may say why")
        if end.finish is None:  # llama-cpp-python ends an answer like this when another request arrives
            raise BrokenOff(f"the answer of {self.name} has ended in the middle", hint="the server's own log says why")
        if end.finish == "abort":
            raise BrokenOff(f"the server of {self.name} has given up the answer", hint="its own log says why")
        told = spent.completion_tokens
        is_early = request.is_shortened or (told is not None and told < wish.max_tokens - 1)
        if end.finish == "length" and is_early and assembler.said:
            raise BrokenOff(f"{self.name} ended its answer before {wish.max_tokens} tokens: its context may be full")
        if end.finish == "length" and end.thought and not assembler.said:
            raise ModelError(
                f"{self.name} spent all {wish.max_tokens} tokens on thoughts before its answer",
                hint="raise max_tokens, or name a model that answers at once",
            )
        if end.finish not in ("stop", "length"):
            raise ModelError(f"the server of {self.name} ended the answer with {end.finish!r}, which is not known here")
        return assembler.last("length" if end.finish == "length" else "stop", spent)

    def _read(self, event: dict[str, Any]) -> Delta:
        error = event.get("error") or (event if event.get("object") == "error" else None)
        if error:
            told = error.get("message", error) if isinstance(error, dict) else error
            code = error.get("code") if isinstance(error, dict) else None
            message = f"the server of {self.name} failed in the middle: {self._connection.address.clean(str(told))}"
            if isinstance(code, int) and 400 <= code < 500:
                raise ModelError(message)
            raise BrokenOff(message)
        delta = read(event, self._vocabulary)
        if delta.refused is not None:
            raise ModelError(f"{self.name} {self._connection.address.clean(delta.refused)}")
        return delta

    async def _without_banned(self, prompt: Prompt, wish: Wish) -> AsyncGenerator[Piece, None]:
        """Pieces of two requests: the first token is requested alone, because a bias would apply to a whole answer."""
        if prompt[-1].role is not None and not self._server.continues_turns and wish.max_tokens > 1:
            raise ModelError(f"{self.name} cannot be kept from beginning its turn with a token, and then go on with it")
        said, spent, tokens = b"", Spent(requests=0), 0
        for tokens in dict.fromkeys((1, min(_WHOLE_CHARACTER, wish.max_tokens))):
            async with aclosing(self._pieces(prompt, replace(wish, max_tokens=tokens))) as pieces:
                async for piece in pieces:
                    said += piece.data
                    if piece.finish is None:
                        yield replace(piece, spent=piece.spent and _both(spent, piece.spent))
                    last = piece
            spent = _both(spent, last.spent)
            if said or last.finish != "length":
                break
        if last.finish != "length" or tokens == wish.max_tokens:
            yield replace(last, spent=spent)
            return
        text = said.decode("utf-8", "replace")
        pushed = wish.pushed.after(text) if isinstance(wish.pushed, Language) else None
        later = replace(wish, max_tokens=wish.max_tokens - tokens, pushed=pushed, banned=())
        sent: Spent | None = Spent()
        async with aclosing(self._pieces(_said(prompt, text), later, before=said)) as pieces:
            async for piece in pieces:
                told, sent = piece.spent or sent, None
                yield replace(piece, spent=_both(spent, told)) if told else piece

    def _explained(self, refusal: Refusal, *, greedy: bool = False) -> ModelError:
        if refusal.status == 404 and refusal.told:
            hint = refusal.hint or f"{self._connection.address.shown}/models lists what it has"
            return ModelError(f"the server has no model called {self._model!r}: {refusal.told}", hint=hint)
        if refusal.status in (400, 413, 422) and is_about_length(refusal.told):
            return ModelError(
                f"the text is longer than {self.name} reads: {refusal.told}",
                hint="shorten the prompt, or name a model with a longer context",
            )
        if greedy and refusal.status == 400 and "temperature" in refusal.told:
            return ModelError(
                f"{self.name} cannot be asked for its best token: {refusal.told}", hint="use sample(temperature=1)"
            )
        return refusal

    async def _found_out(self) -> Endpoint:
        found = await survey(self._connection, self._model)
        server = self._server = found.server
        if server.is_serial:
            self._connection.narrow(1)
        endpoint = Endpoint(
            self._fingerprint(found, None),
            chat_only=server.is_chat_only is True,
            continues_turns=server.continues_turns,
            takes_languages=server.takes_languages,
            most_rules=server.most_rules,
            takes_schemas=server.takes_schemas,
            alternatives=server.alternatives,
            takes_bans=server.takes_bans,
            takes_seeds=server.takes_seeds,
            scores=server.scores,
            stops=server.stops,
            context_length=found.context_length,
        )
        if server.is_chat_only is not None:
            return endpoint
        try:
            return await self._probed(endpoint, found, _TEXT_PROBE)
        except Refusal as refusal:
            if not _speaks_of_chat(refusal):
                raise self._explained(refusal) from None
            refused = Spent(0, 0, 0, refusal.requests)  # a refusal costs nothing, but its requests count
        endpoint = replace(endpoint, chat_only=True)
        if self._revision is not None and server.kind == "openai":
            # the served name is not needed, and the first request shows the rest
            return replace(endpoint, must_be_asked=True, spent=refused)
        try:
            probed = await self._probed(endpoint, found, _CHAT_PROBE)
        except Refusal as refusal:
            raise self._explained(refusal) from None
        return replace(probed, spent=_both(refused, probed.spent))

    def _fingerprint(self, found: Survey, served: str | None) -> str:
        by_ids = self.tokenizer is not None and found.server.takes_ids
        return found.fingerprint(self._connection.address, self._model, served, self._revision, by_ids=by_ids)

    async def _probed(self, endpoint: Endpoint, found: Survey, prompt: Prompt) -> Endpoint:
        """Capabilities by one token, requested with every option: those that are refused or ignored are missing."""
        chat = endpoint.chat_only
        pushed = _SCHEMA_PROBE if chat else None
        wish = Wish(1, pushed=pushed, sampling=_DRAWN, alternatives=self._server.alternatives)
        body = self._server.body(self._model, prompt, wish, tokenizer=None)
        served, spent, alternatives, says = None, None, 0, False
        async with self._asker.asked(self._server, chat, body) as request:
            async for event in request.answer.events:
                delta = self._read(event)
                spent = delta.spent or spent
                served = event.get("model") or served
                says |= bool(delta.text)
                alternatives = max([alternatives, *(len(token.alternatives) for token in delta.tokens)])
        return replace(
            endpoint,
            fingerprint=self._fingerprint(found, str(served)),
            must_be_asked=True,
            takes_schemas="response_format" in request.body,
            takes_seeds="seed" in request.body,
            # an answer that ended at once had no alternatives to report
            alternatives=request.width if alternatives or not says else 0,
            spent=replace(spent or Spent(), requests=request.answer.requests),
        )


class _End:
    """End of an answer, gathered from its events."""

    def __init__(self) -> None:
        self.finish: str | None = None
        self.stop: str | None = None
        self.spent: Spent | None = None
        self.thought = False
        self.done = False

    def take(self, delta: Delta) -> None:
        self.finish = delta.finish or self.finish
        self.stop = delta.stop or self.stop
        self.spent = delta.spent or self.spent
        self.thought |= delta.thought
        self.done |= delta.done


def _speaks_of_chat(refusal: Refusal) -> bool:
    """True if the server has no route for plain text, at least not for this model."""
    return refusal.status in (404, 405, 501) or (
        refusal.status in (400, 403, 422) and re.search(r"\bchat\b|OperationNotSupported", refusal.told) is not None
    )


async def _all(work: Iterable[Coroutine[Any, Any, Whole]]) -> list[Whole]:
    """Results of concurrent work. The first error is raised after all of it has ended: nothing keeps running."""
    found = await asyncio.gather(*work, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if not isinstance(one, BaseException)]


def _both(one: Spent, other: Spent | None) -> Spent:
    other = other or Spent()

    def total(first: int | None, second: int | None) -> int | None:
        return None if first is None or second is None else first + second

    if not one.requests:
        return other
    return Spent(
        total(one.prompt_tokens, other.prompt_tokens),
        total(one.cached_tokens, other.cached_tokens),
        total(one.completion_tokens, other.completion_tokens),
        one.requests + other.requests,
    )


def _said(prompt: Prompt, text: str) -> Prompt:
    """Prompt with more of the model's own text at its end."""
    *before, last = prompt
    if last.role in ("system", "user"):
        return (*prompt, Turn("assistant", text))
    return (*before, Turn(last.role, last.text + text))
