"""Trees that a log keeps: what is written is read back, by whom, when it was, and what takes the place of what."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmql_lite.cache.tokens.inspect import compacted
from lmql_lite.cache.tokens.nodes import Answer
from lmql_lite.cache.tokens.tree import MAX_BYTES, TokenTree
from tests.cache.tokens.process import OTHER, QUESTION, Process, answer, at, head, processes, said

FILE = Path("x.tokens")


def learn(tree: TokenTree, token: int, *path: int) -> None:
    """Scores after a path, and an answer of each kind."""
    node = at(tree, *path)
    tree.add_scores(node, head(token), run=1)
    tree.add_answer(node, QUESTION, answer(token))
    tree.add_answer(node, (QUESTION, 2**64 - 1, 2**32 - 1), answer(token + 1))


def known(tree: TokenTree, *path: int) -> tuple[int | None, int | None, int | None]:
    """A token of each kind that `learn` taught after a path."""
    node = at(tree, *path)
    greedy, drawn = tree.answer(node, QUESTION), tree.answer(node, (QUESTION, 2**64 - 1, 2**32 - 1))
    return said(tree, *path), greedy and greedy.token, drawn and drawn.token


def test_what_memory_has_no_room_for_is_read_from_what_was_written() -> None:
    async def work(one: Process) -> None:
        for token in range(20):
            learn(one.tree, token, token)
        await one.save()
        assert one.tree.nbytes < 12_000
        for token in range(20):
            assert known(one.tree, token) == (token, token, token + 1)
            learn(one.tree, 9, token)  # it is known
        assert not one.tree.is_dirty
        compacted(FILE)
        await one.trees.follow()
        assert known(one.tree, 3) == (3, 3, 4) and not one.tree.is_dirty, "what the file still has is not written again"

    processes(1, work, max_bytes=1)


def test_of_answers_to_one_question_the_first_counts_S6() -> None:
    async def work(one: Process, other: Process, late: Process) -> None:
        learn(one.tree, 1)
        learn(other.tree, 2)
        other.tree.add_answer(other.tree.root, OTHER, answer(2))
        await one.save()
        await other.save()
        await late.trees.follow()
        assert known(late.tree) == (1, 1, 2)
        assert late.tree.answer(late.tree.root, OTHER) == Answer(2, -2.0, 0)

    processes(3, work)


@pytest.mark.parametrize("has_scores", [True, False])
@pytest.mark.parametrize("is_compacted", [True, False])
def test_what_replaces_takes_scores_and_answers_at_its_nodes_and_leaves_all_others(
    has_scores: bool, is_compacted: bool
) -> None:
    """A server that is always held to conditions has answers, and no scores (S1)."""

    async def work(one: Process, reader: Process, late: Process) -> None:
        learn(one.tree, 1, 1)
        learn(one.tree, 2, 1, 2)
        await one.save()
        await reader.trees.follow()
        assert known(reader.tree, 1) == (1, 1, 2)
        reader.tree.add_answer(at(reader.tree, 1), OTHER, answer(1))  # not written yet, and rests on what is replaced
        reader.tree.add_scores(at(reader.tree, 5), head(5), run=1)

        def again(fresh: TokenTree) -> None:
            at(fresh, 9, 9)  # nodes have other numbers there
            if has_scores:
                fresh.add_scores(at(fresh, 1), head(20), run=2)
            else:
                fresh.add_answer(at(fresh, 1), QUESTION, answer(20))

        def check(tree: TokenTree) -> None:
            assert known(tree, 1) == ((20, None, None) if has_scores else (None, 20, None))
            assert tree.answer(at(tree, 1), OTHER) is None
            assert (tree.answer(at(tree, 1), (QUESTION, 7, 0)) or answer(0)).token == 21, "learned after it"
            assert known(tree, 1, 2) == (2, 2, 3)

        await one.refresh(again)
        one.tree.add_answer(at(one.tree, 1), (QUESTION, 7, 0), answer(21))
        check(one.tree)
        await one.save()
        check(one.tree)
        if is_compacted:
            for _ in range(2):
                compacted(FILE)
            await reader.trees.follow()
        await reader.save()
        for process in (one, reader, late):
            await process.trees.follow()
            check(process.tree)
            assert said(process.tree, 5) == 5

    processes(3, work)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("max_bytes", [MAX_BYTES, 1])
def test_of_two_replacements_at_once_the_one_that_is_written_last_counts(
    order: tuple[int, int], max_bytes: int
) -> None:
    async def work(*both: Process) -> None:
        learn(both[0].tree, 1, 5)
        await both[0].save()
        for token, process in enumerate(both[:2], start=10):
            await process.trees.follow()
            await process.refresh(lambda fresh, token=token: learn(fresh, token, 5))  # type: ignore[misc]
        first, last = (both[who] for who in order)
        await first.save()
        await last.trees.follow()
        assert known(last.tree, 5)[0] == 10 + order[1], "one's own counts more than what came meanwhile"
        await last.save()
        await last.learn(9, 6)  # room is made
        for process in both:
            await process.trees.follow()
            assert known(process.tree, 5) == (10 + order[1], 10 + order[1], 11 + order[1])

    processes(3, work, max_bytes=max_bytes)
