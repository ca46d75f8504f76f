"""The token tree: what a token, a step and a million nodes cost, and what they cost elsewhere.

    python benchmarks/tree.py [--runs 5] [--nodes 1000000]

The tree is that of many runs: a shared prompt, and branches of 50 tokens that leave what was there at random places.
Top-k entries have 8 tokens, as those of peaked rows do on average. All measurements take turns, so that a busy moment
of the machine does not fall on one of them alone; times are those of the processor.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import pickle
import sqlite3
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import drafts
import numpy as np
from numpy.typing import NDArray

import lmql_lite as lq
from lmql_lite.cache.columns import Entries, Model, TopKs
from lmql_lite.cache.log_file import LogFile
from lmql_lite.cache.model_trees import ModelTrees
from lmql_lite.cache.node_table import ROOT, NodeTable
from lmql_lite.cache.record_io import NodeIndex, payloads
from lmql_lite.cache.scores import Scores
from lmql_lite.cache.token_tree import TokenTree
from lmql_lite.cache.top_k import TopK
from lmql_lite.models.demo import DemoModel

VOCABULARY = 4096
HEAD = 8
BRANCH = 50
SMALL = 60
"""Nodes that a short run adds to a file: a frame of its own."""
WALKS = 2000
NEVER = 2**60
"""A bound of memory that is not reached."""


@dataclass
class Line:
    """One line of the table: its values, run by run, and what they have to reach."""

    name: str
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    values: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        median = statistics.median(self.values)
        text = f"{self.name:58} {median:10,.2f} {min(self.values):10,.2f} {max(self.values):10,.2f}  {self.unit:10}"
        if self.at_most is not None:
            text += f" <= {self.at_most:<5g} {'met' if median <= self.at_most else 'MISSED'}"
        if self.at_least is not None:
            text += f" >= {self.at_least:<5g} {'met' if median >= self.at_least else 'MISSED'}"
        return text.rstrip()


class Table:
    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}

    def add(self, name: str, value: float, unit: str, **target: float) -> None:
        self.lines.setdefault(name, Line(name, unit, **target)).values.append(value)

    @contextmanager
    def time(self, name: str, many: int, unit: str = "us/node", **target: float) -> Iterator[None]:
        """Microseconds per node, seconds in all ("s"), or millions of nodes per second ("M nodes/s")."""
        began = time.process_time()
        yield
        taken = time.process_time() - began
        self.add(
            name, {"us/node": taken / many * 1e6, "s": taken, "M nodes/s": many / taken / 1e6}[unit], unit, **target
        )


@dataclass(frozen=True)
class Shape:
    """A tree of n nodes as lists that say for each node its parent, ~entry or 0 for the root, and its token."""

    parents: NDArray[np.int64]
    tokens: NDArray[np.int64]
    paths: list[tuple[int, ...]]

    @property
    def steps(self) -> int:
        return sum(map(len, self.paths))


def shape(many: int) -> Shape:
    random = np.random.default_rng(0)
    entries = np.arange(many)
    above = entries - 1
    leaves = (entries % BRANCH == 0) & (entries >= 200)
    above[leaves] = (random.random(leaves.sum()) * entries[leaves]).astype(np.int64)
    tokens = random.integers(0, VOCABULARY, many)
    paths = []
    for entry in random.choice(many, min(WALKS, many), replace=False).tolist():
        path = []
        while entry >= 0:
            path.append(int(tokens[entry]))
            entry = int(above[entry])
        paths.append(tuple(reversed(path)))
    return Shape(np.where(above < 0, 0, ~above), tokens, paths)


def rows() -> list[Scores]:
    """A few rows that all nodes share: making them is the model's affair, and their memory would be 16 GB."""
    random = np.random.default_rng(1)
    made = [Scores(np.log(random.dirichlet(np.full(VOCABULARY, 0.01)) + 1e-9).astype(np.float32)) for _ in range(64)]
    for row in made:
        row.top_k()
    return made


