"""Nodes that nobody needs go, the longest unused first, and their numbers are given to others (law 5, S9)."""

from __future__ import annotations

import copy
import gc
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmql_lite.cache.byte_tree import VOCABULARY, ByteTree, CacheKey
from lmql_lite.cache.entry import Answer, Node
from lmql_lite.cache.node_table import ROOT, NodeTable
from lmql_lite.cache.scores import Scores
from lmql_lite.cache.token_tree import NODE_BYTES, TokenTree
from lmql_lite.cache.top_k import TopK
from tests.cache.test_token_tree import QUESTION, attach, grown

LITTLE = 200 * NODE_BYTES


def head(token: int) -> TopK:
    return TopK(np.array([token], np.int32), np.array([-0.5], np.float32), 0.5, VOCABULARY)


def token_of(scores: Scores | TopK) -> int:
    assert isinstance(scores, TopK)
    return int(scores.ids[0])


def thinned(tree: TokenTree) -> None:
    """All goes that may go."""
    with tree._lock:
        tree._thin_out(2 * tree._nodes.end)


def is_there(tree: TokenTree, *path: int) -> bool:
    return tree.walk(tree.root, path)[1] == len(path)


# the columns


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 10**6), st.integers(0, 3)), max_size=150))
@settings(deadline=None, derandomize=True, max_examples=300)
def test_nodes_that_come_and_go_are_those_of_a_dictionary_of_paths(steps: list[tuple[int, int, int]]) -> None:
    nodes = NodeTable()
    node_of: dict[tuple[int, ...], Node] = {(): ROOT}
    for what, number, token in steps:
        paths = list(node_of)
        path = paths[number % len(paths)]
        if what:
            node = nodes.extend(node_of[path], token * 8192)
            assert node_of.setdefault((*path, token * 8192), node) == node
        elif path and not any(nodes.children(node_of[path])):
            nodes.remove(node_of.pop(path))
        if number % 7 == 0 and path in node_of:
            many = nodes.extend_many([node_of[path], ~0], [token * 8192, 1])
            node_of[*path, token * 8192], node_of[*path, token * 8192, 1] = many.tolist()
    assert len(nodes) == len(node_of) == len(set(node_of.values()))
    assert nodes.end == max(node_of.values()) + 1 or nodes.end > len(nodes)
    for path, node in node_of.items():
        assert nodes.path(node) == path
        assert nodes.walk(ROOT, path) == (node, len(path))
        below = {other[-1]: node_of[other] for other in node_of if other and other[:-1] == path}
        assert dict(nodes.children(node)) == below
        assert nodes.walk(node, [99]) == (node, 0)


# who keeps a node


def test_the_longest_unused_leaves_go_first() -> None:
    tree = TokenTree(LITTLE)
    grown(tree, [1, 2, 3])
    for number in range(2000):
        grown(tree, [1, 2, 3])
        grown(tree, [4, 1000 + number, 5])
    assert is_there(tree, 1, 2, 3)
    assert is_there(tree, 4, 2999, 5) and not is_there(tree, 4, 1000)
    assert len(tree) <= 200


@pytest.mark.parametrize("why", ["held", "pinned", "unsaved", "logged", "stored", "further down"])
def test_what_somebody_needs_stays(why: str) -> None:
    tree = TokenTree(1)
    tree.record()
    node = grown(tree, [1, 2, 3])
    match why:
        case "pinned":
            tree.pin(int(node))
        case "unsaved":
            tree.add_greedy_answer(int(node), QUESTION, Answer(7, 0.0, 1))
        case "logged":
            tree.attach_nodes(np.array([node], np.int32))
        case "stored":
            attach(tree, [node], [head(1)])
        case "further down":
            below = tree.extend(node, 4)
    if why != "held":
        del node
    thinned(tree)
    assert is_there(tree, 1, 2, 3)
    match why:
        case "held":
            del node
        case "pinned":
            tree.unpin(tree.walk(tree.root, [1, 2, 3])[0])
        case "unsaved":
            tree.take_dirty()
        case "logged" | "stored":
            return  # as long as the tree
        case "further down":
            del below
    thinned(tree)
    assert len(tree) == 1


def test_changes_that_were_told_keep_their_nodes_until_they_are_gone() -> None:
    tree = TokenTree(1)
    tree.record()
    tree.add_scores(grown(tree, [1, 2]), head(3), run=1)
    changes = tree.take_dirty()
    thinned(tree)
    assert [tree.path(node) for node in changes.nodes] == [(1, 2)]
    del changes
    thinned(tree)
    assert len(tree) == 1


