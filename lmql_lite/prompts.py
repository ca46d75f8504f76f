"""`score` and `generate`: questions about one prompt, without a query."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Unpack

from lmql_lite.api import Query, RunOptions, compile
from lmql_lite.engine.blocking import blocked
from lmql_lite.engine.result import OptionScores
from lmql_lite.errors import InputError
from lmql_lite.program.values import texts_of


async def score(prompt: str, options: Iterable[str | int | float], **run: Unpack[RunOptions]) -> OptionScores:
    """Log-probability of each option as the text after the prompt, which is taken literally.

    All that is not known yet is one call of the model. The keywords are those of `Options`. Raises InputError for a
    prompt that is not text and for options that are none, ModelError where one does not fit or the model fails.

    >>> model = lq.ScriptedModel("A list:\\n- Sun")
    >>> asyncio.run(lq.score("A list:\\n-", [" Sun", " Hat"], model=model)).best
    ' Sun'
    """
    inputs = {"prompt": _literal(prompt), "options": texts_of(options)}
    settings: RunOptions = {"speculate": False, **run}
    result = await _own_query(SCORE).run(inputs, **settings)
    found: OptionScores = result.value
    return replace(found, usage=result.usage)


score_sync = blocked(
    score,
    """
    >>> lq.score_sync("A list:\\n-", [" Sun", " Hat"], model=lq.ScriptedModel("A list:\\n- Sun")).best
    ' Sun'
    """,
)


async def generate(prompt: str, *, stop: str | Sequence[str] = (), **options: Unpack[RunOptions]) -> str:
    """Text that the model generates after the prompt, which is taken literally and is not part of the answer.

    The text ends before the first `stop`, at end-of-text, or after `max_tokens` tokens. Options and errors as in
    `Query.stream`.

    >>> asyncio.run(lq.generate("A list:\\n-", stop="\\n", model=lq.ScriptedModel("A list:\\n- Sun\\n")))
    ' Sun'
    """
    stops = [stop] if isinstance(stop, str) else list(stop)
    if not all(isinstance(each, str) and each for each in stops):
        raise InputError(f"stop must be a text that is not empty, or a list of such texts; this is {stop!r}")
    if "n" in options:
        raise InputError("generate() returns one text and takes no n", hint="run a query with n for several results")
    inputs: dict[str, Any] = {"prompt": _literal(prompt)}
    if not stops:
        return str((await _own_query(GENERATE).run(inputs, **options))["TEXT"])
    return str((await _own_query(GENERATE_UNTIL).run({**inputs, "stops": stops}, **options))["TEXT"])


generate_sync = blocked(
    generate,
    """
    >>> lq.generate_sync("Say:", model=lq.ScriptedModel("Say: hi"))
    ' hi'
    """,
)

SCORE = '"{prompt}"\nreturn await context.score(options)'
GENERATE = '"{prompt}[TEXT]"'
GENERATE_UNTIL = '"{prompt}[TEXT]" where STOPS_BEFORE(TEXT, stops)'


@functools.cache
def _own_query(source: str) -> Query:
    return compile(source)


def _literal(prompt: str) -> str:
    if not isinstance(prompt, str):
        raise InputError(f"a prompt must be a text; this is {prompt!r}")
    return prompt
