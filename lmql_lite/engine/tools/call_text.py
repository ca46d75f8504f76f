"""Text of a call in a hole with tools: the arguments as the model writes them, up to the mark before the result."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.matcher import HoleMatcher
from lmql_lite.constraints.terms import Ending

MARK = ") # result: "
"""End of a call; the text after it is inserted."""
_END = MARK.encode()

_OPENING, _CLOSING, _QUOTES = b"([{", b")]}", b"\"'"
_IN_QUOTES = r'"(?:[^"\\\n]|\\[^\n])*?"' + r"|'(?:[^'\\\n]|\\[^\n])*?'"
_IN_OPEN_QUOTES = r'"(?:[^"\\\n]|\\[^\n])*?' + r"|'(?:[^'\\\n]|\\[^\n])*?"
COMPLETE = rf"(?P<arguments>(?:[^`\n\"']|{_IN_QUOTES})*?(?:{_IN_OPEN_QUOTES})?){re.escape(MARK)}"
"""Pattern of a complete call after its opening parenthesis. It stands on one line, with backticks only in quotes. The
first mark ends it, in open quotes too, so that a forgotten quote is an error and not a call without a result."""


class Nesting(NamedTuple):
    """Position in a call: number of open brackets, the call's own included, and the open quote, 0 outside quotes.

    Brackets of all kinds count alike: arguments are checked when the call is complete.
    """

    depth: int = 1
    quote: int = 0
    is_escaped: bool = False

    @property
    def is_closed(self) -> bool:
        return self.depth == 0

    def after(self, byte: int) -> Nesting | None:
        """The position after a byte; None if the byte breaks the call off."""
        if byte == ord("\n") or (byte == ord("`") and not self.quote):
            return None
        if self.quote:
            if self.is_escaped or byte == ord("\\"):
                return self._replace(is_escaped=not self.is_escaped)
            return self._replace(quote=0) if byte == self.quote else self
        if byte in _QUOTES:
            return self._replace(quote=byte)
        if byte in _CLOSING and (self.depth > 1 or byte == ord(")")):
            return self._replace(depth=self.depth - 1)
        return self._replace(depth=self.depth + (byte in _OPENING))


BEGINNING = Nesting()


@dataclass(frozen=True, slots=True)
class CallText:
    """A `Matcher` of a call after its opening parenthesis. It ends at the closing one.

    The model may write any arguments, so that a wrong call stays what it is, and its result is an error. A call that is
    broken off is text.
    """

    own: HoleMatcher
    """Any text of the characters that are left to the hole."""
    nesting: Nesting = BEGINNING
    length: int | None = None
    """Number of leading bytes of `text` that are the value, once the call is complete or broken off."""
    call: bytes | None = None
    """The complete call with its whole mark; None for one that is broken off."""

    @property
    def text(self) -> bytes:
        return self.own.text

    @property
    def ending(self) -> Ending | None:
        return self.own.ending if self.length is None else "stop"

    @property
    def value(self) -> bytes:
        return self.own.value if self.length is None else self.own.text[: self.length]

    @property
    def certain(self) -> int:
        return len(self.value)

    @property
    def may_end(self) -> bool:
        """True if the text may end here. The model may break a call off, and a limit on tokens does."""
        return self.own.may_end

    def allowed(self, held: bytes, tokens_left: int) -> NDArray[np.bool_]:
        return self.own.allowed(held, tokens_left)

    def advance(self, data: bytes, tokens: int = 1) -> CallText:
        said, nesting = len(self.own.text), self.nesting
        own = self.own.advance(data, tokens)
        found = own.text.find(_END, max(said - len(_END) + 1, 0))
        after_mark = found + len(_END) if found >= 0 else None
        for at, byte in enumerate(data, start=said):
            if at == after_mark:
                break
            after = nesting.after(byte)
            if after is None:
                return replace(self, own=own, length=at)
            if after.is_closed:
                call = own.text[:at] + _END
                has_room = self.own.longest_valid(call[said:]) == len(call) - said
                return replace(self, own=own, length=at + 1, call=call if has_room else None)
            nesting = after
        if after_mark is not None:
            return replace(self, own=own, length=after_mark, call=own.text[:after_mark])
        return replace(self, own=own, nesting=nesting)

    def end(self, ending: Ending) -> CallText:
        return replace(self, own=self.own.end(ending))

    def forced(self) -> bytes:
        return b""

    def longest_valid(self, data: bytes) -> int:
        return self.own.longest_valid(data)
