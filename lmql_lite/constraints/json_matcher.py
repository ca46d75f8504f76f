"""JSON of a schema: a `Matcher` over llguidance, for texts that our own automata cannot follow.

llguidance walks the distinct texts of a vocabulary, and every single byte, instead of its tokens. So any bytes can be
fed to it, no tokenisation is special, and its masks are flags of texts. It forces bytes, never tokens, so its masks
allow every tokenisation of a value, not only the canonical one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import NEVER
from lmql_lite.constraints.json_grammar import refusal
from lmql_lite.constraints.matcher import Ending
from lmql_lite.constraints.vocabulary import Flags, Vocabulary
from lmql_lite.errors import Span

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

NEAR = 128
"""Number of tokens left from which on a mask checks that the value can still end."""
SLACK = 24
"""Most tokens by which a single token is assumed to delay the end of a value."""
MANY = 2000
"""Most texts for each of which a way to the end is searched."""
STEPS = 400
"""Most places that one search visits."""
OUTSIDE = b'}],:0"[{ntf-.'
INSIDE = b'"a0-:TZ'
"""Bytes that a search tries first, outside and inside a string."""
ESCAPES = frozenset('"\\')


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
    def plain(self) -> Flags:
        """Flags of the texts that stand for themselves in a JSON string, shape (texts,)."""
        return np.fromiter(map(_is_plain, self._texts), dtype=np.bool_, count=len(self._texts))

    def __call__(self, data: bytes) -> list[int]:
        """One number per byte: a hole begins and ends inside tokens, and the tokenisation makes no difference."""
        return [self._numbers[byte] for byte in data]


@dataclass(frozen=True, slots=True, eq=False)
class JsonHole:
    """State that all matchers of one hole share."""

    vocabulary: Vocabulary
    texts: Texts
    following: Flags
    """Flags of the texts that may begin the text after the hole (S18), shape (texts,)."""
    name: str
    span: Span


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

        The first `behind` bytes of each text are settled already.
        """
        quotes = Quotes().after(self.text)
        way = way_to_end(self.parser, self.frame.texts, quotes)
        needed = self._count(way or b"")
        if way is not None and needed + SLACK < tokens_left:
            return []
        closes = quotes == Quotes(inside=True) and way is not None and way.startswith(b'"')
        are_many = np.count_nonzero(texts) > MANY
        if closes and not behind and needed < tokens_left:
            texts = texts & ~self.frame.texts.plain  # plain texts, nearly all of them, do not delay the end
        # most texts extend the value that this way ends, or begin with its first one or two bytes
        ways = [] if way is None else [(way[said:], self._count(way[said:])) for said in (2, 1, 0)]
        found = []
        for index in np.flatnonzero(texts).tolist():
            rest = self.frame.vocabulary.texts[index][behind:]
            if closes and _is_plain(rest):
                ends = needed < tokens_left  # more letters bring the end no nearer
            elif tokens_left > 1 and way is None:
                ends = True  # nothing is known
            elif are_many and not (way or b"").startswith(rest):
                ends = False  # not worth so many searches
            else:
                more = next((count for rest_of_way, count in ways if self._leads(rest + rest_of_way)), None)
                if more is None:
                    other = way_to_end(self.parser, self.frame.texts, quotes, rest)
                    more = NEVER if other is None else self._count(other)
                ends = more < tokens_left
            found += [] if ends else [index]
        return found

    def _leads(self, data: bytes) -> bool:
        """True if the value is complete after these bytes."""
        said = [*self.frame.texts(data), self.frame.texts.eos_token_id]
        return self.parser.validate_tokens(said) == len(said)

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
        parser = self._fed(data)
        if parser is None:
            raise ValueError(f"{data!r} is not allowed after {self.text!r}")
        return replace(self, parser=parser, text=text, length=len(text)).noticed()

    def noticed(self) -> GrammarMatcher:
        """This matcher, ended if only the end is possible. llguidance may notice that only when it computes a mask."""
        return replace(self, ending="forced") if self.may_end and not self._fitting().any() else self

    def end(self, ending: Ending) -> GrammarMatcher:
        return replace(self, ending=ending)

    def forced(self) -> bytes:
        return b"" if self.ending is not None or self.may_end else self.parser.compute_ff_bytes()

    def longest_valid(self, data: bytes) -> int:
        return self.parser.validate_tokens(self.frame.texts(data))

    def _fed(self, data: bytes) -> LLMatcher | None:
        """The parser after these bytes; None if they do not fit."""
        parser = self.parser.deep_copy()
        return parser if parser.consume_tokens(self.frame.texts(data)) else None

    def _fitting(self) -> Flags:
        """Flags of the texts and the lacking bytes that may come next, shape (eos_token_id,).

        Raises ConstraintError if the parser is in error, because it then allows end-of-text.
        """
        bits = self.parser.compute_bitmask()
        if self.parser.is_error():
            raise refusal(self.parser.get_error(), self.frame.name, self.frame.span)
        count = self.frame.texts.eos_token_id
        return np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=count, bitorder="little").view(np.bool_)


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

    def _goes_on(self, said: list[int], byte: int) -> bool:
        return self.fits([*said, *self.spelling(bytes([byte]))])


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
        frame = JsonHole(self._vocabulary, texts, _starting(self._vocabulary, following), name, span)
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


def _is_plain(data: bytes) -> bool:
    """True if these are whole characters, none of them a quote or a backslash."""
    try:
        return not ESCAPES.intersection(data.decode())
    except UnicodeDecodeError:
        return False


def _starting(vocabulary: Vocabulary, following: bytes) -> Flags:
    """Flags of the texts that may begin `following`, shape (texts,); all are set if it is not known."""
    flags: Flags = np.full(len(vocabulary.texts), not following, dtype=np.bool_)
    if following:
        flags[[*vocabulary.within(following), *vocabulary.beginning_with(following)]] = True
    return flags
