"""Filling of a hole by a server: each token is checked as it arrives.

If a token does not fit, the server's alternatives are tried, best first. Answers under a condition are stored under
that condition (S1, S22).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lmql_lite.cache.tokens.bytes import TURNS, Alternatives, KnownToken
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.constraints.terms import starts_character
from lmql_lite.engine.forms import TOKEN_BYTES, Form, Rejected
from lmql_lite.engine.generate.byte_path import BytePath
from lmql_lite.engine.generate.healing import incomplete
from lmql_lite.engine.generate.hole_fill import Fill, Pick, matcher_of, shown
from lmql_lite.engine.generate.remote_scheduler import Reader, RemoteScheduler
from lmql_lite.engine.state import NO_ID, State, TokenChoice, data_of
from lmql_lite.errors import ConstraintError, ModelError
from lmql_lite.program.ops import Hole

PRINTABLE = range(0x20, 0x7F)


@dataclass(frozen=True, slots=True)
class OpenAlternatives:
    """A place where the server reported alternatives: `untried` are those not taken yet, best first."""

    state: State
    matcher: Matcher
    untried: Alternatives
    said: KnownToken
    left: int


class RemoteFill(Fill):
    """The filling of one hole."""

    def __init__(
        self,
        op: Hole,
        path: BytePath,
        reader: Reader,
        scheduler: RemoteScheduler,
        question: Form,
        limit: int,
        most_requests: int,
    ) -> None:
        super().__init__(op, path, reader.ledger, question.sampling, limit)
        reader.begin(op, most_requests)
        self._frontier = scheduler
        self._reader = reader
        self._question = question
        self.fell_short = False
        """True if the hole was closed before the end of the language of its segment."""
        self.is_held = False
        """True if free text did not fit, so that the server gets its grammar to the end of the segment."""
        self._alternatives: list[OpenAlternatives] = []
        self._asked = 0
        """Number of the first places whose alternatives need no question to the server any more."""
        self._first = question
        self._reached: Matcher | None = None
        self._rejected: Rejected = frozenset()
        self._ends_here = False
        """True if the hole ends at the latest place."""
        self._insists = False
        """True if required text is inserted because the server did not write it."""

    def open(self, state: State, matcher: Matcher) -> State:
        self.opened = self.path.answer(state)._replace(hole=self.op.name, matcher=matcher)
        return self.opened

    def forced(self, state: State) -> bytes:
        """The part of the required text to insert; the server writes the rest, whose tokens may differ.

        Nothing is inserted if the request enforces the text, or at the beginning of an answer that the server cannot
        continue (S29). A space at the end is not inserted, because models write it with the next word.
        """
        matcher = matcher_of(state)
        forced = matcher.forced()
        if not forced or self._insists or matcher.advance(forced, tokens=0).ending is not None:
            return forced
        if not matcher.text:
            begins = self._frontier.byte_tree.tree.path(state.node)[-1:] == (TURNS["assistant"],)
            is_asked = begins and not self._frontier.capabilities.continues_turns and bool(forced.strip())
            if is_asked or self._question.pushed is not None:
                return b""
            if begins:
                return forced
        return forced.rstrip(b" ")

    def pick(self, state: State) -> Pick:
        state = self._counted(self.note(state, self.path.settle(state)))
        matcher = matcher_of(state)
        left = max(self.limit * TOKEN_BYTES - len(matcher.text), incomplete(matcher.text))
        if not left and not matcher.may_end:
            raise self.incomplete(matcher, "raise max_tokens, or limit the length in the condition")
        return Pick(state, matcher, left)

    async def choose(self, pick: Pick) -> TokenChoice | None:
        self._ends_here = not pick.left
        said = None if self._ends_here else await self._said(pick.state, pick.matcher, pick.left)
        return None if said is None else self._choice(pick.state, said)

    def _choice(self, state: State, said: KnownToken) -> TokenChoice:
        node = self._frontier.byte_tree.walk(state.node, said.data)
        return TokenChoice(NO_ID, said.data, said.logprob, self.ledger.source(state.node, said.run), node=node)

    async def _said(self, state: State, matcher: Matcher, left: int) -> KnownToken | None:
        """The next token, checked, with at most `left` bytes. None if no token is taken: the hole ends, or the server
        is asked again."""
        question = self._question
        first = await self._frontier.read(state.node, question, left, self._reader, state.history)
        self.thinks = first is None
        if first is None:
            return None
        said = first.within(within(first.data, left))
        is_fit = fits(said.data, matcher)
        is_allowed = question.pushed is None or (is_fit and question.allows(self._text_to(state), said))
        if (said.ends or (is_fit and not is_allowed)) and question.pushed and question.ends(self._text_to(state)):
            self._question = question.beyond()  # the grammar ends here, but the hole goes on after a tool call
            return None
        if said.key == question.held:
            self._hold()
        if not is_allowed:
            # the token is from free text; only answers under the condition count
            said = await self._read(state, question.under_condition(), left)
            is_fit = fits(said.data, matcher)
        told = None if is_fit else question.told()
        if told is not None:
            self._question = told
            return None
        if is_fit:
            if self.op.may_reject and not self._question.is_anew:
                is_kept = question.pushed is None or said.key.question is None  # under a grammar there are none
                others = self._known(state, matcher, said, left) if is_kept else ()
                self._alternatives.append(OpenAlternatives(state, matcher, others, said, left))
            return said
        if matcher.may_end and is_full(matcher):
            self._ends_here = True
            return None
        if matcher.forced():  # the server's text lacks the required prefix, so the prefix is inserted
            self._insists = True
            return None
        return await self._instead(state, matcher, said, left)

    def take(self, pick: Pick, choice: TokenChoice | None) -> State:
        state, matcher = pick.state, pick.matcher
        if choice is None and not self._ends_here:
            return state
        if choice is None or not choice.data:
            self.fell_short = True
            self._reached = matcher.end("bound" if choice is None else "end-of-text")
            return state._replace(matcher=self._reached)
        self._insists = False
        self._reached = matcher.advance(choice.data, tokens=0)
        after = self._counted(self.path.choose(state, choice, self.op.name, self._reached))
        return self.note(state, after) if self.op.may_reject else after

    def _counted(self, state: State) -> State:
        return state._replace(used=-(-len(matcher_of(state).text) // TOKEN_BYTES))

    async def go_back(self) -> State | None:
        """A state for another draw, else for the best untried alternative of all places, else for an answer under the
        grammar without the rejected values."""
        assert self.opened is not None and self._reached is not None, "a hole is opened first"
        if self._question.draws:
            self._question = self._question.again()
            return self.opened
        reached = self._reached
        is_begun = reached.ending in (None, "stop")
        text = reached.text if is_begun else reached.value + self._first.following
        self._rejected |= {(text, is_begun)}
        await self._ask_for_alternatives()
        scored = [
            (place.state.score + place.untried[0][1], at)
            for at, place in enumerate(self._alternatives)
            if place.untried
        ]
        if scored:
            _, at = max(scored, key=lambda found: found[0])
            place = self._alternatives[at]
            (data, logprob), *untried = place.untried
            self._reader.depart(self._question)
            self._alternatives[at] = replace(place, untried=tuple(untried))
            said = self._choice(place.state, KnownToken(data, logprob, self.ledger.run))
            return self.take(Pick(place.state, place.matcher, 0), said)
        other = self._first.without(self._text_to(self.opened) + data_of(self.opened.pending), self._rejected)
        if other is None:
            return None
        self._question = other
        return self.opened

    async def _ask_for_alternatives(self) -> None:
        """Asks for alternatives at the places of the first value, one token each, as answers under a grammar have
        none."""
        while self._asked < len(self._alternatives):
            place = self._alternatives[self._asked]
            if not (self._frontier.capabilities.alternatives and self._question.pushed):
                return
            if not place.untried and place.said.data:
                plain = await self._read(place.state, self._question.plain_token(), place.left)
                others = ((plain.data, plain.logprob or 0.0), *(self._details(place.state, plain) or ()))
                untried = fitting(others, place.said, place.matcher, place.left)
                self._alternatives[self._asked] = replace(place, untried=untried)
            self._asked += 1

    def _details(self, state: State, said: KnownToken) -> Alternatives | None:
        return self._frontier.byte_tree.details(state.node, said)[1]

    async def _others(self, state: State, matcher: Matcher, said: KnownToken, left: int) -> Alternatives:
        """Alternatives of the server at this place that fit.

        Stored draws have none. Their scores do not depend on how the token was drawn, so those of the plain answer at
        this place are used. If it is not stored, one token is asked for.
        """
        texts, question = self._frontier.byte_tree, self._question
        _, others = texts.details(state.node, said)
        if others is None and question.draws and not said.inside and self._frontier.capabilities.alternatives:
            plain = await self._read(state, question.plain_token(), left)
            others = ((plain.data, plain.logprob or 0.0), *(texts.details(state.node, plain)[1] or ()))
        return fitting(others or (), said, matcher, left)

    def _known(self, state: State, matcher: Matcher, said: KnownToken, left: int) -> Alternatives:
        """Alternatives that fit, as far as the tree has them."""
        return fitting(self._frontier.byte_tree.details(state.node, said)[1] or (), said, matcher, left)

    async def _instead(self, state: State, matcher: Matcher, said: KnownToken, left: int) -> KnownToken:
        """The token that replaces one that does not fit, stored as the server's answer under the condition.

        It is the best alternative, or the part of the token that fits, or the answer to another question: at this
        place, if there was none; under the condition (S22).
        """
        others = await self._others(state, matcher, said, left)
        if others:
            data, logprob = others[0]
            return self._decided(state, KnownToken(data, logprob, self.ledger.run))
        begins = whole_characters(said.data[: matcher.longest_valid(said.data)])
        if begins and matcher.longest_valid(begins) == len(begins):
            return self._decided(state, said.within(begins))
        if said.inside or self._question.language:
            said = await self._read(state, self._question.under_condition(), left)
            if fits(said.data, matcher):
                return self._decided(state, said)
            others = self._known(state, matcher, said, left)
            if others:
                return self._decided(state, KnownToken(*others[0], self.ledger.run))
        raise self._stuck(matcher, said)

    def _decided(self, state: State, said: KnownToken) -> KnownToken:
        key = self._question.held
        self._reader.depart(self._question)
        self._frontier.byte_tree.write(state.node, said.data, said.logprob, key, said.run)
        self._hold()
        return said

    def _hold(self) -> None:
        """Sends the grammar from here on, because free text did not fit, now or in an earlier run. Known parts of the
        free answer no longer count."""
        if self._question.language is not None and self._question.pushed is None:
            self._question, self.is_held = self._question.under_condition(), True

    async def _read(self, state: State, question: Form, left: int) -> KnownToken:
        said = None
        while said is None:
            said = await self._frontier.read(state.node, question, left, self._reader, state.history)
        return said.within(within(said.data, left))

    def _text_to(self, state: State) -> bytes:
        return self._frontier.text_to(state.node)

    def _stuck(self, matcher: Matcher, said: KnownToken) -> ConstraintError | ModelError:
        """The error of a dead end: a ModelError if the server can enforce no condition at all, and is only checked."""
        name, capabilities = self._frontier.completer.name, self._frontier.capabilities
        able = capabilities.takes_languages or capabilities.alternatives
        says = "ends the text" if said.ends else f"writes {said.data.decode('utf-8', 'replace')!r}"
        return (ConstraintError if able else ModelError)(
            f"[{self.op.name}] cannot go on after {shown(matcher)!r}: there {name} {says}, which its condition "
            "forbids, and the server reports no alternative that would fit",
            span=self.op.span,
            hint="a server that accepts grammars, or reports log-probabilities, can meet any condition",
        )


def fits(data: bytes, matcher: Matcher) -> bool:
    """True if a token of the server, b"" for end-of-text, meets the condition."""
    return matcher.longest_valid(data) == len(data) if data else matcher.may_end


def fitting(others: Alternatives, said: KnownToken, matcher: Matcher, left: int) -> Alternatives:
    """Alternatives that fit, cut to `left` bytes, without the generated token."""
    cut = ((within(data, left), logprob) for data, logprob in others)
    return tuple((data, logprob) for data, logprob in cut if data and data != said.data and fits(data, matcher))


def within(data: bytes, left: int) -> bytes:
    """The first whole characters of a token that fill `left` bytes; all of a shorter token."""
    while left < len(data) and not starts_character(data[left]):
        left += 1
    return data[:left]


def is_full(matcher: Matcher) -> bool:
    """True if almost nothing may be added: only the beginning of a phrase before which the value is cut (S13)."""
    return sum(matcher.longest_valid(bytes([byte])) for byte in PRINTABLE) <= len(PRINTABLE) // 10


def whole_characters(data: bytes) -> bytes:
    """The data without an incomplete character at its end."""
    return data.decode("utf-8", "ignore").encode()
