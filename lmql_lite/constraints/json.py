r"""JSON of a schema: a `Matcher` over llguidance, for texts that our own automata cannot follow.

llguidance walks the distinct texts of a vocabulary, and every single byte, instead of its tokens. So any bytes can be
fed to it, no tokenisation is special, and its masks are flags of texts. It forces bytes, never tokens, so its masks
allow every tokenisation of a value, not only the canonical one.

It knows one spelling of most characters, and lets a key occur twice. `JsonPlace` reads what it does not know: escapes,
for which llguidance is given their characters, and keys. Only the texts that may have these are judged again.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.json_schema import refusal
from lmql_lite.constraints.terms import Ending
from lmql_lite.constraints.vocabulary import Flags, IntArray, Vocabulary, open_range
from lmql_lite.errors import Span

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


# Escapes -------------------------------------------------------------------------------------------------------------

QUOTE, BACKSLASH, DELETE = b'"', b"\\", b"\x7f"
SIMPLE = {b'"': '"', b"\\": "\\", b"/": "/", b"b": "\b", b"f": "\f", b"n": "\n", b"r": "\r", b"t": "\t"}
"""Characters of the escapes of two bytes, by the second byte."""
OWN = b'"\\bfnrt'
"""Bytes after a backslash that llguidance reads as we do."""
HEX = frozenset(b"0123456789abcdefABCDEF")
LEADS, TRAILS = (0xD800, 0xDBFF), (0xDC00, 0xDFFF)
"""Halves of surrogate pairs. A half alone is no character, so it cannot be written."""
CodeRange = tuple[int, int]
"""First and last code point."""
CHARACTERS: tuple[CodeRange, ...] = ((0, LEADS[0] - 1), (TRAILS[1] + 1, 0x10FFFF))
SPELLED = (*b'"\\', *range(0x20), *DELETE)
"""Characters that llguidance reads as escapes."""
MAX_ESCAPE_LENGTH = len(rb"\ud83d\ude00")

NOT_PLAIN = re.compile(rb'["\\\x7f]')
IN_STRING, BETWEEN = re.compile(rb'"|[^"\\\x7f]+'), re.compile(rb'[^"]*"?')
"""Next part of a JSON text, inside a string that has no escape next, and outside: up to the quote that begins one."""
STRUCTURE = re.compile(rb"[{}\[\],]")


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
    units, second = _units(escape[2:6]), escape[6:]
    if units is None:
        return ()
    found = [_common(units, each) for each in CHARACTERS] if not second else []
    leads = _common(units, LEADS)
    others = _units(second[2:]) if rb"\u".startswith(second[:2]) else None
    trails = others and _common(others, TRAILS)
    if leads and trails:
        found.append((_pair(leads[0], trails[0]), _pair(leads[1], trails[1])))
    return tuple(each for each in found if each)


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


def written(text: bytes) -> bytes:
    """UTF-8, or a part of it, as `json.dumps` writes it inside quotes, with letters unescaped."""
    return json.dumps(text.decode("latin-1"), ensure_ascii=False)[1:-1].encode("latin-1")


def incomplete(data: bytes) -> int:
    """Number of bytes at the end that begin a character and do not complete it."""
    opened = {back: open_range(data[-back:]) for back in range(1, min(len(data), 3) + 1)}
    return next((back for back, found in opened.items() if found is not None and found[2]), 0)


# The texts of a vocabulary -------------------------------------------------------------------------------------------


class Texts:
    """Tokenizer for llguidance: the texts of a vocabulary by number, then the bytes it lacks, then end-of-text."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        texts = vocabulary.texts
        single = {text[0]: number for number, text in enumerate(texts) if len(text) == 1}
        missing = [byte for byte in range(256) if byte not in single]
        single |= {byte: len(texts) + place for place, byte in enumerate(missing)}
        self.of_byte = np.array([single[byte] for byte in range(256)], dtype=np.intp)
        self.eos_token_id = len(texts) + len(missing)
        self.tokens = [*texts, *(bytes([byte]) for byte in missing), b""]
        self.special_token_ids = [self.eos_token_id]
        self._numbers = self.of_byte.tolist()

    def _numbers_of(self, is_wanted: Callable[[bytes], bool]) -> IntArray:
        return np.flatnonzero(np.fromiter(map(is_wanted, self.vocabulary.texts), dtype=np.bool_))

    @cached_property
    def escaping(self) -> IntArray:
        """Texts that llguidance may misjudge because of their escapes."""
        return self._numbers_of(_is_misjudged)

    @cached_property
    def quoting(self) -> dict[int, IntArray]:
        """Texts with at least one quote, and those with at least two."""
        one, two = self._numbers_of(lambda text: QUOTE in text), self._numbers_of(lambda text: text.count(QUOTE) > 1)
        return {1: one, 2: two}

    @cached_property
    def parting(self) -> IntArray:
        """Texts after which a key may have to follow."""
        return self._numbers_of(lambda text: b"," in text)

    @cached_property
    def plain(self) -> Flags:
        """Flags of the texts that stand for themselves in a JSON string, shape (texts,)."""
        return np.fromiter(map(is_plain, self.vocabulary.texts), dtype=np.bool_)

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
    backslashes = len(data) - len(data.rstrip(BACKSLASH))
    return backslashes % 2 == 1 or DELETE in data or rb"\u" in data or rb"\/" in data


