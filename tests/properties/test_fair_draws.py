"""smc draws from the model's own distribution given the conditions (S36): conditions whose posterior can be enumerated,
on the demo model and on random ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pytest

import lmql_lite as lq
from lmql_lite.constraints.terms import And, Choice, Length, Matches, Term, contains
from lmql_lite.models.base import Row, Scorer, ScoreRequest
from tests.properties.enumerated import Law, Slot, Walk, distance

SEEDS = 30
PLACES = ("Rome", "Paris", "Oslo", "Bonn", "Lima", "Cairo", "Quito", "London", "Berlin", "Madrid", "Vienna", "Lisbon")
COLOURS = ("red", "blue", "grey", "green", "black", "white", "bright blue", "bright red", "dark", "dark red")
ANIMALS, LOOKS = ("cat", "dog", "cow", "ant", "pig", "hen"), ("big", "sad", "old", "shy", "mad")
WORDS = (b"ab", b"ba", b"aa", b"abc", b"ca", b"-a")


class Case(NamedTuple):
    """A query, its parts, and its model: "demo", or the seed of a random model."""

    query: str
    parts: tuple[str | Slot, ...]
    model: str | int


def case(model: str | int, text: str, **terms: tuple[str, Term]) -> Case:
    """`text` has holes in brackets; of each the clause and the term."""
    parts: list[str | Slot] = []
    for piece in text.split("["):
        name, bracket, rest = piece.partition("]")
        parts += [Slot(name, terms[name][1]), rest] if bracket else [piece]
    clauses = " and ".join(clause for clause, _ in terms.values())
    return Case(f'"{text}" where {clauses}', tuple(part for part in parts if part != ""), model)


def among(name: str, options: tuple[str, ...]) -> tuple[str, Term]:
    return f"{name} in {list(options)}", Choice(tuple(option.encode() for option in options))


def like(name: str, pattern: str) -> tuple[str, Term]:
    return f'REGEX({name}, "{pattern}")', Matches(pattern)


NEAR = ('REGEX(X, "[abnt]{1,4}") and "ta" in X', And((Matches("[abnt]{1,4}"), contains(b"ta"))))
CONTAINS = ('REGEX(X, "[ab]+") and len(X) == 5 and "baa" in X', And((Matches("[ab]+"), Length(5, 5), contains(b"baa"))))
FAR = {  # hardly any mass of the first tokens leads to the texts that count in the end
    "what comes later": case("demo", "The [A] barks.", A=among("A", ANIMALS)),
    "a far goal": case(2, "Say:[X]!", X=CONTAINS),
}
CASES = {
    "a place": case("demo", "My favourite city in the world is [X].", X=among("X", PLACES)),
    "a time": case("demo", "The train leaves at [X].", X=like("X", "(1[0-9]|2[0-3]):[0-5][05]")),
    "a word": case("demo", "What are you doing? I am [X].", X=like("X", "(re|out)?(go|do|play|work|read)(ing|ed|s)")),
    "letters": case("demo", "The secret word is [X].", X=like("X", "[aen]{3}")),
    "a goal": case("demo", "The name of the dog is [X].", X=NEAR),
    "a colour": case("demo", "The colour of the sky is [X]", X=among("X", COLOURS)),
    "two holes": case("demo", "The [A] is [B].", A=among("A", ANIMALS), B=among("B", LOOKS)),
    "random letters": case(1, "Say:[X]!", X=like("X", "[abc]{1,4}")),
    "more random letters": case(5, "Say:[X]!", X=like("X", "[ab]{1,5}")),
    "random options": case(3, "Say:[X]", X=among("X", ("a-", "abc-", "ab-", "ba-", "bca-", "caa-", "aaaa-"))),
    "random holes": case(4, "Say:[A]-[B]!", A=like("A", "[ab]{1,2}"), B=like("B", "[abc]{2}")),
}


@cache
def model_of(name: str | int) -> Scorer:
    if isinstance(name, int):
        return lq.ScriptedModel("", certainty=0, seed=name, words=WORDS)
    found = lq.model(name)
    assert isinstance(found, Scorer)
    return found


@cache
def law_of(name: str) -> Law:
    asked = (FAR | CASES)[name]
    return Walk(model_of(asked.model), asked.parts).run()


def run(name: str, session: lq.Session, **options: Any) -> lq.Result:
    asked = (FAR | CASES)[name]
    return lq.run_sync(asked.query, model=model_of(asked.model), session=session, decoder="smc", **options)


def posterior(result: lq.Result) -> dict[tuple[str, ...], float]:
    assert result.posterior is not None
    found: Counter[tuple[str, ...]] = Counter()
    for text in result.posterior.texts:
        found[tuple(text.variables.values())] += text.weight
    return dict(found)


@pytest.mark.parametrize("name", CASES)
def test_the_mean_posterior_is_at_least_twice_as_near_to_the_exact_one_as_masked_draws(name: str) -> None:
    law, session = law_of(name), lq.Session()
    mean: Counter[tuple[str, ...]] = Counter()
    ratios: list[float] = []
    for seed in range(SEEDS):
        result = run(name, session, seed=seed)
        assert result.posterior is not None
        ratios.append(math.exp(result.posterior.evidence) / law.evidence)
        for values, weight in posterior(result).items():
            mean[values] += weight / SEEDS
    measured, masked = distance(dict(mean), law.posterior), distance(law.masked, law.posterior)
    assert measured <= masked / 2
    assert abs(fmean(ratios) - 1) <= 0.1


@pytest.mark.parametrize("name", FAR | CASES)
def test_with_room_for_every_text_the_posterior_is_the_exact_one(name: str) -> None:
    law, result = law_of(name), run(name, lq.Session(), seed=1, particles=256)
    found = result.posterior
    assert found is not None
    if found.is_exact:
        assert posterior(result) == pytest.approx(law.posterior, abs=1e-5)
        assert found.evidence == pytest.approx(math.log(law.evidence), abs=1e-5)
        assert not result.notices
    assert found.is_exact or len(law.exact) > 20


@pytest.mark.parametrize("name", CASES)
def test_a_run_takes_one_pass_for_each_token_of_its_longest_text(name: str) -> None:
    passes = run(name, lq.Session(), seed=1).usage.forward_passes
    assert passes is not None
    assert passes <= law_of(name).longest + 1


@pytest.mark.parametrize("name", FAR)
def test_a_far_goal_that_few_texts_reach_is_said(name: str) -> None:
    (notice,) = run(name, lq.Session(), seed=1).notices
    assert "effective" in notice


@pytest.mark.parametrize("name", CASES)
def test_a_run_asks_for_at_most_one_row_for_each_particle_and_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = model_of(CASES[name].model), 0
    score = model.score

    async def counted(requests: Sequence[ScoreRequest]) -> list[list[Row]]:
        nonlocal rows
        rows += sum(len(request.positions) for request in requests)
        return await score(requests)

    monkeypatch.setattr(model, "score", counted)
    run(name, lq.Session(), seed=1)
    assert 0 < rows <= 16 * law_of(name).longest


# Law 1 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a place", "letters", "a goal", "two holes", "random holes", "random letters"])
@pytest.mark.parametrize("seed", [1, 2])
def test_caches_change_no_bit_of_a_posterior(name: str, seed: int, tmp_path: Path) -> None:
    file, session = lq.TokenCache(tmp_path / "x.tokens"), lq.Session()
    off = run(name, lq.Session(), seed=seed, cache=False)
    assert off.posterior is not None

    def same(other: lq.Result) -> None:
        assert (other.prompt, other.posterior, dict(other)) == (off.prompt, off.posterior, dict(off))

    same(run(name, session, seed=seed))  # cold
    warm = run(name, session, seed=seed)
    same(warm)
    assert warm.usage.forward_passes == 0
    same(run(name, session, seed=seed, particles=16, use_caches=False))
    same(run(name, lq.Session(), seed=seed, cache=file))
    stored = run(name, lq.Session(), seed=seed, cache=file)  # only top-k entries and answers
    same(stored)
    assert stored.usage.forward_passes == 0
    same(run(name, lq.Session(), seed=seed, cache=file, cache_mode="replay"))
    same(run(name, lq.Session(), seed=seed, cache=lq.TokenCache(max_bytes=30_000)))  # evicted
