"""Forms: what a server is told of a condition (S17), the request, and the cache keys of its answers."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from lmql_lite.cache.tokens.bytes import END, CacheKey, KnownToken
from lmql_lite.cache.tokens.draws import is_greedy
from lmql_lite.constraints.language import ANYTHING, Language
from lmql_lite.constraints.matcher import Engine
from lmql_lite.constraints.server_grammar import pushed
from lmql_lite.constraints.terms import And, Stop, Term
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.engine.segment import Lookahead
from lmql_lite.models.answer_form import ROOM, AnswerForm
from lmql_lite.models.base import Capabilities, CompletionRequest, JsonSchema
from lmql_lite.options import Sampling
from lmql_lite.program.ops import Hole

ALTERNATIVES = 5
"""Number of other tokens requested with each one, where the server reports them."""
TOKEN_BYTES = 4
"""Bytes of text that count as one token of a server, whose own tokenization is not known (S15)."""
SHARES = {"one": (8, 0.25), "several": (20, 0.75), "more": (20, 1.5)}
"""Tokens of a request to a server that bills answers to their end: at least, and for each prompt token, which another
request would bill again. For one hole, for several, and for holes that more may follow."""
MAX_TOKENS = 4096
"""Maximum tokens of such a request."""
LANGUAGES_KEPT = 256
FREE_SHARE = 0.9
"""Minimum share of printable ASCII that may begin a hole, for answers to be mostly valid without a grammar."""
PRINTABLE = range(0x20, 0x7F)

Way = Literal["masks", "grammar", "schema", "stops", "freely", "told", "scores", "later"]
"""Means by which a model meets the conditions of a hole.

