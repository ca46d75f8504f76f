"""Shards of one model joined into one log: by hand, and at the end of a run."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from lmql_lite.cache.responses.files import LogInUse, writing
from lmql_lite.cache.responses.index import is_foreign, remove_index, row_of
from lmql_lite.cache.responses.keys import model_hash
from lmql_lite.cache.responses.runs import RUNS, ModelFolder, await_ranks, done_mark
from lmql_lite.cache.responses.store import ResponseStore, StoreFiles
from lmql_lite.errors import CacheError
from lmql_lite.store.files import lock_file
from lmql_lite.store.log import RESPONSE, SCHEMA, SUFFIX, line_of, opening, read_lines, rewrite

OnConflict = Literal["first", "newest", "error"]
LINES_AT_ONCE = 4096


@dataclass(slots=True)
class MergeReport:
    """Numbers of answers of all shards, by outcome. A conflict is a key with two different answers."""

    inserted: int = 0
    duplicates: int = 0
    conflicts: int = 0
    bad: int = 0
    missing: int = 0


@dataclass(slots=True)
class _Winner:
    shard: int
    number: int
    created_at: float
    digest: int
    replaces: bool = False
    """True if the output has an older answer."""


def merge(shards: list[Path], output: Path, on_conflict: OnConflict) -> MergeReport:
    """Joins shards into one; see `ResponseCache.merge_shards`."""
    target, index = output.with_suffix(SUFFIX), output.with_suffix(".db")
    if not target.exists() and is_foreign(index):
        raise CacheError(f"{index} is not an index of lmql_lite, so nothing was written", hint="name another output")
    for path in shards:
        if os.path.realpath(path.with_suffix(SUFFIX)) == os.path.realpath(target):
            raise CacheError(f"{path} is an input and the output", hint="name another output")
    report, winners, model = MergeReport(), dict[str, _Winner](), ["", ""]
    with writing(target) if target.exists() else nullcontext() as log:
        is_there = log is not None or (index.is_file() and index.stat().st_size > 0)
        inputs = [target if log is not None else index, *shards] if is_there else shards
        for shard, path in enumerate(inputs):
            _weigh(shard, path, winners, report, model, is_output=is_there and not shard, on_conflict=on_conflict)
        if report.missing == len(inputs):
            raise CacheError("none of the shards exists, so nothing was written", hint="name .db or .jsonl files")
        if on_conflict == "error" and report.conflicts:
            raise CacheError(
                f"the shards contradict each other in {report.conflicts:,} answers, so {output} was not written",
                hint="choose with --on-conflict first or --on-conflict newest",
            )
        kept = {(winner.shard, winner.number): winner.replaces for winner in winners.values()}
        new = _kept_lines(inputs, kept, first=0 if log is None else 1)
        if log is None:
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            rewrite(target, chain([opening(*model)], new))
            remove_index(index)
        else:
            while lines := list(islice(new, LINES_AT_ONCE)):
                log.append(lines)
    place = StoreFiles(target, index, model[0], model[1], None, True)
    ResponseStore(place, lambda _: None).close()
    return report


def _kept_lines(inputs: list[Path], kept: dict[tuple[int, int], bool], *, first: int) -> Iterator[bytes]:
    """Lines of the winning answers, from the shard with the number `first` on."""
    for shard, path in list(enumerate(inputs))[first:]:
        for number, record in enumerate(_records(path, MergeReport())):
            if (replaces := kept.get((shard, number))) is not None:
                plain = {name: value for name, value in record.items() if name != "replaces"}
                yield line_of(plain | {"replaces": True} if replaces else plain)


def _weigh(
    shard: int,
    path: Path,
    winners: dict[str, _Winner],
    report: MergeReport,
    model: list[str],
    *,
    is_output: bool,
    on_conflict: OnConflict,
) -> None:
    """Chooses the answer that counts for each key of a shard."""
    for number, record in enumerate(_records(path, report)):
        ours = str(record.get("model_hash", ""))
        if model[1] and ours != model[1]:
            raise CacheError(f"{path} has answers of another model than the shards before it", hint="merge each alone")
        model[1] = ours
        if record["kind"] == "cache":
            model[0] = model[0] or record.get("model_fingerprint", "")
        if (row := row_of(record, ours)) is None:
            continue
        mine = _Winner(shard, number, row.created_at, zlib.crc32(row.response.encode()) ^ len(row.response) << 32)
        known = winners.get(row.cache_key)
        if known is None:
            winners[row.cache_key] = mine
            report.inserted += not is_output
            continue
        is_conflict = known.shard != shard and known.digest != mine.digest
        report.duplicates += known.shard != shard
        report.conflicts += is_conflict
        # a refreshed answer counts, as for a cache that reads these logs
        if mine.created_at > known.created_at and (row.replaces or (is_conflict and on_conflict == "newest")):
            mine.replaces = known.replaces or known.shard != shard
            winners[row.cache_key] = mine


def _records(path: Path, report: MergeReport) -> Iterator[dict[str, Any]]:
    """Records of a shard's log, or of its index if it has no log."""
    log = path.with_suffix(SUFFIX)
    if log.is_file():
        for line in read_lines(log):
            if line.record is None:
                report.bad += 1
            else:
                yield line.record
    elif path.is_file():
        try:
            yield from records_of_index(path)
        except sqlite3.Error:
            report.bad += 1
    else:
        report.missing += 1


