"""Import of lmms-eval's caches, and of exported answers."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmql_lite.cache.responses.index import row_of
from lmql_lite.cache.responses.keys import model_hash
from lmql_lite.cache.responses.merge import MergeReport, merge, records_of_index
from lmql_lite.cache.responses.request import LOGLIKELIHOOD
from lmql_lite.cache.responses.values import decoded, encoded
from lmql_lite.errors import CacheError
from lmql_lite.store.log import RESPONSE, SCHEMA, SUFFIX, line_of, opening

IMPORTED = f"imported{SUFFIX}"

_KEY = re.compile(r"[0-9a-f]{64}")


def take_over(sources: list[Path], folder: Path, fingerprint: str) -> MergeReport:
    """Imports logs and indexes of lmms-eval, or exported records, as answers of one model, into a separate log.

    A log is preferred to the index beside it. Lines need no checksum here. Raises CacheError, and writes nothing, for a
    source that is missing, of a newer version, or in the folder itself.
    """
    ours, bad, duplicates = model_hash(fingerprint), 0, 0
    target, found = folder / ours / IMPORTED, set[str]()
    with tempfile.TemporaryDirectory() as made, open(Path(made) / IMPORTED, "wb") as file:
        file.write(opening(fingerprint, ours))
        for path in _sources(sources):
            if os.path.realpath(path.parent) == os.path.realpath(target.parent):
                raise CacheError(f"{path} is an input, but is in the output folder", hint="import into another folder")
            for record in records_of_index(path) if path.suffix != SUFFIX else _records(path):
                if record is not None and record.get("kind", RESPONSE) != RESPONSE:
                    continue
                if record is None or (adopted := _adopted(record, ours)) is None:
                    bad += 1
                elif adopted["cache_key"] in found:
                    duplicates += 1
                else:
                    found.add(adopted["cache_key"])
                    file.write(line_of(adopted))
        file.flush()
        report = merge([Path(file.name)], target, "first")
    report.bad += bad
    report.duplicates += duplicates
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


def _records(path: Path) -> Iterator[dict[str, Any] | None]:
    """Records of JSON lines; None for a line that is none."""
    with open(path, "rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict):
                yield None
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
    adopted = missing | record | {"kind": RESPONSE, "schema": SCHEMA, "model_hash": model, "deterministic": True}
    try:
        if adopted["request_type"] == LOGLIKELIHOOD and isinstance(pair := decoded(adopted["response"]), list):
            adopted["response"] = encoded(tuple(pair))
    except (KeyError, TypeError, ValueError):
        return None
    adopted = {name: value for name, value in adopted.items() if name not in ("crc32", "replaces")}
    return adopted if row_of(adopted, model) is not None else None
