"""Trees that a log keeps: what is written is read back, by whom, when it was, and what takes the place of what."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Generator, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmql_lite.cache import record_io
from lmql_lite.cache.columns import Entries, Model, SampledAnswers
from lmql_lite.cache.entry import Answer
from lmql_lite.cache.framing import LogFrame, address_of, frame_bytes
from lmql_lite.cache.log_file import Admit, LogFile
from lmql_lite.cache.model_trees import ModelTrees
from lmql_lite.cache.record_io import Lost, RecordReader
from lmql_lite.cache.token_tree import TokenTree
from lmql_lite.cache.top_k import TopK
from tests.cache.batches import MODEL, Batch, batch, recorded
from tests.cache.process import OTHER, QUESTION, VOCABULARY, Process, answer, at, head, processes, said
from tests.cache.written import write


def test_a_fact_knows_when_it_was_written_and_one_that_was_not_does_not() -> None:
    async def work(one: Process, other: Process) -> None:
        node = at(one.tree, 1, 2)
        one.tree.add_scores(node, head(7), run=1)
        assert one.tree.written(node) is None
        await one.save()
        one.clock.now = 2_000.9
        one.tree.add_greedy_answer(node, QUESTION, answer(3))
        one.tree.add_sampled_answer(at(one.tree, 1), QUESTION, 5, 0, answer(4))
        await one.save()
        await other.trees.follow()
        for tree in (one.tree, other.tree):
            assert tree.written(at(tree, 1, 2)) == 1_000, "the scores', not the later answer's"
            assert tree.written(at(tree, 1)) == 2_000, "where nothing but answers are, the latest one's"
            assert tree.written(tree.root) is None
            assert tree.greedy_answer(at(tree, 1, 2), QUESTION) == (3, -2.0, 1 if tree is one.tree else 0)

    processes(2, work)


def test_what_memory_has_no_room_for_is_read_from_what_was_written() -> None:
    async def work(one: Process) -> None:
        tree = one.tree
        nodes = [tree.extend(tree.root, token) for token in range(20)]
        for node in nodes:
            tree.add_scores(node, head(node), run=1)
            tree.add_greedy_answer(node, QUESTION, answer(node))
            tree.add_sampled_answer(node, QUESTION, 2**64 - 1, 2**32 - 1, answer(node + 1))
        await one.save()
        assert tree.nbytes < 4000
        for node in nodes:
            fact = tree.scores(node)
            assert fact is not None and fact.scores.best(np.ones(VOCABULARY, np.bool_)) == node
            assert tree.greedy_answer(node, QUESTION) == (node, -2.0, 0 if node < nodes[-1] else 1)
            assert (tree.sampled_answer(node, QUESTION, 2**64 - 1, 2**32 - 1) or answer(0)).token == node + 1
            assert tree.sampled_answer(node, QUESTION, 2**64 - 2, 2**32 - 1) is tree.greedy_answer(node, OTHER) is None
        before = Path("x.tokens").stat().st_size
        for node in nodes:  # it is known: nothing to write
            tree.add_scores(node, head(9), run=2)
            tree.add_greedy_answer(node, QUESTION, answer(9))
        await one.save()
        assert Path("x.tokens").stat().st_size == before

    processes(1, work, max_bytes=1)


def test_of_answers_to_one_question_the_first_counts_S6() -> None:
    async def work(one: Process, other: Process) -> None:
        for process, token in ((one, 1), (other, 2)):
            process.tree.add_scores(process.tree.root, head(token), run=1)
            process.tree.add_greedy_answer(process.tree.root, QUESTION, answer(token))
            process.tree.add_greedy_answer(process.tree.root, bytes([token]) * 16, answer(token))
        await one.save()
        await other.save()

    processes(2, work)

    async def look(reader: Process) -> None:
        await reader.trees.follow()
        tree = reader.tree
        assert said(tree) == 1 and tree.greedy_answer(tree.root, QUESTION) == (1, -2.0, 0)
        for token in (1, 2):
            assert tree.greedy_answer(tree.root, bytes([token]) * 16) == (token, -2.0, 0)

    processes(1, look)


def test_what_replaces_takes_heads_and_answers_at_its_nodes_and_leaves_all_others() -> None:
    def learn(tree: TokenTree, token: int) -> None:
        for path in ((), (1,)):
            tree.add_scores(at(tree, *path), head(token), run=1)
            tree.add_greedy_answer(at(tree, *path), QUESTION, answer(token))

    async def work(one: Process, reader: Process, late: Process) -> None:
        learn(one.tree, 10)
        one.tree.add_sampled_answer(one.tree.root, OTHER, 1, 0, answer(10))
        one.tree.add_greedy_answer(at(one.tree, 1), OTHER, answer(10))
        await one.save()
        await reader.trees.follow()
        reader.tree.add_scores(at(reader.tree, 1, 2), head(30), run=1)

        def again(fresh: TokenTree) -> None:
            at(fresh, 9, 9)  # nodes have other numbers there
            fresh.add_scores(fresh.root, head(20), run=2)
            fresh.add_scores(at(fresh, 3), head(21), run=2)
            fresh.add_sampled_answer(fresh.root, QUESTION, 1, 0, answer(22))

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
        assert late.tree.written(late.tree.root) == 5_000 and late.tree.written(at(late.tree, 1)) == 1_000

    def check(tree: TokenTree, stage: str) -> None:
        assert said(tree) == 20 and said(tree, 3) == 21, stage
        assert tree.greedy_answer(tree.root, QUESTION) is None, "it belonged to scores that are replaced"
        assert tree.sampled_answer(tree.root, OTHER, 1, 0) is None, stage
        assert (tree.sampled_answer(tree.root, QUESTION, 1, 0) or answer(0)).token == 22, stage
        assert said(tree, 1) == 10 and tree.greedy_answer(at(tree, 1), OTHER) is not None, stage

    processes(3, work)


def test_answers_are_replaced_in_a_file_that_holds_nothing_else() -> None:
    """As that of a server is which is always held to conditions: verdicts, and no scores (S1)."""

    async def work(one: Process, reader: Process) -> None:
        one.tree.add_greedy_answer(at(one.tree, 1), QUESTION, answer(10))
        one.tree.add_sampled_answer(at(one.tree, 1), OTHER, 1, 0, answer(10))
        await one.save()
        await reader.trees.follow()
        assert (reader.tree.greedy_answer(at(reader.tree, 1), QUESTION) or answer(0)).token == 10
        await one.refresh(lambda fresh: fresh.add_greedy_answer(at(fresh, 1), QUESTION, answer(20)))
        await one.save()
        await reader.trees.follow()
        for process in (one, reader):
            assert (process.tree.greedy_answer(at(process.tree, 1), QUESTION) or answer(0)).token == 20
            assert process.tree.sampled_answer(at(process.tree, 1), OTHER, 1, 0) is None

    processes(2, work)


def test_what_is_learned_after_a_replacement_is_kept_beside_it() -> None:
    async def work(one: Process, other: Process) -> None:
        one.tree.add_scores(one.tree.root, head(1), run=1)
        await one.save()
        await one.refresh(lambda fresh: fresh.add_scores(fresh.root, head(2), run=2))
        one.tree.add_greedy_answer(one.tree.root, QUESTION, answer(3))  # before it is written
        await one.save()
        one.tree.add_greedy_answer(one.tree.root, OTHER, answer(4))
        await one.save()
        await other.trees.follow()
        tree = other.tree
        assert said(tree) == 2
        assert (tree.greedy_answer(tree.root, QUESTION), tree.greedy_answer(tree.root, OTHER)) == (
            (3, -2.0, 0),
            (4, -2.0, 0),
        )

    processes(2, work)


@pytest.mark.parametrize("order", ["news first", "save first"])
def test_what_somebody_elses_replacement_made_old_is_not_written_any_more(order: str) -> None:
    """The other process has an answer that rests on scores which are replaced before it writes."""

    async def work(one: Process, other: Process, late: Process) -> None:
        one.tree.add_scores(one.tree.root, head(1), run=1)
        await one.save()
        await other.trees.follow()
        other.tree.add_greedy_answer(other.tree.root, QUESTION, answer(1))
        other.tree.add_scores(at(other.tree, 5), head(5), run=1)
        await one.refresh(lambda fresh: fresh.add_scores(fresh.root, head(2), run=2))
        await one.save()
        if order == "news first":
            await other.trees.follow()
        await other.save()
        await late.trees.follow()
        for tree in (other.tree, late.tree):
            assert said(tree) == 2 and said(tree, 5) == 5
            assert tree.greedy_answer(tree.root, QUESTION) is None

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
                fresh.add_greedy_answer(at(fresh, 5), QUESTION, answer(token))

            await process.refresh(learn)
        await other.save()
        await one.trees.follow()
        await one.save()
        one.tree.add_scores(at(one.tree, 6), head(9), run=3)  # room is made
        assert said(one.tree, 5) == 2
        assert one.tree.greedy_answer(at(one.tree, 5), QUESTION) == (2, -2.0, 0)

    processes(2, work, max_bytes=1)


def test_a_replacement_of_many_nodes_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in several batches; no node's facts are torn apart, or a later batch would take back an earlier one."""
    monkeypatch.setattr("lmql_lite.cache.record_io.ENTRIES_PER_RECORD", 3)

    async def work(one: Process, other: Process) -> None:
        def learn(tree: TokenTree, by: int) -> None:
            for token in range(10):
                for number in range(token % 4):
                    tree.add_greedy_answer(at(tree, token), bytes([number]) * 16, answer(token + by))
                tree.add_scores(at(tree, token), head(token + by), run=1)

        learn(one.tree, 0)
        await one.save()
        await one.refresh(lambda fresh: learn(fresh, 20))
        learn(one.tree, 30)  # all of it is known
        one.tree.add_scores(at(one.tree, 40), head(1), run=1)
        await one.save()
        await other.trees.follow()
        for tree in (one.tree, other.tree):
            for token in range(10):
                assert said(tree, token) == token + 20
                for number in range(token % 4):
                    found = tree.greedy_answer(at(tree, token), bytes([number]) * 16)
                    assert found is not None and found.token == token + 20

    processes(2, work)


