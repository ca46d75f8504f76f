"""`prefill`: holes that are given their text, and the last of them only its beginning."""

from __future__ import annotations

from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine.session import Session
from lmql_lite.errors import ConstraintError, InputError
from tests.servers.kinds import LLAMA_CPP, VLLM, Config
from tests.servers.stub import serving

CAPITAL = '"Q: What is the capital of France?\\nA:[ANSWER]" where STOPS_BEFORE(ANSWER, "\\n")'
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


def test_the_text_stays_as_it_is_given(session: Session) -> None:
    """` P` is the beginning of the token ` Paris`, which would be chosen again."""
    result = lq.run_sync(CAPITAL, session=session, prefill=[("ANSWER", " P")])
    first = next(token for token in result.tokens if token.hole == "ANSWER")
    assert (first.data, first.source) == (b" P", "forced")
    assert result["ANSWER"].startswith(" P") and result["ANSWER"] != " Paris"


def test_all_but_the_last_are_whole(session: Session) -> None:
    result = lq.run_sync(TWO, session=session, prefill=[("C", " green"), ("D", " I")])
    assert result["C"] == " green" and result["D"].startswith(" I")
    assert result.endings["C"] == "forced"
    assert all(token.source == "forced" for token in result.tokens if token.hole == "C")


def test_a_pair_without_a_name_ends_the_list(session: Session) -> None:
    result = lq.run_sync(TWO, session=session, prefill=[("C", " green"), ("", "")])
    assert result["C"] == " green" and result["D"] and result.endings["C"] == "forced"


@pytest.mark.parametrize("options", [{"decoder": "beam", "n": 3}, {"decoder": "sample", "n": 3, "seed": 1}])
def test_every_result_begins_with_it(session: Session, options: dict[str, Any]) -> None:
    for result in lq.run_sync(TWO, session=session, prefill=[("C", " red"), ("D", " the")], **options):
        assert result["C"] == " red" and result["D"].startswith(" the")


def test_a_value_has_its_type_and_may_be_rejected_by_python(session: Session) -> None:
    query = lq.compile('"I ate [N: int] of [M: int]" where even(M)')
    result = query.run_sync({"even": lambda value: value % 2 == 0}, session=session, prefill=[("N", "12"), ("M", "4")])
    assert result["N"] == 12 and str(result["M"]).startswith("4")
    with pytest.raises(ConstraintError, match="even"):
        query.run_sync(
            {"even": lambda value: value % 2 == 0}, session=session, prefill=[("N", "12"), ("M", "7"), ("X", "")]
        )


def test_holes_of_a_called_query_are_counted_where_they_open(session: Session) -> None:
    @lq.query
    def colour() -> str:
        """lmql
        "a colour:[NAME]" where NAME in [" red", " green"]
        return NAME
        """
        raise NotImplementedError

    result = lq.run_sync(
        '"Say [C: colour] and[E]" where len(TOKENS(E)) < 3',
        {"colour": colour},
        session=session,
        prefill=[("C", ""), ("NAME", " green"), ("E", " so")],
    )
    assert result["C"] == " green" and result["E"].startswith(" so")


def test_a_distribution_becomes_the_option_that_is_given(session: Session) -> None:
    query = '"It is [MOOD]"\ndistribution\n    MOOD in ["good", "bad", "so-so"]'
    free = lq.run_sync(query, session=session)
    for mood in ("good", "bad", "so-so"):
        result = lq.run_sync(query, session=session, prefill=[("MOOD", mood)])
        assert result["MOOD"] == mood and result["P(MOOD)"] == free["P(MOOD)"]
    with pytest.raises(ConstraintError, match="'fine'"):
        lq.run_sync(query, session=session, prefill=[("MOOD", "fine")])


@pytest.mark.parametrize(
    ("prefill", "error", "sentence"),
    [
        ([("C", " blue"), ("D", "")], ConstraintError, "[C] cannot be ' blue'"),
        ([("C", " blu")], ConstraintError, "[C] cannot begin with ' blu'"),
        ([("C", " gre"), ("D", "")], ConstraintError, "[C] cannot be ' gre'"),
        ([("D", " I")], InputError, "prefill names [D] as hole 1 of the run, but [C] opens there"),
        ("C", InputError, "prefill is pairs (hole, text); this is 'C'"),
        ([("C", 3)], InputError, "prefill is pairs (hole, text)"),
    ],
)
def test_a_text_that_does_not_fit_is_a_sentence(
    session: Session, prefill: Any, error: type[lq.LmqlLiteError], sentence: str
) -> None:
    with pytest.raises(error) as raised:
        lq.run_sync(TWO, session=session, prefill=prefill)
    assert sentence in raised.value.message
    assert raised.value.hint


def test_more_texts_than_holes_are_no_fault(session: Session) -> None:
    result = lq.run_sync(CAPITAL, session=session, prefill=[("ANSWER", " Lyon"), ("NEXT", "")])
    assert result["ANSWER"] == " Lyon"
    assert result.usage.forward_passes == 0


@pytest.mark.parametrize("config", [VLLM, LLAMA_CPP], ids=["vllm", "llama.cpp"])
def test_a_server_goes_on_from_the_text(config: Config) -> None:
    with serving(config, "Say: hello there\nYou say: stop\n") as server:
        model = lq.model(f"openai/{server.config.model}", base_url=server.base_url)
        query = '"Say:[A][B]" where STOPS_AT(A, "o") and STOPS_BEFORE(B, "\\n")'
        result = lq.run_sync(query, model=model, prefill=[("A", " hello"), ("B", " the")])
    assert (result["A"], result["B"]) == (" hello", " there")
    assert result.prompt == "Say: hello there"
