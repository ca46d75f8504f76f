"""Recent long prompts of a model, token by token, so that rows do not tokenize their common beginning again."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from lmql_lite.cache.entry import Node
from lmql_lite.engine.events import TokenMoved
from lmql_lite.engine.state import Step
from lmql_lite.tokens import common_length

PROMPTS = 4
LEAST, MOST = 256, 16_384
"""Bounds on the tokens of a kept prompt: shorter ones are fast to tokenize, longer ones take too much memory."""


@dataclass(slots=True)
class SpelledPrompt:
    """Text of a program on a path: its tokens, their ends in the text, their steps and their events."""

    node: Node
    before: Step | None
    text: bytes
    ids: tuple[int, ...]
    ends: list[int]
    steps: list[Step]
    moves: list[TokenMoved]

    def common(self, other: SpelledPrompt) -> int:
        """Number of common tokens at the beginning."""
        if self.node != other.node or self.before is not other.before:
            return 0
        length = common_length(self.text, other.text)
        return min(common_length(self.ids, other.ids), bisect_right(self.ends, length), len(self.steps))


@dataclass(slots=True)
class SpelledPrompts:
    """Recent prompts of one tree, whose nodes their steps keep. Prompts have `LEAST` to `MOST` tokens."""

    _kept: list[SpelledPrompt] = field(default_factory=list)

    def begin(self, prompt: SpelledPrompt) -> None:
        """Copies the steps shared with an earlier prompt, and keeps this prompt if it has many others."""
        best, known = None, 0
        for each in self._kept:
            if (length := each.common(prompt)) > known:
                best, known = each, length
        if best is not None:
            prompt.steps, prompt.moves = best.steps[:known], best.moves[:known]
        if best is None or 2 * known < len(prompt.ids):
            best = prompt
        self._kept = [*(each for each in self._kept if each is not best), best][-PROMPTS:]
