"""Scoring and generating from Python: `score`, `context.score`, `generate` and their blocking twins (S25)."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.models.base import ScoreRequest

OPTIONS = (" a dog", " the cat", "ing", " äh", "\n")


def noisy(seed: int = 0) -> lq.ScriptedModel:
    return lq.ScriptedModel("", seed=seed, certainty=0)


# score -----------------------------------------------------------------------------------------------------------


def test_a_score_is_the_sum_of_the_raw_logprobs_of_its_tokens_S25(session: lq.Session) -> None:
    model = noisy()
    found = lq.score_sync("It is", OPTIONS, model=model, session=session)
    assert found.options == OPTIONS
    for option, logprob, tokens in zip(found.options, found.logprobs, found.tokens, strict=True):
        said = b"".join(token.data for token in tokens)
        assert said.endswith(option.encode()) and ("It is" + option).encode().endswith(said)
        before = ("It is" + option).encode().removesuffix(said)
        ids = (*model.tokenizer.bos, *model.tokenizer.encode(before))
        for token in tokens:
            ((row,),) = asyncio.run(model.score([ScoreRequest(ids)]))
            assert token.logprob == float(row[token.id])
            ids = (*ids, token.id)
        assert logprob == math.fsum(token.logprob or 0 for token in tokens)
    assert math.fsum(found.probabilities) == pytest.approx(1)
    assert found.probabilities == pytest.approx(
        [math.exp(one) / sum(map(math.exp, found.logprobs)) for one in found.logprobs]
    )
    assert found.best == OPTIONS[found.probabilities.index(max(found.probabilities))]


def test_a_score_is_one_call_and_nothing_the_second_time(session: lq.Session) -> None:
    first = lq.score_sync("It is", OPTIONS, model=noisy(), session=session)
    second = lq.score_sync("It is", OPTIONS, model=noisy(), session=session)
    assert (first.usage.forward_passes, second.usage.forward_passes) == (1, 0)
    assert second.logprobs == first.logprobs
    assert {token.source for tokens in first.tokens for token in tokens} == {"model"}
    assert {token.source for tokens in second.tokens for token in tokens} == {"cache"}
    uncached = lq.score_sync("It is", OPTIONS, model=noisy(), session=session, cache=False)
    assert (uncached.usage.forward_passes, uncached.logprobs) == (1, first.logprobs)


def test_scores_in_a_file_are_known_to_the_next_process_law_1() -> None:
    def ask(options: tuple[str, ...] = OPTIONS, **how: Any) -> lq.OptionScores:
        return lq.score_sync("It is", options, model=noisy(), cache="x.tokens", session=lq.Session(), **how)

    first, second, replayed = ask(), ask(), ask(cache_mode="replay")
    assert first.usage.forward_passes == 1
    assert second.usage.forward_passes == replayed.usage.forward_passes == 0
    assert first.logprobs == second.logprobs == replayed.logprobs
    with pytest.raises(lq.CacheError, match="the recording has no answer of scripted at token"):
        ask((" a wolf",), cache_mode="replay")


def test_what_a_query_asked_serves_a_score_and_the_other_way_round(session: lq.Session) -> None:
    model = noisy()
    result = lq.run_sync('"It is[X]" distribution X in [" a dog", " the cat"]', model=model, session=session)
    found = lq.score_sync("It is", [" the cat", " a dog"], model=model, session=session)
    assert found.usage.forward_passes == 0
    assert dict(zip(found.options, found.probabilities, strict=True)) == pytest.approx(dict(result["P(X)"]))


def test_the_prompt_is_taken_literally(session: lq.Session) -> None:
    prompt = "[X] {y} {{z}} {:user} [["
    plain = lq.run_sync('"{text}[X]" distribution X in ["a", "b"]', {"text": prompt}, model=noisy(), session=session)
    found = lq.score_sync(prompt, ["a", "b"], model=noisy(), session=session)
    assert list(found.probabilities) == pytest.approx([share for _, share in plain["P(X)"]])
    assert found.usage.prompt_tokens == len(noisy().tokenizer.encode(prompt.encode()))


def test_one_option_and_numbers_are_scored_too(session: lq.Session) -> None:
    found = lq.score_sync("It is", [12], model=noisy(), session=session)
    assert (found.options, found.probabilities, found.best) == (("12",), (1.0,), "12")
    assert found.logprobs[0] < 0


@pytest.mark.parametrize(
    ("prompt", "options", "sentence"),
    [
        ("x", [], "there are no options"),
        ("x", "yes", "the options are a list of texts"),
        ("x", ["a", "a"], "the option 'a' is repeated"),
        ("x", [""], "option 1 is empty"),
        (None, ["a"], "a prompt must be a text; this is None"),
    ],
)
def test_what_cannot_be_scored_is_wrong_usage(prompt: Any, options: Any, sentence: str) -> None:
    with pytest.raises(lq.InputError, match=sentence) as caught:
        lq.score_sync(prompt, options)
    assert caught.value.span is None


def test_an_option_that_does_not_fit_says_so(session: lq.Session) -> None:
    with pytest.raises(lq.ModelError, match=r"the option 'x+.*' is too long: with it the text has 4"):
        lq.score_sync("It is", ["x" * 4100], model=noisy(), session=session)


# context.score ---------------------------------------------------------------------------------------------------


def test_a_query_asks_about_its_own_text_so_far(session: lq.Session) -> None:
    source = """
