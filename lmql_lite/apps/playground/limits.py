"""Limits of a run: its time, lines and memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a run. `memory_bytes` does not include its model. The first `printed_bytes` of its output are shown;
    after `flood_bytes` it is stopped. `kept` runs can be read after their end."""

    seconds: float = 600
    memory_bytes: int = 2048 * MEBIBYTE
    printed_bytes: int = 256 * 1024
    flood_bytes: int = 64 * MEBIBYTE
    events: int = 500_000
    event_bytes: int = 128 * MEBIBYTE
    at_once: int = 4
    kept: int = 20
    kept_bytes: int = 256 * MEBIBYTE
    processes: int = 64
    """Besides the run's own, at once."""
    grace_seconds: float = 2
    """From the request to stop until it is killed."""


IS_BOUNDED = sys.platform == "linux"


def limit(more_bytes: int) -> None:
    """Besides what is taken already. Processes that this one starts inherit the bound."""
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm", encoding="ascii") as pages:
            taken = int(pages.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = taken + more_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def without_core_dumps() -> None:
    """Switches off core dumps: a crash is reported in a sentence."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


@contextmanager
def unlimited(more_bytes: int) -> Iterator[None]:
    """Context in which memory does not count."""
    if sys.platform == "linux":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    try:
        yield
    finally:
        limit(more_bytes)
