"""`lq eval` in figures: what a row costs beside the model, cold, warm, long, resumed; rows at a time; memory.

    python benchmarks/evaluation.py [--rows 1000] [--many 20000]

CPU is of this process alone; wall has whatever else the machine does. `--many 100000` is the row of memory as the
target has it, and takes minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import lmql_lite as lq
from lmql_lite.data.eval_job import EvalJob, eval_cache
from lmql_lite.data.evaluation import Tally, evaluate
from lmql_lite.data.metrics import metric_named
from lmql_lite.data.run_folder import RunFolder
from lmql_lite.models.base import Model, Scorer, ScoreRequest
from lmql_lite.models.scripted import ScriptedCompleter
from lmql_lite.tokens import Tokenizer

CHOICE = lq.compile('"Review: {review}\\nSentiment:[X]" where X in [" positive", " negative"]\nreturn X.strip()')
PLAIN = lq.compile('"{review}"\nreturn "positive"')
SHOTS = "".join(f"Review: The food number {n} was fine.\nSentiment: positive\n" for n in range(400))[:16_000]
LONG = lq.compile(
    '"{shots}\\nReview: {review}\\nSentiment:[X]" where X in [" positive", " negative"]\nreturn X.strip()'
)

missed = 0


class Timed:
    """The demo model, and the CPU seconds that it takes."""

    def __init__(self, model: Scorer) -> None:
        self._model = model
        self.name, self.fingerprint, self.tokenizer = model.name, model.fingerprint, model.tokenizer
        self.context_length, self.sequences = model.context_length, 8
        self.seconds = 0.0

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[NDArray[np.float32]]]:
        began = time.thread_time()
        try:
            return await self._model.score(requests)
        finally:
            self.seconds += time.thread_time() - began


class Roomy:
    """A model with the demo's tokenizer, room for long prompts, and no opinion: what is left is our own work."""

    name, fingerprint = "roomy", "roomy-1"
    context_length, sequences = 100_000, 8

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._row = np.zeros(len(tokenizer.vocabulary), dtype=np.float32)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[NDArray[np.float32]]]:
        return [[self._row for _ in request.positions] for request in requests]


def job(query: lq.Query, data: Path, model: Model, cache: lq.TokenCache, at_once: int | None) -> EvalJob:
    identity = {"query": "", "model": model.name, "fingerprint": None, "data": data.name, "settings": {}}
    metric = metric_named("exact", lambda path: lambda record: asyncio.sleep(0))
    return EvalJob(
        query, data, {"session": lq.Session(), "cache": cache, "model": model}, identity, (metric,), concurrency=at_once
    )


def run(one: EvalJob, folder: Path) -> Tally:
    opened = RunFolder(folder, one.identity, [])
    try:
        return asyncio.run(evaluate(one, opened))
    finally:
        opened.close("finished")


def timed(name: str, rows: int, work: Callable[[], object]) -> float:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(f"{name:<44} {1000 * cpu / rows:8.3f} ms CPU a row  {rows / cpu:9,.0f} rows/CPU s  {wall:7.1f} s wall")
    return cpu


def line(name: str, figure: float, bound: float, *, at_most: bool = False) -> None:
    global missed
    is_met = figure <= bound if at_most else figure >= bound
    missed += not is_met
    print(f"  {name:<42} {figure:10,.2f} {'<=' if at_most else '>='} {bound:,g} {'' if is_met else 'MISSED'}")


def write(data: Path, count: int) -> None:
    lines = ({"id": n, "review": f"The room {n} was dirty.", "target": "negative"} for n in range(count))
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))


def says(text: bytes) -> bytes:
    begun = text.rfind(b"Sentiment:") + len(b"Sentiment:")
    return b" negative"[len(text) - begun :]


def peak(count: int, answer: multiprocessing.Queue[float]) -> None:
    """Peak memory in MB of a run of so many rows, in a process of its own."""
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "d.jsonl"
        write(data, count)
        run(job(PLAIN, data, lq.ScriptedModel(says), eval_cache(), 8), Path(place) / "run")
    status = Path("/proc/self/status").read_text()  # getrusage would count the parent before it became this process
    answer.put(int(status.partition("VmHWM:")[2].split()[0]) / 1024)


def peaks(*counts: int) -> list[float]:
    spawned = multiprocessing.get_context("spawn")
    found = []
    for count in counts:
        answer: multiprocessing.Queue[float] = spawned.Queue()
        process = spawned.Process(target=peak, args=(count, answer))
        process.start()
        found.append(answer.get())
        process.join()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--many", type=int, default=20_000)
    given = parser.parse_args()
    rows = given.rows
    with tempfile.TemporaryDirectory() as place:
        home, data = Path(place), Path(place) / "d.jsonl"
        write(data, rows)
        demo, server = lq.model("demo"), ScriptedCompleter(says)
        run(job(PLAIN, data, demo, eval_cache(), None), home / "warm-up")

        model, cache = Timed(demo), eval_cache()
        eight = timed("cold, 8 at a time", rows, lambda: run(job(CHOICE, data, model, cache, 8), home / "8"))
        line("own CPU, share of the model's", (eight - model.seconds) / model.seconds, 0.25, at_most=True)
        others = timed("cold, -j 64", rows, lambda: run(job(CHOICE, data, Timed(demo), eval_cache(), 64), home / "64"))
        line("-j 64 against -j 8", others / eight, 1.1, at_most=True)
        warm = timed("warm: tree known, new folder", rows, lambda: run(job(CHOICE, data, model, cache, 8), home / "w"))
        line("rows a CPU second", rows / warm, 600)

        few = home / "few.jsonl"
        lines = ({"id": n, "shots": SHOTS, "review": f"The room {n} was dirty.", "target": ""} for n in range(100))
        few.write_text("".join(json.dumps(each) + "\n" for each in lines))
        for kind, long in (("server", server), ("local", Roomy(demo.tokenizer))):
            cache = eval_cache()
            for state in ("cold", "warm"):
                folder = home / f"{kind} {state}"
                name = f"16,000 characters of prompt, {kind}, {state}"
                spent = timed(name, 100, lambda: run(job(LONG, few, long, cache, 8), folder))  # noqa: B023
            line("ms CPU a row", 10 * spent, 5, at_most=True)

        again = timed("resumed: all rows finished", rows, lambda: run(job(CHOICE, data, model, cache, 8), home / "8"))
        line("rows a CPU second", rows / again, 20_000)
    small, large = peaks(1000, given.many)
    print(f"peak memory: {small:.0f} MB for 1,000 rows, {large:.0f} MB for {given.many:,}")
    line("MB more", large - small, 50, at_most=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
