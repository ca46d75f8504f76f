"""The matcher of one hole: a configuration of its automaton, a vocabulary for masks, and the bytes so far."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, replace
from itertools import combinations
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.atoms import NEVER
from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.matcher import Ending
from lmql_lite.constraints.recent import Recent
from lmql_lite.constraints.terms import And, Constant, Term
from lmql_lite.constraints.vocabulary import Vocabulary, Walk
from lmql_lite.errors import ConstraintError, Span

Mask = NDArray[np.bool_]

MASKS_BYTES = 64 * 2**20
WALKS_BYTES = 128 * 2**20
SUBSETS_TRIED = 100
"""Sets of clauses of one size that are looked at to find a conflict."""


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
    """`far` is the number of tokens from which on a limit on them makes no difference.

    `reach` is by how much a count may grow on the way to the nearest end of every live place: where a count has that
    much room within its region, all counts of the region with as much room are judged alike; None where they are not.
    """

    verdict: Verdict
    far: int
    reach: int | None


class Memory:
    """What the masks of one vocabulary have in common: a bound on how much of them is remembered."""

    def __init__(self) -> None:
        self.walks: Recent[tuple[Masks, int, bytes], Walk] = Recent(WALKS_BYTES)
        self.judged: Recent[tuple[Masks, int, int, bytes, int], Judged] = Recent(MASKS_BYTES // 4)
        self.shared: Recent[tuple[Masks, int, int, bytes], Judged] = Recent(MASKS_BYTES // 4)
        self.masks: Recent[Verdict, Mask] = Recent(MASKS_BYTES)


class Masks:
    """The masks of one automaton over one vocabulary, remembered per configuration.

    A walk over the vocabulary is made once per state; a mask then only asks the few distinct (end state, added counts)
    pairs whether they can still end well, and not even that where a count is far from all borders. Masks that agree
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
        region, room = self.automaton.regions.find(count)
        judged = memory.shared.get((self, state, region.low, held))
        if judged is None or judged.reach is None or judged.reach > room:
            judged = memory.judged.get((self, state, count, held, -1))
            if judged is None:
                judged = self._judge(state, count, held, NEVER)
                self._remember((self, state, count, held, -1), judged)
                if judged.reach is not None and judged.reach <= room:
                    memory.shared.put((self, state, region.low, held), judged, 500)
        if tokens_left < judged.far:
            key = (self, state, count, held, tokens_left)
            judged = memory.judged.get(key) or self._remember(key, self._judge(state, count, held, tokens_left))
        mask = memory.masks.get(judged.verdict)
        return self._build(judged.verdict) if mask is None else mask

    def _remember(self, key: tuple[Masks, int, int, bytes, int], judged: Judged) -> Judged:
        verdict = judged.verdict
        size = 500 + len(verdict.lives) + len(verdict.stops) + len(verdict.passes) + len(verdict.continues)
        return self._memory.judged.put(key, judged, size)

    def _judge(self, state: int, count: int, held: bytes, tokens_left: int) -> Judged:
        automaton = self.automaton
        add = automaton.counts.add
        walk = self._walk(state, held)
        # a token that begins with held text is charged to whom that belongs to
        here = count if held else add(count, automaton.token)
        ends = not held and automaton.holds(state, count)
        distances = [automaton.distance(end, add(here, added)) for end, added in walk.pairs]
        limit = min(tokens_left, NEVER)
        verdict = Verdict(
            self,
            state,
            held,
            bytes([distance < limit for distance in distances]),
            bytes([automaton.cut(at, add(here, added)) is not None for at, added in walk.stops.pairs]),
            bytes([self._passes(at, add(here, added)) for at, added in walk.passing.pairs]),
            ends,
            self._continues(state, count) if ends and automaton.closed else b"",
        )
        return Judged(
            verdict,
            1 + max((distance for distance in distances if distance < NEVER), default=0),
            None if limit < NEVER or automaton.closed else self._reach(count, walk, distances),
        )

    def _reach(self, count: int, walk: Walk, distances: list[int]) -> int | None:
        """How much room the judgement of this count asks for to be that of all others in its region.

        What lives here does so by a way that stays in the region. What is dead has to be dead where the region has
        the most room, and no comparison may become true by saying more.
        """
        automaton = self.automaton
        region, room = automaton.regions.find(count)
        if region.improves or (region.low and automaton.cuts_back):
            return None
        most = automaton.counts.largest
        reach = max((most(added) for _, added in walk.stops.pairs), default=0)
        for (_, added), distance in zip(walk.pairs, distances, strict=True):
            if distance < NEVER:
                reach = max(reach, most(added) + distance)
        reach += 1  # the token itself
        if reach > room:
            return None
        dead = {end for (end, _), distance in zip(walk.pairs, distances, strict=True) if distance >= NEVER}
        return None if any(automaton.lives(end, region.low) for end in dead) else reach

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

    def _build(self, verdict: Verdict) -> Mask:
        vocabulary, held = self.vocabulary, verdict.held
        walk = self._walk(verdict.state, held)
        num_texts = len(vocabulary.texts)
        texts = np.zeros(num_texts + 1, dtype=np.bool_)
        for ranges, wanted in ((walk.stops, verdict.stops), (walk.passing, verdict.passes)):
            if any(wanted):
                texts |= ranges.chosen(wanted, num_texts)
        texts[walk.texts] |= np.frombuffer(verdict.lives, dtype=np.bool_)[walk.pair]
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
        walk = self._memory.walks.get(key)
        if walk is None:
            walk = self.vocabulary.walk(self.automaton, state, held, self._following)
            self._memory.walks.put(key, walk, walk.size_bytes + 500)
        return walk


