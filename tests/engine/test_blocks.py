"""Compound statements around holes: what a query may catch, what runs in any case, and what text stays (S23, S33).

That they do what they do in Python is the property of tests/properties/test_blocks.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from tests.engine.watched import shown, watched


def run(source: str, says: str = "", inputs: dict[str, Any] | None = None, **options: Any) -> lq.Result:
    return lq.run_sync(source, inputs, model=lq.ScriptedModel(says), session=lq.Session(), **options)


class Silent(lq.ScriptedModel):
    """Fails when it has said so many tokens."""

    def __init__(self, says: str, after: int) -> None:
        super().__init__(says)
        self.left = after

    async def score(self, requests: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the disk is on fire")
        return await super().score(requests)


def test_a_model_that_fails_can_be_caught() -> None:
    source = 'try:\n    "b[X]" where len(X) == 9\nexcept lq.ModelError as error:\n    return type(error).__name__'
    model = Silent("bhello world", after=4)
    result = lq.run_sync(source, {"lq": lq}, model=model, session=lq.Session(), speculate=False)
    assert (result.value, result.prompt) == ("ModelError", "b")
    assert "".join(shown(source, {"lq": lq}, model=Silent("bhello world", after=4), speculate=False)) == "b"
    result.check_ledger()


@pytest.mark.parametrize("options", [{}, {"decoder": "beam", "n": 2}], ids=["argmax", "beam"])
def test_a_budget_cannot_be_caught_and_what_runs_in_any_case_runs(options: dict[str, Any]) -> None:
    log: list[str] = []
    source = """
while True:
    try:
        "."
    except BaseException:
        log.append("caught")
    finally:
        log.append("finally")
"""
    with pytest.raises(lq.BudgetError, match="100 steps"):
        run(source, inputs={"log": log}, step_budget=100, **options)
    assert set(log) == {"finally"}


def test_a_reader_that_leaves_is_not_held_by_an_endless_finally() -> None:
    source = 'try:\n    "[X]" where len(X) == 1\n    "[Y]"\nfinally:\n    while True:\n        "a"'
    watched(source, model=lq.ScriptedModel("xyz"), until=events.HoleClosed)


def test_a_run_that_nobody_reads_on_runs_what_runs_in_any_case_and_asks_no_model() -> None:
    log: list[str] = []

    class Door:
        def __enter__(self) -> None:
            log.append("in")

        def __exit__(self, kind: Any, *rest: Any) -> None:
            log.append(f"out {kind.__name__}")

    source = """
try:
    with Door():
        "a[X]" where len(X) == 3
        "b[Y]"
except BaseException:
    log.append("caught")
finally:
    log.append("finally")
    "c[Z]"
    log.append("never")
"""

    watched(source, {"log": log, "Door": Door}, events.HoleClosed, model=lq.ScriptedModel("axyzb and so on"))
    assert log == ["in", "out GivenUp", "finally"]


def test_a_run_that_is_cancelled_runs_what_runs_in_any_case() -> None:
    log: list[str] = []

    async def wait() -> None:
        log.append("waits")
        await asyncio.sleep(30)

    source = """
try:
    "a"
    await wait()
except BaseException:
    log.append("caught")
finally:
    await sleep(0)
    "b"
    log.append("finally")
"""

    async def cancelled() -> None:
        given = {"log": log, "wait": wait, "sleep": asyncio.sleep}
        run = asyncio.ensure_future(lq.run(source, given, model=lq.ScriptedModel(""), session=lq.Session()))
        while not log:
            await asyncio.sleep(0)
        run.cancel()
        await run

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert log == ["waits", "finally"]


# Hypotheses that part ways ---------------------------------------------------------------------------------------
