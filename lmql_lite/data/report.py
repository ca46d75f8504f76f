"""Reports of data-set runs: means with intervals, scores by column, and the comparison of two runs row by row."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmql_lite.data.equality import bare
from lmql_lite.data.folder import FINISHED, REPORT, identity_of, last_attempts, status_of
from lmql_lite.data.job import Scoring
from lmql_lite.data.run import MAX_VALUES, Outcome, Tally
from lmql_lite.data.statistics import Interval, majority, mean_interval, paired, pass_at, variance
from lmql_lite.errors import InputError

SCHEMA = 3
MAX_EXPONENT = 709.0
MAJORITY = "majority"
COUNTED_AS = {"left out": "left out", "wrong": "counted as wrong"}
"""Sentence about failed rows, by what a report says of them."""
OTHER, FAILED = "other", "error"
"""Columns of a confusion table for answers that are no target, and for rows that failed."""


def is_of_tries(metric: str) -> bool:
    """True for `pass@K` and `majority`."""
    return metric == MAJORITY or re.fullmatch(r"pass@[1-9]\d*", metric) is not None


def check_tries(metrics: Sequence[str], repeat: int, *, has_metric: bool) -> None:
    """Raises InputError where metrics over tries lack a metric of one try, or tries."""
    for name in metrics:
        needed = 2 if name == MAJORITY else int(name[5:])
        if not has_metric or repeat < needed:
            raise InputError(f"{name} needs another metric and as many tries", hint=f"-m exact --repeat {needed}")


def report_of(identity: Mapping[str, Any], tally: Tally, status: str) -> dict[str, Any]:
    """The report of a run as JSON data. A row that failed counts 0, in log-likelihoods it is left out."""
    scoring, outcomes = tally.scoring, tally.outcomes
    counted = [each for each in outcomes if not (scoring.skip_errors and each.is_error)]
    rows: dict[str, list[Outcome]] = {}
    for each in counted:
        rows.setdefault(each.id, []).append(each)
    metrics = _metrics(counted, scoring) + [_over_tries(name, list(rows.values())) for name in scoring.of_tries]
    return {
        "schema": SCHEMA,
        "status": status,
        "identity": dict(identity),
        "ids": len({each.id for each in outcomes}),
        "attempts": len(outcomes),
        "asked": scoring.attempts,
        "kept": tally.kept,
        "errors": dict(sorted(tally.errors.items())),
        "errors_count_as": "left out" if scoring.skip_errors else "wrong",
        "cluster": scoring.cluster,
        "metrics": metrics,
        "by_column": _by_column(tally),
        "confusion": _confusion(counted),
        "metric_errors": dict(tally.metric_errors),
        "metric_problems": tally.metric_problems,
        **({"tries": _about_tries(list(rows.values()), scoring)} if scoring.repeat > 1 else {}),
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
    repeat = 1 + max((number for _, number in records), default=0)
    lists = {name: tuple(value) for name, value in scoring.items() if isinstance(value, list)}
    tally = Tally(Scoring(**{"metrics": tuple(names), "repeat": repeat, **scoring, **lists}))
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
    """Mean and interval of each metric that has a score."""
    metrics = []
    for number, name in enumerate(scoring.metrics):
        is_log = name in scoring.logs
        failed = sum(each.scores[number] is None for each in outcomes)
        if scores := _scores(outcomes, number, scoring):
            groups = [each.group for each in outcomes if not is_log or each.scores[number] is not None]
            values, weights = zip(*scores, strict=True)
            interval = mean_interval(values, weights, groups, is_share=not is_log)
            found = {"name": name, "n": len(scores), "failed": failed}
            metrics.append(found | asdict(_exponential(interval) if is_log else interval))
    return metrics


def _scores(outcomes: Sequence[Outcome], number: int, scoring: Scoring) -> list[tuple[float, float]]:
    """Scores and weights of a metric. What failed counts 0; in log-likelihoods it is left out."""
    found = (each.scores[number] for each in outcomes)
    if scoring.metrics[number] in scoring.logs:
        return [each for each in found if each is not None]
    return [(0.0, 1.0) if each is None else each for each in found]


def _exponential(interval: Interval) -> Interval:
    low, high = (None if each is None else _exp(each) for each in (interval.low, interval.high))
    return Interval(_exp(interval.mean), low, high, interval.groups)


def _exp(value: float) -> float:
    return math.exp(min(value, MAX_EXPONENT))


# Tries ---------------------------------------------------------------------------------------------------------------


def _over_tries(name: str, rows: Collection[Sequence[Outcome]]) -> dict[str, Any]:
    """A metric over the tries of each row, by the first metric of one try.

    `pass@K`: the chance that one of K tries is right. `majority`: the score of the most frequent answer, the mean of
    them where several are. A try that failed has no answer.
    """
    found, groups, missing = list[float](), list[str](), 0
    for tries in rows:
        scores = [0.0 if each.scores[0] is None else each.scores[0][0] for each in tries]
        if name == MAJORITY:
            votes = zip(tries, scores, strict=True)
            found.append(majority([(each.answer, score) for each, score in votes if not each.is_error]))
        elif len(tries) >= (k := int(name[5:])):
            found.append(pass_at(k, len(tries), scores.count(1.0)))
        else:
            missing += 1
            continue
        groups.append(tries[0].group)
    interval = mean_interval(found, [1.0] * len(found), groups) if found else Interval(0.0, None, None, 0)
    return {"name": name, "n": len(found), "failed": missing, **asdict(interval)}


def _about_tries(rows: Collection[Sequence[Outcome]], scoring: Scoring) -> dict[str, Any]:
    """Variance of each metric within a row, as the mean over rows, and the number of rows whose answers differ."""
    rows = [tries for tries in rows if len(tries) > 1]
    variances = []
    for number in range(len(scoring.metrics)):
        of_rows = [variance([score[0] for each in tries if (score := each.scores[number])]) for tries in rows]
        variances.append(math.fsum(of_rows) / len(of_rows) if of_rows else 0.0)
    differ = sum(len({each.answer for each in tries}) > 1 for tries in rows)
    return {"rows": len(rows), "differ": differ, "variances": variances}


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
            outcomes = [tally.outcomes[place] for place in of_value]
            counted = [each for each in outcomes if not (tally.scoring.skip_errors and each.is_error)]
            means = {
                metric: _exp(mean) if metric in tally.scoring.logs else mean
                for number, metric in enumerate(tally.scoring.metrics)
                if (mean := _weighted(_scores(counted, number, tally.scoring))) is not None
            }
            values.append({"value": value, "n": len(counted), "means": means})
        found.append({"column": name, "values": values})
    return found


def _weighted(scores: Sequence[tuple[float, float]]) -> float | None:
    total = math.fsum(weight for _, weight in scores)
    return math.fsum(score * weight for score, weight in scores) / total if total else None


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
    return bool(record.get("error")) or (first is not None and (not isinstance(first, list) or first[0] < 1))


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
    return math.fsum(score[0] if isinstance(score, list) else 0.0 for score in scores) / len(scores)
