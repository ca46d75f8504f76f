"""Law 1 for concurrent runs: on one tree, in any order, on several threads, some cancelled, entries coming and going.

Each run has the result that it has without a cache, whatever other runs ask, store, evict or leave half finished.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import lmql_lite as lq
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.cache.tokens.tree_file import TreeFile
from lmql_lite.models.base import ScoreRequest
from tests.properties.test_law_one import SCRIPT, WORDS, Seen, programs, seen, segments

LITTLE = 4000
"""Bytes of memory, too few for two rows of scores."""


@dataclass(frozen=True)
class Kind:
    """Parameters of a model that is made anew for every process."""

    seed: int
    certainty: float
    levels: int | None

    def plain(self) -> lq.ScriptedModel:
        return lq.ScriptedModel(SCRIPT, seed=self.seed, certainty=self.certainty, levels=self.levels, words=WORDS)

    def slow(self, chance: Random, meanwhile: Callable[[], None]) -> Slow:
        """A slow model with the same fingerprint."""
        model = Slow(SCRIPT, seed=self.seed, certainty=self.certainty, levels=self.levels, words=WORDS)
        model.chance, model.meanwhile = chance, meanwhile
        return model


class Slow(lq.ScriptedModel):
    """Model that responds a few turns of the event loop later and calls `meanwhile` in each."""

    chance: Random
    meanwhile: Callable[[], None]

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[NDArray[np.float32]]]:
        rows = await super().score(requests)
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)
            self.meanwhile()
        return rows


compiled = functools.cache(lq.compile)
"""Each source is compiled once: Python 3.11 may raise a SystemError where two threads parse at the same time."""


@dataclass(frozen=True)
class Wanted:
    """One of the concurrent runs."""

    source: str
    options: dict[str, Any]


class Room:
    """Session and cache shared by the runs of one process. `disturb` evicts entries and nodes that may be evicted."""

    def __init__(self, kind: Kind, cache: lq.TokenCache, chance: Random) -> None:
        self.session = lq.Session()
        self.model = kind.slow(chance, self.disturb)
        self._cache = cache
        self._chance = chance

    async def run(self, wanted: Wanted, **options: Any) -> Seen:
        for _ in range(self._chance.randrange(6)):
            await asyncio.sleep(0)
        program = compiled(wanted.source)
        return await seen(program, self.session, self.model, cache=self._cache, **wanted.options, **options)

    def run_elsewhere(self, wanted: Wanted) -> Seen:
        """Runs in a thread with its own event loop."""
        return asyncio.run(self.run(wanted))

    async def run_a_little(self, wanted: Wanted) -> None:
        task = asyncio.create_task(self.run(wanted))
        for _ in range(self._chance.randrange(1, 40)):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    def disturb(self) -> None:
        """At random shortens rows to top-k entries, evicts unpinned entries or does nothing."""
        what = self._chance.choice(["cool", "drop", "nothing"])
        for tree in self._trees():
            with tree._lock:
                if what == "cool":
                    tree.shorten_rows()
                elif what == "drop":
                    room, tree.max_bytes = tree.max_bytes, 1
                    tree._make_room()
                    tree.max_bytes = room

    def _trees(self) -> list[TokenTree]:
        files = [trees._trees for trees in list(self.session._files.values())]
        return [tree for trees in (self._cache.trees._trees, *files) for tree in list(trees.values())]


@st.composite
def choices(draw: st.DrawFn) -> str:
    """A query with alternating distributions and holes."""
    lines = []
    for number in range(draw(st.integers(1, 3))):
        before = draw(st.sampled_from(["a", "Q:", "- ", "Opt", ""]))
        options = draw(
            st.sampled_from([["a", "ab", "Option"], ["ion A", "é", "the end"], [" the", " a", " an"], ["12", "1", "c"]])
        )
        lines.append(f'"{before}[D{number}]. " distribution D{number} in {options}')
        if draw(st.booleans()):
            lines.append(f'"[H{number}]" where len(H{number}) < 5 and not "e" in H{number}')
    return "\n".join(lines)


@st.composite
def tools(draw: st.DrawFn) -> str:
    """A query that awaits Python between its holes, while the model may continue to generate."""
    turns = draw(st.sampled_from([0, 5, 40]))
    said = draw(st.sampled_from(["text[:2]", "'Option A'", "''"]))
    return (
        f"import asyncio\nasync def tool(text):\n    for _ in range({turns}):\n        await asyncio.sleep(0)\n"
        f'    return {said}\n"Q:[A]" where len(A) < 4\n'
        '"{await tool(A)}[B]\\n" where STOPS_AT(B, "e") and len(B) < 7\n"{await tool(B)}"'
    )


SOURCES = st.one_of(programs(), segments(), choices(), tools())
OPTIONS = st.fixed_dictionaries(
    {"seed": st.integers(0, 2), "speculate": st.sampled_from([None, False])}
    | {"decoder": st.sampled_from(["argmax", "sample"])}
) | st.sampled_from(
    [
        {"decoder": "sample", "temperature": 0.7, "top_k": 5, "seed": 1},
        {"decoder": "sample", "temperature": 1.5, "top_p": 0.9, "seed": 1},
    ]
)
BOUNDS, CHANCES = st.sampled_from([2**30, LITTLE, 1]), st.integers(0, 2**20)
KINDS = st.builds(Kind, st.integers(0, 3), st.sampled_from([0.0, 3.0, 6.0]), st.sampled_from([None, 2]))


@st.composite
def crowds(draw: st.DrawFn) -> list[Wanted]:
    """Runs of one or two programs, some of them equal."""
    sources = draw(st.lists(SOURCES, min_size=1, max_size=2))
    return [
        Wanted(draw(st.sampled_from(sources)), draw(OPTIONS)) for _ in range(draw(st.integers(len(sources) + 1, 4)))
    ]


async def uncached(kind: Kind, crowd: Sequence[Wanted]) -> list[Seen]:
    return [
        await seen(compiled(wanted.source), lq.Session(), kind.plain(), cache=False, **wanted.options)
        for wanted in crowd
    ]


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(crowd=crowds(), kind=KINDS, bound=BOUNDS, chance=CHANCES)
def test_runs_at_once_on_a_tree_that_loses_facts_say_what_they_say_alone(
    crowd: list[Wanted], kind: Kind, bound: int, chance: int
) -> None:
    async def together() -> None:
        alone = await uncached(kind, crowd)
        room = Room(kind, lq.TokenCache(max_bytes=bound), Random(chance))
        for mode in ("rw", "refresh"):
            *runs, last, _ = await asyncio.gather(
                *(room.run(wanted, cache_mode=mode if wanted is crowd[0] else "rw") for wanted in crowd),
                asyncio.to_thread(room.run_elsewhere, crowd[-1]),
                room.run_a_little(crowd[0]),
            )
            assert runs == alone, mode
            assert last == alone[-1], f"{mode}, another thread"

    asyncio.run(together())


async def processes(
    crowd: list[Wanted], kind: Kind, bound: int, chance: int, later: tuple[str, ...], leaves: bool
) -> None:
    """Processes that use one file in turn: two have concurrent runs, and replays check the entries after each.

    `later` has the cache modes of the second process. With `leaves`, a run of the first one is cancelled half-way.
    """
    alone = await uncached(kind, crowd)
    file = lq.TokenCache("x.tokens", max_bytes=bound)
    room = Room(kind, file, Random(chance))
    if leaves:  # cancellation while the file is opened has its own test
        await room.run(Wanted('"nothing"', {}))
    *runs, last, _ = await asyncio.gather(
        *(room.run(wanted) for wanted in crowd),
        asyncio.to_thread(room.run_elsewhere, crowd[-1]),
        room.run_a_little(crowd[0]) if leaves else asyncio.sleep(0),
    )
    assert runs == alone
    assert last == alone[-1], "another thread"
    await replays(crowd, kind, alone)

    room = Room(kind, file, Random(chance + 1))
    modes = [later[number % len(later)] for number in range(len(crowd))]
    runs = await asyncio.gather(
        *(room.run(wanted, cache_mode=mode) for wanted, mode in zip(crowd, modes, strict=True)),
        asyncio.to_thread(room.run_elsewhere, crowd[0]),
    )
    assert runs == [*alone, alone[0]], modes

    if "refresh" in later:  # a refresh supersedes all entries at a node, also the sampled answers of other runs
        room = Room(kind, file, Random(chance + 2))
        assert [await room.run(wanted) for wanted in crowd] == alone
    await replays(crowd, kind, alone)


async def replays(crowd: list[Wanted], kind: Kind, alone: list[Seen]) -> None:
    for wanted, run in zip(crowd, alone, strict=True):
        program, model = lq.compile(wanted.source), kind.plain()
        again = await seen(program, lq.Session(), model, cache="x.tokens", cache_mode="replay", **wanted.options)
        assert (again, model.calls) == (run, 0)


LATER = st.sampled_from([("rw", "ro", "replay"), ("ro", "replay"), ("rw", "refresh", "ro"), ("refresh",)])


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(crowd=crowds(), kind=KINDS, bound=BOUNDS, chance=CHANCES, later=LATER, leaves=st.booleans())
def test_runs_at_once_on_a_file_say_what_they_say_alone_and_a_replay_costs_nothing(
    crowd: list[Wanted], kind: Kind, bound: int, chance: int, later: tuple[str, ...], leaves: bool
) -> None:
    with TemporaryDirectory() as folder, chdir(folder):
        asyncio.run(processes(crowd, kind, bound, chance, later, leaves))


# Cancellation during work on a file ------------------------------------------------------------------------------


LEAVING = """
import asyncio, sys
import lmql_lite as lq