@dataclass(frozen=True, slots=True, eq=False)
class HoleMatcher:
    """A `Matcher` over an own automaton."""

    masks: Masks
    state: int
    count: int = 0
    text: bytes = b""
    ending: Ending | None = None
    length: int = 0
    """Bytes of `text` that are the value."""

    @property
    def value(self) -> bytes:
        return self.text[: self.length]

    @property
    def certain(self) -> int:
        return self.length - self.masks.automaton.undecided(self.state) if self.ending is None else self.length

    @property
    def may_end(self) -> bool:
        return self.masks.automaton.holds(self.state, self.count)

    def allowed(self, held: bytes, tokens_left: int) -> Mask:
        return self.masks.mask(self.state, self.count, held, tokens_left)

    def advance(self, data: bytes, tokens: int = 1) -> HoleMatcher:
        automaton, state = self.masks.automaton, self.state
        count = automaton.counts.add(self.count, tokens * automaton.token)
        text = self.text + data
        for at, byte in enumerate(data, start=len(self.text)):
            before = self.count if at == len(self.text) else count
            if automaton.closed and automaton.holds(state, before) and not automaton.continues(state, before, byte):
                return replace(self, state=state, count=before, text=text, ending="end-of-text", length=at)
            state, count = automaton.step(state, count, byte)
            if state < 0:
                raise ValueError(f"{data!r} is not allowed after {self.text!r}")
            cut = automaton.cut(state, count)
            if cut is not None:
                return replace(self, state=state, count=count, text=text, ending="stop", length=at + 1 - cut)
        moved = replace(self, state=state, count=count, text=text, length=len(text))
        if automaton.holds(state, count) and not automaton.goes_on(state, count):
            return replace(moved, ending="forced" if automaton.closed else "bound")
        return moved

    def end(self, ending: Ending) -> HoleMatcher:
        return replace(self, ending=ending)

    def forced(self) -> bytes:
        automaton, state, count = self.masks.automaton, self.state, self.count
        forced = bytearray()
        if self.ending is not None or automaton.token:
            return b""  # where tokens are counted, how a text is cut into them matters: each is asked for
        while not automaton.holds(state, count):
            live = [
                edge
                for edge in automaton.edges(state)
                if automaton.lives(edge.state, automaton.counts.add(count, edge.added))
            ]
            if len(live) != 1 or live[0].how_many != 1:
                break
            forced.append(live[0].byte)
            state, count = live[0].state, automaton.counts.add(count, live[0].added)
            if automaton.cut(state, count) is not None:
                break
        return bytes(forced)

    def longest_valid(self, data: bytes) -> int:
        automaton, state, count = self.masks.automaton, self.state, self.count
        for at, byte in enumerate(data):
            if automaton.closed and automaton.holds(state, count) and not automaton.continues(state, count, byte):
                return len(data)
            state, count = automaton.step(state, count, byte)
            if state < 0:
                return at
            if automaton.cut(state, count) is not None:
                return len(data)
            if not automaton.lives(state, count):
                return at
        return len(data)


