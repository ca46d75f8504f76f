"""Requests and tokens of queries with models behind an API, with the cache off, on, and full.

    python benchmarks/scenarios.py [--runs 5] [--only template options tools joke crowd] [--lmql PYTHON]

PYTHON is an interpreter that has LMQL 0.7.3 (`pip install lmql==0.7.3` in an environment of its own), which then runs
the same on the same servers. The models are scripted and generate a token every 4 ms; `scenario_servers.py` says how
their tokens are cut and counted. Each line has requests · tokens as medians; the exit code tells if one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import lmql_lite as lq  # noqa: E402
from benchmarks.scenario_servers import (  # noqa: E402
    CHOSEN,
    ELSEWHERE,
    OPTIONS,
    OVER_BORDERS,
    ROW,
    ROWS,
    TEMPLATE,
    TOOL,
    UNFORESEEN,
    Counts,
    House,
    Near,
    Served,
    Speaker,
    Transcript,
    choosing,
    numbering,
    packing,
    playing,
    words,
)
from lmql_lite.models.openai.model import CONCURRENCY  # noqa: E402
from tests.servers.kinds import OPENAI_CHAT, OPENAI_TEXT, VLLM  # noqa: E402

PACE = 0.004
"""Seconds per token; a quarter of it for tools, whose counts do not depend on it."""
GRAMMARS = replace(VLLM, seconds_per_token=PACE)
SCORES = replace(OPENAI_TEXT, seconds_per_token=PACE, model="gpt-3.5-turbo-instruct")
"""It reports log-probabilities, which LMQL needs; by this name LMQL asks without `echo`, which servers refuse."""
STREAMS = replace(SCORES, refuses=frozenset({"logprobs"}))
CHAT = replace(OPENAI_CHAT, seconds_per_token=PACE, model="gpt-4", refuses=frozenset())
"""It only accepts turns; by this name LMQL takes it for a model of a chat."""
KINDS = {"grammars": GRAMMARS, "log-probabilities": SCORES, "only streams": STREAMS, "chat": CHAT}
MODES: Mapping[str, bool] = {"off": False, "cold": True, "warm": True}
MANY, PROMPT = 1000, "Row {}:"
"""Queries at once in `crowd`, and their prompt."""
JOKE = r'''
argmax
    """A good dad joke. A indicates the punchline
    Q:[JOKE]
    A:[PUNCHLINE]"""
where
    len(JOKE) < 120 and STOPS_AT(JOKE, "?") and STOPS_AT(PUNCHLINE, "\n") and len(PUNCHLINE) > 1
'''


def for_lmql(source: str) -> str:
    """A query in the form of LMQL, which drops the blank lines of a string of several lines."""
    if '"""' in source:
        before, text, after = source.replace("return BALL", "").rsplit('"""', 2)
        return before + json.dumps(text) + after
    text, where, clause = source.partition("\nwhere\n")
    return "argmax" + text.replace("\n", "\n    ") + where + clause


class Cannot(Exception):
    """LMQL does not run a query; its own words."""


class Lmql:
    """A process that runs queries with LMQL, one after the other."""

    def __init__(self, python: str, home: str) -> None:
        command = [python, str(Path(__file__).with_name("lmql_runs.py"))]
        env = os.environ | {"HOME": home}  # it keeps masks of vocabularies there
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process = subprocess.Popen(command, **pipes, text=True, env=env)

    def run(self, near: Near, query: str, cache: bool | str) -> str:
        """The text. Raises Cannot."""
        served = near.served
        vocabulary = Speaker(served.scripts, served.words).tokenizer.vocabulary
        asked = {
            "query": query,
            "endpoint": near.base_url + ("/completions" if served.config.text else "/chat/completions"),
            "model": served.config.model,
            "vocabulary": [None if data is None else data.decode("latin-1") for data in vocabulary],
            "cache": cache,
        }
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise Cannot(f"it does not start: {self.process.communicate()[1].strip()[-200:]}")
        answer: dict[str, str] = json.loads(line)
        if "error" in answer:
            raise Cannot(answer["error"])
        return answer["prompt"]


class Bounds(NamedTuple):
    """Limits of a cold run."""

    requests: int | None = None
    tokens: int | None = None


