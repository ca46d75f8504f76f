"""Interface of a tokenizer, and the record of each token of a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Source = Literal["prompt", "cache", "model", "draft", "forced"]
"""Source of a token: the program's text, an entry from before this run, the model, an accepted draft, a constraint."""

Role = Literal["system", "user", "assistant"]
"""Speaker of a turn in a chat."""

Fate = Literal["kept", "cut", "removed", "rejected", "pruned"]
"""Fate of a token. The result's prompt consists of the `kept` ones."""


class Tokenizer(Protocol):
    """Text to tokens and back, for one model. Immutable, so that threads may share it."""

    @property
    def vocabulary(self) -> tuple[bytes | None, ...]:
        """The bytes of every token id; None for special, unused and padding ids."""
        ...

    @property
    def bos(self) -> tuple[int, ...]:
        """The ids that begin every text; () if the model has none."""
        ...

    @property
    def eos(self) -> frozenset[int]:
        """The ids that mean end-of-text."""
        ...

    def encode(self, text: bytes) -> tuple[int, ...]:
        """The canonical tokens of a text, without bos or an added space.

        Spellings of special tokens are ordinary characters here (S12). The text may be any bytes, and may begin or end
        inside a character; the tokens' bytes joined are the text.
        """
        ...


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a finished run.

    `hole` is the name of the hole that the token fills, None for the program's own text. A token that begins in the
    text before its hole is one of the hole's `TOKENS` too (S15). `logprob` is the model's raw natural log-probability
    of the token, None if no model was asked.

    >>> result = lq.run_sync('"Say:[X]"', model=lq.ScriptedModel("Say: hi"))
    >>> [token.text for token in result.tokens if token.hole == "X" and token.fate == "kept"]
    [' ', 'h', 'i']
    """

    id: int
    data: bytes
    hole: str | None
    source: Source
    fate: Fate
    logprob: float | None

    @property
    def text(self) -> str:
        """The token as text; bytes that are not a whole character are shown as U+FFFD."""
        return self.data.decode("utf-8", "replace")


def common_length(left: Sequence[object], right: Sequence[object]) -> int:
    """Length of the common prefix, by bisection, because slices compare fast. Both sequences must have one type: a
    tuple never equals a list."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:  # equal up to low, different before high
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