def test_a_file_that_is_replaced_again_and_again_takes_no_more_memory_law_5(
    tmp_path: Path,
) -> None:
    """As one that is compacted every night, while a process has it open."""
    path, other = tmp_path / "x.tokens", tmp_path / "other.tokens"
    told = batch(np.random.default_rng(1), 2000)
    write(path, [told])
    fresh = TokenTree()

    async def follow() -> list[int]:
        trees = await ModelTrees.open(path)
        taken = []
        for _ in range(8):
            await trees.follow()
            await asyncio.sleep(0)
            gc.collect()
            taken.append(tracemalloc.get_traced_memory()[0])
            assert facts_of(trees.tree(MODEL.fingerprint)) == facts_of(fresh)
            other.write_bytes(path.read_bytes())
            other.replace(path)
        await trees.close()
        return taken

    def facts_of(tree: TokenTree) -> list[object]:
        """All that the batch says, read in the tree."""
        said: list[object] = []
        above = [~(parent - 1) if parent else 0 for parent in told.parents.tolist()]
        nodes = [tree.root, *tree.extend_many(above, told.tokens, logged=True).tolist()]
        for node in nodes:
            fact = tree.scores(node)
            said.append(None if fact is None else (fact.scores.logprobs.tobytes(), fact.run))
        greedy, sampled = told.entries.greedy, told.entries.sampled
        for node, question in zip(greedy.nodes.tolist(), greedy.questions, strict=True):
            said.append(tree.greedy_answer(nodes[node], question.tobytes()))
        for node, question, seed, index in zip(
            sampled.nodes.tolist(), sampled.questions, sampled.seeds, sampled.indices, strict=True
        ):
            said.append(tree.sampled_answer(nodes[node], question.tobytes(), int(seed), int(index)))
        return said

    async def first() -> None:
        nonlocal fresh
        trees = await ModelTrees.open(path)
        await trees.follow()
        fresh = trees.tree(MODEL.fingerprint)
        await trees.close()

    asyncio.run(first())
    tracemalloc.start()
    try:
        taken = asyncio.run(follow())
    finally:
        tracemalloc.stop()
    assert max(taken[4:]) <= 1.1 * max(taken[1:4])


