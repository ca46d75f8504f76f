"""A thousand queries at once on one server, from one process (`scenarios.py`)."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import statistics
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import lmql_lite as lq
from benchmarks.scenario_servers import House, Near, model_at
from benchmarks.scenario_table import Table
from benchmarks.scenario_texts import ROW, ROWS, numbering
from lmql_lite.models.openai.model import CONCURRENCY
from tests.servers.kinds import VLLM

MANY = 1000
PROMPT = "Row {}:"


class Crowd:
    """Asks one server from this process, a thousand times at once."""

    def __init__(self, near: Near) -> None:
        self.near = near
        self.lost = 0
        self.counted = set[tuple[int, int]]()
        """Requests and tokens said of each round."""
        self._query = lq.compile(ROW)
        self._model = model_at(near)
        self._session = lq.Session()
        asyncio.run(self.ours(range(10)))
        body = near.body()
        self._body = {name: value for name, value in body.items() if name not in ("model", "prompt", "stream")}
        self._prompt = re.sub("[0-9]", "{}", body["prompt"])
        """As ours is sent: its last token may be left to the answer."""
        self.tokens = 20 + (self._prompt != PROMPT)
        """Of an answer."""
        asyncio.run(self.bare(range(10)))
        asyncio.run(self.transport(range(10)))

    async def ours(self, numbers: range) -> list[str]:
        return await self._all(numbers, cache=True)

    async def uncached(self, numbers: range) -> list[str]:
        return await self._all(numbers, cache=False)

    async def _all(self, numbers: range, *, cache: bool) -> list[str]:
        model, session = self._model, self._session
        runs = (self._query.run({"number": n}, model=model, session=session, cache=cache) for n in numbers)
        return [result["TEXT"] for result in await asyncio.gather(*runs)]

    async def bare(self, numbers: range) -> list[str]:
        """The same requests, by nothing but the client."""
        import openai

        places = asyncio.Semaphore(CONCURRENCY)
        async with openai.AsyncOpenAI(base_url=self.near.base_url, api_key="none") as client:

            async def one(number: int) -> str:
                async with places:
                    text = prompt = self._prompt.format(number)
                    chunks = await client.completions.create(
                        model="stub", prompt=prompt, stream=True, extra_body=self._body
                    )
                    async for chunk in chunks:
                        text += chunk.choices[0].text if chunk.choices else ""
                    return text.removeprefix(PROMPT.format(number))

            return await asyncio.gather(*(one(number) for number in numbers))

    async def transport(self, numbers: range) -> list[str]:
        """The same requests, by nothing but the transport below the client."""
        import httpx2

        places = asyncio.Semaphore(CONCURRENCY)
        async with httpx2.AsyncClient(timeout=60) as client:

            async def one(number: int) -> str:
                prompt = text = self._prompt.format(number)
                body = {"model": "stub", "prompt": prompt, "stream": True, **self._body}
                url = f"{self.near.base_url}/completions"
                async with places, client.stream("POST", url, json=body) as response:
                    async for line in response.aiter_lines():
                        if line.startswith("data: {"):
                            event = json.loads(line[6:])
                            text += event["choices"][0]["text"] if event["choices"] else ""
                return text.removeprefix(PROMPT.format(number))

            return await asyncio.gather(*(one(number) for number in numbers))

    def timed(self, work: Callable[[range], Coroutine[Any, Any, list[str]]], start: int) -> tuple[float, float]:
        """Milliseconds of this process per query, and how many there were per second. Checks the answers."""
        numbers = range(start, start + MANY)
        gc.collect()
        before, began, worked = self.near.counts(), time.perf_counter(), time.process_time()
        texts = asyncio.run(work(numbers))
        worked, taken = time.process_time() - worked, time.perf_counter() - began
        cost = self.near.counts().since(before)
        self.lost += sum(text != ROWS.line(number) for text, number in zip(texts, numbers, strict=True))
        self.counted.add((cost.requests, cost.completion_tokens))
        return worked / MANY * 1000, MANY / taken


def crowd(table: Table, house: House, runs: int) -> None:
    """Rounds of different queries: what is known of one serves no other."""
    with house.serving(numbering(VLLM)) as near:
        many = Crowd(near)
        costs, bares, transports, speeds, kept, memory = [], [], [], [], [], []
        for turn in range(3):
            cost, speed = many.timed(many.ours, 1000 + turn * MANY)
            costs.append(cost)
            speeds.append(speed)
            kept.append(resident())
            if turn:
                bares.append(many.timed(many.bare, 4000 + turn * MANY)[0])
                transports.append(many.timed(many.transport, 4000 + turn * MANY)[0])
        for turn in range(3):
            many.timed(many.uncached, 7000 + turn * MANY)
            memory.append(resident())
        most_open = near.counts().most_open
    print(f"\n{MANY:,} queries at once, 20 tokens each, three rounds")
    table.value("processor time of a query", costs, "ms")
    table.value("the same streams by the bare openai client", bares, "ms")
    table.value("the same streams by httpx2, its transport", transports, "ms")
    bare = statistics.median(bares)
    table.value(
        "a query beyond the bare openai client, as a share of it", [cost / bare - 1 for cost in costs], "x", 0.6
    )
    table.value("queries per second (server and client on one machine)", speeds, "/s")
    table.value("requests under way at once", [most_open], "", at_most=CONCURRENCY)
    table.value("answers that were lost or wrong", [many.lost], "", at_most=0)
    table.holds(f"one request and {many.tokens} tokens for each", many.counted == {(MANY, many.tokens * MANY)})
    table.value("memory for what the cache knows of 1,000 more", [(kept[-1] - kept[0]) / 2], "MB")
    table.value("memory after the third round beyond the first, cache off", [memory[-1] - memory[0]], "MB", at_most=4)


def resident() -> float:
    """Megabytes of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
