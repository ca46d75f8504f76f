"""Several tries of each row: metrics over them, and their variance."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lmql_lite.data.intervals import Interval, mean_interval, pass_at
from lmql_lite.data.outcomes import Outcomes
from lmql_lite.errors import InputError

MAJORITY = "majority"


def is_of_tries(metric: str) -> bool:
    """True for `pass@K` and `majority`."""
    return metric == MAJORITY or re.fullmatch(r"pass@[1-9]\d*", metric) is not None


def check_tries(metrics: Sequence[str], repeat: int, *, has_metric: bool) -> None:
    """Raises InputError where metrics over tries lack a metric of one try, or tries."""
    for name in metrics:
        needed = 2 if name == MAJORITY else int(name[5:])
        if not has_metric or repeat < needed:
            raise InputError(f"{name} needs another metric and as many tries", hint=f"-m exact --repeat {needed}")


def over_tries(name: str, outcomes: Outcomes, counts: Sequence[int]) -> dict[str, Any]:
    """A metric over the tries of each row, by the first metric of one try.

    `pass@K`: the chance that one of K tries is right. `majority`: the score of the most frequent answer, the mean of
    them where several are. A try that failed has no answer.
    """
    scores, groups, allowed = outcomes.scores[0], outcomes.groups, set(counts)
    found, names, missing = list[float](), list[str](), 0
    for places in outcomes.of_ids():
        places = [place for place in places if place in allowed]
        if name == MAJORITY:
            score = _majority(places, outcomes)
        elif len(places) >= (k := int(name[5:])):
            score = pass_at(k, len(places), sum(scores[place] == 1.0 for place in places))
        else:
            missing += 1
            continue
        found.append(score)
        names.append(groups[places[0]] if places else "")
    interval = mean_interval(found, [1.0] * len(found), names) if found else Interval(0.0, None, None, 0)
    return {"name": name, "n": len(found), "failed": missing, **asdict(interval)}


def _majority(places: Sequence[int], outcomes: Outcomes) -> float:
    votes = Counter(outcomes.answers[place] for place in places if not outcomes.errors[place])
    best = [answer for answer, number in votes.items() if number == max(votes.values())]
    ends = [next(place for place in places if outcomes.answers[place] == answer) for answer in best]
    scores = [0.0 if math.isnan(score := outcomes.scores[0][place]) else score for place in ends]
    return math.fsum(scores) / len(scores) if scores else 0.0


def about_tries(outcomes: Outcomes, counts: Sequence[int]) -> dict[str, Any]:
    """Variance of each metric within a row, as the mean over rows, and the number of rows whose answers differ."""
    allowed = set(counts)
    rows = [[place for place in places if place in allowed] for places in outcomes.of_ids()]
    rows = [places for places in rows if len(places) > 1]
    variances = []
    for scores in outcomes.scores:
        of_rows = [_variance([scores[place] for place in places if not math.isnan(scores[place])]) for places in rows]
        variances.append(math.fsum(of_rows) / len(of_rows) if of_rows else 0.0)
    differ = sum(len({outcomes.answers[place] for place in places}) > 1 for places in rows)
    return {"rows": len(rows), "differ": differ, "variances": variances}


def _variance(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
