"""`prefill`: holes that are given their text, and the last of them only its beginning."""

from __future__ import annotations

from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine.session import Session
from tests.servers.kinds import LLAMA_CPP, VLLM, Config
from tests.servers.stub import serving
from tests.tables import cases

TWO = '"Pick:[C] then[D]" where C in [" red", " green"] and len(TOKENS(D)) < 5'


def test_a_run_that_goes_on_from_its_own_beginning_says_the_same(session: Session) -> None:
    query = lq.compile('"Once upon a time[STORY]" where len(TOKENS(STORY)) < 12')
    whole = query.run_sync(session=session)
    text, said = "", [token for token in whole.tokens if token.hole == "STORY"]
    for token in said:
        again = query.run_sync(session=session, prefill=[("STORY", text)])
        assert again["STORY"] == whole["STORY"]
        assert again.usage.forward_passes == 0, "what is shared was never asked for again"
        text += token.data.decode()


@cases("engine/prefill", "a text that does not fit is a sentence", globals())
def test_a_text_that_does_not_fit_is_a_sentence(
    session: Session, prefill: Any, error: type[lq.LmqlLiteError], sentence: str
) -> None:
    with pytest.raises(error) as raised:
        lq.run_sync(TWO, session=session, prefill=prefill)
    assert sentence in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize("config", [VLLM, LLAMA_CPP], ids=["vllm", "llama.cpp"])
def test_a_server_goes_on_from_the_text(config: Config) -> None:
    with serving(config, "Say: hello there\nYou say: stop\n") as server:
        model = lq.model(f"openai/{server.config.model}", base_url=server.base_url)
        query = '"Say:[A][B]" where STOPS_AT(A, "o") and STOPS_BEFORE(B, "\\n")'
        result = lq.run_sync(query, model=model, prefill=[("A", " hello"), ("B", " the")])
    assert (result["A"], result["B"]) == (" hello", " there")
    assert result.prompt == "Say: hello there"
