"""Searches from one position of llguidance's parser: a way to the end, a character, another key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from lmql_lite.constraints.json_text import BACKSLASH, DELETE, QUOTE, JsonPlace, characters, written
from lmql_lite.constraints.json_tokens import Texts
from lmql_lite.constraints.vocabulary import Flags, Vocabulary
from lmql_lite.errors import Span

if TYPE_CHECKING:
    from llguidance import LLMatcher

STEPS = 400
"""Most places that one search visits."""
OUTSIDE = b'}],:0"[{ntf-.'
INSIDE = b'"a0-:TZ'
"""Bytes that a search tries first, outside and inside a string."""
KEY_BYTES = bytes(dict.fromkeys(INSIDE + bytes(range(256))))
"""Bytes in the order in which a search for another key tries them."""
LETTERS = ((0x20, 0x7E), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF))
"""Characters that llguidance reads as they are, by their number of bytes; but for the quote and the backslash."""
SPELLED = (*b'"\\', *range(0x20), *DELETE)
"""Characters that llguidance reads as escapes."""


class Spelling(Protocol):
    """Maps bytes to tokens of llguidance; also has its token for the end of a text."""

    eos_token_id: int

    def __call__(self, data: bytes, /) -> list[int]: ...


class Quotes(NamedTuple):
    """Position in JSON: `inside` a string or not, and there `escaped` directly after a backslash."""

    inside: bool = False
    escaped: bool = False

    def after(self, data: bytes) -> Quotes:
        inside, escaped = self
        for byte in data:
            inside = inside != (byte == ord('"') and not escaped)
            escaped = inside and byte == ord("\\") and not escaped
        return Quotes(inside, escaped)


def way_to_end(parser: LLMatcher, spelling: Spelling, quotes: Quotes, after: bytes = b"") -> bytes | None:
    """Bytes that complete the value if they follow `after`; None if none were found.

    Depth-first, so not always the fewest bytes: the best byte of a place is tried first, the others only if it leads to
    no end. The parser stays where it is and validates longer and longer texts: copying it takes ten times as long.
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
    """Continuations from one position of a parser, as tokens of llguidance."""

    parser: LLMatcher
    spelling: Spelling

    def fits(self, said: list[int]) -> bool:
        return self.parser.validate_tokens(said) == len(said)

    def is_end(self, said: list[int]) -> bool:
        return self.fits([*said, self.spelling.eos_token_id]) if said else self.parser.is_accepting()

    def steps(self, said: list[int], quotes: Quotes) -> Iterator[bytes]:
        """Bytes to try next, best first. If none of them fits: the forced bytes, or any byte that fits."""
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

    def characters(self, said: list[int], escape: bytes) -> Iterator[int]:
        """Characters that the beginning of an escape may become in a string, those of one byte first."""
        ranges = characters(escape)
        for low, high in ranges:
            for first, last in LETTERS:
                if max(low, first) <= min(high, last):
                    ends = chr(max(low, first)).encode(), chr(min(high, last)).encode()
                    for found in self._letters(said, b"", *ends):
                        yield ord(found.decode())
        for code in SPELLED:
            if any(low <= code <= high for low, high in ranges) and self.spelled(said, written(code)):
                yield code

    def spelled(self, said: list[int], plain: bytes) -> list[int] | None:
        """Tokens of a character in llguidance's spelling; None if it does not fit."""
        for spelling in (plain, rb"\u007f") if plain == DELETE else (plain,):
            tokens = self.spelling(spelling)
            if self.fits([*said, *tokens]):
                return tokens
        return None

    def _letters(self, said: list[int], begun: bytes, low: bytes, high: bytes) -> Iterator[bytes]:
        """Characters in UTF-8 that fit, begin with `begun`, and whose other bytes are between two texts."""
        for byte in range(low[0], high[0] + 1):
            letter = begun + bytes([byte])
            if letter in (QUOTE, BACKSLASH) or not self._goes_on(said, byte):
                continue
            if len(low) == 1:
                yield letter
                continue
            first = low[1:] if byte == low[0] else b"\x80" * (len(low) - 1)
            last = high[1:] if byte == high[0] else b"\xbf" * (len(low) - 1)
            yield from self._letters([*said, *self.spelling(bytes([byte]))], letter, first, last)

    def has_other_key(self, said: list[int], place: JsonPlace) -> bool:
        """True if a key fits that the object does not have. Depth-first; an endless search has found many."""
        if place.escape:
            closed = place._replace(escape=b"")
            return any(
                self.has_other_key([*said, *(self.spelled(said, written(code)) or ())], closed.typed(code))
                for code in self.characters(said, place.escape)
            )
        waiting = [(said, place, self._key_steps(said, place))]
        for _ in range(STEPS):
            step = next(waiting[-1][-1], None)
            if step is None:
                waiting.pop()
                if not waiting:
                    return False
                continue
            longer, after = step
            if not after.is_key:
                return True
            waiting.append((longer, after, self._key_steps(longer, after)))
        return True

    def _key_steps(self, said: list[int], place: JsonPlace) -> Iterator[tuple[list[int], JsonPlace]]:
        """Next bytes of a key that the object does not have, and the places after them."""
        for byte in KEY_BYTES:
            data = bytes([byte])
            pieces = list(place.pieces(data))
            if pieces and self._goes_on(said, byte):
                yield [*said, *self.spelling(data)], pieces[-1].after
                if not place.inside and data == QUOTE:
                    return  # nothing but white space may stand before it

    def character(self, said: list[int], escape: bytes) -> int | None:
        """Some character that the beginning of an escape may become; None if none fits."""
        return next(self.characters(said, escape), None)

    def _goes_on(self, said: list[int], byte: int) -> bool:
        return self.fits([*said, *self.spelling(bytes([byte]))])


@dataclass(frozen=True, slots=True, eq=False)
class JsonHole:
    """State that all matchers of one hole share."""

    vocabulary: Vocabulary
    texts: Texts
    following: Flags
    """Flags of the texts that may begin the text after the hole (S18), shape (texts,)."""
    name: str
    span: Span
    has_key_patterns: bool = False
    """True if an object may run out of keys: those of a pattern may be few, and none may occur twice."""

    def has_other_key(self, parser: LLMatcher, said: list[int], place: JsonPlace) -> bool:
        """False if every key that fits is one that the object has already."""
        needs_other = self.has_key_patterns and place.awaits_other_key
        return not needs_other or Search(parser, self.texts).has_other_key(said, place)
