"""What the interpreter itself costs: tokens that are known, statements, a fork, and the way from source to program.

    python benchmarks/interpreter.py [--runs 9]

The model is scripted and asked for nothing: what is timed is a second run, in which every token is known. Beside each
figure stands a floor that was timed in the same turn: the same count of steps of a bare Python loop that awaits nothing
but a finished coroutine. Times are CPU time of the thread.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import lmql_lite as lq
from lmql_lite.cache.entry import Node
from lmql_lite.cache.token_tree import TokenTree
from lmql_lite.engine.branch import Branch
from lmql_lite.engine.environment import environment_of
from lmql_lite.engine.frame import Frame, own
from lmql_lite.engine.generate.local import LocalGenerator, LocalModel
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.settings import Settings
from lmql_lite.lang.query import parse
from lmql_lite.lang.source import Source
from lmql_lite.options import Sampling
from lmql_lite.program.compiler import compile as compile_program

TOKENS = 2000
STATEMENTS = 3000
FORKS = 16
ITEMS = 1000
LINES = 60

LOOP = f"""
count = 0
while count < {STATEMENTS // 3}:
    "a"
    count = count + 1
"""


def sixty_lines() -> str:
    """A query as people write them, of as many lines."""
    part = """
for number in range(3):
    "- item {number}:[NAME]" where STOPS_AT(NAME, "\\n") and len(NAME) < 40
    if "x" in NAME:
        "note:[NOTE]" where NOTE in ["good", "bad", "unknown"]
    else:
        total = total + number
"""
    lines = ["total = 0", '"""A list of things', 'and what they are:"""']
    while len(lines) + 6 <= LINES:
        lines += part.strip("\n").split("\n")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Row:
    """`work` does something so many times; `unit` is what one of them is called."""

    name: str
    unit: str
    times: int
    work: Callable[[], object]


def rows() -> list[Row]:
    session = lq.Session()
    model = lq.ScriptedModel("go:" + "x" * 2 * TOKENS)
    first = fresh(model)
    (forked,) = forks(first, 1)
    shared = [value for name, value in forked.frames[0].environment.items() if name != "items"]
    free = lq.compile('"go:[A]"')
    loop = lq.compile(LOOP)
    source = Source("sixty.lq", sixty_lines())

    def tokens() -> None:
        result = free.run_sync(model=model, max_tokens=TOKENS, session=session)
        assert isinstance(result, lq.Result)
        assert len(result.tokens) > TOKENS - 5

    tokens()
    return [
        Row("a token that is known", "token", TOKENS, tokens),
        Row("a statement", "statement", STATEMENTS, lambda: loop.run_sync(model=model, session=session)),
        Row(f"parse and compile {LINES} lines", "query", 1, lambda: compile_program(parse(source))),
        Row(f"{FORKS} forks of a list of {ITEMS}", "fork", FORKS, lambda: forks(first, FORKS)),
        Row("and the copy when one writes", "copy", 1, lambda: own(forked.frames, shared)),
    ]


def fresh(model: lq.ScriptedModel) -> Branch:
    """One with a list of dicts among its variables."""
    program = lq.compile('"go"').program
    environment = environment_of(program, {}) | {"items": [{"n": at} for at in range(ITEMS)]}
    local = LocalModel(model)
    scheduler = local.scheduler(TokenTree())
    generator = LocalGenerator(local, scheduler, Ledger(1), Sampling(), isolated=False, uses_caches=True)
    return Branch(Frame(program, environment, Settings({}), Sampling()), generator)


def forks(branch: Branch, many: int) -> list[Branch]:
    found = [branch.fork() for _ in range(many)]
    items = branch.frames[0].environment["items"]
    assert all(fork.frames[0].environment["items"] is items for fork in found), "nothing is copied"
    return found


async def _step() -> Node:
    return 0


async def _floor(times: int) -> None:
    for _ in range(times):
        await _step()


def seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9, help="turns; medians are shown")
    runs = parser.parse_args().runs
    table = rows()
    taken: dict[str, list[float]] = {row.name: [] for row in table}
    floors: dict[str, list[float]] = {row.name: [] for row in table}
    for _ in range(runs):
        for row in table:
            taken[row.name].append(seconds(row.work) / row.times)
            floors[row.name].append(seconds(lambda: asyncio.run(_floor(1000))) / 1000)
    print(f"{'':36}{'median':>12}{'min':>10}{'max':>10}{'x floor':>10}   (n={runs}, microseconds)")
    for row in table:
        found = taken[row.name]
        ratio = statistics.median(found) / statistics.median(floors[row.name])
        figures = "".join(f"{1e6 * figure:>10.1f}" for figure in (min(found), max(found)))
        print(f"{row.name:36}{1e6 * statistics.median(found):>12.1f}{figures}{ratio:>10,.0f}   a {row.unit}")


if __name__ == "__main__":
    main()
