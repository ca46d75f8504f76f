"""`TokenCache`: a value of the option `cache=` for a file, or for a separate cache in memory, with its limits."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass, field

from lmql_lite.cache.model_trees import ModelTrees
from lmql_lite.cache.token_tree import MAX_BYTES
from lmql_lite.errors import InputError


@dataclass(frozen=True, slots=True, eq=False)
class TokenCache:
    """Cache of models' answers: `lq.run(query, cache=lq.TokenCache("x.tokens", max_bytes=2**30))`.

    With a `path` the cache is that file, which any number of processes may use at once; `cache="x.tokens"` is short for
    it. Without a path it is in memory, and shared by the runs that get this object, in any session.

    `max_bytes` (256 MB by default) bounds each model's entries that no file holds, and the paths to them, in memory.
    The least recently used entries are evicted, and asked for again when they are needed. The limit does not count what
    active runs hold: the texts that they continue or may return to, entries on the way there, and unsaved entries.
    Entries of a file stay in memory while it is open, so that it always answers what it has answered, also in a replay.
    `lq cache compact` makes a file smaller.

    With `durable` a run returns only after the disk has its entries, so that a power failure loses nothing.

    Raises InputError for a path that is not the name of a file, a bound below 1, and `durable` without a file.

    >>> lq.TokenCache("x.tokens", max_bytes=2**20).max_bytes
    1048576
    """

    path: str | os.PathLike[str] | None = None
    _: KW_ONLY
    max_bytes: int = MAX_BYTES
    durable: bool = False
    trees: ModelTrees = field(init=False, repr=False)
    """Trees of a cache without a path."""

    def __post_init__(self) -> None:
        if self.path is not None:
            _check_name(self.path)
        if isinstance(self.max_bytes, bool) or not isinstance(self.max_bytes, int) or self.max_bytes < 1:
            raise InputError(
                f"max_bytes must be a whole number of bytes, at least 1; this is {self.max_bytes!r}",
                hint="write cache=False to keep nothing",
            )
        if not isinstance(self.durable, bool):
            raise InputError(f"durable must be True or False; this is {self.durable!r}")
        if self.durable and self.path is None:
            raise InputError(
                "durable=True needs a file, and none is named", hint='name one: TokenCache("x.tokens", durable=True)'
            )
        object.__setattr__(self, "trees", ModelTrees(self.max_bytes))


AnyCache = bool | str | os.PathLike[str] | TokenCache
"""Values of the option. True shares one tree among all runs; False asks the model every time."""


def _check_name(path: object) -> None:
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str):
        raise InputError(
            f"cache= is the name of a file; this is {path!r}",
            hint='cache="x.tokens", or TokenCache() for one in memory',
        )
    if not name or "\0" in name:
        raise InputError(f"{name!r} is not the name of a file", hint='for example cache="x.tokens"')
