"""The tree in memory: paths, hashes, first writer wins, bounded rows, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lmql_lite.cache.scores import Scores
from lmql_lite.cache.tree import TokenTree
from lmql_lite.cache.trie import Trie


def row(value: float, size: int = 4) -> Scores:
    return Scores(np.full(size, value, dtype=np.float32))


@given(st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=20))
@settings(deadline=None, derandomize=True)
def test_paths_come_back_and_equal_paths_are_one_node(paths: list[list[int]]) -> None:
    tree: TokenTree = Trie()
    nodes = {}
    for path in paths:
        node = tree.root
        for token in path:
            node = tree.extend(node, token)
        assert tree.path(node) == tuple(path)
        assert nodes.setdefault(tuple(path), node) == node
    assert len(set(nodes.values())) == len(nodes)


def test_the_hash_of_a_path_does_not_depend_on_the_order_of_insertion_S3() -> None:
    first, second = Trie(), Trie()
    second.extend(second.extend(second.root, 9), 9)
    hashes = []
    for tree in (first, second):
        node = tree.root
        for token in (4, 0, 7):
            node = tree.extend(node, token)
        hashes.append(tree.path_hash(node))
    assert hashes[0] == hashes[1]
    assert first.path_hash(first.extend(first.root, 4)) != first.path_hash(first.extend(first.root, 5))


def test_the_first_fact_written_stays_S6() -> None:
    tree = Trie()
    kept = row(1)
    assert tree.add_scores(tree.root, kept, run=1).scores is kept
    assert tree.add_scores(tree.root, row(2), run=2).run == 1
    assert tree.add_verdict(3, b"question", b"first") == b"first"
    assert tree.add_verdict(3, b"question", b"second") == b"first"
    assert tree.verdict(3, b"other") is None
    assert tree.add_draw(3, b"question", 7, 0, b"drawn") == b"drawn"
    assert tree.add_draw(3, b"question", 7, 0, b"again") == b"drawn"
    assert tree.draw(3, b"question", 7, 1) is None


def test_rows_are_bounded_in_bytes_and_the_oldest_unused_go_first() -> None:
    tree = Trie(scores_bytes=3 * 16)
    nodes = [tree.extend(tree.root, token) for token in range(5)]
    for node in nodes[:3]:
        tree.add_scores(node, row(node), run=1)
    assert tree.scores(nodes[0]) is not None
    for node in nodes[3:]:
        tree.add_scores(node, row(node), run=1)
    assert [tree.scores(node) is not None for node in nodes] == [True, False, False, True, True]


def test_many_threads_grow_one_tree() -> None:
    tree = Trie()

    def grow(worker: int) -> list[int]:
        nodes = []
        for number in range(2000):
            node = tree.extend(tree.extend(tree.root, number % 50), number)
            tree.add_scores(node, row(worker), run=worker)
            nodes.append(node)
        return nodes

    with ThreadPoolExecutor(8) as pool:
        grown = list(pool.map(grow, range(8)))
    assert all(nodes == grown[0] for nodes in grown)
    assert len(tree) == 1 + 50 + 2000
    assert all(tree.path(node) == (number % 50, number) for number, node in enumerate(grown[0]))
