"""How much memory this process may take from now on, where the system can bound that: on Linux, its address space."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

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
    """A crash is told in a sentence; nobody asked for a file of all memory."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


@contextmanager
def unlimited(more_bytes: int) -> Iterator[None]:
    """What is taken inside does not count."""
    if sys.platform == "linux":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    try:
        yield
    finally:
        limit(more_bytes)
