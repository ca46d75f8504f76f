"""The record of a branch: events tell each token once, and its fate; the result has the same tokens (law 6)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from lmql_lite.tokens import Token

PROGRAMS = {
    "a token that is cut": ('"Say:[X]!" where STOPS_BEFORE(X, "lo")', "cut"),
    "values that Python rejects": ('"Say:[X] or [Y]" where X in [" hello", " hi"] and other(X)', "rejected"),
    "a decorator that changes the text": ('"Say:[@loud X] and [Y]" where len(X) < 4 and len(Y) < 4', "removed"),
    "a hole that fails": ('try:\n    "Say:[X]" where len(X) < 3 and no(X)\nexcept Exception:\n    "no"', "rejected"),
    "a query whose value replaces its text": ('"Say:[X: inner()] and [Y]" where len(Y) < 3', "removed"),
}


@lq.query
async def inner() -> str:
    """lmql
    "thinking [A]" where len(A) < 4
    return A.upper()
    """


def told(seen: list[events.Event]) -> list[Token]:
    """The tokens of a run in order, with their last fates."""
    found: list[events.TokenMoved] = []
    for event in seen:
        if isinstance(event, events.TokenMoved) and event.token.fate == "kept":
            found.append(event)
        elif isinstance(event, events.TokenMoved):
            places = [(each.parent, each.node) for each in found]
            at = len(places) - 1 - places[::-1].index((event.parent, event.node))
            found[at] = event
    return [event.token for event in found]


@pytest.mark.parametrize(("source", "fate"), PROGRAMS.values(), ids=PROGRAMS.keys())
@pytest.mark.parametrize("words", [(), (b" hello", b"lo the", b"b\nB", b": c")], ids=["bytes", "words"])
def test_a_result_has_the_tokens_that_events_told(source: str, fate: str, words: tuple[bytes, ...]) -> None:
    inputs: dict[str, Any] = {
        "loud": str.upper,
        "other": lambda text: text == " hi",
        "no": lambda text: False,
        "inner": inner,
    }

    async def run(session: lq.Session) -> lq.Result:
        query = lq.compile(source)
        given = {name: value for name, value in inputs.items() if f"{name}(" in source or f"@{name}" in source}
        model = lq.ScriptedModel("Say: hello there", words=words)
        seen = [event async for event in query.stream(given, model=model, session=session, max_tokens=24)]
        last = seen[-1]
        assert isinstance(last, events.Finished)
        assert told(seen) == list(last.result.tokens)
        return last.result

    session = lq.Session()
    cold, warm = asyncio.run(run(session)), asyncio.run(run(session))
    assert any(token.fate == fate for token in cold.tokens)
    assert [(token.id, token.fate) for token in warm.tokens] == [(token.id, token.fate) for token in cold.tokens]
