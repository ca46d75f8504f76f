"""Weaknesses that were measured or read in the cache of LMQL, as promises that this cache keeps.

Each test names its number in section 4 of the study of LMQL ("what a better design must fix").
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lmql_lite as lq
from lmql_lite.apps.cli import main
from lmql_lite.cache.tokens.inspect import read_file
from lmql_lite.models.base import ScoreRequest
from tests.cache.tokens.entries import damage
from tests.properties.watching import Watch
from tests.servers.scored import ScoredCompleter

LIST = "A list of things:\n- Sun\n- Hat\n- Map\n- Tent\n- Rope\nand so on\n"
LOOP = """
"A list of things:\\n"
for i in range(4):
    "-[THING]" where STOPS_AT(THING, "\\n")
"""
DAYS = "Say:" + "hello world and a fine day to you.\n" * 10
SAMPLE = 'sample\n    "Say:[A]"\nwhere len(A) == 4'


def scripted(script: str = LIST, **options: Any) -> lq.ScriptedModel:
    return lq.ScriptedModel(script, **options)


def noisy(seed: int = 0) -> lq.ScriptedModel:
    return lq.ScriptedModel("", seed=seed, certainty=0)


def run(source: str, model: Any, session: lq.Session | None = None, **options: Any) -> lq.Result:
    """Result of a run. Without `session`, the cache sees a new process."""
    return lq.run_sync(source, model=model, session=session or lq.Session(), **options)


@pytest.fixture(params=["memory", "file"])
def again(request: pytest.FixtureRequest) -> Callable[..., lq.Result]:
    """Runs that share a cache: in one process, or through a file with a process for each run."""
    if request.param == "file":
        return lambda source, model, **options: run(source, model, cache="x.tokens", **options)
    session = lq.Session()
    return lambda source, model, **options: run(source, model, session, **options)


# 1, 2, 3: sharing of cached entries ------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [" Sun\n", " Sun\n- Hat\n", " Sun\n- Hat\n- Map\n"], ids=["one", "two", "three"])
def test_a_longer_prompt_on_a_stored_path_costs_nothing(again: Callable[..., lq.Result], known: str) -> None:
    """1: the cache was partitioned by the exact first prompt."""
    model = scripted()
    first = again(LOOP, model)
    calls = model.calls
    start = f"A list of things:\n-{known}-".replace("\n", "\\n")
    result = again(f'"{start}[THING]" where STOPS_AT(THING, "\\n")', model)
    assert calls and model.calls == calls
    assert first.prompt.startswith(result.prompt)


def test_the_same_query_twice_costs_once(again: Callable[..., lq.Result]) -> None:
    """2: nothing in memory survived the run: 90 tokens, then 90 again."""
    model = scripted()
    first = again(LOOP, model)
    calls = model.calls
    second = again(LOOP, model)
    assert calls and model.calls == calls
    assert (second.prompt, second.usage.tokens_from_cache) == (first.prompt, first.usage.tokens_from_model)


def test_different_queries_at_once_share_what_they_have_in_common(session: lq.Session) -> None:
    """2: nothing was shared between concurrent queries."""
    model, alone = scripted(), scripted()
    sources = [LOOP, LOOP.replace("range(4)", "range(2)"), LOOP.replace('"\\n")', '"\\n") and len(THING) < 9')]

    async def crowd() -> list[lq.Result]:
        return await asyncio.gather(*(lq.run(source, model=model, session=session) for source in sources))

    results = asyncio.run(crowd())
    assert [result.prompt for result in results] == [run(source, alone, cache=False).prompt for source in sources]
    once = scripted()
    run(LOOP, once)
    assert model.calls == once.calls


def test_a_model_with_another_seed_is_another_model(again: Callable[..., lq.Result]) -> None:
    """3: a file made with seed 200 answered for seed 201: only the name of the model was compared (S4)."""
    models = [noisy(seed) for seed in (200, 201)]
    source = '"Say:[A]" where len(A) == 6'
    assert models[0].name == models[1].name
    results = [again(source, model) for model in models]
    assert [result.prompt for result in results] == [run(source, model, cache=False).prompt for model in models]
    assert results[0].prompt != results[1].prompt
    calls = [model.calls for model in models]
    assert [again(source, model).prompt for model in models] == [result.prompt for result in results]
    assert [model.calls for model in models] == calls, "and each finds its own again"


@pytest.mark.parametrize(
    "change",
    [{"temperature": 0.5}, {"temperature": 2.0}, {"top_p": 0.3}, {"top_k": 2}, {"min_p": 0.2}, {"seed": 8}],
    ids=lambda change: "".join(f"{name}={value}" for name, value in change.items()),
)
def test_another_policy_gets_no_stale_answer(again: Callable[..., lq.Result], change: dict[str, Any]) -> None:
    """3: nothing in a key carried top_p, top_k or the seed."""
    model = noisy()
    options: dict[str, Any] = {"seed": 7, "temperature": 1.2}
    again(SAMPLE, model, **options)
    options |= change
    assert again(SAMPLE, model, **options).prompt == run(SAMPLE, model, cache=False, **options).prompt


# 4: sampling -----------------------------------------------------------------------------------------------------


def test_new_seeds_draw_anew_from_a_file_and_known_ones_repeat_for_nothing(again: Callable[..., lq.Result]) -> None:
    """4: a file froze the first token of every sample, and every later token was a miss."""
    model, seeds = noisy(), range(12)
    drawn = {seed: again(SAMPLE, model, seed=seed) for seed in seeds}
    assert len({result["A"] for result in drawn.values()}) > 8
    assert len({result["A"][0] for result in drawn.values()}) > 4
    calls = model.calls
    for seed in seeds:
        repeated = again(SAMPLE, model, seed=seed)
        assert repeated["A"] == drawn[seed]["A"] == run(SAMPLE, noisy(), cache=False, seed=seed)["A"]
        assert repeated.usage.forward_passes == 0
    assert model.calls == calls


def test_new_seeds_save_what_is_known(session: lq.Session) -> None:
    """4: ... and saved nothing. Here the first token of all samples is asked for once."""
    model, uncached = (scripted("Say: yes\n", certainty=11) for _ in range(2))
    for seed in range(10):
        cached = run(SAMPLE, model, session, seed=seed)
        assert cached.prompt == run(SAMPLE, uncached, cache=False, seed=seed).prompt
    assert 2 * model.calls < uncached.calls


# 5: size ---------------------------------------------------------------------------------------------------------


def bytes_per_token(where: str, tokens: int) -> tuple[float, float, float]:
    """Bytes per token of the entries in memory, of the nodes alone, and of the rows of a file."""
    model, cache, file = scripted(DAYS, seed=1), lq.TokenCache(), Path(f"{tokens}{len(where)}.tokens")
    source = '"Say:[X]"' + (f" where {where}" if where else "")
    for kept in (cache, str(file)):
        result = run(source, model, cache=kept, max_tokens=tokens)
    made = sum(token.hole is not None for token in result.tokens)
    assert made >= tokens * 0.75
    tree = cache.trees.tree(model.fingerprint)
    with closing(sqlite3.connect(file)) as database:
        sizes = "SELECT sum(length(question) + length(tokens) + length(value)) FROM entry"
        rows = database.execute(sizes).fetchone()[0]
    return tree.nbytes / made, len(tree) / made, rows / made


@pytest.mark.parametrize(
    "where", ['not "\\n" in X', "len(X) < 120", 'not "e" in X and not "o" in X'], ids=["line", "length", "letters"]
)
def test_a_masked_run_is_as_small_as_a_free_one(where: str) -> None:
    """5: a key held every allowed id: 290,000 characters per token under `not "\\n" in X`, 2 million under a length."""
    masked, free = bytes_per_token(where, 120), bytes_per_token("", 120)
    for name, of_masked, of_free in zip(("facts", "nodes", "file"), masked, free, strict=True):
        assert of_masked < 4 * of_free, name
    assert masked[2] < 60, "bytes of a file"


def test_size_grows_with_the_text_and_not_with_its_square() -> None:
    """5: keys were whole paths, 62 of them for 26 tokens."""
    short, long = bytes_per_token("len(X) < 400", 60), bytes_per_token("len(X) < 400", 240)
    for name, of_short, of_long in zip(("facts", "nodes", "file"), short, long, strict=True):
        assert of_long < 1.5 * of_short, name


# 6: a changed condition ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where",
    ['STOPS_AT(A, "d")', "len(A) < 9", 'len(A) < 20 and not "z" in A', 'A.startswith("hello w") and len(A) < 20'],
)
def test_a_changed_condition_reads_the_same_scores(again: Callable[..., lq.Result], where: str) -> None:
    """6: a changed `where` discarded everything under it. A top-k entry is masked anew and answers what it can."""
    model = scripted("Say:hello world and a fine day to you.\n")
    again('"Say:[A]" where STOPS_AT(A, "\\n")', model)
    calls = model.calls
    changed = again(f'"Say:[A]" where {where}', model)
    assert model.calls == calls
    assert changed.prompt == run(f'"Say:[A]" where {where}', model, cache=False).prompt


def test_only_what_the_head_cannot_decide_is_asked() -> None:
    """6: the path is known up to the forbidden letter. The top-k entry there has one token, so all after it is new."""
    model = scripted("Say:hello world\n")
    run('"Say:[A]" where STOPS_AT(A, "\\n")', model, cache="x.tokens")
    before = model.calls
    source = '"Say:[A]" where not "w" in A and len(A) == 8'
    changed = run(source, model, cache="x.tokens")
    made = [token for token in changed.tokens if token.hole == "A"]
    known = [token.source == "cache" for token in made]
    assert known == sorted(known, reverse=True) and b"".join(token.data for token in made[: sum(known)]) == b"hello "
    assert model.calls - before == len(made) - sum(known)
    before = model.calls
    assert run(source, model, cache="x.tokens").prompt == changed.prompt
    assert model.calls == before, "what had to be asked is remembered as the answer to that question"


# 7, 12: distributions and scores ---------------------------------------------------------------------------------


OPTIONS = [" Option A", " Option B", " Option B with the sea", " Be", " Be the use"]
KIND = f'"It is[KIND]" distribution KIND in {OPTIONS}'


def test_a_distribution_is_known_the_second_time(again: Callable[..., lq.Result]) -> None:
    """7: three score requests, then three again."""
    model = noisy()
    first = again(KIND, model)
    calls = model.calls
    second = again(KIND, model)
    assert (calls, model.calls) == (1, 1), "all options are one call"
    assert second["P(KIND)"] == first["P(KIND)"] and second.usage.forward_passes == 0
    more = again(KIND.replace("' Option A', ", "' Option', "), model)
    assert more.usage.forward_passes == 0, "nor is a part of a known option asked for"


def test_options_that_begin_alike_share_their_places(session: lq.Session) -> None:
    """7: they were scored one by one, each with the whole prompt."""
    model = noisy()
    run(KIND, model, session)
    ids = [model.tokenizer.encode(option.encode()) for option in OPTIONS]
    places = {option[:length] for option in ids for length in range(len(option))}
    assert model.positions == len(places) < sum(map(len, ids))


def test_what_was_scored_before_the_run_is_known_to_it(again: Callable[..., lq.Result]) -> None:
    """12: entries written by `prescore` were never hit."""
    model = noisy()
    again(f'"It is"\nreturn await context.score({OPTIONS})', model)
    assert model.calls == 1
    result = again(KIND, model)
    assert (result.usage.forward_passes, result.usage.tokens_from_model) == (0, 0)
    assert result.prompt == run(KIND, model, cache=False).prompt


def test_scores_asked_for_from_python_are_hit_by_a_query(session: lq.Session) -> None:
    """12: the same through `lq.score`, and vice versa."""
    model = noisy()
    scores = lq.score_sync("It is", OPTIONS, model=model, session=session)
    result = run(KIND, model, session)
    assert dict(result["P(KIND)"]) == dict(zip(scores.options, scores.probabilities, strict=True))
    assert model.calls == 1
    assert lq.score_sync("It is", OPTIONS[:2], model=model, session=session).usage.forward_passes == 0
    assert model.calls == 1


# 8: no tokens that are not used ----------------------------------------------------------------------------------


def test_a_model_in_this_process_says_no_more_than_is_used(session: lq.Session) -> None:
    """8: a chunk of 64 tokens was paid where 16 suffice."""
    model = scripted()
    result = run(LOOP, model, session)
    assert (result.usage.wasted_tokens, result.usage.draft_rejected) == (1, 0), "the last one ran past the end"
    assert model.positions == model.calls == result.usage.tokens_from_model


@pytest.mark.parametrize("stops", [0, 4], ids=["plain", "stops"])
@pytest.mark.parametrize("cache", [True, False], ids=["cached", "uncached"])
def test_a_server_says_a_few_tokens_more_at_most(stops: int, cache: bool, session: lq.Session) -> None:
    """8: no early cancel: a stop did not end the stream."""
    model = ScoredCompleter(scripted(), stops=stops)
    result = run(LOOP, model, session, cache=cache)
    used = result.usage.tokens_from_model or 0
    assert used > 8
    beyond = 3 if cache else 3 * model.requests
    assert used <= model.said <= used + (0 if stops and not cache else beyond)


# 9: the file -----------------------------------------------------------------------------------------------------


def test_a_file_that_would_run_code_runs_none() -> None:
    """9: the file was a pickle."""

    class Bomb:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
            return os.mkdir, ("boom",)

    Path("x.tokens").write_bytes(pickle.dumps(Bomb()))
    before = Path("x.tokens").read_bytes()
    with pytest.raises(lq.CacheError, match=r"not a \.tokens file"):
        run(LOOP, scripted(), cache="x.tokens")
    assert Path("x.tokens").read_bytes() == before and not Path("boom").exists()


def test_a_write_that_was_cut_short_costs_itself_and_nothing_before() -> None:
    """9: the file was rewritten in place, whole."""
    model = scripted()
    first = run(LOOP, model, cache="x.tokens")
    kept = Path("x.tokens").stat().st_size
    run(LOOP.replace("things", "other things"), model, cache="x.tokens")
    whole = Path("x.tokens").read_bytes()
    for size in range(kept, len(whole), 11):
        Path("x.tokens").write_bytes(whole[:size])
        asked = model.calls
        assert run(LOOP, model, cache="x.tokens", cache_mode="ro").prompt == first.prompt
        assert model.calls == asked, f"{size} of {len(whole)} bytes"


def test_two_writers_lose_nothing() -> None:
    """9: of two writers, one lost its entries."""
    sources = [LOOP.replace("things", f"{number} things") for number in range(4)]
    sessions = [lq.Session(), lq.Session()]
    model = scripted()
    first = [run(source, model, sessions[number % 2], cache="x.tokens") for number, source in enumerate(sources)]
    calls = model.calls
    second = [run(source, model, cache="x.tokens") for source in sources]
    assert [result.prompt for result in second] == [result.prompt for result in first]
    assert model.calls == calls


def test_a_damaged_file_is_told_and_what_it_lost_is_asked_again() -> None:
    """9: no checksum; a corrupt file printed a line and was ignored."""
    model = scripted()
    first = run(LOOP, model, cache="x.tokens")
    damage(Path("x.tokens"))
    assert not read_file(Path("x.tokens")).is_sound
    asked = model.calls
    second = run(LOOP, model, cache="x.tokens")
    assert second.prompt == first.prompt and model.calls > asked
    assert len(second.notices) == 1 and "x.tokens" in second.notices[0], second.notices
    asked = model.calls
    assert run(LOOP, model, cache="x.tokens").prompt == first.prompt and model.calls == asked


# 10: bounds and tools --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["memory", "file"])
def test_memory_is_bounded_and_answers_stay_right(where: str, every_where_holds: Watch) -> None:
    """10: append-only and unbounded."""
    model, session, most = noisy(), lq.Session(), 40_000
    cache = lq.TokenCache("x.tokens" if where == "file" else None, max_bytes=most)
    sources = [f'"Say {number}:[A]" where len(A) == 8' for number in range(12)]
    first = [run(source, model, session, cache=cache).prompt for source in sources]
    assert [run(source, model, session, cache=cache).prompt for source in sources] == first
    trees = cache.trees if where == "memory" else next(iter(session._files.values()))
    unbounded = lq.TokenCache()
    for source in sources:
        run(source, model, cache=unbounded)
    every_where_holds.opened.clear()  # it keeps the paths of runs
    gc.collect()
    assert trees.tree(model.fingerprint).nbytes <= most < unbounded.trees.tree(model.fingerprint).nbytes


def test_a_file_can_be_looked_at_checked_shrunk_and_exported(capsys: pytest.CaptureFixture[str]) -> None:
    """10: no size limit, no statistics, no export."""
    run(LOOP, "demo", cache="x.tokens", max_tokens=8)
    for command, shown in (
        (["stats"], "top-k entries"),
        (["verify"], "sound"),
        (["export"], '"kind":"top-k"'),
        (["compact", "--max-bytes", "40000"], "after"),
    ):
        main(["cache", command[0], "x.tokens", *command[1:]])
        assert shown in capsys.readouterr().out, command
    assert Path("x.tokens").stat().st_size <= 40_000


# 11: errors, and samples that repeat -----------------------------------------------------------------------------


class Failing(lq.ScriptedModel):
    """Model that fails after `calls` calls."""

    def __init__(self, script: str, calls: int) -> None:
        super().__init__(script)
        self._left = calls

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[NDArray[np.float32]]]:
        self._left -= 1
        if self._left < 0:
            raise lq.ModelError("the plug was pulled")
        return await super().score(requests)


@pytest.mark.parametrize("cache", [True, False, "x.tokens"], ids=["memory", "off", "file"])
@pytest.mark.parametrize("calls", [0, 4])
@pytest.mark.parametrize("served", [False, True], ids=["scorer", "server"])
def test_an_error_of_the_model_is_the_error_of_the_run(served: bool, calls: int, cache: str | bool) -> None:
    """11: errors in the background stream became warnings."""
    model = Failing(LIST, calls)
    with pytest.raises(lq.ModelError, match="the plug was pulled"):
        run(LOOP, ScoredCompleter(model) if served else model, cache=cache)


def test_all_runs_that_wait_for_a_failing_answer_fail(session: lq.Session) -> None:
    """11: as above, for runs that only waited."""

    async def crowd() -> list[Any]:
        runs = [lq.run(LOOP, model=model, session=session) for _ in range(3)]
        return await asyncio.gather(*runs, return_exceptions=True)

    for wrap in (lambda model: model, ScoredCompleter):
        model = wrap(Failing(LIST, 4))
        assert [type(error) for error in asyncio.run(crowd())] == [lq.ModelError] * 3


def test_a_sampled_run_replays_under_the_seed_that_it_tells() -> None:
    """11: sampled paths could not be replayed: there was no seed."""
    model = noisy()
    first = run(SAMPLE, model, cache="x.tokens")
    calls = model.calls
    replayed = run(SAMPLE, model, cache="x.tokens", cache_mode="replay", seed=first.seed)
    assert (replayed.prompt, model.calls) == (first.prompt, calls)
    assert [(token.id, token.logprob) for token in replayed.tokens] == [
        (token.id, token.logprob) for token in first.tokens
    ]


# 13: the uncached run is dependable ------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["scripted", "noisy", "demo", "served"])
@pytest.mark.parametrize(
    "text", [" and some more of the text, é 😀, with Option B\\n", "\\n\\n- ", "{A}{A}", ""], ids=repr
)
def test_text_of_several_tokens_after_a_hole_works_without_a_cache(model: str, text: str) -> None:
    """13: `cache=False` crashed there, and so nothing could be compared with it."""
    made: Any = {
        "scripted": scripted(),
        "noisy": noisy(),
        "demo": "demo",
        "served": ScoredCompleter(lq.ScriptedModel(LIST, words=())),
    }[model]
    source = f'"A list of things:\\n-[A]{text}[B]{text}" where len(A) == 4 and len(B) == 5'
    off, on = run(source, made, cache=False), run(source, made)
    assert off.prompt == on.prompt
    assert [(token.id, token.hole) for token in off.tokens] == [(token.id, token.hole) for token in on.tokens]
