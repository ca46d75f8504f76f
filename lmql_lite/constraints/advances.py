"""What the bytes of a token do to a configuration of an automaton: the same few tokens come again and again."""

from __future__ import annotations

from lmql_lite.constraints.automaton import NOWHERE, Automaton
from lmql_lite.constraints.matcher import Ending

KEPT = 1 << 14
LONGEST = 32
"""Bytes of a token that is remembered."""


Advance = tuple[int, int, Ending | None, int]
"""State and count, how the hole ends there if it does, and how many of the bytes are in the value: below 0 where that
ends before them."""


class Advances:
    """Of all automata of an engine. Threads may share it: what one of them works out anew is the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[Automaton, int, int, bytes, int], Advance | None] = {}
        self._valid: dict[tuple[Automaton, int, int, bytes], int] = {}

    def after(self, automaton: Automaton, state: int, count: int, data: bytes, tokens: int) -> Advance | None:
        """Where `data` leads, being so many tokens; None where it is not allowed."""
        key = automaton, state, count, data, tokens
        try:
            return self._known[key]
        except KeyError:
            found = _after(*key)
            if len(data) <= LONGEST:
                if len(self._known) >= KEPT:
                    self._known = {}
                self._known[key] = found
            return found

    def longest_valid(self, automaton: Automaton, state: int, count: int, data: bytes) -> int:
        """How many leading bytes can stand."""
        key = automaton, state, count, data
        valid = self._valid.get(key)
        if valid is None:
            valid = _longest_valid(*key)
            if len(data) <= LONGEST:
                if len(self._valid) >= KEPT:
                    self._valid = {}
                self._valid[key] = valid
        return valid


def _after(automaton: Automaton, state: int, before: int, data: bytes, tokens: int) -> Advance | None:
    count = automaton.counts.add(before, tokens * automaton.token)
    left: Advance | None = None
    for at, byte in enumerate(data):
        place = state
        state, after = automaton.step(state, count, byte)
        if automaton.closed and left is None and automaton.holds(place, before) and not automaton.lives(state, after):
            left = place, before, "end-of-text", at  # unless the whole token can be kept
        before = count = after
        if state == NOWHERE:
            return left
        cut = automaton.cut(state, count)
        if cut is not None:
            return state, count, "stop", at + 1 - cut
    if left is not None and not automaton.lives(state, count):
        return left
    if automaton.holds(state, count) and not automaton.goes_on(state, count):
        return state, count, "forced" if automaton.closed else "bound", len(data)
    return state, count, None, len(data)


def _longest_valid(automaton: Automaton, state: int, count: int, data: bytes) -> int:
    for at, byte in enumerate(data):
        complete = automaton.closed and automaton.holds(state, count)
        state, count = automaton.step(state, count, byte)
        if automaton.stops(state, count):
            return len(data)
        if not automaton.lives(state, count):
            return len(data) if complete else at
    return len(data)
