"""Programs whose Python is no function of the answers, in runs with one branch and with several (S23).

With one branch they do what Python does. Where branches fork, each result has the values that its text says, or the run
is refused with the name of the place; nothing hangs.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import pytest

import lmql_lite as lq


class Case(NamedTuple):
    """A program, its inputs, the value that it returns after the holes X and Y, and the sentence under beams, if it is
    refused there."""

    source: str
    value: Callable[[str, str], Any]
    inputs: Callable[[], dict[str, Any]] = dict
    refused: str = ""


HOLES = '"[X]" where len(X) == 2\n{}\n" [Y]" where len(Y) == 2\n{}'
CHANGED = "has changed since the run began"
ONCE = "can be read only once"


def around(between: str, after: str, before: str = "") -> str:
    return f"{before}\n{HOLES.format(between, after)}"


class Count:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        return self.calls


class Transaction:
    """A context manager that must be left once."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def __enter__(self) -> Transaction:
        self.log.append("begin")
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.log.append("rollback" if kind else "commit")


async def listed() -> list[int]:
    return [1, 2, 3]


async def handle() -> threading.Lock:
    return threading.Lock()


def lines() -> Iterator[str]:
    yield from ("one", "two", "three")


CASES = {
    # inputs that change or can be read once
    "an iterator": Case(around("", "return next(it)"), lambda x, y: 1, lambda: {"it": iter([1, 2])}, ONCE),
    "a generator": Case(around("a = next(it)", "return a"), lambda x, y: "one", lambda: {"it": lines()}, ONCE),
    "a counter of itertools": Case(
        around("", "return next(it)"), lambda x, y: 0, lambda: {"it": itertools.count()}, ONCE
    ),
    "zip": Case(around("", "return next(it)"), lambda x, y: (1, 2), lambda: {"it": zip([1], [2], strict=True)}, ONCE),
    "pop": Case(around("a = xs.pop()", "return a"), lambda x, y: 2, lambda: {"xs": [1, 2]}, CHANGED),
    "append": Case(around("xs.append(X)", "return xs"), lambda x, y: [x], lambda: {"xs": []}, CHANGED),
    "a dict": Case(around("d[X] = 1", "return d"), lambda x, y: {x: 1}, lambda: {"d": {}}, CHANGED),
    "a set": Case(around("s.add(X)", "return s"), lambda x, y: {x}, lambda: {"s": set()}, CHANGED),
    "popitem": Case(around("d.popitem()", "return d"), lambda x, y: {}, lambda: {"d": {1: 2}}, CHANGED),
    "a clear": Case(around("xs.clear()", "return xs"), lambda x, y: [], lambda: {"xs": [1]}, CHANGED),
    # clocks, counters, random numbers
    "a counter in the text": Case(
        around('" {n()}"', "return 1"), lambda x, y: 1, lambda: {"n": Count()}, r"said '\d' instead of '\d'"
    ),
    "a counter before the text": Case(
        around("", "return 1", '"{n()} "'), lambda x, y: 1, lambda: {"n": Count()}, r"said '\d' instead of '\d'"
    ),
    "a clock in the text": Case(
        around('" {clock()}"', "return 1"), lambda x, y: 1, lambda: {"clock": time.perf_counter_ns}, "instead of"
    ),
    "random numbers in the text": Case(
        around('" {random.random()}"', "return 1", "import random"), lambda x, y: 1, dict, "instead of"
    ),
    "a counter in a condition": Case(
        'c = n()\n"[X]" where len(X) == 2 and len(X) < 9 + c\n" [Y]" where len(Y) == 2\nreturn 1',
        lambda x, y: 1,
        lambda: {"n": Count()},
        "another condition",
    ),
    "a counter in the options of a hole": Case(
        '"[sample(temperature=n()) X]" where len(X) == 2\n"b[Z]" where len(Z) == 2\n" [Y]" where len(Y) == 2\nreturn 1',
        lambda x, y: 1,
        lambda: {"n": Count()},
        "gave .X. other options",
    ),
    "a counter that decides": Case(
        'if n() % 2:\n    "a[X]" where len(X) == 2\nelse:\n    "b[X]" where len(X) == 2\n'
        '" [Y]" where len(Y) == 2\nreturn 1',
        lambda x, y: 1,
        lambda: {"n": Count()},
        "instead of|took another way",
    ),
    # state of the query, which each branch makes again
    "an iterator of the query": Case(around("", "return next(it)", "it = iter([1, 2])"), lambda x, y: 1),
    "a generator of the query": Case(
        around("", "return next(it)", "it = (n for n in [1, 2])\nnext(it)"), lambda x, y: 2
    ),
    "a generator function": Case(
        around("a = next(it)", "return (a, next(it))", "def g():\n    yield 1\n    yield 2\nit = g()"),
        lambda x, y: (1, 2),
    ),
    "a generator in a closure": Case(
        around("a = f()", "return (a, f())", "def f(it=iter([1, 2])):\n    return next(it)"), lambda x, y: (1, 2)
    ),
    "a list of the query": Case(around("xs.append(X)", "xs.append(Y)\nreturn xs", "xs = []"), lambda x, y: [x, y]),
    "pop of the query": Case(around("xs.pop()", "return xs", "xs = [1, 2]"), lambda x, y: [1]),
    "a function that remembers": Case(
        around("f(X)", "f(Y)\nreturn f.seen", "def f(x):\n    f.seen.append(x)\nf.seen = []"), lambda x, y: [x, y]
    ),
    "a class that counts": Case(
        around("c.add()", "return c.n", "class C:\n    n = 0\n    def add(self):\n        self.n += 1\nc = C()"),
        lambda x, y: 1,
    ),
    "a global": Case(around("f()", "return n", "n = 0\ndef f():\n    global n\n    n += 1"), lambda x, y: 1),
    "a loop over a generator": Case(
        'seen = []\nfor n in (n for n in [1, 2]):\n    "[X]" where len(X) == 2\n    seen.append(X)\n'
        '" [Y]" where len(Y) == 2\nreturn len(seen), seen[-1]',
        lambda x, y: (2, x),
    ),
    "enumerate": Case(
        'for n, _ in enumerate("ab"):\n    "[X]" where len(X) == 2\n" [Y]" where len(Y) == 2\nreturn n', lambda x, y: 1
    ),
    # values and answers
    "a list that is awaited and changed": Case(
        around("xs.pop()", "return xs", "xs = await listed()"), lambda x, y: [1, 2], lambda: {"listed": listed}
    ),
    "an async function of the query": Case(
        around("await f(X)", "return seen", "seen = []\nasync def f(x):\n    seen.append(x)"), lambda x, y: [x]
    ),
    "an answer that cannot be copied": Case(
        around("", "return 1", "h = await handle()"), lambda x, y: 1, lambda: {"handle": handle}, "cannot be copied"
    ),
    "a typed value that changes": Case(
        "from dataclasses import dataclass\nfrom typing import Literal\n@dataclass\n"
        'class P:\n    a: Literal["q", "z"]\n'
        '"[X: P]"\nb = X.a\nX.a = "changed"\n" [Y]" where len(Y) == 2\nreturn X.a, len(b)',
        lambda x, y: ("changed", 1),
    ),
    "a class of the query": Case(
        'class A(str): pass\n"[X]" where len(X) == 2\na = A(X)\n" [Y]" where len(Y) == 2\nreturn type(a) is A and a',
        lambda x, y: x,
    ),
    "a subject of a match": Case(
        around(
            "",
            "return Z",
            'match await n():\n    case 1:\n        Z = "one"\n        "-"\n    case _:\n        Z = "+"',
        ),
        lambda x, y: "one",
        lambda: {"n": counter()},
    ),
    "a guard of a case": Case(
        around(
            "",
            "return Z",
            'match 1:\n    case Z if await n() == 1:\n        "-"\n    case _:\n        Z = 0\n        "+"',
        ),
        lambda x, y: 1,
        lambda: {"n": counter()},
    ),
    # blocks
    "a transaction": Case(
        'with t:\n    "[X]" where len(X) == 2\n    "[Y]" where len(Y) == 2\nreturn t.log',
        lambda x, y: ["begin", "commit"],
        lambda: {"t": Transaction()},
        "inside a `with`",
    ),
    "a return in a transaction": Case(
        'try:\n    with t:\n        "[X]" where len(X) == 2\n        return t.log\nfinally:\n    Y = ""',
        lambda x, y: ["begin", "commit"],
        lambda: {"t": Transaction()},
        "inside a `with`",
    ),
    "a bare except": Case(
        'try:\n    "[X]" where len(X) == 2\n    "[Y]" where len(Y) == 2\nexcept:\n    return "caught"\nreturn 1',
        lambda x, y: 1,
    ),
    "a finally with a prompt": Case(
        'try:\n    "[X]" where len(X) == 2\nfinally:\n    " [Y]" where len(Y) == 2\nreturn 1', lambda x, y: 1
    ),
    "a return that a finally follows": Case(
        'try:\n    "[X]" where len(X) == 2\n    return X\nfinally:\n    " [Y]" where len(Y) == 2', lambda x, y: x
    ),
    "an exception between holes": Case(
        'try:\n    "[X]" where len(X) == 2\n    raise ValueError(X)\nexcept ValueError as error:\n    E = str(error)\n'
        '" [Y]" where len(Y) == 2\nreturn E',
        lambda x, y: x,
    ),
    # tasks that wait for one another
    "a lock": Case(
        around("", "lock.release()\nreturn 1", "await lock.acquire()"),
        lambda x, y: 1,
        lambda: {"lock": asyncio.Lock()},
        "not acquired|cannot be|waits in",
    ),
    "a semaphore": Case(
        around("await s.acquire()", "return 1"),
        lambda x, y: 1,
        lambda: {"s": asyncio.Semaphore(1)},
        "waits in Semaphore.acquire",
    ),
    "a queue": Case(
        around("n = await q.get()", "return n"), lambda x, y: 1, lambda: {"q": queue(1)}, "waits in Queue.get"
    ),
}


