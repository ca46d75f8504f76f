"""Tier of bytes under text keys: its protocol, the envelope of values outside this process, and the tier in memory.

Every failure of a tier is a miss and a notice. An envelope has the full key, the length and a checksum of a value:

    mark "\\x93lqstor\\x01" (8 bytes) · bytes of the value (8) · CRC-32 of the value (4) · bytes of the key (4) · the
    key in UTF-8 · CRC-32 of all that (4) · zeros up to a multiple of 64 · the value

Numbers are little endian and unsigned. The value begins at a multiple of 64 bytes, so that arrays in it can be read
where they lie.
"""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that must not change once a tier has them."""

_MAX_NOTICES = 20
MAX_GROUP = 256
"""Maximum number of entries that a tier looks at to list a group."""
_IN_GROUP = "@after%"


def group_of(key: str) -> str | None:
    """Group of an entry: the end of its key after `@after%`. Most entries have none.

    >>> group_of("page@1@after%0"), group_of("page@1")
    ('0', None)
    """
    _, mark, name = key.rpartition(_IN_GROUP)
    return name if mark else None


@dataclass
class TierCounts:
    """Figures of one tier since it was opened."""

    hits: int = 0
    misses: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    evictions: int = 0
    corrupt: int = 0
    errors: int = 0

    def add_read(self, values: Sequence[Buffer | None]) -> None:
        """Counts the hits and misses of one read."""
        found = [len(value) for value in values if value is not None]
        self.hits += len(found)
        self.misses += len(values) - len(found)
        self.read_bytes += sum(found)


class Notices(list[str]):
    """Sentences about failures, without duplicates, at most twenty. The library prints nothing itself."""

    def add(self, sentence: str) -> None:
        """Adds a sentence, unless it is known."""
        if sentence not in self and len(self) < _MAX_NOTICES:
            self.append(sentence)


class Store(Protocol):
    """Bytes under keys, bounded in bytes, least recently used entries evicted first. Threads may share it.

    No method raises because a tier is full, damaged, slow or gone: that is a miss, and `notices` has the reason. Of
    keys read or touched together, the first counts as the most recently used.
    """

    name: str
    """Kind of the tier, such as `memory` or `disk`."""
    counts: TierCounts
    notices: Notices

    def get(self, keys: Sequence[str]) -> list[Buffer | None]:
        """Verified value of each key, None for a miss. The buffers must not be changed."""

    def head(self, keys: Sequence[str], size: int) -> list[Buffer | None]:
        """First bytes of each value, at most `size`: a cheap hint, not verified and without effect on recency."""

    def contains(self, keys: Sequence[str]) -> list[bool]:
        """For each key, True if `get` would find it, unless it is damaged. Moves no values."""

    def put(self, key: str, value: Buffer) -> bool:
        """Stores a value, replacing an older one. False if it was refused because it is too large or the tier
        failed."""

    def touch(self, keys: Sequence[str]) -> None:
        """Marks entries as used now."""

    def delete(self, key: str) -> bool:
        """Removes an entry. False if there was none."""

    def pin(self, key: str, pinned: bool) -> bool:
        """Exempts an entry from eviction, or ends the exemption. False if there is no such entry."""

    def sizes(self) -> Mapping[str, int]:
        """Bytes of each entry, by key."""

    def keys(self) -> list[str]:
        """All keys."""
        return list(self.sizes())

    def group(self, name: str) -> list[str]:
        """Keys of a group, at most `MAX_GROUP`, the least recently used first. Costs nothing for other entries."""

    def close(self) -> None:
        """Finishes pending work, and releases files and connections. A second call does nothing."""


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


class MemoryTier(Store):
    """Values in this process, at most `most_bytes` in total.

    >>> tier = MemoryTier(2**20)
    >>> tier.put("key", b"value"), tier.get(["key", "other"])
    (True, [b'value', None])
    """

    def __init__(self, most_bytes: int) -> None:
        self.name, self.counts, self.notices = "memory", TierCounts(), Notices()
        self._most, self._used = most_bytes, 0
        self._lock = Lock()
        self._values: OrderedDict[str, Buffer] = OrderedDict()
        self._pinned: set[str] = set()
        self._groups: dict[str, dict[str, None]] = {}

    def get(self, keys: Sequence[str]) -> list[Buffer | None]:
        self.touch(keys)
        with self._lock:
            values = [self._values.get(key) for key in keys]
            self.counts.add_read(values)
        return values

    def head(self, keys: Sequence[str], size: int) -> list[Buffer | None]:
        with self._lock:
            values = [self._values.get(key) for key in keys]
        return [None if value is None else memoryview(value)[:size] for value in values]

    def contains(self, keys: Sequence[str]) -> list[bool]:
        with self._lock:
            return [key in self._values for key in keys]

    def put(self, key: str, value: Buffer) -> bool:
        with self._lock:
            others = self._used - len(self._values.get(key, b""))
            evicted = []
            for old in self._values if others + len(value) > self._most else ():
                if old != key and old not in self._pinned:
                    others -= len(self._values[old])
                    evicted.append(old)
                    if others + len(value) <= self._most:
                        break
            if others + len(value) > self._most:
                self.notices.add(f"memory: an entry of {len(value)} bytes was not kept: the cap is {self._most} bytes")
                return False
            for old in evicted:
                del self._values[old]
                self._leave_group(old)
            self._values[key] = value
            if (group := group_of(key)) is not None:
                members = self._groups.setdefault(group, {})
                members.pop(key, None)
                members[key] = None
            self._values.move_to_end(key)
            self._used = others + len(value)
            self.counts.evictions += len(evicted)
            self.counts.written_bytes += len(value)
            return True

    def touch(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in reversed(keys):
                if key in self._values:
                    self._values.move_to_end(key)

    def delete(self, key: str) -> bool:
        with self._lock:
            value = self._values.pop(key, None)
            self._pinned.discard(key)
            self._leave_group(key)
            self._used -= len(value or b"")
            return value is not None

    def pin(self, key: str, pinned: bool) -> bool:
        with self._lock:
            if pinned and key in self._values:
                self._pinned.add(key)
            elif not pinned:
                self._pinned.discard(key)
            return key in self._values

    def sizes(self) -> dict[str, int]:
        with self._lock:
            return {key: len(value) for key, value in self._values.items()}

    def group(self, name: str) -> list[str]:
        with self._lock:
            return list(islice(reversed(self._groups.get(name, {})), MAX_GROUP))[::-1]

    def _leave_group(self, key: str) -> None:
        if (group := group_of(key)) in self._groups:
            self._groups[group].pop(key, None)
            if not self._groups[group]:
                del self._groups[group]

    def close(self) -> None:
        with self._lock:
            self._groups.clear()
            self._values.clear()
            self._pinned.clear()
            self._used = 0
