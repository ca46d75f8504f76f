"""A crowd under a rate limit: no row is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque

import pytest

import lmql_lite as lq
from lmql_lite.models.openai.gate import pause_before, wanted_pause
from lmql_lite.models.openai.model import OpenAIModel
from tests.models.api import choice, run
from tests.servers.answering import NOT_FOUND, Answering, Reply, Request, answering
from tests.tables import cases

WORDS = [choice(text="Hi"), choice(text="", finish_reason="stop"), "[DONE]"]


class Limited:
    """A limit of requests per second; `headers` are those of a refusal."""

    def __init__(self, rate: int, span: float = 1.0, **headers: str) -> None:
        self.rate = rate
        self.span = span
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.refused = 0
        self.accepted: deque[float] = deque()
        self.lock = threading.Lock()

    def __call__(self, request: Request) -> Reply:
        if request.method == "GET":
            listed = {"data": [{"id": "m", "owned_by": "someone"}]}
            return Reply(200, listed) if request.path == "/v1/models" else NOT_FOUND
        with self.lock:
            now = time.monotonic()
            while self.accepted and now - self.accepted[0] > self.span:
                self.accepted.popleft()
            if len(self.accepted) >= self.rate:
                self.refused += 1
                return Reply(429, {"error": {"message": "Rate limit reached"}}, self.headers)
            self.accepted.append(now)
        return Reply(200, WORDS)


def crowd(server: Answering, rows: int) -> list[str]:
    async def many() -> list[str]:
        model = OpenAIModel("m", base_url=server.base_url)
        query = lq.compile('"Row {n}:[X]"')
        results = await asyncio.gather(*(query.run({"n": n}, model=model, session=session) for n in range(rows)))
        return [result["X"] for result in results]

    session = lq.Session()
    return run(many())


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, marks=pytest.mark.slow, id="none"),
        pytest.param({"Retry_After": "1"}, marks=pytest.mark.slow, id="s"),
        pytest.param({"retry_after_ms": "300"}, id="ms"),
    ],
)
def test_31_of_200_queries_were_lost_under_a_limit_of_10_a_second(headers: dict[str, str]) -> None:
    """R8, five times as fast: 30 queries, at most 10 in each fifth of a second."""
    limit = Limited(10, 0.2, **headers)
    with answering(limit) as server:
        assert crowd(server, 30) == ["Hi"] * 30


@pytest.mark.slow
def test_200_queries_at_10_a_second_lose_none_and_fewer_than_half_are_refused() -> None:
    limit = Limited(10)
    with answering(limit) as server:
        assert crowd(server, 200) == ["Hi"] * 200
        assert limit.refused < 0.5 * len(server.posts)


@cases("models/gate", "a server says in many ways how long to wait", globals())
def test_a_server_says_in_many_ways_how_long_to_wait(
    headers: dict[str, str], seconds: float | None, is_waited_for: bool
) -> None:
    """A request does not wait for longer than a minute."""
    assert wanted_pause(headers) == seconds
    pause = pause_before(1, headers)
    assert (pause is not None) is is_waited_for
    assert pause is None or seconds is None or seconds <= pause <= 1.25 * seconds
