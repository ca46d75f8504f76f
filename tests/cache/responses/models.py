"""Models and requests of the tests."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

from lmql_lite.cache.responses.request import Request
from tests.conftest import ROOT

PATHS = os.pathsep.join([*sys.path, str(ROOT)])
"""Path on which another process finds the package and the tests."""
GREEDY = {"temperature": 0, "max_new_tokens": 16}


class Counting:
    """A model that counts the requests it gets and answers by a function of the request."""

    def __init__(self, answer: Callable[[Request], Any] = lambda request: f"answer to {request.args[0]}") -> None:
        self.answer = answer
        self.asked: list[Request] = []
        self.calls = 0

    def _answers(self, requests: list[Request]) -> list[Any]:
        self.calls += 1
        self.asked += requests
        return [self.answer(request) for request in requests]

    generate_until = loglikelihood = _answers


class OneByOne(Counting):
    """A model whose answers come one by one; `fail_at` is the place of the one that fails."""

    def __init__(self, fail_at: int = -1) -> None:
        super().__init__()
        self.fail_at = fail_at

    def generate_until(self, requests: list[Request]) -> Iterator[Any]:
        for place, request in enumerate(requests):
            if place == self.fail_at:
                raise RuntimeError("out of memory")
            self.asked.append(request)
            yield self.answer(request)


class Sampling(Counting):
    """A model that never says the same twice."""

    def __init__(self) -> None:
        super().__init__(lambda _: f"sample {random.random()}")


def generation(
    number: int, options: dict[str, Any] | None = None, prompt: str | None = None, task: str = "mme"
) -> Request:
    text = f"question {number}" if prompt is None else prompt
    return Request("generate_until", (text, GREEDY if options is None else options),
                   metadata={"task": task, "doc_id": number, "repeats": 1})  # fmt: skip


def generations(count: int, start: int = 0) -> list[Request]:
    return [generation(number) for number in range(start, start + count)]
