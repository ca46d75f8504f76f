"""Masks over a vocabulary for the configurations of one automaton, worked out once for all that are judged alike."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import NEVER
from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.counters import Region
from lmql_lite.constraints.recent import Recent
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.constraints.walk import Pairs, Walk, walk

Mask = NDArray[np.bool_]
Values = tuple[int, ...]

MASKS_BYTES = 64 * 2**20
WALKS_BYTES = 128 * 2**20
NEAR_KEPT = 128


class Verdict(NamedTuple):
    """What tells one mask of a state from another: which of the walk's places are alive, and whether it may end."""

    masks: Masks
    state: int
    held: bytes
    lives: bytes
    stops: bytes
    passes: bytes
    ends: bool
    continues: bytes


class Judged(NamedTuple):
    """`far` is the number of tokens from which on a limit on them makes no difference. Counts that lie, each on its
    own, between `low` and `high` are judged alike."""

    verdict: Verdict
    far: int
    low: Values
    high: Values

    def covers(self, values: Values) -> bool:
        return all(low <= value <= high for low, value, high in zip(self.low, values, self.high, strict=True))


class Limits(NamedTuple):
    """For a single count in a stable region: up to which count each question about a state is answered by yes.

    Who has said less can do whatever one who has said more can: so every answer changes once.
    """

    lives: NDArray[np.intp]
    stops: NDArray[np.intp]
    passes: NDArray[np.intp]
    passes_on: NDArray[np.intp]
    ends: int
    continues: NDArray[np.intp]
    far: int


