"""How much of the machine the runs of the playground may take."""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class Limits:
    """`memory_bytes` are what a run may have besides its model. Of what it prints `printed_bytes` are told, and where
    that comes to `flood_bytes` it ends. `kept` are the runs that can be read once they have ended."""

    seconds: float = 600
    memory_bytes: int = 2048 * MEBIBYTE
    printed_bytes: int = 256 * 1024
    flood_bytes: int = 64 * MEBIBYTE
    events: int = 500_000
    event_bytes: int = 128 * MEBIBYTE
    at_once: int = 4
    kept: int = 20
    kept_bytes: int = 256 * MEBIBYTE
    grace_seconds: float = 2
    """From the request to stop until it is killed."""
