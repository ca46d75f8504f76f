"""A model in this process: the token of each pick is chosen from scores under a mask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
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
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.engine.events import Choosable
from lmql_lite.engine.fill import CUT, Fill, Pick, Tried, fail_unfilled, matcher_of, quoted
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.path import Path
from lmql_lite.engine.record import Record, Step, penalties
from lmql_lite.engine.scheduler import DraftPlace, Scheduler
from lmql_lite.engine.segment import Lookahead
from lmql_lite.engine.settings import Settings
from lmql_lite.engine.state import Piece, State, TokenChoice, data_of, read, without
from lmql_lite.engine.turns import TemplatePath
from lmql_lite.errors import ConstraintError, InputError, ModelError
from lmql_lite.media import Media
from lmql_lite.models.base import KVScope, Scorer
from lmql_lite.models.chat import chat_of
from lmql_lite.options import Sampling
from lmql_lite.program.ops import Hole

DRAWS_APART = 2**22
"""Distance between the indices of several draws at one place, which keeps them apart from those of other attempts."""
UNLIMITED = 2**31
"""More tokens than any value has."""


class LocalModel:
    """A model in this process, with everything that its runs share."""

    def __init__(self, scorer: Scorer) -> None:
        self.name = scorer.name
        self.fingerprint = scorer.fingerprint
        self.vocabulary = scorer.tokenizer.vocabulary
        self.vocabulary_size = len(self.vocabulary)
        self.scorer = scorer
        self.blocks = scorer if scorer.reuses_blocks else None
        """The scorer if it reuses blocks, else None."""
        self.chat = chat_of(scorer.tokenizer)
        self.engine = Engine(Vocabulary(scorer.tokenizer.vocabulary, scorer.tokenizer.eos))
        self.notices = scorer.notices
        self.scheduler = partial(Scheduler, scorer)
        """Makes the scheduler of a tree."""
        self.generator = partial(LocalGenerator, self)
        """Makes the generator of a run."""


class LocalGenerator:
    """A model in this process as one branch of a run asks it."""

    spells_freely = False

    def __init__(
        self, model: LocalModel, scheduler: Scheduler, ledger: Ledger, settings: Settings, sampling: Sampling
    ) -> None:
        """Raises InputError for an option of servers."""
        if sampling.effort is not None:
            sentence = f"effort is an option of models on servers, but {model.name} runs in this process"
            raise InputError(sentence, hint="leave effort= out")
        mark = model.blocks.mark if model.blocks is not None else None
        self.record = Record(ledger, keeps_answers=settings.has_beams)
        shared = scheduler.tree, model.scorer.tokenizer, model.engine.vocabulary, self.record, mark
        self.path = Path(*shared) if model.chat is None else TemplatePath(model.chat, *shared)
        self.model = model.name
        self.engine = model.engine
        self.scheduler = scheduler
        self.tree = scheduler.tree
        self._settings = settings

    def fork(self, number: int) -> LocalGenerator:
        """A copy for the branch of this number."""
        fork = copy(self)
        fork.record = self.record.fork(number)
        fork.path = self.path.fork(fork.record)
        return fork

    def show(self, state: State, item: Media) -> State:
        return self.path.show(state, item, self.scheduler.scorer.show(item))

    def fill(
        self, op: Hole, term: Term, state: State, sampling: Sampling, limit: int, lookahead: Callable[[], Lookahead]
    ) -> LocalFill:
        if self._settings.is_isolated:
            self._forget()
        return LocalFill(op, term, self, sampling, limit)

    def _forget(self) -> None:
        """Forgets what is known, as isolated runs do before each question (S7)."""
        self.tree.drop_scores()
        if not self._settings.use_caches:  # the model computes its prompt anew as well
            self.record.scope = KVScope()

    def count(self, text: str, held: bytes = b"") -> int:
        """Number of tokens of a text; those within `held` text before it do not count (S15)."""
        end = own = 0
        for token in self.scheduler.scorer.tokenizer.encode(held + text.encode()):
            end += len(self.engine.vocabulary.tokens[token] or b"")
            own += end > len(held)
        return own

    async def weigh(self, state: State, options: Sequence[str]) -> list[list[TokenChoice]]:
        """The tokens of each option, as the next text."""
        if self._settings.is_isolated:
            self._forget()
        scorer, vocabulary = self.scheduler.scorer, self.engine.vocabulary.tokens
        ids = [scorer.tokenizer.encode(data_of(state.held) + option.encode()) for option in options]
        longest = max(range(len(ids)), key=lambda at: len(ids[at]))
        length = state.depth + len(ids[longest])
        if length > scorer.context_length:
            raise ModelError(
                f"the option {quoted(options[longest])} is too long: with it the text has {length} tokens, but "
                f"{scorer.name} reads at most {scorer.context_length}",
                hint="shorten the prompt or the option, or use a model with a longer context",
            )
        weighed = []
        for answers in await self.scheduler.logprobs(state.node, ids, self.record):
            node, choices = state.node, list[TokenChoice]()
            for each in answers:
                if choices:
                    node = self.tree.extend(node, choices[-1].token)
                source = self.record.ledger.source(node, each.run)
                choices.append(TokenChoice(each.token, vocabulary[each.token] or b"", each.logprob, source))
            weighed.append(choices)
        return weighed

    async def logprobs(self, steps: Sequence[Step]) -> list[float]:
        """The log-probabilities of consecutive tokens of the path."""
        ids = tuple(step.token.id for step in steps)
        (answers,) = await self.scheduler.logprobs(steps[0].parent, [ids], self.record)
        return [answer.logprob for answer in answers]

    def leave(self) -> None:
        pass

    async def finish(self, state: State) -> State:
        return self.path.settle(state, last=True)

    async def close(self) -> None:
        if self.record.draft:
            self.scheduler.learn(self.record)


Place = tuple[int, bytes, bytes]
"""Identity of a place, equal in every run with or without a cache."""


def place_of(pick: Pick) -> Place:
    return pick.state.depth, pick.matcher.text, pick.held


class Way(NamedTuple):
    """A possible next token of a branch.

    For a decoder that weighs, `weight` is the logarithm of the probability that the token stands for, and `is_whole` is
    True if no other token was left out (S36).
    """

    pick: Pick
    choice: TokenChoice
    weight: float = 0.0
    is_whole: bool = True

    @property
    def score(self) -> float:
        """The part that it adds to the score of the branch."""
        return self.choice.logprob or 0.0


class LocalFill(Fill):
    """The filling of one hole by a model in this process.

    If Python rejects a value, argmax takes the best choice not yet tried, and sample draws again with the next index
    (S21). Python that was executed is never undone.
    """

    def __init__(self, op: Hole, term: Term, generator: LocalGenerator, sampling: Sampling, limit: int) -> None:
        super().__init__(op, generator.path, generator.record, sampling, limit)
        self._choosable = partial(Choosable, generator.tree, generator.engine, op, term)
        self._scheduler = generator.scheduler
        self._engine = generator.engine
        self._left: dict[Place, Mask] = {}
        """Tokens that may still lead to another value, at each place of the rejected draws."""
        self._exact: set[Place] = set()
        """Places where rejected draws are excluded: the first place where draws can differ, and the places that a
        single token reaches from there."""
        self._single: Place | None = None
        """The place of the current draw where only one token was left."""

    def fork(self, path: Path) -> LocalFill:
        fork = super().fork(path)
        assert isinstance(fork, LocalFill)
        fork._left = {place: left.copy() for place, left in self._left.items()}
        fork._exact = set(self._exact)
        return fork

    # One token ------------------------------------------------------------------------------------------------------

    def settle(self, state: State) -> State:
        """The state with all text on the path. Raises ModelError if the text is too long for the model."""
        most = self._scheduler.scorer.context_length
        may_be_long = not state.used and 4 * len(state.text) >= most  # a character has at most four bytes
        if may_be_long and self._least_tokens(state) >= most:
            raise self._too_long()
        return self.path.settle(state)

    def pick(self, state: State) -> Pick:
        state = self.settle(state)
        matcher, held = matcher_of(state), data_of(state.held)
        draft = self._scheduler.scorer.tokenizer.encode(held) if held else ()
        room = self._scheduler.scorer.context_length - state.depth - len(draft)
        left = min(self.limit - state.used, room)
        if left <= 0:
            pick = Pick(state, matcher, left, held, draft=draft)
            if matcher.may_end and (room > 0 or state.used):
                return pick
            raise self._dead_end(pick)
        counted = penalties(state.newest, self.sampling) if self.sampling.penalises else NO_PENALTIES
        pick = Pick(state, matcher, left, held, self._mask(matcher, state.held, left), counted, draft)
        return self._untried(pick) if self._exact and not self.sampling.truncates else pick

    async def choose(self, pick: Pick) -> TokenChoice:
        choice = self.known(pick)
        if choice is None:
            try:
                choice = self.known(pick, await self._asked(pick))
            except ModelError as error:
                fail_unfilled(self.op, error)
        assert choice is not None, "scores that were just made are whole"
        return choice

    def known(self, pick: Pick, entry: ScoreEntry | None = None) -> TokenChoice | None:
        if pick.left <= 0:
            return CUT
        choice = self._scheduler.known(pick.state.node, pick.untried, self.sampling, self.record, pick.penalties, entry)
        if choice is None:
            raise self._dead_end(pick)
        return None if isinstance(choice, Miss) else choice

    def _asked(self, pick: Pick) -> Awaitable[ScoreEntry]:
        """The scores of a pick, which are on their way or asked of the model now."""
        place = DraftPlace((self.op.name, self.op.span), partial(self._fitting, pick))
        return self._scheduler.asked(pick.state.node, pick.draft, pick.untried, self.record, place)

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

    def _untried(self, pick: Pick) -> Pick:
        """The pick without the tokens that lead to rejected draws alone."""
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

    def _kept(self, pick: Pick, choice: TokenChoice, *, again: bool) -> Pick:
        if not again:
            pick = pick._replace(untried=pick.untried.copy())
            self._tried.append(Tried(pick, choice.data))
        self._cross_out(pick.untried, choice.token)
        if choice.data and not pick.held and _ends_at_once(pick.matcher, choice.data):  # they all give one value (S18)
            pick.untried[self._ends(pick.untried, pick.matcher)] = False
        return pick

    def _cross_out(self, mask: Mask, token: int) -> None:
        """Removes a token from the mask; all end-of-text tokens count as one."""
        mask[self._engine.vocabulary.eos if token in self._scheduler.scorer.tokenizer.eos else token] = False

    def _ends(self, mask: Mask, matcher: Matcher) -> Mask:
        """The tokens that would end the value here: end-of-text, and those of the mask that give it no more bytes."""
        vocabulary = self._engine.vocabulary
        ends = np.zeros(mask.size, np.bool_)
        ends[vocabulary.eos] = True
        for byte in np.unique(vocabulary.first_bytes[mask & ~ends]).tolist():
            if _ends_at_once(matcher, bytes([byte])):
                ends |= vocabulary.first_bytes == byte
        return ends

    # Several branches -----------------------------------------------------------------------------------------------

    async def ways(self, pick: Pick, most: int) -> list[Way]:
        """Between one and `most` next tokens, best first, or in the order of draws without replacement. The first is
        the one that `choose` takes."""
        ways = list[Way]()
        if not self.add_known(pick, most, ways):
            try:
                self.add_known(pick, most, ways, await self._asked(pick))
            except ModelError as error:
                fail_unfilled(self.op, error)
        return ways

    def add_known(self, pick: Pick, most: int, ways: list[Way], entry: ScoreEntry | None = None) -> bool:
        """Completes `ways`, as far as the scores in the tree or the `entry` contain them; False if that is not all."""
        if pick.left <= 0:
            ways.append(Way(pick, CUT))
            return True
        left = pick.untried.copy()
        for way in ways:
            self._cross_out(left, way.choice.token)
        while len(ways) < most:
            sampling = self.sampling
            if ways and sampling.temperature > 0:  # each draw has its own noise
                sampling = replace(sampling, index=sampling.index + len(ways) * DRAWS_APART)
            choice = self._scheduler.known(pick.state.node, left, sampling, self.record, pick.penalties, entry)
            if isinstance(choice, Miss):
                return False
            if choice is None:
                break
            ways.append(Way(pick, choice))
            left = left.copy()
            self._cross_out(left, choice.token)
        if not ways:
            raise self._dead_end(pick)
        return True

    async def outcomes(self, pick: Pick, most: int) -> list[Way]:
        """At most `most` next tokens with their weights, an unbiased choice of all (S36). Tokens that end the value at
        once are one way, unless the following text may begin with them."""
        if pick.left <= 0:
            return [Way(pick, CUT)]
        node, mask, draft, ends = pick.state.node, pick.untried, pick.draft, np.zeros(pick.untried.size, np.bool_)
        if not pick.held:
            ends = mask & self._ends(mask, pick.matcher)
            for token in np.flatnonzero(ends).tolist() if self.op.following else ():
                data, following = self._engine.vocabulary.tokens[token], self.op.following
                ends[token] = not (data and (data.startswith(following) or following.startswith(data)))
        try:
            found = await self._scheduler.outcomes(node, draft, mask, ends, most, self.sampling.seed, self.record)
        except ModelError as error:
            fail_unfilled(self.op, error)
        if not found:
            raise self._dead_end(pick)
        is_whole = np.count_nonzero(mask & ~ends) + bool(ends.any()) <= most
        return [Way(pick, choice, weight, bool(is_whole)) for choice, weight in found]

    # Another value --------------------------------------------------------------------------------------------------

    async def go_back(self, state: State) -> State | None:
        if self.sampling.temperature > 0:
            if not self._exclude():
                return None
            self.sampling = replace(self.sampling, index=self.sampling.index + 1)
            return self.opened
        other = await self._other()
        return other and self.take(*other, again=True)

    async def _find_others(self, tried: Tried) -> None:
        tried.known = not tried.pick.untried.any()
        tried.others = [] if tried.known else [await self.choose(tried.pick._replace(draft=()))]

    def _exclude(self) -> bool:
        """Excludes the value that was drawn and rejected; False if no other value is left.

        Tokens are excluded at the first place where draws can differ, and only after all their continuations were
        rejected, so that the others keep their probabilities (S21). If one token is left there, draws first differ at
        the next place. Places where top_k, top_p or min_p truncate exclude nothing, since an excluded token would let
        in another one.
        """
        drawn, self._tried = [tried.pick for tried in self._tried], []
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

    def _dead_end(self, pick: Pick) -> ConstraintError | ModelError:
        """The error of a pick without candidates."""
        state, matcher = pick.state, pick.matcher
        room = self._scheduler.scorer.context_length - state.depth - len(pick.draft)
        if room <= 0 or matcher.allowed(pick.held, UNLIMITED).any():
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


def _ends_at_once(before: Matcher, data: bytes) -> bool:
    """True if these bytes end the value, and add nothing to it."""
    after = matcher_after(before, data, 1)
    return after is not None and after.ending is not None and len(after.value) == len(before.text)
