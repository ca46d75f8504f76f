"""The bytes around frames in a file: its head, a head per frame, and how to find the next frame after damage.

A frame's head has a checksum of its own, which depends on the frame's place and on a random salt of the file. So a
damaged payload still tells where the next frame begins and which numbers it took, and bytes that look like a frame but
stand elsewhere (inside a payload, in a file that was copied into another) are never taken for one (D19).
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from lmql_lite.cache.frames import Frame

VERSION = 1
MAX_PAYLOAD_BYTES = 2**28

_MAGIC = b"\x93tokens\n"  # no text begins so, and a transfer that changes line ends shows
_FILE_HEAD = struct.Struct("<8sI8sI")
FILE_HEAD_BYTES = 2 * _FILE_HEAD.size  # twice: one flipped bit shall not cost the whole file

_MARK = b"\xf4LQ"
_FRAME_HEAD = struct.Struct("<3sBIIIQI")  # mark, kind, payload bytes, model, nodes, first node, checksum of the payload
_CHECKSUM = struct.Struct("<I")
_WHOLE_HEAD = struct.Struct("<3sBIIIQII")
FRAME_HEAD_BYTES = _WHOLE_HEAD.size


class NewerVersion(Exception):
    """A later version of this library wrote the file."""


def file_head() -> bytes:
    """The head of a new file."""
    head = struct.pack("<8sI8s", _MAGIC, VERSION, os.urandom(8))
    return 2 * (head + _CHECKSUM.pack(crc32(head)))


def read_file_head(data: bytes) -> bytes | None:
    """The file's salt, or None where this is no head. NewerVersion where its format is not known yet."""
    for at in (0, _FILE_HEAD.size):
        if len(data) >= at + _FILE_HEAD.size:
            magic, version, salt, checksum = _FILE_HEAD.unpack_from(data, at)
            if magic == _MAGIC and checksum == crc32(data[at : at + _FILE_HEAD.size - _CHECKSUM.size]):
                if version > VERSION:
                    raise NewerVersion
                return bytes(salt)
    return None


def may_become_file_head(data: bytes) -> bool:
    """Whether a writer may have crashed while it wrote the head: such a file is as good as empty."""
    begin = struct.pack("<8sI", _MAGIC, VERSION)
    return len(data) < FILE_HEAD_BYTES and data[: len(begin)] == begin[: len(data)]


def frame_bytes(frame: Frame, position: int, salt: bytes) -> bytes:
    """The frame as it stands at a byte position of the file with this salt."""
    payload = frame.payload
    assert payload is not None and len(payload) <= MAX_PAYLOAD_BYTES
    head = _FRAME_HEAD.pack(_MARK, frame.kind, len(payload), frame.model, frame.count, frame.first, crc32(payload))
    return b"".join((head, _CHECKSUM.pack(_head_checksum(head, position, salt)), payload))


def _head_checksum(head: bytes, position: int, salt: bytes) -> int:
    return crc32(head, crc32(salt + position.to_bytes(8, "little")))


class Place(NamedTuple):
    """A frame and the bytes it takes in the file, `start` to `end`."""

    start: int
    end: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class Scan:
    """What stands in a stretch of the file: whole frames, places without any, and from `end` on the tail."""

    places: tuple[Place, ...]
    gaps: tuple[tuple[int, int], ...]
    end: int
    torn: bool
    """The tail is the beginning of a frame: a write that still goes on or was cut short. Else it is empty or damage."""


def scan(data: bytes, base: int, salt: bytes) -> Scan:
    """Finds the frames in `data`, which starts at byte `base` of the file."""
    places: list[Place] = []
    gaps: list[tuple[int, int]] = []
    at, torn = 0, False
    while at < len(data):
        place = _frame_at(data, at, base, salt)
        if place is None:
            following = _next_frame(data, at, base, salt)
            if following is None:
                torn = len(data) - at < FRAME_HEAD_BYTES
                break
            gaps.append((base + at, base + following))
            at = following
            continue
        if place.end > base + len(data):
            torn = True
            break
        places.append(place)
        at = place.end - base
    return Scan(tuple(places), tuple(gaps), base + at, torn)


def _frame_at(data: bytes, at: int, base: int, salt: bytes) -> Place | None:
    body = at + FRAME_HEAD_BYTES
    if len(data) < body:
        return None
    mark, kind, size, model, count, first, checksum, own_checksum = _WHOLE_HEAD.unpack_from(data, at)
    if mark != _MARK or own_checksum != _head_checksum(data[at : at + _FRAME_HEAD.size], base + at, salt):
        return None
    payload = data[body : body + size]
    whole = crc32(payload) == checksum and size <= MAX_PAYLOAD_BYTES
    frame = Frame(kind, model, first, count, payload if whole else None)
    return Place(base + at, base + body + size, frame)


def _next_frame(data: bytes, at: int, base: int, salt: bytes) -> int | None:
    while (at := data.find(_MARK, at + 1)) >= 0:
        if _frame_at(data, at, base, salt) is not None:
            return at
    return None
