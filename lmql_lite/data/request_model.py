"""Adapter of our models to the interface of evaluation harnesses: lists of requests in, lists of answers out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from lmql_lite.cache.responses.keys import ALIASES, TRANSPORT
from lmql_lite.cache.responses.request import AnyRequest, generation_options
from lmql_lite.engine.session import Session
from lmql_lite.errors import InputError
from lmql_lite.models.base import Model
from lmql_lite.prompts import generate, score

MAX_TOKENS = 256
"""Tokens of an answer where the request names no number."""


class RequestModel:
    """One of our models, with the interface that `ResponseCache.aexecute` calls. The token tree of its session is used
    as in any run.

    The first argument of a request is the prompt; of a loglikelihood the second one is the continuation. Raises
    InputError for options that a query does not have.

        answers = await cache.aexecute(RequestModel("demo"), "generate_until", requests)

    >>> request = lq.Request("generate_until", ("Say:", {"max_tokens": 5}))
    >>> with lq.ResponseCache.open("eval_cache", model="scripted") as cache:
    ...     asyncio.run(
    ...         cache.aexecute(lq.RequestModel(lq.ScriptedModel("Say: hi")), "generate_until", [request])
    ...     )
    [' hi']
    """

    def __init__(self, model: str | Model, session: Session | None = None) -> None:
        self._model, self._session = model, session

    async def generate_until(self, requests: Sequence[AnyRequest]) -> AsyncIterator[str]:
        """Continuations of prompts, one by one, each up to the first of its stops."""
        for request in requests:
            options = _run_options(generation_options(request))
            stops = options.pop("stop", ())
            yield await generate(_text(request, 0), stop=stops, model=self._model, session=self._session, **options)

    async def loglikelihood(self, requests: Sequence[AnyRequest]) -> AsyncIterator[tuple[float, bool]]:
        """Log-probability of each continuation, and whether the model would have written it by itself."""
        for request in requests:
            prompt, continuation = _text(request, 0), _text(request, 1)
            scores = await score(prompt, [continuation], model=self._model, session=self._session)
            yield float(scores.logprobs[0]), await self._is_greedy(prompt, continuation)

    async def _is_greedy(self, prompt: str, continuation: str) -> bool:
        """True if the most likely text begins with a continuation. Few tokens are asked for first: most differ soon."""
        tokens = 1
        while True:
            text = await generate(prompt, model=self._model, session=self._session, max_tokens=tokens)
            if len(text) >= len(continuation) or not continuation.startswith(text):
                return text.startswith(continuation)
            if tokens > len(continuation.encode()):
                return False
            tokens *= 4


def _text(request: AnyRequest, place: int) -> str:
    if len(request.args) <= place or not isinstance(request.args[place], str):
        raise InputError(f"argument {place + 1} of a request is a text", hint="(prompt, options) or (prompt, text)")
    return str(request.args[place])


def _run_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a query's run for those of a request."""
    left = {name: value for name, value in given.items() if name not in TRANSPORT and value is not None}
    found: dict[str, Any] = {"max_tokens": MAX_TOKENS}
    for name, aliases in ALIASES.items():
        for alias in aliases:
            if alias in left:
                found[name] = left.pop(alias)
    temperature = float(left.pop("temperature", 0.0))
    if not left.pop("do_sample", temperature > 0) or temperature == 0:
        left.pop("top_p", None)
    else:
        found |= {"decoder": "sample", "temperature": temperature}
        found |= {name: left.pop(name) for name in ("top_p", "seed") if name in left}
    left = {name: value for name, value in left.items() if name not in ("n", "num_return_sequences") or value != 1}
    left.pop("seed", None)
    if left:
        raise InputError(f"a query has no option {sorted(left)[0]!r}", hint="leave it out of the request")
    return found
