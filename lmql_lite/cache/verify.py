"""What a `.tokens` file holds and where it is damaged, without changing it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from lmql_lite.cache.contents import Damage as Damage
from lmql_lite.cache.contents import contents_of
from lmql_lite.cache.frames import Batch, Model


@dataclass(frozen=True, slots=True)
class Report:
    """What a file holds: frames that can be read, facts in them, and what is wrong."""

    bytes: int
    frames: int
    models: tuple[Model, ...]
    nodes: int
    heads: int
    verdicts: int
    draws: int
    damage: tuple[Damage, ...]
    torn_bytes: int
    """See `Contents`."""

    @property
    def is_sound(self) -> bool:
        return not self.damage


def verify(path: str | os.PathLike[str]) -> Report:
    """Reads and checks the whole file; takes no lock. Blocking. CacheError where it cannot be read or is none."""
    contents = contents_of(path)
    batches = [entry for entry in contents.entries if isinstance(entry, Batch)]
    return Report(
        bytes=contents.bytes,
        frames=contents.frames,
        models=contents.models,
        nodes=sum(len(batch.tokens) for batch in batches),
        heads=sum(len(batch.heads.nodes) for batch in batches),
        verdicts=sum(len(batch.verdicts.nodes) for batch in batches),
        draws=sum(len(batch.draws.nodes) for batch in batches),
        damage=contents.damage,
        torn_bytes=contents.torn_bytes,
    )
