"""`.tokens` files when things go wrong, and what several processes have of one: nothing wrong is read, and nothing that
was acknowledged is lost (law 4)."""

from __future__ import annotations

import asyncio
import functools
import gc
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.cache.tokens import tree_file
from lmql_lite.cache.tokens.inspect import cleared, compacted, merged, read_file, write_new
from lmql_lite.cache.tokens.nodes import Node
from lmql_lite.cache.tokens.recorded import line_of_row
from lmql_lite.cache.tokens.tree_file import APPLICATION, VERSION
from lmql_lite.cache.tokens.trees import ModelTrees
from lmql_lite.errors import CacheError
from tests.cache.tokens.process import VOCABULARY, Process, at, head, processes, said

FILE = Path("x.tokens")
COUNT = 'sample(seed=3, temperature=2.0)\n"Say:[A]" where len(A) == 6\n"Then:[B]" where len(B) == 6'


def run(source: str, *, cache: object = "x.tokens", seed: int = 0, **options: object) -> lq.Result:
    model = lq.ScriptedModel("x", seed=seed, certainty=0)
    given = {"model": model, "session": lq.Session(), "cache": cache, **options}
    return lq.run_sync(source, **given)


# what is no file of ours


def foreign_database(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE notes (text TEXT)")


def of_version(version: int, path: Path) -> None:
    write_new(path, [])
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: path.write_text("my notes, worth more than tokens"), "is not a .tokens file"),
        (lambda path: path.write_bytes(b"\0" * 5000), "is not a .tokens file"),
        (foreign_database, "a database of another program"),
        (functools.partial(of_version, VERSION + 1), "was written by a newer lmql-lite"),
        (functools.partial(of_version, VERSION - 1), "in a format that is no longer read"),
        (lambda path: path.write_bytes(b"\x93tokens\n\1" + bytes(99)), "in a format that is no longer read"),
        (Path.mkdir, "is a directory"),
        (os.mkfifo, "is a device, pipe or socket"),
        (
            lambda path: path.symlink_to("nowhere/y"),
            "is a link that leads nowhere|its folder does not exist|does not exist",
        ),
    ],
    ids=["text", "zeros", "database", "newer", "earlier", "version 1", "folder", "pipe", "link"],
)
@pytest.mark.parametrize("mode", ["rw", "ro"])
def test_what_is_no_tokens_file_is_refused_and_left_as_it_is(
    make: Callable[[Path], object], sentence: str, mode: str
) -> None:
    make(FILE)
    before = FILE.read_bytes() if FILE.is_file() else None
    names = sorted(os.listdir())
    with pytest.raises(CacheError, match=sentence) as caught:
        run('"[X]" where len(X) < 3', cache_mode=mode)
    assert caught.value.hint
    assert sorted(os.listdir()) == names and (before is None or FILE.read_bytes() == before)


def test_a_missing_folder_and_a_name_that_no_file_can_have_are_named() -> None:
    with pytest.raises(CacheError, match="its folder does not exist"):
        run('"[X]" where len(X) < 3', cache="no/x.tokens")
    with pytest.raises(CacheError, match="cannot be opened"):
        run('"[X]" where len(X) < 3', cache=f"{'x' * 300}.tokens")


# files and folders that may not be written, full disks, locks


def test_a_file_that_may_not_be_written_is_read_and_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(COUNT)
    before = FILE.read_bytes()
    monkeypatch.setattr(tree_file.os, "access", lambda path, mode: mode != os.W_OK)
    again = run(COUNT)
    assert again.prompt == first.prompt and again.usage.forward_passes == 0
    other = run('"Other:[X]" where len(X) < 3')
    assert other.usage.forward_passes and FILE.read_bytes() == before
    for result in (again, other):
        assert result.notices == ("x.tokens: cannot be written: new entries are not kept",)


def test_a_folder_that_may_not_be_written_gets_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_file.os, "access", lambda path, mode: mode != os.W_OK)
    result = run(COUNT)
    assert result.notices == ("x.tokens: cannot be created: new entries are not kept",) and not FILE.exists()


