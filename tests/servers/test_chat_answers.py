"""Conditions on chats without a grammar: held by a JSON Schema, or told to the model; no hole asks for ever (R10)."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.server_grammar import pushed
from lmql_lite.constraints.terms import Matches, Term
from lmql_lite.engine.settings import MAX_HOLE_REQUESTS
from lmql_lite.engine.streams import GO_ON
from lmql_lite.models.answer_form import TOLD, AnswerForm
from lmql_lite.models.base import Capabilities, Completer, CompletionRequest, Prompt, StreamPiece
from lmql_lite.models.demo import DemoModel
from lmql_lite.models.openai.model import OpenAIModel
from tests.models.api import model
from tests.servers.kinds import OPENAI_CHAT
from tests.servers.stub import serving
from tests.tables import rows

SENTENCE = re.compile(
    r'It has to be (?:one of (?P<texts>"[^"]*"(?:, "[^"]*")*)|a text that matches \^.*?\$)'
    r'(?:, but not (?P<but>"[^.]*"))?\.'
)
CANNED = "I am not sure what you mean."
_QUERIES = "queries of a chat, each with a plausible first answer and the value that it should have"
QUERIES: dict[str, tuple[str, str, Any]] = {name: tuple(rest) for name, *rest in rows("servers/chat_answers", _QUERIES)}
"""The value is None where any will do."""
TOLD_ONLY = replace(OPENAI_CHAT, refuses=OPENAI_CHAT.refuses | {"response_format"})
"""A chat that takes no schemas: what may be answered is told to it."""


def persona(answer: str) -> Any:
    """A model of a chat: it answers plausibly, and obeys the sentence about what may be answered; asked to go on, it is
    at a loss."""

    def script(said: bytes) -> bytes:
        asked = said.decode()
        found = SENTENCE.search(asked)
        if found is None and GO_ON in asked:
            return CANNED.encode()[len(asked.rpartition(GO_ON)[2]) :]
        if found is None:
            begun = next(size for size in range(len(answer), -1, -1) if asked.endswith(answer[:size]))
            return answer[begun:].encode()
        wanted = chosen(found["texts"], found["but"] or "")
        return wanted.encode()[len(asked[found.end() :]) :]

    def chosen(texts: str | None, but: str) -> str:
        words = answer.strip(' ."').split()
        word = next((each for each in words if re.search("[0-9]", each)), words[-1])
        if texts:
            listed = json.loads(f"[{texts}]")
            return next((text for text in listed if text.lower() == word.lower()), listed[0])
        return "31" if word in but else word

    return script


def outcome(name: str, *, schemas: bool) -> Any:
    """The value, or None for an error."""
    source, answer, _ = QUERIES[name]
    config = OPENAI_CHAT if schemas else TOLD_ONLY
    config = replace(config, refuses=config.refuses | {"logprobs", "top_logprobs"})
    with serving(config, persona(answer)) as server:
        try:
            result = lq.run_sync(source, model=model(server), session=lq.Session(), max_tokens=60)
        except (lq.ConstraintError, lq.ModelError, lq.BudgetError):
            return None
        value = result["X"]
        return value if not hasattr(value, "isoformat") else value.isoformat()


@pytest.mark.parametrize("schemas", [False, True], ids=["told", "schemas"])
def test_of_seventeen_queries_at_least_fifteen_get_their_value_from_a_chat(schemas: bool) -> None:
    found = {name: outcome(name, schemas=schemas) for name in QUERIES}
    expected = {name: value for name, (_, _, value) in QUERIES.items() if value is not None}
    failed = [name for name, value in found.items() if value is None]
    assert len(failed) <= 2, failed
    if not schemas:  # of the values that a schema allows the stub takes any
        assert {name: found[name] for name in expected if name not in failed} == expected


@pytest.mark.parametrize("schemas", [False, True], ids=["told", "schemas"])
@pytest.mark.parametrize("name", ["choice", "bounded number", "date", "two holes"])
def test_a_chat_says_the_same_without_a_cache_and_nothing_twice_law_1(name: str, schemas: bool) -> None:
    source, answer, _ = QUERIES[name]
    with serving(OPENAI_CHAT if schemas else TOLD_ONLY, persona(answer)) as server:
        asked, session = model(server), lq.Session()
        first = lq.run_sync(source, model=asked, session=session)
        requests = server.requests
        # a query that asks the same freely leaves nothing that counts
        lq.run_sync(source.partition(" where")[0], model=asked, session=session)
        freely, again = server.requests, lq.run_sync(source, model=asked, session=session)
        assert (again.prompt, server.requests) == (first.prompt, freely)
        assert lq.run_sync(source, model=asked, session=session, cache=False).prompt == first.prompt
        assert requests > 0


def test_the_allowed_answers_are_told_in_one_sentence_which_an_option_leaves_out() -> None:
    source, answer, _ = QUERIES["choice"]
    sentence = TOLD.format(allowed='one of "Lyon", "Paris"')
    with serving(TOLD_ONLY, persona(answer)) as server:
        lq.run_sync(source, model=model(server), session=lq.Session())
        assert server.bodies[-1]["messages"][-1]["content"] == f"Capital of France?\n\n{sentence}"
        lq.run_sync(source, model=model(server), session=lq.Session(), tell_answers=False)
        assert server.bodies[-1]["messages"][0]["content"] == "Capital of France?"
    with serving(OPENAI_CHAT, persona(answer)) as server:
        lq.run_sync(source, model=model(server), session=lq.Session())
        assert server.bodies[-1]["messages"][-1]["content"] == "Capital of France?", "a schema says it all"


def test_a_schema_that_the_server_does_not_hold_to_is_followed_by_the_sentence() -> None:
    """As behind a gateway that drops it."""
    source, answer, value = QUERIES["number"]
    with serving(OPENAI_CHAT, persona(answer)) as server:
        assert lq.run_sync(source, model=Ignoring(model(server)), session=lq.Session())["X"] == value


class Ignoring(Completer):
    """Schemas are dropped on the way."""

    def __init__(self, asked: OpenAIModel) -> None:
        self.name, self.place, self._asked = asked.name, asked.place, asked

    async def probe(self, known: Capabilities | None = None) -> Capabilities:
        return await self._asked.probe(known)

    def stream(self, prompt: Prompt, request: CompletionRequest) -> AsyncGenerator[StreamPiece, None]:
        return self._asked.stream(prompt, replace(request, pushed=None))


def test_no_hole_asks_more_often_than_it_may() -> None:
    """A condition that forbids what the model says most: it had 1,024 requests for one hole."""
    source = '"A good dad joke.\\nQ:[X]" where not "e" in X and not "o" in X and len(X) > 200'
    assert MAX_HOLE_REQUESTS == 32
    with serving(OPENAI_CHAT, DemoModel.load()) as server:
        asked = model(server)
        asyncio.run(asked.probe())
        met = server.requests
        with pytest.raises(lq.BudgetError) as caught:
            lq.run_sync(source, model=asked, session=lq.Session(), max_hole_requests=1)
        assert server.requests == met + 1
        assert "[X] has used its 1 request" in caught.value.message and caught.value.hint


def test_a_plan_shows_where_answers_are_told() -> None:
    with serving(TOLD_ONLY, "Paris") as server:
        asked = model(server)
        asyncio.run(asked.probe())
        query = lq.compile(QUERIES["choice"][0])
        assert [hole.way for hole in query.plan(model=asked).holes] == ["told"]
        assert [hole.way for hole in query.plan(model=asked, tell_answers=False).holes] == ["freely"]


@pytest.mark.parametrize(
    ("term", "pattern"),
    [
        (Matches("[A-F]{2}-[0-9]{3}"), r"[A-F][A-F]\-[0-9][0-9][0-9]"),
        (Matches("a+b?"), "a(?:[a-b](?:[a-b][a-b]*)?)?"),
        (Matches("(?:x|yz)*!"), None),
        (Matches("0|-?[1-9][0-9]*"), None),
    ],
)
def test_a_pattern_matches_all_that_the_condition_allows(term: Term, pattern: str | None) -> None:
    found = pushed([Automaton(term)])
    assert found is not None
    form = AnswerForm.of(found.language, is_in_prompt=True)
    assert form is not None and form.pattern and (pattern is None or form.pattern == pattern)
    chance = random.Random(1)
    for _ in range(300):
        text = "".join(chance.choice("abxyz!AF-019") for _ in range(chance.randrange(8)))
        assert re.fullmatch(form.pattern, text) or not found.language.accepts(text), text


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ('{"answer": "yes"}', " yes"),
        ('```json\n{"answer": "No"}\n```', " no"),
        ('"Yes."', " yes"),
        (" YES!\n", " yes"),
        ("maybe", "maybe"),
        ('{"other": 1}', '{"other": 1}'),
    ],
)
def test_an_answer_is_read_however_it_is_wrapped(answer: str, text: str) -> None:
    assert AnswerForm(" ", ("yes", "no")).read(answer) == text
