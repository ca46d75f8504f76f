"""The text of a hole with tools, as its matchers see it: free text, then a call, its result, free text again.

A filling fills one piece after the other and sees the matcher of that piece. The hole sees the whole text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.hole import HoleMatcher
from lmql_lite.constraints.matcher import Ending, Matcher


@dataclass(frozen=True, slots=True)
class FreeText:
    """A piece between calls: it ends where the hole does, or where a call begins.

    `own` is the matcher of the hole's condition, which has read all text of the hole: this piece begins at `start`.
    `begins` finds a call, `call` is the one that was found, and `beyond` what a token said behind that (S14).
    """

    own: HoleMatcher
    begins: re.Pattern[bytes]
    start: int = 0
    call: re.Match[bytes] | None = None
    beyond: bytes = b""

    @property
    def text(self) -> bytes:
        return self.own.text[self.start :] + self.beyond

    @property
    def ending(self) -> Ending | None:
        return "stop" if self.call else self.own.ending

    @property
    def value(self) -> bytes:
        return self.own.value[self.start :]

    @property
    def certain(self) -> int:
        return max(self.own.certain - self.start, 0)

    @property
    def may_end(self) -> bool:
        return self.own.may_end

    def allowed(self, held: bytes, tokens_left: int) -> NDArray[np.bool_]:
        return self.own.allowed(held, tokens_left)

    def advance(self, data: bytes, tokens: int = 1) -> FreeText:
        after = self.own.advance(data, tokens)
        call = self.begins.search(after.text, self.start)
        if call is None or (after.ending is not None and call.end() > after.length):
            return replace(self, own=after)
        said = call.end() - len(self.own.text)
        before = self.own.advance(data[:said], tokens)
        if before.ending is not None:  # the hole is over where a call would begin
            return replace(self, own=after)
        return replace(self, own=before, call=call, beyond=data[said:])

    def end(self, ending: Ending) -> FreeText:
        return replace(self, own=self.own.end(ending))

    def forced(self) -> bytes:
        return self.own.forced()

    def longest_valid(self, data: bytes) -> int:
        return self.own.longest_valid(data)

    def after_call(self, text: bytes, tokens: int) -> FreeText:
        """The next piece, behind the rest of the call and its result, in which no stop is looked for.

        Raises ValueError where they cannot stand in the hole.
        """
        own = self.own
        for byte in text:
            own = own.advance(bytes([byte]), tokens)
            if own.ending == "end-of-text":
                raise ValueError(f"{text!r} is not allowed")
            if own.ending == "stop":
                own = replace(own, ending=None, length=len(own.text))
            tokens = 0
        if not own.masks.automaton.lives(own.state, own.count):
            raise ValueError(f"nothing can follow {text!r}")
        return FreeText(own, self.begins, len(own.text))


@dataclass(frozen=True, slots=True)
class ToolText:
    """The whole text of the hole: pieces that are complete, and the `piece` under way.

    `free` is the free text before the call, where that piece is one. `used` tokens were said in complete pieces, in
    which there are `calls`.
    """

    piece: Matcher
    before: bytes = b""
    free: FreeText | None = None
    used: int = 0
    calls: int = 0

    @property
    def text(self) -> bytes:
        return self.before + self.piece.text

    @property
    def ending(self) -> Ending | None:
        return None if self.is_inside else self.piece.ending

    @property
    def is_inside(self) -> bool:
        """Whether a call is begun, so that the hole goes on after this piece."""
        return self.free is not None or (isinstance(self.piece, FreeText) and self.piece.call is not None)

    @property
    def value(self) -> bytes:
        return self.before + self.piece.value

    @property
    def certain(self) -> int:
        return len(self.before) + self.piece.certain

    @property
    def may_end(self) -> bool:
        return not self.is_inside and self.piece.may_end

    def allowed(self, held: bytes, tokens_left: int) -> NDArray[np.bool_]:
        return self.piece.allowed(held, tokens_left)

    def advance(self, data: bytes, tokens: int = 1) -> ToolText:
        return replace(self, piece=self.piece.advance(data, tokens))

    def end(self, ending: Ending) -> ToolText:
        return replace(self, piece=self.piece.end(ending))

    def forced(self) -> bytes:
        return self.piece.forced()

    def longest_valid(self, data: bytes) -> int:
        return self.piece.longest_valid(data)
