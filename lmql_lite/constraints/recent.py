"""What was worked out lately: a dictionary bounded in bytes, in which the least recently used entry goes first."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Threads may share it. The size of an entry is what `put` was told; a single one may exceed the bound."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Key) -> Value | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Key, value: Value, num_bytes: int) -> Value:
        """Gives back what is remembered: the value that another thread put first, or this one."""
        with self._lock:
            entry = self._entries.setdefault(key, (value, num_bytes))
            if entry[0] is value:
                self.num_bytes += num_bytes
            while self.num_bytes > self.max_bytes and len(self._entries) > 1:
                self.num_bytes -= self._entries.popitem(last=False)[1][1]
            return entry[0]

    def __len__(self) -> int:
        return len(self._entries)
