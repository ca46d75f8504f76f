"""Blocks of a prompt, and the policy for the reuse of their keys and values at other places."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lmql_lite.cache.kv.pages import KVError
from lmql_lite.errors import did_you_mean

BlockKind = Literal["exact", "rotate", "blend", "smash"]
_KINDS = ("exact", "rotate", "blend", "smash")
EXACT = "exact"
"""Default policy of a run."""
_FORM = re.compile(r"\s*([a-z]+)\s*(?:\((.*)\))?\s*")


class CBlock(str):
    """Text of a prompt whose keys and values are reused at any place. Inside a query `{block(text)}` makes a block.

    `cache=False` makes it ordinary text; `meta` is the caller's, and changes nothing. A block is a str, so its `value`
    cannot be changed; joined with other text, it becomes ordinary text. None is the empty text. Raises TypeError for a
    value of another type.

    >>> lq.CBlock("A long document.").cache
    True
    """

    cache: bool
    meta: dict[str, Any]

    def __new__(cls, value: str | None, cache: bool = True, *, meta: Mapping[str, Any] | None = None) -> CBlock:
        if value is not None and not isinstance(value, str):
            raise TypeError(f"a CBlock is made of a str or None; this is {value!r}")
        made = super().__new__(cls, value or "")
        made.cache, made.meta = cache, dict(meta or {})
        return made

    @property
    def value(self) -> str:
        return str(self)


def block(text: object) -> CBlock:
    """Block with this text. Every query has this function: `{block(document)}`.

    >>> lq.run_sync('"{block(text)}[X]"', {"text": "Say:"}, model=lq.ScriptedModel("Say: hi")).prompt
    'Say: hi'
    """
    return CBlock(str(text))


@dataclass(frozen=True, slots=True)
class BlockPolicy:
    """Policy for the reuse of blocks.

    `exact` reuses only prefixes and changes no result. The others are approximations: `rotate` moves a block to its
    place, `blend` also recomputes the share `recomputed` of the moved tokens, those nearest to the text after the
    blocks, and `smash`, for comparison, leaves keys as they are. A block is prefilled after the first `behind` tokens
    of the prompt, as far as they precede the first value that is no block; these are then dropped.

    >>> str(lq.BlockPolicy.parse("blend(0.15)"))
    'blend(0.15, behind=64)'
    """

    kind: BlockKind = "exact"
    recomputed: float = 0.0
    behind: int = 64

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            meant = did_you_mean(self.kind, _KINDS)
            raise KVError(f"no policy for blocks is called {self.kind!r}", hint=meant or f"one of {', '.join(_KINDS)}")
        if self.kind == "blend" and not 0 < self.recomputed <= 1:
            raise KVError("blend needs the share of tokens to recompute", hint="such as blend(0.15)")
        if self.kind != "blend" and self.recomputed:
            raise KVError(f"{self.kind} recomputes no tokens", hint=f"write blend({self.recomputed:g})")
        if self.behind < 0:
            raise KVError(f"behind is {self.behind}", hint="a number of tokens, 64 by default")

    @classmethod
    def parse(cls, text: str) -> BlockPolicy:
        """Policy from its text, such as `rotate`, `rotate(behind=0)` or `blend(0.15)`. Raises KVError."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise KVError(f"{text!r} is not a policy for blocks", hint="such as rotate, or blend(0.15, behind=64)")
        kinds = {"recomputed": float, "behind": int}
        values: dict[str, Any] = {"kind": found[1]}
        for part in filter(None, (one.strip() for one in (found[2] or "").split(","))):
            name, equals, value = (one.strip() for one in part.partition("="))
            name, value = (name, value) if equals else ("recomputed", name)
            if name not in kinds:
                hint = did_you_mean(name, kinds) or f"there are {', '.join(kinds)}"
                raise KVError(f"a policy for blocks has no option {name!r}", hint=hint)
            try:
                values[name] = kinds[name](value)
            except ValueError as error:
                raise KVError(f"{name} is {value!r} in {text!r}", hint="write a number") from error
        return cls(**values)

    def __str__(self) -> str:
        if self.kind == "exact":
            return "exact"
        options = [f"{self.recomputed:g}"] if self.kind == "blend" else []
        if self.kind != "smash":
            options.append(f"behind={self.behind}")
        return f"{self.kind}({', '.join(options)})" if options else self.kind

    @property
    def head(self) -> int:
        """Number of tokens of the prompt's beginning after which a block is prefilled."""
        return 0 if self.kind == "smash" else self.behind
