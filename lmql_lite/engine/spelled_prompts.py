"""The last long prompts of a model, token by token, so that rows with one beginning do not spell it again."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from lmql_lite.cache.entry import Node
from lmql_lite.engine.events import TokenMoved
from lmql_lite.engine.state import Step
from lmql_lite.tokens import common_length

PROMPTS = 4
LEAST, MOST = 256, 16_384
"""Tokens of a prompt that is kept: fewer are quick to spell, and more would take too much memory."""


@dataclass(slots=True)
class SpelledPrompt:
    """Text of a program on a path: its tokens, where each of them ends in the text, their steps and their events."""

    node: Node
    before: Step | None
    text: bytes
    ids: tuple[int, ...]
    ends: list[int]
    steps: list[Step]
    moves: list[TokenMoved]

    def common(self, other: SpelledPrompt) -> int:
        """Number of the first tokens that are the same in both."""
        if self.node != other.node or self.before is not other.before:
            return 0
        length = common_length(self.text, other.text)
        return min(common_length(self.ids, other.ids), bisect_right(self.ends, length), len(self.steps))


@dataclass(slots=True)
class SpelledPrompts:
    """Belongs to one tree: the steps keep their nodes. Asked about prompts of `LEAST` to `MOST` tokens."""

    _kept: list[SpelledPrompt] = field(default_factory=list)

    def begin(self, prompt: SpelledPrompt) -> None:
        """Fills in the steps that an earlier prompt has, and keeps this one if it has many others."""
        best, known = None, 0
        for each in self._kept:
            if (length := each.common(prompt)) > known:
                best, known = each, length
        if best is not None:
            prompt.steps, prompt.moves = best.steps[:known], best.moves[:known]
        if best is None or 2 * known < len(prompt.ids):
            best = prompt
        self._kept = [*(each for each in self._kept if each is not best), best][-PROMPTS:]
