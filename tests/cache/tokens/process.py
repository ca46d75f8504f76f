"""What several processes have of one file, without the processes: trees, each with a place in the file of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from lmql_lite.cache.tokens.nodes import Answer, Node
from lmql_lite.cache.tokens.scores import Miss, TopK
from lmql_lite.cache.tokens.tree import MAX_BYTES, TokenTree
from lmql_lite.cache.tokens.trees import ModelTrees

VOCABULARY = 50
QUESTION, OTHER = bytes(range(16)), bytes(16)


def head(token: int) -> TopK:
    """One that says `token`."""
    ids = np.array([token, (token + 1) % VOCABULARY], np.int32)
    return TopK(ids, np.array([-0.5, -1.5], np.float32), 0.25, VOCABULARY)


def said(tree: TokenTree, *path: int) -> int | None:
    """The best token after a path."""
    fact = tree.scores(at(tree, *path))
    best = None if fact is None else fact.scores.best(np.ones(VOCABULARY, np.bool_))
    assert not isinstance(best, Miss)
    return best


def at(tree: TokenTree, *path: int) -> Node:
    node = tree.root
    for token in path:
        node = tree.extend(node, token)
    return node


def answer(token: int) -> Answer:
    return Answer(token, -2.0, 1)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Process:
    """What one process has of a file."""

    def __init__(self, trees: ModelTrees, clock: Clock) -> None:
        self.trees, self.clock = trees, clock

    @property
    def tree(self) -> TokenTree:
        return self.trees.tree("model")

    async def save(self) -> None:
        assert await self.trees.save("model", "a model", VOCABULARY)
        assert not self.trees.notices

    async def learn(self, token: int, *path: int) -> None:
        """What comes after a path, and keeps it."""
        self.tree.add_scores(at(self.tree, *path), head(token), run=1)
        assert await self.trees.save("model", "a model", VOCABULARY)

    async def refresh(self, learn: Callable[[TokenTree], object]) -> None:
        """What a run on a tree of its own learns takes the place of what was known."""
        fresh = TokenTree(records=True)
        learn(fresh)
        self.tree.replace_with(fresh)


def processes(
    many: int, work: Callable[..., Awaitable[None]], path: Path = Path("x.tokens"), max_bytes: int = MAX_BYTES
) -> None:
    async def go() -> None:
        clock = Clock()
        trees = [await ModelTrees.open(path, max_bytes, clock) for _ in range(many)]
        try:
            await work(*(Process(each, clock) for each in trees))
        finally:
            for each in trees:
                await each.close()

    asyncio.run(go())