async def main() -> None:
    model, session = lq.ScriptedModel("", certainty=0), lq.Session()
    for turns in range(1, 30):
        runs = [
            asyncio.create_task(
                lq.run(f'"{turns} {number}:[A]" where len(A) < 3', model=model, session=session, cache="x.tokens")
            )
            for number in range(3)
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        runs[0].cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        assert all(run.exception() is None for run in runs[1:])

asyncio.run(main())
"""


def test_a_run_that_is_cancelled_while_it_waits_for_its_file_locks_nobody_out(root: Path) -> None:
    """Runs in its own process, which can be killed if it hangs."""
    subprocess.run([sys.executable, "-c", LEAVING], env={**os.environ, "PYTHONPATH": str(root)}, timeout=60, check=True)


@pytest.mark.parametrize("work", ["open", "follow", "write", "fail to write"])
def test_a_run_that_is_cancelled_while_its_file_is_at_work_leaves_it_in_order(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's work is finished on its thread and recorded. A write that fails is cancelled as well."""
    at_work, may_go_on = Event(), Event()
    method = work.split()[-1]
    real, model = getattr(TreeFile, method), lq.ScriptedModel("", certainty=0)

    def slow(file: TreeFile, *arguments: Any, **named: Any) -> Any:
        is_first = not at_work.is_set()
        at_work.set()
        may_go_on.wait()
        return False if is_first and work != method else real(file, *arguments, **named)

    async def asked(session: lq.Session, *texts: str) -> int:
        """Number of model calls of some runs, which must have no notices."""
        before = model.calls
        for text in texts:
            result = await say(session, text)
            assert not result.notices
        return model.calls - before

    async def say(session: lq.Session, text: str) -> lq.Result:
        return await lq.run(f'"{text}:[A]" where len(A) < 4', model=model, session=session, cache="x.tokens")

    async def leave() -> None:
        session = lq.Session()
        assert await asked(session if work != "open" else lq.Session(), "known")
        assert await asked(lq.Session(), "news")
        monkeypatch.setattr(TreeFile, method, slow)
        left = asyncio.create_task(say(session, "mine"))
        await asyncio.to_thread(at_work.wait)
        left.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert await asked(session, "news", "known") == 0, "what was read"
        assert await asked(lq.Session(), "more")
        assert await asked(session, "more") == 0, "what others write afterwards"
        assert await asked(session, "last")
        assert await asked(lq.Session(), "known", "news", "more", "last") == 0, "what is written afterwards"

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(leave())
        gc.collect()
    assert not told


def test_runs_that_have_ended_stand_nowhere_S9(session: lq.Session) -> None:
    """Holds even if the event loop never turns, because everything is cached."""
    model, query = lq.ScriptedModel("", certainty=0), lq.compile('"Say:[A]" where len(A) < 5')

    async def many() -> int:
        for _ in range(50):
            await query.run(model=model, session=session)
        return len(session._memory.tree(model.fingerprint)._pins)

    assert asyncio.run(many()) == 0
