"""beam_var: only branches in the same hole compete."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine.decode.beam_var import BeamOfVariables
from tests.engine.decode.test_beam import BRANCHES, TWO, continuations, noisy, run


@pytest.mark.parametrize("seed", range(4))
def test_with_room_for_everything_it_finds_what_exhaustive_search_finds(seed: int) -> None:
    model = noisy(seed=seed)
    wanted = sorted(continuations(model), key=lambda pair: -pair[1])
    found = run(BRANCHES, model, decoder="beam_var", n=12)
    assert [result.prompt for result in found] == [prompt for prompt, _ in wanted]


def continuation(number: int, score: float, *, filled: int, depth: int) -> Any:
    branch = SimpleNamespace(filled=filled, state=SimpleNamespace(depth=depth))
    return SimpleNamespace(
        beam=SimpleNamespace(branch=branch, number=number), score=score, way=None, rank=0, leads=False
    )


def kept(width: int, alpha: float, *continuations: Any) -> list[int]:
    decoder = object.__new__(BeamOfVariables)
    decoder.width, decoder.options = width, {"alpha": alpha}
    return [each.beam.number for each in decoder.kept(list(continuations))]


def test_branches_in_different_holes_do_not_compete() -> None:
    ahead, behind = continuation(0, -9.0, filled=1, depth=5), continuation(1, -1.0, filled=0, depth=3)
    assert kept(1, 0, ahead, behind) == [0, 1]


def test_alpha_decides_whether_sums_or_means_are_compared() -> None:
    short, long = continuation(0, -3.0, filled=0, depth=2), continuation(1, -4.0, filled=0, depth=8)
    assert kept(1, 0, short, long) == [0]
    assert kept(1, 1, short, long) == [1]


def test_it_is_never_worse_than_argmax_and_the_same_cold_and_warm() -> None:
    for seed in range(4):
        model, session = noisy(seed=seed), lq.Session()
        cold, warm = (run(TWO, model, decoder="beam_var", n=2, alpha=1, session=session) for _ in range(2))
        (greedy,) = run(TWO, model, decoder="argmax", n=1)
        assert [(one.prompt, one.score) for one in cold] == [(one.prompt, one.score) for one in warm]
        assert cold[0].score >= greedy.score - 1e-4


def test_alpha_is_a_share() -> None:
    with pytest.raises(lq.InputError, match="alpha is a number from 0 to 1"):
        run(TWO, decoder="beam_var", alpha=2)
