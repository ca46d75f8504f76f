"""Memory tier: values in this process, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from threading import Lock

from lmql_lite.store.contract import MAX_GROUP, Buffer, Notices, Store, TierCounts, group_of


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
