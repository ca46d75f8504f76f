"""Reports of data-set runs: means with intervals, and the comparison of two runs row by row."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmql_lite.data.evaluation import Tally
from lmql_lite.data.intervals import Interval, mean_interval, paired
from lmql_lite.data.outcomes import Scoring
from lmql_lite.data.repeats import about_tries, over_tries
from lmql_lite.data.run_folder import FINISHED, REPORT, attempts_in, identity_of, status_of
from lmql_lite.errors import InputError

SCHEMA = 2
MAX_EXPONENT = 709.0


def report_of(identity: Mapping[str, Any], scoring: Scoring, tally: Tally, status: str) -> dict[str, Any]:
    """The report of a run as JSON data. A row that failed counts 0, in log-likelihoods it is left out."""
    outcomes = tally.outcomes
    counts = [place for place, is_error in enumerate(outcomes.errors) if not (scoring.skip_errors and is_error)]
    metrics = []
    for number, name in enumerate(scoring.metrics):
        scores, weights = outcomes.scores[number], outcomes.weights[number]
        known = [place for place in counts if not math.isnan(scores[place])]
        is_log = name in scoring.logs
        used = known if is_log else counts
        found = {"name": name, "n": len(used), "failed": len(counts) - len(known)}
        if used:
            values = [0.0 if math.isnan(scores[place]) else scores[place] for place in used]
            groups = outcomes.groups
            interval = mean_interval(
                values,
                [weights[place] for place in used],
                [groups[place] for place in used],
                is_share=not is_log,
            )
            metrics.append(found | asdict(_exponential(interval) if is_log else interval))
    metrics += [over_tries(name, outcomes, counts) for name in scoring.of_tries]
    return {
        "schema": SCHEMA,
        "status": status,
        "identity": dict(identity),
        "ids": len(set(outcomes.ids)),
        "attempts": len(outcomes),
        "asked": scoring.attempts,
        "kept": tally.kept,
        "reused": tally.reused,
        "errors": dict(sorted(tally.errors.items())),
        "errors_count_as": "left out" if scoring.skip_errors else "wrong",
        "cluster": scoring.cluster,
        "metrics": metrics,
        "metric_errors": tally.metric_errors,
        "first_metric_error": tally.first_metric_error,
        "metric_problems": tally.metric_problems,
        **({"tries": about_tries(outcomes, counts)} if scoring.repeat > 1 else {}),
        "usage": tally.usage,
        "cost": tally.cost,
    }


def report_in(run: Path) -> dict[str, Any]:
    """The report of the run in a folder: the one that it wrote when it ended, or else that of the rows so far.

    Raises InputError for a folder that is not a run.
    """
    status, kept = status_of(run)
    if status == FINISHED and (found := _written(run)) is not None:
        return found
    records = last_attempts(run)
    names = dict.fromkeys(name for record in records.values() for name in record.get("scores", {}))
    repeat = 1 + max((number for _, number in records), default=0)
    lists = {name: tuple(value) for name, value in kept.items() if isinstance(value, list)}
    scoring = Scoring(**{"metrics": tuple(names), "repeat": repeat, **kept, **lists})
    tally = Tally(scoring)
    for record in records.values():
        tally.add(record)
    tally.kept = len(records)
    return report_of(identity_of(run), scoring, tally, status)


def _written(run: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((run / REPORT).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA else None


def _exponential(interval: Interval) -> Interval:
    low, high = (None if each is None else _exp(each) for each in (interval.low, interval.high))
    return Interval(_exp(interval.mean), low, high, interval.groups)


def _exp(value: float) -> float:
    return math.exp(min(value, MAX_EXPONENT))


def last_attempts(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The last attempt of each id and repeat; an answer is not replaced by an error."""
    identity_of(folder)
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for record in attempts_in(folder):
        place = (record["id"], record["repeat"])
        if place not in found or not record.get("error") or found[place].get("error"):
            found[place] = record
    return found


def is_wrong(record: Mapping[str, Any], *, only_errors: bool = False) -> bool:
    """True for a row that failed, and unless `only_errors` for one whose first score is below 1 or missing."""
    if record.get("error") or only_errors:
        return bool(record.get("error"))
    first = next(iter(record.get("scores", {}).values()), None)
    return first is not None and (not isinstance(first, list) or first[0] < 1)


def compare(first: Path, second: Path, by: str | None = None) -> dict[str, Any]:
    """Two runs, paired by id: for each metric of both the difference, its interval, tests, and the rows that changed.

    `by` is a column whose equal values are drawn together. Raises InputError where no id is in both.
    """
    left, right = _of_ids(first), _of_ids(second)
    common = [name for name in left if name in right]
    if not common:
        raise InputError(f"{first} and {second} have no row in common", hint="rows are paired by their id")
    changed = [name for name in common if left[name][0].get("target") != right[name][0].get("target")]
    known = [
        scores for name in common for scores in (left[name][0].get("scores", {}), right[name][0].get("scores", {}))
    ]
    names = list(dict.fromkeys(metric for scores in known for metric in scores))
    metrics = []
    for metric in names:
        ours, theirs = ([_mean(side[name], metric) for name in common] for side in (left, right))
        groups = [str(left[name][0].get("columns", {}).get(by)) if by else name for name in common]
        found = paired(ours, theirs, groups)
        flipped = [name for name, a, b in zip(common, ours, theirs, strict=True) if a != b]
        metrics.append({"name": metric, "n": len(common), **asdict(found), "changed": flipped})
    return {
        "schema": SCHEMA,
        "first": str(first),
        "second": str(second),
        "cluster": by,
        "metrics": metrics,
        "only_first": [name for name in left if name not in right],
        "only_second": [name for name in right if name not in left],
        "other_targets": changed,
    }


def _of_ids(folder: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for (name, _), record in last_attempts(folder).items():
        found.setdefault(name, []).append(record)
    if not found:
        raise InputError(f"{folder} has no rows yet")
    return found


def _mean(records: Sequence[Mapping[str, Any]], metric: str) -> float:
    """Mean over repeats; what failed counts 0."""
    scores = [record.get("scores", {}).get(metric) for record in records]
    return math.fsum(score[0] if isinstance(score, list) else 0.0 for score in scores) / len(scores)
