"""Whole files: compacted, cleared, merged, surveyed. What readers know of them stays the same, and so do ages."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmql_lite as lq
from lmql_lite.cache import framing, record_io
from lmql_lite.cache.codec import Parser, encode
from lmql_lite.cache.columns import (
    GREEDY,
    NODES,
    SAMPLED,
    TOPKS,
    Entries,
    GreedyAnswers,
    Model,
    Record,
    SampledAnswers,
    TopKs,
)
from lmql_lite.cache.compaction import cleared, compacted, file_bytes, merged, packed, write_new
from lmql_lite.cache.file_contents import GatheredEntries, chosen, exported, read_file
from lmql_lite.cache.framing import LogFrame, address_of
from lmql_lite.cache.model_trees import ModelTrees
from lmql_lite.cache.scores import Scores
from lmql_lite.cache.token_text import difference, quoted, shortened, spelled, visible
from lmql_lite.cache.token_tree import TokenTree
from lmql_lite.cache.tree_summary import survey
from lmql_lite.errors import CacheError
from tests.cache.batches import Batch, batch, recorded
from tests.cache.written import write

MODEL = Model("some:0123456789abcdef", "some", 5)
OTHER = Model("other:fedcba9876543210", "other", 0)
LARGE = replace(MODEL, vocabulary_size=1536)
DAY = 24 * 3600

Known = dict[tuple[object, ...], object]
"""What a reader of a file can be told: by fingerprint, path and question."""


def plain(rng: np.random.Generator, size: int, **how: Any) -> Batch:
    """A batch of unknown age that replaces nothing."""
    return replace(batch(rng, size, **how), written=0, replaces=False)


def log(rng: np.random.Generator, sizes: list[int], models: tuple[Model, Model] = (MODEL, OTHER)) -> list[Batch]:
    """Two models that say much twice: of five tokens few paths are made. A batch every 2,000 seconds."""
    made: list[Batch] = []
    stops = [1, 1]
    for place, size in enumerate(sizes):
        which = int(rng.random() < 0.3)
        one = plain(rng, size, first=stops[which], model=models[which], vocabulary=5)
        stops[which] += size
        made.append(replace(one, written=place * 2000, replaces=bool(rng.random() < 0.3)))
    return made


def frames_of(batches: list[Batch]) -> list[LogFrame]:
    return [LogFrame(address_of(payload), payload) for payload in recorded(batches)]


def known(path: Path, batches: list[Batch]) -> Known:
    """What a session reads, asked all that `batches` answer, with ages."""
    questions = {each.tobytes() for one in batches for each in one.entries.greedy.questions}
    draws = [
        (question.tobytes(), seed, index)
        for sampled in (one.entries.sampled for one in batches)
        for question, seed, index in zip(
            sampled.questions, sampled.seeds.tolist(), sampled.indices.tolist(), strict=True
        )
    ]

    def told(tree: TokenTree, node: int) -> Iterator[tuple[object, object]]:
        fact = tree.scores(node)
        if fact is not None:
            head = fact.scores.top_k() if isinstance(fact.scores, Scores) else fact.scores
            yield "head", (head.ids.tolist(), head.logprobs.tolist(), head.rest, (tree.written(node) or 0) // 3600)
        yield from ((each, tree.greedy_answer(node, each)) for each in questions)
        yield from ((each, tree.sampled_answer(node, *each)) for each in draws)

    async def go() -> Known:
        trees = await ModelTrees.open(path)
        await trees.follow()
        await trees.close()
        of = {model.fingerprint: trees.tree(model.fingerprint) for model in (MODEL, OTHER)}
        return {
            (fingerprint, tree.path(node), question): answer
            for fingerprint, tree in of.items()
            for node in range(len(tree))
            for question, answer in told(tree, node)
            if answer is not None
        }

    return asyncio.run(go())


LOGS = st.tuples(st.integers(0, 2**32), st.lists(st.integers(0, 12), max_size=8))


@given(LOGS, st.integers(0, 3))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_a_compacted_file_tells_what_it_told_before_with_damage_or_without(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[int, list[int]], hits: int
) -> None:
    seed, sizes = drawn
    rng = np.random.default_rng(seed)
    entries = log(rng, sizes)
    path = write(tmp_path_factory.mktemp("files") / "ein Baum 🌳.tokens", entries)
    data = bytearray(path.read_bytes())
    for at in rng.integers(0, max(len(data), 1), hits * (len(data) > 0)):
        data[at] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)
    before, was_sound = known(path, entries), read_file(path).is_sound
    done = compacted(path)
    report = read_file(path)
    assert report.is_sound and report.torn_bytes == 0
    assert (report.bytes, report.frames, report.nodes) == (done.after.bytes, done.after.frames, done.after.nodes)
    assert report.topks + report.greedy + report.sampled == done.after.entries == len(before)
    assert was_sound or done.was_damaged
    assert known(path, entries) == before
    again = compacted(path).after  # there is nothing left to do
    assert (again.frames, again.nodes, again.entries) == (done.after.frames, done.after.nodes, done.after.entries)
    assert not cleared(path).after.entries and not known(path, entries)


@given(LOGS, st.sampled_from([100_000, 7, 1]))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_a_file_is_compacted_the_same_everywhere_and_once_for_all(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[int, list[int]], most: int
) -> None:
    """Byte by byte."""
    seed, sizes = drawn
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(seed)
    entries = [
        replace(one, entries=replace(one.entries, topks=TopKs())) if rng.random() < 0.5 else one
        for one in log(rng, sizes)
    ]  # where nodes have no scores, it is answers that need them
    paths = [write(folder / name, entries) for name in ("a.tokens", "b.tokens")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_io, "ENTRIES_PER_RECORD", most)
        done = [compacted(path) for path in paths]
        once = [path.read_bytes() for path in paths]
        again = compacted(paths[0])
    assert done[0] == done[1] and once[0] == once[1]
    assert again.before == again.after == done[0].after and paths[0].read_bytes() == once[0]


def ages(path: Path) -> list[int]:
    """When each record was written."""
    frames = [place.frame for place in framing.scan(path.read_bytes(), 0).places]
    return [Parser().parse(frame.payload or b"").written for frame in frames]


def test_entries_of_one_hour_share_a_frame_and_no_frame_has_more_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    sizes = [30, 30, 30, 30]
    entries: list[Batch] = []
    for place, size in enumerate(sizes):
        one = plain(rng, size, first=1 + sum(sizes[:place]), model=MODEL)
        entries.append(replace(one, written=10_000_000 + (0, 60, 7200, 7260)[place]))
    path = write(tmp_path / "x.tokens", entries)
    before = known(path, entries)
    assert compacted(path).after.frames == 2
    assert ages(path) == [10_000_000, 10_007_200]  # no entry is said to be newer than it is
    monkeypatch.setattr(record_io, "ENTRIES_PER_RECORD", 7)
    monkeypatch.setattr(record_io, "MAX_NODES", 5)
    assert compacted(path).after.frames > 8 and known(path, entries) == before
    frames = [place.frame for place in framing.scan(path.read_bytes(), 0).places]
    counts = [Parser().parse(frame.payload or b"").counts for frame in frames]
    assert max(one[NODES] for one in counts) <= 5
    assert max(one[TOPKS] + one[GREEDY] + one[SAMPLED] for one in counts) <= 7


@pytest.mark.parametrize("share", [0.9, 0.5, 0.1, 0.0])
def test_a_file_is_made_as_small_as_told_and_keeps_the_newest(tmp_path: Path, share: float) -> None:
    rng = np.random.default_rng(2)
    entries: list[Batch] = []
    for place in range(12):
        one = plain(rng, 40, first=1 + 40 * place, model=LARGE, vocabulary=5)
        entries.append(replace(one, written=place * DAY))
    path = write(tmp_path / "x.tokens", entries)
    before, small = known(path, entries), compacted(path).after.bytes
    most = round(share * small)
    done = compacted(path, max_bytes=most)
    assert path.stat().st_size == done.after.bytes <= most
    assert done.after.bytes >= 0.9 * most  # and no smaller than it has to be
    after = known(path, entries)
    assert after.items() <= before.items()
    written = ages(path)
    assert written == [place * DAY for place in range(12 - len(written), 12)]


def test_what_is_old_or_of_one_model_is_dropped_and_no_more(tmp_path: Path) -> None:
    now, rng = 1_700_000_000, np.random.default_rng(3)
    compact = partial(compacted, clock=lambda: now)
    entries = [
        replace(plain(rng, 9, model=LARGE), written=now - 40 * DAY),
        replace(plain(rng, 9, model=LARGE, first=10), written=now - 3 * DAY),
        plain(rng, 9, model=OTHER, vocabulary=1536),  # of unknown age: as old as can be
    ]
    path = write(tmp_path / "x.tokens", entries)
    both = 2 * (9 + 2 + 2)
    assert compact(path, older_than_days=30, model="some").after.entries == both
    with pytest.raises(CacheError, match=r"cannot be made smaller than .* the other models' entries"):
        compact(path, max_bytes=60, model="some")
    assert compact(path, older_than_days=30).after.entries == both // 2
    assert read_file(path).models == (LARGE,)
    assert compact(path, older_than_days=2).after.bytes == 0 == path.stat().st_size
    assert compacted(path, max_bytes=0).after.bytes == 0


def test_frames_of_a_later_version_are_never_dropped_unasked(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tokens", [plain(np.random.default_rng(1), 5, model=LARGE)])
    data = path.read_bytes() + framing.frame_bytes(b"what later versions say", kind=9)
    path.write_bytes(data)
    for change in (compacted, partial(cleared, model="some")):
        with pytest.raises(CacheError, match="frames of a newer lmql-lite, which would be lost"):
            change(path)
    assert path.read_bytes() == data
    assert cleared(path).after.entries == 0


WRITER = """
import sys
import lmql_lite as lq

