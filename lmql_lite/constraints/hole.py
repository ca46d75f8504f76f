"""The matcher of one hole: a configuration of its automaton, a vocabulary for masks, and the bytes so far."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.automaton import NEVER, Automaton
from lmql_lite.constraints.matcher import Ending
from lmql_lite.constraints.terms import And, Term
from lmql_lite.constraints.vocabulary import Vocabulary, Walk
from lmql_lite.errors import ConstraintError, Span

Mask = NDArray[np.bool_]

MASKS_KEPT = 4096


class Masks:
    """The masks of one automaton over one vocabulary, remembered per configuration.

    A walk over the vocabulary is made once per state; a mask then only asks the few distinct (end state, characters)
    pairs whether they can still end well.
    """

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary, following: bytes) -> None:
        self.automaton = automaton
        self.vocabulary = vocabulary
        self._walks: dict[int, tuple[Walk, NDArray[np.intp], list[tuple[int, int]]]] = {}
        self._masks: OrderedDict[tuple[int, int, bytes, int], Mask] = OrderedDict()
        self._following = np.zeros(vocabulary.size, dtype=np.bool_)
        if following:
            self._following[vocabulary.within(following)] = True
            self._following[[token for _, token in vocabulary.beginning_with(following)]] = True
        else:
            self._following[vocabulary.first_byte >= 0] = True

    def mask(self, state: int, count: int, held: bytes, tokens_left: int) -> Mask:
        # far from the limit it makes no difference, and one entry serves all
        nearness = tokens_left if tokens_left <= self.automaton.extent else -1
        key = (state, count, held, nearness)
        mask = self._masks.get(key)
        if mask is None:
            reach = NEVER - 1 if nearness < 0 else tokens_left - 1
            mask = self._held(state, count, held, reach) if held else self._free(state, count, reach)
            mask.flags.writeable = False
            self._masks[key] = mask
            if len(self._masks) > MASKS_KEPT:
                self._masks.popitem(last=False)
        return mask

    def _free(self, state: int, count: int, reach: int) -> Mask:
        automaton = self.automaton
        walk, pair_of_token, pairs = self._walk(state)
        mask = np.zeros(self.vocabulary.size, dtype=np.bool_)
        lives = [automaton.distance(end, automaton.count(count, characters)) <= reach for end, characters in pairs]
        mask[walk.tokens] = np.array(lives, dtype=np.bool_)[pair_of_token]
        for token, at, characters in walk.events:
            if not mask[token] and automaton.cut(at, automaton.count(count, characters)) is not None:
                mask[token] = True
        if automaton.holds(state, count):
            mask[self.vocabulary.eos] = True
            if automaton.closed:
                mask |= self._enders(state, count)
        return mask

    def _enders(self, state: int, count: int) -> Mask:
        """Tokens that continue no option end a complete choice (S18), if they can begin the text that follows."""
        automaton = self.automaton
        continues = np.zeros(257, dtype=np.bool_)  # the last place stands for "no bytes"
        after = {
            edge.state: automaton.distance(edge.state, automaton.count(count, edge.characters)) < NEVER
            for edge in automaton.edges(state)
        }
        for byte, next_state in enumerate(automaton.row(state).tolist()):
            continues[byte] = after.get(next_state, False)
        enders: Mask = self._following & ~continues[self.vocabulary.first_byte]
        return enders

    def _held(self, state: int, count: int, held: bytes, reach: int) -> Mask:
        """Tokens that agree with settled text: a part of it, or all of it and then something allowed."""
        mask = np.zeros(self.vocabulary.size, dtype=np.bool_)
        mask[self.vocabulary.within(held)] = True
        for data, token in self.vocabulary.beginning_with(held):
            mask[token] = self._judge(state, count, data[len(held) :], reach)
        return mask

    def _judge(self, state: int, count: int, data: bytes, reach: int) -> bool:
        """One token by itself; the same answer as the walk's."""
        automaton = self.automaton
        if data and automaton.closed and automaton.holds(state, count):
            step = int(automaton.row(state)[data[0]])
            counted = automaton.count(count, data[0] & 0xC0 != 0x80)
            if step < 0 or automaton.distance(step, counted) >= NEVER:
                return False  # it would end the hole with no byte kept, after text that still has to be said
        for byte in data:
            state = int(automaton.row(state)[byte])
            if state < 0:
                return False
            count = automaton.count(count, byte & 0xC0 != 0x80)
            if automaton.cut(state, count) is not None:
                return True
        # settled text belongs to no hole: reaching only its end costs the hole nothing
        return automaton.distance(state, count) <= (reach if data else NEVER - 1)

    def _walk(self, state: int) -> tuple[Walk, NDArray[np.intp], list[tuple[int, int]]]:
        known = self._walks.get(state)
        if known is None:
            walk = self.vocabulary.walk(self.automaton, state)
            width = int(walk.characters.max(initial=0)) + 1
            codes, pair_of_token = np.unique(walk.ends * width + walk.characters, return_inverse=True)
            pairs = [divmod(code, width) for code in codes.tolist()]
            known = self._walks[state] = (walk, pair_of_token, pairs)
        return known


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
    """Matchers for one vocabulary. Equal terms share their automaton and its masks; the rest is per hole."""

    AUTOMATA_KEPT = 256

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._masks: OrderedDict[tuple[Term, bytes], Masks] = OrderedDict()

    def matcher(self, term: Term, following: bytes, max_tokens: int, name: str, span: Span) -> HoleMatcher:
        """The beginning of a hole.

        `following` is the text known to come after it, b"" where it is not known. Raises ConstraintError, naming the
        clause, where nothing can fill the hole within `max_tokens` tokens.
        """
        key = (term, following)
        masks = self._masks.get(key)
        if masks is None:
            masks = self._masks[key] = Masks(Automaton(term), self.vocabulary, following)
            if len(self._masks) > self.AUTOMATA_KEPT:
                self._masks.popitem(last=False)
        automaton = masks.automaton
        if automaton.distance(automaton.start, 0) >= NEVER:
            raise _unsatisfiable(term, name, span)
        if automaton.distance(automaton.start, 0) > max_tokens and not automaton.holds(automaton.start, 0):
            shortest = automaton.distance(automaton.start, 0)
            raise ConstraintError(
                f"[{name}] may have {max_tokens} tokens, too few for what its condition asks for",
                span=term.span or span,
                hint=f"the shortest text that meets it has {shortest} bytes; raise max_tokens",
            )
        start = HoleMatcher(masks, automaton.start)
        empty_only = automaton.holds(automaton.start, 0) and not start._can_go_on()
        return replace(start, ending="forced") if empty_only else start


def _unsatisfiable(term: Term, name: str, span: Span) -> ConstraintError:
    """Blames the first conjunct after which nothing is left."""
    parts = term.terms if isinstance(term, And) else (term,)
    for many in range(1, len(parts) + 1):
        automaton = Automaton(And(parts[:many]))
        if automaton.distance(automaton.start, 0) >= NEVER:
            guilty = parts[many - 1]
            clause = f"`{guilty.span.source}`" if guilty.span else "its condition"
            alone = many == 1 or Automaton(guilty).distance(0, 0) >= NEVER
            reason = f"{clause} holds for no text" if alone else f"{clause} contradicts the conditions before it"
            return ConstraintError(f"nothing can fill [{name}]: {reason}", span=guilty.span or span)
    raise AssertionError("only called for a term that nothing satisfies")
