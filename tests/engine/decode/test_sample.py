"""`sample(n=5)`: several runs of one query, each with a seed of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from tests.engine.watched import watched
from tests.servers.kinds import VLLM
from tests.servers.stub import serving

QUERY = '"Pack:\\n-[A]\\n-[B]" where STOPS_BEFORE(A, "\\n") and len(A) < 9 and STOPS_BEFORE(B, "\\n") and len(B) < 9'


def model() -> lq.ScriptedModel:
    return lq.ScriptedModel("Pack:\n- towel\n- hat\n", certainty=2.0)


def samples(session: lq.Session, **options: Any) -> list[lq.Result]:
    found = lq.run_sync(QUERY, model=model(), decoder="sample", session=session, **options)
    return found if isinstance(found, list) else [found]


def told(results: list[lq.Result]) -> list[tuple[str, int]]:
    return [(result.prompt, result.seed) for result in results]


def test_each_result_is_repeated_by_its_seed(session: lq.Session) -> None:
    found = samples(session, n=4, seed=7)
    assert len({result.prompt for result in found}) > 1
    for result in found:
        assert samples(session, seed=result.seed)[0].prompt == result.prompt


def test_the_best_comes_first(session: lq.Session) -> None:
    found: Any = lq.run_sync(f"sample(n=5, seed=3)\n{QUERY}", model=model(), session=session)
    scores = [result.score for result in found]
    assert len(scores) == 5 and samples(session, seed=3)[0].score in scores
    assert scores == sorted(scores, reverse=True)
    assert scores[0] < 0


def test_equal_ones_come_as_they_were_drawn(session: lq.Session) -> None:
    found: Any = lq.run_sync('sample(n=3, seed=3)\n"Say[X]" where X == " a"', model=model(), session=session)
    alone = [lq.run_sync(f'sample(n={n}, seed=3)\n"Say[X]" where X == " a"', model=model()) for n in (2, 3)]
    assert [result.seed for result in found] == [result.seed for result in alone[1]]
    assert [result.seed for result in found][:2] == [result.seed for result in alone[0]]


def test_what_is_known_changes_nothing(session: lq.Session, tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    off = samples(session, n=3, seed=5, cache=False)
    new = samples(lq.Session(), n=3, seed=5, cache=str(path))
    again = samples(lq.Session(), n=3, seed=5, cache=str(path))
    assert told(off) == told(new) == told(again)
    assert [result.usage.forward_passes for result in again] == [0, 0, 0]


def test_questions_of_all_samples_are_one_call_of_the_model(session: lq.Session) -> None:
    counted = model()
    calls = []
    score = counted.score

    async def counting(requests: Any) -> Any:
        calls.append(len(requests))
        return await score(requests)

    counted.score = counting  # type: ignore[method-assign]
    lq.run_sync(QUERY, model=counted, decoder="sample", n=4, seed=1, session=session, speculate=False)
    assert calls[0] == 1  # all begin at one place
    assert max(calls) > 1


FAILING = '"Pack:[A]" where len(A) == 3\nif A[0] > "i":\n    "[B]" where len(B) == 6\nraise KeyError(A)'
"""Each sample raises an exception of its own, some of them sooner."""


@pytest.mark.parametrize("known", [False, True], ids=["cold", "known"])
def test_which_sample_raised_depended_on_what_was_known(known: bool) -> None:
    def raised(session: lq.Session, **options: Any) -> str:
        with pytest.raises(KeyError) as error:
            lq.run_sync(FAILING, model=noisy, decoder="sample", session=session, **options)
        return str(error.value)

    for seed in range(8):
        noisy, session = lq.ScriptedModel("", certainty=0, seed=1), lq.Session()
        first = raised(session, seed=seed)  # which the first of several is, too
        assert raised(session if known else lq.Session(), n=4, seed=seed) == first


def test_a_replay_of_samples_that_raise_missed_what_the_others_had_asked(tmp_path: Path) -> None:
    """It ended with a CacheError where the run itself ended with what one of the samples had raised."""
    cache, query = str(tmp_path / "x.tokens"), lq.compile(FAILING.replace("raise", "if A < 'q': raise"))
    for seed in range(8):
        outcomes = list[str]()
        for mode in ("rw", "replay"):
            noisy = lq.ScriptedModel("", certainty=0, seed=2)
            try:
                found: Any = query.run_sync(
                    model=noisy, decoder="sample", n=4, seed=seed, session=lq.Session(), cache=cache, cache_mode=mode
                )
                outcomes.append(found[0].prompt)
            except KeyError as error:
                outcomes.append(repr(error))
        assert outcomes[0] == outcomes[1]


def test_events_have_the_number_of_their_sample() -> None:
    *seen, finished = watched(QUERY, model=model(), decoder="sample", n=3, seed=2)
    texts = ["", "", ""]
    for event in seen:
        if isinstance(event, events.Text):
            texts[event.state] += event.text
    assert isinstance(finished, events.Finished) and finished.result == finished.results[0]
    assert sorted(texts) == sorted(result.prompt for result in finished.results)


def test_all_samples_spend_from_one_budget(session: lq.Session) -> None:
    with serving(VLLM, "Say: hi\n") as server:
        there = lq.model(f"openai/{server.config.model}", base_url=server.base_url, api_key="x")
        with pytest.raises(lq.BudgetError):
            lq.run_sync('"Say:[A]"', model=there, decoder="sample", n=5, max_requests=3, session=session, cache=False)
        assert server.requests <= 3
