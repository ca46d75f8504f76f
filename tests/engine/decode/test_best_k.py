"""best_k: the most likely open branches go on, wherever they are."""

from __future__ import annotations

import pytest

import lmql_lite as lq
from tests.engine.decode.test_beam import BRANCHES, continuations, noisy, run


@pytest.mark.parametrize("seed", range(4))
def test_best_k_with_room_finds_the_most_likely_text_of_all(seed: int) -> None:
    model = noisy(seed=seed)
    wanted = sorted(continuations(model), key=lambda pair: -pair[1])
    (found,) = run(BRANCHES, model, decoder="best_k", n=1, k=3, budget=1000)
    assert (found.prompt, found.score) == (wanted[0][0], pytest.approx(wanted[0][1]))
    several = run(BRANCHES, model, decoder="best_k", n=3, k=3, budget=1000)
    assert [result.prompt for result in several] == [prompt for prompt, _ in wanted[:3]]


@pytest.mark.parametrize("seed", range(6))
def test_a_branch_that_fell_behind_comes_back(seed: int) -> None:
    """With one way at a time, argmax never looks back; best_k(k=1) goes on with whatever is likeliest."""
    model = noisy(seed=seed)
    wanted = max(score for _, score in continuations(model))
    (found,) = run(BRANCHES, model, decoder="best_k", n=2, k=1, budget=1000)[:1]
    (greedy,) = run(BRANCHES, model, decoder="argmax", n=1)
    assert wanted + 1e-4 >= found.score >= greedy.score - 1e-4


def test_the_budget_bounds_what_waits_and_the_best_go_on_to_their_ends() -> None:
    model = noisy(seed=2)
    source = '"Say:[A]" where REGEX(A, r"[ab]{12}")'
    wide = run(source, model, decoder="best_k", n=2, k=1, budget=40)
    assert [len(result["A"]) for result in wide] == [12, 12]
    assert wide[0].usage.forward_passes is not None and wide[0].usage.forward_passes < 100


def test_the_same_run_gives_the_same_results_cold_and_warm() -> None:
    model, session = noisy(seed=3), lq.Session()
    cold, warm = (run(BRANCHES, model, decoder="best_k", n=3, k=2, session=session) for _ in range(2))
    assert [(one.prompt, one.score) for one in cold] == [(one.prompt, one.score) for one in warm]
    assert warm[0].usage.forward_passes == 0


def test_options_of_best_k_belong_to_it_alone() -> None:
    with pytest.raises(lq.InputError, match="beam has no option called 'k'"):
        run(BRANCHES, decoder="beam", k=2)
    with pytest.raises(lq.InputError, match="k is a whole number, at least 1"):
        run(BRANCHES, decoder="best_k", k=0)
