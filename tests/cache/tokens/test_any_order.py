"""Processes learn, read, damage, compact, clear and remove one file in any order. Nobody is ever told anything wrong,
nothing breaks, and without damage nothing that was kept is missing."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmql_lite.cache.tokens.inspect import cleared, compacted, read_file
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.cache.tokens.trees import ModelTrees
from lmql_lite.errors import CacheError
from tests.cache.tokens.process import OTHER, QUESTION, VOCABULARY, answer, at, head, said

MODELS = ("one", "two")
HEADER_BYTES = 100
"""Bytes that say whose file it is: one that is damaged there is another test's."""
PATHS = st.lists(st.integers(0, 2), max_size=4).map(tuple)
EVERY = [path for size in range(5) for path in itertools.product(range(3), repeat=size)]
WHO = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("learn"), WHO, st.sampled_from(MODELS), PATHS),
    st.tuples(st.just("learn"), WHO, st.sampled_from(MODELS), PATHS),
    st.tuples(st.just("refresh"), WHO, st.sampled_from(MODELS), PATHS),
    st.tuples(st.just("follow"), WHO),
    st.tuples(st.just("begin anew"), WHO),
    st.tuples(st.sampled_from(["compact", "clear", "remove"])),
)
DAMAGE = st.one_of(
    st.tuples(st.just("flip"), st.integers(100, 2**20), st.integers(0, 7)),
    st.tuples(st.just("flip"), st.integers(100, 2**20), st.integers(0, 7)),
    st.tuples(st.just("cut"), st.integers(1, 12_000)),
)


def says(model: str, path: tuple[int, ...], what: int) -> int:
    """What a model says after a path; 0: scores, 1 and 2: answers."""
    return crc32(repr((model, path, what)).encode()) % VOCABULARY


class Crowd:
    """The processes, and what they have been told is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processes: list[ModelTrees] = []
        self.opened: list[ModelTrees] = []
        self.kept: set[tuple[str, tuple[int, ...]]] = set()

    async def fresh(self) -> ModelTrees:
        self.opened.append(await ModelTrees.open(self.path))
        return self.opened[-1]

    async def step(self, what: str, *how: object) -> None:
        match what, how:
            case (("learn" | "refresh"), (int(who), str(model), tuple(path))):
                await self.learn(self.processes[who], model, path, is_refresh=what == "refresh")
            case "follow", (int(who),):
                await self.processes[who].follow()
            case "begin anew", (int(who),):
                await self.processes[who].close()
                self.processes[who] = await self.fresh()
            case "compact", ():
                compacted(self.path)
            case "clear", ():
                cleared(self.path)
                self.kept.clear()
            case "remove", ():
                self.path.unlink()
                self.kept.clear()
                await self.fresh()  # the commands want a file
            case (("flip" | "cut"), _) if not self.path.exists():  # it was damaged so much that it was set aside
                pass
            case "flip", (int(place), int(bit)):
                data = bytearray(self.path.read_bytes())
                if len(data) > HEADER_BYTES:
                    data[HEADER_BYTES + place % (len(data) - HEADER_BYTES)] ^= 1 << bit
                    self.path.write_bytes(data)
            case "cut", (int(size),):
                whole = self.path.read_bytes()
                self.path.write_bytes(whole[: max(len(whole) - size, HEADER_BYTES)] if whole else b"")

    async def learn(self, trees: ModelTrees, model: str, path: tuple[int, ...], *, is_refresh: bool) -> None:
        """As a run does: it reads what is new, asks what is not known, and writes that."""
        await trees.follow()
        tree = trees.tree(model)
        target = TokenTree(records=True) if is_refresh else tree
        for end in range(len(path) + 1):
            here = path[:end]
            node = at(target, *here)
            if target.scores(node) is None:
                target.add_scores(node, head(says(model, here, 0)), run=1)
            for question, number in ((QUESTION, 1), (OTHER, 2)):
                if target.answer(node, question) is None:
                    target.add_answer(node, question, answer(says(model, here, number)))
        if is_refresh:
            tree.replace_with(target)
        if await trees.save(model, f"model {model}", VOCABULARY):
            await trees.checkpoint()
            self.kept.add((model, path))

    def check(self, trees: ModelTrees) -> None:
        """All that it knows is what the model says."""
        for model in MODELS:
            tree = trees.tree(model)
            for path in EVERY:
                node = at(tree, *path)
                assert said(tree, *path) in (None, says(model, path, 0))
                for question, number in ((QUESTION, 1), (OTHER, 2)):
                    verdict = tree.answer(node, question)
                    assert verdict is None or verdict.token == says(model, path, number)

    def knows_all_kept(self, trees: ModelTrees) -> bool:
        for model, path in self.kept:
            tree = trees.tree(model)
            known = [said(tree, *path[:end]) is not None for end in range(len(path) + 1)]
            if not all(known) or tree.answer(at(tree, *path), QUESTION) is None:
                return False
        return True


async def go(path: Path, steps: list[tuple[object, ...]], *, is_damaged: bool) -> None:
    crowd = Crowd(path)
    try:
        await worked(crowd, steps, is_damaged=is_damaged)
    finally:
        for trees in crowd.opened:
            await trees.close()


async def worked(crowd: Crowd, steps: list[tuple[object, ...]], *, is_damaged: bool) -> None:
    crowd.processes = [await crowd.fresh() for _ in range(3)]
    for what, *how in steps:
        try:
            await crowd.step(str(what), *how)
        except CacheError:  # a file that is damaged too much to be changed says so
            assert is_damaged and what in ("compact", "clear")
    for trees in [*crowd.processes, await crowd.fresh()]:
        await trees.follow()
        crowd.check(trees)
        assert is_damaged or (not trees.notices and crowd.knows_all_kept(trees))
    for trees in crowd.opened:
        await trees.close()
    try:
        compacted(crowd.path)
    except CacheError:  # as above
        assert is_damaged
        return
    assert read_file(crowd.path).is_sound
    last = await crowd.fresh()
    await last.follow()
    crowd.check(last)
    assert not last.notices and (is_damaged or crowd.knows_all_kept(last))


@given(st.lists(STEPS, min_size=10, max_size=25))
@settings(deadline=None, derandomize=True, max_examples=120)
def test_without_damage_nothing_is_missing_and_nothing_is_wrong(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[object, ...]]
) -> None:
    asyncio.run(go(tmp_path_factory.mktemp("files") / "x.tokens", steps, is_damaged=False))


@given(st.lists(st.one_of(STEPS, STEPS, STEPS, DAMAGE), min_size=10, max_size=25))
@settings(deadline=None, derandomize=True, max_examples=150)
def test_whatever_is_damaged_nothing_is_wrong(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[object, ...]]
) -> None:
    asyncio.run(go(tmp_path_factory.mktemp("files") / "x.tokens", steps, is_damaged=True))
