"""var: branches compete within a hole, and the best values of a hole go on."""

from __future__ import annotations

from itertools import product

import pytest

import lmql_lite as lq
from tests.engine.decode.test_beam import TWO, bytes_of, logprob, noisy, run


def values(model: lq.ScriptedModel, before: str, letters: str, length: int) -> dict[str, float]:
    """Every value of a hole with its score."""
    texts = ["".join(letter) for letter in product(letters, repeat=length)]
    return {text: logprob(model, before, *bytes_of(text)) for text in texts}


@pytest.mark.parametrize("seed", range(4))
def test_the_best_values_of_each_hole_go_on(seed: int) -> None:
    """With room for every value within a hole the search is exact: the n best of A, then the n best of A with B."""
    model = noisy(seed=seed)
    first = sorted(values(model, "Say:", "abc", 2).items(), key=lambda pair: -pair[1])[:2]
    wanted = {
        f"Say:{text}-{more}": score + added
        for text, score in first
        for more, added in values(model, f"Say:{text}-", "ab", 2).items()
    }
    found = run(TWO, model, decoder="var", n=2, b=16)
    best = sorted(wanted, key=lambda text: -wanted[text])[:2]
    greedy = run(TWO, model, decoder="argmax", n=1)[0]
    assert found[0].prompt in (best[0], greedy.prompt)
    assert found[0].score == pytest.approx(max(wanted[best[0]], greedy.score))


def test_values_of_different_lengths_are_compared_when_all_are_complete() -> None:
    model = noisy(seed=4)
    found = run('"Say:[A]!" where A in ["a", "bcbcbc", "cab"]', model, decoder="var", n=3, b=3)
    assert {result["A"] for result in found} == {"a", "bcbcbc", "cab"}


def test_var_is_never_worse_than_argmax() -> None:
    for seed in range(6):
        (greedy,) = run(TWO, noisy(seed=seed), decoder="argmax", n=1)
        assert run(TWO, noisy(seed=seed), decoder="var", n=1, b=3)[0].score >= greedy.score - 1e-4


def test_the_same_run_gives_the_same_results_cold_and_warm() -> None:
    model, session = noisy(seed=3), lq.Session()
    cold, warm = (run(TWO, model, decoder="var", n=2, b=3, session=session) for _ in range(2))
    assert [(one.prompt, one.score) for one in cold] == [(one.prompt, one.score) for one in warm]
