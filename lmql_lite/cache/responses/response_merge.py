"""Merging of shards into one, and import of lmms-eval's caches."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from lmql_lite.cache.responses.model_folder import CacheRun, ModelFolder
from lmql_lite.cache.responses.request import LOGLIKELIHOOD
from lmql_lite.cache.responses.request_key import model_hash
from lmql_lite.cache.responses.response_files import writing
from lmql_lite.cache.responses.response_index import is_foreign, remove_index
from lmql_lite.cache.responses.response_store import ResponseStore, StoreFiles, row_of
from lmql_lite.cache.responses.value_codec import decoded, encoded
from lmql_lite.errors import CacheError
from lmql_lite.store.file_lock import lock_file
from lmql_lite.store.log import SCHEMA, SUFFIX, line_of, opening, read_lines, rewrite

OnConflict = Literal["first", "newest", "error"]
IMPORTED = f"imported{SUFFIX}"
LINES_AT_ONCE = 4096

_KEY = re.compile(r"[0-9a-f]{64}")


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
        inputs = [target.with_suffix(SUFFIX if log is not None else ".db"), *shards] if is_there else shards
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
    place = StoreFiles(target, output.with_suffix(".db"), model[0], model[1], None, True, None)
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
            yield from _rows(path)
        except sqlite3.Error:
            report.bad += 1
    else:
        report.missing += 1


def _rows(index: Path) -> Iterator[dict[str, Any]]:
    """Records made from a copy of an index, since SQLite may write beside a file that it reads."""
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("", "-wal"):
            if (source := index.with_name(index.name + suffix)).is_file():
                shutil.copyfile(source, Path(folder) / f"copy.db{suffix}")
        with closing(sqlite3.connect(Path(folder) / "copy.db")) as database:
            meta = dict(database.execute("SELECT key, value FROM meta"))
            schema = meta.get("schema_version", "1")
            columns = [row[1] for row in database.execute("PRAGMA table_info(responses)")]
            is_ours, has_models = "checksum" in columns, "model_hash" in columns
            if is_ours and (not schema.isdecimal() or int(schema) > SCHEMA):
                raise CacheError(f"{index} was written by a newer version of lmql_lite", hint="update lmql_lite")
            text = meta.get("model_fingerprint", "")
            digest = meta.get("model_fingerprint_hash") or model_hash(text)
            yield {"kind": "cache", "schema": SCHEMA, "model_hash": digest, "model_fingerprint": text}
            names = ["cache_key", "request_type", "task_name", "doc_id", "idx", "gen_kwargs", "response", "created_at"]
            names += ["model_hash"] if has_models else []
            for row in database.execute(f"SELECT {', '.join(names)} FROM responses ORDER BY rowid"):
                record = {"kind": "response", "schema": SCHEMA, "model_hash": digest} | dict(
                    zip(names, row, strict=True)
                )
                if is_ours:
                    record["doc_id"] = json.loads(str(record["doc_id"]))
                yield record | {"deterministic": True}


def end_run(run: CacheRun, rank: int, world_size: int, seconds: float) -> MergeReport | None:
    """Marks a rank as finished. Rank 0 merges the run when all ranks have finished; see `ResponseCache.finalize`.

    Runs that were killed are merged too. Raises CacheError if the run itself is not merged, and OSError.
    """
    run.finish(rank)
    if rank:
        return None
    if late := run.await_ranks(world_size, seconds):
        raise CacheError(
            f"{run.path} is not merged, but its answers are served: rank {', '.join(map(str, late))} of {world_size}"
            f" did not finish within {seconds:g} s",
            hint="call finalize again, or let the next successful run merge it",
        )
    folder = ModelFolder(run.path.parents[1])
    with lock_file(run.path.parent / ".lock", seconds) as held:
        if not held:
            raise CacheError(f"{run.path} is not merged: another process has been merging for {seconds:g} s")
        report = _merge_logs(folder, run)
        for other in folder.runs():
            if other != run:
                with suppress(CacheError):  # the run is still active, or the next cache to open it warns of the problem
                    _merge_logs(folder, other)
    return report


def _merge_logs(folder: ModelFolder, run: CacheRun) -> MergeReport:
    """Merges the logs of an inactive run. The logs stay; their indexes are rebuilt when they are needed."""
    report, logs = MergeReport(), run.unmerged()
    with ExitStack() as locks:
        for log in logs:
            locks.enter_context(writing(log))
        sizes = {log.name: log.stat().st_size for log in logs}
        if filled := [log for log in logs if sizes[log.name]]:
            report = merge(filled, folder.merged_log, "first")
        run.note_merged(sizes)
        for log in logs:
            remove_index(log.with_suffix(".db"))
    return report


def take_over(sources: list[Path], folder: Path, fingerprint: str) -> MergeReport:
    """Imports logs and indexes of lmms-eval, or exported records, as answers of one model, into a separate log.

    A log is preferred to the index beside it. Lines need no checksum here. Raises CacheError, and writes nothing, for a
    source that is missing, of a newer version, or in the folder itself.
    """
    report, ours = MergeReport(), model_hash(fingerprint)
    target = folder / ours / IMPORTED
    found: dict[str, bytes] = {}
    for path in _sources(sources):
        if os.path.realpath(path.parent) == os.path.realpath(target.parent):
            raise CacheError(f"{path} is an input, but is in the output folder", hint="import into another folder")
        for record in _rows(path) if path.suffix != SUFFIX else _foreign(path, report):
            if record.get("kind", "response") != "response":
                continue
            if (adopted := _adopted(record, ours)) is None:
                report.bad += 1
            elif (key := adopted["cache_key"]) in found:
                report.duplicates += 1
            else:
                found[key] = line_of(adopted)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    is_new = not target.exists()
    with writing(target) as log:
        known = {line.record.get("cache_key") for line in read_lines(target) if line.record is not None}
        lines = [line for key, line in found.items() if key not in known]
        report.inserted = len(lines)
        report.duplicates += len(found) - len(lines)
        log.append(([opening(fingerprint, ours)] if is_new else []) + lines)
    return report


def _sources(paths: list[Path]) -> list[Path]:
    found = []
    for path in paths:
        if path.is_dir():
            logs = sorted(path.rglob(f"*{SUFFIX}"))
            found += logs + [each for each in sorted(path.rglob("*.db")) if each.with_suffix(SUFFIX) not in logs]
        elif path.is_file():
            found.append(path)
        else:
            raise CacheError(f"{path} does not exist, so nothing was imported", hint="name a folder, .jsonl or .db")
    return found


def _foreign(path: Path, report: MergeReport) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                report.bad += 1
                continue
            if not isinstance(record, dict):
                report.bad += 1
                continue
            if isinstance(schema := record.get("schema", SCHEMA), int) and schema > SCHEMA:
                raise CacheError(f"{path} was written by a newer version of lmql_lite", hint="update lmql_lite")
            yield record


def _adopted(record: dict[str, Any], model: str) -> dict[str, Any] | None:
    """A foreign record in this package's form; None if its answer may not be served."""
    if not record.get("deterministic", True) or not _KEY.fullmatch(str(record.get("cache_key", ""))):
        return None
    missing: dict[str, Any] = {
        "idx": 0,
        "gen_kwargs": "{}",
        "created_at": time.time(),
        "content_hash": "",
        "task_fingerprint": "",
    }
    adopted = missing | record | {"kind": "response", "schema": SCHEMA, "model_hash": model, "deterministic": True}
    try:
        if adopted["request_type"] == LOGLIKELIHOOD and isinstance(pair := decoded(adopted["response"]), list):
            adopted["response"] = encoded(tuple(pair))
    except (KeyError, TypeError, ValueError):
        return None
    adopted = {name: value for name, value in adopted.items() if name not in ("crc32", "replaces")}
    return adopted if row_of(adopted, model) is not None else None
