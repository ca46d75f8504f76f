"""Filling of a hole by a model in this process: the token of each place is chosen from scores under a mask."""

from __future__ import annotations

from collections.abc import Awaitable
from copy import copy
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from lmql_lite.cache.tokens.draws import NO_PENALTIES, Mask
from lmql_lite.cache.tokens.nodes import ScoreEntry
from lmql_lite.cache.tokens.scores import Miss
from lmql_lite.constraints.matcher import Engine, Matcher, matcher_after
from lmql_lite.constraints.terms import Term
from lmql_lite.engine.events import Choosable
from lmql_lite.engine.generate.hole_fill import NOTHING, Fill, Pick, fail_unfilled, matcher_of
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.path import Path
from lmql_lite.engine.scheduler import DraftPlace, Scheduler
from lmql_lite.engine.state import Piece, State, TokenChoice, data_of, read, without
from lmql_lite.errors import ConstraintError, ModelError
from lmql_lite.options import Sampling
from lmql_lite.program.ops import Hole

DRAWS_APART = 2**22
"""Distance between the indices of several draws at one place, which keeps them apart from those of other attempts."""
UNLIMITED = 2**31
"""More tokens than any value has."""


Place = tuple[int, bytes, bytes]


def place_of(pick: Pick) -> Place:
    """Identity of a place, equal in every run with or without a cache."""
    return pick.state.depth, pick.matcher.text, pick.held


class Way(NamedTuple):
    """A possible next token of a branch; `choice` is None if the hole ends at its token limit.

    For a decoder that weighs, `weight` is the logarithm of the probability that the token stands for, and `is_whole` is
    True if no other token was left out (S36).
    """

    pick: Pick
    choice: TokenChoice | None
    weight: float = 0.0
    is_whole: bool = True

    @property
    def score(self) -> float:
        """The part that it adds to the score of the branch."""
        return (self.choice.logprob or 0.0) if self.choice else 0.0


