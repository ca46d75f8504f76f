"""All that stands in a `.tokens` file at one moment, read without a lock and without changing it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmql_lite.cache.frames import BATCH, MODEL, Batch, Model
from lmql_lite.cache.framing import FILE_HEAD_BYTES, NewerVersion, may_become_file_head, read_file_head, scan
from lmql_lite.cache.log import Lost, NumberClash, Numbers
from lmql_lite.cache.spelling import visible
from lmql_lite.errors import CacheError

NO_FRAME = "no frame begins here"


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes `start` to `end` of the file cannot be used."""

    start: int
    end: int
    what: str


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """The entries of a file in order, what is lost among them, and where."""

    bytes: int
    frames: int
    """That can be read."""
    entries: tuple[Model | Batch | Lost, ...]
    models: tuple[Model, ...]
    damage: tuple[Damage, ...]
    torn_bytes: int
    """The beginning of a frame at the end: a write that is going on, or was cut short. The next writer mends it."""
    strange_frames: int
    """Whole, but of a kind that this version does not know. They count as damage here, since their numbers are lost."""


def contents_of(path: str | os.PathLike[str]) -> Contents:
    """Reads and checks the whole file. Blocking. CacheError where it cannot be read or is none."""
    data = _bytes_of(Path(path))
    try:
        salt = read_file_head(data)
    except NewerVersion:
        raise CacheError(f"{path} was written by a newer lmql-lite", hint="update lmql-lite") from None
    if may_become_file_head(data):
        return Contents(len(data), 0, (), (), (), len(data), 0)
    if salt is None:
        raise CacheError(f"{path} is not a .tokens file", hint="it was left as it is; is the name right?")
    found = scan(data[FILE_HEAD_BYTES:], FILE_HEAD_BYTES, salt)
    damage = [Damage(start, end, NO_FRAME) for start, end in found.gaps]
    frames = [place.frame for place in found.places]
    numbers, entries = Numbers(), list[Model | Batch | Lost]()
    while len(entries) < len(frames):
        at = len(entries)
        try:
            entries += numbers.admit_some(frames, at)
            misfit = "it does not fit what came before"
        except NumberClash:
            numbers.give_up(frames[at].model)
            entries += numbers.admit_some(frames, at)
            misfit = "its numbers are taken"
        for place, entry in zip(found.places[at : len(entries)], entries[at:], strict=True):
            if isinstance(entry, Lost):
                what = "its checksum is wrong" if place.frame.payload is None else misfit
                damage.append(Damage(place.start, place.end, what))
    if found.end < len(data) and not found.torn:
        damage.append(Damage(found.end, len(data), NO_FRAME))
    return Contents(
        bytes=len(data),
        frames=sum(not isinstance(entry, Lost) for entry in entries),
        entries=tuple(entries),
        models=numbers.models,
        damage=tuple(sorted(damage, key=lambda one: one.start)),
        torn_bytes=len(data) - found.end if found.torn else 0,
        strange_frames=sum(frame.payload is not None and frame.kind not in (MODEL, BATCH) for frame in frames),
    )


def _bytes_of(path: Path) -> bytes:
    if path.is_dir():
        raise CacheError(f"{path} is a directory", hint=f"name a file in it: {path / 'cache.tokens'}")
    if path.exists() and not path.is_file():
        raise CacheError(f"{path} is a device, pipe or socket", hint="name a file")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CacheError(
            f"there is no file {path}", hint=f"lq run QUERY --cache {path} makes it; is the name right?"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: the name itself cannot be one
        raise CacheError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from error


def fingerprint_shown(fingerprint: str) -> str:
    """Enough of it to tell models apart: `demo:2c075f5c`."""
    kind, colon, digest = fingerprint.rpartition(":")
    return visible(kind + colon + digest[:8])


def model_shown(model: Model) -> str:
    """Its name, which a file may have from anywhere, and fingerprint."""
    return f"{visible(model.name)} ({fingerprint_shown(model.fingerprint)})"


def chosen(models: Sequence[Model], wanted: str | None) -> tuple[Model, ...]:
    """The models that a user means by a name, or by the beginning of a fingerprint; None means all.

    A name may belong to several: a model that has changed keeps its name. CacheError where there is none, and where
    the beginning of a fingerprint is that of several.
    """
    if wanted is None:
        return tuple(models)
    named = tuple(model for model in models if model.name == wanted)
    if named:
        return named
    fitting = tuple(
        model
        for model in models
        if wanted and (model.fingerprint.startswith(wanted) or model.fingerprint.rpartition(":")[2].startswith(wanted))
    )
    if len({model.fingerprint for model in fitting}) > 1:
        several = ", ".join(fingerprint_shown(model.fingerprint) for model in fitting)
        raise CacheError(f"{wanted!r} is the beginning of several fingerprints: {several}", hint="write more of it")
    if not fitting:
        known = ", ".join(model_shown(model) for model in models)
        raise CacheError(
            f"the file holds nothing of a model {wanted!r}", hint=f"it knows {known}" if known else "it is empty"
        )
    return fitting