def records_of_index(index: Path) -> Iterator[dict[str, Any]]:
    """Records made from a copy of an index, ours or that of lmms-eval, since SQLite may write beside a file that it
    reads."""
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("", "-wal"):
            if (source := index.with_name(index.name + suffix)).is_file():
                shutil.copyfile(source, Path(folder) / f"copy.db{suffix}")
        with closing(sqlite3.connect(Path(folder) / "copy.db")) as database:
            meta = dict(database.execute("SELECT key, value FROM meta"))
            columns = [row[1] for row in database.execute("PRAGMA table_info(responses)")]
            is_ours, schema = "checksum" in columns, meta.get("schema_version", "1")
            if is_ours and (not schema.isdecimal() or int(schema) > SCHEMA):
                raise CacheError(f"{index} was written by a newer version of lmql_lite", hint="update lmql_lite")
            text = meta.get("model_fingerprint", "")
            digest = meta.get("model_fingerprint_hash") or model_hash(text)
            yield {"kind": "cache", "schema": SCHEMA, "model_hash": digest, "model_fingerprint": text}
            names = ["cache_key", "request_type", "task_name", "doc_id", "idx", "gen_kwargs", "response", "created_at"]
            names += ["model_hash"] if is_ours else []
            for row in database.execute(f"SELECT {', '.join(names)} FROM responses ORDER BY rowid"):
                record = {"kind": RESPONSE, "schema": SCHEMA, "model_hash": digest, "deterministic": True}
                record |= zip(names, row, strict=True)
                if is_ours:
                    record["doc_id"] = json.loads(str(record["doc_id"]))
                yield record


def end_run(run: Path, rank: int, world_size: int, seconds: float) -> tuple[MergeReport | None, list[int]]:
    """Marks a rank as finished. Rank 0 merges what is there once the others have finished, or after `seconds`, and runs
    that were killed. Returns the report, and the ranks that had not finished.

    Raises CacheError if the run itself is not merged, and OSError.
    """
    run.mkdir(parents=True, exist_ok=True)
    done_mark(run, rank).touch()
    if rank:
        return None, []
    missing = await_ranks(run, world_size, seconds)
    folder = ModelFolder(run.parents[1])
    with lock_file(folder.path / RUNS / ".lock", seconds) as held:
        if not held:
            raise CacheError(f"{run} is not merged: another process has been merging for {seconds:g} s")
        report = _moved(folder, run)
        for other in folder.runs():
            if other != run:
                with suppress(CacheError, OSError):  # the next cache that reads it warns of the problem
                    _moved(folder, other)
    return report, missing


def _moved(folder: ModelFolder, run: Path) -> MergeReport:
    """Moves the answers of a run to the merged log. Logs that a process writes stay."""
    with ExitStack() as held:
        logs = []
        for log in sorted(run.glob(f"*{SUFFIX}")):
            with suppress(LogInUse):
                held.enter_context(writing(log))
                logs.append(log)
        filled = [log for log in logs if log.stat().st_size]
        report = merge(filled, folder.merged_log, "first") if filled else MergeReport()
        for log in logs:
            remove_index(log.with_suffix(".db"))
            log.unlink()
    for mark in () if list(run.glob(f"*{SUFFIX}")) else run.glob("*.done"):
        mark.unlink()
    with suppress(OSError):  # a process still writes there
        run.rmdir()
    return report
