"""A file takes the place of the one that was read: compacted, cleared or removed by another process. What is read, what
is written again, how old it is, and what was replaced stays so."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmql_lite.cache.compaction import cleared, compacted
from lmql_lite.cache.file_contents import read_file
from lmql_lite.cache.token_tree import MAX_BYTES, TokenTree
from tests.cache.process import OTHER, QUESTION, Process, answer, at, head, processes, said

FILE = Path("x.tokens")
HOUR = 3600
BOUNDS = pytest.mark.parametrize("bound", [MAX_BYTES, 1], ids=["in memory", "read from the file"])


def learn(tree: TokenTree, token: int, *path: int) -> None:
    node = at(tree, *path)
    tree.add_scores(node, head(token), run=1)
    tree.add_greedy_answer(node, QUESTION, answer(token))
    tree.add_sampled_answer(node, QUESTION, 5, 0, answer(token + 1))


def knows(tree: TokenTree, token: int, *path: int) -> bool:
    """All that `learn` teaches; the path is not made."""
    node, steps = tree.walk(tree.root, path)
    if steps < len(path) or tree.scores(node) is None:
        return False
    verdict, draw = tree.greedy_answer(node, QUESTION), tree.sampled_answer(node, QUESTION, 5, 0)
    return (said(tree, *path), verdict and verdict.token, draw and draw.token) == (token, token, token + 1)


@BOUNDS
def test_what_a_compacted_file_still_says_is_not_written_again(bound: int) -> None:
    async def work(one: Process, other: Process) -> None:
        for token in range(5):
            learn(one.tree, token, token, 1)
            await one.save()
        await other.trees.follow()
        compacted(FILE)
        size = FILE.stat().st_size
        for process in (one, other):
            await process.trees.follow()
            assert all(knows(process.tree, token, token, 1) for token in range(5))
            await process.save()
        assert FILE.stat().st_size == size

    processes(2, work, max_bytes=bound)


@BOUNDS
def test_what_is_asked_for_after_the_file_was_cleared_is_written_again_as_old_as_it_was(bound: int) -> None:
    async def work(one: Process, other: Process, late: Process) -> None:
        for hour, process in ((10, one), (20, other)):
            process.clock.now = hour * HOUR + 700
            learn(process.tree, hour, hour, 1)
            await process.save()
        learn(one.tree, 30, 30)
        await one.save()
        cleared(FILE)
        await one.trees.follow()
        one.clock.now = 50 * HOUR + 700
        for token in (10, 20):
            assert knows(one.tree, token, token, 1)
        learn(one.tree, 40, 10, 1, 2)
        await one.save()
        size = FILE.stat().st_size
        assert knows(one.tree, 10, 10, 1) and knows(one.tree, 40, 10, 1, 2)
        await one.save()
        assert FILE.stat().st_size == size
        await late.trees.follow()
        assert knows(late.tree, 10, 10, 1) and knows(late.tree, 20, 20, 1) and knows(late.tree, 40, 10, 1, 2)
        assert not knows(late.tree, 30, 30), "nobody asked for it"
        assert [late.tree.written(at(late.tree, *path)) for path in ((10, 1), (20, 1), (10, 1, 2))] == [
            10 * HOUR + 700, 20 * HOUR + 700, 50 * HOUR + 700
        ]  # fmt: skip

    processes(3, work, max_bytes=bound)


def test_a_file_that_is_removed_twice_is_made_twice() -> None:
    async def work(one: Process, late: Process) -> None:
        learn(one.tree, 1, 1)
        await one.save()
        for _ in range(2):
            FILE.unlink()
            await one.trees.follow()
            assert not FILE.exists() and knows(one.tree, 1, 1)
            await one.save()
            await late.trees.follow()
            assert knows(late.tree, 1, 1) and read_file(FILE).is_sound

    processes(2, work)


@BOUNDS
@pytest.mark.parametrize("asked", ["scores", "answers"])
def test_what_was_replaced_before_a_file_was_compacted_is_not_read_any_more(bound: int, asked: str) -> None:
    """The reader was there before the replacement, and comes back after the compaction."""

    async def work(one: Process, reader: Process, other: Process, late: Process) -> None:
        learn(one.tree, 1, 1)
        learn(one.tree, 2, 1, 2)
        await one.save()
        await reader.trees.follow()
        one.tree.add_greedy_answer(at(one.tree, 1), OTHER, answer(1))  # not written yet, and rests on what is replaced

        def again(fresh: TokenTree) -> None:
            if asked == "scores":
                fresh.add_scores(at(fresh, 1), head(20), run=2)
            else:
                fresh.add_greedy_answer(at(fresh, 1), QUESTION, answer(20))

        await other.refresh(again)
        await other.save()
        other.tree.add_sampled_answer(at(other.tree, 1), QUESTION, 7, 0, answer(21))
        await other.save()
        for _ in range(2):
            compacted(FILE)
        await one.save()
        for process in (one, reader, late):
            await process.trees.follow()
            tree, node = process.tree, at(process.tree, 1)
            verdict = tree.greedy_answer(node, QUESTION)
            assert said(tree, 1) == (20 if asked == "scores" else None)
            assert (verdict and verdict.token) == (None if asked == "scores" else 20)
            assert tree.greedy_answer(node, OTHER) is None and tree.sampled_answer(node, QUESTION, 5, 0) is None
            draw = tree.sampled_answer(node, QUESTION, 7, 0)
            assert draw is not None and draw.token == 21
            assert knows(tree, 2, 1, 2)

    processes(4, work, max_bytes=bound)


def test_what_remains_of_a_replacement_still_replaces_when_the_rest_was_too_old() -> None:
    async def work(one: Process, other: Process) -> None:
        learn(one.tree, 1, 1)
        await one.save()
        other.clock.now = 100 * HOUR
        await other.refresh(lambda fresh: learn(fresh, 20, 1))
        await other.save()
        other.clock.now = 200 * HOUR
        other.tree.add_greedy_answer(at(other.tree, 1), OTHER, answer(21))
        await other.save()
        compacted(FILE, max_bytes=200)
        before = read_file(FILE)
        assert (before.topks, before.greedy, before.sampled) == (0, 1, 0)
        await one.trees.follow()
        assert said(one.tree, 1) is None and one.tree.greedy_answer(at(one.tree, 1), QUESTION) is None
        assert (one.tree.greedy_answer(at(one.tree, 1), OTHER) or answer(0)).token == 21

    processes(2, work)
    assert FILE.stat().st_size > 0
