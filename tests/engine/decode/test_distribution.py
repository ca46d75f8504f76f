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
from lmql_lite.engine import events
from lmql_lite.models.base import ScoreRequest
from lmql_lite.program.ops import Hole
from tests.tables import cases

ANIMALS = [" a dog", " a cat", " an owl", " the cat", " a", " äh", " 😀"]


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


def test_a_long_option_is_not_favoured_and_no_end_is_asked_for_S25(session: lq.Session) -> None:
    result = run('"x[X]" distribution X in ["b", "bb", "bbb"]', session)
    assert [option for option, _ in sorted(result["P(X)"], key=lambda pair: -pair[1])] == ["b", "bb", "bbb"]


def test_the_query_goes_on_behind_the_option(session: lq.Session) -> None:
    source = """
"is it [X] or not? " distribution X in ["a", "b"]
if X == "b":
    "[Y]" where Y in ["so", "no"]
return X, context.prompt
"""
    result = run(source, session, model=lq.ScriptedModel("is it b or not? no"))
    assert result.prompt == "is it b or not? no"
    assert result.value == ("b", result.prompt)
    assert list(result.variables) == ["X", "P(X)", "Y"]
    assert result.endings["X"] == "forced"


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


def test_a_token_that_says_only_what_was_held_back_is_the_prompts(session: lq.Session) -> None:
    """`Opt` waits for ` Option`; where no option goes on so, its bytes are the program's own text."""
    result = run('"x Opt[X]" where len(TOKENS(X)) == 1 distribution X in ["!", "?"]', session, max_tokens=1)
    assert b"".join(token.data for token in result.tokens if token.hole is None) == b"x Opt"
    assert len([token for token in result.tokens if token.hole == "X"]) == 1


def test_a_token_of_the_hole_before_does_not_reach_into_the_options_S16(session: lq.Session) -> None:
    model = lq.ScriptedModel("-ab\n-cd")
    result = run('"-[A][X]" where STOPS_AT(A, "\\n") distribution X in ["-c", "*c"]', session, model=model)
    assert (result["A"], result["X"]) == ("ab\n", "-c")
    assert [token.data for token in result.tokens if token.fate == "cut"] == [b"\n-"]
    assert [share for _, share in result["P(X)"]] == pytest.approx(
        softmax([whole(model, "-ab\n-c"), whole(model, "-ab\n*c")]), rel=1e-6
    )


def test_a_distribution_is_a_segment_of_its_own_S16() -> None:
    program = lq.compile('"[A][X][B][C]" where len(A) == 1 and len(B) == 1 distribution X in ["b", "c"]').program
    joined = {op.name: op.continues_segment for op in program.parts if isinstance(op, Hole)}
    assert joined == {"A": False, "X": False, "B": False, "C": True}


@pytest.mark.parametrize("options", [["b", "a"], ["a", "b"]])
def test_ties_go_to_the_first(session: lq.Session, options: list[str]) -> None:
    model = noisy(levels=1)  # every token is as good as any other
    result = run('"x[X]" distribution X in options', session, {"options": options}, model=model)
    assert result["X"] == options[0]
    assert [share for _, share in result["P(X)"]] == [0.5, 0.5]


# Where it may stand ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        'argmax\n    "x[X]\\n"\ndistribution X in ["a", "b"]',
        'argmax\n    "x[X]\\n"\nfrom "demo"\nwhere len(X) < 3\ndistribution X in ["a", "b"]',
        '"x[X]\\n"\ndistribution X in ["a", "b"]',
        '"x[X]\\n" where len(X) < 3 distribution X in ["a", "b"]',
        'letters = "ab"\n"x[X]\\n" distribution X in [letter for letter in letters]',
        'async def ask():\n    return ("a", "b")\n"x[X]\\n" distribution X in ask()',
    ],
    ids=["clause", "all clauses", "body", "inline", "python", "awaited"],
)
def test_the_forms_of_the_language(session: lq.Session, source: str) -> None:
    result = run(source, session)
    assert [option for option, _ in result["P(X)"]] == ["a", "b"]


def test_several_holes_and_options_made_of_earlier_ones(session: lq.Session) -> None:
    source = '"[X] or " distribution X in ["a", "b"]\n"[Y]!" distribution Y in [X + "1", X + "2"]\nreturn X, Y'
    result = run(source, session)
    assert result.value[1][0] == result.value[0]
    assert [option[1] for option, _ in result["P(Y)"]] == ["1", "2"]
    assert result.usage.forward_passes == 2