def topks_of(nodes: NDArray[np.int32]) -> TopKs:
    many = len(nodes)
    random = np.random.default_rng(3)
    logprobs = -np.sort(random.exponential(3, (many, HEAD)).astype(np.float32)) - 1
    ids = random.integers(0, VOCABULARY // HEAD, (many, HEAD)) * HEAD + np.arange(HEAD)
    rest = np.full(many, 1e-3, dtype=np.float32)
    return TopKs(nodes.astype(np.int64), np.full(many, HEAD), rest, ids.astype(np.int32).ravel(), logprobs.ravel())


def in_memory(table: Table, tree: Shape, part: Shape, rows: list[Scores]) -> None:
    many, few = len(tree.tokens), len(part.tokens)
    entries = list(zip(part.parents.tolist(), part.tokens.tolist(), strict=True))

    def append(trie: TokenTree, scored: bool) -> None:
        nodes: list[int] = []
        for parent, token in entries:
            node = trie.extend(nodes[~parent] if parent < 0 else parent, token)
            nodes.append(node)
            if scored:
                trie.add_scores(node, rows[node & 63], run=1)

    with table.time("tree: append a token", few):
        append(TokenTree(NEVER), scored=False)
    with table.time("tree: append a token and its row", few, at_most=5):
        append(TokenTree(NEVER), scored=True)
    with table.time("tree: the same with room for 1,000 rows, others evicted", few):
        append(TokenTree(1000 * VOCABULARY * 4), scored=True)

    trie = TokenTree(NEVER)
    with table.time(f"tree: load {many:,} nodes", many, "s", at_most=1):
        nodes = trie.extend_many(tree.parents, tree.tokens, logged=True)
    entries = Entries(topks_of(nodes))
    with table.time(f"tree: attach {many:,} top-k entries as columns", many, "s"):
        trie.attach(entries, np.zeros(many, np.int64), VOCABULARY)
    trie.draft(int(nodes[-1]), 1, skip=False)  # the table for guesses is made when the first one is wanted
    table.add("tree: structure", trie.structure_nbytes / len(trie), "bytes/node", at_most=48)
    with table.time(f"tree: load the same {many:,} nodes again", many, "s"):
        trie.extend_many(tree.parents, tree.tokens, logged=True)
    with table.time("tree: walk", tree.steps, "M nodes/s", at_least=1):
        for path in tree.paths:
            trie.walk(trie.root, path)
    ends = [trie.walk(trie.root, path)[0] for path in tree.paths]
    with table.time("tree: read a top-k entry that is attached", len(ends)):
        for node in ends:
            trie.scores(node)


def dictionaries(table: Table, tree: Shape) -> None:
    many = len(tree.tokens)

    def load() -> dict[int, Any]:
        root: dict[int, Any] = {}
        nodes: list[dict[int, Any]] = []
        for parent, token in zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True):
            nodes.append((nodes[~parent] if parent < 0 else root).setdefault(token, {}))
        return root

    with table.time(f"dict of dicts: load {many:,} nodes, no hashes, no parents", many, "s"):
        root = load()
    with table.time("dict of dicts: walk", tree.steps, "M nodes/s"):
        for path in tree.paths:
            node = root
            for token in path:
                node = node[token]
    del root, node


def dictionary_bytes(part: Shape) -> float:
    tracemalloc.start()
    kept: dict[int, Any] = {}
    nodes: list[dict[int, Any]] = []
    for parent, token in zip(part.parents.tolist(), part.tokens.tolist(), strict=True):
        nodes.append((nodes[~parent] if parent < 0 else kept).setdefault(token, {}))
    nodes.clear()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / len(part.tokens)


def records(part: Shape) -> list[tuple[int, int, tuple[int, ...], tuple[float, ...]]]:
    """(parent, token, ids, scores) as one would write them down without further thought."""
    random = np.random.default_rng(2)
    ids = random.integers(0, VOCABULARY, (len(part.tokens), HEAD)).tolist()
    scores = random.normal(-5, 2, (len(part.tokens), HEAD)).tolist()
    parents = np.where(part.parents < 0, ~part.parents + 1, 0).tolist()
    return list(zip(parents, part.tokens.tolist(), map(tuple, ids), map(tuple, scores), strict=True))


def pickles(table: Table, part: Shape) -> None:
    written, many = records(part), len(part.tokens)
    with table.time("pickle: dump (parent, token, ids, scores)", many):
        data = pickle.dumps(written, protocol=pickle.HIGHEST_PROTOCOL)
    with table.time("pickle: load", many):
        pickle.loads(data)  # our own bytes: what is measured here is what the package never does
    table.add("pickle: size", len(data) / many, "bytes/node")


def sqlite(table: Table, part: Shape) -> None:
    written, many = records(part), len(part.tokens)
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("create table node (parent int, token int, ids blob, scores blob)")
        with table.time("sqlite in memory: executemany", many), database:
            database.executemany(
                "insert into node values (?, ?, ?, ?)",
                (
                    (parent, token, np.array(ids, np.int32).tobytes(), np.array(scores, np.float32).tobytes())
                    for parent, token, ids, scores in written
                ),
            )
        with table.time("sqlite in memory: select", many):
            database.execute("select parent, token, ids, scores from node").fetchall()
        (pages,), (size,) = (
            database.execute("pragma page_count").fetchone(),
            database.execute("pragma page_size").fetchone(),
        )
        table.add("sqlite in memory: size", pages * size / many, "bytes/node")


