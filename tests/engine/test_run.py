"""Runs from source to result: control flow, text and tokens, stops, endings, inputs, isolation, failures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lmql_lite as lq
from lmql_lite.models.base import ScoreRequest
from tests.tables import cases


def run(source: str, says: str, session: lq.Session, inputs: dict[str, Any] | None = None, **options: Any) -> lq.Result:
    return lq.run_sync(source, inputs, model=lq.ScriptedModel(says), session=session, **options)


def test_no_state_is_shared_between_runs(session: lq.Session) -> None:
    query = lq.compile(
        'items = []\ndef add(x, to=[]):\n    to.append(x)\n    return to\n"[X]" where X == "a"\nreturn add(X)'
    )

    async def both() -> list[lq.Result]:
        return await asyncio.gather(*(query.run(model=lq.ScriptedModel("a"), session=session) for _ in range(3)))

    assert [result.value for result in asyncio.run(both())] == [["a"]] * 3


@cases("engine/run", "how a hole ends S13", globals())
def test_how_a_hole_ends_S13(session: lq.Session, where: str, says: str, value: str, ending: str) -> None:
    result = run(f'"[X]" where {where}', says, session)
    if "not" not in where:
        assert result["X"] == value
    assert result.endings["X"] == ending
    condition = where.replace("STOPS_AT", "(lambda *_: True)").replace("STOPS_BEFORE", "(lambda *_: True)")
    assert eval(condition, {"X": result["X"]})


def test_header_options_and_call_options(session: lq.Session) -> None:
    source = 'sample(temperature=0.7, seed=5, max_tokens=4)\n    "[X]"'
    model = lq.ScriptedModel("", certainty=0)
    first = lq.run_sync(source, model=model, session=session)
    assert first.seed == 5
    assert lq.run_sync(source, model=model, session=session).prompt == first.prompt
    others = {lq.run_sync(source, model=model, session=session, seed=seed).prompt for seed in range(8)}
    assert len(others) > 4
    assert lq.run_sync(source, model=model, session=session, seed=5, max_tokens=2).prompt != first.prompt


def test_a_run_without_a_seed_names_the_one_it_drew(session: lq.Session) -> None:
    model = lq.ScriptedModel("", certainty=0)
    first = lq.run_sync('"[X]"', model=model, session=session, decoder="sample", max_tokens=8)
    again = lq.run_sync('"[X]"', model=model, session=session, decoder="sample", max_tokens=8, seed=first.seed)
    assert again.prompt == first.prompt


@cases("engine/run", "wrong options are refused with a sentence", globals())
def test_wrong_options_are_refused_with_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((lq.InputError, lq.ModelError), match=sentence):
        lq.run_sync('"[X]"', **options)


class Failing(lq.ScriptedModel):
    """Says a few tokens and then breaks down."""

    def __init__(self, says: str, after: int) -> None:
        super().__init__(says)
        self.after = after

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[NDArray[np.float32]]]:
        if self.calls >= self.after:
            raise OSError("the disk is on fire")
        return await super().score(requests)


def test_a_model_that_raises_mid_run_names_the_hole_and_what_it_said_stays(session: lq.Session) -> None:
    model = Failing("abcdef", after=3)
    with pytest.raises(lq.ModelError, match=r"\[X\] could not be filled: .*the disk is on fire") as caught:
        lq.run_sync('"Say:[X]" where len(X) == 5', model=model, session=session)
    assert caught.value.span is not None and caught.value.span.source == "[X]"
    model.after = 100
    calls = model.calls
    result = lq.run_sync('"Say:[X]" where len(X) == 5', model=model, session=session)
    assert result.usage.tokens_from_cache == 3
    assert model.calls - calls == 2


@pytest.mark.parametrize(
    "source", ['"{text}[X]"', '"[A]" where A in ["y"]\n"{text}[X]"', '"{text}[X]" where X in ["a", "b"]']
)
def test_a_text_that_cannot_fit_is_refused_without_encoding_it(session: lq.Session, source: str) -> None:
    model = lq.ScriptedModel("abc")
    encoded: list[int] = []
    encode = model.tokenizer.encode
    model.tokenizer.encode = lambda text: encoded.append(len(text)) or encode(text)  # type: ignore
    with pytest.raises(lq.ModelError, match=r"\[X\] exceeds the context of scripted, which reads at most 4096 tokens"):
        lq.run_sync(source, {"text": "x" * 400_000}, model=model, session=session)
    assert sum(encoded) < 1000


def test_cancelling_one_run_takes_nothing_from_another_S32(session: lq.Session) -> None:
    model, query = lq.ScriptedModel("abcdef"), lq.compile('"Say:[X]" where len(X) == 4')

    async def race() -> lq.Result:
        first, second = (asyncio.create_task(query.run(model=model, session=session)) for _ in range(2))
        while model.calls < 2:
            await asyncio.sleep(0)
        first.cancel()
        result = await second
        assert first.cancelled()
        return result

    assert asyncio.run(race())["X"] == "abcd"
    assert model.calls == 4


def test_threads_share_one_session_and_get_the_same_answers_S28(session: lq.Session) -> None:
    source = 'sample(seed=3)\n    "Things to pack for {place}:\\n-[A]-[B]"\nwhere len(A) < 12 and len(B) < 12'
    query = lq.compile(source)
    places = ["Rome", "Oslo", "Rome", "Cairo"] * 3
    with ThreadPoolExecutor(6) as pool:
        crowd = list(pool.map(lambda place: query.run_sync({"place": place}, session=session).prompt, places))
    alone = {place: query.run_sync({"place": place}, session=lq.Session(), cache=False).prompt for place in set(places)}
    assert crowd == [alone[place] for place in places]


@pytest.mark.parametrize(
    "value",
    [
        *("x:>{w}", "x!r:>{w}", "x:{f}", "y:{w}.{n}f", "y:{w + 1}.{n!s}f", "y:{w:d}.2f", "x:"),
        *("x=", " x = ", "x=!s", "x=:>5", "x=:>{w}", "d['a']=", "[[1][0]]=", "x==1", "x!=1"),
    ],
)
def test_a_value_is_formatted_as_in_an_f_string(value: str, session: lq.Session) -> None:
    names: dict[str, Any] = {"x": "ab", "w": 6, "f": "*^7", "y": 3.14159, "n": 2, "d": {"a": 1}}
    query = "".join(f"{name} = {each!r}\n" for name, each in names.items()) + f'"""a{{{value}}}b"""'
    result = lq.run_sync(query, model=lq.ScriptedModel(""), session=session)
    assert result.prompt == eval(f'f"""a{{{value}}}b"""', names)


@pytest.mark.parametrize(
    ("query", "least", "most"),
    [
        ('"The [S]" where len(TOKENS(S)) <= 2', 0, 2),
        ('"Go[S]" where len(TOKENS(S)) == 1', 1, 1),
        ('"Go to the [S]" where len(TOKENS(S)) == 5', 5, 5),
    ],
)
@pytest.mark.parametrize("seed", [0, 3, 11])
def test_a_first_token_healed_over_the_end_of_the_prompt_counts_where_it_is_shown(
    query: str, least: int, most: int, seed: int
) -> None:
    """S15."""
    result = lq.run_sync(f"sample(temperature=2, seed={seed})\n{query}", model="demo")
    assert least <= sum(token.hole == "S" for token in result.tokens) <= most
