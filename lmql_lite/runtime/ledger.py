"""The books of one run, kept while it runs; a result checks them against its tokens (law 6)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from lmql_lite.runtime.result import Usage
from lmql_lite.runtime.state import Step
from lmql_lite.tokens import Fate


class Ledger:
    """`run` tells this run's own questions from facts that were known before."""

    def __init__(self, run: int) -> None:
        self.run = run
        self.requests = 0
        self.forward_passes = 0
        self.news: list[Step] = []
        """Tokens that joined or left the path since the watcher last looked."""
        self._kept: Counter[str] = Counter()
        self._prompt = 0
        self._wasted = 0

    def add(self, step: Step) -> None:
        self.news.append(step)
        if step.token.hole is None:
            self._prompt += 1
        else:
            self._kept[step.token.source] += 1

    def drop(self, step: Step, fate: Fate) -> None:
        """A token that was kept so far leaves the path."""
        self.news.append(replace(step, token=replace(step.token, fate=fate)))
        if step.token.hole is None:
            self._prompt -= 1
        else:
            self._kept[step.token.source] -= 1
            self._wasted += 1

    def usage(self) -> Usage:
        return Usage(
            requests=self.requests,
            forward_passes=self.forward_passes,
            prompt_tokens=self._prompt,
            completion_tokens=sum(self._kept.values()) + self._wasted,
            tokens_from_cache=self._kept["cache"],
            tokens_from_model=self._kept["model"],
            tokens_forced=self._kept["forced"],
            draft_accepted=self._kept["draft"],
            draft_rejected=0,
            wasted_tokens=self._wasted,
        )
