"""Model calls = branch points: what is forced is not asked for, what is undecided is asked for once (S10, S18)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lmql_lite as lq
from tests.conftest import examples

PLACES = ["Paris", "Parma", "Padua", "Pavia", "Palermo", "Rome", "Romania", "São Paulo", "Süd"]


def branch_points(options: list[str], value: str) -> int:
    """The places on the way of a text at which the options, the end of one included, leave more than one byte."""
    texts, said = [option.encode() for option in options], value.encode()
    return sum(
        len({text[at : at + 1] for text in texts if text.startswith(said[:at])}) > 1 for at in range(len(said) + 1)
    )


@settings(max_examples=examples(150), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    options=st.lists(st.text("abé日", max_size=6), min_size=1, max_size=7, unique=True),
    seed=st.integers(0, 99),
    decoder=st.sampled_from(["argmax", "sample"]),
)
def test_a_choice_costs_one_call_per_branch_point_and_fixed_text_none(
    options: list[str], seed: int, decoder: str
) -> None:
    # a vocabulary of single bytes: no token can decide two branch points at once
    model = lq.ScriptedModel("", certainty=0, seed=seed, words=())
    source = f'"Which? [X], says {{who}}: [Y]." where X in {options} and Y == "fixed"'
    result = lq.run_sync(source, {"who": "é"}, model=model, session=lq.Session(), decoder=decoder, seed=seed)
    assert result["X"] in options
    assert result.prompt == f"Which? {result['X']}, says é: fixed."
    assert result.usage.forward_passes == model.calls == branch_points(options, result["X"])


@pytest.mark.parametrize("model", ["demo", "scripted"])
def test_a_token_may_decide_several_branch_points(model: str) -> None:
    scorer = lq.ScriptedModel("Where? Option", certainty=0) if model == "scripted" else "demo"
    for seed in range(5):
        source = f'"Where?[X]\\n" where X in {[" " + place for place in PLACES]}'
        result = lq.run_sync(source, model=scorer, session=lq.Session(), decoder="sample", seed=seed)
        assert 0 < (result.usage.forward_passes or 0) <= branch_points(PLACES, result["X"][1:])