async def tokens_file(table: Table, tree: Shape) -> None:
    """A tree with a top-k entry at every node into a `.tokens` file and back, and its size beside that of a pickle."""
    many = len(tree.tokens)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tree.tokens"
        saved = await ModelTrees.open(path)
        trie = saved.tree("model")
        nodes = trie.extend_many(tree.parents, tree.tokens)
        topks = topks_of(nodes)
        ids, logprobs = topks.ids.reshape(-1, HEAD), topks.logprobs.reshape(-1, HEAD)
        heads = [TopK(ids[place], logprobs[place], 1e-3, VOCABULARY) for place in range(many)]
        for node, head in zip(nodes.tolist(), heads, strict=True):
            trie.add_scores(node, head, run=1)
        with table.time(".tokens: save nodes and top-k entries", many):
            assert await saved.save("model", "model", VOCABULARY), saved.notices
        await saved.close()
        size = path.stat().st_size / many
        table.add(".tokens: size", size, "bytes/node")
        written = [
            (trie.parent(node), trie.token(node), tuple(head.ids.tolist()), tuple(head.logprobs.tolist()))
            for node, head in zip(nodes.tolist(), heads, strict=True)
        ]
        pickled = len(pickle.dumps(written, protocol=pickle.HIGHEST_PROTOCOL)) / many
        table.add(".tokens: size, of that of the same pickled", size / pickled, "", at_most=0.5)
        del saved, trie, written, heads
        saved = await ModelTrees.open(path)
        with table.time(f".tokens: load {many:,} nodes and top-k entries", many, "s", at_most=1):
            await saved.follow()
        assert len(saved.tree("model")) == len(set(nodes.tolist())) + 1, saved.notices
        await saved.close()


def small_records(tree: Shape) -> Generator[bytes, None, None]:
    """The tree as short runs write it one after the other."""
    nodes = NodeTable()
    topks = topks_of(nodes.extend_many(tree.parents, tree.tokens))
    index, model = NodeIndex(ROOT), Model("model", "model", VOCABULARY)
    for begin in range(0, len(tree.tokens), SMALL):
        places = np.arange(begin, min(begin + SMALL, len(tree.tokens)))
        some = Entries(topks).pick(places)
        yield from payloads(index, nodes, model, some, written=begin, replaces=False)


async def small_frames(table: Table, tree: Shape) -> None:
    """The same tree in a file to which every run appended a small frame of its own."""
    many = len(tree.tokens)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.tokens"
        file = LogFile(path, durable=False)
        file.open()
        assert file.append(lambda *_: True, lambda: small_records(tree))
        file.close()
        table.add(f".tokens: size in frames of {SMALL} nodes", path.stat().st_size / many, "bytes/node")
        gc.collect()
        saved = await ModelTrees.open(path)
        with table.time(f".tokens: load {many:,} in frames of {SMALL} nodes", many, "s", at_most=1):
            await saved.follow()
        assert len(saved.tree("model")) > many // 2, saved.notices
        await saved.close()


def with_drafts(table: Table, model: DemoModel, many: int) -> None:
    """The tree as a draft model: rows that are alike, and texts in which nothing is."""
    for name, source, rows in (
        ("similar rows", drafts.RECORDS, drafts.records(many)),
        ("nothing repeats", drafts.NOISE, drafts.noises(max(many // 10, 1), model)),
    ):
        query = lq.compile(source)
        plain = drafts.through(query, rows, model, speculate=False)
        guessed = drafts.through(query, rows, model, speculate=True)
        assert guessed.prompts == plain.prompts, "guesses change nothing but speed"
        fewer, slower = plain.passes / guessed.passes, guessed.seconds / plain.seconds
        if name == "similar rows":
            table.add("drafts: a row differs from the one before it in", drafts.differing(plain.answers), "of tokens")
            table.add(f"drafts: {name}: passes without, of those with", fewer, "", at_least=2)
            table.add(f"drafts: {name}: time with, of that without", slower, "")
        else:
            table.add(f"drafts: {name}: passes without, of those with", fewer, "")
            table.add(f"drafts: {name}: time with, of that without", slower, "", at_most=1.03)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the token tree costs.")
    parser.add_argument("--runs", type=int, default=5, help="how often everything is measured (5)")
    parser.add_argument("--nodes", type=int, default=1_000_000, help="nodes of the tree that is loaded (1000000)")
    parser.add_argument("--rows", type=int, default=200, help="rows of a data set that drafts are tried on (200)")
    options = parser.parse_args()
    tree, part = shape(options.nodes), shape(max(options.nodes // 10, 1))
    table, shared, model = Table(), rows(), DemoModel.load()
    measurements: list[Callable[[], None]] = [
        lambda: in_memory(table, tree, part, shared),
        lambda: dictionaries(table, tree),
        lambda: table.add("dict of dicts: structure", dictionary_bytes(part), "bytes/node"),
        lambda: pickles(table, part),
        lambda: sqlite(table, part),
        lambda: asyncio.run(tokens_file(table, tree)),
        lambda: asyncio.run(small_frames(table, tree)),
        lambda: with_drafts(table, model, options.rows),
    ]
    for _ in range(max(options.runs, 1)):
        for measure in measurements:
            gc.collect()
            gc.freeze()  # what stands around here is nothing that the measured code should be searched through for
            measure()
            gc.unfreeze()
    print(
        f"a tree of {options.nodes:,} nodes; per node: measured with {len(part.tokens):,}; {options.runs} runs; "
        f"Python {sys.version.split()[0]}, numpy {np.__version__}\n"
    )
    print(f"{'':58} {'median':>10} {'min':>10} {'max':>10}")
    for line in table.lines.values():
        print(line)


if __name__ == "__main__":
    main()