def test_a_full_disk_keeps_what_was_whole_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(COUNT)
    with closing(sqlite3.connect(FILE, isolation_level=None)) as database:
        pages = database.execute("PRAGMA page_count").fetchone()[0]
    connect = sqlite3.connect

    def limited(*place: Any, **options: Any) -> sqlite3.Connection:
        database = connect(*place, **options)
        database.execute(f"PRAGMA max_page_count = {pages}")
        return database

    monkeypatch.setattr(sqlite3, "connect", limited)
    session, model = lq.Session(), lq.ScriptedModel("x", certainty=0)
    long = '"Long:[X]" where len(X) == 200'
    full = lq.run_sync(long, model=model, session=session, cache="x.tokens")
    assert full.notices == ("x.tokens: cannot be written, new entries are not kept (database or disk is full)",)
    monkeypatch.undo()
    assert run(COUNT).prompt == first.prompt and run(COUNT).usage.forward_passes == 0


def test_a_lock_that_is_never_given_back_costs_persistence_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_file, "LOCK_SECONDS", 0.05)
    first = run(COUNT)
    holder = sqlite3.connect(FILE, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    other = run('"Other:[X]" where len(X) < 3')
    assert other.notices == ("x.tokens: is locked by another process: new entries were not kept",)
    assert run(COUNT).prompt == first.prompt
    holder.close()
    assert run('"Other:[X]" where len(X) < 3').usage.forward_passes


def test_what_could_not_be_written_is_written_with_what_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = ["disk I/O error"]

    class Failing(sqlite3.Connection):
        def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if failures:
                raise sqlite3.OperationalError(failures.pop())
            return super().executemany(sql, *values)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Failing))

    async def work(one: Process, other: Process) -> None:
        one.tree.add_scores(at(one.tree, 1, 2), head(7), run=1)
        assert not await one.trees.save("model", "a model", VOCABULARY)
        await one.learn(8, 1, 2, 3)
        await other.trees.follow()
        assert (said(other.tree, 1, 2), said(other.tree, 1, 2, 3)) == (7, 8)

    processes(2, work)


@pytest.mark.parametrize("is_on_network", [False, True])
def test_the_write_ahead_log_is_used_where_the_file_system_can(
    is_on_network: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_file, "is_on_network", lambda folder: is_on_network)
    first = run(COUNT)
    with closing(sqlite3.connect(FILE, isolation_level=None)) as database:
        mode = database.execute("PRAGMA journal_mode").fetchone()[0]
        assert database.execute("PRAGMA application_id").fetchone()[0] == APPLICATION
    assert mode == ("delete" if is_on_network else "wal")
    assert run(COUNT).prompt == first.prompt and run(COUNT).usage.forward_passes == 0


# damage


def grown() -> list[tuple[int, ...]]:
    """Paths of 100 runs of 60 nodes, each from the root or from a node of an earlier run."""
    dice, paths = random.Random(7), []

    async def work(one: Process) -> None:
        ends: list[tuple[int, ...]] = [()]
        for _ in range(100):
            path = list(dice.choice(ends))
            for _ in range(60):
                here = at(one.tree, *path)
                one.tree.add_scores(here, head(token_after(path)), run=1)
                path.append(dice.randrange(VOCABULARY))
            ends.append(tuple(path[: len(path) - dice.randrange(60)]))
            await one.save()
            paths.append(tuple(path))

    processes(1, work)
    return paths


def token_after(path: list[int] | tuple[int, ...]) -> int:
    return sum((place + 1) * token for place, token in enumerate(path)) % VOCABULARY


