"""Crashes, damage, full disks, other processes: nothing acknowledged is lost, nothing wrong is served (A9 to A19)."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lmql_lite.cache.responses import cache as response_cache
from lmql_lite.cache.responses import index as response_index
from lmql_lite.cache.responses.cache import CachePolicy, ResponseCache
from lmql_lite.cache.responses.logs import summary
from lmql_lite.cache.responses.request import Request
from lmql_lite.errors import CacheError
from lmql_lite.store.files import is_on_network
from lmql_lite.store.log import LogWriter, line_of, read_lines
from tests.cache.responses.models import PATHS, Counting, OneByOne, generation, generations
from tests.cache.responses.test_response_cache import opened, pair


def filled(folder: Path, count: int = 5) -> Path:
    """A log of that many answers."""
    with pair(folder) as cache:
        cache.execute(Counting(), "generate_until", generations(count))
    return folder / "rank0.jsonl"


def lose_index(folder: Path) -> None:
    for path in folder.rglob("*.db*"):
        path.unlink()


def all_right(folder: Path, count: int, model: Counting | None = None) -> int:
    """Asks for all answers, checks them, and returns how many the model had to give."""
    model = model or Counting()
    with pair(folder) as cache:
        answers = cache.execute(model, "generate_until", generations(count))
    assert answers == [f"answer to question {number}" for number in range(count)]
    return len(model.asked)


# -- crashes


class Slow(OneByOne):
    """A model whose calls are counted in a file, one byte each."""

    def __init__(self, calls: Path) -> None:
        super().__init__()
        self.calls_file = calls

    def generate_until(self, requests: list[Request]) -> Iterator[str]:
        for answer in super().generate_until(requests):
            with open(self.calls_file, "ab") as file:
                file.write(b"x")
            yield answer


def run_until_killed(folder: Path) -> None:
    with opened(folder) as cache:
        for start in range(0, 2000, 50):
            cache.execute(Slow(folder / "calls"), "generate_until", generations(50, start))
            with open(folder / "acknowledged", "a") as file:
                file.write(f"{start}\n")
    os._exit(0)


def test_nothing_acknowledged_is_lost_in_50_kills(tmp_path: Path) -> None:
    """A10: killed at random times, until a run of 2000 requests is done."""
    chance = random.Random(5)
    context = multiprocessing.get_context("fork")
    for kill in range(51):
        process = context.Process(target=run_until_killed, args=(tmp_path,))
        process.start()
        if kill < 50:
            process.join(chance.random() * 0.15)
            process.kill()
        process.join()
        started = (tmp_path / "acknowledged").read_text().split() if (tmp_path / "acknowledged").exists() else []
        if kill % 10 == 9:
            before = (tmp_path / "calls").stat().st_size
            model = Counting()
            with opened(tmp_path, rank=1, policy=CachePolicy(mode="ro")) as cache:
                for start in map(int, set(started)):
                    answers = cache.execute(model, "generate_until", generations(50, start))
                    assert answers[3] == f"answer to question {start + 3}"
            assert model.calls == 0 and before == (tmp_path / "calls").stat().st_size
    assert process.exitcode == 0
    assert 2000 <= (tmp_path / "calls").stat().st_size <= 2000 + 50 * 50
    model = Counting()
    with opened(tmp_path) as cache:
        answers = cache.execute(model, "generate_until", generations(2000))
    assert model.calls == 0 and answers == [f"answer to question {number}" for number in range(2000)]


@pytest.mark.parametrize("after", ["log", "index"])
def test_a_kill_between_log_and_index_loses_nothing(tmp_path: Path, after: str) -> None:
    """A9: one row, no second call."""
    place = "index.Index._insert" if after == "log" else "index.Index.close"
    code = f"""
