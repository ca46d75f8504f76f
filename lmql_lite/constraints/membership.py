"""Whether one whole text meets a term."""

from __future__ import annotations

from lmql_lite.constraints.automaton import NOWHERE, Automaton
from lmql_lite.constraints.terms import Term


def meets(term: Term, text: bytes) -> bool:
    """Stops are met by every text (S13). The term counts no tokens: of a text nobody knows how many it has."""
    automaton = Automaton(term)
    state, count = automaton.start, 0
    for byte in text:
        state, count = automaton.step(state, count, byte)
        if state == NOWHERE:
            return False
    return automaton.holds(state, count)
