"""`distribution`: options weighed as whole texts, the best or a draw inserted, the query goes on (S25)."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.models.base import ScoreRequest
from lmql_lite.program.ops import Hole
from tests.tables import cases


def noisy(seed: int = 0, **options: Any) -> lq.ScriptedModel:
    return lq.ScriptedModel("", seed=seed, certainty=0, **options)


def run(source: str, session: lq.Session, inputs: dict[str, Any] | None = None, **options: Any) -> lq.Result:
    options.setdefault("model", noisy())
    return lq.run_sync(source, inputs, session=session, **options)


def whole(model: lq.ScriptedModel, text: str) -> float:
    """Log-probability of all tokens of a text: for one prompt, the part before the options is the same for all."""
    ids = (*model.tokenizer.bos, *model.tokenizer.encode(text.encode()))
    places = tuple(range(len(ids) - 1))
    (rows,) = asyncio.run(model.score([ScoreRequest(ids[:1], ids[1:], places)]))
    return math.fsum(float(row[token]) for row, token in zip(rows, ids[1:], strict=True))


def softmax(scores: list[float]) -> list[float]:
    best = max(scores)
    return [math.exp(score - best) / sum(math.exp(other - best) for other in scores) for score in scores]


# What is weighed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["It is", "It is ", "Opt", "", "It is\n", "ca", "é"])
def test_probabilities_are_the_softmax_of_the_whole_canonical_texts_S25(session: lq.Session, prompt: str) -> None:
    """Also where the prompt ends inside a token that an option completes: all start from the same node."""
    options = ["ion A", " Option", "use", " a dog", "a dog", "ing"]
    model = noisy(seed=len(prompt))
    result = run(
        '"{prompt}[X]" distribution X in options', session, {"prompt": prompt, "options": options}, model=model
    )
    expected = softmax([whole(model, prompt + option) for option in options])
    pairs = result["P(X)"]
    assert [option for option, _ in pairs] == options
    assert [share for _, share in pairs] == pytest.approx(expected, rel=1e-6)
    assert result["X"] == max(pairs, key=lambda pair: pair[1])[0]
    assert result.prompt == prompt + result["X"]


def test_the_inserted_tokens_are_on_the_books_with_what_the_model_thought_of_them_law_6(session: lq.Session) -> None:
    source = '"is[X]." distribution X in [" the cat", " a dog"]'
    first, second = run(source, session), run(source, session)
    for result, come_from in ((first, "model"), (second, "cache")):
        own = [token for token in result.tokens if token.hole == "X"]
        assert b"".join(token.data for token in own).decode() == result["X"]
        assert {(token.source, token.fate) for token in own} == {(come_from, "kept")}
        assert all(token.logprob is not None and token.logprob < 0 for token in own)
    assert first.usage.tokens_from_model == second.usage.tokens_from_cache == len(own)
    best = max(whole(noisy(), "is" + option) for option in (" the cat", " a dog"))
    assert math.fsum(token.logprob or 0 for token in own) == pytest.approx(best - whole(noisy(), "is"))


def test_a_distribution_is_a_segment_of_its_own_S16() -> None:
    program = lq.compile('"[A][X][B][C]" where len(A) == 1 and len(B) == 1 distribution X in ["b", "c"]').program
    joined = {op.name: op.continues_segment for op in program.parts if isinstance(op, Hole)}
    assert joined == {"A": False, "X": False, "B": False, "C": True}


# Where it may stand ----------------------------------------------------------------------------------------------


@cases("engine/decode/distribution", "the forms of the language", globals())
def test_the_forms_of_the_language(session: lq.Session, source: str) -> None:
    result = run(source, session)
    assert [option for option, _ in result["P(X)"]] == ["a", "b"]


# What it costs ---------------------------------------------------------------------------------------------------


PROGRAM = """
"Q: {text}[X]." distribution X in options
"[Y]" where STOPS_AT(Y, ["a", "e"]) and len(Y) < 6
"{text}[Z]!" where len(Z) < 14 and not "ining" in Z distribution Z in [Y + option for option in options]
"[W]" where len(W) < 4
"""


@pytest.mark.parametrize("seed", range(8))
def test_cache_on_off_warm_evicted_and_filed_give_the_same_run_law_1(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    pieces = ["a", " the", "ing", "Opt", "ion", "é", "\n", "-", " ", "12", "on"]
    options = dict.fromkeys(["a", "b", *("".join(dice.choices(pieces, k=dice.randint(1, 3))) for _ in range(4))])
    inputs = {"text": dice.choice(pieces), "options": list(options)}
    model = noisy(seed=seed, levels=dice.choice([None, 2]))
    session, evicting = lq.Session(), lq.Session()
    evicting._memory.max_bytes = 3000

    def seen(session: lq.Session, **options: Any) -> tuple[Any, ...]:
        chosen: dict[str, Any] = {"decoder": "sample" if seed % 2 else "argmax", "seed": seed, "model": model}
        result = lq.run_sync(PROGRAM, inputs, session=session, **chosen, **options)
        path = [(token.id, token.hole, token.fate, token.logprob) for token in result.tokens]
        return result.prompt, dict(result.variables), path

    off = seen(lq.Session(), cache=False)
    assert seen(session) == off, "cold"
    assert seen(session) == off, "warm"
    assert seen(session, cache=False) == off, "off, beside a warm tree"
    assert seen(evicting) == off, "evicted"
    assert seen(lq.Session(), cache="x.tokens") == off, "the file is new"
    calls = model.calls
    assert seen(lq.Session(), cache="x.tokens") == off, "the file is known"
    assert seen(lq.Session(), cache="x.tokens", cache_mode="replay") == off, "replayed"
    assert model.calls == calls


# Draws -----------------------------------------------------------------------------------------------------------

DRAWN = 'sample(temperature={heat})\n    "is[X]"\ndistribution X in [" a", " the", " an"]'


@pytest.mark.parametrize("heat", [0.5, 1.0, 2.0])
def test_draws_repeat_and_follow_the_tempered_softmax(session: lq.Session, heat: float) -> None:
    query, model = lq.compile(DRAWN.format(heat=heat)), noisy(seed=2, levels=4)
    first = query.run_sync(session=session, model=model, seed=0)
    shares = [share for _, share in first["P(X)"]]
    assert shares == [share for _, share in run(DRAWN.format(heat=1), session, model=model)["P(X)"]], "facts are raw"
    expected = softmax([math.log(share) / heat for share in shares])
    many = 600
    drawn = Counter(query.run_sync(session=session, model=model, seed=seed)["X"] for seed in range(many))
    for option, share in zip((" a", " the", " an"), expected, strict=True):
        assert abs(drawn[option] / many - share) < 4 * math.sqrt(share * (1 - share) / many) + 1e-3
    for seed in range(5):
        twice = [query.run_sync(session=lq.Session(), model=model, seed=seed)["X"] for _ in range(2)]
        assert twice[0] == twice[1]


def test_top_k_cuts_options_as_it_cuts_tokens(session: lq.Session) -> None:
    query = lq.compile('sample(top_k=1, temperature=2)\n    "is[X]"\ndistribution X in [" a", " the", " an"]')
    results = [query.run_sync(session=session, model=noisy(), seed=seed) for seed in range(20)]
    assert {result["X"] for result in results} == {max(results[0]["P(X)"], key=lambda pair: pair[1])[0]}


# Conditions and types --------------------------------------------------------------------------------------------


@cases("engine/decode/distribution", "what a where forbids is left out before anything is asked", globals())
def test_what_a_where_forbids_is_left_out_before_anything_is_asked(
    session: lq.Session, where: str, left: list[str]
) -> None:
    model = noisy()
    before = 'def vowels(text):\n    return sum(letter in "aeiou" for letter in text)\n'
    source = f"{before}'is[X]' where {where} distribution X in [' a dog', ' a cat', ' an owl', ' the cat']"
    if not left:
        with pytest.raises(lq.ConstraintError, match=r"no option of \[X\] is left: .* 4, ' a dog',") as caught:
            run(source, session, model=model)
        assert model.calls == 0
        assert caught.value.span is not None and caught.value.span.source == where
        return
    result = run(source, session, model=model)
    assert [option for option, _ in result["P(X)"]] == left
    assert math.fsum(share for _, share in result["P(X)"]) == pytest.approx(1)
    assert result["X"] in left
    assert model.calls == (len(left) > 1)


# Bad input -------------------------------------------------------------------------------------------------------


@cases("engine/decode/distribution", "options that are none are refused where they stand")
def test_options_that_are_none_are_refused_where_they_stand(session: lq.Session, options: str, sentence: str) -> None:
    with pytest.raises(lq.QueryError, match=sentence) as refused:
        lq.compile(f'"is[X]" distribution X in {options}')
    with pytest.raises(lq.ConstraintError, match=rf"the distribution of \[X\] cannot be made: {sentence}") as caught:
        run(f'given = {options}\n"is[X]" distribution X in given', session)
    assert refused.value.span is not None and refused.value.span.source == options
    assert caught.value.span is not None and caught.value.span.source == "given"


def test_a_model_that_fails_names_the_hole(session: lq.Session) -> None:
    class Failing(lq.ScriptedModel):
        async def score(self, requests: Any) -> Any:
            raise OSError("the disk is on fire")

    with pytest.raises(lq.ModelError, match=r"\[X\] could not be filled: .*the disk is on fire"):
        run('"is[X]" distribution X in ["a", "b"]', session, model=Failing(""))
