"""Pieces of the text of a hole with tools: free text, and calls with their arguments as the model writes them, up to
the mark before the result."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.matcher import HoleMatcher
from lmql_lite.constraints.terms import Ending

MARK = ") # result: "
"""End of a call; the text after it is inserted."""
CLOSING = "`"
OPENING = CLOSING.encode()
"""Beginning of a call."""
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
CHARACTER = re.compile(rb"[^\x80-\xbf][\x80-\xbf]*|[\x80-\xbf]+")
"""A character in UTF-8, or the rest of one."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """A `Matcher` of a part of the hole's text; `own` reads it."""

    own: HoleMatcher

    @property
    def may_end(self) -> bool:
        return self.own.may_end

    def allowed(self, held: bytes, tokens_left: int) -> NDArray[np.bool_]:
        return self.own.allowed(held, tokens_left)

    def end(self, ending: Ending) -> Self:
        return replace(self, own=self.own.end(ending))

    def forced(self) -> bytes:
        return self.own.forced()

    def longest_valid(self, data: bytes) -> int:
        return self.own.longest_valid(data)


@dataclass(frozen=True, slots=True)
class FreeText(TextPart):
    """The part between calls. It ends at the end of the hole or at the beginning of a call.

    `own` is the matcher of the hole's condition, which has read all text of the hole; this part begins at `start`.
    `begins` finds a call, `call` is the found one, and `beyond` is the text of its last token after the call (S14).
    """

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

    def advance(self, data: bytes, tokens: int = 1) -> FreeText:
        after = self.own.advance(data, tokens)
        call = self.begins.search(after.text, self.start)
        if call is None or (after.ending is not None and call.end() > after.length):
            return replace(self, own=after)
        said = call.end() - len(self.own.text)
        before = self.own.advance(data[:said], tokens)
        if before.ending is not None:  # the hole ends before the call would begin
            return replace(self, own=after)
        return replace(self, own=before, call=call, beyond=data[said:])

    def after_call(self, text: bytes, tokens: int) -> FreeText:
        """The next part, after the rest of the call and its result. Stops are not searched for in these.

        Raises ValueError if the condition of the hole does not allow them.
        """
        own = self.own
        for character in CHARACTER.findall(text):
            own = own.advance(character, tokens)
            if own.ending == "end-of-text":
                raise ValueError(f"{text!r} is not allowed")
            if own.ending == "stop":
                own = replace(own, ending=None, length=len(own.text))
            tokens = 0
        if not own.lives:
            raise ValueError(f"nothing can follow {text!r}")
        return FreeText(own, self.begins, len(own.text))


@dataclass(frozen=True, slots=True)
class CallText(TextPart):
    """A call after its opening parenthesis. It ends at the closing one.

    The model may write any arguments, so that a wrong call stays what it is, and its result is an error. A call that is
    broken off is text, and so is one that a limit on tokens cuts off. `own` is any text.
    """

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
                return replace(self, own=own, length=at + 1, call=own.text[:at] + _END)
            nesting = after
        if after_mark is not None:
            return replace(self, own=own, length=after_mark, call=own.text[:after_mark])
        return replace(self, own=own, nesting=nesting)
