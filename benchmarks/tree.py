"""The token tree: what a node, an entry and a `.tokens` file cost.

    python benchmarks/tree.py [--runs 20] [--nodes 1000000]

A file has runs of 60 entries, each with 8 tokens, from the root or from a place of an earlier run. Times are medians of
the processor's, but for the opening of a file.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lmql_lite.cache.entry import Node
from lmql_lite.cache.model_trees import ModelTrees
from lmql_lite.cache.token_tree import TokenTree
from lmql_lite.cache.top_k import TopK

VOCABULARY, RUN, HEAD = 4096, 60, 8
NODES = 50_000
"""Nodes of the tree in memory."""
NEVER = 2**60
"""A bound of memory that is not reached."""


def head(dice: random.Random) -> TopK:
    ids = np.array(dice.sample(range(VOCABULARY), HEAD), np.int32)
    return TopK(ids, np.sort(np.array([-dice.random() for _ in ids], np.float32))[::-1], 0.001, VOCABULARY)


def learned(tree: TokenTree, ends: list[Node], dice: random.Random) -> list[Node]:
    """The nodes of a run of new entries."""
    node, way = dice.choice(ends) if dice.random() < 0.8 else tree.root, []
    for _ in range(RUN):
        node = tree.extend(node, dice.randrange(VOCABULARY))
        tree.add_scores(node, head(dice), run=1)
        way.append(node)
    return way


async def filled(path: Path, entries: int) -> list[tuple[int, ...]]:
    """A file of entries, and some paths in it."""
    dice, trees = random.Random(1), await ModelTrees.open(path, NEVER)
    tree, ends, paths = trees.tree("model"), [], list[tuple[int, ...]]()
    ends.append(tree.root)
    for number in range(0, entries, RUN):
        way = learned(tree, ends, dice)
        ends = [*ends[-500:], way[dice.randrange(RUN)]]
        if number % (RUN * 200) == 0:
            await trees.save("model", "a model", VOCABULARY)
            paths.append(tree.path(way[-1]))
    await trees.save("model", "a model", VOCABULARY)
    await trees.close()
    return paths


async def opened(path: Path) -> float:
    """Seconds until a process has the answer to its first question."""
    before = time.perf_counter()
    trees = await ModelTrees.open(path)
    await trees.follow()
    trees.tree("model").scores(trees.tree("model").root)
    spent = time.perf_counter() - before
    await trees.close()
    return spent


async def saved(path: Path, runs: int) -> list[float]:
    """Seconds of the processor for each save of a run."""
    trees, dice, spent = await ModelTrees.open(path, NEVER), random.Random(2), list[float]()
    tree = trees.tree("model")
    ends = [tree.root]
    for _ in range(runs):
        await trees.follow()
        ends.append(learned(tree, ends, dice)[RUN // 2])
        before = time.process_time()
        assert await trees.save("model", "a model", VOCABULARY)
        spent.append(time.process_time() - before)
    await trees.close()
    return spent


async def looked_up(path: Path, paths: list[tuple[int, ...]]) -> float:
    """Seconds of the processor for the look-up of a known entry that is not in memory."""
    trees = await ModelTrees.open(path)
    await trees.follow()
    tree, count, spent = trees.tree("model"), 0, 0.0
    for tokens in paths[:200]:
        way = [tree.root]
        for token in tokens:
            way.append(tree.extend(way[-1], token))
        before = time.process_time()
        found = [tree.scores(node) for node in way[-RUN:]]
        spent += time.process_time() - before
        assert all(found)
        count += len(found)
    await trees.close()
    return spent / count


def in_memory() -> dict[str, float]:
    """Microseconds of appending a token, of one with scores, of a step of a walk; bytes of a node."""
    above = [
        max(0, number - 1 if number % 50 else random.Random(number).randrange(number + 1)) for number in range(NODES)
    ]
    dice = random.Random(3)
    tokens = [dice.randrange(VOCABULARY) for _ in range(NODES)]

    def grown(add: Callable[[TokenTree, Node], object]) -> tuple[float, TokenTree, list[Node]]:
        tree, nodes, before = TokenTree(NEVER), list[Node](), time.process_time()
        for number, token in enumerate(tokens):
            nodes.append(tree.extend(nodes[above[number]] if number else tree.root, token))
            add(tree, nodes[-1])
        return (time.process_time() - before) / NODES * 1e6, tree, nodes

    scores = head(dice)
    tracemalloc.start()
    grown_bytes = grown(lambda tree, node: None)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    plain, tree, nodes = grown(lambda tree, node: None)
    scored, _, _ = grown(lambda tree, node: tree.add_scores(node, scores, run=1))
    ways = [tree.path(node) for node in dice.sample(nodes, 500)]
    before = time.process_time()
    for way in ways:
        tree.walk(tree.root, way)
    walk = (time.process_time() - before) / sum(map(len, ways)) * 1e6
    assert grown_bytes[2]
    return {"append a token, us": plain, "append a token and its scores, us": scored, "walk a token, us": walk,
            "bytes of a node": taken / NODES}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    options = parser.parse_args()
    lines = in_memory()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.tokens")
        paths = asyncio.run(filled(path, options.nodes))
        lines["bytes of an entry in a file"] = path.stat().st_size / options.nodes
        asyncio.run(opened(path))
        lines["open a file, ms"] = 1e3 * statistics.median(asyncio.run(opened(path)) for _ in range(options.runs))
        spent = asyncio.run(saved(path, options.runs + 5))[5:]
        lines["save a run of 60 entries, ms"] = 1e3 * statistics.median(spent)
        lines["look up an entry, us"] = 1e6 * asyncio.run(looked_up(path, paths))
    for name, value in lines.items():
        sys.stdout.write(f"{name:<40} {value:10.2f}\n")


if __name__ == "__main__":
    main()