@dataclass
class Table:
    """Prints lines, and remembers those that are missed."""

    runs: int
    lmql: Lmql | None = None
    missed: list[str] = field(default_factory=list)

    def title(self, text: str) -> None:
        print(f"\n{text}\n\n| | cache off | first run | second run | held to | |\n|---|--:|--:|--:|--:|---|")

    def line(self, name: str, played: Mapping[str, Sequence[Counts]], bounds: Bounds, *, is_same: bool = True) -> None:
        """A line of requests · tokens; is_same: the text is the same in all modes."""
        cells, problems = [], [] if is_same else ["different text"]
        for mode in MODES:
            runs = played.get(mode, ())
            costs = [
                statistics.median(cost) for cost in zip(*((run.requests, run.tokens) for run in runs), strict=True)
            ]
            cells.append(" · ".join(f"{cost:,g}" for cost in costs))
            limits = bounds if mode == "cold" else Bounds(0, 0) if mode == "warm" and bounds != Bounds() else Bounds()
            for kind, cost, limit in zip(Bounds._fields, costs, limits, strict=False):
                if limit is not None and cost > limit:
                    problems.append(f"{kind} missed" if mode == "cold" else f"{kind} of the second run missed")
        held = " · ".join("any" if limit is None else f"{limit:,}" for limit in bounds) if bounds != Bounds() else ""
        print(f"| {name} | {' | '.join(cells)} | {held} | {', '.join(problems)} |", flush=True)
        self.missed += [name] if problems and bounds != Bounds() else []

    def value(self, name: str, values: Sequence[float], unit: str, at_most: float | None = None) -> None:
        median, is_missed = statistics.median(values), at_most is not None and statistics.median(values) > at_most
        spread = f"{median:,.2f} ({min(values):,.2f} to {max(values):,.2f}) {unit}"
        print(f"| {name} | {spread} | {'' if at_most is None else at_most} | {'missed' if is_missed else ''} |")
        self.missed += [name] if is_missed else []


# Runs of one scenario -------------------------------------------------------------------------------------------------


def compare(table: Table, house: House, name: str, served: Served, source: str, bounds: Bounds, lmql: str = "") -> None:
    """One line of ours, and one of LMQL if `lmql` has its query: without a cache, with an empty one and with a full
    one. What the server can do is known before."""
    query = lq.compile(source)
    with house.serving(served) as near:
        model = near.model()
        asyncio.run(model.probe())

        def ours(_: bool | str, session: lq.Session, is_cached: bool) -> str:
            return query.run_sync(model=model, session=session, cache=is_cached).prompt

        played(table, near, name, ours, bounds)
    beside(table, house, name, served, lmql)


def beside(table: Table, house: House, name: str, served: Served, query: str) -> None:
    """The line of LMQL, where there is one."""
    process = table.lmql
    if not query or process is None:
        return
    with house.serving(served) as near:
        try:
            process.run(near, query, False)  # what it builds once
            played(table, near, f"{name}, LMQL", lambda cache, *_: process.run(near, query, cache), Bounds())
        except Cannot as error:
            print(f"| {name}, LMQL | | | | | cannot: {error} |")


def played(
    table: Table, near: Near, name: str, run: Callable[[bool | str, lq.Session, bool], str], bounds: Bounds
) -> None:
    """All modes, as many times as the table wants. `run` is given the cache as a file, the session, and whether there
    is a cache."""
    found: dict[str, list[Counts]] = {mode: [] for mode in MODES}
    texts = set()
    for _ in range(table.runs):
        session = lq.Session()
        with tempfile.TemporaryDirectory() as folder:
            for mode, is_cached in MODES.items():
                before = near.counts()
                texts.add(run(is_cached and f"{folder}/x.tokens", session, is_cached))
                found[mode].append(near.counts().since(before))
    table.line(name, found, bounds, is_same=len(texts) == 1)


# What is measured -----------------------------------------------------------------------------------------------------


def template(table: Table, house: House) -> None:
    table.title("Four list items")
    for kind, config in KINDS.items():
        bounds = Bounds(1, 41 if config is GRAMMARS else 47)
        lmql = for_lmql(TEMPLATE) if config in (SCORES, CHAT) else ""
        compare(table, house, kind, packing(config), TEMPLATE, bounds, lmql)
    for kind in ("grammars", "only streams"):
        served = packing(KINDS[kind], OVER_BORDERS)
        compare(table, house, f'{kind}, "\\n-" is one token', served, TEMPLATE, Bounds(1, 47))


def options(table: Table, house: House) -> None:
    table.title("Three long options")
    for kind in ("grammars", "log-probabilities", "only streams"):
        served = choosing(KINDS[kind], CHOSEN)
        lmql = for_lmql(OPTIONS) if kind == "log-probabilities" else ""
        compare(table, house, kind, served, OPTIONS, Bounds(2 if kind == "only streams" else 1, 19), lmql)
    for kind, most in (("grammars", 1), ("log-probabilities", 2)):
        served = choosing(KINDS[kind], ELSEWHERE, CHOSEN)
        compare(table, house, f"{kind}, the model prefers another text", served, OPTIONS, Bounds(most))


def tools(table: Table, house: House) -> None:
    table.title("Ten tool calls, by the results that the model predicts")
    for kind in ("grammars", "log-probabilities", "only streams"):
        for wrong, calls in UNFORESEEN.items():
            served = playing(replace(KINDS[kind], seconds_per_token=PACE / 4), calls)
            lmql = for_lmql(TOOL) if kind == "log-probabilities" else ""
            bounds = Bounds(1 + wrong, 2127 if wrong < 5 else None)  # half of the tokens without a cache
            compare(table, house, f"{kind}, {10 - wrong} of 10", served, TOOL, bounds, lmql)


