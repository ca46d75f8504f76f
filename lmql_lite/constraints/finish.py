"""A quick way to the end of a value in JSON: how a hole that comes near its limit on tokens still ends well (S13)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from llguidance import LLMatcher

STEPS = 400
"""Places that one search may look at."""
OUTSIDE = b'}],:0"[{ntf-.'
INSIDE = b'"a0-:TZ'
"""The bytes that lead on soonest, outside a string and inside of one."""


class Spelling(Protocol):
    """Bytes as tokens of llguidance, and its token for the end of a text."""

    eos_token_id: int

    def __call__(self, data: bytes, /) -> list[int]: ...


class Quotes(NamedTuple):
    """Whether a place in JSON is inside a string, and whether right behind a backslash."""

    inside: bool = False
    escaped: bool = False

    def after(self, data: bytes) -> Quotes:
        inside, escaped = self
        for byte in data:
            inside = inside != (byte == ord('"') and not escaped)
            escaped = inside and byte == ord("\\") and not escaped
        return Quotes(inside, escaped)


def way_to_end(parser: LLMatcher, spelling: Spelling, quotes: Quotes, after: bytes = b"") -> bytes | None:
    """Bytes after which the value is complete, `after` some that are said first; None where none were found.

    Not always the fewest: the byte that leads on soonest is tried first, the others of a place only where it leads to
    no end. The parser stays where it is and is asked for longer and longer texts: copying it takes ten times as long.
    """
    search = Search(parser, spelling)
    said = spelling(after)
    if not search.fits(said):
        return None
    way = b""
    places = [(said, way, search.steps(said, quotes.after(after)))]
    for _ in range(STEPS):
        if search.is_end(said):
            return way
        if places[-1][0] is not said:
            places.append((said, way, search.steps(said, quotes.after(after + way))))
        while (step := next(places[-1][-1], None)) is None:
            places.pop()
            if not places:
                return None
        said, way = [*places[-1][0], *spelling(step)], places[-1][1] + step
    return None


class Search(NamedTuple):
    """Texts that go on from one place of a parser, as tokens of llguidance."""

    parser: LLMatcher
    spelling: Spelling

    def fits(self, said: list[int]) -> bool:
        return self.parser.validate_tokens(said) == len(said)

    def is_end(self, said: list[int]) -> bool:
        return self.fits([*said, self.spelling.eos_token_id]) if said else self.parser.is_accepting()

    def steps(self, said: list[int], quotes: Quotes) -> Iterator[bytes]:
        """The bytes that lead on soonest, best first; where none of them fits, what is forced, or any one that does."""
        fits = False
        for byte in INSIDE if quotes.inside else OUTSIDE:
            if self._goes_on(said, byte):
                fits = True
                yield bytes([byte])
        if not fits:
            here = self.parser.deep_copy()
            here.consume_tokens(said)
            forced = here.compute_ff_bytes() or bytes([byte for byte in range(256) if self._goes_on(said, byte)][:1])
            if forced:
                yield forced

    def _goes_on(self, said: list[int], byte: int) -> bool:
        return self.fits([*said, *self.spelling(bytes([byte]))])
