"""Reports of data-set runs: means with intervals, scores by column, and the comparison of two runs row by row."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmql_lite.data.equality import bare
from lmql_lite.data.folder import FINISHED, REPORT, identity_of, last_attempts, status_of
from lmql_lite.data.job import Scoring
from lmql_lite.data.run import MAX_VALUES, Outcome, Tally
from lmql_lite.data.statistics import mean_interval, paired
from lmql_lite.errors import InputError

SCHEMA = 4
OTHER, FAILED = "other", "error"
"""Columns of a confusion table for answers that are no target, and for rows that failed."""


def report_of(identity: Mapping[str, Any], tally: Tally, status: str) -> dict[str, Any]:
    """The report of a run as JSON data. A row that failed counts 0."""
    scoring, outcomes = tally.scoring, tally.outcomes
    return {
        "schema": SCHEMA,
        "status": status,
        "identity": dict(identity),
        "ids": len({each.id for each in outcomes}),
        "attempts": len(outcomes),
        "asked": scoring.attempts,
        "kept": tally.kept,
        "errors": dict(sorted(tally.errors.items())),
        "cluster": scoring.cluster,
        "metrics": _metrics(outcomes, scoring) if outcomes else [],
        "by_column": _by_column(tally),
        "confusion": _confusion(outcomes),
        "metric_errors": dict(tally.metric_errors),
        "metric_problems": tally.metric_problems,
        "usage": dict(tally.usage),
        "cost": tally.cost,
    }


def report_in(run: Path) -> dict[str, Any]:
    """The report of the run in a folder: the one that it wrote when it ended, or else that of the rows so far.

    Raises InputError for a folder that is not a run.
    """
    status, scoring = status_of(run)
    if status == FINISHED and (found := _written(run)) is not None:
        return found
    records = last_attempts(run)
    names = dict.fromkeys(name for record in records.values() for name in record.get("scores", {}))
    tally = Tally(Scoring(tuple(scoring.get("metrics", names)), scoring.get("cluster"), scoring.get("attempts")))
    for record in records.values():
        tally.add(record)
    tally.kept = len(records)
    return report_of(identity_of(run), tally, status)


def _written(run: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((run / REPORT).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA else None


def _metrics(outcomes: Sequence[Outcome], scoring: Scoring) -> list[dict[str, Any]]:
    """Mean and interval of each metric."""
    metrics, groups = [], [each.group for each in outcomes]
    for number, name in enumerate(scoring.metrics):
        failed = sum(each.scores[number] is None for each in outcomes)
        interval = mean_interval([each.scores[number] or 0.0 for each in outcomes], groups)
        metrics.append({"name": name, "n": len(outcomes), "failed": failed, **asdict(interval)})
    return metrics


# Parts of a result ---------------------------------------------------------------------------------------------------


def _by_column(tally: Tally) -> list[dict[str, Any]]:
    """Means of the rows with each value of a column, for columns of few values; the target apart, which the confusion
    table is about."""
    found = []
    for name, places in tally.places.items():
        if places is None or not 1 < len(places) <= sum(map(len, places.values())) / 2:
            continue
        values = []
        for value, of_value in sorted(places.items()):
            scores = zip(*(tally.outcomes[place].scores for place in of_value), strict=True)
            means = [math.fsum(each or 0.0 for each in of_metric) / len(of_value) for of_metric in scores]
            named = dict(zip(tally.scoring.metrics, means, strict=True))
            values.append({"value": value, "n": len(of_value), "means": named})
        found.append({"column": name, "values": values})
    return found


def _confusion(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """Numbers of answers by target and answer, where few targets have several rows each; otherwise None."""
    pairs = Counter(
        (each.target, None if each.is_error else each.answer) for each in outcomes if each.target is not None
    )
    labels = sorted({target for target, _ in pairs})
    if not 1 < len(labels) <= MAX_VALUES or pairs.total() < 2 * len(labels):
        return None
    places = {bare(label): number for number, label in enumerate(labels)}
    answers = [*labels, OTHER, FAILED]
    counts = [[0] * len(answers) for _ in labels]
    for (target, answer), count in pairs.items():
        place = -1 if answer is None else places.get(bare(answer), -2)
        counts[places[bare(target)]][place] += count
    is_of_labels = any(count for row in counts for count in row[:-2])
    return {"targets": labels, "answers": answers, "counts": counts} if is_of_labels else None


# Rows ----------------------------------------------------------------------------------------------------------------


def is_wrong(record: Mapping[str, Any]) -> bool:
    """True for a row that failed, and for one whose first score is below 1 or missing."""
    first = next(iter(record.get("scores", {}).values()), None)
    return bool(record.get("error")) or (first is not None and (not isinstance(first, float) or first < 1))


def compare(first: Path, second: Path, cluster: str | None = None) -> dict[str, Any]:
    """Two runs, paired by id: for each metric of both the difference, its interval, tests, and the rows that changed.

    `cluster` is a column whose equal values are drawn together. Raises InputError where no id is in both.
    """
    left, right = _of_ids(first), _of_ids(second)
    common = [name for name in left if name in right]
    if not common:
        raise InputError(f"{first} and {second} have no row in common", hint="rows are paired by their id")
    changed = [name for name in common if left[name][0].get("target") != right[name][0].get("target")]
    known = [side[name][0].get("scores", {}) for name in common for side in (left, right)]
    names = list(dict.fromkeys(metric for scores in known for metric in scores))
    metrics = []
    for metric in names:
        ours, theirs = ([_mean(side[name], metric) for name in common] for side in (left, right))
        groups = [str(left[name][0].get("columns", {}).get(cluster)) if cluster else name for name in common]
        found = paired(ours, theirs, groups)
        flipped = [name for name, a, b in zip(common, ours, theirs, strict=True) if a != b]
        metrics.append({"name": metric, "n": len(common), **asdict(found), "changed": flipped})
    return {
        "schema": SCHEMA,
        "first": str(first),
        "second": str(second),
        "cluster": cluster,
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
    return math.fsum(score if isinstance(score, float) else 0.0 for score in scores) / len(scores)