class Memory:
    """What the masks of one vocabulary have in common: a bound on how much of them is remembered."""

    def __init__(self) -> None:
        self.near: dict[tuple[Masks, int, bytes], tuple[Judged, Mask]] = {}
        """What was asked of a state last, and is likely to be asked again."""
        self.walks: Recent[tuple[Masks, int, bytes], Walk] = Recent(WALKS_BYTES)
        self.limits: Recent[tuple[Masks, int, bytes, Region], Limits] = Recent(MASKS_BYTES // 4)
        self.judged: Recent[tuple[Masks, int, int, bytes, int], Judged] = Recent(MASKS_BYTES // 4)
        self.masks: Recent[Verdict, Mask] = Recent(MASKS_BYTES)


class Masks:
    """The masks of one automaton over one vocabulary, remembered per configuration.

    A walk over the vocabulary is made once per state; a mask then only asks the few distinct (end state, added counts)
    pairs whether they can still end well, and not even that for counts that are far from all borders. Masks that agree
    in all answers are one array.
    """

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary, following: bytes, memory: Memory) -> None:
        self.automaton = automaton
        self.vocabulary = vocabulary
        self._memory = memory
        self._following = following if automaton.closed else b""
        self._begins_following = np.full(len(vocabulary.texts), not following, dtype=np.bool_)
        if following:
            self._begins_following[vocabulary.within(following)] = True
            longer = vocabulary.beginning_with(following)
            self._begins_following[longer.start : longer.stop] = True

    def mask(self, state: int, count: int, held: bytes, tokens_left: int) -> Mask:
        memory = self._memory
        near = memory.near.get((self, state, held))
        if near is not None:
            judged, mask = near
            if tokens_left >= judged.far and judged.covers(self.automaton.counts.unpack(count)):
                return mask
        judged = self._judged(state, count, held, NEVER)
        if tokens_left < judged.far:
            return self._mask(self._judged(state, count, held, tokens_left).verdict)
        mask = self._mask(judged.verdict)
        if len(memory.near) >= NEAR_KEPT:
            memory.near = {}
        memory.near[self, state, held] = judged, mask
        return mask

    def _mask(self, verdict: Verdict) -> Mask:
        mask = self._memory.masks.get(verdict)
        return self._build(verdict) if mask is None else mask

    def _judged(self, state: int, count: int, held: bytes, tokens_left: int) -> Judged:
        key = (self, state, count, held, tokens_left)
        judged = self._memory.judged.get(key)
        if judged is None:
            region = self.automaton.regions.find(self.automaton.counts.unpack(count))
            if tokens_left >= NEVER and len(region.low) == 1 and self._is_stable(region):
                judged = self._judge_by_limits(state, count, held, region)
            else:
                judged = self._judge(state, count, held, tokens_left, region)
            verdict = judged.verdict
            size = 500 + len(verdict.lives) + len(verdict.stops) + len(verdict.passes) + len(verdict.continues)
            self._memory.judged.put(key, judged, size)
        return judged

    def _is_stable(self, region: Region) -> bool:
        """Whether saying more never makes a comparison true, nor does cutting back."""
        return not region.improves and not (any(region.low) and self.automaton.cuts_back)

    # Judging -----------------------------------------------------------------------------------------------------

    def _judge(self, state: int, count: int, held: bytes, tokens_left: int, region: Region) -> Judged:
        """Every question asked for this very count."""
        automaton = self.automaton
        add = automaton.counts.add
        found = self._walk(state, held)
        # a token that begins with held text is charged to whom that belongs to
        here = count if held else add(count, automaton.token)
        ends = not held and automaton.holds(state, count)
        distances = [automaton.distance(end, add(here, added)) for end, added in found.pairs]
        verdict = Verdict(
            self,
            state,
            held,
            bytes([distance < min(tokens_left, NEVER) for distance in distances]),
            bytes([automaton.cut(at, add(here, added)) is not None for at, added in found.stops.pairs]),
            bytes([self._passes(at, add(here, added)) for at, added in found.passing.pairs]),
            ends,
            self._continues(state, count) if ends and automaton.closed else b"",
        )
        values = automaton.counts.unpack(count)
        low, high = values, values
        if tokens_left >= NEVER and self._is_stable(region) and not automaton.closed:
            reach = self._reach(found, distances, region)
            if reach and all(
                value + more <= most for value, more, most in zip(values, reach, region.high, strict=True)
            ):
                low = region.low
                high = tuple(most - more for more, most in zip(reach, region.high, strict=True))
        far = 1 + max((distance for distance in distances if distance < NEVER), default=0)
        return Judged(verdict, far, low, high)

    def _reach(self, found: Walk, distances: list[int], region: Region) -> Values:
        """How much room in a stable region lets all its counts be judged alike; () where none does.

        What lives does so by a way that stays in the region. What is dead is so where the region has the most room.
        """
        automaton = self.automaton
        dead = {end for (end, _), distance in zip(found.pairs, distances, strict=True) if distance >= NEVER}
        low = automaton.counts.pack(region.low)
        if any(automaton.lives(end, low) for end in dead):
            return ()
        reach = [1] * len(region.low)
        for pairs, lengths in ((found.pairs, distances), (found.stops.pairs, [0] * len(found.stops.pairs))):
            for (_, added), length in zip(pairs, lengths, strict=True):
                if length < NEVER:
                    reach = [max(a, 1 + b + length) for a, b in zip(reach, automaton.counts.unpack(added), strict=True)]
        return tuple(reach)

    def _passes(self, state: int, count: int) -> bool:
        """Whether a value that is complete here is left by a token that goes on with what follows the hole."""
        return self.automaton.holds(state, count) and not self.automaton.continues(state, count, self._following[0])

    def _continues(self, state: int, count: int) -> bytes:
        """For every byte whether the text can go on with it, in a token of its own."""
        automaton = self.automaton
        live = {
            edge.state
            for edge in automaton.edges(state)
            if automaton.lives(edge.state, automaton.counts.add(count, edge.spent))
        }
        return bytes([after in live for after in automaton.row(state).tolist()])

    # Judging a single count by its limits ------------------------------------------------------------------------

    def _judge_by_limits(self, state: int, count: int, held: bytes, region: Region) -> Judged:
        """The same answers, and between which counts they stay the same."""
        limits = self._limits(state, held, region)
        ends = not held and count <= limits.ends
        verdict = Verdict(
            self,
            state,
            held,
            (limits.lives >= count).tobytes(),
            (limits.stops >= count).tobytes(),
            ((limits.passes >= count) & (limits.passes_on < count)).tobytes(),
            ends,
            (limits.continues >= count).tobytes() if ends and self.automaton.closed else b"",
        )
        borders = np.concatenate(
            [limits.lives, limits.stops, limits.passes, limits.passes_on, [limits.ends], limits.continues]
        )
        high = int(borders[borders >= count].min(initial=region.high[0]))
        low = int(borders[borders < count].max(initial=region.low[0] - 1)) + 1
        return Judged(verdict, limits.far, (low,), (high,))

    def _limits(self, state: int, held: bytes, region: Region) -> Limits:
        key = (self, state, held, region)
        limits = self._memory.limits.get(key)
        if limits is None:
            limits = self._find_limits(state, held, region)
            self._memory.limits.put(key, limits, 1000 + 8 * (limits.lives.size + limits.stops.size))
        return limits

    def _find_limits(self, state: int, held: bytes, region: Region) -> Limits:
        automaton = self.automaton
        found = self._walk(state, held)
        (low,) = region.low
        token = 0 if held else automaton.token
        going_on = {edge.state: automaton.last_living(edge.state, low) - edge.spent for edge in automaton.edges(state)}

        def less(limits: list[int], pairs: Pairs, more: int) -> NDArray[np.intp]:
            return np.array(
                [last - added - more for last, (_, added) in zip(limits, pairs, strict=True)], dtype=np.intp
            )

        passing = found.passing.pairs
        # with a single count, what a byte adds to none is what it adds to any
        onwards = [automaton.step(at, 0, self._following[0]) for at, _ in passing]
        beyond = tuple((after, added + gained) for (after, gained), (_, added) in zip(onwards, passing, strict=True))
        return Limits(
            less([automaton.last_living(end, low) for end, _ in found.pairs], found.pairs, token),
            less([automaton.last_cut(at, low) for at, _ in found.stops.pairs], found.stops.pairs, token),
            less([automaton.last_holding(at, low) for at, _ in passing], passing, token),
            less([automaton.last_living(after, low) for after, _ in onwards], beyond, token + automaton.token),
            automaton.last_holding(state, low),
            np.array([going_on.get(after, -1) for after in automaton.row(state).tolist()], dtype=np.intp),
            1 + max((automaton.farthest(end, low) for end, _ in found.pairs), default=0),
        )

    # Building ----------------------------------------------------------------------------------------------------

    def _build(self, verdict: Verdict) -> Mask:
        vocabulary, held = self.vocabulary, verdict.held
        found = self._walk(verdict.state, held)
        num_texts = len(vocabulary.texts)
        texts = np.zeros(num_texts + 1, dtype=np.bool_)
        for ranges, wanted in ((found.stops, verdict.stops), (found.passing, verdict.passes)):
            if any(wanted):
                texts |= ranges.chosen(wanted, num_texts)
        texts[found.texts] |= np.frombuffer(verdict.lives, dtype=np.bool_)[found.pair]
        if verdict.continues:
            # tokens that continue no option or pattern end a complete one, if they can begin what follows (S18)
            continues = np.frombuffer(verdict.continues, dtype=np.bool_)
            texts[:-1] |= self._begins_following & ~continues[vocabulary.first_byte]
        if held:
            # settled text belongs to no hole: a part of it costs the hole nothing
            texts[vocabulary.within(held)] = True
            texts[[index for index in vocabulary.beginning_with(held)[:1] if vocabulary.texts[index] == held]] = True
        mask = vocabulary.allowing(texts)
        if verdict.ends:
            mask[vocabulary.eos] = True
        mask.flags.writeable = False
        return self._memory.masks.put(verdict, mask, mask.nbytes + 500)

    def _walk(self, state: int, held: bytes) -> Walk:
        key = (self, state, held)
        found = self._memory.walks.get(key)
        if found is None:
            found = walk(self.vocabulary, self.automaton, state, held, self._following)
            self._memory.walks.put(key, found, found.size_bytes + 500)
        return found
