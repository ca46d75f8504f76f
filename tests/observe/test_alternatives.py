"""What else a token might have been, and which clause forbade it; and the guesses that a run did not come by."""

from __future__ import annotations

from lmql_lite.engine import events
from lmql_lite.observe.alternatives import alternatives
from tests.engine.watched import watched

LIST = '"A list of things not to forget when going to the sea (not travelling): \\n- Sunglasses \\n"\n'
CHOSEN = LIST + 'for i in range(3):\n    "-[THING]" where STOPS_AT(THING, "\\n") and "o" not in THING\n'
GUESSED = LIST + 'for i in range(8):\n    "-[THING]" where STOPS_AT(THING, "\\n")\n'


def test_a_better_token_that_a_clause_forbids_is_told_with_that_clause() -> None:
    forbidden = {}
    for event in watched(CHOSEN):
        if isinstance(event, events.TokenMoved) and event.choosable is not None:
            others = alternatives(event.choosable, 8)
            assert [other.logprob for other in others] == sorted((other.logprob for other in others), reverse=True)
            assert event.choosable.allowed < len(event.choosable.mask)
            taken = [other for other in others if other.id == event.token.id]
            assert all(other.is_allowed and other.clause is None for other in taken)
            forbidden |= {other.data: other.clause for other in others if not other.is_allowed}
    assert forbidden[b"flops"] == '"o" not in THING'


def test_guesses_that_were_told_and_not_come_by_are_those_of_the_ledger() -> None:
    run = watched(GUESSED)
    guessed = {event.node for event in run if isinstance(event, events.Guessed)}
    come_by = {event.node for event in run if isinstance(event, events.TokenMoved) and event.token.fate == "kept"}
    (done,) = [event for event in run if isinstance(event, events.Finished)]
    assert guessed, "the query has become one that guesses nothing"
    assert len(guessed - come_by) == done.result.usage.draft_rejected
