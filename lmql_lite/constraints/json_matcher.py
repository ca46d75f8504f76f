"""JSON of a schema: a `Matcher` over llguidance, for texts that our own automata cannot follow.

llguidance walks the distinct texts of a vocabulary, and every single byte, instead of its tokens. So any bytes can be
fed to it, no tokenisation is special, and its masks are flags of texts. It forces bytes, never tokens, so its masks
allow every tokenisation of a value, not only the canonical one. It knows one spelling of most characters, and no keys
that an object has: escapes and keys are read here (`json_text`), and llguidance is given the characters.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.json_grammar import refusal
from lmql_lite.constraints.json_search import JsonHole, Quotes, Search, way_to_end
from lmql_lite.constraints.json_text import (
    BACKSLASH,
    BEGINNING,
    HEX,
    LONGEST_ESCAPE,
    QUOTE,
    JsonPlace,
    escaped,
    incomplete,
)
from lmql_lite.constraints.json_tokens import NOT_PLAIN, Texts, is_plain
from lmql_lite.constraints.matcher import Ending
from lmql_lite.constraints.vocabulary import Flags, Vocabulary
from lmql_lite.errors import Span

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

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
        """Numbers of the texts that begin with `held` and continue with the value."""
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
        quotes = Quotes().after(self.text)
        rest, _ = self._rest_of_escape()
        tail = self._way(quotes, rest)
        way = None if tail is None else rest + tail
        needed = self._count(way or b"")
        if way is not None and needed + SLACK < tokens_left:
            return []
        closes = quotes == Quotes(inside=True) and way is not None and way.startswith(b'"')
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
                    other = self._way(quotes, ahead)
                    more = NEVER if other is None else self._count(other)
                more += len(rest_of_escape) if (way or b"").startswith(rest) else longest
                ends = more < tokens_left
            found += [] if ends else [index]
        return found

    def _way(self, quotes: Quotes, after: bytes = b"") -> bytes | None:
        """Bytes that complete the value if they follow `after`, which leaves no escape incomplete; None if none were
        found."""
        if not self.place.escape and not NOT_PLAIN.search(after):
            return way_to_end(self.parser, self.frame.texts, quotes, after)
        there = self._moved(after)
        return None if there is None else way_to_end(there.parser, there.frame.texts, Quotes(there.place.inside))

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
                fitting[there._after_escape(data, vocabulary.beginning_with(data))] = True
        return fitting

    def _after_escape(self, said: bytes, span: range) -> list[int]:
        """Numbers of the texts in `span` that may stand here behind `said`, with which all of them begin."""
        texts, found, at = self.frame.vocabulary.texts, [], span.start
        while at < span.stop:
            rest = texts[at][len(said) :]
            if not rest or not self.place.escape:
                found += [at] if self.longest_valid(rest) == len(rest) else []
                at += 1
                continue
            longer = said + rest[:1]
            span_of_longer = self.frame.vocabulary.beginning_with(longer)
            there = self._moved(rest[:1])
            found += [] if there is None else there._after_escape(longer, span_of_longer)
            at = span_of_longer.stop
        return found

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
