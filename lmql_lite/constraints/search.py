"""Search for the distance from a configuration to an end, and for some path there. Each search learns from others."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from threading import RLock
from typing import NamedTuple, Protocol

from lmql_lite.constraints.atoms import NEVER
from lmql_lite.constraints.counters import Counts
from lmql_lite.constraints.terms import And, Constant, Length, Not, Or, Stop, Term
from lmql_lite.errors import ConstraintError

SEARCHED = 15_000
"""Most configurations that the first search may reach, besides SEARCHED_A_BYTE for each step of the lower bound. What
later searches need depends on what was asked before: they may reach MEMO_KEPT."""
SEARCHED_A_BYTE = 20
MEMO_KEPT = 1_000_000
"""Most configurations whose distance is remembered, about 200 bytes each."""
WITNESSES_KEPT = 4
LOOKED_AHEAD = 2
"""Steps to look ahead for a state with a known path: states inside a character often lead to the same one after it."""


class Edge(NamedTuple):
    """All bytes that lead from one state to the same next state and add the same to the counts.

    `added` is this increment without tokens, and `spent` includes the one token that a byte may cost (S19). `byte` is
    the first of the bytes, and `how_many` is their number.
    """

    state: int
    added: int
    spent: int
    byte: int
    how_many: int


class Reach(NamedTuple):
    """Most bytes and most words that one token has. No sentence begins without a word, so `words` bounds both."""

    bytes: int = 1
    words: int = 1


ONE_BYTE = Reach()


Configuration = tuple[int, int]
"""A state and a count."""
Steps = dict[Configuration, tuple[Configuration, int] | None]
"""Maps each configuration to its predecessor and what the step from there adds to the counts; None for the start."""


class Witness(NamedTuple):
    """A path from a state to an end: number of steps, what they add to the counts (tokens included), and last state.

    In a plain search (see `DistanceSearch`), only the length is known.
    """

    length: int
    spent: int
    end: int


class TooLarge(ConstraintError):
    """A condition needs more states than an automaton may have."""


def counted_at_once(term: Term, sentence: str) -> TooLarge:
    """Error for counts that multiply. It names the clauses about them."""
    counted = [part.span.source for part in _lengths(term) if part.span]
    clauses = ", ".join(f"`{source}`" for source in dict.fromkeys(counted))
    hint = "leave one of them out, or bound the hole by max_tokens instead of by len()"
    return TooLarge(f"{sentence}: {clauses}", span=term.span, hint=hint)


def _lengths(term: Term) -> Iterator[Length]:
    match term:
        case Length():
            yield term
        case And(terms) | Or(terms):
            for part in terms:
                yield from _lengths(part)
        case Not(part):
            yield from _lengths(part)


def too_large(term: Term, states: int) -> TooLarge:
    """Error for a term that needs more than `states` states. It names the clauses that multiply."""
    parts = [part for part in (term.terms if isinstance(term, And) else (term,)) if not isinstance(part, Constant)]
    several = [part for part in parts if not isinstance(part, Length | Stop)]
    if not several and any(isinstance(part, Length) for part in parts):
        return counted_at_once(term, f"these conditions together need more than {states:,} states")
    clauses = list(dict.fromkeys(f"`{part.span.source}`" for part in several if part.span))
    sentence = f"this condition needs more than {states:,} states"
    if len(clauses) > 1:
        sentence = f"these conditions together need more than {states:,} states: {', '.join(clauses)}"
    hint = "fewer or shorter options and phrases, or two holes, make it smaller"
    return TooLarge(sentence, span=term.span, hint=hint)


class Graph(Protocol):
    """The graph that is searched: an automaton, with bytes or tokens as edges."""

    def edges(self, state: int) -> tuple[Edge, ...]: ...

    def ends(self, state: int, count: int) -> bool: ...

    def at_least(self, state: int, count: int) -> int: ...


class DistanceSearch:
    """Finds distances and paths in one graph. Threads may share it.

    `is_exact` is true if the graph's lower bounds are the distances. `is_plain` is true if, in addition, only the
    length of a path is needed.
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
        """True if the distance is at most `most`. A known path can answer without a search."""
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
        """Some path to an end, not always the shortest; None if there is none."""
        with self._lock:
            way = self._known_way(state, count, LOOKED_AHEAD)
            if way is None and (length := self._search(state, count, to_the_end=True)) < NEVER:
                way = Witness(length, 0, state) if self._is_plain else self._witnesses[state][0]
            return way

    def _known_way(self, state: int, count: int, ahead: int) -> Witness | None:
        """Path that was found for another count, from here or from a state at most `ahead` steps away."""
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
        """Distance by A* (Hart, Nilsson, Raphael 1968). What one search learns improves the heuristic of the next.

        A search stops where the distance is known. With `to_the_end` it goes on to an end and stores a witness.
        """
        start = (state, count)
        least = self._graph.at_least(state, count)
        is_known = self._is_plain or (self.is_exact and not to_the_end)
        if is_known or self._graph.ends(state, count) or least >= NEVER:
            return self._distances.setdefault(start, 0 if self._graph.ends(state, count) else least)
        for witness in self._witnesses.get(state, ()):
            # a path as long as the lower bound is the shortest for this count too
            if witness.length == least and self._graph.ends(witness.end, self._counts.add(count, witness.spent)):
                return self._distances.setdefault(start, least)
        came_from: Steps = {start: None}
        depths = {start: 0}
        # a configuration is queued with the estimate of its predecessor, and estimated itself when it is popped
        queue = [(least, 0, start)]
        most = MEMO_KEPT if self._has_searched else SEARCHED + SEARCHED_A_BYTE * least
        while queue:
            total, height, here = heappop(queue)
            depth = -height
            if depth > depths[here]:
                continue  # a shorter path was found since
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
        """Stores the path to a goal, to be tried for other counts in its first state."""
        spent = 0
        step = came_from[goal]
        while step is not None:
            spent = self._counts.sum(spent, step[1])
            step = came_from[step[0]]
        kept = self._witnesses.get(start[0], ())
        self._witnesses[start[0]] = (Witness(depth, spent, goal[0]), *kept)[:WITNESSES_KEPT]

    def _remember(self, goal: Configuration, nearest: int, came_from: Steps, depths: dict[Configuration, int]) -> int:
        """Stores the distances along the shortest path, and lower bounds for all other configurations reached."""
        for place, depth in depths.items():
            if nearest - depth > self._bounds.get(place, 1):
                self._bounds[place] = nearest - depth
        step: tuple[Configuration, int] | None = (goal, 0)
        while step is not None:
            self._distances[step[0]] = nearest - depths[step[0]]
            step = came_from[step[0]]
        return nearest
