"""Tokens that are known are gone over in batches: a watcher sees the same events, and none of them late."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from numpy.typing import NDArray

import lmql_lite as lq
from lmql_lite.engine import events
from lmql_lite.models.base import ScoreRequest
from tests.tables import cases

SAYS = "Go: one two, three.\nAnd on it goes: " + "x" * 300


async def told(query: str, session: lq.Session, **options: Any) -> list[events.Event]:
    """What a watcher sees, up to an error of the run."""
    seen: list[events.Event] = []
    model = lq.ScriptedModel(SAYS)
    stream = lq.compile(query).stream(model=model, session=session, seed=3, max_tokens=200, speculate=False, **options)
    try:
        async for event in stream:
            seen.append(event)
    except lq.BudgetError:
        pass
    return seen


def without_source(seen: list[events.Event]) -> list[events.Event]:
    """Events without what may differ: the source of a token, the turns of samples, and the numbers of nodes."""
    kept = [event for event in seen if not isinstance(event, events.Finished | events.Guessed)]
    numbers: dict[int, int] = {}
    moved: list[events.Event] = []
    for event in sorted(kept, key=lambda event: getattr(event, "state", 0)):
        if isinstance(event, events.TokenMoved):
            source = "model" if event.token.source == "cache" else event.token.source
            parent, node = (numbers.setdefault(each, len(numbers)) for each in (event.parent, event.node))
            event = replace(event, token=replace(event.token, source=source), parent=parent, node=node)
        moved.append(event)
    return moved


@cases("engine/run_batches", "a run whose tokens are known tells what it told when they were not")
def test_a_run_whose_tokens_are_known_tells_what_it_told_when_they_were_not(name: str, query: str) -> None:
    session = lq.Session()
    cold, warm = (asyncio.run(told(query, session)) for _ in range(2))
    assert without_source(warm) == without_source(cold)
    assert isinstance(warm[-1], events.Finished) and isinstance(cold[-1], events.Finished)
    assert warm[-1].result.usage.tokens_from_cache == cold[-1].result.usage.tokens_from_model
    assert warm[-1].result.usage.tokens_from_cache
    assert warm[-1].result.usage.forward_passes == 0
    if name == "free":
        assert len(warm) > 300, "more than one batch"


@pytest.mark.parametrize("budget", [*range(2, 6), *range(65, 71)])
def test_a_run_out_of_steps_tells_as_much_where_all_was_known(budget: int) -> None:
    session = lq.Session()
    asyncio.run(told('"Go:[A]"', session))
    cold = asyncio.run(told('"Go:[A]"', lq.Session(), step_budget=budget))
    warm = asyncio.run(told('"Go:[A]"', session, step_budget=budget))
    assert without_source(warm) == without_source(cold)
    assert not any(isinstance(event, events.Finished) for event in warm)


def test_what_is_known_is_told_before_the_model_is_waited_for() -> None:
    class Asleep(lq.ScriptedModel):
        """Says nothing behind a text of so many tokens until it is woken."""

        until = 1000
        waited_for: asyncio.Event
        wakes: asyncio.Event

        async def score(self, requests: Sequence[ScoreRequest]) -> list[list[NDArray[Any]]]:
            if any(len(request.prefix) >= self.until for request in requests):
                self.waited_for.set()
                await self.wakes.wait()
            return await super().score(requests)

    model, session = Asleep(SAYS), lq.Session()
    known = lq.run_sync('"Go:[A]"', model=model, session=session, max_tokens=100, speculate=False)
    assert isinstance(known, lq.Result)
    model.until = 100
    seen: list[str] = []

    async def watch() -> None:
        async for event in lq.compile('"Go:[A]"').stream(model=model, session=session, max_tokens=110):
            if isinstance(event, events.Text):
                seen.append(event.text)

    async def race() -> str:
        model.waited_for, model.wakes = asyncio.Event(), asyncio.Event()
        watching = asyncio.create_task(watch())
        await model.waited_for.wait()
        before = "".join(seen)
        model.wakes.set()
        await watching
        return before

    assert asyncio.run(race()) == known.prompt
    assert "".join(seen).startswith(known.prompt + "x")


def test_who_stops_watching_between_two_known_tokens_ends_the_run_there() -> None:
    source, log = 'try:\n    "Go:[A]"\nfinally:\n    log.append("left")', list[str]()
    session, model = lq.Session(), lq.ScriptedModel(SAYS)
    lq.run_sync(source, {"log": log}, model=model, session=session, max_tokens=100)
    calls = model.calls

    async def leave() -> None:
        stream = lq.compile(source).stream({"log": log}, model=model, session=session, max_tokens=300)
        tokens = 0
        async for event in stream:
            tokens += isinstance(event, events.TokenMoved)
            if tokens == 50:
                break
        await stream.aclose()

    asyncio.run(leave())
    assert log == ["left", "left"]
    assert model.calls == calls
