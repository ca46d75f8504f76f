"""Matcher of one hole: the interface between constraints and decoders (S35)."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Ending = Literal["stop", "end-of-text", "bound", "forced"]
"""Reason for a hole's end: a stop phrase, the model's own decision, a length limit, or no other possibility."""


class Matcher(Protocol):
    """Position of one hole in its constraint: an immutable value, so that a fork is an assignment.

    It reads bytes. Only `allowed` needs the vocabulary, because a server has none.
    """

    @property
    def text(self) -> bytes:
        """All bytes fed so far, those past the end of the value included."""
        ...

    @property
    def ending(self) -> Ending | None:
        """Reason for the end of the hole; None while it is open."""
        ...

    @property
    def value(self) -> bytes:
        """The value so far; after the end of the hole, the final value. `text[len(value):]` is the surplus (S14)."""
        ...

    @property
    def certain(self) -> int:
        """Number of leading bytes of `text` that stay in the value however the hole ends. They may be shown (S33)."""
        ...

    @property
    def may_end(self) -> bool:
        """True if the value meets the condition as it stands, so that the hole may be closed here."""
        ...

    def allowed(self, held: bytes, tokens_left: int) -> NDArray[np.bool_]:
        """Mask of the tokens that may be chosen now, shape (vocabulary,), read-only.

        `held` is text that is settled already but not yet on the path (S10). A token must agree with it as far as both
        go; only the bytes after it are judged here. End-of-text ids are set where the hole may end. A token is allowed
        only if the hole can still end validly within `tokens_left` tokens, this one included (S19). If all are False,
        the constraint cannot be met.
        """
        ...

    def advance(self, data: bytes, tokens: int = 1) -> Matcher:
        """Matcher after the bytes of an allowed token, `held` left out. The hole may end inside `data`. Raises
        ValueError if the bytes do not fit as that many tokens.

        `tokens` is the number of this hole's tokens in the bytes. A token that was healed over the end of the text
        before the hole counts (S15); one that an earlier hole chose does not.
        """
        ...

    def end(self, ending: Ending) -> Matcher:
        """Matcher closed here for this reason. Only valid where `may_end`."""
        ...

    def forced(self) -> bytes:
        """Bytes that must come next whatever the model prefers; b"" if it has a choice."""
        ...

    def longest_valid(self, data: bytes) -> int:
        """Number of leading bytes of `data` that fit as no tokens of this hole. For text from a server, which has not
        been masked."""
        ...


def matcher_after(matcher: Matcher, data: bytes, tokens: int) -> Matcher | None:
    """Matcher after bytes that no mask has judged; None if they do not fit as that many tokens of the hole.

    `longest_valid` cannot tell: the tokens may be too many, or just those that the bytes need.
    """
    try:
        return matcher.advance(data, tokens)
    except ValueError:
        return None
