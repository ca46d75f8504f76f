"""JSON of a schema: a `Matcher` over llguidance, for texts that our own automata cannot follow.

llguidance walks the distinct texts of a vocabulary, and every single byte, instead of its tokens. So any bytes can be
fed to it, no tokenisation is special, and its masks are flags of texts. It forces bytes, never tokens, so its masks
allow every tokenisation of a value, not only the canonical one. It knows one spelling of most characters, and no keys
that an object has: escapes and keys are read here (`JsonPlace`), and llguidance is given the characters.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.json_schema import refusal
from lmql_lite.constraints.terms import Ending
from lmql_lite.constraints.vocabulary import Flags, IntArray, Vocabulary, open_range
from lmql_lite.errors import Span

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


Node = TypeVar("Node")
QUOTE, BACKSLASH, DELETE = b'"', b"\\", b"\x7f"
SIMPLE = {b'"': '"', b"\\": "\\", b"/": "/", b"b": "\b", b"f": "\f", b"n": "\n", b"r": "\r", b"t": "\t"}
"""Characters of the escapes of two bytes, by the second byte."""
HEX = frozenset(b"0123456789abcdefABCDEF")
LAST = 0x10FFFF
LEADS, TRAILS = (0xD800, 0xDBFF), (0xDC00, 0xDFFF)
"""Halves of surrogate pairs. A half alone is no character, so it cannot be written."""
CodeRange = tuple[int, int]
"""First and last code point."""
CHARACTERS: tuple[CodeRange, ...] = ((0, LEADS[0] - 1), (TRAILS[1] + 1, LAST))
LONGEST_ESCAPE = len(rb"\ud83d\ude00")

NOT_PLAIN = re.compile(rb'["\\\x7f]')
_OUTSIDE = re.compile(rb'["{}\[\],]')


def characters(escape: bytes) -> tuple[CodeRange, ...]:
    r"""Characters that these first bytes of an escape may still become, one range of one character if it is complete.

    >>> characters(rb"\u00e9"), characters(rb"\ud83d\ude0"), characters(rb"\ude")
    (((233, 233),), ((128512, 128527),), ())
    """
    if escape == BACKSLASH:
        return CHARACTERS
    if escape[1:2] != b"u":
        character = SIMPLE.get(escape[1:])
        return ((ord(character), ord(character)),) if character else ()
    units = _units(escape[2:6])
    if units is None:
        return ()
    found = [_common(units, each) for each in CHARACTERS] if len(escape) <= 6 else []
    leads, trails = _common(units, LEADS), _trails(escape[6:])
    if leads and trails:
        found.append((_pair(leads[0], trails[0]), _pair(leads[1], trails[1])))
    return tuple(each for each in found if each)


def _trails(escape: bytes) -> CodeRange | None:
    """Second halves of surrogate pairs that an escape with these first bytes may become."""
    if not rb"\u".startswith(escape[:2]):
        return None
    units = _units(escape[2:])
    return units and _common(units, TRAILS)


def _units(digits: bytes) -> CodeRange | None:
    """Numbers of four hexadecimal digits that begin with these digits."""
    if not HEX.issuperset(digits):
        return None
    return int(digits.ljust(4, b"0"), 16), int(digits.ljust(4, b"f"), 16)


def _common(one: CodeRange, other: CodeRange) -> CodeRange | None:
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return (low, high) if low <= high else None


def _pair(lead: int, trail: int) -> int:
    return 0x10000 + ((lead - LEADS[0]) << 10) + trail - TRAILS[0]


def written(code: int) -> bytes:
    """A character as `json.dumps` writes it inside quotes, with letters unescaped."""
    return json.dumps(chr(code), ensure_ascii=False)[1:-1].encode()


def incomplete(data: bytes) -> int:
    """Number of bytes at the end that begin a character and do not complete it."""
    opened = {back: open_range(data[-back:]) for back in range(1, min(len(data), 3) + 1)}
    return next((back for back, found in opened.items() if found is not None and found[2]), 0)


def _in_string(byte: int) -> bytes:
    return written(byte) if byte < 0x7F else bytes([byte])


def escaped(code: int, begun: bytes) -> bytes:
    r"""Rest of the escape for a character after its first bytes.

    >>> escaped(0xE9, rb"\u00E"), escaped(0x1F600, rb"\ud83d"), escaped(ord("\n"), b"\\")
    (b'9', b'\\ude00', b'n')
    """
    short = next((letter for letter, character in SIMPLE.items() if ord(character) == code), None)
    if begun == BACKSLASH and short is not None:
        return short
    units = chr(code).encode("utf-16-be")
    return b"".join(rb"\u" + units[at : at + 2].hex().encode() for at in range(0, len(units), 2))[len(begun) :]


class JsonLevel(NamedTuple):
    """An open object or list. Strings are UTF-8 without escapes."""

    outer: JsonLevel | None
    keys: frozenset[bytes] | None
    """Keys that the object has; None for a list."""
    key: bytes | None
    """Beginning of the key that is read, b"" before it begins; None where no key is next."""


class JsonPiece(NamedTuple):
    """Some of the bytes that are read, up to `end`, as llguidance reads them, and the place after them."""

    end: int
    plain: bytes
    after: JsonPlace


class JsonPlace(NamedTuple):
    """Place in a JSON text. It knows the bytes of JSON, but no schema."""

    inside: bool = False
    """True inside a string."""
    escape: bytes = b""
    """First bytes of an escape that is not complete."""
    level: JsonLevel | None = None

    @property
    def awaits_other_key(self) -> bool:
        """True if a key is next, or being read, that must differ from one that the object has."""
        return next(self.known_keys, None) is not None

    @property
    def is_key(self) -> bool:
        """True if a key is next, or being read."""
        return self.level is not None and self.level.key is not None

    @property
    def known_keys(self) -> Iterator[bytes]:
        """Rests of the keys of the object that begin like the one that is read, as `json.dumps` writes them."""
        level = self.level
        if level is not None and level.key is not None:
            for key in level.keys or ():
                if key.startswith(level.key):
                    yield b"".join(map(_in_string, key[len(level.key) :]))

    def typed(self, code: int) -> JsonPlace:
        """The place after a character in a string."""
        return self._read(chr(code).encode())

    def takes(self, data: bytes) -> bool:
        """True if all these bytes may stand here."""
        return not data or max((piece.end for piece in self.pieces(data)), default=0) == len(data)

    def pieces(self, data: bytes) -> Iterator[JsonPiece]:
        """The longest beginning of `data` that may stand here, in pieces: runs of bytes, and escapes.

        It ends before a byte that no escape has, and before the quote that would close a key which the object has.
        """
        place, at = self, 0
        while at < len(data):
            start = at
            if place.escape or (place.inside and data.startswith(BACKSLASH, at)):
                escape, found = place.escape, CHARACTERS
                while at < len(data) and found[0][0] != found[-1][1]:
                    found = characters(escape + data[at : at + 1])
                    if not found:
                        break
                    escape += data[at : at + 1]
                    at += 1
                if found and found[0][0] == found[-1][1]:
                    code = found[0][0]
                    place = place._replace(escape=b"")._read(chr(code).encode())
                    yield JsonPiece(at, written(code), place)
                    continue
                if at > start:
                    yield JsonPiece(at, b"", place._replace(escape=escape))
                return
            if place.inside:
                special = NOT_PLAIN.search(data, at)
                at = len(data) if special is None else special.start()
                place = place._read(data[start:at])
                closes = special is not None and special[0] == QUOTE
                if closes and place._closed is not None:
                    place, at = place._closed, at + 1
                if at > start:
                    yield JsonPiece(at, data[start:at], place)
                if special is not None and special[0] == DELETE:
                    at += 1
                    place = place._read(DELETE)
                    yield JsonPiece(at, DELETE, place)
                elif closes and place.inside:
                    return  # the key occurs twice
            else:
                place, at = place._outside(data, at)
                yield JsonPiece(at, data[start:at], place)

    def _read(self, text: bytes) -> JsonPlace:
        """The place after text in a string."""
        level = self.level
        if level is None or level.key is None:
            return self
        return self._replace(level=level._replace(key=level.key + text))

    @property
    def _closed(self) -> JsonPlace | None:
        """The place after the quote that ends a string; None if it ends a key that the object has already."""
        level = self.level
        if level is None or level.key is None or level.keys is None:
            return self._replace(inside=False)
        if level.key in level.keys:
            return None
        return JsonPlace(level=JsonLevel(level.outer, level.keys | {level.key}, None))

    def _outside(self, data: bytes, at: int) -> tuple[JsonPlace, int]:
        """The place after the quote that begins the next string, or at the end, and its index."""
        level = self.level
        for found in _OUTSIDE.finditer(data, at):
            match found[0]:
                case b'"':
                    return JsonPlace(inside=True, level=level), found.end()
                case b"{":
                    level = JsonLevel(level, frozenset(), b"")
                case b"[":
                    level = JsonLevel(level, None, None)
                case b",":
                    level = level and level._replace(key=None if level.keys is None else b"")
                case _:
                    level = level and level.outer
        return JsonPlace(level=level), len(data)


BEGINNING = JsonPlace()


KEY_AFTER_STRING = re.compile(rb'".*[",]', re.DOTALL)


class Texts:
    """Tokenizer for llguidance: the texts of a vocabulary by number, then the bytes it lacks, then end-of-text."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        texts = vocabulary.texts
        single = {text[0]: number for number, text in enumerate(texts) if len(text) == 1}
        missing = [byte for byte in range(256) if byte not in single]
        single |= {byte: len(texts) + place for place, byte in enumerate(missing)}
        self.of_byte = np.array([single[byte] for byte in range(256)], dtype=np.intp)
        self.eos_token_id = len(texts) + len(missing)
        self.tokens = [*texts, *(bytes([byte]) for byte in missing), b""]
        self.special_token_ids = [self.eos_token_id]
        self._numbers = self.of_byte.tolist()
        self._texts = texts

    @cached_property
    def escaping(self) -> list[tuple[int, bytes, list[int]]]:
        """Texts that llguidance may misjudge because of their escapes: number, text, and tokens of the text with a
        letter in the place of its last byte."""
        found = [(number, text) for number, text in enumerate(self._texts) if _is_misjudged(text)]
        return [(number, text, self(text[:-1] + b"a")) for number, text in found]

    @cached_property
    def with_keys(self) -> dict[str, IntArray]:
        """Texts that may begin or close a key, by the place where they begin."""
        quoted = [number for number, text in enumerate(self._texts) if QUOTE in text]
        commas = [number for number, text in enumerate(self._texts) if b"," in text]
        longer = [number for number in quoted if KEY_AFTER_STRING.search(self._texts[number])]
        found = {"key": quoted, "string": longer, "outside": sorted({*quoted, *commas})}
        return {place: np.array(numbers, dtype=np.intp) for place, numbers in found.items()}

    @cached_property
    def plain(self) -> Flags:
        """Flags of the texts that stand for themselves in a JSON string, shape (texts,)."""
        return np.fromiter(map(is_plain, self._texts), dtype=np.bool_, count=len(self._texts))

    def __call__(self, data: bytes) -> list[int]:
        """One number per byte: a hole begins and ends inside tokens, and the tokenisation makes no difference."""
        return [self._numbers[byte] for byte in data]


