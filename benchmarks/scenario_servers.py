"""The servers of `scenarios.py`: the strict stub of the tests in a process of its own, near or far away.

    with House() as house, house.serving(packing(VLLM), round_trip=0.1) as near:
        near.base_url, near.counts()

Every count is what the server itself counts, in the tokens of its model: those of the prompt with the one that begins a
text, and all that were generated, end-of-text and what nobody heard included.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import Queue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmql_lite.models.openai.model import OpenAIModel
from lmql_lite.models.scripted import Script, ScriptedModel
from tests.servers.kinds import Config
from tests.servers.stub import serving

SURE = 20.0
"""So many nats the text that a model wants to say stands above what it does not think of at all."""


def words(text: str, *parts: str) -> tuple[bytes, ...]:
    """The tokens of a text as most vocabularies have them: a word with the space before it, a number, signs together,
    a line's end. `parts` are regular expressions of tokens that are cut otherwise, and come first."""
    found = re.findall("|".join((*parts, " ?[A-Za-z]+", " ?[0-9]+", r" ?[^A-Za-z0-9\s]+", r"\s")), text)
    return tuple(dict.fromkeys(word.encode() for word in found))


@dataclass(frozen=True, slots=True)
class Served:
    """A kind of server, and what its model says: what the first script does, or else the second. Goes to a process."""

    config: Config
    scripts: tuple[Script, ...]
    words: tuple[bytes, ...]


class Speaker(ScriptedModel):
    """Of the tokens that begin what it wants to say the longest is the likeliest, and then the shorter ones, as with a
    model that was trained: held to a grammar that forbids the longest it says the same text in other tokens."""

    def __init__(self, scripts: tuple[Script, ...], words: tuple[bytes, ...]) -> None:
        super().__init__(scripts[0], words=words)
        self._scripts = scripts
        self._longest = max(map(len, words))

    def _scores(self, ids: tuple[int, ...]) -> NDArray[np.float32]:
        said, vocabulary = self.tokenizer.decode(ids), self.tokenizer.vocabulary
        logits = np.zeros(len(vocabulary))
        wanted = [text for text in (script(said) for script in self._scripts) if text]
        for rank, text in reversed(list(enumerate(wanted))):
            for token in {self.tokenizer.first(text[:length]) for length in range(1, self._longest + 1)}:
                logits[token] = SURE / (1 + rank) + len(vocabulary[token] or b"") / 10
        if not wanted:
            logits[min(self.tokenizer.eos)] = SURE
        scores: NDArray[np.float32] = (logits - np.log(np.exp(logits).sum())).astype(np.float32)
        return scores


@dataclass(frozen=True, slots=True)
class Counts:
    """What a server has counted. `most_open`: so many answers were under way at once."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    most_open: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def since(self, before: Counts) -> Counts:
        return Counts(
            self.requests - before.requests,
            self.prompt_tokens - before.prompt_tokens,
            self.completion_tokens - before.completion_tokens,
            self.most_open,
        )


@dataclass(frozen=True, slots=True)
class Played:
    """One run: what it cost, how long it took in seconds, and what came of it."""

    counts: Counts
    seconds: float
    prompt: str


class House:
    """The process of the servers, as seen from here."""

    def __enter__(self) -> House:
        context = get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_keep, args=(other,), daemon=True)
        self._process.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ask("leave")
        self._process.join()

    def ask(self, *question: object) -> Any:
        self._pipe.send(question)
        return self._pipe.recv()

    @contextmanager
    def serving(self, served: Served, round_trip: float = 0.0) -> Iterator[Near]:
        """`round_trip` in seconds. What is sent is under way for half of it, and a new connection takes one more."""
        number, base_url = self.ask("open", served, round_trip)
        try:
            yield Near(self, number, base_url, served)
        finally:
            self.ask("close", number)


@dataclass(frozen=True, slots=True)
class Near:
    """A server of the house."""

    house: House
    number: int
    base_url: str
    served: Served

    def counts(self) -> Counts:
        """When nothing is being said any more, also to those who have left."""
        counts: Counts = self.house.ask("count", self.number)
        return counts

    def body(self) -> dict[str, Any]:
        """The last request as it came."""
        body: dict[str, Any] = self.house.ask("body", self.number)
        return body


def model_at(near: Near) -> OpenAIModel:
    """The model that is served there, of which nothing is known yet."""
    return OpenAIModel(near.served.config.model, base_url=near.base_url, api_key="none")


def _keep(pipe: Connection) -> None:
    """In the other process: answers what `House` asks, until it leaves."""
    servers: dict[int, Any] = {}
    doors: dict[int, ExitStack] = {}
    for number in count():
        match pipe.recv():
            case "open", Served() as served, float() as round_trip:
                doors[number] = ExitStack()
                server = doors[number].enter_context(serving(served.config, Speaker(served.scripts, served.words)))
                base_url = server.base_url
                if round_trip:
                    port = int(base_url.split(":")[2].split("/")[0])
                    far = doors[number].enter_context(_far(port, round_trip))
                    base_url = base_url.replace(f":{port}/", f":{far}/")
                servers[number] = server
                pipe.send((number, base_url))
            case "close", asked:
                pipe.send(doors.pop(asked).close())
            case "count", asked:
                server = servers[asked]
                server.wait(lambda: not server.open)  # noqa: B023  called at once
                pipe.send(Counts(server.requests, server.prompt_tokens, server.completion_tokens, server.most_open))
            case "body", asked:
                pipe.send(servers[asked].bodies[-1])
            case _:
                pipe.send(None)
                return


@contextmanager
def _far(port: int, round_trip: float) -> Iterator[int]:
    """Another port from which everything takes its time to that one, and back."""
    ready: Queue[tuple[int, Callable[[], object]]] = Queue()
    joined: list[asyncio.Task[None]] = []

    async def passes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connected: float) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def leaves() -> None:
            data = b"begun"
            while data:
                try:
                    data = await reader.read(1 << 16)
                except ConnectionError:
                    data = b""
                under_way.put_nowait((max(time.monotonic(), connected) + round_trip / 2, data))

        leaving = asyncio.create_task(leaves())
        while True:
            arrives, data = await under_way.get()
            await asyncio.sleep(arrives - time.monotonic())
            if not data or writer.is_closing():
                break
            writer.write(data)
        writer.close()
        await leaving

    async def connects(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if task := asyncio.current_task():
            joined.append(task)
        connected = time.monotonic() + round_trip
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(passes(reader, back, connected), passes(there, writer, connected))

    async def stands() -> None:
        loop, left = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(connects, "127.0.0.1", 0) as server:
            ready.put((server.sockets[0].getsockname()[1], lambda: loop.call_soon_threadsafe(left.set)))
            await left.wait()
        if joined:
            await asyncio.wait(joined, timeout=1)

    thread = threading.Thread(target=lambda: asyncio.run(stands()), name="far away", daemon=True)
    thread.start()
    far, leave = ready.get()
    try:
        yield far
    finally:
        leave()
        thread.join()
