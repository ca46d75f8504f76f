"""`.tokens` files: shared, torn, damaged, replaced, refused; what was acknowledged stays."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmql_lite.cache import file_access, frame_file, framing
from lmql_lite.cache.frames import Batch, Entry, Model
from lmql_lite.cache.log import Log, Lost, News, Number, Renumbered
from lmql_lite.cache.tokens_file import TokensFile
from lmql_lite.cache.verify import verify
from lmql_lite.errors import CacheError
from tests.cache.batches import batch, same

MODEL = Model(1, "fingerprint", "demo", 1536)


def entries(seed: int, sizes: Iterable[int], first: int = 1) -> list[Entry]:
    """A model and batches of it."""
    rng = np.random.default_rng(seed)
    made: list[Entry] = [MODEL]
    for size in sizes:
        made.append(batch(rng, size, first=first))
        first += size
    return made


def always(what: list[Entry]) -> Number:
    return lambda news: what


async def write(path: Path, what: list[Entry]) -> None:
    """One append per entry: one write each."""
    async with await TokensFile.open(path) as file:
        for entry in what:
            assert await file.append(always([entry]))
        assert file.notices == []


async def read(path: Path) -> tuple[list[News], list[str]]:
    async with await TokensFile.open(path) as file:
        return await file.follow(), file.notices


def equal(left: Iterable[News], right: Iterable[News]) -> bool:
    left, right = list(left), list(right)
    return len(left) == len(right) and all(map(same, left, right))


def starts(path: Path) -> list[int]:
    """Where the frames of a sound file begin."""
    data = path.read_bytes()
    salt = framing.read_file_head(data)
    assert salt is not None
    head = framing.FILE_HEAD_BYTES
    return [place.start for place in framing.scan(data[head:], head, salt).places]


@given(st.integers(0, 2**32), st.lists(st.integers(0, 40), max_size=6), st.booleans())
@settings(deadline=None, derandomize=True, max_examples=30)
def test_what_was_appended_comes_back(
    tmp_path_factory: pytest.TempPathFactory, seed: int, sizes: list[int], durable: bool
) -> None:
    path = tmp_path_factory.mktemp("files") / "ein Baum 🌳.tokens"
    written = entries(seed, sizes)

    async def go() -> None:
        async with await TokensFile.open(path, durable=durable) as file:
            log: Log = file
            assert await log.append(always(written[:1]))
            assert await log.append(always(written[1:]))
            assert await log.follow() == []  # one's own entries are no news
        news, notices = await read(path)
        assert equal(news, written) and notices == []

    asyncio.run(go())
    report = verify(path)
    assert report.is_sound and report.torn_bytes == 0 and report.frames == len(written)
    assert report.nodes == sum(sizes) and report.models == (MODEL,)


def test_two_writers_take_turns_and_each_sees_the_other(tmp_path: Path) -> None:
    path = tmp_path / "two.tokens"

    async def go() -> None:
        files = [await TokensFile.open(path) for _ in range(2)]
        seen: list[list[News]] = [[], []]
        await files[0].append(always([MODEL]))
        rng = np.random.default_rng(1)

        def writer(who: int) -> Number:
            def number(news: list[News]) -> list[Entry]:
                seen[who] += news
                batches = [entry for entry in seen[who] if isinstance(entry, Batch)]
                mine = batch(rng, 5, first=max((one.stop for one in batches), default=1))
                seen[who].append(mine)
                return [mine]

            return number

        assert all(await asyncio.gather(*(files[turn % 2].append(writer(turn % 2)) for turn in range(40))))
        for who in range(2):
            seen[who] += await files[who].follow()
        everything, notices = await read(path)
        assert notices == [] and len(everything) == 41
        assert equal(sorted_by_first(everything), sorted_by_first([MODEL, *seen[0]]))
        assert equal(everything, seen[1])
        for file in files:
            await file.close()

    asyncio.run(go())


def sorted_by_first(news: list[News]) -> list[News]:
    return sorted(news, key=lambda one: one.first if isinstance(one, Batch) else 0)


def test_a_file_cut_at_any_byte_holds_what_was_whole_and_goes_on(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.tokens", tmp_path / "cut.tokens"
    written = entries(3, [2, 1, 2])
    asyncio.run(write(whole, written))
    data, begins = whole.read_bytes(), starts(whole)

    async def go() -> None:
        for cut in range(len(data)):
            kept = [entry for entry, end in zip(written, [*begins[1:], len(data)], strict=True) if end <= cut]
            path.write_bytes(data[:cut])
            async with await TokensFile.open(path) as reader, await TokensFile.open(path) as file:
                assert equal(await reader.follow(), kept)
                missing = written[len(kept) :]
                assert await file.append(always(missing))
                assert equal(await reader.follow(), missing)
                assert reader.notices == file.notices == []
            assert verify(path).is_sound and equal((await read(path))[0], written)

    asyncio.run(go())


def test_any_flipped_bit_costs_at_most_its_frame_and_what_hangs_on_it(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.tokens", tmp_path / "flipped.tokens"
    written = entries(4, [1, 1])
    asyncio.run(write(whole, written))
    data, begins = whole.read_bytes(), starts(whole)

    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        file = frame_file.FrameFile(path, durable=False)
        file.open()
        news = file.follow()
        file.close()
        hit = sum(begin <= bit // 8 for begin in begins) - 1  # -1: in the head, of which there are two
        kept = written if hit < 0 else [] if hit == 0 else [one for i, one in enumerate(written) if i != hit]
        assert equal((one for one in news if not isinstance(one, Lost)), kept), bit
        assert len(file.notices) <= 1 and (hit < 0 or hit == len(begins) - 1 or file.notices)


@given(st.data())
@settings(deadline=None, derandomize=True, max_examples=150)
def test_whoever_appends_after_damage_never_takes_a_number_twice(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A reader from before the damage, one from after it and a third one agree on what every number means."""
    path = tmp_path_factory.mktemp("files") / "x.tokens"
    written = entries(data.draw(st.integers(0, 99)), [3, 3, 3])

    async def go() -> None:
        await write(path, written)
        async with await TokensFile.open(path) as early:
            await damaged(early)

    async def damaged(early: TokensFile) -> None:
        known = {1: await early.follow()}
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(framing.FILE_HEAD_BYTES, len(content) - 1))
            content[at] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        known[2] = []
        async with await TokensFile.open(path) as late:
            await both({1: early, 2: late}, known)

    async def both(files: dict[int, TokensFile], known: dict[int, list[News]]) -> None:
        rng = np.random.default_rng(1)

        def appending(who: int) -> Number:
            def number(news: list[News]) -> list[Entry]:
                for one in news:
                    known[who] = [] if isinstance(one, Renumbered) else [*known[who], one]
                stop = max(
                    (one.stop if isinstance(one, Batch) else one.first + one.count if isinstance(one, Lost) else 1)
                    for one in [Lost(1, 1, 0), *known[who]]
                )
                mine: list[Entry] = [batch(rng, 2, first=stop)]
                taken = {
                    one.number if isinstance(one, Model) else one.model
                    for one in known[who]
                    if not isinstance(one, Renumbered)
                }
                if MODEL not in known[who]:
                    number = max(taken, default=0) + 1
                    mine = [
                        Model(number, "fingerprint", "demo", 1536),
                        batch(rng, 2, model=number),
                    ]
                known[who] += mine
                return mine

            return number

        for who in data.draw(st.lists(st.sampled_from([1, 2]), min_size=1, max_size=6)):
            assert await files[who].append(appending(who))
        final, _ = await read(path)
        for who in (1, 2):
            for one in await files[who].follow():
                known[who] = [] if isinstance(one, Renumbered) else [*known[who], one]
            mine = {(one.model, one.first): one for one in known[who] if isinstance(one, Batch)}
            for one in final:
                if isinstance(one, Batch):
                    assert same(mine.get((one.model, one.first)), one)

    asyncio.run(go())