def test_a_file_that_took_anothers_place_counts_more_than_what_was_read_before() -> None:
    """As after compaction, which leaves out what was replaced."""

    async def work(one: Process, reader: Process) -> None:
        for token in (1, 2):
            one.tree.add_scores(at(one.tree, token), head(token), run=1)
            one.tree.add_greedy_answer(at(one.tree, token), QUESTION, answer(token))
        await one.save()
        await reader.trees.follow()

    processes(2, work)

    async def replaced() -> None:
        trees = await ModelTrees.open("x.tokens")
        await trees.follow()
        Path("x.tokens").unlink()
        beside = await ModelTrees.open("x.tokens")
        tree = beside.tree("model")
        tree.add_scores(at(tree, 1), head(11), run=1)
        tree.add_greedy_answer(at(tree, 1), QUESTION, answer(11))
        await beside.save("model", "a model", VOCABULARY)
        await trees.follow()
        tree = trees.tree("model")
        assert said(tree, 1) == 11 and tree.greedy_answer(at(tree, 1), QUESTION) == (11, -2.0, 0)
        assert said(tree, 2) == 2, "what is nowhere else stays"
        await trees.close()
        await beside.close()

    asyncio.run(replaced())


def told(tree: TokenTree, questions: Iterable[bytes]) -> dict[tuple[int, ...], object]:
    """By path what is stored there."""
    found: dict[tuple[int, ...], object] = {}
    for node in range(len(tree)):
        fact = tree.scores(node)
        head = None if fact is None else fact.scores
        assert head is None or isinstance(head, TopK)
        row = None if head is None else (head.ids.tolist(), head.logprobs.tolist(), head.rest)
        answers = [tree.greedy_answer(node, question) for question in questions]
        found[tree.path(node)] = (row, answers, tree.written(node))
    return found