import os, signal
from lmql_lite.cache.responses import index
from tests.cache.responses.models import Counting, generations
from tests.cache.responses.test_response_cache import pair
from pathlib import Path
cache = pair(Path({str(tmp_path)!r}))
{place} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
cache.execute(Counting(), "generate_until", generations(3))
cache.close()
"""
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": PATHS}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert all_right(tmp_path, 3) == 0
    with sqlite3.connect(tmp_path / "rank0.db") as database:
        assert database.execute("SELECT count(*) FROM responses").fetchone() == (3,)
    database.close()


def test_a_reopened_index_reads_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding B24: a watermark, not the whole log."""
    filled(tmp_path, 100)
    seen = []

    def counting(path: Path, start: int = 0):  # type: ignore[no-untyped-def]
        for line in read_lines(path, start):
            seen.append(line)
            yield line

    monkeypatch.setattr(response_index, "read_lines", counting)
    assert all_right(tmp_path, 101) == 1 and seen == []
    pair(tmp_path).close()
    assert seen == []


# -- damage of the log


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting for the disk, and the index in memory: for tests that open a cache a thousand times."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(response_cache, "is_on_network", lambda folder: True)


@pytest.mark.usefixtures("quick")
def test_a_tear_at_every_byte_of_the_last_record(tmp_path: Path) -> None:
    """A12, finding B11: what was whole stays, also the record after the tear; the torn bytes stay in the log."""
    whole = filled(tmp_path, 4).read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for end in range(start, len(whole)):
        lose_index(tmp_path)
        (tmp_path / "rank0.jsonl").write_bytes(whole[:end])
        with pair(tmp_path) as cache:
            assert cache.store(generation(99), "after the tear")
        lose_index(tmp_path)
        expected = 0 if end == len(whole) - 1 else 1  # only its line end was lost
        model = Counting()
        with pair(tmp_path) as cache:
            assert cache.execute(model, "generate_until", [*generations(4), generation(99)]) == [
                *(f"answer to question {number}" for number in range(4)), "after the tear"
            ]  # fmt: skip
        assert len(model.asked) == expected
        assert whole[start:end] in (tmp_path / "rank0.jsonl").read_bytes()


@pytest.mark.usefixtures("quick")
def test_a_bit_flipped_at_every_third_byte(tmp_path: Path) -> None:
    """Nothing wrong is served, and at most the two records beside the flip are asked for again."""
    whole = filled(tmp_path, 4).read_bytes()
    for place in range(0, len(whole), 3):
        lose_index(tmp_path)
        data = bytearray(whole)
        data[place] ^= 1 << (place % 8)
        (tmp_path / "rank0.jsonl").write_bytes(data)
        assert all_right(tmp_path, 4) <= 2, place


def with_garbage(log: Path, garbage: bytes) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:3], garbage, *lines[3:]]))


FORGED = b'{"kind":"response","schema":1,"model_hash":"0","cache_key":"0","response":"\\"forged\\""}\n'


@pytest.mark.parametrize(
    "garbage",
    [b"\x00\xff\xfe random \x80\n", b"42\n", b"null\n", b"{" * 100_000 + b"\n", b"x" * 10_000_000 + b"\n", b"\n\n",
     b"\r\n", b"\xef\xbb\xbf\n", b"\xed\xa0\x80\n", FORGED, b'{"kind":"response","crc32":"00000000"}\n'],
    ids=lambda garbage: repr(garbage[:12]),
)  # fmt: skip
def test_garbage_in_the_log_is_stepped_over(tmp_path: Path, garbage: bytes) -> None:
    """Statement 30, A13, finding B12: no good line is lost."""
    log = filled(tmp_path, 6)
    with_garbage(log, garbage)
    lose_index(tmp_path)
    assert summary(log).damaged == (1 if garbage.strip() else 0)
    assert all_right(tmp_path, 6) == 0


def test_lines_that_were_changed_by_hand_are_not_served(tmp_path: Path) -> None:
    """A13, B1: another answer, a duplicate key, carriage returns, a line that is not deterministic."""
    log = filled(tmp_path, 3)
    lines = log.read_bytes().splitlines(keepends=True)
    record = next(line.record for line in read_lines(log) if line.record and line.record["kind"] == "response")
    poisoned = [record | {"response": '""', "cache_key": "1" * 64}, record | {"response": "5 5", "cache_key": "3" * 64},
                record | {"deterministic": False, "cache_key": "2" * 64}, record | {"cache_key": ""},
                {"kind": "response", "schema": 1},
                record | {"doc_id": object.__name__, "created_at": "soon", "cache_key": "4" * 64}]  # fmt: skip
    crlf = [line.replace(b"\n", b"\r\n") for line in lines]
    changed = lines[1].replace(b"answer to question 0", b"answer to question 9")
    log.write_bytes(b"".join([changed, *crlf, *lines, *map(line_of, poisoned)]))
    lose_index(tmp_path)
    assert all_right(tmp_path, 3) == 0
    with pair(tmp_path) as cache:
        assert cache.get_stats()["total_cached_entries"] == 3


