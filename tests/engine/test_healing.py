"""Prompts that end inside a token of the server's, which cuts them itself (S10)."""

from __future__ import annotations

from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine.healing import tail
from lmql_lite.errors import BudgetError
from lmql_lite.models.base import PromptTurn
from tests.servers.kinds import LLAMA_CPP, LLAMA_CPP_PYTHON, SGLANG, VLLM, Config
from tests.servers.scored import ScoredCompleter
from tests.servers.stub import serving
from tests.tables import cases

CAPITAL = "Q: What is the capital of France?\nA: Paris\n"
ASKED = '"Q: What is the capital of France?\\nA: [X]" where STOPS_AT(X, "\\n")'


def served(script: Any, *words: bytes, **able: Any) -> ScoredCompleter:
    return ScoredCompleter(lq.ScriptedModel(script, words=words), **able)


@pytest.mark.parametrize("able", [{}, {"takes_languages": True}, {"stops": 1}], ids=["plain", "grammar", "stops"])
def test_a_blank_before_the_answer_is_said_by_the_model_with_its_word(able: Any, session: lq.Session) -> None:
    model = served(CAPITAL, b" Paris", **able)
    result = lq.run_sync(ASKED, model=model, session=session)
    assert result["X"] == "Paris\n"
    assert result.prompt == CAPITAL
    assert [prompt[0].text for prompt in model.prompts] == [CAPITAL.removesuffix(" Paris\n")]
    assert model.said == 2, "one word, and the end of the line"


def test_where_the_model_does_not_say_the_blank_the_prompt_is_sent_with_it(session: lq.Session) -> None:
    model = served(lambda text: b"yes\n"[len(text) - 3 :] if text.startswith(b"A: ") else b"\nno\n")
    result = lq.run_sync('"A: [X]" where STOPS_AT(X, "\\n")', model=model, session=session)
    assert (result["X"], result.usage.requests) == ("yes\n", 2)
    assert [prompt[0].text for prompt in model.prompts] == ["A:", "A: "]
    assert lq.run_sync('"A: [X]" where STOPS_AT(X, "\\n")', model=model, session=session).usage.requests == 0


def test_the_limit_of_requests_counts_the_one_that_went_astray(session: lq.Session) -> None:
    model = served(lambda text: b"\nno\n")
    with pytest.raises(BudgetError):
        lq.run_sync('"A: [X]" where STOPS_AT(X, "\\n")', model=model, session=session, max_requests=1)
    assert model.requests == 1


def test_signs_that_begin_a_longer_token_are_said_again_under_rules(session: lq.Session) -> None:
    model = served("12*7=84>>> and so on\n", b">>", b">>>", takes_languages=True)
    result = lq.run_sync('"12*7=84>>[X]"', model=model, session=session)
    assert result["X"] == "> and so on\n"
    assert (model.prompts[0][0].text, model.sent[0].begin) == ("12*7=84", ">>")
    assert model.sent[0].pushed is None, "what comes after them is free"


def test_signs_are_sent_as_they_stand_where_nothing_holds_the_model_to_them(session: lq.Session) -> None:
    model = served("12*7=84>>> and so on\n", b">>", b">>>")
    lq.run_sync('"12*7=84>>[X]" where STOPS_AT(X, "\\n")', model=model, session=session)
    assert [prompt[0].text for prompt in model.prompts] == ["12*7=84>>"]


def test_what_the_model_has_said_is_never_said_again(session: lq.Session) -> None:
    model = served("one, two, three, four\n", takes_languages=True)
    source = '"one[A][B]" where len(A) == 5 and STOPS_AT(B, "\\n")'
    result = lq.run_sync(source, model=model, session=session, cache=False)
    assert (result["A"], result["B"]) == (", two", ", three, four\n")
    assert [(prompt[0].text, request.begin) for prompt, request in zip(model.prompts, model.sent, strict=True)] == [
        ("one", ""),
        ("one, two", ""),
    ]


def test_healed_or_not_a_run_without_a_cache_says_the_same_law_1(session: lq.Session) -> None:
    source = '"A list:\\n"\nfor i in range(3):\n    "- [X]" where STOPS_AT(X, "\\n")'
    script = "A list:\n- Sun\n- Hat\n- Map\nand so on\n"
    for able in ({}, {"takes_languages": True}):
        with_cache = lq.run_sync(source, model=served(script, b" Sun", b" Hat", **able), session=session)
        without = lq.run_sync(source, model=served(script, b" Sun", b" Hat", **able), session=session, cache=False)
        assert with_cache.prompt == without.prompt == script.removesuffix("and so on\n")


def test_a_turn_of_a_chat_that_has_begun_is_healed_where_the_server_goes_on_with_it(session: lq.Session) -> None:
    source = '"{:user}Which city?{:assistant}It is [X]" where STOPS_AT(X, ".")'

    def script(text: bytes) -> bytes:
        _, _, said = text.partition(b"It is")
        return b"Rome." if said == b" " else b" Paris."[len(said) :]

    model = served(script, b" Paris")
    assert lq.run_sync(source, model=model, session=session)["X"] == "Paris."
    assert model.prompts[0][-1] == PromptTurn("assistant", "It is")


@pytest.mark.parametrize("config", [VLLM, SGLANG, LLAMA_CPP, LLAMA_CPP_PYTHON], ids=lambda config: config.kind)
@pytest.mark.parametrize("condition", ["STOPS_AT(X, '!')", "X in ['> Q!', '>> Q!']"], ids=["freely", "held"])
def test_every_kind_of_server_that_takes_rules_is_held_to_what_is_said_again(
    config: Config, condition: str, session: lq.Session
) -> None:
    speaker = lq.ScriptedModel("84>>> Q!" * 2, words=(b">>", b">>>"))
    with serving(config, speaker) as server:
        model = lq.model("openai/stub", base_url=server.base_url)
        result = lq.run_sync(f'"84>>[X]" where {condition}', model=model, session=session)
    assert (result["X"], result.usage.requests) == ("> Q!", 1)
    assert server.bodies[-1]["prompt"] == "84"


# The parts -----------------------------------------------------------------------------------------------------------


@cases("engine/healing", "what may be the beginning of a token", globals())
def test_what_may_be_the_beginning_of_a_token(text: str, again: str) -> None:
    assert tail(text) == again
    assert text.endswith(again)
