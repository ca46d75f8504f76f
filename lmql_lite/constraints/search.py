"""Distance from a configuration to an end, and some way there: a search that learns from every other one."""

from __future__ import annotations

from heapq import heappop, heappush
from threading import RLock
from typing import NamedTuple, Protocol

from lmql_lite.constraints.atoms import NEVER
from lmql_lite.constraints.counters import Counts
from lmql_lite.constraints.terms import And, Constant, Length, Stop, Term
from lmql_lite.errors import ConstraintError

SEARCHED = 15_000
"""Configurations that the first search for an end, with nothing learned, may look at, beside some for each byte of the
shortest text. Later ones depend on what was asked before, and may look at as many as memory can hold."""
SEARCHED_A_BYTE = 20
MEMO_KEPT = 1_000_000
"""Configurations whose distance is remembered, about 200 bytes each."""
WITNESSES_KEPT = 4
LOOKED_AHEAD = 2
"""Bytes: so many may be missing of a character, behind which all states are alike."""


class Edge(NamedTuple):
    """All bytes that lead from one state to the same other one. `added` is what each adds to the counts, `tokens`
    left out, and `spent` is that with the one token that a byte may cost (S19)."""

    state: int
    added: int
    spent: int
    byte: int
    how_many: int


class Reach(NamedTuple):
    """The most that one token says. No sentence begins where no word does."""

    bytes: int = 1
    words: int = 1


ONE_BYTE = Reach()


Configuration = tuple[int, int]
"""A state and a count."""
Steps = dict[Configuration, tuple[Configuration, int] | None]
"""For every configuration the one before it, and what the step adds to the counts."""


class Witness(NamedTuple):
    """A way from a state to an end: its bytes, what they add to the counts with a token for each, and the end.

    Of a term that is a choice or a pattern only the length is known.
    """

    length: int
    spent: int
    end: int


class TooLarge(ConstraintError):
    """A condition needs more states than an automaton may have."""


def too_large(term: Term, states: int) -> TooLarge:
    """The error where so many states were not enough: it names the clauses that multiply."""
    parts = term.terms if isinstance(term, And) else (term,)
    several = [part for part in parts if not isinstance(part, Length | Stop | Constant)]
    clauses = list(dict.fromkeys(f"`{part.span.source}`" for part in several if part.span))
    sentence = f"this condition needs more than {states:,} states"
    if len(clauses) > 1:
        sentence = f"these conditions together need more than {states:,} states: {', '.join(clauses)}"
    hint = "fewer or shorter options and phrases, or two holes, make it smaller"
    return TooLarge(sentence, span=term.span, hint=hint)


class Graph(Protocol):
    """The graph that is searched: an automaton."""

    def edges(self, state: int) -> tuple[Edge, ...]: ...

    def ends(self, state: int, count: int) -> bool: ...

    def at_least(self, state: int, count: int) -> int: ...