# Places --------------------------------------------------------------------------------------------------------------

STEPS = 400
"""Most places that one search visits."""
OUTSIDE = b'}],:0"[{ntf-.'
INSIDE = b'"a0-:TZ'
"""Bytes that a search tries first, outside and inside a string."""
KEY_BYTES = bytes(dict.fromkeys(byte for byte in INSIDE + bytes(range(256)) if byte not in BACKSLASH))
"""Bytes in the order in which a search for another key tries them."""


class JsonLevel(NamedTuple):
    """An open object or list. Strings are UTF-8 without escapes."""

    outer: JsonLevel | None
    keys: frozenset[bytes] | None
    """Keys that the object has; None for a list."""
    key: bytes | None
    """Beginning of the key that is read, b"" before it begins; None where no key is next."""


class JsonPlace(NamedTuple):
    """Place in a JSON text: what llguidance has read, and what it does not know."""

    texts: Texts
    parser: LLMatcher
    """Never moved: a step copies it. Inside an escape, it stands before it."""
    has_key_patterns: bool
    """True if an object may run out of keys: those of a pattern may be few, and none may occur twice."""
    inside: bool = False
    """True inside a string."""
    escape: bytes = b""
    """First bytes of an escape that is not complete."""
    level: JsonLevel | None = None

    @property
    def may_end(self) -> bool:
        return not self.escape and self.parser.is_accepting()

    @property
    def is_key(self) -> bool:
        """True if a key is next, or being read."""
        return self.level is not None and self.level.key is not None

    def read(self, data: bytes) -> tuple[int, JsonPlace]:
        """Size of the longest beginning of the data that fits, and the place after it."""
        size, place = self._read(data)
        while place is None or (size and place._is_stuck()):
            size, place = self._read(data[: size if place is None else size - 1])
        return size, place

    def _read(self, data: bytes) -> tuple[int, JsonPlace | None]:
        """The same, but keys may run out after it. The place is None unless all the data fit."""
        place, at = self, 0
        while at < len(data):
            size, after = place._step(data, at)
            at += size
            if after is None:
                return at, None
            place = after
        return at, place

    def longest_valid(self, data: bytes) -> int:
        """Size of the longest beginning of the data that fits."""
        if not self.inside or self.escape or self.is_key or NOT_PLAIN.search(data):
            return self.read(data)[0]
        return self.parser.validate_tokens(self.texts(data))

    def other_keys(self) -> list[bytes]:
        """Rests of the keys of the object that begin like the key which is next, as `json.dumps` writes them."""
        level = self.level
        if level is None or level.key is None or level.keys is None:
            return []
        return [written(key[len(level.key) :]) for key in level.keys if key.startswith(level.key)]

    def _is_stuck(self) -> bool:
        """True if every key that fits is one that the object has already. An endless search has found many."""
        if not self.has_key_patterns or not self.other_keys():
            return False
        if self.escape:
            closed = map(self._with_character, self._characters(characters(self.escape)))
            return all(place is None or place._is_stuck() for place in closed)
        met = 0
        for _, place in depth_first(self, lambda place: place._steps(KEY_BYTES)):
            met += 1
            if not place.is_key:
                return False
        return met < STEPS

    def _step(self, data: bytes, at: int) -> tuple[int, JsonPlace | None]:
        """Size of the part of the data that is read next, and the place after it: a run of bytes, or a byte of an
        escape. If only the beginning of the run fits, its size and None."""
        after: JsonPlace | None = None
        if self.escape or (self.inside and data[at] in BACKSLASH):
            after = self._escaping(self.escape + data[at : at + 1])
        elif self.inside and data[at] in DELETE:
            after = self._with_character(*DELETE)
        else:
            run = (IN_STRING if self.inside else BETWEEN).match(data, at)
            assert run is not None  # the patterns match anywhere
            part = run[0]
            tokens, closes = self.texts(part), self.inside and part == QUOTE
            if closes and b"" in self.other_keys():
                return 0, None
            size = self.parser.validate_tokens(tokens)
            if size < len(part):
                return size, None
            level = self._closed() if closes else self._named(part) if self.inside else self._opened(part)
            return size, self._replace(
                parser=self.parser_after(tokens), inside=self.inside != part.endswith(QUOTE), level=level
            )
        return int(after is not None), after

    def parser_after(self, tokens: list[int]) -> LLMatcher:
        parser = self.parser.deep_copy()
        parser.consume_tokens(tokens)
        return parser

    def _escaping(self, escape: bytes) -> JsonPlace | None:
        """The place after the first bytes of an escape; None if nothing that fits begins so."""
        ranges = characters(escape)
        if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
            return self._with_character(ranges[0][0])
        # in most strings the first character of a range fits; where it does not, a search is exact
        fits = any(self._spelled(low) for low, _ in ranges) or any(True for _ in self._characters(ranges))
        return self._replace(escape=escape) if fits else None

    def _with_character(self, code: int) -> JsonPlace | None:
        """The place after a character in a string, however it is written."""
        tokens = self._spelled(code)
        text = chr(code).encode()
        return self._replace(parser=self.parser_after(tokens), escape=b"", level=self._named(text)) if tokens else None

    def _spelled(self, code: int) -> list[int]:
        """Tokens of a character in llguidance's spelling; none if it does not fit."""
        plain = written(chr(code).encode())
        for spelling in (plain, rb"\u007f") if plain == DELETE else (plain,):
            tokens = self.texts(spelling)
            if self.parser.validate_tokens(tokens) == len(tokens):
                return tokens
        return []

    def _characters(self, ranges: Sequence[CodeRange], begun: bytes = b"") -> Iterator[int]:
        """Characters of the ranges that fit, from those that begin with some bytes of UTF-8."""
        if not ranges:
            return
        first, last = (0x80, 0xBF) if begun else [chr(code).encode()[0] for code in (ranges[0][0], ranges[-1][1])]
        first = max(first, 0x20)  # the others are spelled
        for byte in range(first, last + 1):
            letter = begun + bytes([byte])
            if letter in (QUOTE, BACKSLASH) or self.parser.validate_tokens(self.texts(letter)) < len(letter):
                continue
            low, high, left = open_range(letter) or (-1, -1, 0)
            if any(_common((low, high), each) for each in ranges):
                yield from self._characters(ranges, letter) if left else (low,)
        if not begun:
            spelled = (code for code in SPELLED if any(low <= code <= high for low, high in ranges))
            yield from (code for code in spelled if self._spelled(code))

    def _named(self, text: bytes) -> JsonLevel | None:
        """The level after text in a string."""
        level = self.level
        return level if level is None or level.key is None else level._replace(key=level.key + text)

    def _closed(self) -> JsonLevel | None:
        """The level after the quote that ends a string."""
        level = self.level
        if level is None or level.key is None or level.keys is None:
            return level
        return JsonLevel(level.outer, level.keys | {level.key}, None)

    def _opened(self, part: bytes) -> JsonLevel | None:
        """The level after bytes outside of strings."""
        level = self.level
        for found in STRUCTURE.findall(part):
            match found:
                case b"{":
                    level = JsonLevel(level, frozenset(), b"")
                case b"[":
                    level = JsonLevel(level, None, None)
                case b",":
                    level = level and level._replace(key=None if level.keys is None else b"")
                case _:
                    level = level and level.outer
        return level

    # Searches --------------------------------------------------------------------------------------------------------

    def _steps(self, order: Iterable[int]) -> Iterator[tuple[bytes, JsonPlace]]:
        """Bytes that fit, in an order, and the places after them."""
        for byte in order:
            step = bytes([byte])
            if self.escape or byte in BACKSLASH + DELETE or self.parser.validate_tokens(self.texts(step)):
                _, place = self._read(step)
                if place is not None:
                    yield step, place

    def steps_to_end(self) -> Iterator[tuple[bytes, JsonPlace]]:
        """Bytes that may lead to the end, best first. If none of them fits: the forced bytes, or any byte that fits."""
        fits = False
        for step, place in self._steps(INSIDE if self.inside else OUTSIDE):
            if not place._is_stuck():
                fits = True
                yield step, place
        if not fits:
            forced = b"" if self.escape else self.parser.compute_ff_bytes()
            size, place = self.read(forced)
            if size:
                yield forced[:size], place
            else:
                yield from self._steps(range(256))