def test_a_hole_in_a_loop_keeps_its_last_distribution(session: lq.Session) -> None:
    source = 'for i in range(3):\n    "{i}[X]" distribution X in [str(i) + "a", str(i) + "b"]'
    result = run(source, session)
    assert [option for option, _ in result["P(X)"]] == ["2a", "2b"]


def test_the_clause_is_about_every_place_of_its_hole(session: lq.Session) -> None:
    result = run('argmax\n    "x[X] y[X]"\ndistribution X in ["a", "b"]', session)
    assert len([token for token in result.tokens if token.hole == "X"]) == 2


def test_events_are_those_of_any_hole(session: lq.Session) -> None:
    async def seen() -> list[events.Event]:
        query = lq.compile('"is[X]." distribution X in [" a", " the"]')
        return [event async for event in query.stream(session=session, model=noisy())]

    told = [event for event in asyncio.run(seen()) if not isinstance(event, events.TokenMoved)]
    kinds = [type(event).__name__ for event in told]
    assert kinds == ["Started", "Text", "HoleOpened", "Text", "HoleClosed", "Bound", "Text", "Finished"]
    finished = told[-1]
    assert isinstance(finished, events.Finished)
    assert "".join(event.text for event in told if isinstance(event, events.Text)) == finished.result.prompt


# What it costs ---------------------------------------------------------------------------------------------------


def test_all_options_are_one_call_and_share_what_they_begin_with(session: lq.Session) -> None:
    model = noisy()
    result = run('"is[X]" distribution X in options', session, {"options": ANIMALS}, model=model)
    assert (result.usage.forward_passes, model.calls) == (1, 1)
    encoded = [model.tokenizer.encode(("is" + option).encode()) for option in ANIMALS]
    places = {ids[:length] for ids in encoded for length in range(len(model.tokenizer.encode(b"is")), len(ids))}
    assert model.positions <= len(places) + 2  # what was held back of the prompt


def test_a_second_run_and_other_options_on_the_way_cost_nothing(session: lq.Session) -> None:
    model = noisy()
    first = run('"is[X]" distribution X in [" the cat", " a dog"]', session, model=model)
    assert run('"is[X]" distribution X in [" the cat", " a dog"]', session, model=model).usage.forward_passes == 0
    fewer = run('"is[X]" distribution X in [" a", " the c"]', session, model=model)
    assert fewer.usage.forward_passes == 0
    more = run('"is[X]" distribution X in [" a dog", " the cat", " a dogs"]', session, model=model)
    assert more.usage.forward_passes == 1
    assert dict(more["P(X)"])[" a dog"] / dict(more["P(X)"])[" the cat"] == pytest.approx(
        dict(first["P(X)"])[" a dog"] / dict(first["P(X)"])[" the cat"]
    )


def test_a_second_process_makes_no_call_law_1(tmp_path: Path) -> None:
    source = 'sample(seed=4, cache="x.tokens")\n    "is[X] and[Y]."\nwhere len(Y) < 6\ndistribution X in options'
    inputs = {"options": ANIMALS}
    first, second = run(source, lq.Session(), inputs), run(source, lq.Session(), inputs)
    replayed = run(source, lq.Session(), inputs, cache_mode="replay")
    assert first.usage.forward_passes
    assert second.usage.forward_passes == replayed.usage.forward_passes == 0
    assert first.variables == second.variables == replayed.variables
    with pytest.raises(lq.CacheError, match="the recording has no answer of"):
        run(source, lq.Session(), {"options": [" a dog", " a wolf"]}, cache_mode="replay")


def test_a_single_option_is_forced_and_free(session: lq.Session) -> None:
    result = run('"is[X]." distribution X in [" the cat"]', session)
    assert result["P(X)"] == [(" the cat", 1.0)]
    assert result.usage.forward_passes == 0
    assert {token.source for token in result.tokens if token.hole == "X"} == {"forced"}


def test_thousands_of_options(session: lq.Session) -> None:
    options = [f" {number:04}" for number in range(2000)]
    result = run('"is[X]" distribution X in options', session, {"options": options}, model="demo")
    assert result.usage.forward_passes == 1
    assert len(result["P(X)"]) == 2000
    assert math.fsum(share for _, share in result["P(X)"]) == pytest.approx(1)


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


