"""What queries cost with models behind an API: requests and tokens as the server counts them, with the cache off, cold
and warm, beside what LMQL needs for the same; how long they take from afar; a thousand of them at once.

    python benchmarks/scenarios.py [--runs 5] [--only template options tools joke times crowd] [--lmql PYTHON]

PYTHON is an interpreter that has LMQL 0.7.3 (`pip install lmql==0.7.3` in an environment of its own), which then runs
the same on the same servers. The models are scripted and say a token every 4 ms; how their tokens are cut and counted
says `scenario_servers.py`. Prints all lines; the exit code says whether one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import lmql_lite as lq  # noqa: E402
from benchmarks import scenario_lmql as lmql  # noqa: E402
from benchmarks.scenario_crowd import crowd  # noqa: E402
from benchmarks.scenario_servers import Counts, House, Near, Played, Served, model_at, words  # noqa: E402
from benchmarks.scenario_table import Table  # noqa: E402
from benchmarks.scenario_texts import (  # noqa: E402
    CHOSEN,
    ELSEWHERE,
    OPTIONS,
    OVER_BORDERS,
    TEMPLATE,
    TOOL,
    UNFORESEEN,
    Transcript,
    choosing,
    packing,
    playing,
)
from tests.servers.kinds import OPENAI_CHAT, OPENAI_TEXT, VLLM  # noqa: E402

PACE = 0.004
"""Seconds per token; a quarter of it where what is held to a line does not depend on it."""
GRAMMAR = replace(VLLM, seconds_per_token=PACE)
"""A server that takes grammars; those below do not."""
TELLING = replace(OPENAI_TEXT, seconds_per_token=PACE, model=lmql.INSTRUCT)
"""It tells log-probabilities: what LMQL needs."""
STREAMING = replace(TELLING, refuses=frozenset({"logprobs"}))
CHAT = replace(OPENAI_CHAT, seconds_per_token=PACE, model=lmql.CHAT, refuses=frozenset())
"""It answers turns, and takes no other text."""
MODES: Mapping[str, bool] = {"off": False, "cold": True, "warm": True}
ROUND_TRIPS = (0.0, 0.02, 0.1)

# Runs of one scenario -------------------------------------------------------------------------------------------------


def play(near: Near, source: str, runs: int, *modes: str) -> dict[str, list[Played]]:
    """Each mode so many times: each time nothing is known, and then all. What the server can do is known before."""
    played: dict[str, list[Played]] = {mode: [] for mode in modes or MODES}
    query, model = lq.compile(source), model_at(near)
    asyncio.run(model.probe())
    for _ in range(runs):
        session = lq.Session()
        for mode, runs_of_mode in played.items():
            before, began = near.counts(), time.perf_counter()
            result = query.run_sync(model=model, session=session, cache=MODES[mode])
            seconds = time.perf_counter() - began
            runs_of_mode.append(Played(near.counts().since(before), seconds, result.prompt))
    return played


def fresh_run(near: Near, source: str) -> Counts:
    """Cost of the first run of a process, finding out about the server included."""
    before = near.counts()
    lq.compile(source).run_sync(model=model_at(near), session=lq.Session())
    return near.counts().since(before)


def costs(runs: Sequence[Played]) -> list[Counts]:
    return [run.counts for run in runs]


def compare(table: Table, house: House, kind: str, served: Served, source: str, runs: int, **lines: Any) -> None:
    """Off, cold and warm on one server; the lines are about the cold run."""
    with house.serving(served) as near:
        played = play(near, source, runs)
    deaf: dict[str, list[Counts] | None] = {"off": None, "cold": None}
    if served.config.text and served.config.kind == "openai":  # others notice; an answer of a chat is not cut
        with house.serving(replace(served, config=replace(served.config, deaf=True))) as near:
            deaf = {mode: costs(found) for mode, found in play(near, source, runs, *deaf).items()}
    off = costs(played["off"])
    table.costs(f"{kind}, cache off", off, deaf=deaf["off"])
    table.costs(f"{kind}, cold", costs(played["cold"]), off, deaf=deaf["cold"], **lines)
    table.costs(f"{kind}, warm", costs(played["warm"]), off, requests=0)
    prompts = {run.prompt for mode in MODES for run in played[mode]}
    if len(prompts) > 1:
        table.holds(f"{kind}: the same text in all modes", False)


def beside(table: Table, house: House, kind: str, served: Served, query: str, runs: int) -> None:
    """The same for LMQL, where there is one."""
    if table.lmql is None:
        return
    name = f"LMQL 0.7.3, {kind}"
    with house.serving(served) as near:
        try:
            played = table.lmql.play(near, query, runs)
        except lmql.Cannot as error:
            print(f"  {name}: cannot: {error}")
            return
    for mode, runs_of_mode in played.items():
        texts = {run.prompt for run in runs_of_mode}
        note = "" if texts == {run.prompt for run in played["off"]} else ", and its text is another one"
        table.costs(
            f"{name}, {mode if mode != 'off' else 'cache off'}{note}", costs(runs_of_mode), costs(played["off"])
        )


# What is measured -----------------------------------------------------------------------------------------------------


def template(table: Table, house: House, runs: int) -> None:
    table.title("Template: four holes, a line each")
    beside(table, house, "as it is", packing(TELLING), lmql.template(), runs)
    beside(table, house, "told the best chunk for this text", packing(TELLING), lmql.template(16), runs)
    beside(table, house, "chat", packing(CHAT), lmql.template(), runs)
    compare(table, house, "grammar", packing(GRAMMAR), TEMPLATE, runs, requests=1, tokens=41)
    compare(table, house, "log-probabilities", packing(TELLING), TEMPLATE, runs, requests=1, tokens=47)
    compare(table, house, "only streams", packing(STREAMING), TEMPLATE, runs, requests=1, tokens=47)
    compare(table, house, "chat", packing(CHAT), TEMPLATE, runs, requests=1, tokens=47)
    table.title("The same in a new process, which has never met the server")
    # a server that reports no log-probabilities refuses one request, which costs nothing
    for kind, config, at_most in (
        ("grammar", GRAMMAR, 1),
        ("log-probabilities", TELLING, 2),
        ("only streams", STREAMING, 3),
    ):
        with house.serving(packing(config)) as near:
            fresh = [fresh_run(near, TEMPLATE) for _ in range(runs)]
        table.costs(kind, fresh, requests=at_most, tokens=47 + 8)
    table.title('The same where "\\n-" is one token of the model')
    beside(table, house, "as it is", packing(TELLING, OVER_BORDERS), lmql.template(), runs)
    compare(table, house, "grammar", packing(GRAMMAR, OVER_BORDERS), TEMPLATE, runs, requests=1, tokens=41)
    compare(table, house, "only streams", packing(STREAMING, OVER_BORDERS), TEMPLATE, runs, requests=1, tokens=47)


def options(table: Table, house: House, runs: int) -> None:
    table.title("Long options, of which the model says one by itself")
    beside(table, house, "as it is", choosing(TELLING, CHOSEN), lmql.OPTIONS, runs)
    compare(table, house, "grammar", choosing(GRAMMAR, CHOSEN), OPTIONS, runs, requests=1, tokens=19)
    compare(table, house, "log-probabilities", choosing(TELLING, CHOSEN), OPTIONS, runs, requests=1, tokens=19)
    compare(table, house, "only streams", choosing(STREAMING, CHOSEN), OPTIONS, runs, requests=2, tokens=19)
    table.title("Long options, and the model would rather say something else")
    both = (ELSEWHERE, CHOSEN)
    beside(table, house, "as it is", choosing(TELLING, *both), lmql.OPTIONS, runs)
    compare(table, house, "grammar", choosing(GRAMMAR, *both), OPTIONS, runs, requests=1, tokens=19)
    compare(table, house, "log-probabilities", choosing(TELLING, *both), OPTIONS, runs, requests=2)


def tools(table: Table, house: House, runs: int) -> None:
    table.title("Key-value tool: 10 calls, 12 holes")
    table.reported("LMQL 0.0.6, cache off (its authors, on another text)", 12, 5162)
    table.reported("LMQL 0.0.6, cache on: 33% saved", 8, 3481)
    for many, calls in UNFORESEEN.items():
        served = playing(replace(TELLING, seconds_per_token=PACE / 4), calls)
        beside(table, house, f"{10 - many} of 10 guessed", served, lmql.TOOLS, runs)
    for kind, config in (("grammar", GRAMMAR), ("only streams", STREAMING)):
        for many, calls in UNFORESEEN.items():
            name, saving = f"{kind}, {10 - many} of 10 results guessed", 0.5 if many < 5 else None
            served = playing(replace(config, seconds_per_token=PACE / 4), calls)
            more = {"times": 1.6} if many else {}  # each answer that was guessed wrong is billed to its end
            compare(table, house, name, served, TOOL, runs, requests=1 + many, saving=saving, **more)


def joke(table: Table, house: House, runs: int) -> None:
    table.title("Joke with a file: one process after the other (lq run)")
    example = ROOT / "examples" / "04_dad_joke.lq"
    text = "A good dad joke. A indicates the punchline\nQ: Why did the towel go to the sea?\nA: It wanted to dry.\n"
    script = Transcript((text + "Q: Why" * 20).encode())
    beside(table, house, "as it is", Served(TELLING, (script,), words(text)), lmql.JOKE, runs)
    beside(table, house, "chat", Served(CHAT, (script,), words(text)), lmql.JOKE, runs)
    for kind, config in (("grammar", GRAMMAR), ("log-probabilities", TELLING)):
        served = Served(config, (script,), words(text))
        with house.serving(served) as near, tempfile.TemporaryDirectory() as folder:
            asyncio.run(model_at(near).probe())
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
    command = [sys.executable, "-m", "lmql_lite", "run", str(query), "--model", f"openai/{near.served.config.model}"]
    env = os.environ | {"OPENAI_BASE_URL": near.base_url, "OPENAI_API_KEY": "none", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    return near.counts().since(before), done.stdout


def times(table: Table, house: House, runs: int) -> None:
    several = max(runs // 2, 1)
    title = f"Seconds from start to end, by round trip, n = {several}"
    print(f"\n{title:62} {'cache off':>17} {'cold':>17} {'warm':>17}")
    for name, serve, source, others in (
        ("template", packing, TEMPLATE, lmql.template()),
        ("long options", lambda config: choosing(config, CHOSEN), OPTIONS, lmql.OPTIONS),
        ("tool, all results guessed", lambda config: playing(config, UNFORESEEN[0]), TOOL, lmql.TOOLS),
        ("tool, 7 of 10 results guessed", lambda config: playing(config, UNFORESEEN[3]), TOOL, lmql.TOOLS),
    ):
        for round_trip in ROUND_TRIPS:
            for kind, config in (("grammar", GRAMMAR), ("log-probabilities", TELLING)):
                with house.serving(serve(config), round_trip) as near:
                    took(f"{name}, {round_trip * 1000:g} ms, {kind}", play(near, source, several))
            if table.lmql is not None:
                with house.serving(serve(TELLING), round_trip) as near:
                    took(f"{name}, {round_trip * 1000:g} ms, LMQL 0.7.3", table.lmql.play(near, others, several))


def took(name: str, played: Mapping[str, Sequence[Played]]) -> None:
    line = f"  {name:60}"
    for mode in MODES:
        seconds = [run.seconds for run in played[mode]]
        line += f" {statistics.median(seconds):6.3f} (..{max(seconds):6.3f})"
    print(line)


SCENARIOS: Mapping[str, Callable[[Table, House, int], None]] = {
    "template": template, "options": options, "tools": tools, "joke": joke, "times": times, "crowd": crowd,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="What queries cost with models behind an API.")
    parser.add_argument("--runs", type=int, default=5, help="how often everything is run (5)")
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--lmql", metavar="PYTHON", help="an interpreter that has LMQL 0.7.3, which is run beside")
    chosen = parser.parse_args()
    if chosen.lmql is None:
        print("LMQL is not run beside: --lmql names an interpreter that has it.")
    with House() as house, ExitStack() as beside_us:
        table = Table(beside_us.enter_context(lmql.Lmql(chosen.lmql)) if chosen.lmql else None)
        for name in chosen.only or SCENARIOS:
            SCENARIOS[name](table, house, max(chosen.runs, 1))
    print(f"\nMISSED: {'; '.join(table.missed)}" if table.missed else "\nAll lines are met.")
    return 1 if table.missed else 0


if __name__ == "__main__":
    sys.exit(main())