class Engine:
    """Matchers for one vocabulary. Equal terms share their automaton and its masks; the rest is per hole.

    Threads may share it.
    """

    AUTOMATA_KEPT = 256

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._memory = Memory()
        self._masks: OrderedDict[tuple[Term, bytes], Masks] = OrderedDict()
        self._lock = Lock()

    def matcher(self, term: Term, following: bytes, max_tokens: int, name: str, span: Span) -> HoleMatcher:
        """The beginning of a hole.

        `following` is the text known to come after it, b"" where it is not known. Raises ConstraintError, naming the
        clause, where nothing can fill the hole within `max_tokens` tokens.
        """
        masks = self._masks_of(term, following)
        automaton = masks.automaton
        shortest = automaton.at_least(automaton.start, 0)
        if shortest <= max_tokens or shortest == NEVER:  # a search for an end that is too far anyway would be long
            shortest = automaton.distance(automaton.start, 0)
        if shortest == NEVER:
            raise _unsatisfiable(term, name, span)
        if shortest > max_tokens:
            raise ConstraintError(
                f"[{name}] may have {max_tokens} tokens, too few for what its condition asks for",
                span=term.span or span,
                hint=f"a text that meets it has {shortest} bytes or more; raise max_tokens",
            )
        start = HoleMatcher(masks, automaton.start)
        empty_only = automaton.holds(automaton.start, 0) and not automaton.goes_on(automaton.start, 0)
        return replace(start, ending="forced") if empty_only else start

    def _masks_of(self, term: Term, following: bytes) -> Masks:
        with self._lock:
            masks = self._masks.get((term, following))
            if masks is None:
                masks = Masks(Automaton(term), self.vocabulary, following, self._memory)
                self._masks[term, following] = masks
                if len(self._masks) > self.AUTOMATA_KEPT:
                    self._masks.popitem(last=False)
            self._masks.move_to_end((term, following))
            return masks


def _unsatisfiable(term: Term, name: str, span: Span) -> ConstraintError:
    """Names the smallest set of conjuncts that cannot hold together."""
    parts = term.terms if isinstance(term, And) else (term,)
    guilty = _smallest_conflict(parts)
    clauses = list(dict.fromkeys(f"`{part.span.source}`" if part.span else "its condition" for part in guilty))
    if len(clauses) > 1:
        reason = f"{', '.join(clauses[:-1])} and {clauses[-1]} cannot hold together"
    elif any(isinstance(part, Constant) for part in guilty):
        reason = f"{clauses[0]} is false"
    else:
        reason = f"{clauses[0]} holds for no text"
    return ConstraintError(f"nothing can fill [{name}]: {reason}", span=guilty[-1].span or span)


def _smallest_conflict(parts: tuple[Term, ...]) -> tuple[Term, ...]:
    for many in range(1, len(parts)):
        if math.comb(len(parts), many) > SUBSETS_TRIED:
            break
        for some in combinations(parts, many):
            if _is_impossible(And(some)):
                return some
    needed = list(parts)
    for part in parts:  # too many sets to try: none of what is left can be spared
        without = [other for other in needed if other is not part]
        if _is_impossible(And(tuple(without))):
            needed = without
    return tuple(needed)


def _is_impossible(term: Term) -> bool:
    automaton = Automaton(term)
    try:
        return not automaton.lives(automaton.start, 0)
    except ConstraintError:  # too large to tell
        return False
