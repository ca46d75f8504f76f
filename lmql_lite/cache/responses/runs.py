"""Logs in the folder of one model.

<model>/rank<R>.jsonl              logs of caches that `ResponseCache.open` opened
<model>/cache.jsonl                answers of the runs that were finalized
<model>/runs/<run>/rank_<R>.jsonl  logs of a run that `ResponseCache.create` made, until it is finalized
                   rank_<R>.done   this rank has finished
"""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from lmql_lite.store.log import SUFFIX

RUNS = "runs"
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


def log_of_rank(run: Path, rank: int) -> Path:
    return run / f"rank_{rank}{SUFFIX}"


def done_mark(run: Path, rank: int) -> Path:
    """File by which a rank says that it has finalized."""
    return run / f"rank_{rank}.done"


def await_ranks(run: Path, world_size: int, seconds: float) -> list[int]:
    """Waits at most `seconds` until all ranks have finished. Returns the ranks that have not."""
    until = time.monotonic() + seconds
    while missing := [rank for rank in range(world_size) if not done_mark(run, rank).exists()]:
        if time.monotonic() >= until:
            break
        time.sleep(POLL_SECONDS)
    return missing


class ModelFolder:
    """Folder of one model. Changes of its set of logs are detected by the times of folders."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.merged_log = path / f"cache{SUFFIX}"
        self._times: dict[Path, int] = {}
        self._logs: list[Path] = []

    def runs(self) -> list[Path]:
        return sorted(path for path in (self.path / RUNS).glob("*") if path.is_dir())

    def logs(self) -> list[Path]:
        """Logs with answers of the model. Those of runs come first, because a merge moves their answers to the merged
        log, which therefore is read after them."""
        if not self._times or any(_changed(path) != time for path, time in self._times.items()):
            folders = [*self.runs(), self.path]
            self._times = {path: _changed(path) for path in (self.path / RUNS, *folders)}
            self._logs = [log for folder in folders for log in sorted(folder.glob(f"*{SUFFIX}"))]
        return self._logs


def _changed(folder: Path) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0
