"""What became of tokens since a watcher last looked, as events."""

from __future__ import annotations

from lmql_lite.constraints.terms import Term
from lmql_lite.runtime import events
from lmql_lite.runtime.alternatives import Choosable
from lmql_lite.runtime.ledger import Ledger


def moves(ledger: Ledger, term: Term | None) -> list[events.Event]:
    """Tokens that joined or left the path, then those that were guessed. `term` is the condition of the open hole."""
    told: list[events.Event] = []
    for step in ledger.news:
        chosen = ledger.choosable.get(step.node) if step.token.fate == "kept" else None
        choosable = Choosable(*chosen[:-1], term) if chosen else None
        told.append(events.TokenMoved(step.token, step.node, step.parent, choosable=choosable))
    for step in ledger.guesses:
        told.append(events.Guessed(step.token, step.node, step.parent))
    ledger.news, ledger.choosable, ledger.guesses = [], {}, []
    return told