def depth_first(
    start: JsonPlace, steps: Callable[[JsonPlace], Iterator[tuple[bytes, JsonPlace]]]
) -> Iterator[tuple[bytes, JsonPlace]]:
    """The first STEPS places of a search with the ways to them, best first: steps are tried in their order."""
    ways, waiting = [b""], [iter([(b"", start)])]
    for _ in range(STEPS):
        while (step := next(waiting[-1], None)) is None:
            ways.pop()
            waiting.pop()
            if not waiting:
                return
        way, place = ways[-1] + step[0], step[1]
        yield way, place
        ways.append(way)
        waiting.append(steps(place))


def way_to_end(place: JsonPlace) -> bytes | None:
    """Bytes that complete the value; None if none were found.

    Depth-first, so not always the fewest bytes: the best byte of a place is tried first, the others only if it leads to
    no end.
    """
    return next((way for way, there in depth_first(place, JsonPlace.steps_to_end) if there.may_end), None)


# Matchers ------------------------------------------------------------------------------------------------------------

NEVER = 2**30
NEAR = 128
"""Number of tokens left from which on a mask checks that the value can still end."""
SLACK = 24
"""Most tokens by which a single token is assumed to delay the end of a value."""
MANY, MANY_IN_ESCAPE = 2000, 200
"""Most texts for each of which a way to the end is searched; a step inside an escape costs ten times as much."""