`masks` for a model in this process. A server gets a `grammar`, a JSON `schema` or `stops`, or generates `freely` and
its text is checked. `told`: a sentence lists the allowed answers of a chat. `scores`: it scores given texts. `later`:
the values of the run decide.
"""

Rejected = frozenset[tuple[bytes, bool]]
"""Texts of a segment with a rejected value of the hole; True for texts of which only the beginning is given."""


@dataclass(frozen=True)
class Form:
    """Form of the question of one hole, from the beginning of its segment (S16).

    The request has `pushed` or `stops`; with neither the server writes freely, and past the segment if more follows.
    `language` is the server grammar for places where free text does not fit. `key` identifies conditions, texts and
    place of the segment, and `begin` is the number of bytes before it. `isolated`: only answers to this hole count
    (S7).
    """

    lookahead: Lookahead
    capabilities: Capabilities
    language: Language | None = None
    pushed: Language | JsonSchema | AnswerForm | None = None
    stops: tuple[str, ...] = ()
    key: bytes = b""
    begin: int = 0
    sampling: Sampling = Sampling()  # noqa: RUF009  a frozen value
    isolated: bool = False
    is_anew: bool = False
    """True if free text did not fit, so that only answers under the condition count."""
    most: int | None = None
    """Maximum number of tokens of a request; None if the hole alone limits them."""
    tells: bool = True
    """True if a sentence may list the allowed answers for the model of a chat."""
    is_bounded: bool = False
    """True if the condition may end the answer before the model does, without the server's notice."""
    undecided: int | None = None
    """Maximum number of bytes until the condition of a bounded answer leaves no choice."""

    @property
    def way(self) -> Way:
        if isinstance(self.pushed, AnswerForm):
            return "told" if self.pushed.is_in_prompt else "schema"
        if self.lookahead.schema is not None:
            return "schema" if self.pushed else "freely"
        return "grammar" if self.pushed else "stops" if self.stops else "freely"

    @property
    def goes_on(self) -> bool:
        """True if an answer may serve more than one hole."""
        return self.lookahead.goes_on or self.lookahead.holes > 1

    @property
    def draws(self) -> bool:
        return not is_greedy(self.sampling)

    @cached_property
    def held(self) -> CacheKey:
        """Key of the answers under the condition of the segment."""
        return self._key(self.key)

    @cached_property
    def reads(self) -> tuple[CacheKey, ...]:
        """Keys of the answers that count, best first."""
        return (self.held,) if self.is_anew else (self.held, self._free)

    @cached_property
    def writes(self) -> CacheKey:
        """Key of the answer to a request; one of `reads`."""
        return self.held if self.is_anew or self.pushed is not None else self._free

    @cached_property
    def _free(self) -> CacheKey:
        """Key of free text. A draw is a function of the whole request, so it counts for this segment only."""
        return self._key(self.key + b"freely" if self._is_alone or self.draws else b"")

    @property
    def _is_alone(self) -> bool:
        return self.isolated or self.sampling.penalises

    def _key(self, condition: bytes) -> CacheKey:
        return CacheKey.of(condition, self.sampling)

    @property
    def runs_on(self) -> bool:
        """True if the answer may go on past the hole."""
        return self.goes_on and not (self.pushed or self.stops or self._is_alone)

    @property
    def is_left(self) -> bool:
        """True if the run may close the answer's stream before its end."""
        return self.most is None and not (self.pushed or self.stops) and (self.runs_on or self.is_bounded)

    def length(self, left: int, most_prompt: int, known: int, filled: int) -> int:
        """Maximum tokens of a request, in a hole with at most `left` more tokens: a function of the query alone. The
        answer has `known` bytes before, and all holes before have `filled`.

        A server that bills answers to their end gets a number in proportion to its prompt, which another request would
        bill again, less what is filled of a loop, or as many as the answer has so far. A draw is never cut, as it
        cannot be continued, nor is an answer of a chat if the server could not continue it.
        """
        can = self.capabilities
        most = left if self.undecided is None else min(left, self.undecided + 1)  # a token has a byte or more
        if self.draws or not can.bills_to_the_end or (can.chat_only and not can.continues_turns):
            return most
        if not self.is_left:
            return left
        holes = "one" if not self.runs_on else "more" if self.lookahead.goes_on else "several"
        least, share = SHARES[holes]
        size = share * (most_prompt - filled) - filled if holes == "more" else share * most_prompt
        wanted = min(max(size / TOKEN_BYTES, least, known / TOKEN_BYTES), MAX_TOKENS)
        if self.undecided is not None:
            wanted = min(wanted, self.undecided / TOKEN_BYTES + 2)
        return int(wanted if self.runs_on else min(wanted, left))

    def request(self, most: int, text: bytes) -> CompletionRequest:
        """Request for at most `most` tokens after `text`."""
        pushed: Language | JsonSchema | None = None
        if isinstance(self.pushed, AnswerForm):
            form = self.form(text)
            pushed, most = form.schema if form else None, most + ROOM
        elif isinstance(self.pushed, Language):
            pushed = self.pushed.after(text[self.begin :].decode())
        elif not text[self.begin :]:  # a schema describes a whole value
            pushed = self.pushed
        return CompletionRequest(
            self.most or most,
            self.stops,
            pushed,
            self.sampling,
            min(ALTERNATIVES, self.capabilities.alternatives),
        )

    def form(self, text: bytes) -> AnswerForm | None:
        """Form of the answer after `text`; None if it has none."""
        if not isinstance(self.pushed, AnswerForm) or not text[self.begin :]:
            return self.pushed if isinstance(self.pushed, AnswerForm) else None
        rest = self.language and self.language.after(whole(text[self.begin :]))
        return AnswerForm.of(rest, is_in_prompt=self.pushed.is_in_prompt) if rest else None

    def ends(self, text: bytes) -> bool:
        """True if nothing may follow `text`, so that the server ends by itself."""
        if isinstance(self.pushed, Language):
            left = self.pushed.after(whole(text[self.begin :]))
            return left is not None and not left.rules[0].edges
        return text.endswith(tuple(stop.encode() for stop in self.stops))

    def allows(self, text: bytes, said: KnownToken) -> bool:
        """True if a server under the condition may generate this token after `text`; always True under a schema."""
        if said.key == self.held or not isinstance(self.pushed, Language):
            return True
        if self.pushed.rule_after(whole(text[self.begin :])) is None:
            return True  # the text has left the language, so the server writes freely
        rule = self.pushed.rule_after(whole(text[self.begin :] + said.data))
        return rule is not None and (rule.accepts or not said.ends)

    def under_condition(self) -> Form:
        """The same question under the condition, after free text did not fit (S22)."""
        pushed = self.pushed if isinstance(self.pushed, AnswerForm) else self.language or self.pushed
        return replace(self, pushed=pushed, isolated=True, is_anew=True, most=None)

    def told(self) -> Form | None:
        """The same question with a sentence that lists the allowed answers; None if it has one, or may not."""
        form = self.pushed
        if not isinstance(form, AnswerForm) or form.is_in_prompt or not self.tells:
            return None
        key = hashlib.blake2b(self.key + b"told", digest_size=16).digest()
        return replace(self, pushed=replace(form, is_in_prompt=True), key=key)

    def plain_token(self) -> Form:
        """Question for the most likely next token without conditions, and its alternatives, which the answer stores
        (S1)."""
        return Form(self.lookahead, self.capabilities, most=1)

    def beyond(self) -> Form:
        """The same question after the end of the server grammar but not of the hole: free text follows."""
        key = hashlib.blake2b(self.key + b"beyond", digest_size=16).digest()
        return replace(self, key=key, language=None, pushed=None, stops=())

    def without(self, text: bytes, rejected: Rejected) -> Form | None:
        """The same question for another value of the hole, which begins after `text`. Its server grammar excludes the
        rejected values. None if the segment has no server grammar, or no other value.
        """
        language = self.language or self.pushed
        if not isinstance(language, Language):
            return None
        rest = language.after(whole(text[self.begin :]))
        for value, is_begun in rejected:
            rest = rest and rest.without(whole(value), begun=is_begun)
        if rest is None or rest.is_empty:
            return None
        key = hashlib.blake2b(self.key + text + repr(sorted(rejected)).encode(), digest_size=16).digest()
        pushed: Language | AnswerForm = rest
        if isinstance(self.pushed, AnswerForm):
            pushed = self.pushed
            for value, _ in sorted(rejected):
                pushed = pushed.without(whole(value), rest)
        return replace(
            self, language=rest, pushed=pushed, stops=(), key=key, begin=len(text), isolated=True, is_anew=True
        )

    @property
    def following(self) -> bytes:
        """The known text after the last hole."""
        parts = self.lookahead.parts
        last = max(at for at, part in enumerate(parts) if not isinstance(part, bytes))
        return b"".join(part for part in parts[last + 1 :] if isinstance(part, bytes))

    def again(self) -> Form:
        """The same question for the next draw."""
        return replace(self, sampling=replace(self.sampling, index=self.sampling.index + 1))