def test_a_follower_reads_on_through_compaction_removal_and_replacement(tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    old, new = entries(1, [6, 6]), entries(2, [4])

    async def go() -> None:
        await write(path, old)
        os.chmod(path, 0o640)
        async with await TokensFile.open(path) as writer, await TokensFile.open(path) as follower:
            assert equal(await follower.follow(), old)
            shown: list[News] = []
            assert await writer.rewrite(lambda news: shown.extend(news) or new)
            assert equal(shown, old)
            assert stat.S_IMODE(path.stat().st_mode) == 0o640
            assert [file.name for file in tmp_path.iterdir()] == ["x.tokens"]
            assert equal(await follower.follow(), [Renumbered(), *new])
            more = entries(5, [3], first=5)[1:]
            assert await writer.append(always(more)) and equal(await follower.follow(), more)
            path.unlink()
            assert await follower.follow() == [Renumbered()] and await follower.follow() == []
            again = entries(6, [3])
            shown.clear()
            assert await follower.append(lambda news: shown.extend(news) or again)
            assert shown == [] and equal(await writer.follow(), [Renumbered(), *again])
            path.write_bytes((tmp_path / "x.tokens").read_bytes()[:-10])  # in place, and shorter
            assert equal(await writer.follow(), [Renumbered(), *again[:-1]])
            path.unlink()
            path.write_text("my diary")
            assert not await writer.append(always(again)) and await follower.follow() == [Renumbered()]
            assert path.read_text() == "my diary" and len(writer.notices) == len(follower.notices) == 1

    asyncio.run(go())


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "real.tokens", tmp_path / "link.tokens"

    async def go() -> None:
        await write(path, entries(1, [3]))
        link.symlink_to(path)
        async with await TokensFile.open(link) as file:
            assert await file.rewrite(always(entries(2, [4])))
        assert link.is_symlink() and equal((await read(path))[0], entries(2, [4]))

    asyncio.run(go())


def _pickle(path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
            return os.mkdir, (str(path) + ".boom",)

    path.write_bytes(pickle.dumps(Bomb()))


def _newer(path: Path) -> None:
    head = framing._FILE_HEAD.pack(framing._MAGIC, 2, bytes(8), 0)[:-4]
    path.write_bytes(2 * (head + framing.crc32(head).to_bytes(4, "little")))


@pytest.mark.parametrize(
    ("plant", "problem"),
    [
        (lambda path: path.write_text("my diary"), "not a .tokens file"),
        (lambda path: path.write_text("x" * 5000), "not a .tokens file"),
        (lambda path: path.write_bytes(bytes(200)), "not a .tokens file"),
        (_pickle, "not a .tokens file"),
        (_newer, "newer lmql-lite"),
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: os.mkfifo(path), "device, pipe or socket"),
        (lambda path: path.symlink_to("/dev/null"), "device, pipe or socket"),
        (lambda path: path.symlink_to("nowhere"), "leads nowhere"),
    ],
)
def test_what_is_no_tokens_file_is_refused_and_left_alone(
    tmp_path: Path, plant: Callable[[Path], object], problem: str
) -> None:
    path = tmp_path / "x.tokens"
    plant(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(CacheError, match=problem) as caught:
        asyncio.run(TokensFile.open(path))
    assert caught.value.hint
    assert before is None or path.read_bytes() == before
    assert not (tmp_path / "nowhere").exists() and len(list(tmp_path.iterdir())) == 1


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="folder does not exist") as caught:
        asyncio.run(TokensFile.open(tmp_path / "no" / "x.tokens"))
    assert "mkdir -p" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "content", [b"", framing.file_head()[:5], framing.file_head()[:-1]], ids=["empty", "beginning", "almost"]
)
def test_a_file_whose_head_was_never_finished_becomes_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.tokens"
    path.write_bytes(content)
    asyncio.run(write(path, entries(1, [3])))
    assert verify(path).nodes == 3


