"""How often each token was said so far, for penalties."""

from __future__ import annotations

from array import array

import numpy as np

from lmql_lite.cache.penalties import NO_PENALTIES, Penalties
from lmql_lite.runtime.state import Step
from lmql_lite.tokens import Sampling


class Counts:
    """The counts of one path. It goes where it is asked to: what joined or left the path since then is all that it
    looks at, so that a token costs as much at the end of a long text as at its beginning.
    """

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        """Of a token in the columns."""
        self._ids, self._in_text, self._said = array("i"), array("i"), array("i")
        self._counted: list[Step] = []
        """Oldest first."""
        self._places: dict[int, int] = {}
        """Of a step, by its identity, among those that were counted."""

    def fork(self) -> Counts:
        fork = Counts()
        fork._slots, fork._places, fork._counted = dict(self._slots), dict(self._places), list(self._counted)
        fork._ids, fork._in_text, fork._said = self._ids[:], self._in_text[:], self._said[:]
        return fork

    def penalties(self, history: Step | None, sampling: Sampling) -> Penalties:
        """What `sampling` makes of the tokens on the path with this history."""
        if not sampling.penalises:
            return NO_PENALTIES
        self._go_to(history)
        ids, in_text, said = (np.array(column, np.int32) for column in (self._ids, self._in_text, self._said))
        return Penalties.of(sampling, ids, in_text, said)

    def _go_to(self, history: Step | None) -> None:
        joined: list[Step] = []
        while history is not None and id(history) not in self._places:
            joined.append(history)
            history = history.before
        stays = self._places[id(history)] + 1 if history is not None else 0
        while len(self._counted) > stays:
            step = self._counted.pop()
            del self._places[id(step)]
            self._count(step, -1)
        for step in reversed(joined):
            self._places[id(step)] = len(self._counted)
            self._counted.append(step)
            self._count(step, 1)

    def _count(self, step: Step, change: int) -> None:
        token = step.token
        if token.fate != "kept" or step.node == step.parent:
            return
        slot = self._slots.setdefault(token.id, len(self._ids))
        if slot == len(self._ids):
            self._ids.append(token.id)
            self._in_text.append(0)
            self._said.append(0)
        self._in_text[slot] += change
        self._said[slot] += change if token.hole is not None else 0
