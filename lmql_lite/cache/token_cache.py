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

    `max_bytes` (256 MB by default) bounds each model's entries in memory, and the paths to them.
    The least recently used entries are evicted, and asked for again when they are needed. The limit does not count what
    active runs hold: the texts that they continue or may return to, entries on the way there, and unsaved entries.
    `max_file_bytes` bounds the file: above it, the runs that were not used for the longest time go, down to 90 %.

    With `durable` a run returns only after the disk has its entries, so that a power failure loses nothing.

    Raises InputError for a path that is not the name of a file, a bound below 1, and `durable` or `max_file_bytes`
    without a file.

    >>> lq.TokenCache("x.tokens", max_bytes=2**20).max_bytes
    1048576
    """

    path: str | os.PathLike[str] | None = None
    _: KW_ONLY
    max_bytes: int = MAX_BYTES
    max_file_bytes: int | None = None
    durable: bool = False
    trees: ModelTrees = field(init=False, repr=False)
    """Trees of a cache without a path."""

    def __post_init__(self) -> None:
        if self.path is not None:
            _check_name(self.path)
        _check_bytes("max_bytes", self.max_bytes)
        if self.max_file_bytes is not None:
            _check_bytes("max_file_bytes", self.max_file_bytes)
            if self.path is None:
                raise InputError(
                    "max_file_bytes needs a file, and none is named",
                    hint='name one: TokenCache("x.tokens", max_file_bytes=2**30)',
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


def _check_bytes(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(
            f"{name} must be a whole number of bytes, at least 1; this is {value!r}",
            hint="write cache=False to keep nothing",
        )


def _check_name(path: object) -> None:
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str):
        raise InputError(
            f"cache= is the name of a file; this is {path!r}",
            hint='cache="x.tokens", or TokenCache() for one in memory',
        )
    if not name or "\0" in name:
        raise InputError(f"{name!r} is not the name of a file", hint='for example cache="x.tokens"')
