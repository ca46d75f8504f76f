"""Outcomes of a run's attempts in columns, as far as a report needs them: about fifty bytes per attempt."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lmql_lite.data.equality import text
from lmql_lite.data.metrics import answer_of

NO_SCORE = math.nan


@dataclass(frozen=True, slots=True)
class Scoring:
    """Everything but the records that a report is made from. The folder of a run keeps it, so that a run can be looked
    at while it is going on and after it has died.

    `logs` are the metrics whose scores are log-likelihoods; `of_tries` those over the repeats of a row. `attempts` is
    the number that is asked for, None if it is not known.
    """

    metrics: tuple[str, ...]
    logs: tuple[str, ...] = ()
    cluster: str | None = None
    repeat: int = 1
    of_tries: tuple[str, ...] = ()
    skip_errors: bool = False
    attempts: int | None = None


class Outcomes:
    """Columns of attempts. A score is NaN if the row or the metric failed."""

    def __init__(self, scoring: Scoring) -> None:
        self.ids: list[str] = []
        self.repeats = array("i")
        self.errors = bytearray()
        self.scores = [array("d") for _ in scoring.metrics]
        self.weights = [array("d") for _ in scoring.metrics]
        self.answers = array("q")
        """Digests of answers, where rows have several tries."""
        self._clusters: list[str] = []
        self._names = scoring.metrics
        self._cluster, self._has_tries = scoring.cluster, scoring.repeat > 1

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def groups(self) -> list[str]:
        """Names of the groups that are drawn together: the cluster, else the id with its repeats."""
        return self.ids if self._cluster is None else self._clusters

    def add(self, record: Mapping[str, Any]) -> None:
        self.ids.append(record["id"])
        self.repeats.append(record["repeat"])
        self.errors.append(bool(record.get("error")))
        found = record.get("scores", {})
        for name, scores, weights in zip(self._names, self.scores, self.weights, strict=True):
            score = found.get(name)
            value, weight = score if isinstance(score, list) else (NO_SCORE, 1.0)
            scores.append(value)
            weights.append(weight)
        if self._cluster is not None:
            self._clusters.append(str(record.get("columns", {}).get(self._cluster)))
        if self._has_tries:
            self.answers.append(hash(text(answer_of(record))))

    def of_ids(self) -> Iterator[list[int]]:
        """Places of the attempts of each id."""
        places: dict[str, list[int]] = {}
        for place, name in enumerate(self.ids):
            places.setdefault(name, []).append(place)
        return iter(places.values())
