"""Negotiation with a server: requests are sent in a form that it accepts, and fields that it refuses are left out from
then on. A refusal costs nothing.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from lmql_lite.errors import BrokenOff, ModelError
from lmql_lite.models.base import MAX_BROKEN, broken_again
from lmql_lite.models.openai.decoder import Delta, Vocabulary, read
from lmql_lite.models.openai.dialects import CAN, LIMITS, Body, Dialect
from lmql_lite.models.openai.refusals import ServerRefusal, is_passing

if TYPE_CHECKING:
    from lmql_lite.models.openai.client import Client

Found = TypeVar("Found")

OPTIONAL = (
    "stream_options",
    "return_tokens_as_token_ids",
    "return_token_ids",
    "return_tokens",
    "timings_per_token",
    "repetition_penalty",
    "repeat_penalty",
    "cache_prompt",
    "seed",
    "stop",
)
"""Fields that may be left out if a server refuses them, without changing the question."""
PUSHED = ("response_format", "structured_outputs", "grammar", "json_schema", "ebnf")
"""Fields that constrain the answer. They may be left out, too, because every answer is checked on arrival."""
WIDTHS = ("top_logprobs", "logprobs", "n_probs")
_NARROW = 5
"""Alternatives that are asked for where a server refuses more: the oldest route reports as many."""
_LENGTH = re.compile(
    r"context (?:length|window|size)|max_model_len|max(?:_completion)?_tokens\W.*(?:too large|at most)", re.I
)
_FULL = re.compile(
    r"even without any output|available context size|resulted in \d+ tokens|is longer than the model's", re.I
)
"""Messages about a prompt that does not fit even alone: of vLLM, llama.cpp, OpenAI and SGLang."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Accepted request, as finally sent, and the events of its response. `requests` is the number sent for it."""

    body: Body
    requests: int
    events: AsyncGenerator[dict[str, Any], None]
    is_shortened: bool
    """The request asks for fewer tokens than its caller, because the server's context has no room for more."""


