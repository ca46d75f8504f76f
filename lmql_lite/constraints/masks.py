"""Masks over a vocabulary for the configurations of one automaton, built once for all that are judged alike."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import DEAD, NEVER, OptionMachine
from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.liveness import Advances, Borders, Box, Questions
from lmql_lite.constraints.pairs import Pairs, Ranges
from lmql_lite.constraints.search import DistanceSearch, Edge
from lmql_lite.constraints.token_distance import in_tokens
from lmql_lite.constraints.vocabulary import IntArray, Vocabulary
from lmql_lite.constraints.walk import Walk, walk

Mask = NDArray[np.bool_]
Values = tuple[int, ...]

MASKS_BYTES = 64 * 2**20
WALKS_BYTES = 128 * 2**20
NEAR_KEPT = 128


Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """An LRU cache bounded in bytes. A single entry may exceed the bound. Threads may share it."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Key) -> Value | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Key, value: Value, num_bytes: int) -> Value:
        """Stores a value unless the key has one, and returns the stored value: another thread may have put it first."""
        with self._lock:
            entry = self._entries.setdefault(key, (value, num_bytes))
            if entry[0] is value:
                self.num_bytes += num_bytes
            while self.num_bytes > self.max_bytes and len(self._entries) > 1:
                self.num_bytes -= self._entries.popitem(last=False)[1][1]
            return entry[0]

    def __len__(self) -> int:
        return len(self._entries)


class Verdict(NamedTuple):
    """Key of a mask: all answers that it depends on, such as the live places of the walk and whether the hole may end.

    `late` are places that are alive, but too far from an end for the tokens left: a token that leads there does not
    leave a complete value behind (S18).
    """

    masks: Masks
    state: int
    held: bytes
    lives: bytes
    late: bytes
    stops: bytes
    passes: bytes
    ends: bool
    continues: bytes


class Judged(NamedTuple):
    """A verdict and the configurations that it holds for: counts between `low` and `high` with the same flags.

    From `far` tokens on, a limit on tokens makes no difference.
    """

    verdict: Verdict
    far: int
    low: Values
    high: Values
    flags: int

    def covers(self, values: Values, flags: int) -> bool:
        for low, value, high in zip(self.low, values, self.high, strict=True):
            if not low <= value <= high:
                return False
        return flags == self.flags


class Passing(NamedTuple):
    """Tokens that pass a place on their way, and the index of that place in `borders`."""

    tokens: IntArray
    pair: IntArray
    borders: Borders


class Reached(NamedTuple):
    """Places that all tokens lead to from one state, and the questions that decide which tokens are allowed.

    The first `num_places` questions are about the walk. For a closed hole, two groups follow: whether a value that a
    token completes could also go on with the first byte of the following text, and whether text can go on by `edges`.
    """

    walk: Walk
    num_places: int
    about_places: Questions
    stops: Passing
    passing: Passing
    questions: Questions
    edges: tuple[Edge, ...]
    similar: Reached | None
    """Result for the state to which the walk's state is similar."""

    @property
    def size_bytes(self) -> int:
        states, lanes = self.walk.nodes or (None, ())
        arrays = (self.walk.place, states, *lanes, self.stops.tokens, self.passing.tokens)
        return sum(8 * array.size for array in arrays if array is not None) + 40 * self.questions.size