class LocalFill(Fill):
    """The filling of one hole.

    If Python rejects a value, argmax takes the best choice not yet tried, and sample draws again with the next index
    (S21). Ops that were executed are never undone.
    """

    def __init__(
        self,
        op: Hole,
        term: Term,
        path: Path,
        ledger: Ledger,
        scheduler: Scheduler,
        engine: Engine,
        sampling: Sampling,
        limit: int,
    ) -> None:
        super().__init__(op, path, ledger, sampling, limit)
        self._term = term
        self._scheduler = scheduler
        self._engine = engine
        self._may_reject = op.may_reject
        self._tried: list[Pick] = []
        """Places of all attempts, or of the current draw if values are drawn."""
        self._next: dict[int, TokenChoice | None] = {}
        """The best untried choice of each place in `_tried`, as far as it is known."""
        self._left: dict[Place, Mask] = {}
        """Tokens that may still lead to another value, at each place of the rejected draws."""
        self._exact: set[Place] = set()
        """Places where rejected draws are excluded: the first place where draws can differ, and the places that a
        single token reaches from there."""
        self._single: Place | None = None
        """The place of the current draw where only one token was left."""

    def fork(self, path: Path, ledger: Ledger) -> LocalFill:
        fork = copy(self)
        fork.path, fork.ledger = path, ledger
        fork._tried, fork._next, fork.made = list(self._tried), dict(self._next), list(self.made)
        fork._left = {place: left.copy() for place, left in self._left.items()}
        fork._exact = set(self._exact)
        return fork

    def open(self, state: State, matcher: Matcher) -> State:
        """The state at the beginning of the hole. In a segment, the token before it may contain its beginning (S14)."""
        state = state._replace(hole=self.op.name, matcher=matcher)
        if state.overhang is None:
            pass
        elif not self.op.continues_segment:
            state = self.path.resolve(state)
        elif matcher.ending is None:  # the surplus before a hole that can only be empty belongs to the text after it
            state = self.path.run_on(state, partial(self._begin, matcher))
        self.opened = state
        return state

    def _begin(self, matcher: Matcher, data: bytes, tokens: int) -> Matcher | None:
        """The matcher after `tokens` tokens generated before the hole; None if they cannot begin a value."""
        after, left = matcher_after(matcher, data, tokens), self.limit - tokens
        if after is None:
            return None
        fits = after.ending or after.may_end or (left > 0 and after.allowed(b"", left).any())
        return after if fits else None

    # One token ------------------------------------------------------------------------------------------------------

    def settle(self, state: State) -> State:
        """The state with all text on the path. Raises ModelError if the text is too long for the model."""
        most = self._scheduler.scorer.context_length
        may_be_long = not state.used and 4 * len(state.text) >= most  # a character has at most four bytes
        if may_be_long and self._least_tokens(state) >= most:
            raise self._too_long()
        return self.note(state, self.path.settle(state))

    def pick(self, state: State) -> Pick:
        state = self.settle(state)
        matcher, held = matcher_of(state), data_of(state.held)
        draft = self._scheduler.scorer.tokenizer.encode(held) if held else ()
        room = self._room(state) - len(draft)
        left = min(self.limit - state.used, room)
        if left > 0:
            return self._allowed(state, matcher, held, left, draft)
        if matcher.may_end and (room > 0 or state.used):
            return Pick(state, matcher, left, held)
        raise self._dead_end(state, matcher, held, room)

    async def choose(self, pick: Pick) -> TokenChoice | None:
        if pick.untried is NOTHING:
            return None
        choice = self._known(pick, pick.untried, self.sampling)
        if isinstance(choice, Miss):
            choice = self._known(pick, pick.untried, self.sampling, await self._asked(pick))
        assert not isinstance(choice, Miss), "scores that were just made are whole"
        return choice

    def _known(
        self, pick: Pick, mask: Mask, sampling: Sampling, entry: ScoreEntry | None = None
    ) -> TokenChoice | Miss | None:
        return self._scheduler.known(pick.state.node, mask, sampling, self.ledger, pick.penalties, entry)

    def _asked(self, pick: Pick) -> Awaitable[ScoreEntry]:
        place = DraftPlace((self.op.name, self.op.span), partial(self._fitting, pick))
        return self._scheduler.asked(pick.state.node, pick.draft, pick.untried, self.ledger, place)

    def _fitting(self, pick: Pick, draft: tuple[int, ...]) -> int:
        """Number of leading tokens of a draft after the held text that the condition allows and that keep the hole
        open. The scores after the others would not be read."""
        state, matcher = pick.state, pick.matcher
        for at, token in enumerate(draft):
            data = self._engine.vocabulary.tokens[token] or b""
            is_last = at + 1 >= self.limit - state.used
            try:
                after = matcher_after(matcher, data, 1) if data and not is_last else None
            except ConstraintError:  # a condition too large for text that the model may never choose
                return at
            if after is None or after.ending is not None:
                return at
            matcher = after
        return len(draft)

    def take(self, pick: Pick, choice: TokenChoice | None) -> State:
        state = pick.state
        if choice is None:
            if pick.untried is NOTHING:
                return state._replace(matcher=pick.matcher.end("bound"))
            room = self._room(state) - len(pick.draft)
            raise self._dead_end(state, pick.matcher, pick.held, room)
        if self._may_reject:
            pick = pick._replace(untried=pick.untried.copy())
            self._tried.append(pick)
        return self.note(state, self._take(pick, choice))

    def known(self, state: State) -> State | None:
        matcher = state.matcher
        if matcher is None or not state.used or state.pending or state.held or state.overhang or matcher.forced():
            return None  # text must be put on the path first
        left = min(self.limit - state.used, self._room(state))
        if left <= 0:
            return None
        pick = self._allowed(state, matcher, b"", left)
        choice = self._known(pick, pick.untried, self.sampling)
        return None if choice is None or isinstance(choice, Miss) else self.take(pick, choice)

    def _room(self, state: State) -> int:
        """Tokens that the model can read after the path."""
        return self._scheduler.scorer.context_length - state.depth

    def _allowed(self, state: State, matcher: Matcher, held: bytes, left: int, draft: tuple[int, ...] = ()) -> Pick:
        penalties = NO_PENALTIES
        if self.sampling.penalises:
            penalties = self.path.counts.penalties(state.history, self.sampling)
        pick = Pick(state, matcher, left, held, self._mask(matcher, state.held, left), penalties, draft)
        if not self._exact or self.sampling.truncates:
            return pick
        place = place_of(pick)
        if self._single not in (None, place):
            self._exact.add(place)
        self._single = None
        if place not in self._exact:
            return pick
        untried = pick.untried & self._left[place] if place in self._left else pick.untried
        if np.count_nonzero(untried) == 1:
            self._single = place
        return pick._replace(untried=untried)

    def _mask(self, matcher: Matcher, held: tuple[Piece, ...], left: int) -> Mask:
        """The tokens that may come next. A token within held text of this hole costs one of the `left` tokens."""
        data = data_of(held)
        mask = matcher.allowed(data, left)
        if any(piece.is_of(self.op.name) for piece in held):
            for token in np.flatnonzero(mask).tolist():
                spelled = self._engine.vocabulary.tokens[token]
                if spelled and data.startswith(spelled) and not self._may_go_on(matcher, held, len(spelled), left):
                    mask = mask.copy()
                    mask[token] = False
        return mask

    def _may_go_on(self, matcher: Matcher, held: tuple[Piece, ...], size: int, left: int) -> bool:
        """True if a value can still be reached after a token of `size` bytes of held text."""
        left -= held[0].is_of(self.op.name)
        held = without(held, size)
        return bool(self._mask(matcher, held, left).any()) if left > 0 else matcher.may_end and not held

    def _take(self, pick: Pick, choice: TokenChoice) -> State:
        state, matcher, token = pick.state, pick.matcher, choice.token
        if choice.is_close is not None:
            self.path.count_close_call(choice.is_close)
        if self._may_reject:
            self._cross_out(pick.untried, token)
        data = choice.data
        if not data:
            return state._replace(matcher=matcher.end("end-of-text"), score=state.score + (choice.logprob or 0.0))
        if len(data) <= len(pick.held):
            return self.path.take(state, token, choice.logprob)
        # a token that begins with held text and goes beyond it belongs to this hole (S15)
        after = matcher.advance(data[len(pick.held) :])
        if self._may_reject and not pick.held and _ends_at_once(after, matcher):
            self._cross_out_ends(pick.untried, matcher)
        scheduler, node, untried = self._scheduler, pick.state.node, pick.untried
        choosable = Choosable(scheduler.tree, node, self._engine, self.op, matcher, pick.held, untried, self._term)
        return self.path.choose(state, choice, self.op.name, after, choosable)

    def _cross_out(self, mask: Mask, token: int) -> None:
        """Removes a token from the mask; all end-of-text tokens count as one."""
        mask[self._engine.vocabulary.eos if token in self._scheduler.scorer.tokenizer.eos else token] = False

    def _cross_out_ends(self, mask: Mask, matcher: Matcher) -> None:
        """Removes all tokens that would end the value here, because they give the same value (S18)."""
        mask[self._ends(mask, matcher)] = False

    def _ends(self, mask: Mask, matcher: Matcher) -> Mask:
        """The tokens that would end the value here: end-of-text, and those of the mask that give it no more bytes."""
        vocabulary = self._engine.vocabulary
        ends = np.zeros(mask.size, np.bool_)
        ends[vocabulary.eos] = True
        for byte in np.unique(vocabulary.first_bytes[mask & (vocabulary.nodes > 0)]).tolist():
            if _ends_at_once(matcher.advance(bytes([byte])), matcher):
                ends |= vocabulary.first_bytes == byte
        return ends

    # Several branches -----------------------------------------------------------------------------------------------

    async def ways(self, pick: Pick, most: int) -> list[Way]:
        """Between one and `most` next tokens, best first, or in the order of draws without replacement. The first is
        the one that `choose` takes."""
        ways = list[Way]()
        if not self.add_known(pick, most, ways):
            try:
                entry = await self._asked(pick)
            except ModelError as error:
                fail_unfilled(self.op, error)
            self.add_known(pick, most, ways, entry)
        return ways

    def add_known(self, pick: Pick, most: int, ways: list[Way], entry: ScoreEntry | None = None) -> bool:
        """Completes `ways`, as far as the scores in the tree or the `entry` contain them; False if that is not all."""
        if pick.untried is NOTHING:
            ways.append(Way(pick, None))
            return True
        left = pick.untried.copy()
        for way in ways:
            if way.choice is not None:
                self._cross_out(left, way.choice.token)
        while len(ways) < most:
            sampling = self.sampling
            if ways and sampling.temperature > 0:  # each draw has its own noise
                sampling = replace(sampling, index=sampling.index + len(ways) * DRAWS_APART)
            choice = self._known(pick, left, sampling, entry)
            if isinstance(choice, Miss):
                return False
            if choice is None:
                break
            ways.append(Way(pick, choice))
            left = left.copy()
            self._cross_out(left, choice.token)
        if not ways:
            raise self._dead_end(pick.state, pick.matcher, pick.held, self._room(pick.state) - len(pick.draft))
        return True

    async def outcomes(self, pick: Pick, most: int) -> list[Way]:
        """At most `most` next tokens with their weights, an unbiased choice of all (S36). Tokens that end the value at
        once are one way, unless the following text may begin with them."""
        state = pick.state
        if pick.untried is NOTHING:
            return [Way(pick, None)]
        mask, draft, ends = pick.untried, pick.draft, np.zeros(pick.untried.size, np.bool_)
        if not pick.held:
            ends = mask & self._ends(mask, pick.matcher)
            for token in np.flatnonzero(ends).tolist() if self.op.following else ():
                data, following = self._engine.vocabulary.tokens[token], self.op.following
                ends[token] = not (data and (data.startswith(following) or following.startswith(data)))
        try:
            found = await self._scheduler.outcomes(state.node, draft, mask, ends, most, self.sampling.seed, self.ledger)
        except ModelError as error:
            fail_unfilled(self.op, error)
        if not found:
            raise self._dead_end(state, pick.matcher, pick.held, self._room(state) - len(draft))
        is_whole = np.count_nonzero(mask & ~ends) + bool(ends.any()) <= most
        return [Way(pick, choice, weight, bool(is_whole)) for choice, weight in found]

    # Another value --------------------------------------------------------------------------------------------------

    async def go_back(self) -> State | None:
        assert self.opened is not None, "a hole is opened first"
        if self.sampling.temperature > 0:
            if not self._exclude():
                return None
            self.sampling = replace(self.sampling, index=self.sampling.index + 1)
            return self.opened
        best: tuple[float, int, TokenChoice] | None = None
        for at, pick in enumerate(self._tried):
            if at not in self._next:
                try:
                    self._next[at] = await self.choose(pick._replace(draft=()))
                except ModelError as error:
                    fail_unfilled(self.op, error)
            choice = self._next[at]
            if choice is not None:
                score = pick.state.score + (choice.logprob or 0.0)
                if best is None or score > best[0]:
                    best = (score, at, choice)
        if best is None:
            return None
        _, at, choice = best
        pick = self._tried[at]
        del self._next[at]
        return self.note(pick.state, self._take(pick, choice))

    def _exclude(self) -> bool:
        """Excludes the value that was drawn and rejected; False if no other value is left.

        Tokens are excluded at the first place where draws can differ, and only after all their continuations were
        rejected, so that the others keep their probabilities (S21). If one token is left there, draws first differ at
        the next place. Places where top_k, top_p or min_p truncate exclude nothing, since an excluded token would let
        in another one.
        """
        drawn, self._tried = self._tried, []
        self._single = None
        if not self._exact:
            self._exact.update([place_of(each) for each in drawn if each.untried.any()][:1])
        for pick in reversed(drawn):
            left = self._left.setdefault(place_of(pick), pick.untried.copy())
            left &= pick.untried
            if left.any():
                return True
        return False

    # Errors ---------------------------------------------------------------------------------------------------------

    def _dead_end(self, state: State, matcher: Matcher, held: bytes, room: int) -> ConstraintError | ModelError:
        if room <= 0 or matcher.allowed(held, UNLIMITED).any():
            if room >= self.limit - state.used:
                return self.incomplete(matcher, "raise max_tokens, or limit lengths in the type (max_length)")
            return self._too_long()
        return ConstraintError(
            f"[{self.op.name}] cannot go on after {matcher.text.decode('utf-8', 'replace')!r}: no token of "
            f"{self._scheduler.scorer.name} meets its condition",
            span=self.op.span,
        )

    def _least_tokens(self, state: State) -> int:
        """Lower bound of the tokens of the text before the hole, found without encoding it.

        White space is not counted, because a template may strip it, and neither is text that the hole itself forces.
        """
        if any(piece.hole == self.op.name for piece in state.pending):
            return 0
        black = sum(map(len, read(state.pending).split()))
        return -(-black // self._engine.vocabulary.longest)

    def _too_long(self) -> ModelError:
        model = self._scheduler.scorer
        return ModelError(
            f"[{self.op.name}] exceeds the context of {model.name}, which reads at most {model.context_length} tokens",
            span=self.op.span,
            hint="shorten the prompt, lower max_tokens or use a model with a longer context",
        )


def _ends_at_once(after: Matcher, before: Matcher) -> bool:
    """True if the value ended before the added bytes."""
    return after.ending is not None and len(after.value) == len(before.text)
