"""Whole response logs: summary, check, pruning, export, and what joins them: merges, runs and imports."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lmql_lite.cache.responses.keys import model_hash
from lmql_lite.cache.responses.request import LOGLIKELIHOOD
from lmql_lite.cache.responses.store import (
    RUNS,
    ModelFolder,
    ResponseStore,
    StoreFiles,
    checksum,
    is_foreign,
    remove_index,
    servable_row,
)
from lmql_lite.cache.responses.values import decoded, encoded
from lmql_lite.errors import CacheError
from lmql_lite.store.files import COMPANIONS, lock_file
from lmql_lite.store.log import (
    ATTEMPT,
    BLOCK,
    RESPONSE,
    SCHEMA,
    SUFFIX,
    LogWriter,
    line_of,
    opening,
    read_lines,
    rewrite,
)

POLL_SECONDS = 0.02
RUN_IDS = ("LMMS_CACHE_RUN_ID", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
OnConflict = Literal["first", "newest", "error"]
Record = dict[str, Any]
_KEY = re.compile(r"[0-9a-f]{64}")


# One log -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LogSummary:
    """Contents of one log in numbers. `sampled` and `rejected` answers are not served; `damaged` counts lines and rows.
    In the log of a data-set run, finished rows count as answers and failed rows as rejected."""

    path: Path
    model: str = ""
    model_hash: str = ""
    answers: int = 0
    superseded: int = 0
    sampled: int = 0
    rejected: int = 0
    other: int = 0
    damaged: int = 0
    bytes: int = 0
    oldest: float = 0.0
    newest: float = 0.0
    tasks: dict[str, int] = field(default_factory=dict)


def find_logs(path: Path) -> list[Path]:
    """Logs under a folder, or the log at a path, which may be that of its index. Raises CacheError if there is none."""
    if path.is_dir():
        found = sorted(path.rglob(f"*{SUFFIX}"))
    else:
        found = [log] if (log := path.with_suffix(SUFFIX)).is_file() else []
    if not found:
        raise CacheError(f"{path} holds no response log", hint="name the folder that the cache was opened with")
    return found


def summary(path: Path) -> LogSummary:
    """Contents of a log in numbers. Raises CacheError for a log of a newer version, or one that cannot be read."""
    found, keys = LogSummary(path), set[str]()
    with _readable(path):
        found.bytes = path.stat().st_size
        for line in read_lines(path):
            record = line.record
            if record is None:
                found.damaged += 1
                continue
            found.model_hash = found.model_hash or record.get("model_hash", "")
            key, task = _answer(record, found)
            if key:
                found.superseded += key in keys
                if task is not None:
                    found.tasks[task] = found.tasks.get(task, 0) + (key not in keys)
                keys.add(key)
                found.oldest = min(found.oldest or record["created_at"], record["created_at"])
                found.newest = max(found.newest, record["created_at"])
    found.answers = len(keys)
    return found


def _answer(record: Record, found: LogSummary) -> tuple[str, str | None]:
    """Key and task of an answer, which may be a row of a data-set run. Other records are counted, and have no key."""
    kind = record.get("kind")
    if kind == ATTEMPT and not record.get("error"):
        return record["key"], None
    if kind == "cache":
        found.model = record.get("model_fingerprint", "")
    elif kind == ATTEMPT:
        found.rejected += 1
    elif kind != RESPONSE:
        found.other += 1
    elif not record.get("deterministic"):
        found.sampled += 1
    elif (row := servable_row(record)) is None:
        found.rejected += 1
    else:
        return row.cache_key, row.task_name
    return "", None


def damaged_rows(log: Path) -> int:
    """Number of damaged rows in the index beside a log; 1 if the whole index cannot be read."""
    index = log.with_suffix(".db")
    if not index.is_file():
        return 0
    try:
        with closing(sqlite3.connect(f"{index.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as database:
            problems = database.execute("PRAGMA quick_check").fetchone()[0] != "ok"
            rows = database.execute("SELECT cache_key, response, checksum FROM responses")
            return int(problems) + sum(1 for row in rows if checksum(*row[:2]) != row[2])
    except (sqlite3.Error, TypeError):
        return 1


class LogInUse(CacheError):
    """Another process writes the log."""


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CacheError(f"{path} cannot be read ({error.strerror})") from error


@contextmanager
def writing(log: Path) -> Iterator[LogWriter]:
    """Holds the lock of a log, so that no cache writes it meanwhile. Raises LogInUse if one does, and CacheError."""
    try:
        held = LogWriter(log, b"")
    except BlockingIOError:
        raise LogInUse(f"{log} is in use by another process", hint="wait until it has ended") from None
    except OSError as error:
        raise CacheError(f"{log} cannot be written ({error.strerror})") from error
    with closing(held):
        yield held


def prune(log: Path, keep: Callable[[Record], bool], max_bytes: int | None = None) -> int:
    """Drops the records that `keep` rejects, then the oldest until a log has at most `max_bytes`. Returns their number.

    Damaged lines are dropped too. Raises CacheError if a cache writes the log.
    """
    with writing(log), _readable(log):
        first, sizes, dropped = opening("", ""), [], 0
        for line in read_lines(log):
            record = line.record
            if record is not None and record.get("kind") == "cache":
                first = opening(record.get("model_fingerprint", ""), record.get("model_hash", ""))
            elif record is None or not keep(record):
                dropped += 1
            else:
                sizes.append(len(line.data) + 1)
        excess, skipped = len(first) + sum(sizes) - max_bytes if max_bytes is not None else 0, 0
        while excess > 0 and skipped < len(sizes):
            excess -= sizes[skipped]
            skipped += 1
        if not dropped and not skipped:
            return 0

        def kept() -> Iterator[bytes]:
            for line in read_lines(log):
                if line.record is not None and line.record.get("kind") != "cache" and keep(line.record):
                    yield line.data + b"\n"

        rewrite(log, chain([first], islice(kept(), skipped, None)))
        remove_index(log.with_suffix(".db"))
        return dropped + skipped


def exported(log: Path) -> Iterator[Record]:
    """Servable answers of a log, as plain records that lmms-eval and `lq responses import` read."""
    with _readable(log):
        for line in read_lines(log):
            if line.record is not None and servable_row(line.record) is not None:
                yield {name: value for name, value in line.record.items() if name != "crc32"}


# Logs joined into one ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class MergeReport:
    """Numbers of answers of all shards, by outcome. A conflict is a key to which two shards have different answers."""

    inserted: int = 0
    duplicates: int = 0
    conflicts: int = 0
    bad: int = 0
    missing: int = 0


class _Known(NamedTuple):
    """The answer that counts for a key, so far."""

    shard: int
    created_at: float
    digest: int


class _Merge:
    """Choice of the answers that count: the first one of a key, or one that was refreshed later."""

    def __init__(self, on_conflict: OnConflict) -> None:
        self.report = MergeReport()
        self.model = self.fingerprint = ""
        self._on_conflict = on_conflict
        self._known: dict[str, _Known] = {}
        self._shard = 0

    def lines(self, path: Path, records: Iterable[Record | None]) -> Iterator[bytes]:
        """Lines of a shard's answers that count. The first shard begins with the opening of a log."""
        self._shard += 1
        for record in records:
            if record is None:
                self.report.bad += 1
                continue
            model = str(record.get("model_hash", ""))
            if not self.model:
                self.model, self.fingerprint = model, record.get("model_fingerprint", "")
                yield opening(self.fingerprint, model)
            if model != self.model:
                raise CacheError(
                    f"{path} has answers of another model than the shards before it", hint="merge each alone"
                )
            if (row := servable_row(record)) is None:
                continue
            mine = _Known(self._shard, row.created_at, zlib.crc32(row.response.encode()) ^ len(row.response) << 32)
            known = self._known.get(row.cache_key)
            if known is None:
                self.report.inserted += 1
            else:
                is_conflict = known.shard != mine.shard and known.digest != mine.digest
                self.report.duplicates += 1
                self.report.conflicts += is_conflict
                replaces = row.replaces or (is_conflict and self._on_conflict == "newest")
                if not replaces or mine.created_at <= known.created_at:
                    continue
                record = record | {"replaces": True}
            self._known[row.cache_key] = mine
            yield line_of(record)


