"""Queries that a hole calls (S26): on servers, with other models, and left early. More in `programs/`."""

from __future__ import annotations

from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from tests.engine.test_programs import speaking
from tests.engine.watched import watched
from tests.servers.kinds import OPENAI_CHAT, VLLM
from tests.servers.stub import serving

ANSWER = '{"answer":"b"}'


@lq.query
def one_of(options: list[str]) -> str:
    """lq
    "(one of {', '.join(options)}) [ANSWER]" where ANSWER in options
    return ANSWER
    """


@pytest.mark.parametrize("config", [VLLM, OPENAI_CHAT], ids=["vllm", "chat"])
def test_on_a_server(session: lq.Session, config: Any) -> None:
    def script(text: bytes) -> bytes:
        said = text.decode()
        asked, _, begun = said.rpartition("(one of a, b) ")
        if asked and config is OPENAI_CHAT and ANSWER.startswith(begun):
            return ANSWER[len(begun) :].encode()  # a chat is held by a schema
        endings = {"(one of a, b)": b" b", "(one of a, b) ": b"b", ".": b" ok"}
        return next((goes_on for end, goes_on in endings.items() if said.endswith(end)), b"")

    with serving(config, script) as server:
        model = lq.model(f"openai/{server.config.model}", base_url=server.base_url, api_key="x")
        source, inputs = '"X=[X: one_of(ab)].[Y]" where len(Y) < 9', {"one_of": one_of, "ab": ["a", "b"]}
        result = lq.run_sync(source, inputs, model=model, session=session)
    assert result["X"] == "b"
    assert result.prompt == f"X=b.{result['Y']}"
    assert any(token.fate == "removed" for token in result.tokens)


def test_a_query_with_another_model_than_the_run_is_refused(session: lq.Session) -> None:
    model, other = speaking(("one word: ", "five"), ("= five.", " So.")), speaking(("one word: ", "six"))

    @lq.query(model=model)
    def word() -> str:
        """lq
        " In one word: [W]"
        return W
        """

    source = '"2 + 3 = [X: word].[Y]"\nreturn X, Y'
    assert lq.run_sync(source, {"word": word}, model=model, session=session).value == ("five", " So.")
    with pytest.raises(lq.QueryError, match=r"word has a model of its own, but the model of the run fills \[X\]"):
        lq.run_sync(source, {"word": word}, model=other, session=session)
    named = '@query\ndef word():\n    """lq\n    argmax\n        "[W]"\n    from "demo"\n    """\n"[X: word]"'
    with pytest.raises(lq.QueryError, match="has a model of its own"):
        lq.run_sync(named, model=other, session=session)


def test_the_answer_has_the_type_of_the_return_annotation() -> None:
    @lq.query
    def number() -> float:
        """lq
        "as a number: [N: int]"
        return N
        """

    result = lq.run_sync('"[X: number]"\nreturn X', {"number": number}, model=speaking(("number: ", "4.")))
    assert isinstance(result.value, float)


def test_a_called_query_of_a_run_that_is_left_runs_its_finally() -> None:
    log: list[str] = []
    source = '''
@query
def called(items):
    """lq
    try:
        "[A]" where len(A) == 1
        "[B]" where len(B) == 1
    finally:
        "end"
        items.append("inner")
    """
try:
    "[X: called(log)]"
finally:
    log.append("outer")
'''

    watched(source, {"log": log}, events.HoleClosed, model="demo")
    assert log == ["inner", "outer"]
