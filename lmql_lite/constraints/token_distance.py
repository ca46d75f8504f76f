"""Distances to an end in tokens of a vocabulary (S19): an automaton whose steps are tokens.

Every single byte is a step too, even if the vocabulary has no token for it.
"""

from __future__ import annotations

from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.search import DistanceSearch, Edge, Reach
from lmql_lite.constraints.step_table import NOWHERE
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.constraints.walk import walk

STATES = 64
"""Most states between characters of an automaton that is searched by tokens: each takes a walk of some milliseconds."""


def in_tokens(automaton: Automaton, vocabulary: Vocabulary) -> DistanceSearch | None:
    """Search for distances in tokens. None if phrases have flags or there are too many states: then bytes stand in."""
    if automaton.counts.num_flags or automaton.only_phrases or not vocabulary.longest or not _is_small(automaton):
        return None
    return DistanceSearch(ByToken(automaton, vocabulary), automaton.counts, False, False, automaton.term)


def _is_small(automaton: Automaton) -> bool:
    if automaton.is_choice:
        return True
    met = {automaton.start}
    waiting = [automaton.start]
    whole = 0
    while waiting:
        state = waiting.pop()
        whole += automaton.is_whole(state)
        if whole > STATES:
            return False
        for edge in automaton.edges(state):
            if edge.state not in met:
                met.add(edge.state)
                waiting.append(edge.state)
    return True


class ByToken:
    """A `search.Graph` whose edges are tokens."""

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary) -> None:
        self._automaton = automaton
        self._vocabulary = vocabulary
        self._reach = Reach(vocabulary.longest, vocabulary.most_words)
        self._edges: dict[int, tuple[Edge, ...]] = {}

    def ends(self, state: int, count: int) -> bool:
        return self._automaton.ends(state, count)

    def at_least(self, state: int, count: int) -> int:
        return self._automaton.at_least(state, count, self._reach)

    def edges(self, state: int) -> tuple[Edge, ...]:
        edges = self._edges.get(state)
        if edges is None:
            edges = self._edges[state] = self._find(state)
        return edges

    def _find(self, state: int) -> tuple[Edge, ...]:
        automaton = self._automaton
        pairs = walk(self._vocabulary, automaton, state, b"", b"", None).pairs
        found = pairs.configurations(automaton.counts) + [(edge.state, edge.added) for edge in automaton.edges(state)]
        longest_first = sorted(dict.fromkeys(found), key=lambda pair: -pair[1])
        return tuple(
            Edge(after, added, added + automaton.token, 0, 1) for after, added in longest_first if after != NOWHERE
        )
