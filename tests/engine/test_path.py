"""Text and holes of a segment are matched as one thing: a token may span the border between them (S14-S16)."""

from __future__ import annotations

import lmql_lite as lq
from lmql_lite.engine import events
from lmql_lite.models.scripted import WORDS
from lmql_lite.program.ops import Hole
from tests.engine.watched import watched
from tests.tables import cases


def joined(source: str) -> list[str]:
    """The holes of a query that stand in one segment with the hole before them."""
    program = lq.compile(source).program
    return [op.name for op in program.parts if isinstance(op, Hole) and op.continues_segment]


@cases("engine/path", "what ends a segment S16", globals())
def test_what_ends_a_segment_S16(why: str, source: str) -> None:
    assert "Y" not in joined(source), why


@cases("engine/path", "what does not end a segment S16", globals())
def test_what_does_not_end_a_segment_S16(source: str) -> None:
    assert joined(source) == ["Y"]


def test_a_watcher_sees_holes_open_and_close_in_order_and_no_text_twice_S33() -> None:
    words = (*WORDS, b"\nB: ye", b".\nC: d")
    source = '"A: [X]B: [Y]C: [Z]" where STOPS_AT(X, "\\n") and STOPS_BEFORE(Y, "C") and len(Z) == 2'
    model = lq.ScriptedModel("A: ab\nB: yes.\nC: de", words=words)

    seen = watched(source, model=model)
    finished = seen[-1]
    assert isinstance(finished, events.Finished)
    texts = [event for event in seen if isinstance(event, events.Text)]
    assert "".join(event.text for event in texts) == finished.result.prompt == "A: ab\nB: yes.\nC: de"
    for hole, value in finished.result.variables.items():
        assert "".join(event.text for event in texts if event.hole == hole) == value
    order = [
        type(event).__name__ + " " + event.name
        for event in seen
        if isinstance(event, events.HoleOpened | events.HoleClosed)
    ]
    assert order == [f"{what} {hole}" for hole in "XYZ" for what in ("HoleOpened", "HoleClosed")]
    # what the token from X said of Y is shown before Y is asked for
    opened = next(at for at, event in enumerate(seen) if isinstance(event, events.HoleOpened) and event.name == "Y")
    assert seen[opened + 1] == events.Text("ye", "Y")
