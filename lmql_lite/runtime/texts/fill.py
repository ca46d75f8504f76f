"""One hole filled by a server, token by token of its own: it speaks freely, and everything is checked as it arrives.

Where a token does not fit, what else the server might have said is tried, best first; its answers to a condition are
remembered as such (S1, S22).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lmql_lite.cache.texts import TURNS, Alternatives, Said
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.errors import BrokenOff, ConstraintError, ModelError
from lmql_lite.program.ops import Hole
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.state import State, Step, noted, steps_since
from lmql_lite.runtime.texts.frontier import Asking, Reader, TextFrontier
from lmql_lite.runtime.texts.path import TextPath
from lmql_lite.runtime.texts.wishes import Wishes

SHOWN = 60
"""Characters of an unfinished value that an error quotes."""
PRINTABLE = range(0x20, 0x7F)
BANNED = 16
"""So many tokens at one place are ruled out one by one before it is given up."""


@dataclass(frozen=True, slots=True)
class Crossroads:
    """A place where the server told what else it might have said: `untried` of it, best first."""

    state: State
    matcher: Matcher
    untried: tuple[tuple[bytes, float], ...]


class TextFill:
    """The filling of one hole. `state.matcher` is where it stands; it is done when that has an ending."""

    def __init__(
        self,
        op: Hole,
        path: TextPath,
        frontier: TextFrontier,
        reader: Reader,
        ledger: Ledger,
        wishes: Wishes,
        max_tokens: int,
    ) -> None:
        self._op = op
        self._path = path
        self._frontier = frontier
        self._reader = reader
        self._ledger = ledger
        self._wishes = wishes
        self._asking = wishes.asking()
        self._max_tokens = max_tokens
        self._opened: State | None = None
        self.fell_short = False
        """The hole was closed where the language of its segment would have gone on."""
        self._crossroads: list[Crossroads] = []
        self._made: list[Step] = []
        self._insists = False

    def open(self, state: State, matcher: Matcher) -> State:
        """The state in which the hole is filled."""
        self._opened = self._path.answer(state)._replace(hole=self._op.name, matcher=matcher)
        return self._opened

    async def step(self, state: State, matcher: Matcher) -> State:
        """The state after the next token, or after a stretch of forced text."""
        forced = matcher.forced()
        told = self._told(state, matcher, forced) if forced else b""
        if told:
            state = self._path.force(state, told, self._op.name)
            return state._replace(matcher=matcher.advance(told, tokens=0))
        before, state = state, self._path.settle(state)
        self._made += steps_since(before, state)
        left = self._max_tokens - state.used
        if left <= 0:
            if matcher.may_end:
                return self._closed_short(state, matcher)
            raise self._incomplete(matcher)
        said = await self._read(state, self._asking, left)
        if said.ends and self._wishes.segment.pushed and self._wishes.segment.ends(self._frontier.said(state.node)):
            self._wishes = self._wishes.beyond()  # its rules end here, and not the hole: a tool was called
            self._asking = self._wishes.asking()
            return state
        is_fit = fits(said.data, matcher)
        if not is_fit and self._wishes.segment.pushed is not None:
            # it was known from elsewhere, where the server spoke freely: what it says when held to this is what counts
            said = await self._read(state, self._wishes.anew(()), left)
            is_fit = fits(said.data, matcher)
        if not is_fit:
            if matcher.may_end and is_full(matcher):
                return self._closed_short(state, matcher)
            if forced:  # it does not begin as it has to: then that is said for it
                self._insists = True
                return state
            said = await self._instead(state, matcher, said, left)
        elif self._op.may_reject:
            self._crossroads.append(Crossroads(state, matcher, self._heard(state, matcher, said)))
        return self._take(state, matcher, said)

    def _told(self, state: State, matcher: Matcher, forced: bytes) -> bytes:
        """How much of what must come next is said for the server: it is better asked than told where tokens may differ.

        Nothing where it is held to it anyway, nor where an answer begins that it would have to be asked to go on with
        (S29); and not a space at the end, which models say with the word after it.
        """
        if self._insists or matcher.advance(forced, tokens=0).ending is not None:
            return forced
        if not matcher.text:
            begins = self._frontier.texts.tree.path(state.node)[-1:] == (TURNS["assistant"],)
            is_asked = begins and not self._frontier.endpoint.continues_turns and bool(forced.strip())
            if is_asked or self._wishes.segment.pushed is not None:
                return b""
            if begins:
                return forced
        return forced.rstrip(b" ")

    def close(self, state: State, matcher: Matcher) -> State:
        """The hole has its value; what other attempts said is put on record as rejected."""
        assert self._opened is not None, "a hole is opened first"
        rejected = self.give_up(state)
        return noted(self._path.close(self._opened, state, matcher), rejected)

    def give_up(self, state: State) -> list[Step]:
        """What was said and is not on the way to `state` is put on record as rejected."""
        assert self._opened is not None, "a hole is opened first"
        kept = {id(step) for step in steps_since(self._opened, state)}
        return self._ledger.reject(step for step in self._made if id(step) not in kept)

    def fork(self, writer: object) -> TextFill:
        raise AssertionError("hypotheses of a server never part ways")

    async def go_back(self) -> State | None:
        """A state from which the hole is filled otherwise; None where every way is gone that the server told of."""
        assert self._opened is not None, "a hole is opened first"
        if self._wishes.draws:
            self._wishes = self._wishes.again()
            self._asking = self._wishes.asking()
            return self._opened
        scored = [
            (crossroads.state.score + crossroads.untried[0][1], at)
            for at, crossroads in enumerate(self._crossroads)
            if crossroads.untried
        ]
        if not scored:
            return None
        _, at = max(scored, key=lambda found: found[0])
        crossroads = self._crossroads[at]
        (data, logprob), *untried = crossroads.untried
        self._crossroads[at] = replace(crossroads, untried=tuple(untried))
        return self._take(crossroads.state, crossroads.matcher, Said(data, logprob, self._ledger.run))

    def _closed_short(self, state: State, matcher: Matcher) -> State:
        self.fell_short = True
        return state._replace(matcher=matcher.end("bound"))

    def _take(self, state: State, matcher: Matcher, said: Said) -> State:
        if said.ends:
            return state._replace(matcher=matcher.end("end-of-text"))
        self._insists = False
        after = self._path.choose(state, said, self._op.name, matcher.advance(said.data))
        if self._op.may_reject:
            self._made += steps_since(state, after)
        return after

    async def _others(self, state: State, matcher: Matcher, said: Said, left: int) -> Alternatives:
        """What the server might have said here instead, as far as it fits.

        Of a draw that was not heard but read it is not known. The scores are those of the place, however it was drawn
        from: the plain answer there is kept with them, or is asked for, one token.
        """
        texts, wishes = self._frontier.texts, self._wishes
        _, others = texts.beside(state.node, said)
        if others is None and wishes.draws and not said.inside and self._frontier.endpoint.alternatives:
            plain = await self._read(state, wishes.one_token(), left)
            others = ((plain.data, plain.logprob or 0.0), *(texts.beside(state.node, plain)[1] or ()))
        return fitting(others or (), said, matcher)

    def _heard(self, state: State, matcher: Matcher, said: Said) -> Alternatives:
        """The same, as far as it is known."""
        return fitting(self._frontier.texts.beside(state.node, said)[1] or (), said, matcher)

    async def _instead(self, state: State, matcher: Matcher, said: Said, left: int) -> Said:
        """What may stand where what was said does not fit; kept as the server's answer under this condition.

        The best of what else it might have said; or as much of the token as fits; or, where that is nothing, what it
        says when it is asked otherwise: at this place, if it never was; under the conditions; without the tokens that
        did not fit (S22).
        """
        others = await self._others(state, matcher, said, left)
        if others:
            data, logprob = others[0]
            return self._decided(state, Said(data, logprob, self._ledger.run))
        begins = whole_characters(said.data[: matcher.longest_valid(said.data)])
        if begins and matcher.longest_valid(begins) == len(begins):
            return self._decided(state, replace(said, data=begins))
        banned: list[int] = []
        while len(banned) < BANNED:
            token, _ = self._frontier.texts.beside(state.node, said)
            if token is not None and token not in banned and self._frontier.endpoint.takes_bans:
                banned.append(token)
            elif banned or not (said.inside or self._wishes.segment.language):
                break
            said = await self._read(state, self._wishes.anew(tuple(banned)), left)
            if fits(said.data, matcher):
                return self._decided(state, said)
            others = self._heard(state, matcher, said)
            if others:
                return self._decided(state, Said(*others[0], self._ledger.run))
            if not banned:
                break
        raise self._stuck(matcher, said)

    def _decided(self, state: State, said: Said) -> Said:
        manner = self._wishes.held
        self._frontier.texts.write(state.node, said.data, said.logprob, manner, said.run)
        return said

    async def _read(self, state: State, asking: Asking, left: int) -> Said:
        try:
            return await self._frontier.read(state.node, asking, left, self._reader, state.history)
        except ModelError as error:
            sentence = f"[{self._op.name}] could not be filled: {error.message}"
            kind = BrokenOff if isinstance(error, BrokenOff) else ModelError
            raise kind(sentence, span=self._op.span, hint=error.hint) from error

    def _incomplete(self, matcher: Matcher) -> ConstraintError:
        return ConstraintError(
            f"[{self._op.name}] is not complete within the {self._max_tokens} tokens that it may have: "
            f"{_shown(matcher)!r}",
            span=self._op.span,
            hint="raise max_tokens, or bound what may be long",
        )

    def _stuck(self, matcher: Matcher, said: Said) -> ConstraintError | ModelError:
        """The model's fault where it can be held to no condition at all, and is only checked."""
        name, endpoint = self._frontier.completer.name, self._frontier.endpoint
        able = endpoint.takes_languages or endpoint.takes_bans or endpoint.alternatives
        says = "ends the text" if said.ends else f"says {said.data.decode('utf-8', 'replace')!r}"
        return (ConstraintError if able else ModelError)(
            f"[{self._op.name}] cannot go on after {_shown(matcher)!r}: there {name} {says}, which its condition "
            "forbids, and the server tells nothing else that would fit",
            span=self._op.span,
            hint="a server that takes grammars, or tells log-probabilities, can be held to any condition",
        )


def fits(data: bytes, matcher: Matcher) -> bool:
    """Whether a token of the server, b"" for end-of-text, may stand."""
    return matcher.longest_valid(data) == len(data) if data else matcher.may_end


def fitting(others: Alternatives, said: Said, matcher: Matcher) -> Alternatives:
    """What of that fits and was not said."""
    return tuple((data, logprob) for data, logprob in others if data and data != said.data and fits(data, matcher))


def is_full(matcher: Matcher) -> bool:
    """Whether next to nothing may be added to the value: only what begins a phrase before which it is cut (S13)."""
    return sum(matcher.longest_valid(bytes([byte])) for byte in PRINTABLE) <= len(PRINTABLE) // 10


def whole_characters(data: bytes) -> bytes:
    """Without the beginning of a character that is not complete."""
    return data.decode("utf-8", "ignore").encode()


def _shown(matcher: Matcher) -> str:
    said = matcher.text.decode("utf-8", "replace")
    return said if len(said) <= SHOWN else f"..{said[-SHOWN:]}"
