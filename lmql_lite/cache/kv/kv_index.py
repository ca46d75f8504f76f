"""Index of pages by their first tokens, for hits that end inside a page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from lmql_lite.cache.kv.kv_page import Tokens, page_tokens, place_tags
from lmql_lite.store.contract import Store, group_of

_MOST_PAGES = 1 << 16
"""Maximum number of pages in the index, after which it starts over."""
_MOST_CANDIDATES = 64
"""Maximum number of pages at one place, the latest ones, so that a look-up costs the same beside any number."""
_HEAD_BYTES = 1 << 16


def shared_tokens(one: Tokens, other: Tokens) -> int:
    """Number of common tokens at the beginnings of two sequences."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length


class KVIndex:
    """Keys and tokens of the pages that an engine has seen, by their place (`place_tags`).

    Only the tiers are authoritative: a page may be evicted, and pages of other processes are searched for once after
    each page. `key_of` returns this engine's key from a page's hash and its place.
    """

    def __init__(self, store: Store, key_of: Callable[[str, str], str]) -> None:
        self._store, self._key_of = store, key_of
        self._lock = threading.Lock()
        self._places: dict[str, dict[str, Tokens]] = {}
        self._count = 0
        self._listed: set[str] = set()
        """Pages whose successors were searched for on the tiers."""

    def add(self, key: str, tokens: Tokens) -> None:
        """Adds a page that is on a tier."""
        with self._lock:
            if self._count >= _MOST_PAGES:
                self._places.clear()
                self._listed.clear()
                self._count = 0
            children = self._places.setdefault(group_of(key) or "", {})
            self._count += key not in children
            children.pop(key, None)
            children[key] = tokens.copy()
            if len(children) > _MOST_CANDIDATES:
                del children[next(iter(children))]
                self._count -= 1

    def closest(self, parent: str, ids: Tokens) -> list[tuple[int, str]]:
        """The best two pages after `parent` that begin like `ids`: the number of shared tokens, and the key."""
        places = place_tags(parent, ids)
        if parent not in self._listed:
            self._listed.add(parent)
            self._look(places)
        with self._lock:
            children = [child for place in places for child in self._places.get(place, {}).items()]
        return sorted(((shared_tokens(tokens, ids), key) for key, tokens in children), reverse=True)[:2]

    def _look(self, places: Sequence[str]) -> None:
        """Adds pages at some places from the tiers: those of other and of earlier processes."""
        for place in places:
            ours = [key for key in self._store.group(place) if key == self._key_of(_page_hash(key), place)]
            latest = ours[-_MOST_CANDIDATES:]
            for key, head in zip(latest, self._store.head(latest, _HEAD_BYTES), strict=True):
                tokens = None if head is None else page_tokens(head)
                if tokens is not None:
                    self.add(key, tokens)


def _page_hash(key: str) -> str:
    """The page's hash in a key, "" in that of another program."""
    fields = key.split("@")
    return fields[4] if len(fields) > 4 else ""
