"""The tree in memory: paths, hashes, first writer wins, eviction and pins, what is new, what frees a node, threads."""

from __future__ import annotations

import gc
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmql_lite.cache.tokens.bytes import ByteTree, CacheKey
from lmql_lite.cache.tokens.draws import mix
from lmql_lite.cache.tokens.nodes import SCORES_BYTES, Answer, Node, ScoreEntry
from lmql_lite.cache.tokens.scores import Scores
from lmql_lite.cache.tokens.tree import NODE_BYTES, TokenTree
from tests.cache.tokens.process import at
from tests.conftest import examples

VOCABULARY = 1000
ROW = SCORES_BYTES + 4 * VOCABULARY
QUESTION = bytes(range(16))


def row(favourite: int, size: int = VOCABULARY) -> Scores:
    """All but 1e-4 of the mass on one token: a head of one."""
    chances = np.full(size, 1e-4 / (size - 1))
    chances[favourite] = 1 - 1e-4
    return Scores(np.log(chances).astype(np.float32))


# nodes


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 10**6), st.integers(0, 3) | st.just(2**31 - 1)), max_size=200),
    st.integers(0, 9),
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
            assert tree.path(node) == path and tree.path_hash(node) == reduce(mix, path, 0)
            assert tree.walk(tree.root, path) == (node, len(path)) == tree.walk(tree.root, [*path, 99])
            assert [each.token for each in tree.nodes_to(node)] == [*reversed(path)]
            fact = tree.scores(node)
            assert fact is None or fact.top_k().ids[0] == sum(path) % 7
    assert len({node.number for node in hands.values()}) == len(hands)
    hands, node = {}, tree.root
    tree.drop_scores()
    assert len(tree) == 1


def test_a_node_lives_as_long_as_somebody_needs_it() -> None:
    tree = TokenTree()
    node = tree.extend_path(tree.root, range(100_000))  # so many that a recursion would end
    assert len(tree) == 100_001
    below = tree.extend(node, 4)
    del node
    assert len(tree) == 100_002, "the nodes above one that is held"
    del below
    assert len(tree) == 1 and tree.walk(tree.root, [1])[1] == 0
    tree.add_scores(at(tree, 1, 2), row(1), run=1)
    assert len(tree) == 3, "one with an entry"
    tree.pin(at(tree, 5))
    assert len(tree) == 4, "one that is pinned"
    tree.drop_scores()
    tree.unpin(tree.walk(tree.root, [5])[0])
    assert len(tree) == 1


# entries


def test_the_first_fact_written_stays_S6() -> None:
    tree, kept = TokenTree(), row(1)
    for scores in (kept, row(2), row(2).top_k()):
        assert tree.add_scores(tree.root, scores, run=1) == ScoreEntry(kept, 1)
    node = tree.extend(tree.root, 3)
    first, second = Answer(7, -0.5, 1), Answer(8, -1.5, 2)
    for question, answer, other in ((QUESTION, first, second), ((QUESTION, 7, 0), second, first)):
        assert tree.answer(node, question) is None
        assert tree.add_answer(node, question, answer) == tree.add_answer(node, question, other) == answer
    assert tree.answer(node, QUESTION) == first
    assert tree.answer(node, bytes(16)) is tree.answer(node, (QUESTION, 7, 1)) is None


# eviction


def test_what_was_written_last_stays_however_small_the_bound() -> None:
    tree = TokenTree(max_bytes=0)
    nodes = [tree.extend(tree.root, token) for token in range(3)]
    for node in nodes:
        tree.add_scores(node, row(1), run=1)
    assert [tree.scores(node) is not None for node in nodes] == [False, False, True]


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


@pytest.mark.parametrize("records", [False, True])
def test_threads_that_grow_a_tree_with_little_room_find_what_they_think_S28(records: bool) -> None:
    tree = TokenTree(50 * NODE_BYTES, records=records)

    def walk(worker: int) -> int:
        random, wrong = Random(worker), 0
        for number in range(300):
            path = tuple(random.randrange(3) for _ in range(random.randrange(1, 30)))
            node = at(tree, *path)
            tree.pin(node)
            tree.add_scores(node, row(sum(path) % 7).top_k(), run=1)
            fact = tree.scores(node)
            wrong += fact is None or fact.top_k().ids[0] != sum(path) % 7
            tree.unpin(node)
            wrong += tree.path(node) != path or tree.walk(tree.root, path)[0] is not node
            tree.add_scores(at(tree, 9, worker, number), row(1).top_k(), run=1)
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(walk, range(4))) == 0
    if records:
        new = [tree.path(node)[:2] for node, _ in tree.take_dirty().entries]
        assert [new.count((9, worker)) for worker in range(4)] == [300] * 4
    else:
        assert len(tree) < 100, "what nobody holds any more is gone"


# memory


@pytest.mark.parametrize("kind", ["scores", "answers"])
@pytest.mark.parametrize("shape", ["deep", "wide"])
def test_the_memory_of_a_tree_is_what_is_counted(kind: str, shape: str) -> None:
    """Within a half, so that the bound is one of memory and not of numbers."""
    random = np.random.default_rng(1)
    tree = TokenTree(max_bytes=2**40)
    gc.collect()
    tracemalloc.start()
    node = tree.root
    for token in range(3000):
        node = tree.extend(tree.root if shape == "wide" else node, token)
        if kind == "scores":
            scores = Scores(np.log(random.dirichlet(np.full(64, 0.3))).astype(np.float32))
            tree.add_scores(node, scores.top_k(), run=token)
        else:
            tree.add_answer(node, (token.to_bytes(16, "little"), token << 40, 0), Answer(token, float(token), token))
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
