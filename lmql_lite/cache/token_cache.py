"""The option `cache=` beside True and False: a file, or memory of one's own, and how much of it."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass, field

from lmql_lite.cache.model_trees import ModelTrees
from lmql_lite.cache.token_tree import MAX_BYTES
from lmql_lite.errors import InputError


@dataclass(frozen=True, slots=True, eq=False)
class TokenCache:
    """Place where runs keep what models reported: `lq.run(query, cache=lq.TokenCache("x.tokens", max_bytes=2**30))`.

    With a `path` in that file, which any number of processes may use at once; `cache="x.tokens"` is short for it.
    Without one in memory, shared by all runs that are given this very object, of whatever session.

    `max_bytes` bounds the memory of what each model said and no file holds, and of the texts that lead there (256 MB
    unless told): what was used longest ago goes first, and is asked for again when somebody comes by. Beside it stands
    what the runs under way hold themselves: the texts that they stand on or may go back to, what was known on the way
    there, and what they have still to write. What a file holds stays in memory as long as it is open, so that it
    answers whatever it ever answered, a replay too: a file that is too large is made smaller by `lq cache compact`.

    With `durable` a run returns only after the disk itself has what it learned, so that a power cut takes nothing.

    Raises InputError for a path that is no name of a file, a bound below 1, and `durable` without a file.

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
                f"max_bytes is a whole number of bytes, at least 1; this is {self.max_bytes!r}",
                hint="cache=False keeps nothing at all",
            )
        if not isinstance(self.durable, bool):
            raise InputError(f"durable is True or False; this is {self.durable!r}")
        if self.durable and self.path is None:
            raise InputError(
                "durable=True needs a file, and none is named", hint='name one: TokenCache("x.tokens", durable=True)'
            )
        object.__setattr__(self, "trees", ModelTrees(self.max_bytes))


AnyCache = bool | str | os.PathLike[str] | TokenCache
"""The values of the option: True shares one tree among all runs, False asks the model every time."""


def _check_name(path: object) -> None:
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str):
        raise InputError(
            f"cache= is the name of a file; this is {path!r}",
            hint='cache="x.tokens", or TokenCache() for one in memory',
        )
    if not name or "\0" in name:
        raise InputError(f"{name!r} names no file", hint='for example cache="x.tokens"')
