"""Folder of a data-set run: `run.json` has the run's identity, `rows.jsonl` has a line per attempt and is
authoritative, `report.json` is made from it.

`rows.jsonl` is a log of records like those of the response cache; a line of the kind `attempt` is a finished row.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmql_lite.data.job import Scoring, continued
from lmql_lite.errors import CacheError, InputError
from lmql_lite.redaction import redacted
from lmql_lite.store.files import TEMPORARY_PREFIX, replace_file, try_lock
from lmql_lite.store.log import ATTEMPT, SCHEMA, GroupCommit, LogWriter, line_of, opening, read_lines

ROWS, RUN, REPORT = "rows.jsonl", "run.json", "report.json"
RUNNING, FINISHED = "running", "finished"


def attempts_in(path: Path) -> Iterator[dict[str, Any]]:
    """Attempts of a folder or a log, in the order of their ending; a later one replaces an earlier one of its key.

    Damaged lines and other kinds are stepped over. Raises CacheError for a log that cannot be read.
    """
    log = path / ROWS if path.is_dir() else path
    try:
        for line in read_lines(log):
            if line.record is not None and line.record.get("kind") == ATTEMPT:
                yield line.record
    except FileNotFoundError:
        return
    except OSError as error:
        raise CacheError(f"{log} cannot be read ({error.strerror})") from None


def last_attempts(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The last attempt of each id and repeat; an answer is not replaced by an error. Raises InputError for scores of an
    earlier version."""
    facts_of(folder)
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for record in attempts_in(folder):
        place = (record["id"], record["repeat"])
        if place not in found or not record.get("error") or found[place].get("error"):
            found[place] = record
    if any(isinstance(score, list) for record in found.values() for score in record.get("scores", {}).values()):
        raise InputError(
            f"{folder} has scores of an earlier lmql-lite, which are no longer read",
            hint="give its command again: finished rows are scored anew, without a model",
        )
    return found


def facts_of(folder: Path) -> dict[str, Any]:
    """All that `run.json` says. Raises InputError for a folder that is not a run."""
    try:
        found = json.loads((folder / RUN).read_text("utf-8"))
        return {**found, "identity": dict(found["identity"])}
    except FileNotFoundError:
        raise InputError(
            f"{folder} is not a data-set run: it has no {RUN}", hint="lq eval QUERY DATA makes one"
        ) from None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InputError(f"{folder / RUN} cannot be read ({error})") from None


def identity_of(folder: Path) -> dict[str, Any]:
    """Identity of the run in a folder. Raises InputError for a folder that is not a run."""
    return dict(facts_of(folder)["identity"])


def status_of(folder: Path) -> tuple[str, dict[str, Any]]:
    """Status of a run, and how it is scored: `finished`, `running`, `stopped` (by its user or an error), or `died`
    where its process is gone. Raises InputError for a folder that is not a run."""
    found = facts_of(folder)
    status = str(found.get("status"))
    if status == RUNNING and not _is_written(folder / ROWS):
        status = "died"
    return status, found.get("scoring") or {}


def _is_written(log: Path) -> bool:
    """True if a process holds the lock of a log. Where that cannot be found out, it does."""
    try:
        with open(log, "rb") as file:
            return not try_lock(file)
    except FileNotFoundError:
        return False
    except OSError:
        return True


class RunFolder:
    """Writer of a run. Raises InputError for a folder of another run, CacheError if another process writes it. Lines
    are written and synced in groups; if the disk is full, they wait for the next group.
    """

    def __init__(
        self, path: Path, identity: Mapping[str, Any], command: list[str], scoring: Scoring | None = None
    ) -> None:
        self.path = path
        self.problem = ""
        """A sentence about lines that could not be written, empty if all are."""
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if (path / RUN).exists():
                identity = continued(dict(identity), identity_of(path), path)
            elif any(map(_is_foreign, path.iterdir())):
                raise InputError(f"{path} has files and is not a data-set run", hint="name a new folder with -o")
            self._log = LogWriter(path / ROWS, opening(str(identity["model"]), str(identity.get("fingerprint"))))
        except BlockingIOError:
            raise CacheError(f"{path} is being written by {_holder(path)}", hint="wait until it has ended") from None
        except OSError as error:
            raise CacheError(f"{path} cannot be written ({error.strerror or error})") from None
        self.identity, self._command = dict(identity), command
        self._scoring = {} if scoring is None else asdict(scoring)
        self._waiting: list[bytes] = []
        self._group = GroupCommit[bytes](self._write)
        self.note(RUNNING)

    def note(self, status: str) -> None:
        """Writes `run.json`."""
        found = {
            "schema": SCHEMA,
            "identity": self.identity,
            "command": [redacted(part) for part in self._command],
            "status": status,
            "scoring": self._scoring,
            "holder": {"pid": os.getpid(), "host": socket.gethostname()},
            "time": time.time(),
        }
        with suppress(OSError):  # a full disk: the rows say the same
            replace_file(self.path / RUN, [json.dumps(found, indent=1).encode()])

    async def add(self, record: Mapping[str, Any]) -> None:
        """Appends an attempt; returns when the disk has it, or has refused it."""
        line = line_of({"kind": ATTEMPT, "schema": SCHEMA, **record})
        await self._group.add([line]).ended()

    def _write(self, lines: list[bytes]) -> None:
        self._waiting += lines
        try:
            self._log.append(self._waiting)
        except OSError as error:
            self.problem = f"{self.path / ROWS} cannot be written ({error.strerror or error})"
            return
        self._waiting, self.problem = [], ""

    def close(self, status: str) -> None:
        self._group.close()
        if self._waiting:
            self._write([])
        self.note(status)
        self._log.close()


def _is_foreign(file: Path) -> bool:
    """False for what a run leaves that is killed before it has written anything: an empty log, a temporary file."""
    is_empty_log = file.name == ROWS and file.stat().st_size == 0
    return not is_empty_log and not file.name.startswith(TEMPORARY_PREFIX)


def _holder(path: Path) -> str:
    try:
        holder = json.loads((path / RUN).read_text("utf-8"))["holder"]
        return f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