def is_plain(data: bytes) -> bool:
    """True if these are whole characters that stand for themselves in a string."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return not NOT_PLAIN.search(data)


def _is_misjudged(data: bytes) -> bool:
    """True if llguidance may read the escapes of this text differently."""
    backslashes = len(data) - len(data.rstrip(BACKSLASH))
    return backslashes % 2 == 1 or DELETE in data or rb"\u" in data or rb"\/" in data


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


def is_inside(inside: bool, data: bytes) -> bool:
    """True if data leads into a string. It begins after a whole character, `inside` a string or not."""
    return inside != (re.sub(rb"\\.", b"", data, flags=re.DOTALL).count(QUOTE) % 2 == 1)


def depth_first(start: Node, steps: Callable[[Node], Iterator[Node]]) -> Iterator[Node]:
    """The first STEPS nodes of a search, best first: the steps of a node are tried in their order."""
    waiting = [iter([start])]
    for _ in range(STEPS):
        while (node := next(waiting[-1], None)) is None:
            waiting.pop()
            if not waiting:
                return
        yield node
        waiting.append(steps(node))


def way_to_end(parser: LLMatcher, spelling: Texts, inside: bool, after: bytes = b"") -> bytes | None:
    """Bytes that complete the value if they follow `after`; None if none were found. `inside` a string at first or not.

    Depth-first, so not always the fewest bytes: the best byte of a place is tried first, the others only if it leads to
    no end. The parser stays where it is and validates longer and longer texts: copying it takes ten times as long.
    """
    search = Search(parser, spelling)

    def steps(node: tuple[list[int], bytes]) -> Iterator[tuple[list[int], bytes]]:
        said, way = node
        for step in search.steps(said, is_inside(inside, after + way)):
            yield [*said, *spelling(step)], way + step

    start = spelling(after), b""
    ways = depth_first(start, steps) if search.fits(start[0]) else iter(())
    return next((way for said, way in ways if search.is_end(said)), None)


class Search(NamedTuple):
    """Continuations from one position of a parser, as tokens of llguidance."""

    parser: LLMatcher
    spelling: Texts

    def fits(self, said: list[int]) -> bool:
        return self.parser.validate_tokens(said) == len(said)

    def is_end(self, said: list[int]) -> bool:
        return self.fits([*said, self.spelling.eos_token_id]) if said else self.parser.is_accepting()

    def steps(self, said: list[int], inside: bool) -> Iterator[bytes]:
        """Bytes to try next, best first. If none of them fits: the forced bytes, or any byte that fits."""
        fits = False
        for byte in INSIDE if inside else OUTSIDE:
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
        met = 0
        for _, there in depth_first((said, place), self._key_steps):
            met += 1
            if not there.is_key:
                return True
        return met == STEPS

    def _key_steps(self, node: tuple[list[int], JsonPlace]) -> Iterator[tuple[list[int], JsonPlace]]:
        """Next bytes of a key that the object does not have, and the places after them."""
        said, place = node
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


NEVER = 2**30
NEAR = 128
"""Number of tokens left from which on a mask checks that the value can still end."""
SLACK = 24
"""Most tokens by which a single token is assumed to delay the end of a value."""
MANY = 2000
"""Most texts for each of which a way to the end is searched."""
TOGETHER = 256
"""Most bytes that the parser validates without having moved."""
AFTER_BACKSLASH = frozenset(b'"\\/bfnrtu')
READ_ALIKE = frozenset(b'"bfnrt')
"""Second bytes of the escapes that llguidance reads as well."""


@dataclass(frozen=True, slots=True, eq=False)
class GrammarMatcher:
    """Position in the grammar of one hole. A step copies `parser`, which takes two microseconds, and never moves it.

    A token may not run past the end of the value (S16). Where the value is complete but could go on, as a number can, a
    token that does not continue it ends the hole, as in a choice (S18).
    """

    frame: JsonHole
    parser: LLMatcher
    text: bytes = b""
    ending: Ending | None = None
    length: int = 0
    """Number of leading bytes of `text` that are the value."""
    place: JsonPlace = BEGINNING
    """Place in the value. Inside an escape, the parser stands before it."""

    @property
    def value(self) -> bytes:
        return self.text[: self.length]

    @property
    def certain(self) -> int:
        return self.length

    @property
    def may_end(self) -> bool:
        return self.parser.is_accepting()

    def allowed(self, held: bytes, tokens_left: int) -> NDArray[np.bool_]:
        """Mask of the protocol, but `tokens_left` is checked only near the limit, by a search (`way_to_end`) whose
        tokens are counted greedily."""
        vocabulary = self.frame.vocabulary
        texts = np.zeros(len(vocabulary.texts), dtype=np.bool_)
        ends = not held and self.may_end
        if held:
            texts[self._behind(held)] = True
        else:
            fitting = self._fitting()
            texts[:] = fitting[: len(vocabulary.texts)]
        if tokens_left <= NEAR:
            texts[self._too_late(texts, len(held), tokens_left)] = False
        if ends:
            goes_on = fitting[self.frame.texts.of_byte]
            texts |= self.frame.following & ~goes_on[vocabulary.first_byte]
        if held:
            # settled text belongs to no hole: a token within it costs the hole nothing
            texts[vocabulary.beginnings(held)] = True
        mask = vocabulary.allowing(texts)
        if ends:
            mask[vocabulary.eos] = True
        mask.flags.writeable = False
        return mask

    def _behind(self, held: bytes) -> list[int]:
        """Numbers of the texts that begin with `held` and continue with the value from here."""
        vocabulary, found = self.frame.vocabulary, []
        beginning = vocabulary.beginning_with(held)
        at = beginning.start
        while at < beginning.stop:
            rest = vocabulary.texts[at][len(held) :]
            fitting = self.longest_valid(rest)
            if fitting < len(rest):
                at = vocabulary.beginning_with(held + rest[: fitting + 1]).stop  # all others with this prefix fail too
            else:
                found += [at] if rest else []
                at += 1
        return found

    def _too_late(self, texts: Flags, behind: int, tokens_left: int) -> list[int]:
        """Numbers of the `texts` after which no end of the value was found within the other tokens.

        The first `behind` bytes of each text are settled already. An escape is only begun if the longest one has room:
        a limit is no reason for another character.
        """
        rest, _ = self._rest_of_escape()
        tail = self._way(rest)
        way = None if tail is None else rest + tail
        needed = self._count(way or b"")
        if way is not None and needed + SLACK < tokens_left:
            return []
        closes = tail is not None and self.place.inside and not self.place.escape and tail.startswith(QUOTE)
        are_many = np.count_nonzero(texts) > MANY
        if closes and not behind and needed < tokens_left:
            texts = texts & ~self.frame.texts.plain  # plain texts, nearly all of them, do not delay the end
        # most texts extend the value that this way ends, or begin with its first one or two bytes
        ways = [] if tail is None else [(tail[said:], self._count(tail[said:])) for said in (2, 1, 0)]
        found = []
        for index in np.flatnonzero(texts).tolist():
            rest = self.frame.vocabulary.texts[index][behind:]
            if closes and is_plain(rest):
                ends = needed < tokens_left  # more letters bring the end no nearer
            elif tokens_left > 1 and way is None:
                ends = True  # nothing is known
            elif are_many and not (way or b"").startswith(rest) and not (self.place.escape and len(rest) == 1):
                ends = False  # not worth so many searches
            else:
                rest_of_escape, longest = self._rest_of_escape(rest)
                ahead = rest + rest_of_escape
                more = next((count for rest_of_way, count in ways if self._leads(ahead + rest_of_way)), None)
                if more is None:
                    other = self._way(ahead)
                    more = NEVER if other is None else self._count(other)
                more += len(rest_of_escape) if (way or b"").startswith(rest) else longest
                ends = more < tokens_left
            found += [] if ends else [index]
        return found

    def _way(self, after: bytes) -> bytes | None:
        """Bytes that complete the value if they follow `after`, which leaves no escape incomplete; None if none were
        found."""
        if not self.place.escape and not NOT_PLAIN.search(after):
            return way_to_end(self.parser, self.frame.texts, self.place.inside, after)
        there = self._moved(after)
        return None if there is None else way_to_end(there.parser, there.frame.texts, there.place.inside)

    def _rest_of_escape(self, data: bytes = b"") -> tuple[bytes, int]:
        """Some bytes that complete the escape which `data` leaves incomplete, and the most that it may need."""
        read = self._read(data)
        escape = read.place.escape
        code = Search(read.parser, self.frame.texts).character(read.said, escape) if escape else None
        return (b"", 0) if code is None else (escaped(code, escape), LONGEST_ESCAPE - len(escape))

    def _leads(self, data: bytes) -> bool:
        """True if the value is complete after these bytes."""
        read = self._read(data)
        return read.size == len(data) and Search(read.parser, self.frame.texts).is_end(read.said)

    def _count(self, way: bytes) -> int:
        """Number of tokens of these bytes by greedy longest match: about the least possible."""
        count, vocabulary = 0, self.frame.vocabulary
        while way:
            first = vocabulary.beginnings(way)
            way = way[len(vocabulary.texts[first[-1]]) if first else 1 :]
            count += 1
        return count

    def advance(self, data: bytes, tokens: int = 1) -> GrammarMatcher:
        text = self.text + data
        if data and self.may_end and not self.longest_valid(data[:1]):
            return replace(self, text=text, ending="end-of-text")
        moved = self._moved(data)
        if moved is None:
            raise ValueError(f"{data!r} is not allowed after {self.text!r}")
        return replace(moved, text=text, length=len(text)).noticed()

    def noticed(self) -> GrammarMatcher:
        """This matcher, ended if only the end is possible. llguidance may notice that only when it computes a mask."""
        return replace(self, ending="forced") if self.may_end and not self._bits(self.parser).any() else self

    def end(self, ending: Ending) -> GrammarMatcher:
        return replace(self, ending=ending)

    def forced(self) -> bytes:
        """Bytes of the protocol. Characters that begin alike are no choice yet, but may be written as escapes."""
        if self.ending is not None or self.may_end or self.place.escape:
            return b""
        found: bytes = self.parser.compute_ff_bytes()
        whole = max((piece.end for piece in self.place.pieces(found) if not piece.after.escape), default=0)
        return found[: whole - incomplete(found[:whole])]

    def longest_valid(self, data: bytes) -> int:
        place = self.place
        if place.inside and not place.escape and not place.is_key and not NOT_PLAIN.search(data):
            return self.parser.validate_tokens(self.frame.texts(data))
        return self._read(data).size

    def _moved(self, data: bytes) -> GrammarMatcher | None:
        """The matcher after these bytes, but for its text; None if they do not fit."""
        read = self._read(data)
        if read.size < len(data):
            return None
        parser = read.parser.deep_copy()
        parser.consume_tokens(read.said)
        return replace(self, parser=parser, place=read.place)

    def _read(self, data: bytes) -> JsonReading:
        """The longest beginning of `data` that fits."""
        while True:
            read = self._followed(data)
            if read.size < len(data):
                data = data[: read.size]
            elif data and not self.frame.has_other_key(read.parser, read.said, read.place):
                data = data[:-1]
            else:
                return read

    def _followed(self, data: bytes) -> JsonReading:
        """The same if every object has another key. Its place is only right if all bytes fit."""
        parser, place, said, size = self.parser, self.place, list[int](), 0
        for piece in place.pieces(data):
            if len(said) > TOGETHER:
                parser = parser.deep_copy()
                parser.consume_tokens(said)
                said = []
            search = Search(parser, self.frame.texts)
            numbers = None if piece.after.escape else search.spelled(said, piece.plain)
            if numbers is not None:
                place, size = piece.after, piece.end
                said += numbers
                continue
            if not place.escape and not (place.inside and data.startswith(BACKSLASH, size)):
                fits = parser.validate_tokens([*said, *self.frame.texts(piece.plain)]) - len(said)
                return JsonReading(size + fits, parser, said, place)
            for end in range(piece.end, size, -1):
                begun = place._replace(escape=place.escape + data[size:end])
                if search.character(said, begun.escape) is not None:
                    return JsonReading(end, parser, said, begun)
            break
        return JsonReading(size, parser, said, place)

    def _fitting(self) -> Flags:
        """Flags of the texts and the lacking bytes that may come next, shape (eos_token_id,)."""
        place, texts, vocabulary = self.place, self.frame.texts, self.frame.vocabulary
        is_doubtful = place.inside and self.frame.has_key_patterns and place.awaits_other_key
        if place.escape:
            fitting = self._completing()
        else:
            fitting = self._bits(self.parser)
            for number, text, probe in texts.escaping:
                if place.inside or QUOTE in text:
                    is_begun = text.endswith(BACKSLASH) and not is_doubtful
                    goes_on = is_begun and self.parser.validate_tokens(probe) == len(probe)
                    fitting[number] = goes_on or self.longest_valid(text) == len(text)
        if place.inside and place.level is None:
            return fitting
        doubtful = texts.with_keys["outside" if not place.inside else "key" if place.is_key else "string"]
        for number in doubtful[fitting[doubtful]].tolist():
            text = vocabulary.texts[number]
            fitting[number] = place.takes(text) and (
                not self.frame.has_key_patterns or self.longest_valid(text) == len(text)
            )
        if is_doubtful:
            for number in {number for rest in place.known_keys for number in vocabulary.beginnings(rest)}:
                text = vocabulary.texts[number]
                fitting[number] &= self.longest_valid(text) == len(text)
        return fitting

    def _completing(self) -> Flags:
        """The same inside an escape."""
        vocabulary, texts, escape = self.frame.vocabulary, self.frame.texts, self.place.escape
        fitting = np.zeros(texts.eos_token_id, dtype=np.bool_)
        if escape == BACKSLASH and not (self.frame.has_key_patterns and self.place.awaits_other_key):
            parser = self.parser.deep_copy()
            if parser.validate_tokens(texts(BACKSLASH)):
                parser.consume_tokens(texts(BACKSLASH))
                flags = self._bits(parser)
                for byte in READ_ALIKE:
                    span = vocabulary.beginning_with(bytes([byte]))
                    fitting[span.start : span.stop] = flags[span.start : span.stop]
                for number, text, _ in texts.escaping:
                    fitting[number] = text[0] in READ_ALIKE and self.longest_valid(text) == len(text)
            following = AFTER_BACKSLASH - READ_ALIKE
        else:
            following = AFTER_BACKSLASH | HEX
        for byte in following:
            data = bytes([byte])
            there = self._moved(data)
            if there is not None:
                fitting[texts.of_byte[byte]] = True
                fitting[there._behind(data)] = True
        return fitting

    def _bits(self, parser: LLMatcher) -> Flags:
        """llguidance's flags of the texts and the lacking bytes, shape (eos_token_id,).

        Raises ConstraintError if the parser is in error, because it then allows end-of-text.
        """
        bits = parser.compute_bitmask()
        if parser.is_error():
            raise refusal(parser.get_error(), self.frame.name, self.frame.span)
        count = self.frame.texts.eos_token_id
        return np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=count, bitorder="little").view(np.bool_)


class JsonReading(NamedTuple):
    """The first `size` bytes of a text, which fit: a parser, the tokens `said` that it has not consumed, the place."""

    size: int
    parser: LLMatcher
    said: list[int]
    place: JsonPlace


class Grammars:
    """Matchers of grammars for one vocabulary. Threads may share it.

    The tokenizer for llguidance is made when it is first needed, which takes a second for 128,000 tokens.
    """

    PARSERS_KEPT = 64

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: tuple[Texts, LLTokenizer] | None = None
        self._parsers: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = Lock()

    def matcher(self, rules: str, following: bytes, name: str, span: Span) -> GrammarMatcher:
        """Matcher at the beginning of a hole.

        `following` is the text known to come after it, b"" if it is not known. Raises ConstraintError if nothing can
        fill the hole, or if llguidance cannot follow its grammar.
        """
        with self._lock:
            texts, tokenizer = self._known_tokenizer()
            parser = self._parsers.get(rules)
            if parser is None:
                parser = self._parsers[rules] = _parser(rules, tokenizer, name, span)
                if len(self._parsers) > self.PARSERS_KEPT:
                    self._parsers.popitem(last=False)
            self._parsers.move_to_end(rules)
        starting, has_patterns = _starting(self._vocabulary, following), "patternProperties" in rules
        frame = JsonHole(self._vocabulary, texts, starting, name, span, has_patterns)
        return GrammarMatcher(frame, parser).noticed()

    def _known_tokenizer(self) -> tuple[Texts, LLTokenizer]:
        if self._tokenizer is None:
            from llguidance import LLTokenizer, TokenizerWrapper

            texts = Texts(self._vocabulary)
            self._tokenizer = texts, LLTokenizer(TokenizerWrapper(texts), slices=LLTokenizer.json_slices())
        return self._tokenizer


def _parser(rules: str, tokenizer: LLTokenizer, name: str, span: Span) -> LLMatcher:
    from llguidance import LLMatcher

    parser = LLMatcher(tokenizer, rules, log_level=0)
    if not parser.is_error():
        parser.compute_bitmask()  # some grammars that nothing can meet fail only when a mask is computed
    if parser.is_error():
        raise refusal(parser.get_error(), name, span)
    return parser


def _starting(vocabulary: Vocabulary, following: bytes) -> Flags:
    """Flags of the texts that may begin `following`, shape (texts,); all are set if it is not known."""
    flags: Flags = np.full(len(vocabulary.texts), not following, dtype=np.bool_)
    if following:
        flags[[*vocabulary.within(following), *vocabulary.beginning_with(following)]] = True
    return flags