def known(path: Path, paths: list[tuple[int, ...]]) -> tuple[int, int]:
    """Numbers of places on paths that a file knows, and of those it is wrong about."""
    found, wrong, seen = 0, 0, set[tuple[int, ...]]()

    async def work(reader: Process) -> None:
        nonlocal found, wrong
        await reader.trees.follow()
        for whole in paths:
            node: Node = reader.tree.root
            for depth, token in enumerate(whole):
                if whole[:depth] not in seen:
                    seen.add(whole[:depth])
                    scores = reader.tree.scores(node)
                    if scores is not None:
                        found += 1
                        wrong += scores.top_k().ids.item(0) != token_after(whole[:depth])
                node = reader.tree.extend(node, token)

    processes(1, work, path)
    return found, wrong


@pytest.mark.slow
def test_a_flipped_bit_costs_hardly_anything_and_is_never_read_as_something_else() -> None:
    """LMQL_LITE_FLIPS=300 for the long one."""
    paths, dice = grown(), random.Random(1)
    data, (everything, wrong) = FILE.read_bytes(), known(FILE, paths)
    assert everything > 5000 and not wrong
    lost = []
    for _ in range(int(os.environ.get("LMQL_LITE_FLIPS", "12"))):
        damaged = bytearray(data)
        damaged[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        path = Path("damaged.tokens")
        path.write_bytes(damaged)
        try:
            found, wrong = known(path, paths)
        except CacheError:  # our own mark was flipped
            found, wrong = 0, 0
        assert not wrong
        lost.append((everything - found) / everything)
        for each in Path().glob("damaged.tokens*"):
            each.unlink()
    assert sorted(lost)[len(lost) // 2] <= 0.001, sorted(lost)


def exchange_neighbours(first: int) -> None:
    """Exchanges neighbours in the index: after the row of a place comes that of a smaller one, as if it were another
    row of the same place."""
    with closing(sqlite3.connect(FILE)) as database:
        root = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'by_place'").fetchone()[0]
        size = database.execute("PRAGMA page_size").fetchone()[0]
    data, page = bytearray(FILE.read_bytes()), size * (root - 1)
    cells = int.from_bytes(data[page + 3 : page + 5], "big")
    assert data[page] == 10 and cells > 10  # a leaf
    for cell in range(first, cells - 1, 2):
        at = page + 8 + 2 * cell
        data[at : at + 4] = data[at + 2 : at + 4] + data[at : at + 2]
    FILE.write_bytes(data)


@pytest.mark.parametrize("first", [0, 1])
def test_an_index_that_leads_to_the_row_of_another_place_is_a_miss(first: int) -> None:
    before = run(COUNT)
    exchange_neighbours(first)
    again = run(COUNT)
    assert again.prompt == before.prompt and again.usage.forward_passes > 0


@pytest.mark.parametrize("column", ["place", "parent", "tokens", "question", "value", "model", "checksum"])
def test_a_row_that_was_changed_anywhere_is_a_miss_law_5(column: str) -> None:
    first = run(COUNT)
    with closing(sqlite3.connect(FILE, isolation_level=None)) as database:
        database.execute("INSERT INTO model VALUES (2, 'another', 'another', 3, 1)")
        changed = f"x'01' || {column}" if column in ("tokens", "question", "value") else f"{column} + 1"
        database.execute(f"UPDATE entry SET {column} = {changed}")
    again = run(COUNT)
    assert again.prompt == first.prompt and again.usage.forward_passes == first.usage.forward_passes


def test_a_row_of_another_path_with_the_same_hash_is_a_miss_law_5(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash of a path has so few bits here that many paths share one."""
    monkeypatch.setattr("lmql_lite.cache.tokens.tree.place_below", lambda above, token: (3 * above + token) % 5 + 1)

    async def work(one: Process, other: Process) -> None:
        for token in range(30):
            await one.learn(token, token)
        await other.trees.follow()
        known = [said(other.tree, token) for token in range(30)]
        assert all(found in (None, token) for token, found in enumerate(known)) and any(known)

    processes(2, work)


def test_pages_that_cannot_be_read_are_left_out_of_a_new_file() -> None:
    paths = grown()
    data = bytearray(FILE.read_bytes())
    with closing(sqlite3.connect(FILE, isolation_level=None)) as database:
        leaf = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'entry'").fetchone()[0]
    data[4096 * (leaf + 9) : 4096 * (leaf + 10)] = bytes(4096)
    FILE.write_bytes(data)
    with pytest.raises(CacheError, match="is damaged so that it cannot be changed") as caught:
        compacted(FILE)
    assert caught.value.hint == "write what can be read to a new file: lq cache merge x.tokens -o new.tokens"
    write_new("new.tokens", merged([FILE]).rows)
    assert read_file("new.tokens").is_sound
    found, wrong = known(Path("new.tokens"), paths)
    assert found > 5000 and not wrong


# Windows renames no file that is open, and replaces none


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rule, for files that this process has open."""
    opened, replace = Path("/proc/self/fd"), os.replace
    if not opened.is_dir():
        pytest.skip("the open files of a process are not listed here")

    def checked(source: str | Path, target: str | Path) -> None:
        gc.collect()  # files of sessions that nothing holds are closed
        links = [os.path.realpath(each) for each in opened.iterdir()]
        for path in (source, target):
            if os.path.realpath(path) in links:
                raise PermissionError(13, "The process cannot access the file", str(path))
        replace(source, target)

    for name in ("replace", "rename"):
        monkeypatch.setattr(os, name, checked)


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open elsewhere"])
@pytest.mark.parametrize("change", [None, compacted, cleared], ids=["run", "compact", "clear"])
def test_a_header_that_is_damaged_is_set_aside_unless_another_process_has_the_file_open(
    change: Callable[[Path], object] | None, is_open: bool, windows: None
) -> None:
    first = run(COUNT)
    data = bytes(16) + FILE.read_bytes()[16:]
    FILE.write_bytes(data)
    for companion in ("-wal", "-shm"):
        Path(f"x.tokens{companion}").unlink(missing_ok=True)
    aside = Path("x.tokens.damaged")
    sentence = "is damaged and cannot be used" if is_open else "was renamed to x.tokens.damaged"
    with open(FILE if is_open else os.devnull, "rb"):
        if change:
            with pytest.raises(CacheError, match=sentence) as caught:
                change(FILE)
            assert caught.value.hint
        else:
            again = run(COUNT)
            assert again.prompt == first.prompt and again.usage.forward_passes
            assert sentence in again.notices[0] and len(again.notices) == 1
    assert aside.exists() != is_open and (FILE if is_open else aside).read_bytes() == data
    if not is_open and not change:
        assert run(COUNT).usage.forward_passes == 0, "a new file was begun"


# several processes


WRITER = """
import asyncio, os, sys
import numpy as np
from lmql_lite.cache.tokens.trees import ModelTrees
from tests.cache.tokens.process import VOCABULARY, at, head

async def main():
    who, log = int(sys.argv[1]), os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    trees = await ModelTrees.open("x.tokens")
    tree = trees.tree("model")
    for number in range(100_000):
        for step in range(5):
            node = at(tree, who % 50, number % 50, number // 50, step)
            tree.add_scores(node, head((who + number + step) % 50), run=1)
        assert await trees.save("model", "a model", VOCABULARY), trees.notices
        os.write(log, f"{who} {number}\\n".encode())

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_writers_that_are_killed_lose_nothing_acknowledged(root: Path) -> None:
    """LMQL_LITE_KILLS=50 for the long one."""
    kills, dice = int(os.environ.get("LMQL_LITE_KILLS", "6")), random.Random(1)
    started, errors = 0, Path("errors")

    def start() -> subprocess.Popen[bytes]:
        nonlocal started
        started += 1
        with errors.open("ab") as sink:
            command = [sys.executable, "-c", WRITER, str(started), f"{started}.ack"]
            return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(root)}, stderr=sink)

    writers = [start() for _ in range(6)]
    try:
        while len(list(Path().glob("*.ack"))) < 6:
            assert not errors.read_text()
            time.sleep(0.05)
        for _ in range(kills):
            time.sleep(dice.uniform(0.05, 0.35))
            victim = dice.randrange(6)
            writers[victim].send_signal(signal.SIGKILL)
            writers[victim].wait()
            writers[victim] = start()
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    lines = [line for file in Path().glob("*.ack") for line in file.read_text().splitlines()]
    acknowledged = [tuple(map(int, line.split())) for line in lines]
    assert len(acknowledged) > 50 and not errors.read_text()

    async def check(reader: Process) -> None:
        await reader.trees.follow()
        for who, number in acknowledged:
            for step in range(5):
                path = who % 50, number % 50, number // 50, step
                assert said(reader.tree, *path) == (who + number + step) % 50
        assert not reader.trees.notices

    processes(1, check)
    assert read_file(FILE).is_sound


def busy(folder: str, who: int, seconds: float, sent: multiprocessing.Queue[object]) -> None:
    """16 runs at a time on one file."""
    os.chdir(folder)

    async def main() -> None:
        model, session, notices, runs = lq.ScriptedModel("x", certainty=0), lq.Session(), set[str](), 0
        query = lq.compile('"{asked}:[A]" where len(A) < 6')
        end = time.monotonic() + seconds

        async def rows(number: int) -> None:
            nonlocal runs
            while time.monotonic() < end:
                asked = {"asked": f"{who} {number} {runs}"}
                result = await query.run(asked, model=model, session=session, cache="x.tokens")
                notices.update(result.notices)
                runs += 1

        await asyncio.gather(*(rows(number) for number in range(16)))
        sent.put((runs, sorted(notices)))

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_with_many_runs_share_a_file_without_errors(
    method: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMQL_LITE_BUSY_SECONDS=60 for the long one. After a fork each process opens the file for itself."""
    run('"before:[A]" where len(A) < 6')
    session = lq.Session()
    lq.run_sync('"fork:[A]" where len(A) < 6', model=lq.ScriptedModel("x"), session=session, cache="x.tokens")
    monkeypatch.setattr(sys, "path", [*sys.path, str(root)])  # a spawned process imports this module by its name
    context = multiprocessing.get_context(method)
    sent, seconds = context.Queue(), float(os.environ.get("LMQL_LITE_BUSY_SECONDS", "1"))
    others = [context.Process(target=busy, args=(os.getcwd(), who, seconds, sent)) for who in range(4)]
    for each in others:
        each.start()
    found = [sent.get(timeout=seconds + 60) for _ in others]
    for each in others:
        each.join()
    assert all(runs and not notices for runs, notices in found), found
    lq.run_sync('"after:[A]" where len(A) < 6', model=lq.ScriptedModel("x"), session=session, cache="x.tokens")
    assert read_file(FILE).is_sound


def test_a_file_alone_has_everything_when_the_runs_have_ended() -> None:
    session, model = lq.Session(), lq.ScriptedModel("x", certainty=0)
    first = lq.run_sync(COUNT, model=model, session=session, cache="x.tokens")
    shutil.copy("x.tokens", "copy.tokens")
    again = run(COUNT, cache="copy.tokens", cache_mode="replay")
    assert again.prompt == first.prompt and again.usage.forward_passes == 0
    assert lq.run_sync(COUNT, model=model, session=session, cache="x.tokens").usage.forward_passes == 0


def test_nothing_is_written_on_the_thread_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are look-ups alone, which wait for no writer (S34)."""
    by_thread: dict[bool, set[str]] = {False: set(), True: set()}

    class Watched(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            by_thread[threading.get_ident() == loop].add(sql.split()[0])
            return super().execute(sql, *values)

        def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
            by_thread[threading.get_ident() == loop].add(sql.split()[0])
            return super().executemany(sql, *values)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Watched))
    loop = 0

    async def work() -> None:
        nonlocal loop
        loop = threading.get_ident()
        model = lq.ScriptedModel("x", certainty=0)
        for _ in range(2):
            async with lq.Session() as session:
                await asyncio.gather(*(lq.run(COUNT, model=model, session=session, cache="x.tokens") for _ in range(4)))

    asyncio.run(work())
    assert by_thread[True] <= {"SELECT"}
    assert {"BEGIN", "INSERT", "COMMIT", "PRAGMA", "SELECT"} <= by_thread[False]


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_that_is_removed_or_replaced_is_opened_again(how: str) -> None:
    async def work(one: Process, other: Process) -> None:
        await one.learn(7, 1)
        await other.trees.follow()
        assert said(other.tree, 1) == 7
        if how == "replaced":
            write_new("new.tokens", merged([FILE]).rows)
            os.replace("new.tokens", FILE)
        else:
            FILE.unlink()
        await one.learn(8, 2)
        await other.trees.follow()
        assert said(other.tree, 2) == 8
        assert said(other.tree, 1) == 7  # from memory, or from the file that took its place
        await other.save()
        late = await ModelTrees.open(FILE)
        await late.follow()
        assert (said(late.tree("model"), 1), said(late.tree("model"), 2)) == (7, 8)
        await late.close()

    processes(2, work)


def test_a_link_is_followed_and_stays_a_link() -> None:
    link = Path("link.tokens")
    run('"before:[A]" where len(A) < 6', cache=str(FILE))
    link.symlink_to(FILE)
    run(COUNT, cache=str(link))
    compacted(link)
    assert link.is_symlink() and not FILE.is_symlink()
    assert run(COUNT, cache_mode="replay").usage.forward_passes == 0


# the cap of a file


@pytest.mark.parametrize("max_bytes", [60_000, 120_000])
def test_a_file_above_its_cap_loses_the_runs_that_were_not_used_for_the_longest_time(max_bytes: int) -> None:
    cache = lq.TokenCache(FILE, max_file_bytes=max_bytes)
    sizes = []
    for number in range(60):
        run(f'"{number} Say:[A]" where len(A) == 12', cache=cache)
        sizes.append(FILE.stat().st_size)
    assert max(sizes) <= 1.2 * max_bytes and sizes != sorted(sizes)
    assert run('"59 Say:[A]" where len(A) == 12', cache_mode="ro").usage.forward_passes == 0
    assert run('"0 Say:[A]" where len(A) == 12', cache_mode="ro").usage.forward_passes
    found = read_file(FILE)
    places = {0, *(row.place for *_, row in found.rows)}
    assert found.is_sound and all(row.parent in places for *_, row in found.rows), "no row lacks what it continues"


def test_what_is_read_counts_as_used_when_the_run_writes() -> None:
    cache = lq.TokenCache(FILE, max_file_bytes=80_000)
    base = '"base Say:[A]" where len(A) == 12'
    run(base, cache=cache)
    for number in range(60):
        run(f'{base}\n"{number}:[B]" where len(B) == 6', cache=cache)
    assert run(base, cache_mode="ro").usage.forward_passes == 0


# JSON lines


def test_json_lines_go_out_and_in() -> None:
    run(COUNT)
    run('"Q:[X]" where len(X) < 9 and not "e" in X')
    lines, rows = Path("x.jsonl"), read_file(FILE).rows
    lines.write_bytes(b"".join(map(line_of_row, rows)))
    assert read_file(lines).rows == rows
    write_new("y.tokens", merged([lines]).rows)
    assert sorted(read_file("y.tokens").rows, key=repr) == sorted(rows, key=repr)
    whole = lines.read_bytes()
    changed = [whole.replace(one, other, 1) for one, other in ((b'"value":', b'"valve":'), (b":[", b":[9,"))]
    for wrong in (b"{", b"[]", *changed):
        lines.write_bytes(wrong if len(wrong) > 2 else whole + wrong + b"\n")
        found = read_file(lines)
        assert found.damage == ["1 damaged line"] and len(found.rows) >= len(rows) - 1