"It is[X] and" where len(X) == 2
scores = await context.score(options)
"[Y]" where len(Y) == 3
return context.prompt[:-3], scores
"""
    asked = lq.run_sync(source, {"options": OPTIONS}, model=noisy(), session=session)
    prompt, scores = asked.value
    found = lq.score_sync(prompt, OPTIONS, model=noisy(), session=lq.Session())
    assert scores.probabilities == pytest.approx(found.probabilities)
    assert scores.usage.forward_passes == 1 < (asked.usage.forward_passes or 0), "its own, not those of the run"


@pytest.mark.parametrize("decoder", ["argmax", "sample"])
@pytest.mark.parametrize("cache", [True, False])
def test_asking_leaves_the_run_as_it_was(decoder: str, cache: bool) -> None:
    """A stop was run past, and the text that takes up the surplus comes only after the question."""
    source = """
for item in range(3):
    "-[X]" where STOPS_AT(X, "\\n") and len(X) < 9
    {ask}
"[Y]" where len(Y) < 4
"""

    def run(ask: str) -> lq.Result:
        model = lq.ScriptedModel("-ab\n-cd\n-e\n", certainty=6)
        return lq.run_sync(
            source.replace("{ask}", ask), model=model, session=lq.Session(), decoder=decoder, seed=1, cache=cache
        )

    asked, plain = run('await context.score(["-", "x", "-cd"])'), run("pass")
    assert [(token.id, token.fate) for token in asked.tokens] == [(token.id, token.fate) for token in plain.tokens]
    assert asked.prompt == plain.prompt
    assert asked.usage.prompt_tokens == plain.usage.prompt_tokens


def test_questions_at_once_are_one_call(session: lq.Session) -> None:
    source = """
import asyncio
"It is"
first, second = await asyncio.gather(context.score([" a", " the"]), context.score(["ing", " the"]))
return first, second
"""
    model = noisy()
    result = lq.run_sync(source, model=model, session=session, speculate=False)
    assert (model.calls, result.usage.forward_passes) == (1, 1)
    assert result.value[0].logprobs[1] == result.value[1].logprobs[1]


def test_wrong_options_name_the_line_of_the_query(session: lq.Session) -> None:
    with pytest.raises(lq.InputError, match="<query>:2:1: there are no options"):
        lq.run_sync('"It is"\nscores = await context.score([])', model=noisy(), session=session)


# generate --------------------------------------------------------------------------------------------------------


def test_generate_gives_what_comes_after_the_prompt(session: lq.Session) -> None:
    model = lq.ScriptedModel("Q: [X] {y}\nA: one. two.\n")
    assert lq.generate_sync("Q: [X] {y}\nA:", model=model, session=session) == " one. two.\n"
    assert lq.generate_sync("Q: [X] {y}\nA:", stop="\n", model=model, session=session) == " one. two."
    assert lq.generate_sync("Q: [X] {y}\nA:", stop=["\n", "."], model=model, session=session) == " one"
    assert lq.generate_sync("Q: [X] {y}\nA:", max_tokens=3, model=model, session=session) == " on" + "e"
    assert asyncio.run(lq.generate("Q: [X] {y}\nA: one. two.\n", model=model, session=session)) == ""


def test_generate_takes_the_options_of_a_run(session: lq.Session) -> None:
    texts = {
        lq.generate_sync("It is", max_tokens=4, temperature=1.0, seed=seed, model=noisy(), session=session)
        for seed in range(6)
    }
    assert len(texts) > 3
    again = lq.generate_sync("It is", max_tokens=4, temperature=1.0, seed=0, model=noisy(), cache=False)
    assert again in texts


@pytest.mark.parametrize("stop", ["", ["a", ""], [3]])
def test_a_stop_that_is_none_is_refused(stop: Any) -> None:
    with pytest.raises(lq.InputError, match="stop must be a text"):
        lq.generate_sync("x", stop=stop)
