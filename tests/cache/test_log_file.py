"""`.tokens` files: shared, torn, damaged, replaced, refused; what was acknowledged stays."""

from __future__ import annotations

import itertools
import os
import pickle
import random
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmql_lite.cache import log_file
from lmql_lite.cache.file_contents import read_file
from lmql_lite.cache.framing import FRAME_BYTES, MARK, LogFrame, frame_bytes, scan
from lmql_lite.cache.log_file import LogFile, Payloads
from lmql_lite.errors import CacheError
from tests.cache.batches import MODEL, Batch, batch, recorded
from tests.cache.written import admit, always, opened

OTHER = b"another file"
"""Stands among payloads where a reader was told that another file took the place of the one before."""


def payloads(seed: int, sizes: Iterable[int], first: int = 1) -> list[bytes]:
    """Records of one model."""
    rng = np.random.default_rng(seed)
    made: list[Batch] = []
    for size in sizes:
        made.append(batch(rng, size, first=first))
        first += size
    return recorded(made)


class Reader:
    """What somebody was shown of a file."""

    def __init__(self) -> None:
        self.shown: list[bytes | None] = []

    def __call__(self, frames: Sequence[LogFrame], is_other: bool) -> bool:
        self.shown += [OTHER] * is_other
        self.shown += [frame.payload for frame in frames]
        return all(frame.payload is not None for frame in frames)


def write(path: Path, what: Iterable[bytes]) -> None:
    """One append per record."""
    with opened(path) as file:
        for payload in what:
            assert file.append(admit, always([payload]))
        assert file.notices == []


def follow(file: LogFile) -> list[bytes | None]:
    """What is new."""
    reader = Reader()
    file.follow(reader)
    return reader.shown


def read(path: Path) -> tuple[list[bytes | None], list[str]]:
    with opened(path) as file:
        return follow(file), file.notices


def ends(path: Path) -> list[int]:
    """Where the frames of a sound file end."""
    return [place.end for place in scan(path.read_bytes(), 0).places]


@given(st.integers(0, 2**32), st.lists(st.integers(0, 40), max_size=6), st.booleans())
@settings(deadline=None, derandomize=True, max_examples=30)
def test_what_was_appended_comes_back(
    tmp_path_factory: pytest.TempPathFactory, seed: int, sizes: list[int], durable: bool
) -> None:
    path = tmp_path_factory.mktemp("files") / "ein Baum 🌳.tokens"
    written = payloads(seed, sizes)

    with opened(path, durable=durable) as file:
        assert file.append(admit, always(written[:1]))
        assert file.append(admit, always(written[1:]))
        assert follow(file) == []  # one's own records are not new
    assert read(path) == (written, [])
    found = read_file(path)
    assert found.is_sound and found.torn_bytes == 0 and found.frames == len(written)
    assert found.models == ((MODEL,) if sizes else ())
    assert found.bytes == sum(FRAME_BYTES + len(payload) for payload in written)


def test_two_writers_take_turns_and_each_sees_the_other(tmp_path: Path) -> None:
    path = tmp_path / "two.tokens"

    files = [LogFile(path, durable=False) for _ in range(2)]
    for file in files:
        file.open()
    readers = [Reader(), Reader()]
    rng = np.random.default_rng(1)

    def writer(who: int) -> Payloads:
        def generated() -> Generator[bytes, None, None]:
            mine = rng.bytes(20)
            yield mine
            readers[who].shown.append(mine)

        return generated

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda turn: files[turn % 2].append(readers[turn % 2], writer(turn % 2)), range(40)))
    for file, reader in zip(files, readers, strict=True):
        file.follow(reader)
    everything, notices = read(path)
    assert notices == [] and len(everything) == 40
    assert readers[0].shown == readers[1].shown == everything
    for file in files:
        file.close()


