"""Answers of batches are in the log when the model's call returns, whatever ends the run afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import lmql_lite as lq
from lmql_lite.cache.responses.older import CachingModel
from tests.cache.responses.models import PATHS, Counting, generations


def logged(folder: Path) -> list[int]:
    """Documents whose answers are in the logs of a folder."""
    found = []
    for log in folder.rglob("*.jsonl"):
        found += [json.loads(line).get("doc_id") for line in log.read_text("utf-8").split("\n")[1:-1]]
    return found


class Watching:
    """A model that checks, whenever it is called, that all its earlier answers are in the log."""

    def __init__(self, folder: Path, form: str) -> None:
        self.folder, self.form, self.answered = folder, form, 0
        self.generate_until = getattr(self, f"by_{form}")

    def begin(self) -> None:
        assert len(logged(self.folder)) == self.answered

    def by_list(self, requests: list[lq.Request]) -> list[str]:
        self.begin()
        self.answered += len(requests)
        return [f"answer to {request.args[0]}" for request in requests]

    def by_tuple(self, requests: list[lq.Request]) -> tuple[str, ...]:
        return tuple(self.by_list(requests))

    def by_generator(self, requests: list[lq.Request]) -> Iterator[str]:
        self.begin()
        for request in requests:
            self.answered += 1
            yield f"answer to {request.args[0]}"

    async def by_coroutine(self, requests: list[lq.Request]) -> list[str]:
        return self.by_list(requests)

    async def by_async_generator(self, requests: list[lq.Request]) -> AsyncIterator[str]:
        for answer in self.by_generator(requests):
            yield answer


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    ("door", "form"),
    [("execute", "list"), ("execute", "tuple"), ("execute", "generator"), ("aexecute", "list"),
     ("aexecute", "generator"), ("aexecute", "coroutine"), ("aexecute", "async_generator")],
)  # fmt: skip
def test_answers_of_a_batch_are_in_the_log_before_the_next_batch_is_asked(
    tmp_path: Path, door: str, form: str, size: int
) -> None:
    model = Watching(tmp_path, form)
    count = 10 if size == 1 else 20
    with lq.ResponseCache.open(tmp_path, model="m") as cache:
        if door == "execute":
            answers = cache.execute(model, "generate_until", generations(count), batch_size=size)
        else:
            answers = asyncio.run(cache.aexecute(model, "generate_until", generations(count), batch_size=size))
        assert logged(tmp_path) == list(range(count))
    assert answers == [f"answer to question {number}" for number in range(count)]


RUN = """
import asyncio, signal, sys, time
from pathlib import Path
import lmql_lite as lq
from tests.cache.responses.models import generations

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
folder, door, form = sys.argv[1:]

class Slow:
    calls = 0

    def generate_until(self, requests):
        if self.calls == 5:
            print("asked", flush=True)
            time.sleep(60)
        self.calls += 1
        return [f"answer to {request.args[0]}" for request in requests]

class SlowAsync(Slow):
    async def generate_until(self, requests):
        if self.calls == 5:
            print("asked", flush=True)
            await asyncio.sleep(60)
        self.calls += 1
        return [f"answer to {request.args[0]}" for request in requests]

model = SlowAsync() if form == "async" else Slow()
with lq.ResponseCache.open(folder, model="m") as cache:
    if door == "execute":
        cache.execute(model, "generate_until", generations(40), batch_size=4)
    else:
        asyncio.run(cache.aexecute(model, "generate_until", generations(40), batch_size=4))
"""


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda by: by.name)
@pytest.mark.parametrize(("door", "form"), [("execute", "plain"), ("aexecute", "async")])
def test_a_batched_run_that_is_killed_keeps_every_answer_that_the_model_gave(
    tmp_path: Path, door: str, form: str, by: signal.Signals
) -> None:
    process = subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path), door, form], env={"PYTHONPATH": PATHS},
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == b"asked\n"
    process.send_signal(by)
    process.stdout.close()
    process.wait(30)
    assert logged(tmp_path) == list(range(20))
    model = Counting()
    with lq.ResponseCache.open(tmp_path, model="m") as cache:
        cache.execute(model, "generate_until", generations(40))
    assert [request.doc_id for request in model.asked] == list(range(20, 40))


@pytest.mark.parametrize(("door", "count"), [("execute", 4), ("store", 1)])
def test_ctrl_c_while_answers_are_written_ends_the_run_and_loses_none(
    tmp_path: Path, door: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run went on, without the batch that was being written."""
    write, presses = os.fsync, iter([True])

    def pressed(descriptor: int) -> None:
        write(descriptor)
        if next(presses, False):
            signal.raise_signal(signal.SIGINT)

    model, cache = Counting(), lq.ResponseCache.open(tmp_path, model="m")
    monkeypatch.setattr(os, "fsync", pressed)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            if door == "execute":
                cache.execute(model, "generate_until", generations(12), batch_size=4)
            else:
                cache.store(generations(4)[0], "yes")
    finally:
        signal.signal(signal.SIGINT, handler)
    cache.close()
    assert logged(tmp_path) == list(range(count)) and len(model.asked) in (0, 4), "the model was not asked on"


def test_a_wrapped_model_logs_its_answers_when_its_method_returns(tmp_path: Path) -> None:
    wrapped = CachingModel(Counting(), tmp_path / "answers.db")
    for count in (3, 6):
        wrapped.generate_until(generations(count))
        assert len(logged(tmp_path)) == count
    wrapped.close()
