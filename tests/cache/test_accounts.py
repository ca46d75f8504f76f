"""A log when things go wrong: what is damaged, refused, cancelled or too much costs entries at most, never a run."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from lmql_lite.cache import framing, log_file
from lmql_lite.cache.compaction import compacted
from lmql_lite.cache.entry import Answer
from lmql_lite.cache.file_contents import read_file
from lmql_lite.cache.framing import HEAD_BYTES
from lmql_lite.store.file_lock import try_lock
from tests.cache.process import QUESTION, VOCABULARY, Process, answer, at, head, processes, said

FILE = Path("x.tokens")


def flip(*places: int) -> None:
    data = bytearray(FILE.read_bytes())
    for place in places:
        data[place] ^= 1
    FILE.write_bytes(data)


@pytest.mark.parametrize(
    "place", [0, 9, HEAD_BYTES - 1, HEAD_BYTES + 2, -1], ids=["mark", "size", "head", "payload", "end"]
)
def test_what_hangs_on_a_damaged_record_is_asked_again_and_found_then_law_4(place: int) -> None:
    is_lost = place >= 0  # the mark at the end is only there to tell whose file it is

    async def work(one: Process, other: Process, late: Process) -> None:
        await one.learn(7, 1, 2)
        flip(place)
        await other.trees.follow()
        assert said(other.tree, 1, 2) == (None if is_lost else 7)
        await other.learn(8, 1, 2, 3)
        await other.learn(9, 4)
        await late.trees.follow()
        assert [said(late.tree, *path) for path in ((1, 2), (1, 2, 3), (4,))] == [None if is_lost else 7, 8, 9]
        for process in (other, late):
            assert len(process.trees.notices) == is_lost
            assert all("is damaged; unreadable entries are asked for again" in each for each in process.trees.notices)
        done = compacted(FILE)
        assert done.was_damaged == is_lost and read_file(FILE).is_sound and done.after.entries == 3 - is_lost
        await late.trees.follow()
        await late.learn(6, 4, 4)
        await other.trees.follow()
        assert (said(other.tree, 1, 2, 3), said(other.tree, 4), said(other.tree, 4, 4)) == (8, 9, 6)

    processes(3, work)


def test_what_somebody_writes_who_could_read_a_record_is_read_by_all_who_could_not() -> None:
    """But for what hangs on nothing that they can read."""

    async def work(one: Process, other: Process, late: Process) -> None:
        await one.learn(10, 1)
        await one.learn(11, 1, 2)
        flip(HEAD_BYTES + 2)
        await other.trees.follow()
        await other.learn(20, 5)
        await other.learn(21, 1, 6)
        await one.trees.follow()
        await other.learn(22, 5, 6, 7)
        await one.learn(12, 1, 3)  # after a node that others wrote again
        await one.learn(13, 1, 2, 3)  # after one that others cannot read
        await one.learn(23, 5, 6, 8)
        await other.learn(14, 1, 2, 4)
        await one.trees.follow()
        await one.learn(15, 1, 2, 5)
        paths: dict[tuple[int, ...], int] = {
            (5,): 20, (1, 6): 21, (5, 6, 7): 22, (5, 6, 8): 23, (1, 3): 12, (1, 2, 4): 14, (1, 2, 5): 15
        }  # fmt: skip
        for process in (one, other, late):
            await process.trees.follow()
            assert {path: said(process.tree, *path) for path in paths} == paths
            lost = [said(process.tree, *path) for path in ((1,), (1, 2), (1, 2, 3))]
            assert lost == ([10, 11, 13] if process is one else [None, None, None])

    processes(3, work)


def test_prompts_that_need_more_nodes_than_a_frame_may_have_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("columns", "codec", "record_io"):
        monkeypatch.setattr(f"lmql_lite.cache.{place}.MAX_NODES", 7)
    monkeypatch.setattr("lmql_lite.cache.record_io.ENTRIES_PER_RECORD", 5)

    async def work(one: Process, late: Process) -> None:
        long = [tuple(range(begin, begin + 5)) for begin in range(0, 40, 5)] + [tuple(range(1, 31))]
        for token, path in enumerate(long):
            one.tree.add_scores(at(one.tree, *path), head(token), run=1)
        await one.save()
        one.tree.add_sampled_answer(at(one.tree, *range(40, 48)), QUESTION, 1, 0, answer(3))
        await one.save()
        await one.refresh(lambda fresh: fresh.add_scores(at(fresh, *range(20, 38)), head(9), run=2))
        await one.save()
        one.tree.add_greedy_answer(at(one.tree, *range(41, 49)), QUESTION, answer(4))
        await one.save()
        await late.trees.follow()
        tree = late.tree
        assert [said(tree, *path) for path in long] == list(range(len(long)))
        assert tree.sampled_answer(at(tree, *range(40, 48)), QUESTION, 1, 0) == (3, -2.0, 0)
        assert tree.greedy_answer(at(tree, *range(41, 49)), QUESTION) == (4, -2.0, 0)
        assert said(tree, *range(20, 38)) == 9 and not late.trees.notices

    processes(2, work)
    assert read_file(FILE).is_sound


@pytest.mark.slow
def test_nine_prompts_of_128k_tokens_are_kept_at_once() -> None:
    """More than a million nodes: the real bound."""
    size, many = 2**17, 9

    async def work(one: Process, late: Process) -> None:
        parents = np.where(np.arange(size * many) % size, -np.arange(size * many), 0)
        nodes = one.tree.extend_many(parents, np.arange(size * many) % 47 + np.arange(size * many) // size % 3)
        ends = nodes[size - 1 :: size].tolist()
        for token, end in enumerate(ends):
            one.tree.add_scores(end, head(token), run=1)
        await one.save()
        await late.trees.follow()
        assert [said(late.tree, *one.tree.path(end)) for end in ends] == list(range(many))

    processes(2, work)


# what is not written


@pytest.mark.parametrize("before", [0, 1], ids=["the first write", "a later write"])
def test_a_session_goes_on_after_a_disk_was_full(before: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def work(one: Process, late: Process) -> None:
        for token in range(before):
            await one.learn(token, 30)
        one.tree.add_scores(at(one.tree, 1, 2), head(7), run=1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE.stat().st_size + 60, limits[1]))
        try:
            assert not await one.trees.save("model", "a model", VOCABULARY)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        await one.learn(8, 1, 2, 3)
        await late.trees.follow()
        assert (said(late.tree, 1, 2), said(late.tree, 1, 2, 3)) == (None, 8)
        assert len(one.trees.notices) == 1 and not late.trees.notices

    processes(2, work)
    assert read_file(FILE).is_sound


def test_a_session_goes_on_after_another_process_kept_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "LOCK_SECONDS", 0.01)

    async def work(one: Process, late: Process) -> None:
        await one.learn(7, 1)
        await one.learn(8, 2)
        one.tree.add_scores(at(one.tree, 3), head(9), run=1)
        with FILE.open("rb") as holder:
            assert try_lock(holder)
            assert not await one.trees.save("model", "a model", VOCABULARY)
        await one.learn(10, 2, 4)
        await late.trees.follow()
        assert [said(late.tree, *path) for path in ((1,), (2,), (3,), (2, 4))] == [7, 8, None, 10]

    processes(2, work)
    assert read_file(FILE).is_sound


def test_what_no_file_can_hold_is_not_kept_and_costs_no_run() -> None:
    async def work(one: Process, late: Process) -> None:
        one.tree.add_greedy_answer(at(one.tree, 1), QUESTION, Answer(3, float("nan"), 1))
        assert not await one.trees.save("model", "a model", VOCABULARY)
        (notice,) = one.trees.notices
        assert (
            "cannot hold the latest entries, which are not kept (the record has a score that is not a number)" in notice
        )
        await one.learn(7, 1, 2)
        await late.trees.follow()
        assert said(late.tree, 1, 2) == 7

    processes(2, work)
    assert read_file(FILE).is_sound


class Slow:
    """A part of the work that stops until it is told to go on."""

    def __init__(self, part: Callable[..., object]) -> None:
        self.part, self.begun, self.go_on = part, Event(), Event()

    def __call__(self, *given: object) -> object:
        self.begun.set()
        assert self.go_on.wait(30)
        return self.part(*given)


async def cancelled(work: Awaitable[object], slow: Slow) -> None:
    """The work, which is given up in the middle of its slow part."""
    task = asyncio.ensure_future(work)
    await asyncio.to_thread(slow.begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    slow.go_on.set()


def test_who_gives_up_while_the_file_is_read_takes_nothing_from_later_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(one: Process, other: Process) -> None:
        await one.learn(7, 1)
        slow = Slow(framing.scan)
        with monkeypatch.context() as patch:
            patch.setattr(log_file, "scan", slow)
            await cancelled(other.trees.follow(), slow)
        await asyncio.wait_for(other.trees.follow(), 30)
        assert said(other.tree, 1) == 7
        await other.learn(8, 1, 2)
        await one.trees.follow()
        assert said(one.tree, 1, 2) == 8

    processes(2, work)


@pytest.mark.parametrize("room", [True, False], ids=["written", "disk full"])
def test_who_gives_up_while_the_file_is_written_takes_nothing_from_later_runs(
    room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(one: Process, late: Process) -> None:
        await one.learn(7, 1)
        one.tree.add_scores(at(one.tree, 1, 2), head(8), run=1)

        def put(file: log_file.LogFile, data: bytes, position: int) -> None:
            if not room:
                raise OSError(28, "No space left on device")
            before(file, data, position)

        before, slow = log_file.LogFile._put, Slow(put)
        with monkeypatch.context() as patch:
            patch.setattr(log_file.LogFile, "_put", lambda *given: slow(*given))
            await cancelled(one.trees.save("model", "a model", VOCABULARY), slow)
            await asyncio.wait_for(one.trees.follow(), 30)  # a turn later all of it is done
        await one.learn(9, 1, 2, 3)
        await late.trees.follow()
        assert [said(late.tree, *path) for path in ((1,), (1, 2), (1, 2, 3))] == [7, 8 if room else None, 9]

    processes(2, work)
    assert read_file(FILE).is_sound


def test_a_run_whose_news_another_run_writes_ends_when_they_are_written_S34(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(one: Process, late: Process) -> None:
        await one.learn(6, 2)
        one.tree.add_scores(at(one.tree, 1), head(7), run=1)
        before = log_file.LogFile._put
        slow = Slow(before)
        with monkeypatch.context() as patch:
            patch.setattr(log_file.LogFile, "_put", lambda *given: slow(*given))
            first = asyncio.ensure_future(one.save())
            await asyncio.to_thread(slow.begun.wait)
            second = asyncio.ensure_future(one.save())
            await asyncio.wait({second}, timeout=0.1)
            assert not second.done()
            slow.go_on.set()
            await second
            await late.trees.follow()
            assert said(late.tree, 1) == 7
            await first

    processes(2, work)


def test_who_gives_up_while_others_read_the_file_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(one: Process, other: Process) -> None:
        await one.learn(7, 1)
        slow = Slow(framing.scan)
        with monkeypatch.context() as patch:
            patch.setattr(log_file, "scan", slow)
            first = asyncio.ensure_future(other.trees.follow())
            await asyncio.to_thread(slow.begun.wait)
            waiting = asyncio.ensure_future(other.trees.follow())
            await asyncio.sleep(0.05)
            waiting.cancel()
            slow.go_on.set()
            await first
        await asyncio.wait_for(other.trees.follow(), 30)
        assert said(other.tree, 1) == 7

    processes(2, work)