@pytest.mark.filterwarnings("ignore:.*(cannot be used|is not an index)")
def test_a_log_that_was_replaced_takes_its_index_along(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    other = filled(tmp_path / "other", 5) if (tmp_path / "other").mkdir() is None else tmp_path
    os.replace(other, tmp_path / "rank0.jsonl")
    with pair(tmp_path) as cache:
        assert cache.get_stats()["total_cached_entries"] == 5
    assert all_right(tmp_path, 5) == 0


# -- damage of the index


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def a_page(data: bytes) -> bytes:
    return data[:8192] + random.Random(1).randbytes(4096) + data[12288:]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "random": lambda data: random.Random(1).randbytes(len(data)),
    "half": half,
    "one page": a_page,
    "flipped answers": lambda data: data.replace(b"answer to question 1", b"answer to question 7"),
}


@pytest.mark.filterwarnings("ignore:.*(cannot be used|is not an index)")
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_a_damaged_index_is_made_anew(tmp_path: Path, damage: str, is_open: bool) -> None:
    """A15, finding B13: all answers are right, and none is asked for where the damage is seen."""
    filled(tmp_path, 500)
    index = tmp_path / "rank0.db"
    model = Counting()
    if is_open:
        with pair(tmp_path) as cache:
            index.write_bytes(DAMAGE[damage](index.read_bytes()))
            answers = cache.execute(model, "generate_until", generations(500))
            assert answers == [f"answer to question {number}" for number in range(500)]
    else:
        index.write_bytes(DAMAGE[damage](index.read_bytes()))
    all_right(tmp_path, 500, model)
    assert len(model.asked) <= 100
    assert all_right(tmp_path, 500) == 0


@pytest.mark.filterwarnings("ignore:.*(cannot be used|is not an index)")
def test_any_page_of_the_index_may_be_flipped_while_it_is_open(tmp_path: Path) -> None:
    """Every page in turn: a wrong answer is never served."""
    filled(tmp_path, 300)
    index = tmp_path / "rank0.db"
    whole = index.read_bytes()
    for start in range(0, len(whole), 4096):
        with pair(tmp_path) as cache:
            page = bytes(byte ^ 0x10 for byte in whole[start : start + 4096])
            index.write_bytes(whole[:start] + page + whole[start + 4096 :])
            answers = cache.execute(Counting(), "generate_until", generations(300))
            assert answers == [f"answer to question {number}" for number in range(300)], start
        lose_index(tmp_path)
        index.write_bytes(whole)


@pytest.mark.parametrize("name", ["rank0.db", "rank0.db-wal", "rank0.db-shm"])
def test_files_of_the_index_may_be_deleted_at_any_moment(tmp_path: Path, name: str) -> None:
    """Statement 29, A15 and upstream test 26."""
    with pair(tmp_path) as cache:
        cache.execute(Counting(), "generate_until", generations(50))
        cache.get_stats()
        (tmp_path / name).unlink()
        cache.execute(Counting(), "generate_until", generations(100))
    (tmp_path / name).unlink(missing_ok=True)
    assert all_right(tmp_path, 100) == 0


@pytest.mark.filterwarnings("ignore:.*(cannot be used|is not an index)")
def test_an_index_of_another_model_or_shape_is_made_anew(tmp_path: Path) -> None:
    """A15: wrong schema."""
    filled(tmp_path, 3)
    for change in ("UPDATE meta SET value = 'x' WHERE key = 'model_fingerprint_hash'",
                   "ALTER TABLE responses DROP COLUMN checksum", "DROP TABLE responses",
                   "DROP TABLE meta"):  # fmt: skip
        with sqlite3.connect(tmp_path / "rank0.db") as database:
            database.execute(change)
        database.close()
        assert all_right(tmp_path, 3) == 0, change


