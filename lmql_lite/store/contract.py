"""Protocol of a tier: bytes under text keys. Every failure of a tier is a miss and a notice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that must not change once a tier has them."""

_MOST_NOTICES = 20
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

    @property
    def hit_rate(self) -> float:
        """Share of requested values that were found; 0.0 before the first request."""
        return self.hits / (self.hits + self.misses) if self.hits else 0.0

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
        if sentence not in self and len(self) < _MOST_NOTICES:
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
