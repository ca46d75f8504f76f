"""The tree in memory: paths, hashes, first writer wins, eviction and pins, what is new, what frees a node, threads."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmql_lite.cache.tokens.bytes import ByteTree, CacheKey
from lmql_lite.cache.tokens.drafts import SUFFIX_BYTES
from lmql_lite.cache.tokens.draws import mix
from lmql_lite.cache.tokens.nodes import SCORES_BYTES, Answer, Node, ScoreEntry
from lmql_lite.cache.tokens.scores import Scores, TopK
from lmql_lite.cache.tokens.tree import NODE_BYTES, TokenTree
from tests.conftest import examples

VOCABULARY = 1000
ROW = SCORES_BYTES + 4 * VOCABULARY
QUESTION = bytes(range(16))


def row(favourite: int, size: int = VOCABULARY) -> Scores:
    """All but 1e-4 of the mass on one token: a head of one."""
    chances = np.full(size, 1e-4 / (size - 1))
    chances[favourite] = 1 - 1e-4
    return Scores(np.log(chances).astype(np.float32))


def grown(tree: TokenTree, path: Sequence[int]) -> Node:
    node = tree.root
    for token in path:
        node = tree.extend(node, token)
    return node


def states(tree: TokenTree, nodes: Sequence[Node]) -> str:
    """w: whole scores, h: their head, a dot: nothing. Looking at them makes them used, in this order."""
    facts = [tree.scores(node) for node in nodes]
    return "".join("." if fact is None else "h" if isinstance(fact.scores, TopK) else "w" for fact in facts)


# nodes


@given(st.lists(st.lists(st.one_of(st.integers(0, 5), st.just(2**31 - 1)), max_size=6), max_size=20))
@settings(deadline=None, derandomize=True)
def test_paths_come_back_and_equal_paths_are_one_node(paths: list[list[int]]) -> None:
    tree = TokenTree()
    nodes: dict[tuple[int, ...], Node] = {}
    for path in paths:
        node = grown(tree, path)
        assert tree.path(node) == tuple(path) and tree.path_hash(node) == reduce(mix, path, 0)
        assert nodes.setdefault(tuple(path), node) is node
        for further in ([], [99]):
            assert tree.walk(tree.root, [*path, *further]) == (node, len(path))
        assert [each.token for each in tree.nodes_to(node)] == path[::-1]
    assert len({node.number for node in nodes.values()}) == len(nodes)


def test_the_hash_of_a_path_does_not_depend_on_the_order_of_insertion_S3() -> None:
    first, second = TokenTree(), TokenTree()
    grown(second, [9, 9])
    assert first.path_hash(grown(first, [4, 0, 7])) == second.path_hash(grown(second, [4, 0, 7]))
    assert first.path_hash(grown(first, [4])) != first.path_hash(grown(first, [5]))


def test_a_node_lives_as_long_as_somebody_needs_it() -> None:
    tree = TokenTree()
    node = grown(tree, [1, 2, 3])
    assert len(tree) == 4
    below = tree.extend(node, 4)
    del node
    assert len(tree) == 5, "the nodes above one that is held"
    del below
    assert len(tree) == 1 and tree.walk(tree.root, [1])[1] == 0
    tree.add_scores(grown(tree, [1, 2]), row(1), run=1)
    assert len(tree) == 3, "one with an entry"
    tree.pin(grown(tree, [5]))
    assert len(tree) == 4, "one that is pinned"
    tree.drop_scores()
    tree.unpin(tree.walk(tree.root, [5])[0])
    assert len(tree) == 1


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 10**6), st.integers(0, 3)), max_size=200), st.integers(0, 9)
)
@settings(deadline=None, derandomize=True, max_examples=examples(200))
def test_nodes_that_come_and_go_are_those_of_a_dictionary_of_paths(
    steps: list[tuple[int, int, int]], room: int
) -> None:
    tree = TokenTree(room * (ROW + NODE_BYTES))
    hands: dict[tuple[int, ...], Node] = {(): tree.root}
    for what, number, token in steps:
        path = list(hands)[number % len(hands)]
        if what == 0 and path:
            del hands[path]
        elif what == 1:
            tree.add_scores(hands[path], row(sum(path) % 7).top_k(), run=1)
        elif what:
            hands[*path, token] = tree.extend(hands[path], token)
        for path, node in hands.items():
            assert tree.path(node) == path and tree.walk(tree.root, path) == (node, len(path))
            fact = tree.scores(node)
            assert fact is None or fact.top_k().ids[0] == sum(path) % 7
    hands, node = {}, tree.root
    tree.drop_scores()
    assert len(tree) == 1


def test_a_long_path_is_freed_without_a_deep_recursion() -> None:
    tree = TokenTree()
    node = tree.extend_path(tree.root, range(100_000))
    assert len(tree) == 100_001
    del node
    assert len(tree) == 1


# facts


def test_the_first_fact_written_stays_S6() -> None:
    tree = TokenTree()
    kept = row(1)
    assert tree.add_scores(tree.root, kept, run=1).scores is kept
    assert tree.add_scores(tree.root, row(2), run=2) == ScoreEntry(kept, 1)
    assert tree.add_scores(tree.root, row(2).top_k(), run=2) == ScoreEntry(kept, 1)
    first, second = Answer(7, -0.5, 1), Answer(8, -1.5, 2)
    node = tree.extend(tree.root, 3)
    assert tree.add_answer(node, QUESTION, first) == first
    assert tree.add_answer(node, QUESTION, second) == first
    assert tree.answer(node, bytes(16)) is None
    assert tree.add_answer(node, (QUESTION, 7, 0), second) == second
    assert tree.add_answer(node, (QUESTION, 7, 0), first) == second
    assert tree.answer(node, (QUESTION, 7, 1)) is None
    assert tree.answer(node, QUESTION) == first


# eviction


def test_what_was_written_last_stays_however_small_the_bound() -> None:
    tree = TokenTree(max_bytes=0)
    nodes = [tree.extend(tree.root, token) for token in range(3)]
    for node in nodes:
        tree.add_scores(node, row(1), run=1)
    assert states(tree, nodes) == "..w"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=60))
@settings(deadline=None, derandomize=True)
def test_pinned_is_what_stands_on_the_way_to_a_pin(steps: list[tuple[bool, int]]) -> None:
    tree = TokenTree(max_bytes=0)
    nodes = [tree.root]
    for entry in range(30):
        nodes.append(tree.extend(nodes[(entry + 1) // 2], entry))
    pins: list[Node] = []
    for more, number in steps:
        if more:
            pins.append(nodes[number])
            tree.pin(nodes[number])
        elif pins:
            tree.unpin(pins.pop(number % len(pins)))
    for node in nodes:
        tree.add_scores(node, row(1).top_k(), run=1)
    tree.add_scores(tree.extend(tree.root, 99), row(1).top_k(), run=1)
    stands = {node for pin in pins for node in (*tree.nodes_to(pin), tree.root)}
    assert {node for node in nodes if tree.scores(node) is not None} == stands


# threads


def test_many_threads_grow_one_tree_S28() -> None:
    tree = TokenTree(max_bytes=50 * ROW + 1551 * (NODE_BYTES + SUFFIX_BYTES), records=True)

    def grow(worker: int) -> list[Node]:
        nodes = []
        for number in range(1500):
            node = tree.extend(tree.extend(tree.root, number % 50), number)
            tree.pin(node)
            tree.add_scores(node, row(worker), run=worker)
            tree.unpin(node)
            nodes.append(node)
        return nodes

    def look(_: int) -> None:
        for _ in range(30):
            for number in range(0, 1500, 7):
                node, many = tree.walk(tree.root, (number % 50, number))
                assert tree.path(node) == (number % 50, number)[:many]

    with ThreadPoolExecutor(8) as pool:
        looking = [pool.submit(look, 0) for _ in range(2)]
        growing = [pool.submit(grow, worker) for worker in range(4)]
        found = [work.result() for work in growing]
        assert all(work.result() is None for work in looking)
    assert all(nodes == found[0] for nodes in found)
    assert len(tree) == 1 + 50 + 1500
    assert all(tree.path(node) == (number % 50, number) for number, node in enumerate(found[0]))
    assert tree.nbytes <= tree.max_bytes
    assert len(tree.take_dirty().entries) == 1500


def test_threads_that_grow_a_tree_without_room_stand_where_they_think_S28() -> None:
    tree = TokenTree(50 * NODE_BYTES)

    def walk(worker: int) -> int:
        random, wrong = Random(worker), 0
        for _ in range(300):
            path = tuple(random.randrange(3) for _ in range(random.randrange(1, 30)))
            node = grown(tree, path)
            tree.add_scores(node, row(sum(path) % 7).top_k(), run=1)
            fact = tree.scores(node)
            wrong += tree.path(node) != path or tree.walk(tree.root, path)[0] is not node
            wrong += fact is not None and fact.top_k().ids[0] != sum(path) % 7
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(walk, range(4))) == 0


# memory


def scored(tree: TokenTree, node: Node, random: np.random.Generator) -> None:
    scores = Scores(np.log(random.dirichlet(np.full(64, 0.3))).astype(np.float32))
    tree.add_scores(node, scores.top_k(), run=node.number)


def answered(tree: TokenTree, node: Node, _: np.random.Generator) -> None:
    number = node.number
    tree.add_answer(node, (number.to_bytes(16, "little"), number << 40, 0), Answer(number, float(number), number))


@pytest.mark.parametrize("add", [scored, answered])
@pytest.mark.parametrize("shape", ["deep", "wide"])
def test_the_memory_of_a_tree_is_what_is_counted(
    add: Callable[[TokenTree, Node, np.random.Generator], None], shape: str
) -> None:
    """Within a half, so that the bound is one of memory and not of numbers."""
    random = np.random.default_rng(1)
    tree = TokenTree(max_bytes=2**40)
    gc.collect()
    tracemalloc.start()
    node = tree.root
    for token in range(3000):
        node = tree.extend(tree.root if shape == "wide" else node, token)
        add(tree, node, random)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.7 < tree.nbytes / taken < 1.5


def test_memory_stays_bounded_over_1_500_different_texts_law_5() -> None:
    """By the tree's own account, and by what Python says that it takes."""
    room, random = 2**20, Random(3)
    tree = TokenTree(room)
    said = ByteTree(tree)
    prompts = [b"Question %d of the day: " % (number % 10) + random.randbytes(56) for number in range(1500)]
    gc.collect()
    tracemalloc.start()
    for number, prompt in enumerate(prompts):
        said.write(said.walk(tree.root, prompt), b"yes", -0.5, CacheKey(), run=number)
        assert tree.nbytes <= 1.2 * room
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.6 * room <= taken <= 1.5 * room
    assert said.read(said.walk(tree.root, prompts[-1]), [CacheKey()]) is not None
