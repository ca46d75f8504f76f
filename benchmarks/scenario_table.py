"""The lines that `scenarios.py` prints."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.scenario_lmql import Lmql
from benchmarks.scenario_servers import Counts

DEAF = 1.3
"""Times as much that a server may bill which does not notice closed connections."""


@dataclass
class Table:
    """Prints lines, and remembers those that are missed."""

    lmql: Lmql | None = None
    missed: list[str] = field(default_factory=list)

    def title(self, text: str) -> None:
        print(f"\n{text:62} {'requests':>8} {'prompt':>7} {'said':>6} {'tokens':>7} {'(from..to)':>14} {'saved':>7}")

    def costs(
        self,
        name: str,
        runs: Sequence[Counts],
        off: Sequence[Counts] | None = None,
        *,
        requests: int | None = None,
        tokens: int | None = None,
        saving: float | None = None,
        deaf: Sequence[Counts] | None = None,
        times: float = DEAF,
    ) -> None:
        """One line: medians, how many times fewer tokens than with the cache off, and what they are held to.

        `saving` is the least share of the tokens of `off`. `deaf` are the same runs with a server that bills answers to
        their ends, whoever reads them; it may bill so many `times` as much.
        """
        parts = ((run.requests, run.prompt_tokens, run.completion_tokens, run.tokens) for run in runs)
        asked, prompt, said, total = (statistics.median(part) for part in zip(*parts, strict=True))
        before = statistics.median(run.tokens for run in off) if off else total
        saved = f"{before / total:.1f}x" if total else "all"
        spread = f"({min(run.tokens for run in runs)}..{max(run.tokens for run in runs)})"
        line = f"  {name:60} {asked:8g} {prompt:7g} {said:6g} {total:7g} {spread:>14} {saved if off else '':>7}"
        if requests is not None:
            line += f"  requests <= {requests} {self._met(name, asked <= requests)}"
        if tokens is not None:
            line += f"  tokens <= {tokens} {self._met(name, total <= tokens)}"
        if saving is not None:
            share = 1 - total / before
            line += f"  {share:.0%} saved >= {saving:.0%} {self._met(name, share >= saving)}"
        if deaf is not None:
            billed = statistics.median(run.tokens for run in deaf)
            many = statistics.median(run.requests for run in deaf)
            line += f"  deaf {many:g} · {billed:g} <= {times:g}x {self._met(f'{name}, deaf', billed <= times * total)}"
        print(line.rstrip())

    def reported(self, name: str, requests: int, tokens: int) -> None:
        """What others have measured elsewhere."""
        print(f"  {name:60} {requests:8} {'':>7} {'':>6} {tokens:7}")

    def value(self, name: str, values: Sequence[float], unit: str, at_most: float | None = None) -> None:
        median = statistics.median(values)
        spread = f"({min(values):,.2f}..{max(values):,.2f})" if len(values) > 1 else ""
        line = f"  {name:60} {median:10,.2f} {spread:>20}  {unit}"
        print(line if at_most is None else f"{line}  <= {at_most:g} {self._met(name, median <= at_most)}")

    def holds(self, name: str, is_so: bool) -> None:
        print(f"  {name:60} {self._met(name, is_so):>10}")

    def _met(self, name: str, is_so: bool) -> str:
        if not is_so:
            self.missed.append(name)
        return "met" if is_so else "MISSED"