class DistanceSearch:
    """Distances and ways in one graph. Threads may share it.

    `is_exact` tells that what the graph says to be at least missing is all that is, `is_plain` that besides nobody asks
    for the way there.
    """

    def __init__(self, graph: Graph, counts: Counts, is_plain: bool, is_exact: bool, term: Term) -> None:
        self._graph = graph
        self._counts = counts
        self._is_plain = is_plain
        self.is_exact = is_plain or is_exact
        self._term = term
        self._lock = RLock()
        self._witnesses: dict[int, tuple[Witness, ...]] = {}
        self._distances: dict[tuple[int, int], int] = {}
        self._bounds: dict[tuple[int, int], int] = {}
        self._has_searched = False

    def edges(self, state: int) -> tuple[Edge, ...]:
        return self._graph.edges(state)

    def distance(self, state: int, count: int) -> int:
        known = self._distances.get((state, count))
        if known is not None:
            return known
        with self._lock:
            if len(self._distances) + len(self._bounds) > MEMO_KEPT:
                self._distances, self._bounds = {}, {}
            return self._search(state, count)

    def is_within(self, most: int, state: int, count: int) -> bool:
        """True if it is not farther than so many steps; a way that is known already answers at once."""
        known = self._distances.get((state, count))
        if known is not None or self.is_exact:
            return self.distance(state, count) <= most
        if self._graph.at_least(state, count) > most:
            return False
        if self._graph.ends(state, count):
            return True
        for witness in self._witnesses.get(state, ()):
            if witness.length <= most and self._graph.ends(witness.end, self._counts.add(count, witness.spent)):
                return True
        with self._lock:
            return self._search(state, count, to_the_end=True) <= most

    def witness(self, state: int, count: int) -> Witness | None:
        """Some way to an end, not always the shortest."""
        with self._lock:
            way = self._known_way(state, count, LOOKED_AHEAD)
            if way is None and (length := self._search(state, count, to_the_end=True)) < NEVER:
                way = Witness(length, 0, state) if self._is_plain else self._witnesses[state][0]
            return way

    def _known_way(self, state: int, count: int, ahead: int) -> Witness | None:
        """One that was found for another count, from here or from a little further on."""
        if self._graph.ends(state, count):
            return Witness(0, 0, state)
        for witness in self._witnesses.get(state, ()):
            if self._graph.ends(witness.end, self._counts.add(count, witness.spent)):
                return witness
        if not ahead or self._graph.at_least(state, count) >= NEVER:
            return None
        for edge in self._graph.edges(state):
            way = self._known_way(edge.state, self._counts.add(count, edge.spent), ahead - 1)
            if way is not None:
                return Witness(way.length + 1, self._counts.sum(way.spent, edge.spent), way.end)
        return None

    def _search(self, state: int, count: int, to_the_end: bool = False) -> int:
        """A* (Hart, Nilsson, Raphael 1968); what a search has learned is a better estimate for the next one.

        A search ends where the distance is known already, unless it shall go `to_the_end`: then it leaves a witness.
        """
        start = (state, count)
        least = self._graph.at_least(state, count)
        is_known = self._is_plain or (self.is_exact and not to_the_end)
        if is_known or self._graph.ends(state, count) or least >= NEVER:
            return self._distances.setdefault(start, 0 if self._graph.ends(state, count) else least)
        for witness in self._witnesses.get(state, ()):
            # a way that was the shortest for another count, and cannot be beaten for this one
            if witness.length == least and self._graph.ends(witness.end, self._counts.add(count, witness.spent)):
                return self._distances.setdefault(start, least)
        came_from: Steps = {start: None}
        depths = {start: 0}
        # a place is put in with what its predecessor was estimated at, and estimated itself when its turn comes
        queue = [(least, 0, start)]
        most = MEMO_KEPT if self._has_searched else SEARCHED + SEARCHED_A_BYTE * least
        while queue:
            total, height, here = heappop(queue)
            depth = -height
            if depth > depths[here]:
                continue  # a shorter way was found since
            known = None if to_the_end else self._distances.get(here)
            if known is None and self._graph.ends(*here):
                known = 0
            if known is not None:
                if depth + known > total:
                    if known < NEVER:
                        heappush(queue, (depth + known, height, here))
                    continue
                if known == 0:
                    self._witness(start, here, depth, came_from)
                self._has_searched = True
                return self._remember(here, depth + known, came_from, depths)
            estimate = max(self._graph.at_least(*here), self._bounds.get(here, 0))
            if depth + estimate > total:
                if estimate < NEVER:
                    heappush(queue, (depth + estimate, height, here))
                continue
            for edge in self._graph.edges(here[0]):
                after = (edge.state, self._counts.add(here[1], edge.spent))
                if depths.get(after, NEVER) > depth + 1:
                    depths[after] = depth + 1
                    came_from[after] = here, edge.spent
                    heappush(queue, (max(total, depth + 1), height - 1, after))
            if len(depths) > most:
                raise too_large(self._term, most)
        self._has_searched = True
        self._distances.update(dict.fromkeys(depths, NEVER))
        return NEVER

    def _witness(self, start: Configuration, goal: Configuration, depth: int, came_from: Steps) -> None:
        """Keeps the way to a goal, for other counts in its first state."""
        spent = 0
        step = came_from[goal]
        while step is not None:
            spent = self._counts.sum(spent, step[1])
            step = came_from[step[0]]
        kept = self._witnesses.get(start[0], ())
        self._witnesses[start[0]] = (Witness(depth, spent, goal[0]), *kept)[:WITNESSES_KEPT]

    def _remember(self, goal: Configuration, nearest: int, came_from: Steps, depths: dict[Configuration, int]) -> int:
        """Every place of the shortest way is at a known distance too, every other one at no less than a known one."""
        for place, depth in depths.items():
            if nearest - depth > self._bounds.get(place, 1):
                self._bounds[place] = nearest - depth
        step: tuple[Configuration, int] | None = (goal, 0)
        while step is not None:
            self._distances[step[0]] = nearest - depths[step[0]]
            step = came_from[step[0]]
        return nearest
