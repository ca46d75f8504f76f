"""Options of decoders: one table for header, call and hole; what is wrong is said with its place and a remedy."""

from __future__ import annotations

from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine.budget import STEP_BUDGET
from lmql_lite.engine.settings import BEAM_WIDTH, checked
from lmql_lite.errors import Span
from lmql_lite.lang.keywords import DECODERS_NOT_YET
from lmql_lite.options import INSTEAD, STEERED, Sampling
from tests.tables import cases

PLACE = Span("q.lq", "[sample(n=2) X]", 1, 12)


def at_hole(decoder: str, run: Sampling = Sampling(seed=5), **values: Any) -> Sampling:  # noqa: B008
    return checked({}).at_hole("X", decoder, PLACE, values, dict.fromkeys(values, PLACE), run)


@cases("engine/settings", "a wrong option is refused with a remedy", globals())
def test_a_wrong_option_is_refused_with_a_remedy(options: dict[str, Any], sentence: str, hint: str | None) -> None:
    with pytest.raises(lq.InputError) as caught:
        checked(options)
    assert sentence in caught.value.message
    assert hint is None or hint in (caught.value.hint or "")


def test_a_cache_beside_a_header_that_wants_none_is_refused() -> None:
    with pytest.raises(lq.InputError, match="which cache_mode='ro' contradicts"):
        lq.run_sync('argmax(use_caches=False)\n    "a"', model=lq.ScriptedModel(""), cache_mode="ro")


@pytest.mark.parametrize("name", sorted(INSTEAD))
def test_every_option_of_LMQL_that_is_not_ours_says_what_to_write(name: str) -> None:
    with pytest.raises(lq.QueryError) as caught:
        lq.compile(f'argmax({name}=1)\n    "[X]"')
    assert caught.value.hint == INSTEAD[name]
    assert caught.value.span is not None and caught.value.span.source.startswith(name)


@pytest.mark.parametrize("name", sorted(STEERED))
def test_every_option_of_LMQL_that_only_steered_requests_is_left_out_with_a_notice(name: str) -> None:
    result = lq.run_sync(f'argmax({name}=1)\n    "Say:[X]"', model=lq.ScriptedModel("Say: hi"))
    assert result.notices == (f"the option {name} is ignored: it changed no answer",)
    assert checked({name: 1}).given == {}


@pytest.mark.parametrize("name", DECODERS_NOT_YET)
def test_every_decoder_of_LMQL_that_is_not_here_names_the_nearest(name: str) -> None:
    for query in (f'{name}(b=2)\n    "[X]"', f'"[{name}(b=2) X]"'):
        with pytest.raises(lq.QueryError, match="does not have the decoder") as caught:
            lq.compile(query)
        assert "is nearest" in (caught.value.hint or "")


def test_what_a_run_asks_for_is_what_call_and_header_say() -> None:
    assert checked({"decoder": "Beam_Search"}).decoder == "beam"
    assert checked({"decoder": "beam"}).results == BEAM_WIDTH
    assert checked({"decoder": "beam", "n": 2}).results == 2
    assert checked({"decoder": "sample"}).results == 1
    assert checked({}).decoder_name == "argmax"
    assert checked({"temperature": 0.3}).decoder_name == "sample"
    assert checked({}).steps == STEP_BUDGET
    assert checked({"step_budget": 7}).over(checked({"step_budget": 9})).steps == 7
    assert checked({"decoder": "beam_sample"}).sampling().temperature == 1
    policy = checked({"decoder": "sample", "frequency_penalty": 1, "top_k": 3, "seed": 4}).sampling()
    assert policy == Sampling(1.0, 3, seed=4, frequency_penalty=1)


def test_another_decoder_leaves_behind_what_belongs_to_the_one_in_the_header() -> None:
    drawing = checked({"decoder": "sample", "temperature": 2.0, "n": 3, "top_k": 5})
    assert checked({"decoder": "argmax"}).over(drawing).given == {"decoder": "argmax", "top_k": 5}
    assert checked({"decoder": "argmax"}).over(drawing).sampling().temperature == 0
    assert checked({"decoder": "beam"}).over(drawing).given == {"decoder": "beam", "n": 3, "top_k": 5}
    assert checked({"decoder": "beam_sample"}).over(drawing).sampling().temperature == 2.0
    with pytest.raises(lq.InputError, match="argmax finds one result"):
        checked({"n": 3}).over(checked({"decoder": "argmax"}))
    with pytest.raises(lq.InputError, match="has no temperature"):
        checked({"temperature": 0.5}).over(checked({"decoder": "argmax"}))


def test_a_decoder_at_a_hole_says_how_its_tokens_are_chosen_and_the_run_says_the_rest() -> None:
    run = Sampling(1.2, top_p=0.9, seed=5, presence_penalty=0.5)
    assert at_hole("sample", run, temperature=0.8) == Sampling(0.8, top_p=0.9, seed=5, presence_penalty=0.5)
    assert at_hole("sample", run) == run
    assert at_hole("sample") == Sampling(1.0, seed=5)
    assert at_hole("ARGMAX", run).temperature == 0
    assert at_hole("beam", run, n=1).temperature == 0
    assert at_hole("beam_sample", n=1).temperature == 1
    assert at_hole("sample", run, top_k=None, n=1) == run


@cases("engine/settings", "a wrong option at a hole is refused at its place", globals())
def test_a_wrong_option_at_a_hole_is_refused_at_its_place(decoder: str, values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(lq.InputError) as caught:
        at_hole(decoder, **values)
    assert sentence in caught.value.message
    assert caught.value.span == PLACE