def test_the_clause_that_forbids_is_named_among_several(session: lq.Session) -> None:
    source = '"is[X]" where len(X) > 0 and X != "b" and len(X) < 9 distribution X in ["b"]'
    with pytest.raises(lq.ConstraintError, match="'b', is ruled out by `X != \"b\"`") as caught:
        run(source, session)
    assert caught.value.span is not None and caught.value.span.source == 'X != "b"'


def test_a_typed_hole_has_values_of_its_type(session: lq.Session) -> None:
    result = run('"n = [N: int]" where N < 5 distribution N in range(1, 9)\nreturn N + 1', session)
    assert [value for value, _ in result["P(N)"]] == [1, 2, 3, 4]
    assert result.value == result["N"] + 1
    listed = run('"[X: list[int]]" distribution X in ["[1, 2]", "[]", "no"]', session)
    assert [value for value, _ in listed["P(X)"]] == [[1, 2], []]
    with pytest.raises(lq.ConstraintError, match=r"the only option of \[N\], 'two', is ruled out by `int`"):
        run('"n = [N: int]" distribution N in ["two"]', session)
    untyped = run('"n = [N]" distribution N in (1, 2.5)', session)
    assert [value for value, _ in untyped["P(N)"]] == ["1", "2.5"]


def test_max_tokens_is_about_options_too(session: lq.Session) -> None:
    source = '"is[X]" distribution X in [" a", " a dog and a cat"]'
    assert run(source, session, max_tokens=3)["P(X)"] == [(" a", 1.0)]
    with pytest.raises(lq.ConstraintError, match="' the dog', has 5 tokens, more than max_tokens=2") as caught:
        run('"is[X]" distribution X in [" the dog"]', session, max_tokens=2)
    assert caught.value.hint == "raise max_tokens"


# Bad input -------------------------------------------------------------------------------------------------------


@cases("engine/decode/distribution", "options that are none are refused where they stand")
def test_options_that_are_none_are_refused_where_they_stand(session: lq.Session, options: str, sentence: str) -> None:
    with pytest.raises(lq.QueryError, match=sentence) as refused:
        lq.compile(f'"is[X]" distribution X in {options}')
    with pytest.raises(lq.ConstraintError, match=rf"the distribution of \[X\] cannot be made: {sentence}") as caught:
        run(f'given = {options}\n"is[X]" distribution X in given', session)
    assert refused.value.span is not None and refused.value.span.source == options
    assert caught.value.span is not None and caught.value.span.source == "given"


def test_a_distribution_of_a_hole_that_is_not_there_gets_a_suggestion() -> None:
    with pytest.raises(lq.QueryError, match="no hole is called 'ANSWR'") as caught:
        lq.compile('"[ANSWER]" distribution ANSWR in ["a"]')
    assert caught.value.hint == "did you mean 'ANSWER'?"


def test_two_distributions_of_one_hole_are_refused() -> None:
    with pytest.raises(lq.QueryError, match=r"\[X\] has two distributions") as caught:
        lq.compile('"[X]" distribution X in ["a"]\n"b"\ndistribution X in ["b"]')
    assert caught.value.span is not None and caught.value.span.line == 1


def test_an_option_that_does_not_fit_the_context_is_named_before_anything_is_asked(session: lq.Session) -> None:
    model = noisy()
    long = "x" * 4100
    with pytest.raises(
        lq.ModelError, match=r"\[X\] could not be filled: the option 'xxx.* reads at most 4096"
    ) as caught:
        run('"is[X]" distribution X in ["a", long]', session, {"long": long}, model=model, max_tokens=5000)
    assert model.calls == 0
    assert caught.value.span is not None and caught.value.span.source == "[X]"


def test_a_model_that_fails_names_the_hole(session: lq.Session) -> None:
    class Failing(lq.ScriptedModel):
        async def score(self, requests: Any) -> Any:
            raise OSError("the disk is on fire")

    with pytest.raises(lq.ModelError, match=r"\[X\] could not be filled: .*the disk is on fire"):
        run('"is[X]" distribution X in ["a", "b"]', session, model=Failing(""))


def test_special_token_spellings_in_options_are_plain_text_S12(session: lq.Session) -> None:
    result = run('"is[X]" distribution X in [" <|eos|>", " <|bos|>"]', session, model="demo")
    assert result["X"] in (" <|eos|>", " <|bos|>")
    assert len([token for token in result.tokens if token.hole == "X"]) > 1