def counter() -> Callable[[], Awaitable[int]]:
    count = Count()

    async def counted() -> int:
        return count()

    return counted


async def answered_late() -> str:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(0.4, event.set)
    await event.wait()
    return "late"


def queue(item: object) -> asyncio.Queue[object]:
    made = asyncio.Queue[object]()
    made.put_nowait(item)
    return made


def test_there_are_forty_of_them() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("decoder", ["argmax", "sample"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_with_one_branch_python_does_what_it_does(case: Case, decoder: str) -> None:
    result = lq.run_sync(case.source, case.inputs(), decoder=decoder, seed=1, model="demo", session=lq.Session())
    assert result.value == case.value(result["X"], result.variables.get("Y", ""))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_branches_have_the_values_that_their_text_says_or_are_refused(case: Case) -> None:
    query, began = lq.compile(case.source), time.perf_counter()
    options: dict[str, Any] = {"decoder": "beam", "n": 3, "model": "demo", "session": lq.Session()}
    if case.refused:
        with pytest.raises((lq.QueryError, lq.InputError, RuntimeError), match=case.refused):
            query.run_sync(case.inputs(), **options)
    else:
        results = query.run_sync(case.inputs(), **options)
        assert len(results) == 3
        for result in results:
            assert result.value == case.value(result["X"], result.variables.get("Y", ""))
    assert time.perf_counter() - began < 10


@pytest.mark.parametrize(
    "source",
    [
        around("", "return a", "a = await late()"),
        around("a = await late()", "return a"),
        around("", "return a", "async def f():\n    return await late()\na = await f()"),
        around(
            "",
            "return a",
            'e = asyncio.Event()\nasyncio.get_running_loop().call_later(0.4, e.set)\nawait e.wait()\na = "late"',
        ),
    ],
    ids=["before the holes", "between the holes", "in a function of the query", "by the query before a fork"],
)
def test_an_answer_that_comes_late_is_awaited(source: str) -> None:
    inputs = {"late": answered_late} if "late()" in source else {"asyncio": asyncio}
    results = lq.run_sync(source, inputs, decoder="beam", n=3, model="demo", session=lq.Session())
    assert [result.value for result in results] == ["late"] * 3


def test_what_is_gathered_before_a_fork_is_reported_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    source = around("", "return a", "import asyncio\na = await asyncio.gather(listed(), listed())")
    results = lq.run_sync(source, {"listed": listed}, decoder="beam", n=3, model="demo", session=lq.Session())
    gc.collect()
    assert [result.value for result in results] == [[[1, 2, 3]] * 2] * 3
    assert not caplog.records