# -- disks


def test_a_full_disk_costs_only_what_was_not_kept(tmp_path: Path) -> None:
    """A16, finding B14: all answers are returned, one warning, and the log is whole when there is room again."""
    code = f"""
import resource, signal, sys, warnings
from pathlib import Path
from tests.cache.responses.models import Counting, generations
from tests.cache.responses.test_response_cache import pair
cache = pair(Path({str(tmp_path)!r}))
cache.execute(Counting(), "generate_until", generations(20))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = (Path({str(tmp_path)!r}) / "rank0.jsonl").stat().st_size + 700
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for start in range(0, 100, 10):
        answers = cache.execute(Counting(), "generate_until", generations(10, start))
        assert answers == [f"answer to question {{number}}" for number in range(start, start + 10)]
assert len(caught) <= 2, [str(each.message) for each in caught]
assert "could not be kept" in str(caught[0].message)
assert cache.get_stats()["not_kept"] > 0
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
cache.execute(Counting(), "generate_until", generations(5, 200))
cache.close()
"""
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": PATHS}, check=False, text=True,
                          capture_output=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    log = summary(tmp_path / "rank0.jsonl")
    assert (log.damaged, log.answers) == (0, 25)
    assert all_right(tmp_path, 20) == 0


def test_an_index_that_cannot_grow_costs_no_answer(tmp_path: Path) -> None:
    """The write-ahead log of the index reaches the limit before the log does."""
    code = f"""
import resource, signal, warnings
from pathlib import Path
from lmql_lite.cache.responses.cache import CachePolicy
from tests.cache.responses.models import Counting, generations
from tests.cache.responses.test_response_cache import pair
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
warnings.simplefilter("ignore")
model = Counting(lambda request: request.args[0] * 300)
with pair(Path({str(tmp_path)!r}), policy=CachePolicy(on_error="raise")) as cache:
    for again in range(2):
        for number in range(20):
            cache.execute(model, "generate_until", generations(1, number))
assert (len(model.asked), len(cache.notices)) == (20, 1), (model.calls, cache.notices)
"""
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": PATHS}, check=False, text=True,
                          capture_output=True)  # fmt: skip
    assert done.returncode == 0, done.stderr


def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    def append(log: LogWriter, lines: list[bytes]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LogWriter, "append", append)


