"""Folder of one model's answers: logs of ranks in it, logs of runs below it, and how far the runs were merged.

<model>/rank<R>.jsonl              logs of caches that `ResponseCache.open` opened
<model>/cache.jsonl                what `finalize` merged
<model>/runs/<run>/rank_<R>.jsonl  logs of a run that `ResponseCache.create` made
                   rank_<R>.done   this rank has finished
                   .ready          all ranks have
                   .merged         sizes up to which cache.jsonl has the logs
"""

from __future__ import annotations

import json
import os
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lmql_lite.cache.responses.record_log import SUFFIX
from lmql_lite.store.atomic_file import replace_file

RUNS = "runs"
MERGED = ".merged"
POLL_SECONDS = 0.02
RUN_IDS = ("LMMS_CACHE_RUN_ID", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")


def run_id(world_size: int) -> str:
    """Name of this run, the same in all of its ranks.

    Taken from the environment: the first of `RUN_IDS`; several ranks without one are named after their master. A single
    process without one gets a random name.
    """
    name = next(filter(None, map(os.environ.get, RUN_IDS)), None)
    if name is None and world_size == 1:
        return uuid.uuid4().hex
    address, port = os.environ.get("MASTER_ADDR", "master"), os.environ.get("MASTER_PORT", "0")
    name = name or f"{address}-{port}-ws{world_size}"
    return "".join(each if each.isalnum() or each in "-_." else "-" for each in name).strip("-._")[:128] or "run"


@dataclass(frozen=True, slots=True)
class CacheRun:
    """Folder of one run of one or several ranks, and of the marks in it."""

    path: Path

    def log(self, rank: int) -> Path:
        return self.path / f"rank_{rank}{SUFFIX}"

    def begin(self, rank: int) -> None:
        """Notes that a rank works on the run, also on one that had ended. Raises OSError."""
        for mark in (self._done(rank), self.path / ".ready"):
            mark.unlink(missing_ok=True)
        now = time.time_ns()
        os.utime(self.path.parent, ns=(now, now))  # readers look again where something changed

    def finish(self, rank: int) -> None:
        """Notes that a rank has written everything. Raises OSError."""
        replace_file(self._done(rank), [b"%f\n" % time.time()])

    def _done(self, rank: int) -> Path:
        return self.path / f"rank_{rank}.done"

    def await_ranks(self, world_size: int, seconds: float) -> list[int]:
        """Waits until all ranks have finished, and marks the run as ready. Returns the ranks that are late."""
        until = time.monotonic() + seconds
        while late := [rank for rank in range(world_size) if not self._done(rank).exists()]:
            if time.monotonic() >= until:
                return late
            time.sleep(POLL_SECONDS)
        replace_file(self.path / ".ready", [b"%f\n" % time.time()])
        return []

    def unmerged(self) -> list[Path]:
        """Logs with answers that the merged log may lack, and those that may get some."""
        known = self._merged()
        logs = sorted(self.path.glob(f"*{SUFFIX}"))
        return [path for path in logs if path.stat().st_size != known.get(path.name)]

    def note_merged(self, sizes: dict[str, int]) -> None:
        """Notes that the merged log has these logs up to these sizes. Raises OSError."""
        replace_file(self.path / MERGED, [json.dumps(self._merged() | sizes).encode()], durable=True)

    def _merged(self) -> dict[str, int]:
        with suppress(OSError, ValueError):
            if isinstance(found := json.loads((self.path / MERGED).read_bytes()), dict):
                return found
        return {}


def is_merged(log: Path) -> bool:
    """True for the log of a run whose answers are in the merged log."""
    return log.parent.parent.name == RUNS and log not in CacheRun(log.parent).unmerged()


class ModelFolder:
    """Folder of one model. Files that change what is read are noticed by the times of their folders."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._times: dict[Path, int] = {}
        self._logs: list[Path] = []

    @property
    def merged_log(self) -> Path:
        return self.path / f"cache{SUFFIX}"

    def run(self, name: str) -> CacheRun:
        return CacheRun(self.path / RUNS / name)

    def runs(self) -> list[CacheRun]:
        with suppress(OSError):
            return [CacheRun(path) for path in sorted((self.path / RUNS).iterdir()) if path.is_dir()]
        return []

    def logs(self) -> list[Path]:
        """Logs that have all answers of the model: those of merged runs are left out."""
        if not self._times or any(_changed(path) != time for path, time in self._times.items()):
            times = {path: _changed(path) for path in (self.path, self.path / RUNS)}
            logs: list[Path] = []
            for run in self.runs():  # before the folder itself: what they were merged into is there then
                changed = _changed(run.path)
                with suppress(OSError):
                    if found := run.unmerged():
                        times[run.path] = changed
                        logs += found
            with suppress(OSError):
                names = sorted(name for name in os.listdir(self.path) if name.endswith(SUFFIX))
                self._times, self._logs = times, [self.path / name for name in names] + logs
        return self._logs


def _changed(folder: Path) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0
