"""Prompts that end inside a token of the server's, which cuts them itself (S10)."""

from __future__ import annotations

from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine.healing import tail
from lmql_lite.errors import BudgetError
from tests.servers.kinds import LLAMA_CPP, SGLANG, VLLM, Config
from tests.servers.scored import ScoredCompleter
from tests.servers.stub import serving
from tests.tables import cases


def served(script: Any, *words: bytes, **able: Any) -> ScoredCompleter:
    return ScoredCompleter(lq.ScriptedModel(script, words=words), **able)


def test_the_limit_of_requests_counts_the_one_that_went_astray(session: lq.Session) -> None:
    model = served(lambda text: b"\nno\n")
    with pytest.raises(BudgetError):
        lq.run_sync('"A: [X]" where STOPS_AT(X, "\\n")', model=model, session=session, max_requests=1)
    assert model.requests == 1


def test_what_the_model_has_said_is_never_said_again(session: lq.Session) -> None:
    model = served("one, two, three, four\n", takes_languages=True)
    source = '"one[A][B]" where len(A) == 5 and STOPS_AT(B, "\\n")'
    result = lq.run_sync(source, model=model, session=session, cache=False)
    assert (result["A"], result["B"]) == (", two", ", three, four\n")
    assert [(prompt[0].text, request.begin) for prompt, request in zip(model.prompts, model.sent, strict=True)] == [
        ("one", ""),
        ("one, two", ""),
    ]


@pytest.mark.parametrize("config", [VLLM, SGLANG, LLAMA_CPP], ids=lambda config: config.kind)
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
