"""Decoders of runs. Each decoder is a file of its name, whose `DECODING` decides which branches of a run go on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import cache
from importlib import import_module

from lmql_lite.engine.events import Batch
from lmql_lite.engine.run import Run

Batches = AsyncGenerator[Batch, None]
"""The events of a run. The first batch is `Started`, the last one `Finished`. To close it ends the run."""


@cache
def decoding(name: str) -> Callable[[Run], Batches]:
    """The decoder with this name in the table of decoders."""
    found: Callable[[Run], Batches] = import_module(f"lmql_lite.engine.decode.{name}").DECODING
    return found