def merge(shards: list[Path], output: Path, on_conflict: OnConflict = "first") -> MergeReport:
    """Joins shards into one; see `ResponseCache.merge_shards`."""
    target = output.with_suffix(SUFFIX)
    for path in shards:
        if os.path.realpath(path.with_suffix(SUFFIX)) == os.path.realpath(target):
            raise CacheError(f"{path} is an input and the output", hint="name another output")
    logs = [log for path in shards if (log := path.with_suffix(SUFFIX)).is_file()]
    if not logs and not target.is_file():
        raise CacheError("none of the shards exists, so nothing was written", hint="name .db or .jsonl files")
    report = _join({log: _records(log) for log in logs}, target, on_conflict)
    report.missing = len(shards) - len(logs)
    return report


def _join(shards: Mapping[Path, Iterable[Record | None]], target: Path, on_conflict: OnConflict) -> MergeReport:
    """Writes the answers of shards after those that a log has, and reads them into its index. After an error the output
    is as before."""
    index, merging = target.with_suffix(".db"), _Merge(on_conflict)
    if not target.exists() and is_foreign(index):
        raise CacheError(f"{index} is not an index of lmql_lite, so nothing was written", hint="name another output")

    def lines() -> Iterator[bytes]:
        if target.exists():
            for _ in merging.lines(target, _records(target)):
                pass  # the log itself is copied
            yield from _content(target)
        merging.report = MergeReport()
        for path, records in shards.items():
            yield from merging.lines(path, records)
        if on_conflict == "error" and merging.report.conflicts:
            raise CacheError(
                f"the shards contradict each other in {merging.report.conflicts:,} answers, so {target} was not "
                "written", hint="choose with --on-conflict first or --on-conflict newest",
            )  # fmt: skip

    with writing(target) if target.exists() else nullcontext():
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        rewrite(target, lines())
    place = StoreFiles(target, index, merging.fingerprint, merging.model, None, True)
    ResponseStore(place, lambda _: None).close()
    return merging.report


