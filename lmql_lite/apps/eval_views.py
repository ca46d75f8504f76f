"""Views of data-set runs on a terminal: progress, the table of a report, a comparison."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lmql_lite.apps.terminal import counted, money, write_error

if TYPE_CHECKING:
    from lmql_lite.data.run import Outcome, Tally

NOT_REACHED = 4
"""Exit code where a score is lower than was asked for."""
RUN_PATH = click.Path(path_type=Path)
MAX_NAMED = 10
FEW_CLUSTERS = 20


class Progress:
    """Status line of a run over a data set: what it waits for, then finished rows, errors, the time left, the score so
    far, the rate, hits and cost."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._began = time.monotonic()
        self._tally: Tally | None = None
        self._known = self._hits = 0
        self._scored = self._score = 0.0

    def go_on(self, tally: Tally) -> None:
        """Rows begin to run; those in the tally are known."""
        self._tally, self._known, self._began = tally, len(tally.outcomes), time.monotonic()
        for outcome in tally.outcomes:
            self._count(outcome)

    def see(self, record: Mapping[str, Any]) -> None:
        assert self._tally is not None, "rows run after go_on"
        self._hits += bool(record.get("cached"))
        self._count(self._tally.outcomes[-1])

    def _count(self, outcome: Outcome) -> None:
        score = next(iter(outcome.scores), None)
        self._score += score or 0.0
        self._scored += score is not None or outcome.is_error

    def text(self, width: int) -> str:
        """The line, without the last of its parts where it is too long."""
        seconds = time.monotonic() - self._began
        if self._tally is None or len(self._tally.outcomes) == self._known:
            return f"waiting for {self._model} · {seconds:.0f} s"
        tally, scoring = self._tally, self._tally.scoring
        ended, rate = len(tally.outcomes), (len(tally.outcomes) - self._known) / max(seconds, 1e-6)
        parts = [f"{ended:,}/{scoring.attempts:,} rows" if scoring.attempts else f"{ended:,} rows"]
        parts.append(counted(tally.errors.total(), "error"))
        if scoring.attempts:
            left = int(max(scoring.attempts - ended, 0) / rate)
            parts.append(f"{left // 60}:{left % 60:02} left")
        if scoring.metrics and self._scored:
            parts.append(f"{scoring.metrics[0]} {self._score / self._scored:.3f}")
        parts += [f"{rate:.1f}/s", f"{self._hits:,} from the cache"]
        parts += [f"cost {money(tally.cost)}"] if tally.cost else []
        while len(shown := " · ".join(parts)) > width and len(parts) > 1:
            parts.pop()
        return shown


_GO_ON = "run the same command to continue"
ENDINGS = {
    "running": "the run is going on",
    "died": f"the run did not end; {_GO_ON}",
    "stopped": f"the run was stopped; {_GO_ON}",
}
SPENT = {
    "requests": "request",
    "forward_passes": "forward pass",
    "prompt_tokens": "prompt token",
    "completion_tokens": "completion token",
    "tokens_from_cache": "cached token",
}


def report_lines(report: Mapping[str, Any], folder: str) -> Iterator[str]:
    failed = sum(report["errors"].values())
    counted_as = "" if not failed else f", {counted(failed, 'error')}, counted as wrong"
    yield f"{folder}: {counted(report['attempts'], 'attempt')} of {counted(report['ids'], 'row')}{counted_as}"
    if progress := report_progress(report):
        yield f"  {progress}"
    if report["kept"] and report["status"] not in ENDINGS:
        yield f"  finished before {report['kept']:,}, new {report['attempts'] - report['kept']:,}"
    for each in report["metrics"]:
        yield f"  {each['name']:<16} {each['mean']:.4f}  {_interval(each, report['cluster'])}  n {each['n']:,}"
    yield from report_notes(report, folder)


def report_progress(report: Mapping[str, Any]) -> str:
    """Progress of a run that has not ended; empty for one that has."""
    if (ending := ENDINGS.get(report["status"])) is None:
        return ""
    asked = "" if report["asked"] is None else f" of {report['asked']:,}"
    return f"{report['attempts']:,}{asked} attempts so far: {ending}"


def report_notes(report: Mapping[str, Any], folder: str) -> Iterator[str]:
    """Lines of a report below its means."""
    yield from _few_clusters(report)
    for name, number in report["metric_errors"].items():
        first, *others = [f"{row}: {problem}" for problem, row in report["metric_problems"][name].items()]
        yield f"  {name}: no score for {counted(number, 'row')}, counted as 0: {first}"
        yield from (f"    {each}" for each in others)
    for kind, number in report["errors"].items():
        yield f"  {kind}: {counted(number, 'row')} (lq eval show {folder} --wrong)"
    usage = report["usage"]
    spent = [counted(usage[name], what) for name, what in SPENT.items() if usage.get(name)]
    if spent:
        yield f"  {'together ' if report['kept'] else ''}{', '.join(spent)}"
    if report["cost"]:
        yield f"  cost {money(report['cost'])}"


def _interval(found: Mapping[str, Any], cluster: str | None) -> str:
    if found["low"] is not None:
        return f"[{found['low']:.4f}, {found['high']:.4f}]"
    if found["groups"] > 1:
        return "(no interval: all rows are equal)"
    return f"(no interval: fewer than two {'ids' if cluster is None else 'clusters'})"


def _few_clusters(report: Mapping[str, Any]) -> Iterator[str]:
    """A sentence about an interval over clusters that are few."""
    numbers = [(each.get("delta") or each)["groups"] for each in report["metrics"]]
    if report["cluster"] is not None and 1 < (fewest := min(numbers, default=FEW_CLUSTERS)) < FEW_CLUSTERS:
        yield (
            f"  {fewest} clusters of {report['cluster']}: too few for a reliable interval, which needs at least "
            f"{FEW_CLUSTERS}"
        )


def comparison_lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found['first']} -> {found['second']}"
    for each in found["metrics"]:
        delta = each["delta"]
        yield (
            f"  {each['name']:<16} {each['first']:.4f} -> {each['second']:.4f}  {delta['mean']:+.4f} "
            f"{_interval(delta, found['cluster'])}"
        )
        counts = f"{each['wins']} better, {each['ties']} equal, {each['losses']} worse"
        yield f"    {counts}; sign flips p {each['p_sign_flips']:.4g}"
        if each["changed"]:
            yield f"    changed: {_named(each['changed'])}"
    yield from comparison_notes(found)


def comparison_notes(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines of a comparison below its differences."""
    yield from _few_clusters(found)
    for name, what in (
        ("only_first", "only in the first"),
        ("only_second", "only in the second"),
        ("other_targets", "with other targets"),
    ):
        if found[name]:
            yield f"  {counted(len(found[name]), 'row')} {what}: {_named(found[name])}"


def _named(ids: list[str]) -> str:
    more = len(ids) - MAX_NAMED
    return ", ".join(ids[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def is_worse(comparison: Mapping[str, Any], most: float) -> bool:
    """True where a metric of the second run is lower by more than `most`; says which."""
    worse = [each for each in comparison["metrics"] if each["delta"]["mean"] < -most]
    for each in worse:
        write_error(f"{each['name']} is worse by {-each['delta']['mean']:.4f}")
    return bool(worse)
