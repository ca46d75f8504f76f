"""`lq responses`: counting, checking, pruning and merging the logs of a response cache."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lmql_lite.apps.terminal import (
    EXIT_CODES,
    JSON,
    counted,
    reporting,
    write,
    write_object,
)
from lmql_lite.errors import CacheError

if TYPE_CHECKING:
    from lmql_lite.cache.responses.logs import LogSummary

DIR = click.argument("path", metavar="DIR", type=click.Path(path_type=Path))


@click.group(short_help="Maintain caches of whole answers.")
def responses() -> None:
    """Maintain caches of whole answers: a log of JSON lines per model and rank, with an index beside it.

    DIR is the folder that a cache was opened with, the folder of one model in it, or one log; a run of several ranks
    has its logs in runs/ until it is finalized, and in cache.jsonl after that.
    """


def _summaries(path: Path) -> list[LogSummary]:
    from lmql_lite.cache.responses.logs import find_logs, summary

    return [summary(log) for log in find_logs(path)]


@responses.command()
@DIR
@JSON
def stats(path: Path, as_json: bool) -> None:
    """List the logs under DIR with their models, and show totals."""
    with reporting(as_json):
        found = _summaries(path)
        names = ("answers", "superseded", "sampled", "rejected", "other", "damaged", "bytes")
        numbers = {name: sum(getattr(each, name) for each in found) for name in names}
        tasks = Counter[str]()
        for each in found:
            tasks.update(each.tasks)
        if as_json:
            logs = [asdict(each) | {"path": str(each.path)} for each in found]
            write_object(numbers | {"tasks": dict(tasks), "logs": logs})
            return
        for each in found:
            model = each.model or each.model_hash or "an unknown model"
            write(f"{each.path}: {counted(each.answers, 'answer')} of {model}")
        for name, number in numbers.items():
            write(f"{name:<16} {number:,}")
        for task, number in sorted(tasks.items()):
            write(f"{'task':<16} {task or '(none)'}: {counted(number, 'answer')}")


@responses.command()
@DIR
def verify(path: Path) -> None:
    """Read and check all lines under DIR.

    Exit code 6 if some are damaged. A damaged line is a miss, and prune drops it. The index is not read: a damaged one
    is rebuilt from its log when the cache is next opened.
    """
    with reporting(as_json=False):
        found = _summaries(path)
        for each in found:
            state = f"{each.damaged:,} damaged lines" if each.damaged else "sound"
            write(f"{each.path}: {state}, {counted(each.answers, 'answer')}")
        if any(each.damaged for each in found):
            sys.exit(EXIT_CODES[CacheError])


@responses.command()
@DIR
@click.option("--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="Drop older records; 0: all.")
@click.option("--max-bytes", type=click.IntRange(min=0), metavar="N", help="Drop the oldest records of longer logs.")
@JSON
def prune(path: Path, older_than: float | None, max_bytes: int | None, as_json: bool) -> None:
    """Make the logs under DIR smaller: drop damaged lines, and others as the options say."""
    from lmql_lite.cache.responses.logs import prune as prune_log

    oldest = time.time() - older_than * 86_400 if older_than is not None else 0.0

    def keep(record: dict[str, Any]) -> bool:
        return bool(record.get("created_at", 0) >= oldest)

    with reporting(as_json):
        logs = [each.path for each in _summaries(path)]
        dropped = sum(prune_log(log, keep, max_bytes) for log in logs)
        if as_json:
            write_object({"logs": len(logs), "dropped": dropped})
        else:
            write(f"{path}: {counted(dropped, 'record')} dropped from {counted(len(logs), 'log')}")


@responses.command()
@click.argument("shards", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FILE", help="A .db or .jsonl.")
@JSON
def merge(shards: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Join SHARDS of one model into one file. They do not change; answers that the output already has take
    precedence."""
    from lmql_lite.cache.responses.merge import merge as merge_shards

    with reporting(as_json):
        _report(str(output), asdict(merge_shards(list(shards), output)), as_json)


def _report(file: str, counts: dict[str, int], as_json: bool) -> None:
    if as_json:
        write_object({"file": file} | counts)
    else:
        write(f"{file}: " + ", ".join(f"{number:,} {name}" for name, number in counts.items()))
