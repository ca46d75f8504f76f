"""The tree in memory: paths, hashes, bulk loads, first writer wins, eviction and pins, what is new, threads."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmql_lite.cache import node_batch, node_table
from lmql_lite.cache.columns import Entries, GreedyAnswers, TopKs
from lmql_lite.cache.entry import Answer, Node, ScoreEntry
from lmql_lite.cache.memory_entries import ANSWER_BYTES, SCORES_BYTES
from lmql_lite.cache.node_table import ROOT, NodeTable
from lmql_lite.cache.sampling import mix
from lmql_lite.cache.scores import Scores
from lmql_lite.cache.token_tree import NODE_BYTES, TokenTree
from lmql_lite.cache.top_k import TopK

VOCABULARY = 1000
ROW = SCORES_BYTES + 4 * VOCABULARY
QUESTION = bytes(range(16))


def row(favourite: int, size: int = VOCABULARY) -> Scores:
    """All but 1e-4 of the mass on one token: a head of one."""
    chances = np.full(size, 1e-4 / (size - 1))
    chances[favourite] = 1 - 1e-4
    return Scores(np.log(chances).astype(np.float32))


HEAD = SCORES_BYTES + 8 * row(0).top_k().ids.size


def grown(tree: TokenTree, path: Sequence[int]) -> Node:
    node = tree.root
    for token in path:
        node = tree.extend(node, token)
    return node


def states(tree: TokenTree, nodes: Sequence[Node]) -> str:
    """w: whole scores, h: their head, a dot: nothing. Looking at them makes them used, in this order."""
    facts = [tree.scores(node) for node in nodes]
    return "".join("." if fact is None else "h" if isinstance(fact.scores, TopK) else "w" for fact in facts)


def attach(tree: TokenTree, nodes: Sequence[Node], heads: Sequence[TopK]) -> None:
    """Top-k entries as a file would give them."""
    topks = TopKs(
        np.array(nodes, np.int64),
        np.array([head.ids.size for head in heads], np.int64),
        np.array([head.rest for head in heads], np.float32),
        np.concatenate([head.ids for head in heads]),
        np.concatenate([head.logprobs for head in heads]),
    )
    tree.attach(Entries(topks), np.full(len(heads), 100), heads[0].vocabulary)


def attach_answers(tree: TokenTree, *answers: tuple[Node, bytes, int]) -> None:
    """Greedy answers (node, question, token) as a file would give them."""
    nodes = np.array([node for node, _, _ in answers], np.int64)
    questions = np.frombuffer(b"".join(question for _, question, _ in answers), np.uint8).reshape(-1, 16)
    tokens = np.array([token for _, _, token in answers], np.int32)
    greedy = GreedyAnswers(nodes, questions, tokens, np.full(len(answers), -0.5, np.float32))
    tree.attach(Entries(greedy=greedy), np.full(len(answers), 100), 0)


# nodes


@given(st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=20))
@settings(deadline=None, derandomize=True)
def test_paths_come_back_and_equal_paths_are_one_node(paths: list[list[int]]) -> None:
    tree: TokenTree = TokenTree()
    nodes = {}
    for path in paths:
        node = grown(tree, path)
        assert tree.path(node) == tuple(path)
        assert nodes.setdefault(tuple(path), node) == node
    assert len(set(nodes.values())) == len(nodes)


def test_the_hash_of_a_path_does_not_depend_on_the_order_of_insertion_S3() -> None:
    first, second = TokenTree(), TokenTree()
    grown(second, [9, 9])
    assert first.path_hash(grown(first, [4, 0, 7])) == second.path_hash(grown(second, [4, 0, 7]))
    assert first.path_hash(grown(first, [4])) != first.path_hash(grown(first, [5]))


def test_a_node_with_the_number_of_one_that_went_has_the_hash_of_its_own_path_S3() -> None:
    nodes = NodeTable()
    gone = nodes.extend(ROOT, 5)
    assert nodes.path_hash(gone) == mix(0, 5)
    nodes.remove(gone)
    assert nodes.extend(ROOT, 6) == gone
    assert nodes.path_hash(nodes.extend(gone, 7)) == mix(mix(0, 6), 7)
    assert nodes.path_hash(gone) == mix(0, 6)


def test_the_hash_of_a_path_whose_nodes_have_their_numbers_from_others_in_any_order_S3() -> None:
    nodes = NodeTable()
    low = nodes.extend(ROOT, 5)
    assert nodes.path_hash(low) == mix(0, 5)
    high = nodes.extend(ROOT, 6)
    nodes.remove(low)
    assert nodes.extend(high, 7) == low < high
    assert nodes.path_hash(low) == mix(mix(0, 6), 7)


TOKENS = st.one_of(st.integers(0, 3), st.sampled_from([-(2**31), 2**31 - 1, 2**30, 4096, 8192]))
OPERATIONS = st.one_of(
    st.tuples(st.just("extend"), st.integers(0, 10**6), TOKENS),
    st.tuples(st.just("walk"), st.integers(0, 10**6), st.lists(TOKENS, max_size=6)),
    st.tuples(
        st.just("extend_many"),
        st.booleans(),
        st.lists(st.tuples(st.booleans(), st.integers(0, 10**6), TOKENS), max_size=40),
    ),
)


@given(st.lists(OPERATIONS, max_size=12), st.sampled_from([1, 3, 10**6]), st.sampled_from([1, 8, 10**6]))
@settings(deadline=None, derandomize=True, max_examples=400)
def test_any_operations_give_what_a_dictionary_of_paths_gives(operations: list[tuple], wide: int, many: int) -> None:
    """Whether levels are loaded one by one, all at once or now this, now that way, and what is all new in one go."""
    tree = TokenTree()
    paths: list[tuple[int, ...]] = [()]  # by number of the model's own
    node_of: dict[tuple[int, ...], Node] = {(): tree.root}

    def learn(path: tuple[int, ...], node: Node) -> None:
        assert tree.path(node) == path
        assert tree.path_hash(node) == reduce(mix, path, 0)
        assert node_of.setdefault(path, node) == node
        if path not in paths:
            paths.append(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_batch, "_WIDE", wide)
        patch.setattr(node_table, "_MANY", many)
        for what, first, second in operations:
            if what == "extend":
                path = paths[first % len(paths)]
                learn((*path, second), tree.extend(node_of[path], second))
            elif what == "walk":
                path = paths[first % len(paths)]
                node, reached = tree.walk(node_of[path], second)
                assert tree.path(node) == (*path, *second[:reached])
                assert reached == len(second) or (*path, *second[: reached + 1]) not in node_of
            else:
                known, entries, parents = list(paths), [], []
                for place, (inner, number, token) in enumerate(second):
                    if inner and place:
                        parents.append(~(number % place))
                        entries.append((*entries[number % place], token))
                    else:
                        path = known[number % len(known)]
                        parents.append(node_of[path])
                        entries.append((*path, token))
                nodes = tree.extend_many(parents, [token for *_, token in second], logged=first)
                assert len(nodes) == len(entries)
                for path, node in zip(entries, nodes.tolist(), strict=True):
                    learn(path, node)
    assert len(tree) == len(paths) == len(set(node_of.values()))
    for path, node in node_of.items():
        assert tree.walk(tree.root, path) == (node, len(path))
        assert tree.path_hash(node) == (mix(tree.path_hash(node_of[path[:-1]]), path[-1]) if path else 0)
        below = {other[-1]: node_of[other] for other in paths if other and other[:-1] == path}
        assert dict(tree._nodes.children(node)) == below


def test_many_nodes_at_once_are_those_added_one_by_one() -> None:
    random = np.random.default_rng(3)
    many = 20_000
    parents = np.array([0, *(~random.integers(max(0, entry - 300), entry) for entry in range(1, many))])
    tokens = random.integers(0, 9, many)
    tree, other = TokenTree(), TokenTree()
    nodes = tree.extend_many(parents, tokens)
    others: list[Node] = []
    for parent, token in zip(parents.tolist(), tokens.tolist(), strict=True):
        others.append(other.extend(others[~parent] if parent < 0 else parent, token))
    assert len(tree) == len(other) < many
    assert all(
        tree.path(node) == other.path(twin) and tree.path_hash(node) == other.path_hash(twin)
        for node, twin in zip(nodes.tolist(), others, strict=True)
    )
    assert (tree.extend_many(parents, tokens) == nodes).all()
    assert len(tree) == len(other)


@pytest.mark.parametrize(
    ("parents", "tokens", "said"),
    [
        ([0, 5], [1, 1], "entry 1 is neither a node nor an earlier entry: 5"),
        ([0, ~1], [1, 1], "entry 1 is neither"),
        ([~0], [1], "entry 0 is neither"),
        ([0, 0], [1], "not a list of entries"),
        ([0], [2**31], "entry 0 has more than 32 bits"),
        ([0.0], [1], "integers"),
    ],
)
def test_entries_that_hang_nowhere_add_nothing(parents: list[int], tokens: list[int], said: str) -> None:
    tree = TokenTree()
    with pytest.raises(ValueError, match=said):
        tree.extend_many(parents, tokens)
    assert len(tree) == 1
    assert tree.extend_many([], []).tolist() == []
    with pytest.raises(OverflowError):
        tree.extend(tree.root, 2**31)
    assert tree.path(tree.extend(tree.root, 7)) == (7,)


@pytest.mark.parametrize("shape", ["wide", "deep", "bushy"])
def test_a_node_takes_at_most_48_bytes(shape: str) -> None:
    many = 2**16 + 1  # the table has just doubled
    parents = {"wide": [0] * many, "deep": [0, *(~i for i in range(many - 1))], "bushy": [0, *[~0] * (many - 1)]}
    nodes = NodeTable()
    nodes.extend_many(parents[shape], np.arange(many))
    assert len(nodes) == many + 1
    assert nodes.nbytes <= 48 * len(nodes)


@pytest.mark.parametrize("many", [2**16 - 10, 2**16 + 1, 81_000, 90_000, 100_000])
def test_a_node_takes_at_most_48_bytes_with_what_guesses_and_what_finds_stored_heads(many: int) -> None:
    tree, random = TokenTree(), np.random.default_rng(7)
    entries = np.arange(many)
    above = np.where(entries % 50 > 0, entries - 1, (random.random(many) * np.maximum(entries, 1)).astype(np.int64))
    nodes = tree.extend_many(np.where(entries > 0, ~above, 0), random.integers(0, 4096, many), logged=True)
    attach(tree, nodes.tolist(), [row(1).top_k()] * len(nodes))
    tree.draft(int(nodes[-1]), 4, skip=True)
    assert tree.structure_nbytes <= 48 * len(tree)


# facts


def test_the_first_fact_written_stays_S6() -> None:
    tree = TokenTree()
    kept = row(1)
    assert tree.add_scores(tree.root, kept, run=1).scores is kept
    assert tree.add_scores(tree.root, row(2), run=2) == ScoreEntry(kept, 1)
    assert tree.add_scores(tree.root, row(2).top_k(), run=2) == ScoreEntry(kept, 1)
    first, second = Answer(7, -0.5, 1), Answer(8, -1.5, 2)
    node = tree.extend(tree.root, 3)
    assert tree.add_greedy_answer(node, QUESTION, first) == first
    assert tree.add_greedy_answer(node, QUESTION, second) == first
    assert tree.greedy_answer(node, bytes(16)) is None
    assert tree.add_sampled_answer(node, QUESTION, 7, 0, second) == second
    assert tree.add_sampled_answer(node, QUESTION, 7, 0, first) == second
    assert tree.sampled_answer(node, QUESTION, 7, 1) is None
    assert tree.greedy_answer(node, QUESTION) == first


def test_whole_scores_take_the_place_of_their_head() -> None:
    tree = TokenTree()
    tree.add_scores(tree.root, row(1).top_k(), run=1)
    whole = row(1)
    assert tree.add_scores(tree.root, whole, run=2) == ScoreEntry(whole, 2)
    assert tree.nbytes == ROW


def test_scores_are_forgotten_and_answers_are_not() -> None:
    tree = TokenTree()
    node = tree.extend(tree.root, 1)
    tree.add_scores(tree.root, row(1), run=1)
    tree.add_scores(node, row(1), run=1)
    tree.add_greedy_answer(node, QUESTION, Answer(1, 0.0, 1))
    attach(tree, [node], [row(1).top_k()])
    tree.drop_scores()
    assert states(tree, [tree.root, node]) == ".."
    assert tree.greedy_answer(node, QUESTION) is not None
    assert tree.nbytes == ANSWER_BYTES


def test_stored_heads_are_read_where_memory_has_nothing() -> None:
    tree = TokenTree()
    tree.record()
    nodes = tree.extend_many([0, 0, 0, 0], [1, 2, 3, 4], logged=True)
    mine = row(9)
    tree.add_scores(int(nodes[1]), mine, run=1)
    heads = [row(token).top_k() for token in range(5)]
    attach(tree, nodes[[0, 1, 0]].tolist(), heads[:3])
    attach(tree, nodes[[2, 0]].tolist(), heads[3:])

    def best(node: int) -> int | None:
        fact = tree.scores(node)
        return None if fact is None or not isinstance(fact.scores, TopK) else int(fact.scores.ids[0])

    assert [best(int(nodes[place])) for place in (0, 2)] == [0, 3]  # the first one stays
    assert tree.scores(int(nodes[1])) == ScoreEntry(mine, 1)
    assert tree.scores(int(nodes[3])) is None
    assert tree.scores(tree.extend(tree.root, 99)) is None
    whole = row(0)
    assert tree.add_scores(int(nodes[0]), whole, run=2) == ScoreEntry(whole, 2)
    # the row of a stored entry is not new
    assert list(tree.take_dirty().scores) == [nodes[1]]


# eviction


def test_the_longest_unused_rows_become_heads_and_then_go() -> None:
    tree = TokenTree(max_bytes=3 * ROW + 4 * NODE_BYTES)
    nodes = [tree.extend(tree.root, token) for token in range(4)]
    for node in nodes[:3]:
        tree.add_scores(node, row(node), run=node)
    assert states(tree, nodes[:1]) == "w"  # used: now 1 is the oldest
    tree.add_scores(nodes[3], row(3), run=4)
    assert states(tree, nodes) == "whhw"
    head = tree.scores(nodes[1])
    assert head is not None
    assert head.run == nodes[1]
    assert isinstance(head.scores, TopK)
    assert head.scores.ids.tolist() == [nodes[1]]
    assert tree.nbytes == 2 * ROW + 2 * HEAD + 4 * NODE_BYTES

    tree = TokenTree(max_bytes=3 * HEAD + 5 * NODE_BYTES)
    nodes = [tree.extend(tree.root, token) for token in range(5)]
    for node in nodes:
        tree.add_scores(node, row(node).top_k(), run=1)
        tree.scores(nodes[0])
    assert states(tree, nodes) == "h..hh"


def test_answers_are_bounded_too_and_go_with_their_node() -> None:
    tree = TokenTree(max_bytes=2 * ANSWER_BYTES + 3 * NODE_BYTES)
    answer = Answer(1, 0.0, 1)
    nodes = [tree.extend(tree.root, token) for token in range(3)]
    tree.add_greedy_answer(nodes[0], QUESTION, answer)
    tree.add_sampled_answer(nodes[1], QUESTION, 7, 0, answer)
    assert tree.greedy_answer(nodes[0], QUESTION) == answer
    tree.add_sampled_answer(nodes[2], QUESTION, 7, 0, answer)
    assert tree.greedy_answer(nodes[0], QUESTION) == answer
    assert tree.sampled_answer(nodes[1], QUESTION, 7, 0) is None
    assert tree.sampled_answer(nodes[2], QUESTION, 7, 0) == answer


def test_what_was_written_last_stays_however_small_the_bound() -> None:
    tree = TokenTree(max_bytes=0)
    nodes = [tree.extend(tree.root, token) for token in range(3)]
    for node in nodes:
        tree.add_scores(node, row(1), run=1)
    assert states(tree, nodes) == "..w"


def test_eviction_takes_nothing_that_a_run_stands_on_S9() -> None:
    tree = TokenTree(max_bytes=4 * ROW + 13 * NODE_BYTES)
    way = [grown(tree, [1, 2, 3][:many]) for many in range(4)]
    aside = [tree.extend(tree.root, token) for token in range(10, 20)]
    for node in way[:3]:
        tree.add_scores(node, row(1), run=1)
    tree.pin(way[2])
    tree.pin(way[2])
    for node in aside:
        tree.add_scores(node, row(1), run=2)
    assert states(tree, way[:3]) == "www"
    assert tree.nbytes <= 4 * ROW + 13 * NODE_BYTES
    tree.unpin(way[2])
    tree.pin(way[3])  # the run moves on
    tree.unpin(way[2])
    tree.drop_scores()
    for node in (*way, *aside):
        tree.add_scores(node, row(1), run=3)
    assert states(tree, way[3:]) == "w"
    assert "." not in states(tree, way)
    tree.unpin(way[3])
    with pytest.raises(ValueError, match="not pinned"):
        tree.unpin(way[3])
    for node in aside:
        tree.add_scores(node, row(1), run=4)
    assert "w" not in states(tree, way)


def test_rows_above_a_pin_become_heads_only_where_nothing_else_can_go() -> None:
    tree = TokenTree(max_bytes=3 * ROW)
    way = [grown(tree, range(many)) for many in range(8)]
    tree.pin(way[0])
    for last, node in pairwise(way):
        tree.pin(node)
        tree.unpin(last)
        tree.add_scores(node, row(1), run=1)
    assert tree.nbytes <= 3 * ROW
    assert "." not in states(tree, way[1:])
    assert states(tree, way[-1:]) == "w"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=60))
@settings(deadline=None, derandomize=True)
def test_pinned_is_what_stands_on_the_way_to_a_pin(steps: list[tuple[bool, int]]) -> None:
    tree = TokenTree(max_bytes=0)
    tree.extend_many([0, *(~((entry - 1) // 2) for entry in range(1, 30))], list(range(30)), logged=True)
    pins: list[Node] = []
    for more, number in steps:
        if more:
            pins.append(number)
            tree.pin(number)
        elif pins:
            tree.unpin(pins.pop(number % len(pins)))
    for node in range(len(tree)):
        tree.add_scores(node, row(1).top_k(), run=1)
    tree.add_scores(tree.extend(tree.root, 99), row(1).top_k(), run=1)
    stands = {tree.walk(tree.root, tree.path(pin)[:many])[0] for pin in pins for many in range(len(tree.path(pin)) + 1)}
    assert {node for node in range(31) if tree.scores(node) is not None} == stands


# what is new


def test_each_change_is_told_once_in_the_order_in_which_it_came() -> None:
    tree = TokenTree()
    with pytest.raises(ValueError, match="record"):
        tree.take_dirty()
    before = grown(tree, [5])
    early = row(5)
    tree.add_scores(before, early, run=1)
    tree.record()
    tree.record()
    first = tree.take_dirty()
    assert first.scores == {before: ScoreEntry(early, 1)}

    answer, other = Answer(1, 0.0, 2), Answer(2, -1.0, 2)
    logged = tree.extend_many([0, ~0], [1, 2], logged=True).tolist()
    loud = grown(tree, [1, 2, 3])
    louder = tree.extend(loud, 4)
    attach(tree, logged, [row(1).top_k()] * 2)
    attach_answers(tree, (logged[1], QUESTION, 1))
    for _ in range(2):  # the second time nothing is added
        tree.add_scores(louder, early, run=2)
        tree.add_scores(before, early, run=2)
        tree.add_greedy_answer(louder, QUESTION, answer)
        tree.add_sampled_answer(loud, QUESTION, 7, 1, answer)
        tree.add_sampled_answer(loud, QUESTION, 7, 0, other)
        tree.add_scores(loud, early.top_k(), run=2)
    second = tree.take_dirty()
    assert [(node, entry.run) for node, entry in second.scores.items()] == [(louder, 2), (loud, 2)]
    assert list(second.answers.items()) == [
        ((louder, QUESTION), answer), ((loud, (QUESTION, 7, 1)), answer), ((loud, (QUESTION, 7, 0)), other)
    ]  # fmt: skip

    third = tree.take_dirty()
    assert not third
    assert tree.stored_children(tree.root) == [(1, logged[0])]


def test_what_was_evicted_before_it_was_told_is_told_as_its_head() -> None:
    tree = TokenTree(max_bytes=ROW)
    tree.record()
    nodes = [tree.extend(tree.root, token) for token in range(3)]
    for node in nodes:
        tree.add_scores(node, row(node), run=node)
    assert states(tree, nodes) == "..w"
    dirty = tree.take_dirty().scores.items()
    kinds = [(node, entry.run, type(entry.scores)) for node, entry in dirty]
    assert kinds == [(1, 1, TopK), (2, 2, TopK), (3, 3, Scores)]


STEPS = st.tuples(
    st.sampled_from(["extend", "scores", "verdict", "draw", "changes"]), st.integers(0, 40), st.booleans()
)


@given(st.lists(STEPS, max_size=60), st.sampled_from([3 * ROW, 2**30]))
@settings(deadline=None, derandomize=True)
def test_changes_are_all_facts_that_came_and_stand_in_no_log(
    steps: list[tuple[str, int, bool]], max_bytes: int
) -> None:
    tree = TokenTree(max_bytes)
    tree.record()
    told: list[tuple[str, Node]] = []
    expected: list[tuple[str, Node]] = []
    nodes = [tree.root]
    for what, number, quiet in [*steps, ("changes", 0, False)]:
        node, answer = nodes[number % len(nodes)], Answer(number, 0.0, 1)
        new = False
        if what == "extend":
            nodes.append(tree.extend(node, number))
        elif what == "scores":
            new = tree.scores(node) is None
            if quiet:
                attach(tree, [node], [row(1).top_k()])
            else:
                tree.add_scores(node, row(1), run=1)
        elif what == "verdict":
            new = tree.greedy_answer(node, QUESTION) is None
            if quiet:
                attach_answers(tree, (node, QUESTION, 1))
            else:
                tree.add_greedy_answer(node, QUESTION, answer)
        elif what == "draw":
            new, quiet = tree.sampled_answer(node, QUESTION, 7, 0) is None, False
            tree.add_sampled_answer(node, QUESTION, 7, 0, answer)
        else:
            changes = tree.take_dirty()
            told += [("scores", node) for node in changes.scores]
            told += [("verdict" if isinstance(asked, bytes) else "draw", node) for node, asked in changes.answers]
        if new and not quiet:
            expected.append((what, node))
    assert sorted(told) == sorted(expected)


# threads


def test_many_threads_grow_one_tree_S28() -> None:
    tree = TokenTree(max_bytes=50 * ROW + 1551 * NODE_BYTES)
    tree.record()

    def grow(worker: int) -> list[int]:
        nodes = []
        for number in range(1500):
            node = tree.extend(tree.extend(tree.root, number % 50), number)
            tree.pin(node)
            tree.add_scores(node, row(worker), run=worker)
            tree.unpin(node)
            nodes.append(node)
        return nodes

    def load(_: int) -> list[int]:
        numbers = np.arange(1500)
        heads = tree.extend_many(np.zeros(50, dtype=int), np.arange(50), logged=True)
        return tree.extend_many(heads[numbers % 50], numbers, logged=True).tolist()

    def look(_: int) -> None:
        for _ in range(30):
            for number in range(0, 1500, 7):
                node, many = tree.walk(tree.root, (number % 50, number))
                assert tree.path(node) == (number % 50, number)[:many]
                assert node == tree.root or tree.path_hash(node)

    with ThreadPoolExecutor(8) as pool:
        looking = [pool.submit(look, 0) for _ in range(2)]
        loading = [pool.submit(load, 0) for _ in range(3)]
        growing = [pool.submit(grow, worker) for worker in range(4)]
        grown_nodes = [work.result() for work in (*growing, *loading)]
        assert all(work.result() is None for work in looking)
    assert all(nodes == grown_nodes[0] for nodes in grown_nodes)
    assert len(tree) == 1 + 50 + 1500
    assert all(tree.path(node) == (number % 50, number) for number, node in enumerate(grown_nodes[0]))
    assert tree.nbytes <= 50 * ROW + 1551 * NODE_BYTES
    changes = tree.take_dirty()
    assert len(changes.scores) == 1500


def test_the_memory_of_facts_is_what_is_counted() -> None:
    """Within a fifth, so that the bound is one of memory and not of numbers."""
    import tracemalloc

    random = np.random.default_rng(1)

    def head(_: int) -> TopK:
        return Scores(np.log(random.dirichlet(np.full(64, 0.3))).astype(np.float32)).top_k()

    def measured(many: int, add: object) -> float:
        tree = TokenTree(max_bytes=2**40)
        nodes: NDArray[np.int32] = tree.extend_many(np.zeros(many, dtype=int), np.arange(many))
        tracemalloc.start()
        for node in nodes.tolist():
            add(tree, node)  # type: ignore[operator]
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return tree.nbytes / taken

    def answer(tree: TokenTree, node: Node) -> None:
        tree.add_sampled_answer(node, node.to_bytes(16, "little"), node << 40, 0, Answer(node, float(node), node))

    assert 0.8 < measured(3000, lambda tree, node: tree.add_scores(node, head(node), run=node)) < 1.25
    assert 0.8 < measured(3000, answer) < 1.25


def test_children_are_found_after_the_table_grew_many_times() -> None:
    tree, many = TokenTree(), 150_000
    for start in range(0, many, 50_000):
        nodes = tree.extend_many([0] * 50_000, range(start, start + 50_000))
        assert len(set(nodes.tolist())) == 50_000
    assert len(tree) == many + 1
    for token in range(0, many, 997):
        node, found = tree.walk(tree.root, [token])
        assert found == 1 and tree.path(node) == (token,)