class Memory:
    """Caches of the masks of one vocabulary, bounded in bytes."""

    def __init__(self) -> None:
        self.near: dict[tuple[Masks, int, bytes], tuple[Judged, Mask, int]] = {}
        """Last verdict and mask of each state, and its count: the same mask is likely to be asked for again."""
        self.reached: Recent[tuple[Masks, int, bytes], Reached] = Recent(WALKS_BYTES)
        self.judged: Recent[tuple[Masks, int, int, bytes, int], Judged] = Recent(MASKS_BYTES // 4)
        self.masks: Recent[Verdict, Mask] = Recent(MASKS_BYTES)
        self.listed: Recent[tuple[Masks, int], Mask] = Recent(MASKS_BYTES)
        self.advances = Advances()


class Masks:
    """The masks of one automaton over one vocabulary, cached per configuration.

    The vocabulary is walked once per state. A mask then only needs the liveness of the few distinct pairs of end state
    and added counts. Masks that agree in all answers share one array.
    """

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary, following: bytes, memory: Memory) -> None:
        self.automaton = automaton
        self.vocabulary = vocabulary
        self.advances = memory.advances
        self._memory = memory
        self._following = following if automaton.closed else b""
        self._spread_last: tuple[Walk, bytes, Mask] | None = None
        if automaton.token and self.in_tokens is not None:
            automaton.go(self.in_tokens)

    def renewed(self) -> Masks:
        """The same masks over a new automaton, which has no states yet."""
        return Masks(Automaton(self.automaton.term), self.vocabulary, self._following, self._memory)

    @cached_property
    def in_tokens(self) -> DistanceSearch | None:
        """Search for the least number of tokens to an end; None if bytes have to stand in for tokens."""
        return in_tokens(self.automaton, self.vocabulary)

    def mask(self, state: int, count: int, held: bytes, tokens_left: int) -> Mask:
        memory = self._memory
        near = memory.near.get((self, state, held))
        if near is not None:
            judged, mask, counted = near
            counts = self.automaton.counts
            if tokens_left >= judged.far and (
                count == counted or judged.covers(counts.unpack(count), counts.flags(count))
            ):
                return mask
        listed = self.automaton.listed(state)
        if listed is not None and not held and tokens_left > listed[0].longest and not listed[0].holds(listed[1]):
            return self._of_listed(state, *listed)
        judged = self._judged(state, count, held, NEVER)
        if tokens_left < judged.far:
            return self._mask(self._judged(state, count, held, tokens_left).verdict)
        mask = self._mask(judged.verdict)
        if len(memory.near) >= NEAR_KEPT:
            memory.near = {}
        memory.near[self, state, held] = judged, mask, count
        return mask

    def _mask(self, verdict: Verdict) -> Mask:
        mask = self._memory.masks.get(verdict)
        return self._build(verdict) if mask is None else mask

    def _of_listed(self, state: int, options: OptionMachine, node: int) -> Mask:
        """Mask of the tokens that continue a listed option, or go on after one with the text that follows the hole."""
        mask = self._memory.listed.get((self, state))
        if mask is not None:
            return mask
        texts, following = self.vocabulary.texts, self._following
        found: list[int] = []
        waiting = [(node, 0, b"", 0, len(texts))]
        while waiting:
            node, said, prefix, low, high = waiting.pop()
            moves = {following[said]: DEAD} if node == DEAD else options.moves(node).special
            if following and options.holds(node) and following[0] not in moves:
                moves = {**moves, following[0]: DEAD}
            for byte, after in moves.items():
                text = prefix + bytes((byte,))
                first = bisect_left(texts, text, low, high)
                end = bisect_left(texts, prefix + bytes((byte + 1,)), first, high)
                if after == DEAD and said + 1 == len(following):
                    found += range(first, end)
                    continue
                if first < end and texts[first] == text:
                    found.append(first)
                    first += 1
                if first < end:
                    waiting.append((after, said + (after == DEAD), text, first, end))
        mask = np.zeros(self.vocabulary.size, dtype=np.bool_)
        mask[self.vocabulary.tokens_of(found)] = True
        mask.flags.writeable = False
        return self._memory.listed.put((self, state), mask, mask.nbytes + 500)

    # Judging -----------------------------------------------------------------------------------------------------

    def _judged(self, state: int, count: int, held: bytes, tokens_left: int) -> Judged:
        key = (self, state, count, held, tokens_left)
        judged = self._memory.judged.get(key)
        if judged is None:
            judged = self._judge(state, count, held, tokens_left)
            verdict = judged.verdict
            size = 500 + len(verdict.lives) + len(verdict.stops) + len(verdict.passes) + len(verdict.continues)
            self._memory.judged.put(key, judged, size)
        return judged

    def _judge(self, state: int, count: int, held: bytes, tokens_left: int) -> Judged:
        automaton = self.automaton
        counts, regions = automaton.counts, automaton.regions
        reached = self._reached(state, held)
        here = counts.add(count, automaton.token)
        values, flags = counts.unpack(count), counts.flags(count)
        region = regions.find(values)
        lives, far, box = reached.questions.ask(counts.unpack(here), flags)
        box = Box(box.low - counts.unpack(automaton.token), box.high - counts.unpack(automaton.token))
        num_places, num_passing = reached.num_places, reached.passing.borders.pairs.states.size
        on = lives[num_places:]
        ends = not held and automaton.holds(state, count)
        late = b""
        if tokens_left < far:
            in_time = reached.questions.in_time(counts.unpack(here), flags, tokens_left - 1, lives, self.in_tokens)
            in_time = in_time[:num_places]
            late = (lives[:num_places] & ~in_time).tobytes() if automaton.closed and automaton.token else b""
            lives = np.append(in_time, lives[num_places:])
        stops, where_stops = reached.stops.borders.ask(counts.unpack(here), flags)
        complete, where_complete = reached.passing.borders.ask(counts.unpack(here), flags)
        verdict = Verdict(
            self,
            state,
            held,
            lives[:num_places].tobytes(),
            late,
            stops.tobytes(),
            (complete & ~on[:num_passing]).tobytes(),
            ends,
            self._continues(state, reached.edges, on[num_passing:]) if ends and automaton.closed else b"",
        )
        low, high = box.within(np.array(region.low, dtype=np.intp), np.array(region.high, dtype=np.intp))
        for where in (where_stops, where_complete):
            if where is None:
                return Judged(verdict, far, values, values, flags)
            more = np.array(counts.unpack(here), dtype=np.intp) - values
            low, high = np.maximum(low, where.low - more), np.minimum(high, where.high - more)
        return Judged(verdict, far, tuple(low.tolist()), tuple(high.tolist()), flags)

    def _continues(self, state: int, edges: tuple[Edge, ...], live: Mask) -> bytes:
        """Flag for each byte, 1 if the text can go on with it in a token of its own."""
        alive = {(edge.state, edge.added) for edge, lives in zip(edges, live.tolist(), strict=True) if lives}
        return bytes([step in alive for step in self.automaton.steps(state)])

    # Building ----------------------------------------------------------------------------------------------------

    def _build(self, verdict: Verdict) -> Mask:
        vocabulary, held = self.vocabulary, verdict.held
        reached = self._reached(verdict.state, held)
        mask = self._spread(reached, verdict.lives)
        _set(mask, reached.passing, verdict.passes)
        if verdict.continues:
            # tokens that continue no option or pattern end a complete one, if they can begin what follows (S18)
            continues = np.frombuffer(verdict.continues, dtype=np.bool_)
            mask[self._following_tokens(~continues)] = True
        if any(verdict.late):
            mask &= ~self._spread(reached, verdict.late)
        _set(mask, reached.stops, verdict.stops)
        if held:
            # `held` is settled and belongs to no hole, so a token that is a prefix of it costs the hole nothing
            mask[vocabulary.tokens_of(vocabulary.beginnings(held))] = True
        if verdict.ends:
            mask[vocabulary.eos] = True
        mask.flags.writeable = False
        return self._memory.masks.put(verdict, mask, mask.nbytes + 500)

    def _spread(self, reached: Reached, flags: bytes) -> Mask:
        """Flags of tokens, shape (vocabulary,), from the flags of the places that they lead to."""
        tokens, place, similar = reached.walk.tokens, reached.walk.place, reached.similar
        own = np.frombuffer(flags, dtype=np.bool_)
        if tokens is None:
            return own.take(place)
        mask = np.zeros(self.vocabulary.size, dtype=np.bool_)
        if similar is not None:
            theirs = flags[: similar.num_places]
            last = self._spread_last
            if last is None or last[0] is not similar.walk or last[1] != theirs:
                last = self._spread_last = similar.walk, theirs, self._spread(similar, theirs)
            mask, own = last[2].copy(), own[similar.num_places :]
        mask[tokens] = own[place]
        return mask

    def _following_tokens(self, first_bytes: Mask) -> IntArray:
        """Tokens that agree with the following text as far as both go, and whose first byte is set in `first_bytes`."""
        first, end = self.vocabulary.agreeing_with(self._following)
        tokens, _ = self.vocabulary.tokens_within(first, end)
        return tokens[first_bytes[self.vocabulary.first_bytes[tokens]]]

    def _reached(self, state: int, held: bytes) -> Reached:
        key = (self, state, held)
        reached = self._memory.reached.get(key)
        if reached is None:
            reached = self._reach(state, held)
            self._memory.reached.put(key, reached, reached.size_bytes + 500)
        return reached

    def _reach(self, state: int, held: bytes) -> Reached:
        automaton = self.automaton
        start = self._memory.reached.get((self, automaton.start, b""))
        similar = start if start and start.walk.nodes else None
        found = walk(self.vocabulary, automaton, state, held, self._following, similar and similar.walk)
        similar = similar if found.is_like else None
        edges = automaton.edges(state) if automaton.closed else ()
        beyond = []
        for at, added in found.passing.pairs.configurations(automaton.counts):
            after, gained = automaton.step(at, 0, self._following[0])
            beyond.append((after, automaton.counts.sum(added, gained)))
        onwards = [(edge.state, edge.added) for edge in edges]
        places = Questions(automaton, found.pairs, similar and similar.about_places)
        stops = similar.stops if similar and found.stops is similar.walk.stops else None
        passing = similar.passing if similar and found.passing is similar.walk.passing else None
        more = [*beyond, *onwards]
        return Reached(
            found,
            places.size,
            places,
            stops or self._passing(found.stops, automaton.stops),
            passing or self._passing(found.passing, automaton.holds),
            Questions(automaton, Pairs.of(more, automaton.counts), places) if more else places,
            edges,
            similar,
        )

    def _passing(self, ranges: Ranges, test: Callable[[int, int], bool]) -> Passing:
        if not ranges.first.size:
            return Passing(ranges.first, ranges.pair, Borders(self.automaton, ranges.pairs, test))
        tokens, which = self.vocabulary.tokens_within(ranges.first, ranges.end)
        return Passing(tokens, ranges.pair[which], Borders(self.automaton, ranges.pairs, test))


def _set(mask: Mask, passing: Passing, wanted: bytes) -> None:
    if any(wanted):
        mask[passing.tokens[np.frombuffer(wanted, dtype=np.bool_)[passing.pair]]] = True
