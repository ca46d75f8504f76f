"""Envelope of a value outside this process's memory: its full key, its length and a checksum precede it.

    mark "\\x93lqstor\\x01" (8 bytes) · bytes of the value (8) · CRC-32 of the value (4) · bytes of the key (4) · the
    key in UTF-8 · CRC-32 of all that (4) · zeros up to a multiple of 64 · the value

Numbers are little endian and unsigned. The value begins at a multiple of 64 bytes, so that arrays in it can be read
where they lie.
"""

from __future__ import annotations

import struct
import zlib

from lmql_lite.store.contract import Buffer

_MARK = b"\x93lqstor\x01"
_HEAD = struct.Struct("<8sQII")
_ALIGNMENT = 64


class CorruptEntry(Exception):
    """Bytes that are not a complete entry, or the entry of another key. Tiers turn this error into a miss."""


def seal(key: str, value: Buffer) -> bytes:
    """Envelope of a value, to write directly before it."""
    name = key.encode()
    head = _HEAD.pack(_MARK, len(value), zlib.crc32(value), len(name)) + name
    return (head + zlib.crc32(head).to_bytes(4, "little")).ljust(envelope_size(key), b"\0")


def envelope_size(key: str) -> int:
    """Size of the envelope of a key's value, in bytes."""
    size = _HEAD.size + len(key.encode()) + 4
    return size + -size % _ALIGNMENT


def unseal(key: str, data: Buffer) -> memoryview:
    """Value in `data`, without a copy, after every check. Raises CorruptEntry.

    >>> bytes(unseal("name", seal("name", b"value") + b"value"))
    b'value'
    """
    name, size = key.encode(), envelope_size(key)
    if len(data) < size:
        raise CorruptEntry("its head is incomplete")
    mark, length, crc, _ = _HEAD.unpack_from(data)
    end = _HEAD.size + len(name)
    if mark != _MARK or data[end : end + 4] != zlib.crc32(data[:end]).to_bytes(4, "little"):
        raise CorruptEntry("its head is damaged or foreign")
    if data[_HEAD.size : end] != name:
        raise CorruptEntry("it holds another key")
    value = memoryview(data)[size:].toreadonly()
    if len(value) != length:
        raise CorruptEntry(f"it holds {len(value)} bytes instead of {length}")
    if zlib.crc32(value) != crc:
        raise CorruptEntry("its checksum is wrong")
    return value