def _content(log: Path) -> Iterator[bytes]:
    """The bytes of a log, with a complete last line."""
    with open(log, "rb") as file:
        last = b"\n"
        while block := file.read(BLOCK):
            yield block
            last = block[-1:]
    if last != b"\n":
        yield b"\n"


def _records(log: Path) -> Iterator[Record | None]:
    """Records of a log; None for each damaged line."""
    return (line.record for line in read_lines(log))


def _records_of_index(index: Path) -> Iterator[Record | None]:
    """Records made from a copy of an index of lmms-eval, since SQLite may write beside a file that it reads. None for
    one that cannot be read."""
    names = ("cache_key", "request_type", "task_name", "doc_id", "idx", "gen_kwargs", "response", "created_at")
    with tempfile.TemporaryDirectory() as folder, suppress(sqlite3.Error):
        copy = Path(folder) / "copy.db"
        for companion in ("", COMPANIONS[0]):
            if (source := index.with_name(index.name + companion)).is_file():
                shutil.copyfile(source, copy.with_name(copy.name + companion))
        with closing(sqlite3.connect(copy)) as database:
            for row in database.execute(f"SELECT {', '.join(names)} FROM responses ORDER BY rowid"):
                yield {"kind": RESPONSE, "deterministic": True} | dict(zip(names, row, strict=True))
        return
    yield None


# Runs of several ranks -----------------------------------------------------------------------------------------------


def run_id(world_size: int) -> str:
    """Name of this run, the same in all its ranks.

    It is the first of `RUN_IDS` in the environment. Without one, several ranks are named after their master, and a
    single process gets a random name.
    """
    name = next(filter(None, map(os.environ.get, RUN_IDS)), None)
    if name is None and world_size == 1:
        return uuid.uuid4().hex
    address, port = os.environ.get("MASTER_ADDR", "master"), os.environ.get("MASTER_PORT", "0")
    name = name or f"{address}-{port}-ws{world_size}"
    return "".join(each if each.isalnum() or each in "-_." else "-" for each in name).strip("-._")[:128] or "run"


@dataclass(frozen=True, slots=True)
class RankOfRun:
    """One rank of a run, whose folder is `runs/<run>` in that of the model."""

    run: Path
    rank: int
    world_size: int

    @property
    def log(self) -> Path:
        return self.run / f"rank_{self.rank}{SUFFIX}"

    def done_mark(self, rank: int) -> Path:
        """File by which a rank says that it has finalized."""
        return self.run / f"rank_{rank}.done"

    def begin(self) -> None:
        with suppress(OSError):  # the folder cannot be written, which gave a warning already
            self.done_mark(self.rank).unlink(missing_ok=True)

    def end(self, seconds: float) -> tuple[MergeReport | None, list[int]]:
        """Marks the rank as finished. Rank 0 merges what is there once the others have finished, or after `seconds`,
        and runs that were killed. Returns the report, and the ranks that had not finished.

        Raises CacheError if the run itself is not merged, and OSError.
        """
        self.run.mkdir(parents=True, exist_ok=True)
        self.done_mark(self.rank).touch()
        if self.rank:
            return None, []
        missing = self._await_others(seconds)
        folder = ModelFolder(self.run.parents[1])
        with lock_file(folder.path / RUNS / ".lock", seconds) as held:
            if not held:
                raise CacheError(f"{self.run} is not merged: another process has been merging for {seconds:g} s")
            report = _moved(folder, self.run)
            for other in folder.runs():
                if other != self.run:
                    with suppress(CacheError, OSError):  # the next cache that reads it warns of the problem
                        _moved(folder, other)
        return report, missing

    def _await_others(self, seconds: float) -> list[int]:
        """Waits at most `seconds` until all ranks have finished. Returns the ranks that have not."""
        until = time.monotonic() + seconds
        while missing := [rank for rank in range(self.world_size) if not self.done_mark(rank).exists()]:
            if time.monotonic() >= until:
                break
            time.sleep(POLL_SECONDS)
        return missing


