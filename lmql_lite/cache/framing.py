"""Framing of records. A `.tokens` file is a sequence of frames with one record each, and nothing else.

Frames do not depend on their place, so files can be concatenated. A payload never contains the mark that begins and
ends a frame: after damage, reading goes on at the next mark with a valid checksum.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import IO, NamedTuple
from zlib import crc32

from lmql_lite.errors import CacheError

VERSION = 2
MAX_PAYLOAD_BYTES = 2**28
ADDRESS_BYTES = 16
RECORD = 1
"""Kind of the frames that hold a record. Frames of other kinds are from later versions and are skipped."""

_MAGIC = b"\x93tokens"  # no text begins with these bytes
MARK = _MAGIC + bytes([VERSION])
_VERSION_1 = _MAGIC + b"\n"
_HEAD = struct.Struct("<8sBI16s")  # mark, kind, payload bytes, address
_CHECKSUM = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _CHECKSUM.size
FRAME_BYTES = HEAD_BYTES + len(MARK)
"""Bytes of a frame without its payload. The mark at the end identifies a file whose beginning is lost."""
_CHUNK = 2**20


class FrameError(CacheError):
    """The bytes or the columns of a record are invalid."""


class LogFrame(NamedTuple):
    """A record's address and bytes; `payload` is None if the bytes are damaged."""

    address: bytes
    payload: bytes | None
    kind: int = RECORD


def address_of(payload: bytes) -> bytes:
    """Address by which other records refer to a record: a digest of its bytes."""
    return hashlib.sha256(payload).digest()[:ADDRESS_BYTES]


def frame_bytes(payload: bytes, kind: int = RECORD) -> bytes:
    """The frame of a payload. Raises FrameError if no frame can hold it."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise FrameError("the record is too long")
    if MARK in payload:
        raise FrameError("the record holds the mark of a frame")
    head = _HEAD.pack(MARK, kind, len(payload), address_of(payload))
    return b"".join((head, _CHECKSUM.pack(crc32(head)), payload, MARK))


class FrameSpan(NamedTuple):
    """A frame and its bytes in the file, from `start` to `end`."""

    start: int
    end: int
    frame: LogFrame


@dataclass(frozen=True, slots=True)
class Scan:
    """Frames in a part of the file, damaged bytes between them, and the beginning of the tail."""

    places: tuple[FrameSpan, ...]
    gaps: tuple[tuple[int, int], ...]
    end: int
    torn: bool
    """True if the tail is an incomplete frame: a write in progress, or one cut short. Else it is empty or damage."""


def scan(data: bytes, base: int) -> Scan:
    """Finds the frames in `data`, which starts at byte `base` of the file."""
    places: list[FrameSpan] = []
    gaps: list[tuple[int, int]] = []
    at, torn = 0, False
    while at < len(data):
        place = _frame_at(data, at, base)
        if place is None:
            following = _next_frame(data, at, base)
            if following is None:
                torn = len(data) - at < HEAD_BYTES
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


def _frame_at(data: bytes, at: int, base: int) -> FrameSpan | None:
    body = at + HEAD_BYTES
    if len(data) < body:
        return None
    mark, kind, size, address = _HEAD.unpack_from(data, at)
    (checksum,) = _CHECKSUM.unpack_from(data, at + _HEAD.size)
    if mark != MARK or checksum != crc32(data[at : at + _HEAD.size]) or size > MAX_PAYLOAD_BYTES:
        return None
    payload = data[body : body + size]
    frame = LogFrame(address, payload if address_of(payload) == address else None, kind)
    return FrameSpan(base + at, base + body + size + len(MARK), frame)


def _next_frame(data: bytes, at: int, base: int) -> int | None:
    while (at := data.find(MARK, at + 1)) >= 0:
        if _frame_at(data, at, base) is not None:
            return at
    return None


def check_format(file: IO[bytes], name: object) -> None:
    """Raises CacheError unless the open file is empty or a `.tokens` file of this version.

    A mark anywhere identifies a file, so that the rest of a file with a damaged beginning is still read.
    """
    file.seek(0)
    beginning = data = file.read(_CHUNK) or b""
    if MARK.startswith(beginning[: len(MARK)]):
        return
    while data:
        if MARK in data:
            return
        following = file.read(_CHUNK) or b""
        data = data[-len(MARK) :] + following if following else b""
    if beginning.startswith(_VERSION_1):
        raise CacheError(
            f"{name} was written by an earlier lmql-lite, in a format that is no longer supported",
            hint="remove it, or name another file; runs fill it again",
        )
    if beginning.startswith(_MAGIC):
        raise CacheError(f"{name} was written by a newer lmql-lite", hint="update lmql-lite, or name another file")
    raise CacheError(
        f"{name} is not a .tokens file, or is damaged beyond recognition",
        hint="it was not changed; name another file for the cache, or remove this one",
    )