@dataclass(frozen=True, slots=True, eq=False)
class GrammarMatcher:
    """Position in the grammar of one hole.

    A token may not run past the end of the value (S16). Where the value is complete but could go on, as a number can, a
    token that does not continue it ends the hole, as in a choice (S18).
    """

    place: JsonPlace
    following: Flags
    """Flags of the texts that may begin the text after the hole (S18), shape (texts,)."""
    name: str
    span: Span
    text: bytes = b""
    ending: Ending | None = None
    length: int = 0
    """Number of leading bytes of `text` that are the value."""

    @property
    def value(self) -> bytes:
        return self.text[: self.length]

    @property
    def certain(self) -> int:
        return self.length

    @property
    def may_end(self) -> bool:
        return self.place.may_end

    def longest_valid(self, data: bytes) -> int:
        return self.place.longest_valid(data)

    def advance(self, data: bytes, tokens: int = 1) -> GrammarMatcher:
        text = self.text + data
        if data and self.may_end and not self.longest_valid(data[:1]):
            return replace(self, text=text, ending="end-of-text")
        size, place = self.place.read(data)
        if size < len(data):
            raise ValueError(f"{data!r} is not allowed after {self.text!r}")
        return replace(self, place=place, text=text, length=len(text)).noticed()

    def noticed(self) -> GrammarMatcher:
        """This matcher, ended if only the end is possible. llguidance may notice that only when it computes a mask."""
        return replace(self, ending="forced") if self.may_end and not self._bits().any() else self

    def end(self, ending: Ending) -> GrammarMatcher:
        return replace(self, ending=ending)

    def forced(self) -> bytes:
        """Bytes of the protocol. Characters that begin alike are no choice yet, but may be written as escapes."""
        if self.ending is not None or self.may_end or self.place.escape:
            return b""
        found: bytes = self.place.parser.compute_ff_bytes()
        size, place = self.place.read(found)
        whole = found[: size - len(place.escape)]
        return whole[: len(whole) - incomplete(whole)]

    # Masks -----------------------------------------------------------------------------------------------------------

    def allowed(self, held: bytes, tokens_left: int) -> NDArray[np.bool_]:
        """Mask of the protocol, but `tokens_left` is checked only near the limit, by a search (`way_to_end`) whose
        tokens are counted greedily."""
        vocabulary, of_byte = self.place.texts.vocabulary, self.place.texts.of_byte
        ends = not held and self.may_end
        fitting = self._flags(_behind(self.place, held)) if held else self._fitting()
        texts = fitting[: len(vocabulary.texts)].copy()
        if tokens_left <= NEAR:
            texts[self._too_late(texts, len(held), tokens_left)] = False
        if ends:
            texts |= self.following & ~fitting[of_byte][vocabulary.first_byte]
        if held:
            # settled text belongs to no hole: a token within it costs the hole nothing
            texts[vocabulary.beginnings(held)] = True
        mask = vocabulary.allowing(texts)
        mask[vocabulary.eos] = ends
        mask.flags.writeable = False
        return mask

    def _flags(self, numbers: Iterable[int]) -> Flags:
        flags: Flags = np.zeros(self.place.texts.eos_token_id, dtype=np.bool_)
        flags[list(numbers)] = True
        return flags

    def _bits(self) -> Flags:
        """llguidance's flags of the texts and the lacking bytes, shape (eos_token_id,); of escapes, it knows few.

        Raises ConstraintError if the parser is in error, because it then allows end-of-text.
        """
        parser, count = self.place.parser, self.place.texts.eos_token_id
        if self.place.escape:
            begun = self.place.texts(self.place.escape)
            if parser.validate_tokens(begun) < len(begun):
                return np.zeros(count, dtype=np.bool_)
            parser = self.place.parser_after(begun)
        bits = parser.compute_bitmask()
        if parser.is_error():
            raise refusal(parser.get_error(), self.name, self.span)
        return np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=count, bitorder="little").view(np.bool_)

    def _fitting(self) -> Flags:
        """Flags of the texts and the lacking bytes that may come next, shape (eos_token_id,)."""
        place, texts, vocabulary = self.place, self.place.texts, self.place.texts.vocabulary
        fitting = self._bits()
        if place.escape:
            for byte in set(range(256)).difference(OWN if place.escape == BACKSLASH else b""):
                size, there = place.read(bytes([byte]))
                if size:
                    fitting[[texts.of_byte[byte], *_behind(there, bytes([byte]))]] = True
        doubtful = {*texts.quoting[1 if place.inside and place.is_key else 2].tolist()}  # a token may close a key
        if place.has_key_patterns:
            doubtful.update(texts.quoting[1].tolist(), () if place.inside else texts.parting.tolist())
            doubtful.update(number for rest in place.other_keys() for number in vocabulary.beginnings(rest))
        for number in {number for number in doubtful if fitting[number]}.union(texts.escaping.tolist()):
            text = vocabulary.texts[number]
            fitting[number] = place.longest_valid(text) == len(text)
        return fitting

    def _too_late(self, texts: Flags, behind: int, tokens_left: int) -> list[int]:
        """Numbers of the `texts` after which no end of the value was found within the other tokens.

        The first `behind` bytes of each text are settled already. An escape is only begun if the longest one has room:
        a limit is no reason for another character.
        """
        place = self.place
        way = way_to_end(place)
        needed = self._count(way)
        if needed + SLACK < tokens_left:
            return []
        closes = way is not None and place.inside and not place.escape and way.startswith(QUOTE)
        are_many = np.count_nonzero(texts) > (MANY_IN_ESCAPE if place.escape else MANY)
        if closes and not behind and needed < tokens_left:
            texts = texts & ~place.texts.plain  # plain texts, nearly all of them, do not delay the end
        # most texts extend the value that this way ends, or begin with its first one or two bytes
        tails = [] if way is None else [(way[begun:], self._count(way[begun:])) for begun in (2, 1, 0)]
        found = []
        for index in np.flatnonzero(texts).tolist():
            rest = place.texts.vocabulary.texts[index][behind:]
            on_way = way is not None and way.startswith(rest)
            if closes and is_plain(rest):
                ends = needed < tokens_left  # more letters bring the end no nearer
            elif tokens_left > 1 and way is None:
                ends = True  # nothing is known
            elif are_many and not on_way and not (place.escape and len(rest) == 1):
                ends = False  # not worth so many searches
            else:
                _, there = place.read(rest)
                more = next((count for tail, count in tails if _leads_to_end(there, tail)), None)
                more = self._count(way_to_end(there)) if more is None else more
                more += MAX_ESCAPE_LENGTH - len(there.escape) if there.escape and not on_way else 0
                ends = more < tokens_left
            found += [] if ends else [index]
        return found

    def _count(self, way: bytes | None) -> int:
        """Number of tokens of these bytes by greedy longest match: about the least possible. NEVER for None."""
        count, vocabulary = 0, self.place.texts.vocabulary
        while way:
            first = vocabulary.beginnings(way)
            way = way[len(vocabulary.texts[first[-1]]) if first else 1 :]
            count += 1
        return NEVER if way is None else count


def _leads_to_end(place: JsonPlace, way: bytes) -> bool:
    size, there = place.read(way)
    return size == len(way) and there.may_end


def _behind(place: JsonPlace, held: bytes) -> Iterator[int]:
    """Numbers of the texts that begin with `held` and continue with the value from a place."""
    vocabulary = place.texts.vocabulary
    beginning = vocabulary.beginning_with(held)
    at = beginning.start
    while at < beginning.stop:
        rest = vocabulary.texts[at][len(held) :]
        fitting = place.longest_valid(rest)
        if fitting < len(rest):
            at = vocabulary.beginning_with(held + rest[: fitting + 1]).stop  # all others with this prefix fail too
        else:
            if rest:
                yield at
            at += 1


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
        start = JsonPlace(texts, parser, "patternProperties" in rules)
        return GrammarMatcher(start, _starting(self._vocabulary, following), name, span).noticed()

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
