"""Trees that a log keeps: what is written is read back, by whom, when it was, and what takes the place of what."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmql_lite.cache.tokens.inspect import cleared, compacted, read_file
from lmql_lite.cache.tokens.nodes import Answer
from lmql_lite.cache.tokens.rows import unpacked_tokens
from lmql_lite.cache.tokens.tree import TokenTree
from tests.cache.tokens.process import OTHER, QUESTION, Process, answer, at, head, processes, said

FILE = Path("x.tokens")


def test_what_memory_has_no_room_for_is_read_from_what_was_written() -> None:
    async def work(one: Process) -> None:
        tree = one.tree
        for token in range(20):
            node = tree.extend(tree.root, token)
            tree.add_scores(node, head(token), run=1)
            tree.add_answer(node, QUESTION, answer(token))
            tree.add_answer(node, (QUESTION, 2**64 - 1, 2**32 - 1), answer(token + 1))
        await one.save()
        del node
        assert tree.nbytes < 12_000
        for token in range(20):
            node = tree.extend(tree.root, token)
            assert said(tree, token) == token
            assert (tree.answer(node, QUESTION) or answer(0))[:2] == (token, -2.0)
            assert (tree.answer(node, (QUESTION, 2**64 - 1, 2**32 - 1)) or answer(0)).token == token + 1
            assert tree.answer(node, (QUESTION, 2**64 - 2, 2**32 - 1)) is tree.answer(node, OTHER) is None
        for token in range(20):  # it is known: nothing to write
            tree.add_scores(tree.extend(tree.root, token), head(9), run=2)
            tree.add_answer(tree.extend(tree.root, token), QUESTION, answer(9))
        assert not tree.is_dirty

    processes(1, work, max_bytes=1)


def test_of_answers_to_one_question_the_first_counts_S6() -> None:
    async def work(one: Process, other: Process) -> None:
        for process, token in ((one, 1), (other, 2)):
            process.tree.add_scores(process.tree.root, head(token), run=1)
            process.tree.add_answer(process.tree.root, QUESTION, answer(token))
            process.tree.add_answer(process.tree.root, bytes([token]) * 16, answer(token))
        await one.save()
        await other.save()

    processes(2, work)

    async def look(reader: Process) -> None:
        await reader.trees.follow()
        tree = reader.tree
        assert said(tree) == 1 and tree.answer(tree.root, QUESTION) == Answer(1, -2.0, 0)
        for token in (1, 2):
            assert tree.answer(tree.root, bytes([token]) * 16) == Answer(token, -2.0, 0)

    processes(1, look)


def test_what_replaces_takes_heads_and_answers_at_its_nodes_and_leaves_all_others() -> None:
    def learn(tree: TokenTree, token: int) -> None:
        for path in ((), (1,)):
            tree.add_scores(at(tree, *path), head(token), run=1)
            tree.add_answer(at(tree, *path), QUESTION, answer(token))

    async def work(one: Process, reader: Process, late: Process) -> None:
        learn(one.tree, 10)
        one.tree.add_answer(one.tree.root, (OTHER, 1, 0), answer(10))
        one.tree.add_answer(at(one.tree, 1), OTHER, answer(10))
        await one.save()
        await reader.trees.follow()
        reader.tree.add_scores(at(reader.tree, 1, 2), head(30), run=1)

        def again(fresh: TokenTree) -> None:
            at(fresh, 9, 9)  # nodes have other numbers there
            fresh.add_scores(fresh.root, head(20), run=2)
            fresh.add_scores(at(fresh, 3), head(21), run=2)
            fresh.add_answer(fresh.root, (QUESTION, 1, 0), answer(22))

        one.clock.now = 5_000
        await one.refresh(again)
        for stage in ("in memory", "written"):
            check(one.tree, stage)
            await one.save()
        await reader.trees.follow()
        check(reader.tree, "followed")
        assert said(reader.tree, 1, 2) == 30
        await late.trees.follow()
        check(late.tree, "read from the file")

    def check(tree: TokenTree, stage: str) -> None:
        assert said(tree) == 20 and said(tree, 3) == 21, stage
        assert tree.answer(tree.root, QUESTION) is None, "it belonged to scores that are replaced"
        assert tree.answer(tree.root, (OTHER, 1, 0)) is None, stage
        assert (tree.answer(tree.root, (QUESTION, 1, 0)) or answer(0)).token == 22, stage
        assert said(tree, 1) == 10 and tree.answer(at(tree, 1), OTHER) is not None, stage

    processes(3, work)


def test_answers_are_replaced_in_a_file_that_holds_nothing_else() -> None:
    """As that of a server is which is always held to conditions: verdicts, and no scores (S1)."""

    async def work(one: Process, reader: Process) -> None:
        one.tree.add_answer(at(one.tree, 1), QUESTION, answer(10))
        one.tree.add_answer(at(one.tree, 1), (OTHER, 1, 0), answer(10))
        await one.save()
        await reader.trees.follow()
        assert (reader.tree.answer(at(reader.tree, 1), QUESTION) or answer(0)).token == 10
        await one.refresh(lambda fresh: fresh.add_answer(at(fresh, 1), QUESTION, answer(20)))
        await one.save()
        await reader.trees.follow()
        for process in (one, reader):
            assert (process.tree.answer(at(process.tree, 1), QUESTION) or answer(0)).token == 20
            assert process.tree.answer(at(process.tree, 1), (OTHER, 1, 0)) is None

    processes(2, work)


def test_what_is_learned_after_a_replacement_is_kept_beside_it() -> None:
    async def work(one: Process, other: Process) -> None:
        one.tree.add_scores(one.tree.root, head(1), run=1)
        await one.save()
        await one.refresh(lambda fresh: fresh.add_scores(fresh.root, head(2), run=2))
        one.tree.add_answer(one.tree.root, QUESTION, answer(3))  # before it is written
        await one.save()
        one.tree.add_answer(one.tree.root, OTHER, answer(4))
        await one.save()
        await other.trees.follow()
        tree = other.tree
        assert said(tree) == 2
        assert (tree.answer(tree.root, QUESTION), tree.answer(tree.root, OTHER)) == (
            Answer(3, -2.0, 0),
            Answer(4, -2.0, 0),
        )

    processes(2, work)


@pytest.mark.parametrize("order", ["news first", "save first"])
def test_what_somebody_elses_replacement_made_old_is_not_written_any_more(order: str) -> None:
    """The other process has an answer that rests on scores which are replaced before it writes."""

    async def work(one: Process, other: Process, late: Process) -> None:
        one.tree.add_scores(one.tree.root, head(1), run=1)
        await one.save()
        await other.trees.follow()
        other.tree.add_answer(other.tree.root, QUESTION, answer(1))
        other.tree.add_scores(at(other.tree, 5), head(5), run=1)
        await one.refresh(lambda fresh: fresh.add_scores(fresh.root, head(2), run=2))
        await one.save()
        if order == "news first":
            await other.trees.follow()
        await other.save()
        await late.trees.follow()
        for tree in (other.tree, late.tree):
            assert said(tree) == 2 and said(tree, 5) == 5
            assert tree.answer(tree.root, QUESTION) is None

    processes(3, work)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_replacements_at_once_the_one_that_is_written_last_counts(order: tuple[int, int]) -> None:
    async def work(*both: Process) -> None:
        both[0].tree.add_scores(both[0].tree.root, head(1), run=1)
        await both[0].save()
        for token, process in enumerate(both[:2], start=10):
            await process.trees.follow()

            def learn(fresh: TokenTree, token: int = token) -> None:
                fresh.add_scores(fresh.root, head(token), run=2)

            await process.refresh(learn)
        for who in order:
            await both[who].save()
        await both[2].trees.follow()
        await both[order[0]].trees.follow()
        assert [said(process.tree) for process in both] == [10 + order[1]] * 3

    processes(3, work)


def test_ones_own_replacement_counts_more_than_what_came_while_it_was_not_written() -> None:
    """With so little memory that what was written is read from there."""

    async def work(one: Process, other: Process) -> None:
        for process, token in ((other, 1), (one, 2)):

            def learn(fresh: TokenTree, token: int = token) -> None:
                fresh.add_scores(at(fresh, 5), head(token), run=2)
                fresh.add_answer(at(fresh, 5), QUESTION, answer(token))

            await process.refresh(learn)
        await other.save()
        await one.trees.follow()
        await one.save()
        one.tree.add_scores(at(one.tree, 6), head(9), run=3)  # room is made
        assert said(one.tree, 5) == 2
        assert one.tree.answer(at(one.tree, 5), QUESTION) == Answer(2, -2.0, 0)

    processes(2, work, max_bytes=1)


# a file that was cleared, compacted or removed by another process


def learn(tree: TokenTree, token: int, *path: int) -> None:
    node = at(tree, *path)
    tree.add_scores(node, head(token), run=1)
    tree.add_answer(node, QUESTION, answer(token))
    tree.add_answer(node, (QUESTION, 5, 0), answer(token + 1))


def knows(tree: TokenTree, token: int, *path: int) -> bool:
    """All that `learn` teaches."""
    node = at(tree, *path)
    greedy, drawn = tree.answer(node, QUESTION), tree.answer(node, (QUESTION, 5, 0))
    return (said(tree, *path), greedy and greedy.token, drawn and drawn.token) == (token, token, token + 1)


def test_what_a_compacted_file_still_says_is_not_written_again() -> None:
    async def work(one: Process, other: Process) -> None:
        for token in range(5):
            learn(one.tree, token, token, 1)
            await one.save()
        await other.trees.follow()
        assert all(knows(other.tree, token, token, 1) for token in range(5))
        compacted(FILE)
        for process in (one, other):
            await process.trees.follow()
            assert all(knows(process.tree, token, token, 1) for token in range(5)) and not process.tree.is_dirty

    processes(2, work)


def test_what_is_asked_for_after_the_file_was_cleared_is_written_again_and_nothing_else() -> None:
    async def work(one: Process, late: Process) -> None:
        for token in (10, 20, 30):
            learn(one.tree, token, token, 1)
            await one.save()
        cleared(FILE)
        await one.trees.follow()
        assert knows(one.tree, 10, 10, 1) and knows(one.tree, 20, 20, 1)
        learn(one.tree, 40, 10, 1, 2)
        await one.save()
        await late.trees.follow()
        assert knows(late.tree, 10, 10, 1) and knows(late.tree, 20, 20, 1) and knows(late.tree, 40, 10, 1, 2)
        assert not knows(late.tree, 30, 30, 1), "nobody asked for it"

    processes(2, work)


@pytest.mark.parametrize("asked", ["scores", "answers"])
def test_what_was_replaced_before_a_file_was_compacted_is_not_read_any_more(asked: str) -> None:
    """The reader was there before the replacement, and comes back after the compaction."""

    async def work(one: Process, reader: Process, other: Process, late: Process) -> None:
        learn(one.tree, 1, 1)
        learn(one.tree, 2, 1, 2)
        await one.save()
        await reader.trees.follow()
        assert knows(reader.tree, 1, 1) and knows(reader.tree, 2, 1, 2)
        one.tree.add_answer(at(one.tree, 1), OTHER, answer(1))  # not written yet, and rests on what is replaced

        def again(fresh: TokenTree) -> None:
            if asked == "scores":
                fresh.add_scores(at(fresh, 1), head(20), run=2)
            else:
                fresh.add_answer(at(fresh, 1), QUESTION, answer(20))

        await other.refresh(again)
        await other.save()
        other.tree.add_answer(at(other.tree, 1), (QUESTION, 7, 0), answer(21))
        await other.save()
        for _ in range(2):
            compacted(FILE)
        await one.save()
        for process in (one, reader, late):
            await process.trees.follow()
            tree, node = process.tree, at(process.tree, 1)
            verdict = tree.answer(node, QUESTION)
            assert said(tree, 1) == (20 if asked == "scores" else None)
            assert (verdict and verdict.token) == (None if asked == "scores" else 20)
            assert tree.answer(node, OTHER) is None and tree.answer(node, (QUESTION, 5, 0)) is None
            draw = tree.answer(node, (QUESTION, 7, 0))
            assert draw is not None and draw.token == 21
            assert knows(tree, 2, 1, 2)

    processes(4, work)


def test_old_runs_are_dropped_and_what_continues_them_stays() -> None:
    async def work(one: Process, late: Process) -> None:
        learn(one.tree, 1, 1)
        await one.save()
        one.clock.now = 200_000
        learn(one.tree, 2, 1, 2)
        await one.save()
        done = compacted(FILE, older_than_days=1, clock=lambda: 250_000)
        assert done.after.entries == 3 and done.before.entries == 6
        await late.trees.follow()
        assert knows(late.tree, 2, 1, 2) and said(late.tree, 1) is None
        rows = [row for *_, row in read_file(FILE).rows]
        assert [(row.parent, [*unpacked_tokens(row.tokens)]) for row in rows] == [(0, [1, 2])] * 3

    processes(2, work)
