"""A quick way to the end of a value in JSON: how a hole that comes near its limit on tokens still ends well (S13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from llguidance import LLMatcher

STEPS = 200
"""Places that one search may look at."""
OUTSIDE = b'}],:0"[{ntf-.'
INSIDE = b'"a0-:TZ'
"""The bytes that lead on soonest, outside a string and inside of one."""
Spell = Callable[[bytes], list[int]]
"""Bytes as tokens of llguidance."""


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


def way_to_end(parser: LLMatcher, spell: Spell, quotes: Quotes) -> bytes | None:
    """Bytes after which the value is complete, None where none were found. Not always the fewest."""
    places = [(parser, b"", quotes)]
    for _ in range(STEPS):
        if not places:
            break
        here, said, quotes = places.pop()
        if here.is_accepting():
            return said
        forced = here.compute_ff_bytes()
        for step in [forced] if forced else _next_bytes(here, spell, quotes)[::-1]:
            after = here.deep_copy()
            after.consume_tokens(spell(step))
            places.append((after, said + step, quotes.after(step)))
    return None


def _next_bytes(parser: LLMatcher, spell: Spell, quotes: Quotes) -> list[bytes]:
    """Those that lead on soonest, best first; where none of them fits, any one that does."""
    best = [bytes([byte]) for byte in (INSIDE if quotes.inside else OUTSIDE)]
    fitting = [byte for byte in best if parser.validate_tokens(spell(byte))]
    others = (bytes([byte]) for byte in range(256))
    return fitting or [byte for byte in others if parser.validate_tokens(spell(byte))][:1]
