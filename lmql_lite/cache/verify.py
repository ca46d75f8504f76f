"""What a `.tokens` file holds and where it is damaged, without changing it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lmql_lite.cache.frames import Batch, Model
from lmql_lite.cache.framing import FILE_HEAD_BYTES, NewerVersion, may_become_file_head, read_file_head, scan
from lmql_lite.cache.log import Lost, NumberClash, Numbers
from lmql_lite.errors import CacheError


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes `start` to `end` of the file cannot be used."""

    start: int
    end: int
    what: str


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
    """The beginning of a frame at the end: a write that is going on, or was cut short. The next writer mends it."""

    @property
    def is_sound(self) -> bool:
        return not self.damage


def verify(path: str | os.PathLike[str]) -> Report:
    """Reads and checks the whole file; takes no lock. Blocking. CacheError where it cannot be read or is none."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise CacheError(f"{path} cannot be read ({error.strerror})") from error
    try:
        salt = read_file_head(data)
    except NewerVersion:
        raise CacheError(f"{path} was written by a newer lmql-lite", hint="update lmql-lite") from None
    if may_become_file_head(data):
        return Report(len(data), 0, (), 0, 0, 0, 0, (), len(data))
    if salt is None:
        raise CacheError(f"{path} is not a .tokens file")
    found = scan(data[FILE_HEAD_BYTES:], FILE_HEAD_BYTES, salt)
    damage = [Damage(start, end, "no frame begins here") for start, end in found.gaps]
    numbers, batches = Numbers(), []
    for place in found.places:
        try:
            news = numbers.admit(place.frame)
        except NumberClash:
            numbers.give_up(place.frame.model)
            damage.append(Damage(place.start, place.end, "its numbers are taken"))
            continue
        if isinstance(news, Lost):
            what = "its checksum is wrong" if place.frame.payload is None else "it does not fit what came before"
            damage.append(Damage(place.start, place.end, what))
        elif isinstance(news, Batch):
            batches.append(news)
    if found.end < len(data) and not found.torn:
        damage.append(Damage(found.end, len(data), "no frame begins here"))
    return Report(
        bytes=len(data),
        frames=len(found.places) - sum(1 for one in damage if one.what != "no frame begins here"),
        models=numbers.models,
        nodes=sum(len(batch.tokens) for batch in batches),
        heads=sum(len(batch.heads.nodes) for batch in batches),
        verdicts=sum(len(batch.verdicts.nodes) for batch in batches),
        draws=sum(len(batch.draws.nodes) for batch in batches),
        damage=tuple(sorted(damage, key=lambda one: one.start)),
        torn_bytes=len(data) - found.end if found.torn else 0,
    )
