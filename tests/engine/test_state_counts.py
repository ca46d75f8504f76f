"""Penalties in whole runs: what they count, and that a cache changes nothing (laws 1 and 2, S1, S2, S3)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lmql_lite as lq
from tests.properties.test_law_one import SCRIPT, WORDS, programs, seen, segments

LETTERS = 'where REGEX(X, r"[a-d]{6}")'


class Falling(lq.ScriptedModel):
    """Wherever it is asked: `a` is the best by a nat, then `b`, `c` and `d`."""

    def __init__(self) -> None:
        super().__init__("", words=(), name="falling")
        self.fingerprint = "falling"

    def _scores(self, ids: tuple[int, ...]) -> Any:
        self.positions += 1
        logits = np.full(len(self.tokenizer.vocabulary), -20.0)
        logits[[2 + byte for byte in b"abcd"]] = (4, 3, 2, 1)
        return (logits - np.log(np.exp(logits).sum())).astype(np.float32)


def said(prompt: str, **options: Any) -> str:
    result = lq.run_sync(f'"{prompt}[X]" {LETTERS}', model=Falling(), session=lq.Session(), **options)
    assert isinstance(result, lq.Result)
    return str(result["X"])


def test_argmax_without_penalties_says_the_same_again_and_again() -> None:
    assert said("ab") == "aaaaaa"


def test_a_presence_penalty_counts_once_what_was_said_in_holes_and_not_the_prompt() -> None:
    assert said("aaab", presence_penalty=1.5) == "abaaaa"


def test_a_frequency_penalty_counts_every_time() -> None:
    # a nat lies between a and b: two of them bring it below, one more of b above again
    assert said("aaab", frequency_penalty=0.6) == "aababa"


def test_a_repetition_penalty_counts_the_prompt_too() -> None:
    # logarithms: a -0.44, b -1.44, c -2.44, d -3.44
    assert said("zz", repetition_penalty=2) == "aaaaaa"
    assert said("zz", repetition_penalty=4) == "abaaaa"
    assert said("za", repetition_penalty=4) == "baaaaa"


def test_negative_penalties_make_it_repeat_itself() -> None:
    drawn = said("zz", decoder="sample", seed=3)
    assert len(set(drawn)) > 1
    assert len(set(said("zz", decoder="sample", seed=3, presence_penalty=-2, frequency_penalty=-2))) == 1


def test_forced_text_of_a_hole_counts_and_later_holes_see_it() -> None:
    source = '"[X][Y]" where X in ["aa"] and REGEX(Y, r"[a-d]{2}")'
    result = lq.run_sync(source, model=Falling(), session=lq.Session(), frequency_penalty=1.1)
    assert result["Y"] == "bc"


def test_a_penalty_stands_in_a_header() -> None:
    source = f'argmax(presence_penalty=1.5)\n    "[X]"\n{LETTERS}'
    assert lq.run_sync(source, model=Falling(), session=lq.Session())["X"] == "abaaaa"


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    source=st.one_of(programs(), segments()),
    options=st.sampled_from(
        [
            {"decoder": "argmax", "repetition_penalty": 1.7},
            {"decoder": "argmax", "frequency_penalty": 1.5, "presence_penalty": 0.5},
            {"decoder": "argmax", "frequency_penalty": -2},
            {"decoder": "argmax", "repetition_penalty": 0.5, "presence_penalty": 1},
            {"decoder": "sample", "repetition_penalty": 1.3, "frequency_penalty": 0.7},
            {"decoder": "sample", "temperature": 0.7, "top_k": 5, "presence_penalty": 2},
            {"decoder": "sample", "temperature": 1.5, "top_p": 0.9, "frequency_penalty": -1},
            {"decoder": "sample", "min_p": 0.05, "repetition_penalty": 0.8},
        ]
    ),
    seed=st.integers(0, 3),
    certainty=st.sampled_from([0.0, 3.0, 6.0]),
)
def test_a_penalised_run_is_the_same_with_every_cache_and_a_second_process_asks_nothing(
    source: str, options: dict[str, Any], seed: int, certainty: float
) -> None:
    program = lq.compile(source)

    async def ways(folder: Path) -> None:
        model = lq.ScriptedModel(SCRIPT, seed=seed, certainty=certainty, words=WORDS)
        chosen = {"seed": seed, **options}
        file, session = str(folder / "x.tokens"), lq.Session()
        off = await seen(program, lq.Session(), model, cache=False, **chosen)
        await seen(program, session, model, decoder=options["decoder"], seed=seed)  # facts of another policy
        assert await seen(program, session, model, **chosen) == off
        calls = model.calls
        assert await seen(program, session, model, **chosen) == off
        assert model.calls == calls, "warm"
        assert await seen(program, lq.Session(), model, cache=lq.TokenCache(max_bytes=3000), **chosen) == off
        assert await seen(program, lq.Session(), model, cache=file, **chosen) == off, "the file is new"
        calls = model.calls
        assert await seen(program, lq.Session(), model, cache=file, **chosen) == off, "the file is known"
        assert await seen(program, lq.Session(), model, cache=file, cache_mode="replay", **chosen) == off
        assert model.calls == calls, "the file"

    with TemporaryDirectory() as folder:
        asyncio.run(ways(Path(folder)))