@pytest.mark.parametrize("exists", [True, False])
def test_without_permission_to_write_it_is_read_and_nothing_is_kept(
    tmp_path: Path, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.tokens"
    written = entries(1, [3]) if exists else []
    if exists:
        asyncio.run(write(path, written))
    before = os.open

    def refusing(name: str, flags: int, mode: int = 0o777) -> int:  # chmod does not stop root
        if flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied", str(name))
        return before(name, flags, mode)

    monkeypatch.setattr(file_access.os, "open", refusing)

    async def go() -> None:
        async with await TokensFile.open(path) as file:
            assert not file.writable and len(file.notices) == 1
            assert equal(await file.follow(), written)
            assert not await file.append(always([MODEL])) and not await file.rewrite(always([]))
            assert len(file.notices) == 1

    asyncio.run(go())
    assert path.exists() == exists


def test_a_full_disk_keeps_what_was_whole_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    written = entries(1, [40])
    asyncio.run(write(path, written))
    size = path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def go() -> None:
        async with await TokensFile.open(path) as file:
            assert equal(await file.follow(), written)
            more = entries(2, [40], first=41)[1:]
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limits[1]))
            try:
                assert not await file.append(always(more)) and not await file.append(always(more))
                assert not await file.rewrite(always([*written, *more]))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert path.stat().st_size == size and len(list(tmp_path.iterdir())) == 1
            assert "cannot be written" in file.notices[0] and len(file.notices) == 2
            assert await file.append(always(more))  # there is room again
            assert equal((await read(path))[0], [*written, *more])

    asyncio.run(go())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks where Linux says what is open")