def _moved(folder: ModelFolder, run: Path) -> MergeReport:
    """Moves the answers of a run to the merged log. Logs that a process writes stay."""
    with ExitStack() as held:
        logs = []
        for log in sorted(run.glob(f"*{SUFFIX}")):
            with suppress(LogInUse):
                held.enter_context(writing(log))
                logs.append(log)
        filled = [log for log in logs if log.stat().st_size]
        report = merge(filled, folder.merged_log) if filled else MergeReport()
        for log in logs:
            remove_index(log.with_suffix(".db"))
            log.unlink()
    for mark in () if list(run.glob(f"*{SUFFIX}")) else run.glob("*.done"):
        mark.unlink()
    with suppress(OSError):  # a process still writes there
        run.rmdir()
    return report


# Import --------------------------------------------------------------------------------------------------------------


def take_over(sources: list[Path], folder: Path, fingerprint: str) -> MergeReport:
    """Imports logs and indexes of lmms-eval, or exported records, as answers of one model, into a separate log.

    A log is preferred to the index beside it. Lines need no checksum here. Raises CacheError, and writes nothing, for a
    source that is missing, of a newer version, or in the folder itself.
    """
    found: list[Path] = []
    for path in sources:
        if path.is_dir():
            logs = sorted(path.rglob(f"*{SUFFIX}"))
            found += logs + [each for each in sorted(path.rglob("*.db")) if each.with_suffix(SUFFIX) not in logs]
        elif path.is_file():
            found.append(path)
        else:
            raise CacheError(f"{path} does not exist, so nothing was imported", hint="name a folder, .jsonl or .db")
    target = folder / model_hash(fingerprint) / f"imported{SUFFIX}"
    for path in found:
        if os.path.realpath(path.parent) == os.path.realpath(target.parent):
            raise CacheError(f"{path} is an input, but is in the output folder", hint="import into another folder")
    return _join({path: _foreign_shard(path, fingerprint) for path in found}, target, "first")


def _foreign_shard(path: Path, fingerprint: str) -> Iterator[Record | None]:
    """Records of a source in this package's form; None for one whose answer may not be served."""
    ours = {"schema": SCHEMA, "model_hash": model_hash(fingerprint)}
    yield ours | {"kind": "cache", "model_fingerprint": fingerprint}
    for record in _foreign_records(path) if path.suffix == SUFFIX else _records_of_index(path):
        if record is None or record.get("kind", RESPONSE) == RESPONSE:
            yield record and _adopted(record, ours)


def _adopted(record: Record, ours: Record) -> Record | None:
    if not record.get("deterministic", True) or not _KEY.fullmatch(str(record.get("cache_key"))):
        return None
    missing: Record = {
        "idx": 0,
        "gen_kwargs": "{}",
        "created_at": time.time(),
        "content_hash": "",
        "task_fingerprint": "",
    }
    adopted = missing | record | ours | {"kind": RESPONSE, "deterministic": True}
    adopted.pop("replaces", None)
    try:
        if adopted["request_type"] == LOGLIKELIHOOD and isinstance(pair := decoded(adopted["response"]), list):
            adopted["response"] = encoded(tuple(pair))
    except (KeyError, TypeError, ValueError):
        return None
    return adopted if servable_row(adopted) is not None else None


def _foreign_records(log: Path) -> Iterator[Record | None]:
    """Records of JSON lines; None for a line that is none."""
    with open(log, "rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict):
                yield None
                continue
            if isinstance(schema := record.get("schema", SCHEMA), int) and schema > SCHEMA:
                raise CacheError(f"{log} was written by a newer version of lmql_lite", hint="update lmql_lite")
            yield record
