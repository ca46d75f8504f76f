"""smc: weighted branches, of which one is drawn (S36). `tests/properties/test_fair_draws.py` has its distribution."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

import lmql_lite as lq
from lmql_lite.cache.tokens.nodes import Answer
from lmql_lite.cache.tokens.outcomes import Outcomes, thinned
from lmql_lite.cache.tokens.recorded import _stored, line_of_row
from lmql_lite.cache.tokens.rows import (
    ModelName,
    RowError,
    TreeRow,
    packed_answer,
    packed_question,
    packed_tokens,
    place_below,
    unpacked_answer,
)
from tests.servers.scored import ScriptedCompleter
from tests.tables import cases

SERVER = ScriptedCompleter("Say:ab-c!")
LETTERS = '"Say:[A]-[B]!" where REGEX(A, "[ab]{2}") and REGEX(B, "[abc]")'


def noisy(seed: int = 1) -> lq.ScriptedModel:
    return lq.ScriptedModel("", certainty=0, seed=seed, words=())


def run(source: str, model: Any = None, **options: Any) -> lq.Result:
    options = {"decoder": "smc", "seed": 1, "session": lq.Session(), **options}
    found = lq.run_sync(source, model=model or noisy(), **options)
    assert isinstance(found, lq.Result)
    found.check_ledger()
    return found


@pytest.mark.parametrize("size", [3, 20, 200])
def test_thinning_keeps_every_expectation_and_the_sum(size: int) -> None:
    weights, draws, most = np.random.default_rng(size).dirichlet(np.full(size, 0.2)), 4000, 16
    mean = np.zeros(size)
    for at in range(draws):
        kept = thinned(weights, most, (at + 0.5) / draws)
        assert kept.places.size <= most
        assert kept.weights.sum() == pytest.approx(1.0)
        mean[kept.places] += kept.weights / draws
    assert mean == pytest.approx(weights, abs=2e-4)


def test_the_posterior_has_every_text_with_its_weight() -> None:
    found = run(LETTERS, particles=64).posterior
    assert found is not None
    assert found.is_exact
    assert len(found.texts) == 12
    assert math.fsum(text.weight for text in found.texts) == pytest.approx(1)
    assert [text.weight for text in found.texts] == sorted((text.weight for text in found.texts), reverse=True)
    assert 1 <= found.effective <= 12
    assert found.texts[0].text == f"Say:{found.texts[0].variables['A']}-{found.texts[0].variables['B']}!"


def test_probabilities_of_values_are_those_of_the_posterior() -> None:
    result = run(LETTERS)
    assert result.posterior is not None
    assert result["P(A)"] == result.posterior.p("A")
    assert math.fsum(share for _, share in result["P(B)"]) == pytest.approx(1)
    summed: Counter[str] = Counter()
    for text in result.posterior.texts:
        summed[text.variables["A"]] += text.weight
    assert dict(result["P(A)"]) == pytest.approx(dict(summed))
    with pytest.raises(KeyError, match="no hole 'C' was filled"):
        result.posterior.p("C")


def test_results_are_drawn_by_their_weights() -> None:
    model, session = noisy(2), lq.Session()
    drawn = Counter(run(LETTERS, model, particles=64, seed=seed, session=session)["B"] for seed in range(80))
    result = run(LETTERS, model, particles=64, session=session)
    for value, share in result["P(B)"]:
        assert drawn[value] / 80 == pytest.approx(share, abs=0.12)


def test_values_that_python_rejects_have_no_weight() -> None:
    result = run('def fits(x):\n    return x != "aa"\n"Say:[A]" where REGEX(A, "[ab]{2}") and fits(A)', particles=64)
    assert result.posterior is not None
    assert {text.variables["A"] for text in result.posterior.texts} == {"ab", "ba", "bb"}
    with pytest.raises(lq.ConstraintError, match=r"\[A\] has no value that meets `fits\(A\)`: the last of 4 values"):
        run('def fits(x):\n    return False\n"Say:[A]" where REGEX(A, "[ab]{2}") and fits(A)', particles=64)


def test_a_value_that_max_tokens_cuts_counts_and_is_said() -> None:
    result = run('"Say:[A]"', max_tokens=2, particles=4)
    assert any("[A] was cut at max_tokens=2 in" in notice for notice in result.notices)


def test_branches_of_a_query_have_weights_of_their_whole_texts() -> None:
    result = run('"Say:[A]" where A in ["a", "b"]\nif A == "a":\n    "x[B]" where B in ["c", "d"]', particles=64)
    assert result.posterior is not None
    assert {text.text for text in result.posterior.texts} == {"Say:axc", "Say:axd", "Say:b"}
    assert math.fsum(share for _, share in result.posterior.p("B")) < 1


def test_a_recording_answers_with_the_same_posterior(tmp_path: Any) -> None:
    name = str(tmp_path / "x.tokens")
    one = run(LETTERS, cache=name)
    again = run(LETTERS, cache=name, cache_mode="replay")
    assert (again.prompt, again.posterior) == (one.prompt, one.posterior)
    with pytest.raises(lq.CacheError, match=r"another seed|no answer"):
        run('"Say:[A]" where REGEX(A, "[ -~]{3}")', cache=name, cache_mode="replay", seed=2)


def test_outcomes_survive_a_recording_of_json_lines() -> None:
    ids, logprobs = np.array([5, 7], np.int32), np.array([-0.5, -np.inf], np.float32)
    answer = Answer(5, -0.5, 0, outcomes=Outcomes(ids, logprobs, logprobs + np.float32(0.25)))
    model, place = ModelName("f", "m", 9), place_below(0, 3)
    row = TreeRow(place, packed_question((bytes(16), 1, 0)), 0, packed_tokens([3]), packed_answer(answer))
    assert _stored(json.loads(line_of_row((model, 0, row)))) == (model, 0, row)
    read = unpacked_answer(row.value)
    assert read.outcomes is not None
    assert read.outcomes.weights.tolist() == [-0.25, -math.inf]
    with pytest.raises(RowError, match="cut short"):
        unpacked_answer(row.value[:-1])


@cases("engine/decode/smc", "what would change the distribution is refused by name", globals())
def test_what_would_change_the_distribution_is_refused_by_name(
    source: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(lq.LmqlLiteError, match=message):
        run(source, **options)


def test_options_without_effect_are_allowed() -> None:
    assert run(LETTERS, temperature=1.0, top_p=1.0, frequency_penalty=0.0).posterior is not None


def test_smc_in_a_hole_is_refused() -> None:
    with pytest.raises(lq.QueryError, match=r"smc weighs whole texts, so \[A\] cannot have it alone"):
        lq.compile('"Say:[smc(n=1) A]"')