class Sender:
    """Sends requests in a form that the server accepts. It remembers what was refused."""

    def __init__(self, client: Client, name: str, vocabulary: Vocabulary) -> None:
        self.client = client
        self.dialect = Dialect("unknown", CAN["unknown"])
        """The server, as far as it is known, without capabilities that it refused."""
        self._name = name
        self._vocabulary = vocabulary
        self._refused: defaultdict[str, set[str]] = defaultdict(set)
        """Fields that each route refused."""

    @asynccontextmanager
    async def send(self, body: Body) -> AsyncIterator[Exchange]:
        """Posts the request; leaving the block closes it. Raises ServerRefusal if the server accepts no form of it."""
        url = self.dialect.route(body, self.client.address.root)
        refused = self._refused[url]
        for name in refused & body.keys():
            body = _without(body, name)
        sent, is_shortened = 0, False
        while True:
            async with AsyncExitStack() as stack:
                try:
                    requests, events = await stack.enter_async_context(self.client.ask(url, body))
                except ServerRefusal as refusal:
                    sent = refusal.requests = sent + refusal.requests
                    less = _shorter(body, refusal)
                    is_shortened |= less is not None
                    body = less or self._otherwise(body, refusal, refused)
                else:
                    yield Exchange(body, sent + requests, events, is_shortened)
                    return

    async def answered(self, body: Body, read: Callable[[Exchange], Awaitable[Found]]) -> tuple[Found, int]:
        """Result of `read`, and the number of requests: an answer that breaks off meanwhile is asked for again."""
        requests = tries = 0
        while True:
            try:
                async with self.send(body) as exchange:
                    requests += exchange.requests
                    return await read(exchange), requests
            except BrokenOff as error:
                tries += 1
                if tries == MAX_BROKEN:
                    raise broken_again(error) from None

    def read(self, event: dict[str, Any]) -> Delta:
        """Content of an event. Raises ModelError, or BrokenOff where asking again may help, for an error in it."""
        if error := event.get("error") or (event if event.get("object") == "error" else None):
            reason = error.get("message", error) if isinstance(error, dict) else error
            code = error.get("code") if isinstance(error, dict) else None
            message = f"the server of {self._name} failed in the middle: {self.client.address.clean(str(reason))}"
            if isinstance(code, int) and not is_passing(code):
                raise ModelError(message)
            self.client.slow_down(code)
            raise BrokenOff(message)
        delta = read(event, self._vocabulary)
        if delta.refused is not None:
            raise ModelError(f"{self._name} {self.client.address.clean(delta.refused)}")
        return delta

    async def deltas(self, exchange: Exchange) -> AsyncGenerator[Delta, None]:
        """Contents of the events of a response. A connection that breaks after the answer has finished is its end.

        Raises ModelError, if events arrive but nothing is in them for longer than a server may be silent, and the
        errors of `read`.
        """
        latest, is_finished, timeout = time.monotonic(), False, self.client.timeout
        try:
            async for event in exchange.events:
                delta = self.read(event)
                is_finished |= bool(delta.finish)
                is_empty = not (delta.text or delta.thought or delta.finish or delta.done)
                if is_empty and time.monotonic() - latest > timeout:
                    raise ModelError(
                        f"the server of {self._name} sent nothing but signs of life for {timeout:g} s",
                        hint="see its own log, or raise lmql_lite.model(..., timeout=...)",
                    )
                yield delta
                latest = latest if is_empty else time.monotonic()
        except BrokenOff:
            if not is_finished:
                raise

    def _otherwise(self, body: Body, refusal: ServerRefusal, refused: set[str]) -> Body:
        """Request to send instead, as far as the refusal names a field. Raises the refusal if it names none."""
        name = _refused_field(body, refusal) if refusal.status in (400, 422, 501) else None
        is_final = is_about_length(refusal.reason) or "messages" not in body or refused & {*LIMITS}
        if name is None or (name in LIMITS and is_final):
            raise refusal
        changed, can = _without(body, name), self.dialect.can
        if name in WIDTHS:
            width = max((int(changed[each]) for each in WIDTHS if each in changed), default=0)
            can = replace(can, alternatives=min(width, can.alternatives))
        elif name not in PUSHED:  # the server may refuse one grammar and accept the next
            refused.add(name)
            can = replace(can, takes_seeds=can.takes_seeds and name != "seed")
        self.dialect = replace(self.dialect, can=can)
        return changed


def _refused_field(body: Mapping[str, Any], refusal: ServerRefusal) -> str | None:
    """Field that a refusal names, if it may be left out or renamed."""
    names = [name for name in (*LIMITS, *WIDTHS, *OPTIONAL, *PUSHED) if name in body]
    if refusal.param is not None:
        named = refusal.param.split(".")[0]
        return named if named in names else None
    words = set(re.findall(r"\w+", refusal.reason))
    words |= {*PUSHED} if words & {"grammar", "schema", "regex"} else set()
    return next((name for name in names if name in words), None)


def _without(body: Body, name: str) -> Body:
    """Request in another form after a field was refused: fewer alternatives, another name, or without it."""
    body = dict(body)
    value = body.pop(name)
    if name in LIMITS:
        return body | {LIMITS[1 - LIMITS.index(name)]: value}
    if name in WIDTHS and value > _NARROW:
        return body | {name: _NARROW}
    return {field: each for field, each in body.items() if name not in WIDTHS or field not in WIDTHS}


def is_about_length(reason: str) -> bool:
    """True for a refusal because prompt and answer are too long together."""
    return _LENGTH.search(reason) is not None


def _shorter(body: Body, refusal: ServerRefusal) -> Body | None:
    """Request for half as many tokens if prompt and answer were too long together, else None."""
    if refusal.status not in (400, 413, 422) or not is_about_length(refusal.reason) or _FULL.search(refusal.reason):
        return None
    name = next((name for name in (*LIMITS, "n_predict") if name in body), None)
    return None if name is None or body[name] < 2 else body | {name: body[name] // 2}
