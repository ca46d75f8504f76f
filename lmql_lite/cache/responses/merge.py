"""Response logs joined into one: shards, and the ranks of a run that has ended."""

from __future__ import annotations

import os
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from lmql_lite.cache.responses.index import RUNS, Index, is_foreign, is_servable, remove_index
from lmql_lite.cache.responses.logs import LogInUse, Record, writing
from lmql_lite.errors import CacheError
from lmql_lite.store.files import lock_file
from lmql_lite.store.log import SUFFIX, opening, read_lines, rewrite

POLL_SECONDS = 0.02
RUN_IDS = ("LMMS_CACHE_RUN_ID", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")


@dataclass(slots=True)
class MergeReport:
    """Numbers of answers of all shards, by outcome. A conflict is another answer to a known key that is no refresh."""

    inserted: int = 0
    duplicates: int = 0
    conflicts: int = 0
    bad: int = 0
    missing: int = 0


class Merge:
    """Choice of the answers that count: the first one of a key, or one that was refreshed later."""

    def __init__(self) -> None:
        self.report = MergeReport()
        self.model = self.fingerprint = ""
        self._known: dict[str, tuple[float, int]] = {}
        """Time and digest of the answer that counts, so far."""

    def takes(self, record: Record | None, shard: Path) -> bool:
        """True if the answer of a record counts. Raises CacheError for one of another model."""
        if record is None:
            self.report.bad += 1
            return False
        model = str(record.get("model_hash", ""))
        if not self.model:
            self.model, self.fingerprint = model, record.get("model_fingerprint", "")
        if model != self.model:
            raise CacheError(f"{shard} has answers of another model than the shards before it", hint="merge each alone")
        if not is_servable(record):
            return False
        key, response = record["cache_key"], record["response"]
        mine = record["created_at"], zlib.crc32(response.encode()) ^ len(response) << 32
        known, replaces = self._known.get(key), bool(record.get("replaces"))
        if known is None:
            self.report.inserted += 1
        else:
            self.report.duplicates += 1
            self.report.conflicts += not replaces and known[1] != mine[1]
            if not replaces or mine[0] <= known[0]:
                return False
        self._known[key] = mine
        return True


def merge(shards: list[Path], output: Path) -> MergeReport:
    """Writes the answers of shards after those that a log has, and reads them into its index; see
    `ResponseCache.merge_shards`. After an error the output is as before."""
    target, index = output.with_suffix(SUFFIX), output.with_suffix(".db")
    for path in shards:
        if os.path.realpath(path.with_suffix(SUFFIX)) == os.path.realpath(target):
            raise CacheError(f"{path} is an input and the output", hint="name another output")
    logs = [log for path in shards if (log := path.with_suffix(SUFFIX)).is_file()]
    known = [target] if target.exists() else []
    if not logs and not known:
        raise CacheError("none of the shards exists, so nothing was written", hint="name .db or .jsonl files")
    if not known and is_foreign(index):
        raise CacheError(f"{index} is not an index of lmql_lite, so nothing was written", hint="name another output")
    merging = Merge()

    def lines() -> Iterator[bytes]:
        is_begun = False
        for line in read_lines(target) if known else ():
            merging.takes(line.record, target)
            yield line.data + b"\n"
            is_begun = True
        merging.report = MergeReport(missing=len(shards) - len(logs))
        for log in logs:
            for line in read_lines(log):
                is_taken = merging.takes(line.record, log)
                if merging.model and not is_begun:
                    yield opening(merging.fingerprint, merging.model)
                    is_begun = True
                if is_taken:
                    yield line.data + b"\n"

    with writing(target) if known else nullcontext():
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        rewrite(target, lines())
        Index(index, target, None, (merging.fingerprint, merging.model), True, lambda _: None).close()
    return merging.report


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

    folder: Path
    rank: int
    world_size: int

    @property
    def log(self) -> Path:
        return self.folder / f"rank_{self.rank}{SUFFIX}"

    def _done_mark(self, rank: int) -> Path:
        """File by which a rank says that it has finalized."""
        return self.folder / f"rank_{rank}.done"

    def begin(self) -> None:
        with suppress(OSError):  # the folder cannot be written, which gave a warning already
            self._done_mark(self.rank).unlink(missing_ok=True)

    def end(self, seconds: float) -> tuple[MergeReport | None, list[int]]:
        """Marks the rank as finished. Rank 0 merges what is there once the others have finished, or after `seconds`,
        and runs that were killed. Returns the report, and the ranks that had not finished.

        Raises CacheError if the run itself is not merged, and OSError.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._done_mark(self.rank).touch()
        if self.rank:
            return None, []
        missing = self._await_others(seconds)
        runs = self.folder.parent
        with lock_file(runs / ".lock", seconds) as held:
            if not held:
                raise CacheError(f"{self.folder} is not merged: another process has been merging for {seconds:g} s")
            report = _moved(self.folder)
            for other in sorted(runs.iterdir()):
                if other != self.folder and other.is_dir():
                    with suppress(CacheError, OSError):  # the next cache that reads it warns of the problem
                        _moved(other)
        return report, missing

    def _await_others(self, seconds: float) -> list[int]:
        """Waits at most `seconds` until all ranks have finished. Returns the ranks that have not."""
        until = time.monotonic() + seconds
        while missing := [rank for rank in range(self.world_size) if not self._done_mark(rank).exists()]:
            if time.monotonic() >= until:
                break
            time.sleep(POLL_SECONDS)
        return missing


def rank_of_run(folder: Path, rank: int, world_size: int) -> RankOfRun:
    """A rank of the run that the environment names, in the folder of a model."""
    return RankOfRun(folder / RUNS / run_id(world_size), rank, world_size)


def _moved(run: Path) -> MergeReport:
    """Moves the answers of a run to the merged log. Logs that a process writes stay."""
    with ExitStack() as held:
        logs = []
        for log in sorted(run.glob(f"*{SUFFIX}")):
            with suppress(LogInUse):
                held.enter_context(writing(log))
                logs.append(log)
        filled = [log for log in logs if log.stat().st_size]
        report = merge(filled, run.parents[1] / f"cache{SUFFIX}") if filled else MergeReport()
        for log in logs:
            remove_index(log.with_suffix(".db"))
            log.unlink()
    for mark in () if list(run.glob(f"*{SUFFIX}")) else run.glob("*.done"):
        mark.unlink()
    with suppress(OSError):  # a process still writes there
        run.rmdir()
    return report