def requested(lookahead: Lookahead, *, speculates: bool) -> Lookahead:
    """The part of a segment that one request asks for. A hole of JSON is asked for alone."""
    if lookahead.schema is not None:
        lookahead = replace(lookahead, parts=lookahead.parts[:1])
    return replace(lookahead, goes_on=lookahead.goes_on and speculates)


class Forms:
    """Forms in which a server is told the conditions of a segment, in the order in which they are tried (S17).

    Grammars are kept for all runs of a segment.
    """

    def __init__(self, engine: Engine, capabilities: Capabilities) -> None:
        """`capabilities` are those of the server."""
        self._engine = engine
        self._capabilities = capabilities
        self._languages: OrderedDict[tuple[Term | bytes, ...], Language | None] = OrderedDict()

    def form(self, op: Hole, lookahead: Lookahead, *, tells: bool = True) -> Form:
        """The first form of a segment that begins with `op`: allowed answers of a chat, a JSON Schema, stop strings, a
        grammar of as many holes as it can cover, or free text. `tells`: a sentence may list the allowed answers."""
        for found in (self._answers(lookahead, tells=tells), self._schema(lookahead)):
            if found is not None:
                return found
        is_last = not (lookahead.goes_on or lookahead.holes > 1)
        stops = self.stops(op, lookahead.parts[0]) if is_last else ()
        free = self._free(lookahead)
        language = free.language
        if stops:
            found = replace(free, stops=stops)
        elif language is None or language == ANYTHING or (free.lookahead.goes_on and is_free(language)):
            found = free
        else:
            found = replace(free, pushed=language)
        return self._bounded(found, found.lookahead.parts) if is_last else found

    def _answers(self, lookahead: Lookahead, *, tells: bool) -> Form | None:
        """Form of a hole of a chat that has a few answers, as a schema or as a sentence; None if it has none.

        Known answers in free text do not count, because their prompt was another one.
        """
        can, hole = self._capabilities, lookahead.parts[0]
        if not can.chat_only or can.takes_languages or lookahead.schema is not None:
            return None
        language = self._language((hole,))
        if language is None or language == ANYTHING or is_free(language) or not (can.takes_schemas or tells):
            return None
        form = AnswerForm.of(language, is_in_prompt=not can.takes_schemas)
        if form is None:
            return None
        parts = Lookahead((hole,), goes_on=True)
        return Form(parts, can, language, form, isolated=True, is_anew=True, tells=tells)

    def _schema(self, lookahead: Lookahead) -> Form | None:
        """Form of a hole of JSON."""
        if lookahead.schema is None:
            return None
        can = self._capabilities
        return Form(lookahead, can, pushed=JsonSchema(lookahead.schema) if can.takes_schemas else None)

    def _free(self, lookahead: Lookahead) -> Form:
        """Free text, with the grammar of as many holes as it can cover for places where that does not fit."""
        can = self._capabilities
        for some in lookahead.beginnings() if can.takes_languages else ():
            language = self._language(some.parts)
            if language is not None:
                return Form(some, can, language)
        return Form(lookahead, can)

    def alone(self, question: Form, op: Hole, term: Term | bytes) -> Form:
        """Question of one hole of a segment. The server gets the same conditions, so that it answers the same with and
        without a cache (law 1). If it writes freely, stop strings end the request with the hole.
        """
        stops = question.stops if question.pushed is not None else self.stops(op, term)
        return self._bounded(replace(question, isolated=True, stops=stops), (term,))

    def _bounded(self, question: Form, parts: tuple[Term | bytes, ...]) -> Form:
        """The same question with bounds on its answer, for a server that bills tokens that nobody reads."""
        ends_alone = question.pushed is not None or question.lookahead.schema is not None
        if ends_alone or not self._capabilities.bills_to_the_end:
            return question
        language = self._language(parts)
        if language == ANYTHING:
            return question
        return replace(question, is_bounded=True, undecided=language.undecided() if language else None)

    def stops(self, op: Hole, hole: Term | bytes) -> tuple[str, ...]:
        """Phrases that end a hole wherever they occur; () if the server does not take that many."""
        if op.may_reject:
            return ()
        parts = hole.terms if isinstance(hole, And) else (hole,)
        phrases = [part.phrase for part in parts if isinstance(part, Stop) and part.flags is None]
        return tuple(phrase.decode() for phrase in phrases) if 0 < len(phrases) <= self._capabilities.stops else ()

    def _language(self, parts: tuple[Term | bytes, ...]) -> Language | None:
        """Server grammar of a segment; None if it is too large, or a hole may end before a phrase that is not part of
        it."""
        if parts not in self._languages:
            automata = [part if isinstance(part, bytes) else self._engine.automaton(part) for part in parts]
            made = pushed(automata, self._capabilities.most_rules)
            self._languages[parts] = made.language if made and not made.language.is_empty else None
            if len(self._languages) > LANGUAGES_KEPT:
                self._languages.popitem(last=False)
        self._languages.move_to_end(parts)
        return self._languages[parts]


def is_free(language: Language) -> bool:
    """True if nearly any character may come first. Such text may run on without a grammar, so that one request also
    serves the text after it. If nothing follows, the grammar ends it in the right place.
    """
    edges = language.rules[0].edges
    begun = sum(any(low <= code <= high for low, high, _ in edges) for code in PRINTABLE)
    return begun >= FREE_SHARE * len(PRINTABLE)


def whole(text: bytes) -> str:
    """Text without an incomplete character at its end."""
    return text.decode("utf-8", "ignore")


def text_engine(*, by_server: bool) -> Engine:
    """Engine for text of unknown tokens: every byte is a token. For a server, characters are counted instead."""
    vocabulary = Vocabulary((*(bytes([byte]) for byte in range(END)), None), frozenset({END}))
    return Engine(vocabulary, token_characters=TOKEN_BYTES if by_server else None)


def tokens_for(size: int) -> int:
    """Number of tokens to request for `size` bytes, with a margin for tokens that are short or parts of a character."""
    tokens = -(-size // TOKEN_BYTES)
    return tokens + tokens // 4 + TOKEN_BYTES