Row = tuple[list[int], list[float], float]


def counting(batches: Iterable[Batch], model: Model, questions: list[bytes]) -> dict[tuple[int, ...], object]:
    """The same by the rules of a log, one record after the other: the first counts, but for what is superseded."""
    paths: list[tuple[int, ...]] = [()]
    rows: dict[tuple[int, ...], tuple[Row, int]] = {}
    answers: dict[tuple[int, ...], dict[bytes, tuple[Answer, int]]] = {}
    for one in batches:
        if one.model != model:
            continue
        for parent, token in zip(one.parents.tolist(), one.tokens.tolist(), strict=True):
            paths.append((*paths[parent], token))
        topks, greedy = one.entries.topks, one.entries.greedy
        if one.replaces:
            for number in one.entries.nodes.tolist():
                rows.pop(paths[number], None)
                answers.pop(paths[number], None)
        ends = np.cumsum(topks.sizes).tolist()
        for row, number in enumerate(topks.nodes.tolist()):
            cut = slice(ends[row - 1] if row else 0, ends[row])
            best = (topks.ids[cut].tolist(), topks.logprobs[cut].tolist(), float(topks.rest[row]))
            rows.setdefault(paths[number], (best, one.written))
        for row, number in enumerate(greedy.nodes.tolist()):
            said = Answer(int(greedy.tokens[row]), float(greedy.logprobs[row]), 0)
            answers.setdefault(paths[number], {}).setdefault(greedy.questions[row].tobytes(), (said, one.written))
    return {
        path: (
            rows[path][0] if path in rows else None,
            [answers.get(path, {}).get(question, (None,))[0] for question in questions],
            rows[path][1] if path in rows else max((t for _, t in answers.get(path, {}).values()), default=None),
        )
        for path in paths
    }


class Replayed(LogFile):
    """A log that shows these portions of frames."""

    def __init__(self, portions: list[list[LogFrame]]) -> None:
        super().__init__(Path("nowhere.tokens"), durable=False)
        self._portions = list(portions)

    def follow(self, admit: Admit) -> None:
        if self._portions:
            assert admit(self._portions.pop(0), False)


