"""Tiny matrices on one thread: with two, threads that wait for each other cost more than the work."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch = sys.modules.get("torch")
    before = None if torch is None else torch.get_num_threads()
    if torch is not None:
        torch.set_num_threads(1)
    yield
    if torch is not None and before is not None:
        torch.set_num_threads(before)
