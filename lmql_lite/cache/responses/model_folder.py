"""Folder of one model's answers: logs of ranks, logs of runs, and the state of their merging.

<model>/rank<R>.jsonl              logs of caches that `ResponseCache.open` opened
<model>/cache.jsonl                log merged by `finalize`
<model>/runs/<run>/rank_<R>.jsonl  logs of a run that `ResponseCache.create` made
                   rank_<R>.done   this rank has finished
                   .ready          all ranks have finished
                   .merged         sizes up to which the logs are in cache.jsonl
"""

from __future__ import annotations

import json
import os
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lmql_lite.store.atomic_file import replace_file
from lmql_lite.store.log import SUFFIX

RUNS = "runs"
MERGED = ".merged"
POLL_SECONDS = 0.02
RUN_IDS = ("LMMS_CACHE_RUN_ID", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")


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


def root_folder(root: str | Path) -> Path:
    """The folder of all models; that of the file if the root is named like an index or a log, as in lmms-eval."""
    path = Path(os.path.realpath(root))
    return path.parent if path.suffix in (".db", SUFFIX) and not path.is_dir() else path


@dataclass(frozen=True, slots=True)
class CacheRun:
    """Folder of one run of one or several ranks, with its marks."""

    path: Path

    def log(self, rank: int) -> Path:
        return self.path / f"rank_{rank}{SUFFIX}"

    def begin(self, rank: int) -> None:
        """Marks a rank as working on the run, even if the run had ended. Raises OSError."""
        for mark in (self._done(rank), self.path / ".ready"):
            mark.unlink(missing_ok=True)
        now = time.time_ns()
        os.utime(self.path.parent, ns=(now, now))  # readers look again after a change

    def finish(self, rank: int) -> None:
        """Marks a rank as finished. Raises OSError."""
        replace_file(self._done(rank), [b"%f\n" % time.time()])

    def _done(self, rank: int) -> Path:
        return self.path / f"rank_{rank}.done"

    def await_ranks(self, world_size: int, seconds: float) -> list[int]:
        """Waits until all ranks have finished, and marks the run as ready. Returns the ranks that have not finished."""
        until = time.monotonic() + seconds
        while late := [rank for rank in range(world_size) if not self._done(rank).exists()]:
            if time.monotonic() >= until:
                return late
            time.sleep(POLL_SECONDS)
        replace_file(self.path / ".ready", [b"%f\n" % time.time()])
        return []

    def unmerged(self) -> list[Path]:
        """Logs with answers that the merged log may lack, or that may still get some."""
        known = self._merged()
        logs = sorted(self.path.glob(f"*{SUFFIX}"))
        return [path for path in logs if path.stat().st_size != known.get(path.name)]

    def note_merged(self, sizes: dict[str, int]) -> None:
        """Records that the merged log has these logs up to these sizes. Raises OSError."""
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
    """Folder of one model. Changes of its set of logs are detected by the times of folders."""

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
        """Logs that have all answers of the model, without those of merged runs."""
        if not self._times or any(_changed(path) != time for path, time in self._times.items()):
            times = {path: _changed(path) for path in (self.path, self.path / RUNS)}
            logs: list[Path] = []
            for run in self.runs():  # before the folder itself, so that the log into which they were merged exists then
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