def test_a_file_cut_at_any_byte_holds_what_was_whole_and_goes_on(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.tokens", tmp_path / "cut.tokens"
    written = payloads(3, [2, 1, 2])
    write(whole, written)
    data, stops = whole.read_bytes(), ends(whole)

    for cut in range(len(data)):
        kept = [payload for payload, end in zip(written, stops, strict=True) if end <= cut]
        path.write_bytes(data[:cut])
        with opened(path) as reader, opened(path) as file:
            assert follow(reader) == kept
            missing = written[len(kept) :]
            assert file.append(admit, always(missing))
            assert follow(reader) == missing
            assert reader.notices == file.notices == []
        assert read_file(path).is_sound and (read(path))[0] == written


def test_any_flipped_bit_costs_at_most_its_frame(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.tokens", tmp_path / "flipped.tokens"
    written = payloads(4, [1, 1])
    write(whole, written)
    data, stops = whole.read_bytes(), ends(whole)

    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        file, reader = LogFile(path, durable=False), Reader()
        file.open()
        file.follow(reader)
        file.close()
        hit = sum(end <= bit // 8 for end in stops)
        in_mark_at_end = bit // 8 >= stops[hit] - len(MARK)
        kept = written if in_mark_at_end else [one for place, one in enumerate(written) if place != hit]
        assert [payload for payload in reader.shown if payload is not None] == kept, bit
        assert len(file.notices) <= 1 and (in_mark_at_end or hit == len(stops) - 1 or file.notices)


@pytest.mark.parametrize("records", [1, 2])
@pytest.mark.parametrize("lost", [1, 8, 48, 100, -9])
def test_a_file_whose_beginning_is_lost_is_used_from_there_on_law_4(tmp_path: Path, records: int, lost: int) -> None:
    path = tmp_path / "x.tokens"
    written = payloads(4, [3] * records)
    write(path, written)
    data = bytearray(path.read_bytes())
    lost = lost if lost > 0 else len(data) + lost
    data[:lost] = bytes(lost)
    path.write_bytes(data)
    kept = [payload for payload, begin in zip(written, [0, *ends_of(written)], strict=False) if begin >= lost]

    with opened(path) as file:
        more = payloads(5, [2])
        assert follow(file) == kept
        assert file.append(admit, always(more))
        (notice,) = file.notices
        assert "is damaged; unreadable entries are asked for again" in notice
    assert (read(path))[0] == [*kept, *more]
    assert [one.what for one in read_file(path).damage][:1] == ["no frame begins here"]


def ends_of(written: Iterable[bytes]) -> list[int]:
    return list(itertools.accumulate(FRAME_BYTES + len(payload) for payload in written))


@given(st.data())
@settings(deadline=None, derandomize=True, max_examples=150)
def test_whoever_appends_after_damage_agrees_with_all_others_on_what_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A reader from before the damage, one from after it and a third one."""
    path = tmp_path_factory.mktemp("files") / "x.tokens"
    written = payloads(data.draw(st.integers(0, 99)), [3, 3, 3])

    def damaged(early: LogFile) -> None:
        readers = {1: Reader(), 2: Reader()}
        early.follow(readers[1])
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        with opened(path) as late:
            both({1: early, 2: late}, readers)

    def both(files: dict[int, LogFile], readers: dict[int, Reader]) -> None:
        appended = []
        for who in data.draw(st.lists(st.sampled_from([1, 2]), min_size=1, max_size=6)):
            appended += payloads(len(appended), [2])
            assert files[who].append(readers[who], always(appended[-1:]))
            readers[who].shown.append(appended[-1])
        final = [payload for payload in (read(path))[0] if payload is not None]
        assert final[len(final) - len(appended) :] == appended
        for who in (1, 2):
            files[who].follow(readers[who])
            assert set(final) <= set(readers[who].shown)
            assert [each for each in readers[who].shown if each in appended] == appended

    write(path, written)
    with opened(path) as early:
        damaged(early)


def test_a_follower_reads_on_through_compaction_removal_and_replacement(tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    old, new = payloads(1, [6, 6]), payloads(2, [4])

    write(path, old)
    os.chmod(path, 0o640)
    with opened(path) as writer, opened(path) as follower:
        assert follow(follower) == old
        reader = Reader()
        assert writer.rewrite(reader, always(new))
        assert reader.shown == old
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        assert [file.name for file in tmp_path.iterdir()] == ["x.tokens"]
        assert follow(follower) == [OTHER, *new]
        more = payloads(5, [3])
        assert writer.append(admit, always(more)) and follow(follower) == more
        path.unlink()
        assert follow(follower) == [OTHER] and follow(follower) == []
        again, reader = payloads(6, [3, 3]), Reader()
        assert follower.append(reader, always(again))
        assert reader.shown == [] and follow(writer) == [OTHER, *again]
        path.write_bytes((tmp_path / "x.tokens").read_bytes()[:-10])  # in place, and shorter
        assert follow(writer) == [OTHER, *again[:-1]]
        path.unlink()
        path.write_text("my diary")
        assert not writer.append(admit, always(again)) and follow(follower) == [OTHER]
        assert path.read_text() == "my diary" and len(writer.notices) == len(follower.notices) == 1


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "real.tokens", tmp_path / "link.tokens"

    write(path, payloads(1, [3]))
    link.symlink_to(path)
    with opened(link) as file:
        assert file.rewrite(admit, always(payloads(2, [4])))
    assert link.is_symlink() and (read(path))[0] == payloads(2, [4])


def _pickle(path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
            return os.mkdir, (str(path) + ".boom",)

    path.write_bytes(pickle.dumps(Bomb()))


@pytest.mark.parametrize(
    ("plant", "problem"),
    [
        (lambda path: path.write_text("my diary"), "not a .tokens file"),
        (lambda path: path.write_text("x" * 5_000_000), "not a .tokens file"),
        (lambda path: path.write_bytes(bytes(200)), "not a .tokens file"),
        (_pickle, "not a .tokens file"),
        (lambda path: path.write_bytes(2 * (b"\x93tokens\n\x01\0\0\0" + bytes(12))), "earlier lmql-lite"),
        (lambda path: path.write_bytes(frame_bytes(b"x").replace(MARK, b"\x93tokens\x03")), "newer lmql-lite"),
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
        LogFile(path, durable=False).open()
    assert caught.value.hint
    assert before is None or path.read_bytes() == before
    assert not (tmp_path / "nowhere").exists() and len(list(tmp_path.iterdir())) == 1


def test_a_mark_is_found_wherever_it_stands_in_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    for at in (2**20 - 4, 2**20, 3 * 2**20 - 1):
        path.write_bytes(bytes(at) + MARK)

        with opened(path) as file:
            assert follow(file) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="folder does not exist") as caught:
        LogFile(tmp_path / "no" / "x.tokens", durable=False).open()
    assert "mkdir -p" in (caught.value.hint or "")


@pytest.mark.parametrize("content", [b"", MARK[:5], frame_bytes(b"x" * 50)[:-20]], ids=["empty", "beginning", "almost"])
def test_a_file_whose_first_write_was_never_finished_becomes_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.tokens"
    path.write_bytes(content)
    write(path, payloads(1, [3]))
    assert read_file(path).is_sound and read_file(path).frames == 1


@pytest.mark.parametrize("exists", [True, False])
def test_without_permission_to_write_it_is_read_and_nothing_is_kept(
    tmp_path: Path, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.tokens"
    written = payloads(1, [3]) if exists else []
    if exists:
        write(path, written)
    before = os.open

    def refusing(name: str, flags: int, mode: int = 0o777) -> int:  # chmod does not stop root
        if flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied", str(name))
        return before(name, flags, mode)

    monkeypatch.setattr(log_file.os, "open", refusing)

    with opened(path) as file:
        assert not file.writable and len(file.notices) == 1
        assert follow(file) == written
        assert not file.append(admit, always(written)) and not file.rewrite(admit, always([]))
        assert len(file.notices) == 1
    assert path.exists() == exists


def test_a_full_disk_keeps_what_was_whole_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    written = payloads(1, [40])
    write(path, written)
    size = path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    with opened(path) as file:
        assert follow(file) == written
        more = payloads(2, [40])
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limits[1]))
        try:
            assert not file.append(admit, always(more)) and not file.append(admit, always(more))
            assert not file.rewrite(admit, always([*written, *more]))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.stat().st_size == size and len(list(tmp_path.iterdir())) == 1
        assert "cannot be written" in file.notices[0] and len(file.notices) == 2
        assert file.append(admit, always(more))  # there is room again
        assert (read(path))[0] == [*written, *more]


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks where Linux says what is open")


def open_here() -> set[str]:
    """Paths of the files that this process has open."""
    return {os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")}


@needs_proc
def test_compact_fails_on_windows_only_while_somebody_else_has_the_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.replace

    def windows(source: Path, target: Path) -> None:
        if open_here() & {str(source), str(target)}:
            raise PermissionError(13, "Access is denied", str(source), 32, str(target))
        rename(source, target)

    monkeypatch.setattr(os, "replace", windows)
    path, old, new = tmp_path / "x.tokens", payloads(1, [6, 6]), payloads(2, [4])
    write(path, old)
    with opened(path) as writer:
        with path.open("rb"):
            assert not writer.rewrite(admit, always(new))
        assert "could not be rewritten (Access is denied), and is unchanged" in writer.notices[0]
        assert follow(writer) == [OTHER, *old] and read(path)[0] == old
        assert [file.name for file in tmp_path.iterdir()] == ["x.tokens"]
        assert writer.rewrite(admit, always(new))
        assert follow(writer) == [OTHER, *new]
        more = payloads(5, [3])
        assert writer.append(admit, always(more)) and follow(writer) == []
    assert read(path)[0] == [*new, *more]


@needs_proc
def test_a_rewriting_that_breaks_off_leaves_no_file_behind_and_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.tokens"
    written = payloads(1, [3])
    write(path, written)

    def breaks_off() -> Generator[bytes, None, None]:
        yield written[0]
        raise ZeroDivisionError

    file = LogFile(path, durable=False)
    file.open()
    for payloads_of, put in ((breaks_off, LogFile._put), (always(written), lambda *given: 1 // 0)):
        monkeypatch.setattr(LogFile, "_put", put)
        with pytest.raises(ZeroDivisionError):
            try:
                file.rewrite(admit, payloads_of)
            finally:
                assert not [path for path in open_here() if "rewrite" in path]
    file.close()
    assert [one.name for one in tmp_path.iterdir()] == ["x.tokens"] and read_file(path).frames == 1


def test_a_rewriting_that_finds_a_folder_in_its_place_says_so_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    write(path, payloads(1, [3]))
    (tmp_path / ".x.tokens.rewrite").mkdir()

    with opened(path) as file:
        assert not file.rewrite(admit, always([]))
        assert "could not be rewritten" in file.notices[0]
    assert read_file(path).frames == 1


def test_a_lock_that_is_never_given_back_costs_persistence_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.tokens"
    monkeypatch.setattr(log_file, "LOCK_SECONDS", 0.05)

    write(path, payloads(1, [3]))
    with opened(path) as file, opened(path) as other:
        with open(path, "rb") as holder:
            assert log_file.try_lock(holder)
            assert not file.append(admit, always([]))
            assert follow(other) == payloads(1, [3])  # readers never wait
        assert "locked" in file.notices[0]
        assert file.append(admit, always([]))


WORKER = """
import os, sys
from pathlib import Path
import numpy as np
from lmql_lite.cache.log_file import LogFile

path, acknowledged, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = np.random.default_rng(seed)

def admit(frames, is_other):
    assert not is_other and all(frame.payload is not None for frame in frames)
    return True

def payloads():
    for _ in range(rng.integers(1, 4)):
        size = int(rng.choice([50, 3000, 200_000], p=[0.3, 0.6, 0.1]))
        payload = os.urandom(16) + bytes(size)
        yield payload
        mine.append(payload[:16].hex())

def main():
    global mine
    log = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    file = LogFile(Path(path), durable=False)
    file.open()
    while True:
        mine = []
        if file.append(admit, payloads):
            os.write(log, "".join(f"{each}\\n" for each in mine).encode())
        assert file.notices == [], file.notices

main()
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

    try:
        seen = Reader()
        workers.extend(start() for _ in range(8))
        while len(list(tmp_path.glob("*.ack"))) < 8:  # all of them are at work
            assert errors.stat().st_size == 0, errors.read_text()
            time.sleep(0.05)
        end = time.monotonic() + seconds
        with opened(path) as follower:
            while time.monotonic() < end:
                time.sleep(rng.uniform(0.05, 0.3))
                victim = rng.randrange(8)
                if rng.random() < 0.7:
                    workers[victim].send_signal(signal.SIGKILL)
                    workers[victim].wait()
                    workers[victim] = start()
                follower.follow(seen)
            for worker in workers:
                worker.kill()
                worker.wait()
            follower.follow(seen)
            assert follower.notices == []
        everything, notices = read(path)
        assert everything == seen.shown and notices == []
        found = {payload[:16].hex() for payload in everything if payload is not None}
        acknowledged = [line for file in tmp_path.glob("*.ack") for line in file.read_text().split()]
        assert len(acknowledged) > 20 and found.issuperset(acknowledged)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert not errors.read_text()