def test_a_write_that_fails_is_a_warning_or_an_error_as_wished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A16: `on_error`."""
    failing(monkeypatch)
    with pair(tmp_path) as cache:
        with pytest.warns(RuntimeWarning, match="could not be kept \\(No space left on device\\)"):
            assert cache.execute(Counting(), "generate_until", generations(2)) != []
        assert len(cache.execute(Counting(), "generate_until", generations(2))) == 2  # said once
        assert not cache.store(generation(1), "x")
    with (
        pair(tmp_path, "b", policy=CachePolicy(on_error="raise")) as cache,
        pytest.raises(CacheError, match="No space left on device"),
    ):
        cache.execute(Counting(), "generate_until", generations(2))


def test_a_folder_that_goes_away_costs_no_answer(tmp_path: Path) -> None:
    """A16: the folder is removed while the cache is open."""
    folder = tmp_path / "cache"
    folder.mkdir()
    with pair(folder) as cache:
        cache.execute(Counting(), "generate_until", generations(2))
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        with pytest.warns(RuntimeWarning, match="removed or replaced"):
            answers = cache.execute(Counting(), "generate_until", generations(5))
        assert answers[4] == "answer to question 4"


def test_a_folder_that_may_not_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A16: what is kept is served, what is new is asked each time, with one warning."""
    with opened(tmp_path) as cache:
        cache.execute(Counting(), "generate_until", generations(3))
    real = os.open

    def read_only(path: object, flags: int, *rest: int, **more: object) -> int:
        if str(path).startswith(str(tmp_path)) and flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(30, "Read-only file system", str(path))
        return real(path, flags, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith(str(tmp_path)))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    model = Counting()
    with pytest.warns(RuntimeWarning, match="Read-only file system"):
        cache = opened(tmp_path)
    with cache:
        assert len(cache.execute(model, "generate_until", generations(4))) == 4
        assert len(cache.execute(model, "generate_until", generations(4))) == 4
    assert [each.doc_id for each in model.asked] == [3, 3]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_index_never_stands_on_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statement 39: the log may, the index is kept in memory."""
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path}/shared nfs4 rw 0 0\nu@h:/ {tmp_path}/a\\040b fuse.sshfs rw\n"
    )
    assert is_on_network(tmp_path / "shared" / "x", mounts) and is_on_network(tmp_path / "a b", mounts)
    assert not is_on_network(tmp_path / "shared2", mounts) and not is_on_network(tmp_path, mounts)
    assert not is_on_network(tmp_path, tmp_path / "no such file")
    (tmp_path / "shared").mkdir()
    monkeypatch.setattr(response_cache, "is_on_network", lambda folder: str(folder).startswith(f"{tmp_path}/shared"))
    for expected in (3, 0):
        model = Counting()
        with opened(tmp_path / "shared") as cache:
            cache.execute(model, "generate_until", generations(3))
        assert len(model.asked) == expected
    assert list(tmp_path.rglob("*.db")) == []


# -- other processes


def test_a_second_opener_of_one_log_is_refused_at_once(tmp_path: Path) -> None:
    """A17, finding B22: each process has a rank of its own."""
    for door in (pair, opened):
        with door(tmp_path), pytest.raises(CacheError, match=r"another process writes .*rank0.jsonl"):
            door(tmp_path)


def test_a_cache_finds_what_another_process_wrote_meanwhile(tmp_path: Path) -> None:
    with opened(tmp_path) as cache, opened(tmp_path, rank=1) as other:
        other.execute(Counting(lambda _: "theirs"), "generate_until", generations(2))
        model = Counting()
        assert cache.execute(model, "generate_until", generations(2)) == ["theirs", "theirs"] and model.calls == 0


def forked(cache: ResponseCache, folder: Path, number: int) -> None:
    try:
        cache.execute(Counting(), "generate_until", generations(1))
    except CacheError as error:
        if "rank0.jsonl is open in another process" not in str(error):
            os._exit(2)
    cache.close()
    model = Counting()
    with opened(folder, rank=number) as own:
        own.execute(model, "generate_until", [*generations(10), *generations(10, 100 * number)])
    os._exit(len(model.asked) - 10)


def test_forked_workers_write_logs_of_their_own(tmp_path: Path) -> None:
    """A19: a forked process is refused the cache of its parent, and opens one with a rank of its own."""
    context = multiprocessing.get_context("fork")
    with opened(tmp_path) as cache:
        cache.execute(Counting(), "generate_until", generations(10))
        workers = [context.Process(target=forked, args=(cache, tmp_path, number)) for number in range(1, 5)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
        assert [worker.exitcode for worker in workers] == [0] * 4
        model = Counting()
        everything = [request for number in range(1, 5) for request in generations(10, 100 * number)]
        assert len(cache.execute(model, "generate_until", generations(10) + everything)) == 50
        assert model.calls == 0
    assert sum(summary(log).damaged for log in tmp_path.rglob("*.jsonl")) == 0


def test_a_forked_process_does_not_keep_the_lock_of_a_closed_cache(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    end = context.Event()
    with opened(tmp_path):
        worker = context.Process(target=end.wait, args=(60,))
        worker.start()
    try:
        opened(tmp_path).close()
    finally:
        end.set()
        worker.join()


@pytest.mark.parametrize(
    "request_",
    [
        Request("generate_until", ("question 0", {}), idx=2**64),
        Request("generate_until", ("question 0", {}), idx=-(2**63) - 1),
        Request("generate_until", ("question 0", {}), metadata={"task": "half \ud800"}),
    ],
)
def test_places_that_sqlite_lacks_are_kept(tmp_path: Path, request_: Request) -> None:
    model = Counting()
    for _ in range(2):
        with pair(tmp_path) as cache:
            assert cache.execute(model, "generate_until", [request_]) == ["answer to question 0"]
        lose_index(tmp_path)
    assert model.calls == 1


def test_an_integer_that_python_does_not_write_is_an_answer_that_is_not_kept(tmp_path: Path) -> None:
    with pair(tmp_path) as cache, pytest.warns(RuntimeWarning, match="integer of more digits than Python reads"):
        answers = cache.execute(Counting(lambda _: 10**5000), "generate_until", generations(1))
    assert answers[0] == 10**5000


@pytest.mark.parametrize("cause", ["long arguments", "a log that was cut"])
def test_a_long_first_line_costs_no_answer(tmp_path: Path, cause: str) -> None:
    arguments = {"system": "x y " * 20_000} if cause == "long arguments" else None
    model = Counting(lambda request: request.args[0] * 10_000)
    with ResponseCache.open(tmp_path, model="demo", model_args=arguments) as cache:
        cache.execute(model, "generate_until", generations(1))
        [log] = tmp_path.rglob("*.jsonl")
        if cause == "a log that was cut":
            os.truncate(log, 0)
        cache.execute(model, "generate_until", generations(1, 1))
    lose_index(tmp_path)
    model.calls = 0
    with ResponseCache.open(tmp_path, model="demo", model_args=arguments) as cache:
        cache.execute(model, "generate_until", generations(1, 1))
    assert model.calls == 0


def test_a_model_is_named_at_once_by_arguments_of_one_long_word() -> None:
    """In another process, since a search whose time grows with the square of a text holds this one up."""
    program = "from lmql_lite.cache.responses.keys import without_user; without_user('x' * 300_000)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=os.environ | {"PYTHONPATH": PATHS})


def test_a_cache_that_is_closed_while_it_writes_still_returns_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = pair(tmp_path)
    closing = threading.Thread(target=cache.close)
    write = LogWriter.append

    def ending(*_: object) -> None:
        raise RuntimeError("the interpreter starts no threads any more")

    def append(log: LogWriter, lines: list[bytes]) -> None:
        closing.start()
        closing.join(0.2)
        write(log, lines)

    monkeypatch.setattr(LogWriter, "append", append)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", ending)
    assert cache.execute(Counting(), "generate_until", generations(1)) == ["answer to question 0"]
    closing.join()
    monkeypatch.undo()
    assert all_right(tmp_path, 1) == 0


@pytest.mark.parametrize("mode", ["ro", "refresh", "off"])
def test_equal_requests_in_flight_are_one_where_no_answer_is_kept(tmp_path: Path, mode: Any) -> None:
    calls = 0

    class Model:
        async def generate_until(self, requests: list[Request]) -> list[str]:
            nonlocal calls
            calls += 1
            await asyncio.sleep(0)
            return ["answer"] * len(requests)

    async def ask() -> list[list[str]]:
        with pair(tmp_path, policy=CachePolicy(mode=mode)) as cache:
            return await asyncio.gather(*(cache.aexecute(Model(), "generate_until", generations(1)) for _ in range(8)))

    assert asyncio.run(ask()) == [["answer"]] * 8
    assert calls == 1


def test_an_answer_that_is_being_written_is_no_damage(tmp_path: Path) -> None:
    """A reader of another rank sees a line that is not whole yet: it waits for the rest."""
    with opened(tmp_path) as cache:
        cache.execute(Counting(), "generate_until", generations(2))
    log = next(tmp_path.rglob("*.jsonl"))
    whole = log.read_bytes()
    log.write_bytes(whole[:-30])
    with opened(tmp_path, rank=1) as cache:
        assert cache.lookup(generation(0)) is not None and cache.lookup(generation(1)) is None
        log.write_bytes(whole)
        assert cache.lookup(generation(1)) is not None


def test_memory_stays_flat_while_answers_are_stored(tmp_path: Path) -> None:
    """A22: rows and lines leave memory as they are written."""
    with pair(tmp_path) as cache:
        cache.execute(Counting(), "generate_until", generations(1000))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for start in range(1000, 21_000, 1000):
            cache.execute(Counting(), "generate_until", generations(1000, start))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000


def test_a_line_ends_with_its_checksum(tmp_path: Path) -> None:
    line = filled(tmp_path, 1).read_bytes().splitlines()[-1]
    assert line.endswith(b',"crc32":"%08x"}' % zlib.crc32(line[:-20]))