session = lq.Session()
for number in range(40):
    lq.run_sync(f'"Say {number}:[A]" where len(A) < 3', cache=sys.argv[1], session=session)
    print(number, flush=True)
"""


def test_a_process_that_writes_loses_nothing_to_compaction(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "x.tokens"
    lq.run_sync('"Say:[A]" where len(A) < 3', cache=str(path), session=lq.Session())
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        done = [compacted(path) for _ in writer.stdout]
    assert writer.returncode == 0 and len(done) == 40 and not any(one.was_damaged for one in done)
    session = lq.Session()
    for number in range(40):  # an error where something is missing
        lq.run_sync(f'"Say {number}:[A]" where len(A) < 3', cache=str(path), cache_mode="replay", session=session)
    assert [file.name for file in tmp_path.iterdir()] == ["x.tokens"]


@given(LOGS, st.integers(0, 4), st.booleans())
@settings(deadline=None, derandomize=True, max_examples=60)
def test_damage_among_many_frames_is_told_as_frame_by_frame(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[int, list[int]], hits: int, is_forged: bool
) -> None:
    seed, sizes = drawn
    rng = np.random.default_rng(seed)
    path = write(tmp_path_factory.mktemp("files") / "x.tokens", log(rng, [*sizes, 3, 3, 3]))
    data = bytearray(path.read_bytes())
    if is_forged:  # whole frames that do not fit: they hang on nothing, or on a node that is not there
        (wrong,) = recorded([plain(rng, 2, model=MODEL)])
        elsewhere = Record(MODEL, (address_of(b"nowhere"),), np.array([1]), np.array([0]))
        beyond = Record(MODEL, (address_of(wrong),), np.array([1]), np.array([2]))
        for payload in (encode(elsewhere), wrong, encode(beyond)):
            data += framing.frame_bytes(payload)
    for at in rng.integers(0, max(len(data), 1), hits * (len(data) > 0)):
        data[at] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)
    together = read_file(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lmql_lite.cache.record_io.RUN_BYTES", -1)
        singly = read_file(path)
    assert (together.damage, together.models, together.frames) == (singly.damage, singly.models, singly.frames)
    assert packed(together.by_model.values()) == packed(singly.by_model.values())
    assert together.damage or not is_forged


# merging


@given(LOGS, LOGS, st.sampled_from(["first", "last"]))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_a_merged_file_tells_what_each_told_and_prefers_as_it_was_told(
    tmp_path_factory: pytest.TempPathFactory,
    first: tuple[int, list[int]],
    second: tuple[int, list[int]],
    prefer: Literal["first", "last"],
) -> None:
    folder = tmp_path_factory.mktemp("files")
    logs = [
        log(np.random.default_rng(first[0]), first[1]),
        log(np.random.default_rng(second[0]), second[1], (replace(OTHER, vocabulary_size=5), MODEL)),
    ]
    paths = [write(folder / f"{place}.tokens", entries) for place, entries in enumerate(logs)]
    before = [path.read_bytes() for path in paths]
    asked = [*logs[0], *logs[1]]
    told = [known(path, asked) for path in paths]
    done = merged(paths, prefer)
    write_new(folder / "new.tokens", done.payloads)
    expected = told[1] | told[0] if prefer == "first" else told[0] | told[1]
    assert known(folder / "new.tokens", asked) == expected
    assert [path.read_bytes() for path in paths] == before
    assert done.entries == len(expected) and done.damaged == ()
    assert read_file(folder / "new.tokens").is_sound


def test_a_new_file_never_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    path.write_text("my diary")
    with pytest.raises(CacheError, match="exists, and is not overwritten"):
        write_new(path, [])
    assert path.read_text() == "my diary"
    with pytest.raises(CacheError, match="cannot be created"):
        write_new(tmp_path / "no" / "x.tokens", [])
    with pytest.raises(CacheError, match="could not be written"):
        write_new(tmp_path / "y.tokens", [framing.MARK])  # no frame can hold it
    assert [file.name for file in tmp_path.iterdir()] == ["x.tokens"]


# looking


@given(LOGS, st.integers(1, 12), st.integers(0, 4))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_a_survey_leaves_nothing_out_and_a_smaller_one_keeps_the_largest(
    drawn: tuple[int, list[int]], limit: int, depth: int
) -> None:
    seed, sizes = drawn
    gathering = GatheredEntries()
    assert not gathering.read(frames_of(log(np.random.default_rng(seed), sizes)))
    for facts in gathering.by_model().values():
        distinct = facts.distinct()
        everything = survey(distinct)
        assert sum(len(one.tokens) for one in everything) == len(facts.tree) - 1
        assert sum(one.here.total for one in everything) == len(distinct)
        assert everything[0].parent is None and everything[0].below.total + everything[0].here.total == len(distinct)
        for place, one in enumerate(everything):
            under = [each for each in everything if each.parent == place]
            assert one.below.total == sum(each.here.total + each.below.total for each in under)
            assert one.hidden == 0 and len(under) != 1 and all(each.depth == one.depth + 1 for each in under)
            assert one.parent is None or one.parent < place
        some = survey(distinct, limit=limit)
        assert len(some) == min(limit, len(everything))
        assert len(some) + sum(one.hidden for one in some) <= len(everything)
        sizes_of_all = sorted((one.here.total + one.below.total for one in everything), reverse=True)
        assert sorted((one.here.total + one.below.total for one in some), reverse=True) == sizes_of_all[: len(some)]
        flat = survey(distinct, depth=depth)
        assert [one.tokens for one in flat] == [one.tokens for one in everything if one.depth <= depth]


def test_the_first_difference_of_a_path_is_told() -> None:
    tree = TokenTree()
    words = [b"Q", b":", b" the", b" a", None, b" an", b" one", b" two"]
    node = int(tree.extend_many([0, ~0, ~1, ~2, ~2, ~2, ~2], [4, 0, 1, 2, 5, 6, 7], logged=True)[2])
    asked = tree.extend(tree.extend(node, 3), 0)  # nodes that the run itself adds
    found = difference(tree.stored_children, tree.path(asked))
    assert (found.before, found.asked, found.stored) == ((4, 0, 1), 3, (2, 5, 6, 7))
    assert found.describe(words) == 'at token 4, after "Q:": stored " the", " an", " one" and 1 other, asked " a"'
    assert found.describe(None) == "at token 4, after [4 0 1]: stored [2], [5], [6] and 1 other, asked [3]"
    whole = difference(tree.stored_children, tree.path(node))
    assert whole.asked is None and whole.describe(words).startswith(
        'at token 4, after "Q:": the stored text continues with'
    )
    assert difference(tree.stored_children, (0,)).describe(words) == 'at token 1, the first: stored <4>, asked "Q"'
    assert difference(tree.stored_children, (4, 0, 1, 2)).describe(words).endswith("nothing is stored")


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [
        ([b"a\n", b"\t\r\x1b[31m\x07"], r'"a\n\t\r\x1b[31m\x07"'),
        ([b"\xe2\x80\xae", b"\xc3", b"\xa9", b"\xff"], r'"\u202eé\xff"'),
        ([b'say "x"'], "'say \"x\"'"),
        ([b'"', b"'"], '"\\"\'"'),
        ([b"a\\n"], r'"a\\n"'),
        ([None, b"a", None, None, b"b"], '<0> "a" <2> <3> "b"'),
        ([], '""'),
        (["🌳".encode(), b"\xf0\x9f"], '"🌳\\xf0\\x9f"'),
    ],
    ids=["control", "bytes", "double quotes", "both quotes", "backslash", "special tokens", "nothing", "half"],
)
def test_tokens_are_spelled_so_that_everything_is_visible(tokens: list[bytes | None], shown: str) -> None:
    assert spelled(range(len(tokens)), tokens) == shown
    assert shown.isprintable()


def test_long_texts_are_shown_from_both_ends() -> None:
    assert shortened("a" * 50, 50) == "a" * 50
    assert shortened("a" * 50 + "b" * 50, 20) == "a" * 11 + " … " + "b" * 6
    assert visible("a\udcffb") == r"a\xffb" and quoted("it's") == '"it\'s"'


def test_models_are_meant_by_name_or_fingerprint() -> None:
    models = [MODEL, replace(MODEL, fingerprint="some:0199"), OTHER]
    assert chosen(models, None) == tuple(models)
    assert chosen(models, "some") == tuple(models[:2])
    assert chosen(models, "some:012") == chosen(models, "012") == (MODEL,)
    for wanted, sentence in (
        ("01", "begins several"),
        ("x", "has no entries of a model 'x'"),
        ("", "has no entries"),
    ):
        with pytest.raises(CacheError, match=sentence):
            chosen(models, wanted)


def test_what_is_exported_are_plain_values() -> None:
    scores = np.array([-0.5, -np.inf], np.float32)
    half, best = np.array([0.5], np.float32), np.array([3, 4], np.int32)
    topks = TopKs(np.array([1]), np.array([2]), half, best, scores)
    question = np.arange(16, dtype=np.uint8).reshape(1, 16)
    node, token = np.array([0]), np.array([-1], np.int32)
    greedy = GreedyAnswers(node, question, token, scores[1:])
    seed, index = np.array([2**64 - 1], np.uint64), np.array([7], np.uint32)
    sampled = SampledAnswers(node, question, seed, index, token + 1, scores[:1])
    one = Batch(MODEL, 1, np.array([0]), np.array([2], np.int32), Entries(topks, greedy, sampled), written=9)
    gathering = GatheredEntries()
    gathering.read(frames_of([one]))
    (entries,) = gathering.by_model().values()
    who = {"model": "some", "fingerprint": MODEL.fingerprint, "written": 9}
    asked = "000102030405060708090a0b0c0d0e0f"
    least = who | {"path": (), "question": asked, "token": None, "logprob": None}
    assert list(exported(entries)) == [
        who | {"kind": "top-k", "path": (2,), "ids": [3, 4], "logprobs": [-0.5, None], "rest": 0.5},
        least | {"kind": "greedy"},
        least | {"kind": "sampled", "seed": 2**64 - 1, "index": 7, "token": 0, "logprob": -0.5},
    ]
    assert packed([]) == ([], 0) and file_bytes([]) == 0
