"""What became of tokens since a watcher last looked, as events."""

from __future__ import annotations

from collections.abc import Iterator

from lmql_lite.constraints.terms import Term
from lmql_lite.runtime import events
from lmql_lite.runtime.ledger import Ledger


def moves(ledger: Ledger, term: Term | None) -> Iterator[events.Event]:
    """Tokens that joined or left the path, then those that were guessed. `term` is the condition of the open hole."""
    for step in ledger.news:
        chosen = ledger.choosable.get(step.node) if step.token.fate == "kept" else None
        choosable = chosen._replace(term=term) if chosen else None
        yield events.TokenMoved(step.token, step.node, step.parent, choosable=choosable)
    for step in ledger.guesses:
        yield events.Guessed(step.token, step.node, step.parent)
    ledger.news, ledger.choosable, ledger.guesses = [], {}, []
