"""What queries cost with models behind an API: requests and tokens as the server counts them, with the cache off, cold
and warm, beside what LMQL needs for the same; how long they take from afar; a thousand of them at once.

    python benchmarks/scenarios.py [--runs 5] [--only template options tools joke times crowd]

LMQL itself cannot be run on such servers any more. Its figures are those of its caching layer (0.7.3) with a scripted
model in its own process, over-generation included, or of its authors' report on it (0.0.6). The models here are
scripted as well and say a token every 4 ms; how their tokens are cut and counted says `scenario_servers.py`. Prints all
lines; the exit code says whether one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import lmql_lite as lq  # noqa: E402
from benchmarks.scenario_servers import Counts, House, Near, Served, words  # noqa: E402
from benchmarks.scenario_texts import (  # noqa: E402
    CHOSEN,
    ELSEWHERE,
    OPTIONS,
    OVER_BORDERS,
    ROW,
    ROWS,
    TEMPLATE,
    TOOL,
    UNFORESEEN,
    Transcript,
    choosing,
    numbering,
    packing,
    playing,
)
from lmql_lite.models.openai import OpenAIModel  # noqa: E402
from lmql_lite.models.openai_client import CONCURRENCY  # noqa: E402
from tests.servers.kinds import OPENAI_CHAT, OPENAI_TEXT, VLLM  # noqa: E402

PACE = 0.004
"""Seconds per token; a quarter of it where what is held to a line does not depend on it."""
GRAMMAR = replace(VLLM, seconds_per_token=PACE)
"""A server that takes grammars; those below do not."""
TELLING = replace(OPENAI_TEXT, seconds_per_token=PACE)
"""It tells log-probabilities."""
STREAMING = replace(TELLING, refuses=frozenset({"logprobs"}))
CHAT = replace(OPENAI_CHAT, seconds_per_token=PACE)
"""It answers turns, and takes no other text."""
MODES: Mapping[str, bool] = {"off": False, "cold": True, "warm": True}
ROUND_TRIPS = (0.0, 0.02, 0.1)

# The table ------------------------------------------------------------------------------------------------------------


@dataclass
class Table:
    """Prints lines, and remembers those that are missed."""

    missed: list[str] = field(default_factory=list)

    def title(self, text: str) -> None:
        print(f"\n{text:62} {'requests':>8} {'prompt':>7} {'said':>6} {'tokens':>7} {'(from..to)':>14} {'saved':>7}")

    def costs(
        self,
        name: str,
        runs: Sequence[Counts],
        off: Sequence[Counts] | None = None,
        *,
        requests: int | None = None,
        tokens: int | None = None,
        saving: float | None = None,
    ) -> None:
        """One line: medians, how many times fewer tokens than with the cache off, and what they are held to.

        `saving` is the least share of the tokens of `off`.
        """
        parts = ((run.requests, run.prompt_tokens, run.completion_tokens, run.tokens) for run in runs)
        asked, prompt, said, total = (statistics.median(part) for part in zip(*parts, strict=True))
        before = statistics.median(run.tokens for run in off) if off else total
        times = f"{before / total:.1f}x" if total else "all"
        spread = f"({min(run.tokens for run in runs)}..{max(run.tokens for run in runs)})"
        line = f"  {name:60} {asked:8g} {prompt:7g} {said:6g} {total:7g} {spread:>14} {times if off else '':>7}"
        if requests is not None:
            line += f"  requests <= {requests} {self._met(name, asked <= requests)}"
        if tokens is not None:
            line += f"  tokens <= {tokens} {self._met(name, total <= tokens)}"
        if saving is not None:
            share = 1 - total / before
            line += f"  {share:.0%} saved >= {saving:.0%} {self._met(name, share >= saving)}"
        print(line.rstrip())

    def lmql(self, name: str, requests: int, tokens: int, parts: tuple[int, int] | None = None) -> None:
        prompt, said = parts or ("", "")
        print(f"  LMQL {name:55} {requests:8} {prompt:>7} {said:>6} {tokens:7}")

    def value(self, name: str, values: Sequence[float], unit: str, at_most: float | None = None) -> None:
        median = statistics.median(values)
        spread = f"({min(values):,.2f}..{max(values):,.2f})" if len(values) > 1 else ""
        line = f"  {name:60} {median:10,.2f} {spread:>20}  {unit}"
        print(line if at_most is None else f"{line}  <= {at_most:g} {self._met(name, median <= at_most)}")

    def holds(self, name: str, is_so: bool) -> None:
        print(f"  {name:60} {self._met(name, is_so):>10}")

    def _met(self, name: str, is_so: bool) -> str:
        if not is_so:
            self.missed.append(name)
        return "met" if is_so else "MISSED"


@dataclass(frozen=True, slots=True)
class Played:
    """One run: what it cost, how long it took in seconds, and what came of it."""

    counts: Counts
    seconds: float
    prompt: str


def play(near: Near, source: str, runs: int, *modes: str) -> dict[str, list[Played]]:
    """Each mode so many times: each time nothing is known, and then all. What the server can do is known before."""
    played: dict[str, list[Played]] = {mode: [] for mode in modes or MODES}
    query, model = lq.compile(source), _model(near)
    asyncio.run(model.meet())
    for _ in range(runs):
        session = lq.Session()
        for mode, runs_of_mode in played.items():
            before, began = near.counts(), time.perf_counter()
            result = query.run_sync(model=model, session=session, cache=MODES[mode])
            seconds = time.perf_counter() - began
            runs_of_mode.append(Played(near.counts().since(before), seconds, result.prompt))
    return played


def _model(near: Near) -> OpenAIModel:
    return OpenAIModel("stub", base_url=near.base_url, api_key="none")


def costs(runs: Sequence[Played]) -> list[Counts]:
    return [run.counts for run in runs]


def compare(table: Table, house: House, kind: str, served: Served, source: str, runs: int, **lines: Any) -> None:
    """Off, cold and warm on one server; the lines are about the cold run."""
    with house.serving(served) as near:
        played = play(near, source, runs)
    off = costs(played["off"])
    table.costs(f"{kind}, cache off", off)
    table.costs(f"{kind}, cold", costs(played["cold"]), off, **lines)
    table.costs(f"{kind}, warm", costs(played["warm"]), off, requests=0)
    prompts = {run.prompt for mode in MODES for run in played[mode]}
    if len(prompts) > 1:
        table.holds(f"{kind}: the same text in all modes", False)


# What is measured -----------------------------------------------------------------------------------------------------


def template(table: Table, house: House, runs: int) -> None:
    table.title("Template: four holes, a line each")
    table.lmql("0.7.3, cache off", 11, 1050)
    table.lmql("0.7.3, its chunk of 64 tokens", 1, 89, (25, 64))
    table.lmql("0.7.3, the best chunk for this very text, 16", 1, 41, (25, 16))
    compare(table, house, "grammar", packing(GRAMMAR), TEMPLATE, runs, requests=1, tokens=41)
    compare(table, house, "only streams", packing(STREAMING), TEMPLATE, runs, requests=1, tokens=47)
    compare(table, house, "chat", packing(CHAT), TEMPLATE, runs, requests=1, tokens=47)
    table.title('The same where "\\n-" is one token of the model')
    table.lmql("0.7.3, misaligned borders", 2, 90)
    compare(table, house, "grammar", packing(GRAMMAR, OVER_BORDERS), TEMPLATE, runs, requests=1, tokens=41)
    compare(table, house, "only streams", packing(STREAMING, OVER_BORDERS), TEMPLATE, runs, requests=1, tokens=47)


def options(table: Table, house: House, runs: int) -> None:
    table.title("Long options, of which the model says one by itself")
    table.lmql("0.7.3, cache off or on", 2, 49)
    compare(table, house, "grammar", choosing(GRAMMAR, CHOSEN), OPTIONS, runs, requests=1, tokens=19)
    compare(table, house, "log-probabilities", choosing(TELLING, CHOSEN), OPTIONS, runs, requests=1, tokens=19)
    compare(table, house, "only streams", choosing(STREAMING, CHOSEN), OPTIONS, runs, requests=2, tokens=19)
    table.title("Long options, and the model would rather say something else")
    both = (ELSEWHERE, CHOSEN)
    compare(table, house, "grammar", choosing(GRAMMAR, *both), OPTIONS, runs, requests=1, tokens=19)
    compare(table, house, "log-probabilities", choosing(TELLING, *both), OPTIONS, runs, requests=2, tokens=19)


def tools(table: Table, house: House, runs: int) -> None:
    table.title("Key-value tool: 10 calls, 12 holes")
    table.lmql("0.0.6, cache off (its authors, on another text)", 12, 5162)
    table.lmql("0.0.6, cache on: 33% saved", 8, 3481)
    for kind, config in (("grammar", GRAMMAR), ("only streams", STREAMING)):
        for many, calls in UNFORESEEN.items():
            name, saving = f"{kind}, {10 - many} of 10 results guessed", 0.5 if many < 5 else None
            served = playing(replace(config, seconds_per_token=PACE / 4), calls)
            compare(table, house, name, served, TOOL, runs, requests=1 + many, saving=saving)


def joke(table: Table, house: House, runs: int) -> None:
    table.title("Joke with a file: one process after the other (lq run)")
    example = ROOT / "examples" / "04_dad_joke.lq"
    text = "A good dad joke. A indicates the punchline\nQ: Why did the towel go to the sea?\nA: It wanted to dry.\n"
    for kind, config in (("grammar", GRAMMAR), ("log-probabilities", TELLING)):
        served = Served(config, (Transcript((text + "Q: Why" * 20).encode()),), words(text))
        with house.serving(served) as near, tempfile.TemporaryDirectory() as folder:
            asyncio.run(_model(near).meet())
            met = near.counts()  # a process that is new to a server of OpenAI's kind asks what it can do
            off = costs(play(near, example.read_text(), 1, "off")["off"])
            first, second = told(near, example, folder), told(near, example, folder)
        table.costs(f"{kind}, to find out what the server can do", [met])
        table.costs(f"{kind}, cache off", off)
        table.costs(f"{kind}, first process", [first[0]], off)
        table.costs(f"{kind}, second process", [second[0]], off, requests=0, tokens=0)
        if first[1] != second[1]:
            table.holds(f"{kind}: the same text in both processes", False)


def told(near: Near, query: Path, folder: str) -> tuple[Counts, str]:
    """What a process costs that runs the query there, and what it prints."""
    before = near.counts()
    command = [sys.executable, "-m", "lmql_lite", "run", str(query), "--model", "openai/stub"]
    env = os.environ | {"OPENAI_BASE_URL": near.base_url, "OPENAI_API_KEY": "none", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    return near.counts().since(before), done.stdout


def times(table: Table, house: House, runs: int) -> None:
    several = max(runs // 2, 1)
    title = f"Seconds from start to end, by round trip, n = {several}"
    print(f"\n{title:62} {'cache off':>17} {'cold':>17} {'warm':>17}")
    for name, served, source in (
        ("template", packing(GRAMMAR), TEMPLATE),
        ("long options", choosing(GRAMMAR, CHOSEN), OPTIONS),
        ("tool, 7 of 10 results guessed", playing(GRAMMAR, UNFORESEEN[3]), TOOL),
    ):
        for round_trip in ROUND_TRIPS:
            with house.serving(served, round_trip) as near:
                played = play(near, source, several)
            line = f"  {f'{name}, {round_trip * 1000:g} ms':60}"
            for mode in MODES:
                seconds = [run.seconds for run in played[mode]]
                line += f" {statistics.median(seconds):6.3f} (..{max(seconds):6.3f})"
            print(line)


# A thousand at once ---------------------------------------------------------------------------------------------------

MANY = 1000


class Crowd:
    """Asks one server from this process, a thousand times at once."""

    def __init__(self, near: Near) -> None:
        self.near = near
        self.lost = 0
        self.counted = set[tuple[int, int]]()
        """Requests and tokens said of each round."""
        self._query = lq.compile(ROW)
        self._model = _model(near)
        self._session = lq.Session()
        asyncio.run(self.ours(range(10)))
        fields = near.body().items()
        self._body = {name: value for name, value in fields if name not in ("model", "prompt", "stream")}
        asyncio.run(self.bare(range(10)))

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
                    prompt, text = f"Row {number}:", ""
                    chunks = await client.completions.create(
                        model="stub", prompt=prompt, stream=True, extra_body=self._body
                    )
                    async for chunk in chunks:
                        text += chunk.choices[0].text if chunk.choices else ""
                    return text

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
        costs, bares, speeds, kept, memory = [], [], [], [], []
        for turn in range(3):
            cost, speed = many.timed(many.ours, 1000 + turn * MANY)
            costs.append(cost)
            speeds.append(speed)
            kept.append(resident())
            if turn:
                bares.append(many.timed(many.bare, 4000 + turn * MANY)[0])
        for turn in range(3):
            many.timed(many.uncached, 7000 + turn * MANY)
            memory.append(resident())
        most_open = near.counts().most_open
    print(f"\n{MANY:,} queries at once, 20 tokens each, three rounds")
    table.value("processor time of a query", costs, "ms")
    table.value("the same streams by the bare openai client", bares, "ms")
    beyond = [cost - statistics.median(bares) for cost in costs]
    table.value("a query, beyond the bare client", beyond, "ms", at_most=2)
    table.value("queries per second (server and client on one machine)", speeds, "/s")
    table.value("requests under way at once", [most_open], "", at_most=CONCURRENCY)
    table.value("answers that were lost or wrong", [many.lost], "", at_most=0)
    table.holds("one request and 20 tokens for each", many.counted == {(MANY, 20 * MANY)})
    table.value("memory for what the cache knows of 1,000 more", [(kept[-1] - kept[0]) / 2], "MB")
    table.value("memory after the third round beyond the first, cache off", [memory[-1] - memory[0]], "MB", at_most=4)


def resident() -> float:
    """Megabytes of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


SCENARIOS: Mapping[str, Callable[[Table, House, int], None]] = {
    "template": template, "options": options, "tools": tools, "joke": joke, "times": times, "crowd": crowd,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="What queries cost with models behind an API.")
    parser.add_argument("--runs", type=int, default=5, help="how often everything is run (5)")
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, metavar="NAME", help=", ".join(SCENARIOS))
    chosen = parser.parse_args()
    table = Table()
    with House() as house:
        for name in chosen.only or SCENARIOS:
            SCENARIOS[name](table, house, max(chosen.runs, 1))
    print(f"\nMISSED: {'; '.join(table.missed)}" if table.missed else "\nAll lines are met.")
    return 1 if table.missed else 0


if __name__ == "__main__":
    sys.exit(main())