def test_a_copy_of_a_node_keeps_it_and_a_number_made_from_it_does_not() -> None:
    tree = TokenTree(1)
    node = tree.extend(tree.root, 1)
    for plain in (pickle.loads(pickle.dumps(node)), node + 0, int(node)):
        assert plain == node and type(plain) is int
    copies = [copy.copy(node), copy.deepcopy([node])[0]]
    del node
    for _ in range(2):
        thinned(tree)
        assert is_there(tree, 1)
        copies.pop()
    thinned(tree)
    assert len(tree) == 1


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 10**6), st.integers(0, 3)), max_size=200), st.integers(0, 40)
)
@settings(deadline=None, derandomize=True, max_examples=300)
def test_a_number_in_somebodys_hands_never_means_another_node(steps: list[tuple[int, int, int]], room: int) -> None:
    tree = TokenTree(room * NODE_BYTES)
    hands: dict[tuple[int, ...], Node] = {(): tree.root}
    for what, number, token in steps:
        path = list(hands)[number % len(hands)]
        if what == 0:
            hands.pop(path, None) if path else thinned(tree)
        elif what == 1:
            tree.add_scores(hands[path], head(sum(path) % 7), run=1)
        else:
            hands[*path, token] = tree.extend(hands[path], token)
        for path, node in hands.items():
            assert tree.path(node) == path
            fact = tree.scores(node)
            assert fact is None or token_of(fact.scores) == sum(path) % 7
    assert len({*hands.values()}) == len(hands)
    hands, node = {}, ROOT
    thinned(tree)
    assert len(tree) == 1


def test_threads_that_grow_a_tree_without_room_stand_where_they_think_S28() -> None:
    tree = TokenTree(50 * NODE_BYTES)

    def walk(worker: int) -> int:
        random, wrong = Random(worker), 0
        for _ in range(300):
            path = tuple(random.randrange(3) for _ in range(random.randrange(1, 30)))
            node = grown(tree, path)
            tree.add_scores(node, head(sum(path) % 7), run=1)
            fact = tree.scores(node)
            wrong += tree.path(node) != path
            wrong += fact is not None and token_of(fact.scores) != sum(path) % 7
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(walk, range(4))) == 0
    assert tree._nodes.reused


# guesses


def test_guesses_follow_nodes_that_took_the_numbers_of_others() -> None:
    tree = TokenTree(LITTLE)
    for number in range(300):
        grown(tree, [1000 + number, 1, 2, 3, 4])
        tree.draft(tree.walk(tree.root, [1000 + number, 1, 2, 3])[0], 5, skip=False)
    assert tree._nodes.reused > 500
    grown(tree, [7, 8, 9, 10, 11])
    here = grown(tree, [5, 8, 9, 10])
    for number in range(100):  # most numbers are given anew, and these nodes are used meanwhile
        grown(tree, [2000 + number, 1, 2, 3, 4])
        grown(tree, [7, 8, 9, 10, 11])
    assert tree.draft(here, 1, skip=False) == (11,)


# room


def texts(many: int) -> list[bytes]:
    """Prompts of 80 bytes, all different, some with a beginning in common."""
    random = Random(3)
    return [b"Question %d of the day: " % (number % 10) + random.randbytes(56) for number in range(many)]


def test_memory_stays_bounded_over_1_500_different_texts_law_5() -> None:
    """By the tree's own account, and by what Python says that it takes."""
    room = 2**20
    tree = TokenTree(room)
    said = ByteTree(tree)
    prompts = texts(1500)
    gc.collect()
    tracemalloc.start()
    for number, prompt in enumerate(prompts):
        said.write(said.walk(tree.root, prompt), b"yes", -0.5, CacheKey(), run=number)
        assert tree.nbytes <= 1.2 * room
    del prompt
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken <= 1.2 * room
    assert tree.structure_nbytes <= 0.6 * room
    assert 0.8 * taken <= tree.nbytes
    assert said.read(said.walk(tree.root, prompts[-1]), [CacheKey()]) is not None


def test_what_a_log_holds_takes_nothing_of_the_room() -> None:
    tree = TokenTree(LITTLE)
    nodes = tree.extend_many(np.zeros(1000, np.int64), np.arange(1000), logged=True)
    assert tree.nbytes == 0
    assert (tree.extend_many(np.zeros(1000, np.int64), np.arange(1000)) == nodes).all()
    for number in range(1000):
        grown(tree, [number, 1, 2, 3, 4])
    thinned(tree)
    assert len(tree) == 1001 and tree.nbytes == 0
    assert dict(tree.stored_children(tree.root)) == dict(enumerate(nodes.tolist()))
