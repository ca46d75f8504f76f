"""Several tiers as one store: reads go down until they hit, hits move up, writes go to all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeAlias

from lmql_lite.store.tier import Buffer, Notices, Store, TierCounts

Found: TypeAlias = "tuple[Buffer, str] | None"
"""Value and the name of the tier that had it; None for a miss."""

_MAX_QUEUED_BYTES = 256 << 20
"""Maximum bytes of values that wait to be written; beyond it, `put` writes at once."""


class Tiered(Store):
    """Tiers from fast to slow, at least one. A value found below is promoted to the tiers above it.

    With `write_behind`, `put` returns once the first tier has the value, and a thread writes to the others in order.

        store = Tiered([MemoryTier(2**30), DiskTier(Path("kv"), 2**34)])
        store.read(["key"])      # [(b"...", "disk")] at first, then [(b"...", "memory")]
    """

    def __init__(self, tiers: Sequence[Store], write_behind: bool = False) -> None:
        self.name, self.counts, self.notices = "tiered", TierCounts(), Notices()
        self.tiers = tuple(tiers)
        self._write_behind = write_behind
        self._lock = Lock()
        self._worker: ThreadPoolExecutor | None = None
        self._queued_bytes = 0

    def read(self, keys: Sequence[str]) -> list[Found]:
        """Value of each key, and the name of the tier that had it."""
        first = self.tiers[0]
        found: list[Found] = [None if value is None else (value, first.name) for value in first.get(keys)]
        missing = tuple(dict.fromkeys(key for key, one in zip(keys, found, strict=True) if one is None))
        if missing and len(self.tiers) > 1:
            below = dict(zip(missing, self._load(missing), strict=True))
            found = [one or below[key] for key, one in zip(keys, found, strict=True)]
        self.counts.add_read([one and one[0] for one in found])
        return found

    def get(self, keys: Sequence[str]) -> list[Buffer | None]:
        return [one and one[0] for one in self.read(keys)]

    def head(self, keys: Sequence[str], size: int) -> list[Buffer | None]:
        return self._first(keys, lambda tier, some: tier.head(some, size))

    def contains(self, keys: Sequence[str]) -> list[bool]:
        return [bool(one) for one in self._first(keys, lambda tier, some: tier.contains(some))]

    def put(self, key: str, value: Buffer, behind: bool | None = None) -> bool:
        """See `Store.put`. `behind` overrides `write_behind`. True if a tier has the value or will have it."""
        kept, below = self.tiers[0].put(key, value), self.tiers[1:]
        behind = self._write_behind if behind is None else behind
        with self._lock:
            behind = behind and bool(below) and self._queued_bytes + len(value) <= _MAX_QUEUED_BYTES
            self._queued_bytes += len(value) if behind else 0
        if behind:
            self._later(lambda: self._write(key, value))
            return True
        return any([kept, *(tier.put(key, value) for tier in below)])

    def prefetch(self, keys: Sequence[str]) -> None:
        """Starts to load values into the first tier, and returns at once."""
        self._later(lambda: self.read(keys))

    def flush(self) -> None:
        """Waits until all queued values are written."""
        if self._worker is not None:
            self._later(lambda: None).result()

    def touch(self, keys: Sequence[str]) -> None:
        for tier in self.tiers:
            tier.touch(keys)

    def delete(self, key: str) -> bool:
        self.flush()
        return sum(tier.delete(key) for tier in self.tiers) > 0

    def pin(self, key: str, pinned: bool) -> bool:
        return sum(tier.pin(key, pinned) for tier in self.tiers) > 0

    def sizes(self) -> dict[str, int]:
        """See `Store.sizes`. An entry on several tiers counts on the first of them."""
        return {key: size for tier in reversed(self.tiers) for key, size in tier.sizes().items()}

    def group(self, name: str) -> list[str]:
        return list(dict.fromkeys(key for tier in reversed(self.tiers) for key in tier.group(name)))

    def close(self) -> None:
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown()
        for tier in self.tiers:
            tier.close()

    def _load(self, keys: Sequence[str]) -> list[Found]:
        """Values from the lower tiers, promoted in reverse order, so that the last key is evicted first."""
        found: dict[str, Found] = dict.fromkeys(keys)
        for level, tier in enumerate(self.tiers[1:], 1):
            missing = [key for key in keys if found[key] is None]
            for key, value in reversed(list(zip(missing, tier.get(missing), strict=True))) if missing else ():
                if value is not None:
                    found[key] = value, tier.name
                    for above in self.tiers[:level]:
                        above.put(key, value)
        return list(found.values())

    def _first(self, keys: Sequence[str], ask: Callable[[Store, list[str]], list[Any]]) -> list[Any]:
        """The first true answer of a tier for each key."""
        found: dict[str, Any] = dict.fromkeys(keys)
        for tier in self.tiers:
            if missing := [key for key, one in found.items() if not one]:
                found.update(zip(missing, ask(tier, missing), strict=True))
        return [found[key] for key in keys]

    def _write(self, key: str, value: Buffer) -> None:
        for tier in self.tiers[1:]:
            tier.put(key, value)
        with self._lock:
            self._queued_bytes -= len(value)

    def _later(self, work: Callable[[], object]) -> Future[object]:
        with self._lock:
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, "lmql_lite store")
            return self._worker.submit(work)
