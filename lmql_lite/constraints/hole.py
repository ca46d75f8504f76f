"""The matcher of one hole: a configuration of its automaton, a vocabulary for masks, and the bytes so far."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
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


class Verdict(NamedTuple):
    """What tells one mask of a state from another: which of the walk's places are alive, and whether it may end."""

    masks: Masks
    state: int
    held: bytes
    lives: bytes
    stops: bytes
    ends: bool
    continues: bytes


class Judged(NamedTuple):
    """`far` is the number of tokens from which on a limit on them makes no difference."""

    verdict: Verdict
    far: int


class Memory:
    """What the masks of one vocabulary have in common: a bound on how much of them is remembered."""

    def __init__(self) -> None:
        self.walks: Recent[tuple[Masks, int, bytes], Walk] = Recent(WALKS_BYTES)
        self.judged: Recent[tuple[Masks, int, int, bytes, int], Judged] = Recent(MASKS_BYTES // 4)
        self.masks: Recent[Verdict, Mask] = Recent(MASKS_BYTES)


class Masks:
    """The masks of one automaton over one vocabulary, remembered per configuration.

    A walk over the vocabulary is made once per state; a mask then only asks the few distinct (end state, characters)
    pairs whether they can still end well. Masks that agree in all answers are one array.
    """

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary, following: bytes, memory: Memory) -> None:
        self.automaton = automaton
        self.vocabulary = vocabulary
        self._memory = memory
        self._following = np.full(len(vocabulary.texts), not following, dtype=np.bool_)
        if following:
            self._following[vocabulary.within(following)] = True
            longer = vocabulary.beginning_with(following)
            self._following[longer.start : longer.stop] = True

    def mask(self, state: int, count: int, held: bytes, tokens_left: int) -> Mask:
        memory = self._memory
        judged = memory.judged.get((self, state, count, held, -1))
        if judged is None:
            judged = self._remember((self, state, count, held, -1), NEVER)
        if tokens_left < judged.far:
            key = (self, state, count, held, tokens_left)
            judged = memory.judged.get(key) or self._remember(key, tokens_left)
        mask = memory.masks.get(judged.verdict)
        return self._build(judged.verdict) if mask is None else mask

    def _remember(self, key: tuple[Masks, int, int, bytes, int], tokens_left: int) -> Judged:
        judged = self._judge(key[1], key[2], key[3], tokens_left)
        verdict = judged.verdict
        size = 500 + len(verdict.lives) + len(verdict.stops) + len(verdict.continues)
        return self._memory.judged.put(key, judged, size)

    def _judge(self, state: int, count: int, held: bytes, tokens_left: int) -> Judged:
        automaton = self.automaton
        walk = self._walk(state, held)
        distances = [automaton.distance(end, automaton.count(count, characters)) for end, characters in walk.pairs]
        cuts = [automaton.cut(at, automaton.count(count, characters)) for at, characters in walk.stop_pairs]
        ends = not held and automaton.holds(state, count)
        verdict = Verdict(
            self,
            state,
            held,
            bytes([distance < min(tokens_left, NEVER) for distance in distances]),
            bytes([cut is not None for cut in cuts]),
            ends,
            self._continues(state, count) if ends and automaton.closed else b"",
        )
        return Judged(verdict, 1 + max((distance for distance in distances if distance < NEVER), default=0))

    def _continues(self, state: int, count: int) -> bytes:
        """For every byte whether the text can go on with it."""
        automaton = self.automaton
        live = {
            edge.state
            for edge in automaton.edges(state)
            if automaton.distance(edge.state, automaton.count(count, edge.characters)) < NEVER
        }
        return bytes([after in live for after in automaton.row(state).tolist()])

    def _build(self, verdict: Verdict) -> Mask:
        vocabulary, held = self.vocabulary, verdict.held
        walk = self._walk(verdict.state, held)
        texts = np.zeros(len(vocabulary.texts) + 1, dtype=np.bool_)
        if walk.stop_first.size:
            fired = np.frombuffer(verdict.stops, dtype=np.bool_)[walk.stop_pair]
            steps = np.zeros(len(vocabulary.texts) + 1, dtype=np.intp)
            np.add.at(steps, walk.stop_first[fired], 1)
            np.subtract.at(steps, walk.stop_end[fired], 1)
            texts |= np.cumsum(steps) > 0
        texts[walk.texts] |= np.frombuffer(verdict.lives, dtype=np.bool_)[walk.pair]
        if verdict.continues:
            # tokens that continue no option or pattern end a complete one, if they can begin what follows (S18)
            continues = np.frombuffer(verdict.continues, dtype=np.bool_)
            texts[:-1] |= self._following & ~continues[vocabulary.first_byte]
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
            walk = self.vocabulary.walk(self.automaton, state, held)
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

    def advance(self, data: bytes) -> HoleMatcher:
        automaton, state, count = self.masks.automaton, self.state, self.count
        text = self.text + data
        if data and automaton.closed and automaton.holds(state, count) and not self._continues(data[0]):
            return replace(self, text=text, ending="end-of-text", length=len(self.text))
        for at, byte in enumerate(data, start=len(self.text) + 1):
            state = int(automaton.row(state)[byte])
            if state < 0:
                raise ValueError(f"{data!r} is not allowed after {self.text!r}")
            count = automaton.count(count, byte & 0xC0 != 0x80)
            cut = automaton.cut(state, count)
            if cut is not None:
                return replace(self, state=state, count=count, text=text, ending="stop", length=at - cut)
        moved = replace(self, state=state, count=count, text=text, length=len(text))
        if automaton.holds(state, count) and not moved._can_go_on():
            return replace(moved, ending="forced" if automaton.closed else "bound")
        return moved

    def _continues(self, byte: int) -> bool:
        automaton = self.masks.automaton
        after = int(automaton.row(self.state)[byte])
        return after >= 0 and automaton.distance(after, automaton.count(self.count, byte & 0xC0 != 0x80)) < NEVER

    def _can_go_on(self) -> bool:
        automaton = self.masks.automaton
        return any(
            automaton.distance(edge.state, automaton.count(self.count, edge.characters)) < NEVER
            for edge in automaton.edges(self.state)
        )

    def end(self, ending: Ending) -> HoleMatcher:
        return replace(self, ending=ending)

    def forced(self) -> bytes:
        automaton, state, count = self.masks.automaton, self.state, self.count
        forced = bytearray()
        if self.ending is not None:
            return b""
        while not automaton.holds(state, count):
            live = [
                edge
                for edge in automaton.edges(state)
                if automaton.distance(edge.state, automaton.count(count, edge.characters)) < NEVER
            ]
            if len(live) != 1 or live[0].how_many != 1:
                break
            forced.append(live[0].byte)
            state, count = live[0].state, automaton.count(count, live[0].characters)
            if automaton.cut(state, count) is not None:
                break
        return bytes(forced)

    def longest_valid(self, data: bytes) -> int:
        automaton, state, count = self.masks.automaton, self.state, self.count
        for at, byte in enumerate(data):
            state = int(automaton.row(state)[byte])
            if state < 0:
                return at
            count = automaton.count(count, byte & 0xC0 != 0x80)
            if automaton.cut(state, count) is not None:
                return len(data)
            if automaton.distance(state, count) >= NEVER:
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
        empty_only = automaton.holds(automaton.start, 0) and not start._can_go_on()
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
    """Blames the first conjunct after which nothing is left."""
    parts = term.terms if isinstance(term, And) else (term,)
    for many in range(1, len(parts) + 1):
        if _is_impossible(And(parts[:many])):
            guilty = parts[many - 1]
            clause = f"`{guilty.span.source}`" if guilty.span else "its condition"
            if isinstance(guilty, Constant):
                reason = f"{clause} is false"
            elif many == 1 or _is_impossible(guilty):
                reason = f"{clause} holds for no text"
            else:
                reason = f"{clause} contradicts the conditions before it"
            return ConstraintError(f"nothing can fill [{name}]: {reason}", span=guilty.span or span)
    raise AssertionError("only called for a term that nothing satisfies")


def _is_impossible(term: Term) -> bool:
    automaton = Automaton(term)
    return automaton.distance(automaton.start, 0) >= NEVER
