"""`lq.TokenCache`: a file with wishes, or memory of one's own that is shared by all who have the object."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import weakref
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.cache.tokens.tree_file import TreeFile
from lmql_lite.engine.settings import checked
from tests.tables import cases

COUNT = '"Say:[A]" where len(A) == 6\n"Then:[B]" where len(B) == 6'
SAMPLE = f"sample(seed=3, temperature=2.0)\n{COUNT}"


def noisy(seed: int = 0) -> lq.ScriptedModel:
    return lq.ScriptedModel("x", seed=seed, certainty=0)


def run(source: str, model: lq.ScriptedModel, session: lq.Session | None = None, **options: Any) -> lq.Result:
    return lq.run_sync(source, model=model, session=session or lq.Session(), **options)


def test_runs_of_several_sessions_share_a_cache_in_memory_and_none_other() -> None:
    model, cache = noisy(), lq.TokenCache()
    first = run(COUNT, model, cache=cache)
    calls = model.calls
    second = run(COUNT, model, cache=cache)
    assert calls and model.calls == calls and second.prompt == first.prompt
    assert second.usage.tokens_from_model == 0, "another session's run number is not one's own (S31)"
    assert second.usage.tokens_from_cache == first.usage.tokens_from_model
    run(COUNT, model, cache=lq.TokenCache())
    assert model.calls == 2 * calls
    session = lq.Session()
    run(COUNT, model, session, cache=cache)
    run(COUNT, model, session)
    assert model.calls == 3 * calls, "it is not the tree of the session"


def test_questions_in_flight_are_shared_through_it() -> None:
    model, session, cache = noisy(), lq.Session(), lq.TokenCache()

    async def crowd() -> list[lq.Result]:
        query = lq.compile(COUNT)
        return await asyncio.gather(*(query.run(model=model, session=session, cache=cache) for _ in range(4)))

    results = asyncio.run(crowd())
    assert len({result.prompt for result in results}) == 1
    alone = noisy()
    run(COUNT, alone)
    assert model.calls == alone.calls


def test_a_cache_in_memory_that_nobody_has_any_more_is_gone() -> None:
    async def go() -> None:
        model, session, cache = noisy(), lq.Session(), lq.TokenCache()
        await lq.run(COUNT, model=model, session=session, cache=cache)
        tree = weakref.ref(cache.trees)
        del cache
        for _ in range(20):  # the loop puts the run's streams away, one in the other
            gc.collect()
            if tree() is None:
                return
            await asyncio.sleep(0)
        raise AssertionError("the tree is still there")

    asyncio.run(go())


@pytest.mark.parametrize("source", [COUNT, SAMPLE], ids=["argmax", "sample"])
@pytest.mark.parametrize("max_bytes", [1, 5000])
def test_with_hardly_any_memory_a_file_still_answers_everything_law_1(source: str, max_bytes: int) -> None:
    model, session = noisy(), lq.Session()
    cache = lq.TokenCache("x.tokens", max_bytes=max_bytes)
    wanted = run(source, model, cache=False)
    first = run(source, model, session, cache=cache)
    calls = model.calls
    assert run(source, model, session, cache=cache).prompt == first.prompt == wanted.prompt
    assert run(source, model, cache=cache).prompt == wanted.prompt
    assert run(source, model, cache="x.tokens").prompt == wanted.prompt
    assert model.calls == calls, "the same session, another one, and one with room for all: none asks anything"
    tree = session._files[os.path.realpath("x.tokens"), max_bytes, None, False, False].tree(model.fingerprint)
    assert tree.nbytes <= max(max_bytes, 30_000), "the latest entry, and the path to it"


@pytest.mark.parametrize(
    "written", ["x.tokens", Path("x.tokens"), lq.TokenCache("x.tokens"), lq.TokenCache(Path("x.tokens"))], ids=repr
)
def test_a_name_a_path_and_a_token_cache_are_the_same_file(written: Any) -> None:
    model, session = noisy(), lq.Session()
    run(COUNT, model, session, cache=written)
    calls = model.calls
    run(COUNT, model, session, cache="./x.tokens")
    assert Path("x.tokens").exists() and model.calls == calls and len(session._files) == 1


def test_a_header_may_name_one() -> None:
    model, session = noisy(), lq.Session()
    source = f'argmax(cache=lq.TokenCache("x.tokens", max_bytes=9999))\n{COUNT}'
    lq.run_sync(source, {"lq": lq}, model=model, session=session)
    assert Path("x.tokens").exists()


def test_durable_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    connect = TreeFile._connect

    def listened(file: TreeFile, mode: str) -> sqlite3.Connection:
        database = connect(file, mode)
        database.set_trace_callback(said.append)
        return database

    monkeypatch.setattr(TreeFile, "_connect", listened)
    run(COUNT, noisy(), cache="x.tokens")
    assert "PRAGMA synchronous = FULL" not in said
    run(COUNT, noisy(1), cache=lq.TokenCache("x.tokens", durable=True))
    assert "PRAGMA synchronous = FULL" in said


@cases("engine/token_cache", "what is no cache is told so", {"lq": lq, "checked": checked})
def test_what_is_no_cache_is_told_so(make: Any, sentence: str) -> None:
    with pytest.raises(lq.InputError) as caught:
        make()
    assert sentence in caught.value.message


def test_a_wrong_cache_in_a_header_is_shown_with_its_place() -> None:
    with pytest.raises(lq.InputError, match="is not the name of a file") as caught:
        lq.run_sync('argmax(cache="")\n    "[X]"', session=lq.Session())
    assert caught.value.span is not None


def test_it_is_frozen() -> None:
    with pytest.raises(AttributeError):
        lq.TokenCache().max_bytes = 3  # type: ignore[misc]