def test_a_rewriting_that_breaks_off_leaves_no_file_behind_and_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.tokens"
    written = entries(1, [3])
    asyncio.run(write(path, written))

    def is_open() -> bool:
        links = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
        return any("rewrite" in link for link in links)

    file = frame_file.FrameFile(path, durable=False)
    file.open()
    with pytest.raises(ValueError, match="cannot follow"):
        try:
            file.rewrite(always([batch(np.random.default_rng(1), 2, model=9)]))
        finally:
            assert not is_open()
    monkeypatch.setattr(frame_file.FrameFile, "_put", lambda *given: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        try:
            file.rewrite(always(written))
        finally:
            assert not is_open()
    file.close()
    assert [one.name for one in tmp_path.iterdir()] == ["x.tokens"] and verify(path).nodes == 3


def test_a_rewriting_that_finds_a_folder_in_its_place_says_so_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    asyncio.run(write(path, entries(1, [3])))
    (tmp_path / ".x.tokens.rewrite").mkdir()

    async def go() -> None:
        async with await TokensFile.open(path) as file:
            assert not await file.rewrite(always([]))
            assert "could not be rewritten beside itself" in file.notices[0]

    asyncio.run(go())
    assert verify(path).nodes == 3


def test_a_lock_that_is_never_given_back_costs_persistence_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.tokens"
    monkeypatch.setattr(frame_file, "LOCK_SECONDS", 0.05)

    async def go() -> None:
        await write(path, entries(1, [3]))
        async with await TokensFile.open(path) as file, await TokensFile.open(path) as other:
            with open(path, "rb") as holder:
                assert frame_file.try_lock(holder)
                assert not await file.append(always([]))
                assert equal(await other.follow(), entries(1, [3]))  # readers never wait
            assert "locked" in file.notices[0]
            assert await file.append(always([]))

    asyncio.run(go())


def test_entries_that_cannot_follow_are_a_mistake_and_leave_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    written = entries(1, [3])

    async def go() -> None:
        async with await TokensFile.open(path) as file:
            assert await file.append(always(written))
            taken, undeclared = entries(1, [3])[1], batch(np.random.default_rng(1), 2, model=9)
            unknown = batch(np.random.default_rng(1), 9, first=4, vocabulary=70_000)
            for wrong in (taken, undeclared, unknown, Model(1, "another", "x", 5)):
                with pytest.raises(ValueError, match="cannot follow"):
                    await file.append(always([wrong]))
            assert await file.append(always(entries(2, [3], first=4)[1:]))

    asyncio.run(go())
    assert verify(path).nodes == 6 and verify(path).is_sound


def test_two_accounts_of_one_model_are_told_apart_or_lost(tmp_path: Path) -> None:
    """What happens where a file system's locks do not work: both take the same numbers."""
    path = tmp_path / "x.tokens"
    first, second = entries(1, [3]), entries(2, [3])[1:]
    asyncio.run(write(path, first))
    data = path.read_bytes()
    salt = framing.read_file_head(data)
    assert salt is not None
    path.write_bytes(data + framing.frame_bytes(frame_file.encode(second[0]), len(data), salt))

    async def go() -> None:
        news, notices = await read(path)
        assert equal(news, [*first, Lost(1, 1, 3)]) and len(notices) == 1
        async with await TokensFile.open(path) as file:
            assert not await file.append(always(entries(3, [2], first=4)[1:]))

    asyncio.run(go())
    assert [one.what for one in verify(path).damage] == ["its numbers are taken"]


def test_who_waits_may_be_cancelled_and_the_file_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    begun, go_on = threading.Event(), threading.Event()

    def slow(news: News) -> list[Entry]:
        begun.set()
        go_on.wait()
        return []

    async def go() -> None:
        async with await TokensFile.open(path) as file:
            await file.append(always([MODEL]))
            task = asyncio.create_task(file.append(slow))
            await asyncio.to_thread(begun.wait)
            task.cancel()
            asyncio.get_running_loop().call_later(0.1, go_on.set)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await file.append(always(entries(1, [3])[1:]))

    asyncio.run(go())
    assert verify(path).nodes == 3


WORKER = """
import asyncio, os, sys
import numpy as np
from lmql_lite.cache.frames import Batch, Model
from lmql_lite.cache.log import Lost, Renumbered
from lmql_lite.cache.tokens_file import TokensFile
from tests.cache.batches import batch

path, acknowledged, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = np.random.default_rng(seed)
stop, declared = 1, False

def number(news):
    global stop, declared, mine
    for one in news:
        assert not isinstance(one, (Lost, Renumbered)), one
        if isinstance(one, Model):
            declared = True
        else:
            assert one.first == stop, (one.first, stop)
            stop = one.stop
    batches = []
    for _ in range(rng.integers(1, 4)):
        size = int(rng.choice([1, 20, 3000], p=[0.3, 0.6, 0.1]))
        key = int(rng.integers(2**31))
        batches.append((stop, size, key))
        stop += size
    mine = batches
    made = [batch(np.random.default_rng(key), size, first=first) for first, size, key in batches]
    before = [] if declared else [Model(1, "fingerprint", "demo", 1536)]
    declared = True
    return before + made

async def main():
    log = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    file = await TokensFile.open(path)
    while True:
        if await file.append(number):
            os.write(log, "".join(f"{a} {b} {c}\\n" for a, b, c in mine).encode())
        assert file.notices == [], file.notices

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_eight_processes_append_and_are_killed_and_nothing_acknowledged_is_lost(tmp_path: Path, root: Path) -> None:
    """Four seconds here; LMQL_LITE_CRASH_SECONDS=30 for the long one."""
    seconds = float(os.environ.get("LMQL_LITE_CRASH_SECONDS", "4"))
    path, rng = tmp_path / "shared.tokens", random.Random(1)
    workers: list[subprocess.Popen[bytes]] = []
    errors = tmp_path / "errors"
    started = 0

    def start() -> subprocess.Popen[bytes]:
        nonlocal started
        started += 1
        command = [sys.executable, "-c", WORKER, str(path), str(tmp_path / f"{started}.ack"), str(started)]
        with errors.open("ab") as sink:
            return subprocess.Popen(command, cwd=root, stderr=sink)

    async def go() -> None:
        seen: list[News] = []
        workers.extend(start() for _ in range(8))
        while len(list(tmp_path.glob("*.ack"))) < 8:  # all of them are at work
            assert errors.stat().st_size == 0, errors.read_text()
            await asyncio.sleep(0.05)
        end = time.monotonic() + seconds
        async with await TokensFile.open(path) as follower:
            while time.monotonic() < end:
                await asyncio.sleep(rng.uniform(0.05, 0.3))
                victim = rng.randrange(8)
                if rng.random() < 0.7:
                    workers[victim].send_signal(signal.SIGKILL)
                    workers[victim].wait()
                    workers[victim] = start()
                seen += await follower.follow()
            for worker in workers:
                worker.kill()
                worker.wait()
            seen += await follower.follow()
            assert follower.notices == []
        everything, notices = await read(path)
        assert equal(everything, seen) and notices == []
        stop, found = 1, {}
        for one in everything[1:]:
            assert isinstance(one, Batch) and one.first == stop
            stop, found[one.first] = one.stop, one
        acknowledged = [line.split() for file in tmp_path.glob("*.ack") for line in file.read_text().splitlines()]
        assert len(acknowledged) > 20
        for first, size, key in ((int(a), int(b), int(c)) for a, b, c in acknowledged):
            assert same(found[first], batch(np.random.default_rng(key), size, first=first))

    try:
        asyncio.run(go())
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert not errors.read_text()
    assert verify(path).is_sound
