"""Matcher of one hole: the seam between constraints and decoders (S35)."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Ending = Literal["stop", "end-of-text", "bound", "forced"]
"""How a hole ended: at a stop phrase, by the model's own decision, at a length, or since nothing else was possible."""


class Matcher(Protocol):
    """The place of one hole in its constraint: an immutable value, so that a fork is an assignment.

    It is fed with bytes and knows the vocabulary only for `allowed`: a server has none.
    """

    @property
    def text(self) -> bytes:
        """All bytes fed so far, those past the end of the value included."""
        ...

    @property
    def ending(self) -> Ending | None:
        """None while the hole is open."""
        ...

    @property
    def value(self) -> bytes:
        """The value so far; once ended, cut where it ended. `text[len(value):]` is the surplus (S14)."""
        ...

    @property
    def certain(self) -> int:
        """Number of leading bytes of `text` that stay in the value however the hole ends: what may be shown (S33)."""
        ...

    @property
    def may_end(self) -> bool:
        """True if the value holds as it stands, so that the hole may be closed here."""
        ...

    def allowed(self, held: bytes, tokens_left: int) -> NDArray[np.bool_]:
        """The tokens that may be chosen now, shape (vocabulary,), not to be written to.

        `held` is text that is settled already but not yet on the path (S10): a token must agree with it as far as
        both go, and what it holds beyond is judged here. End-of-text ids are set where the hole may end. A token is
        allowed only if the hole can still end validly within `tokens_left` tokens, this one counted (S19).
        All false means that the constraint cannot be met.
        """
        ...

    def advance(self, data: bytes, tokens: int = 1) -> Matcher:
        """After the bytes of an allowed token, `held` left out. May end the hole inside `data`.

        `tokens` is how many tokens of this hole the bytes are. One that was healed over the end of the text before it
        counts (S15), one that an earlier hole chose does not.
        """
        ...

    def end(self, ending: Ending) -> Matcher:
        """Closed here, by end-of-text or a bound. Only where the value holds as it stands."""
        ...

    def forced(self) -> bytes:
        """The bytes that must come next whatever the model thinks, b"" where it has a choice."""
        ...

    def longest_valid(self, data: bytes) -> int:
        """Number of leading bytes of `data` that can stand. For text of a server, which has not been masked."""
        ...