@given(st.integers(0, 99), st.lists(st.integers(0, 25), min_size=1, max_size=12), st.data())
@settings(deadline=None, derandomize=True, max_examples=40)
def test_many_records_read_together_say_what_they_say_one_by_one(
    seed: int, sizes: list[int], data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    models = {1: Model("model", "a model", 1536), 2: Model("other", "another", 1536)}
    questions = [bytes([number]) * 16 for number in range(4)]
    firsts = {1: 1, 2: 1}
    batches: list[Batch] = []
    for time, size in enumerate(sizes):
        model = data.draw(st.sampled_from([1, 1, 1, 2]))
        made = batch(rng, size, first=firsts[model], model=models[model])
        entries, replaces = made.entries, data.draw(st.integers(0, 5)) == 0
        few = np.repeat(rng.integers(0, 4, (len(entries.greedy.nodes), 1)), 16, axis=1).astype(np.uint8)
        entries = Entries(entries.topks, replace(entries.greedy, questions=few), SampledAnswers())
        batches.append(replace(made, entries=entries, replaces=replaces, written=time))
        firsts[model] += size
    frames = [LogFrame(address_of(payload), payload) for payload in recorded(batches)]

    async def read(portions: list[list[LogFrame]], run_bytes: int, chunk_bytes: int = 2**22) -> list[object]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(record_io, "RUN_BYTES", run_bytes)
            patch.setattr(record_io, "CHUNK_BYTES", chunk_bytes)
            trees = ModelTrees(file=Replayed(portions))
            for _ in portions:
                await trees.follow()
        return [told(trees.tree(name), questions) for name in ("model", "other")]

    async def go() -> None:
        together = await read([frames], record_io.RUN_BYTES)
        assert together == [counting(batches, models[number], questions) for number in (1, 2)]
        assert together == await read([frames], -1) == await read([[frame] for frame in frames], 0)
        for chunk_bytes in (-1, 2000):
            assert together == await read([frames], record_io.RUN_BYTES, chunk_bytes)

    asyncio.run(go())


def test_a_record_that_is_wrong_among_many_costs_itself_alone() -> None:
    batches = [batch(np.random.default_rng(number), 4, first=1 + 4 * number) for number in range(6)]
    batches = [replace(one, parents=np.zeros(4, np.int64), entries=Entries(one.entries.topks)) for one in batches]
    large = replace(batches[3], model=replace(MODEL, vocabulary_size=5000), tokens=np.full(4, 2000, np.int32))
    payloads = recorded(batches)
    (wrong,) = recorded([large])
    payloads[3] = wrong.replace((5000).to_bytes(4, "little"), (2**31).to_bytes(4, "little"))
    trie = TokenTree()
    found = list(
        RecordReader(lambda model: trie.extend_many).read([LogFrame(address_of(each), each) for each in payloads])
    )
    assert [one for one in found if isinstance(one, Lost)] == [Lost(3, "the vocabulary size is out of range")]
    assert sum(len(one.entries) for one in found if not isinstance(one, Lost)) == 5 * 4


def test_files_are_joined_by_writing_one_behind_the_other(tmp_path: Path) -> None:
    """And it does no harm where one of them is there twice."""
    batches = [
        batch(np.random.default_rng(number), 9, model=replace(MODEL, fingerprint=str(number))) for number in (1, 2)
    ]
    paths = [write(tmp_path / f"{one.model.fingerprint}.tokens", [one]) for one in batches]
    both = write(tmp_path / "both.tokens", batches)
    joined = tmp_path / "joined.tokens"
    joined.write_bytes(b"".join(path.read_bytes() for path in [*paths, paths[0]]))

    async def read(path: Path) -> list[object]:
        trees = await ModelTrees.open(path)
        await trees.follow()
        assert not trees.notices
        await trees.close()
        return [told(trees.tree(name), [QUESTION]) for name in ("1", "2")]

    assert asyncio.run(read(joined)) == asyncio.run(read(both))


def test_a_record_that_holds_the_mark_of_a_frame_is_not_written(tmp_path: Path) -> None:
    """Or a reader who looks for the next frame after damage might find one that somebody made up."""
    path = tmp_path / "x.tokens"
    file = LogFile(path, durable=False)
    file.open()

    def made_up() -> Generator[bytes, None, None]:
        yield frame_bytes(b"made up")

    assert not file.append(lambda *_: True, made_up)
    assert "holds the mark of a frame" in file.notices[0] and not path.read_bytes()
    file.close()