def joke(table: Table, house: House) -> None:
    table.title("A joke, in two processes (lq run) with a file")
    source = (ROOT / "examples" / "04_dad_joke.lq").read_text("utf-8")
    query = lq.compile(source.replace('(cache="joke.tokens")', ""))
    text = "A good dad joke. A indicates the punchline\nQ: Why did the towel go to the sea?\nA: It wanted to dry.\n"
    script = Transcript((text + "Q: Why" * 20).encode())
    for kind, config in (("grammars", GRAMMARS), ("log-probabilities", SCORES), ("chat", CHAT)):
        served = Served(config, (script,), words(text))
        if config is not CHAT:
            with house.serving(served) as near, tempfile.TemporaryDirectory() as folder:
                model = near.model()
                asyncio.run(model.probe())

                def run(_: bool | str, session: lq.Session, is_cached: bool) -> str:
                    if is_cached:
                        return printed(near, source, folder)
                    return query.run_sync(model=model, session=session, cache=False).prompt  # noqa: B023  called at once

                played(replace(table, runs=1), near, kind, run, Bounds(3, 53))
        if config is not GRAMMARS:
            beside(table, house, kind, served, JOKE)


def printed(near: Near, source: str, folder: str) -> str:
    """Output of a process that runs the query."""
    Path(folder, "joke.lq").write_text(source, "utf-8")
    command = [sys.executable, "-m", "lmql_lite", "run", "joke.lq", "--model", f"openai/{near.served.config.model}"]
    env = os.environ | {"OPENAI_BASE_URL": near.base_url, "OPENAI_API_KEY": "none", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout


class Crowd:
    """A thousand queries at once on one server, and the same requests by nothing but the openai client."""

    def __init__(self, near: Near) -> None:
        self.near, self.lost, self.costs = near, 0, set[tuple[int, int]]()
        self._query, self._model, self._session = lq.compile(ROW), near.model(), lq.Session()
        asyncio.run(self.ours(range(10)))
        body = near.body()
        self._body = {name: value for name, value in body.items() if name not in ("model", "prompt", "stream")}
        self._prompt = re.sub("[0-9]", "{}", body["prompt"])
        """As ours is sent: its last token may be left to the answer."""
        self.tokens = 20 + (self._prompt != PROMPT)
        """Tokens of an answer."""
        asyncio.run(self.bare(range(10)))

    async def ours(self, numbers: range) -> list[str]:
        runs = (self._query.run({"number": n}, model=self._model, session=self._session) for n in numbers)
        return [result["TEXT"] for result in await asyncio.gather(*runs)]

    async def bare(self, numbers: range) -> list[str]:
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

    def milliseconds(self, work: Callable[[range], Coroutine[Any, Any, list[str]]], start: int) -> float:
        """Processor time of this process per query. Checks the answers."""
        numbers = range(start, start + MANY)
        gc.collect()
        before, began = self.near.counts(), time.process_time()
        texts = asyncio.run(work(numbers))
        taken, cost = time.process_time() - began, self.near.counts().since(before)
        self.lost += sum(text != ROWS.line(number) for text, number in zip(texts, numbers, strict=True))
        self.costs.add((cost.requests, cost.completion_tokens))
        return taken / MANY * 1000


def crowd(table: Table, house: House) -> None:
    """Rounds of different queries: what is known of one serves no other."""
    with house.serving(numbering(VLLM)) as near:
        many, ours, bares = Crowd(near), list[float](), list[float]()
        for turn in range(3):
            ours.append(many.milliseconds(many.ours, 1000 + turn * MANY))
            bares.append(many.milliseconds(many.bare, 4000 + turn * MANY))
        most_open = near.counts().most_open
    print(f"\n{MANY:,} queries at once, 20 tokens each, three rounds\n\n| | | held to | |\n|---|--:|--:|---|")
    table.value("processor time of a query", ours, "ms")
    table.value("the same streams by the bare openai client", bares, "ms")
    table.value("a query, as a share of the latter", [cost / statistics.median(bares) for cost in ours], "", 1.6)
    table.value("requests open at once", [most_open], "", CONCURRENCY)
    table.value("answers that were lost or wrong", [many.lost], "", 0)
    extra = len(many.costs - {(MANY, many.tokens * MANY)})
    table.value(f"rounds with more than one request of {many.tokens} tokens for each", [extra], "", 0)


SCENARIOS: Mapping[str, Callable[[Table, House], None]] = {
    "template": template, "options": options, "tools": tools, "joke": joke, "crowd": crowd,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="What queries cost with models behind an API.")
    parser.add_argument("--runs", type=int, default=5, help="runs of each line (5)")
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--lmql", metavar="PYTHON", help="an interpreter that has LMQL 0.7.3, for its lines")
    chosen = parser.parse_args()
    with House() as house, tempfile.TemporaryDirectory() as home:
        table = Table(max(chosen.runs, 1), Lmql(chosen.lmql, home) if chosen.lmql else None)
        for name in chosen.only or SCENARIOS:
            SCENARIOS[name](table, house)
        if table.lmql is not None:
            table.lmql.process.communicate()
    print(f"\nMissed: {'; '.join(table.missed)}" if table.missed else "\nNo line is missed.")
    return 1 if table.missed else 0


if __name__ == "__main__":
    sys.exit(main())
