"""Masks over a vocabulary at the places of one automaton. Bytes exist only here: tokens may end inside characters."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import cached_property
from operator import add
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.automaton import FAR, NOWHERE, Automaton, Flags, Place
from lmql_lite.constraints.counts import IntArray, Values
from lmql_lite.constraints.terms import Ending, Stop, starts_character
from lmql_lite.constraints.vocabulary import INSIDE, NO_BYTE, Vocabulary

MASKS_BYTES = 64 * 2**20
WALKS_BYTES = 128 * 2**20
MAX_LEFT = 3
"""Most bytes that a character lacks."""
MAX_KEYS = 2**21
"""Most keys of rows that are told apart without sorting them."""
CONTINUING = (b"\x80", b"\xc0")
"""First byte of those that continue a character, and the byte after the last one."""

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


class Advance(NamedTuple):
    """Place after a token, and if the hole has ended, why. The value ends `cut` bytes before the end of the token."""

    place: Place
    ending: Ending | None
    cut: int


class Reached(NamedTuple):
    """Distinct places to which tokens lead: states and what was added to the counts.

    A place inside a character has number `owners[i]` for each class that the character may have: it is as far from an
    end as the nearest of the places `states[i]` after it, and the bytes `left[i]` to it.
    """

    states: IntArray
    added: IntArray
    owners: IntArray
    next_states: IntArray
    next_added: IntArray
    left: IntArray

    def far(self, automaton: Automaton, values: Values) -> IntArray:
        here = np.array(values, dtype=np.intp)
        far = automaton.far(self.states, self.added + here)
        if self.owners.size:
            far[self.owners] = FAR
            np.minimum.at(far, self.owners, automaton.far(self.next_states, self.next_added + here) + self.left)
        return np.minimum(far, FAR)


class Stopped(NamedTuple):
    """Tokens that pass a stop, by the place where the value is judged: that of the stop, or of the text before it.

    A place of the text before the token is given by the number of `characters` from its end, else that is -1.
    """

    stop: Stop
    states: IntArray
    added: IntArray
    characters: IntArray
    tokens: IntArray
    which: NDArray[np.int32]


class Passed(NamedTuple):
    """Tokens that leave a complete value at some place and go on with the text that follows the hole.

    `at_start` is true for the place before the token.
    """

    states: IntArray
    added: IntArray
    at_start: Flags
    tokens: IntArray
    which: NDArray[np.int32]


class Walk(NamedTuple):
    """All that tokens lead to from one state. `which` has the number in `ends` of every token, shape (vocabulary,)."""

    ends: Reached
    which: NDArray[np.int32]
    stopped: list[Stopped]
    passed: Passed | None

    @property
    def size_bytes(self) -> int:
        return 1000 + self.which.nbytes + 16 * sum(each.tokens.size for each in (*self.stopped, self.passed) if each)


class Memory:
    """Caches of the masks of one vocabulary, bounded in bytes."""

    def __init__(self) -> None:
        self.walks: Recent[tuple[Automaton, bytes, int, bytes], Walk] = Recent(WALKS_BYTES)
        self.masks: Recent[tuple[object, ...], Flags] = Recent(MASKS_BYTES)


class Masks:
    """Masks of one automaton over one vocabulary, and the effect of tokens."""

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary, following: bytes, memory: Memory) -> None:
        self.automaton = automaton
        self.vocabulary = vocabulary
        self._memory = memory
        self._following = following if automaton.closed else b""
        self._key = automaton, self._following
        self.start = automaton.origin
        self._latest: tuple[object, Advance | None] = None, None
        """Arguments and result of the last `after`."""

    @property
    def shortest(self) -> int:
        """Distance of the empty text; FAR if nothing meets the condition. Raises TooLarge."""
        return self.automaton.shortest

    @property
    def size_bytes(self) -> int:
        return self.automaton.size_bytes

    @property
    def is_empty(self) -> bool:
        """True if the empty text is the only value."""
        return self.automaton.must_end(self.start)

    def may_end(self, place: Place, text: bytes) -> bool:
        return self.automaton.holds(place)

    def lives(self, place: Place, text: bytes) -> bool:
        return self.automaton.lives(place)

    @cached_property
    def _kinds(self) -> NDArray[np.int32]:
        """Class of the character that ends at each node of the trie, INSIDE or INVALID."""
        spelling, kinds = self.vocabulary.spelling, self.automaton.classes
        of_codes = np.append(kinds.of_codes(spelling.codes), [-2, -1]).astype(np.int32)
        return of_codes[spelling.code]

    @cached_property
    def _open_kinds(self) -> list[list[int]]:
        """Classes that the characters of each open range may have."""
        return [self.automaton.classes.between(low, high) for low, high, _ in self.vocabulary.spelling.ranges]

    # Judging -----------------------------------------------------------------------------------------------------

    def certain(self, place: Place, text: bytes) -> int:
        """Number of leading bytes of the text that no stop can cut off any more."""
        if not self.automaton.cuts_back:
            return len(text)
        whole = text[: len(text) - len(place.begun)]
        return len(whole) - bytes_of_last(whole, self.automaton.undecided(place.state))

    def after(self, place: Place, text: bytes, data: bytes, tokens: int) -> Advance | None:
        """Effect of bytes that follow a text and count as `tokens` tokens; None if they are not allowed."""
        asked, (known, found) = (place, text, data, tokens), self._latest
        if asked != known:  # a token that fits is taken next
            found = self._after(*asked)
            self._latest = asked, found
        return found

    def _after(self, place: Place, text: bytes, data: bytes, tokens: int) -> Advance | None:
        automaton, before = self.automaton, place.values
        place = place._replace(values=automaton.counts.add(before, tuple(tokens * one for one in automaton.token)))
        said, at, left = text + data, len(text) - len(place.begun), None
        for here, there, end in self._places(place, text, data):
            if left is None and automaton.closed and at >= len(text):
                ended = here._replace(values=before) if at == len(text) else here
                if automaton.holds(ended) and not automaton.lives(here._replace(begun=said[at : at + 1])):
                    left = Advance(ended, "end-of-text", len(said) - at)  # unless the whole token can be kept
            place, at = there, end
            if place.state == NOWHERE:
                return left
            back = None if place.begun else automaton.fired(place, here)
            if back is not None:
                return Advance(place, "stop", bytes_of_last(said[:at], back) + len(said) - at)
        if not automaton.lives(place):
            return left
        is_over: Ending = "forced" if automaton.closed else "bound"
        return Advance(place, is_over if automaton.must_end(place) else None, 0)

    def _places(self, place: Place, text: bytes, data: bytes) -> Iterator[tuple[Place, Place, int]]:
        """Places before and after each character of data that follow a text, with the end of the character.

        The first character may have begun in the text, and the last one may be incomplete.
        """
        automaton, said, at = self.automaton, text + data, len(text) - len(place.begun)
        here = place._replace(begun=b"")
        while at < len(said):
            character = next_character(said, at)
            if character is None:
                yield here, here._replace(begun=said[at:]), len(said)
                return
            at += len(character.encode())
            there = automaton.step(here, automaton.classes.of_character(character))
            yield here, there, at
            here = there

    def forced(self, place: Place, text: bytes) -> bytes:
        """Characters that must come next whatever the model prefers."""
        automaton = self.automaton
        found = ""
        if place.begun or any(automaton.token):
            return b""
        while not automaton.holds(place):
            ways = np.flatnonzero(automaton.ways(place))
            only = automaton.classes.only(int(ways[0])) if ways.size == 1 else None
            if only is None:
                break
            found += only
            place = automaton.step(place, int(ways[0]))
            if any(automaton.cuts(place.state)):
                break
        return found.encode()

    # Masks -------------------------------------------------------------------------------------------------------

    def mask(self, place: Place, text: bytes, held: bytes, tokens_left: int) -> Flags:
        automaton, memory = self.automaton, self._memory
        if place.begun or CONTINUING[0] <= held[:1] < CONTINUING[1]:
            return self._inside_character(place, text, held, tokens_left)
        limit = tokens_left if tokens_left <= automaton.farthest + MAX_LEFT else FAR
        alike = automaton.alike(place.state, place.values, self.vocabulary.longest)
        key = *self._key, alike, place.before, held, limit
        mask = memory.masks.get(key)
        if mask is None:
            mask = self._mask(place, held, limit)
            mask.flags.writeable = False
            mask = memory.masks.put(key, mask, mask.nbytes + 1000)
        return mask

    def _mask(self, place: Place, held: bytes, tokens_left: int) -> Flags:
        automaton, vocabulary = self.automaton, self.vocabulary
        walk = self._walk(place.state, held)
        here = automaton.counts.add(place.values, automaton.token)
        far = walk.ends.far(automaton, here)
        ends = not held and automaton.holds(place)
        mask = np.zeros(vocabulary.size, dtype=np.bool_)
        if walk.passed is not None:
            mask[walk.passed.tokens[self._complete(walk.passed, place, here)[walk.passed.which]]] = True
        if ends and automaton.closed and not self._following:
            # tokens that continue no option or pattern end a complete one (S18)
            mask |= ~automaton.first_bytes(place._replace(values=here))[vocabulary.first_bytes]
        if mask.any():
            mask &= (far == FAR)[walk.which]  # a token that goes on with the value is judged by its end alone
        mask |= (far < tokens_left)[walk.which]
        for stopped in walk.stopped:
            mask[stopped.tokens[self._fired(stopped, place, here)[stopped.which]]] = True
        if held:
            # `held` is settled and belongs to no hole, so a token that is a prefix of it costs the hole nothing
            mask[vocabulary.tokens_of(vocabulary.beginnings(held))] = True
        mask[vocabulary.eos] = ends
        return mask

    def _fired(self, stopped: Stopped, place: Place, here: Values) -> Flags:
        states, values = stopped.states, stopped.added + np.array(here, dtype=np.intp)
        if place.before:
            states, values = states.copy(), values.copy()
            for at in np.flatnonzero(stopped.characters > 0).tolist():
                states[at], values[at] = place.before[-stopped.characters[at]]
        values = self.automaton.counts.with_tokens_of(values, here)
        return self.automaton.fires(stopped.stop, states, values)

    def _complete(self, passed: Passed, place: Place, here: Values) -> Flags:
        """Flags of the places that are complete values and that the following text does not continue."""
        automaton = self.automaton
        values = passed.added + np.array(here, dtype=np.intp)
        values[passed.at_start] = place.values
        found: Flags = automaton.far(passed.states, values) == 0
        for at in np.flatnonzero(found).tolist():
            left = Place(int(passed.states[at]), tuple((passed.added[at] + here).tolist()))
            found[at] = not automaton.first_bytes(left)[self._following[0]]
        return found

    def _inside_character(self, place: Place, text: bytes, held: bytes, tokens_left: int) -> Flags:
        """The mask where only few tokens can be allowed: those that begin with the rest of a character."""
        vocabulary, found = self.vocabulary, list[int]()
        for number in vocabulary.beginning_with(held) if held else vocabulary.between(*CONTINUING):
            data = vocabulary.texts[number][len(held) :]
            after = self.after(place, text, data, 1) if data else None
            if after is None:
                continue
            rest = data[len(data) - after.cut :]
            if after.ending == "end-of-text":
                follows = self._following.startswith(rest) or rest.startswith(self._following)
                found += [number] if (self._following and follows) or (not held and after.cut == len(data)) else []
            elif after.ending or self.automaton.distance(after.place) < tokens_left:
                found.append(number)
        mask = np.zeros(vocabulary.size, dtype=np.bool_)
        mask[vocabulary.tokens_of([*found, *(vocabulary.beginnings(held) if held else ())])] = True
        mask.flags.writeable = False
        return mask

    # Walks -------------------------------------------------------------------------------------------------------

    def _walk(self, state: int, held: bytes) -> Walk:
        key = *self._key, state, held
        walk = self._memory.walks.get(key)
        if walk is None:
            walk = self._walked(state, held)
            self._memory.walks.put(key, walk, walk.size_bytes)
        return walk

    def _walked(self, state: int, held: bytes) -> Walk:
        automaton, vocabulary, trie = self.automaton, self.vocabulary, self.vocabulary.trie
        at, sums, added = np.zeros(trie.first.size, dtype=np.int32), Sums(automaton), np.zeros(0, dtype=np.int32)
        if automaton.counts.units:
            added = np.zeros(trie.first.size, dtype=np.int32)
        kinds = self._kinds
        root = vocabulary.node(held)
        nodes = np.array([] if root is None else [root], dtype=np.intp)
        at[nodes] = state
        reached = [nodes]
        while nodes.size:
            first = trie.children[nodes]
            sizes = trie.children[nodes + 1] - first
            parent = np.repeat(np.arange(sizes.size), sizes)
            children = np.arange(parent.size) + (first - np.cumsum(sizes) + sizes)[parent]
            kind, here = kinds[children], at[nodes][parent]
            valid = kind > -2
            children, kind, here, parent = children[valid], kind[valid], here[valid], parent[valid]
            whole = kind >= 0
            after, codes = automaton.follow(here[whole], kind[whole])
            at[children] = here
            at[children[whole]] = after
            if added.size:
                added[children] = added[nodes][parent]
                added[children[whole]] = sums.after(added[children[whole]], codes)
            nodes = children[at[children] != NOWHERE]
            reached.append(nodes)
        met = np.concatenate(reached)
        gained = sums.vectors if added.size else np.zeros((1, 0), dtype=np.intp)
        if not added.size:
            added = np.broadcast_to(np.zeros(1, dtype=np.int32), trie.first.shape)
        return Walk(
            *self._ends(met, at, added, gained),
            self._stopped(met, root, at, added, gained),
            self._passed(met, root, at, added, gained),
        )

    def _ends(
        self, met: IntArray, at: NDArray[np.int32], added: NDArray[np.int32], gained: IntArray
    ) -> tuple[Reached, NDArray[np.int32]]:
        """Places at the ends of tokens. The first one is nowhere, for tokens that do not fit."""
        automaton, vocabulary, trie, spelling = (
            self.automaton,
            self.vocabulary,
            self.vocabulary.trie,
            self.vocabulary.spelling,
        )
        nodes = met[trie.ends[met]]
        first, number = distinct_rows(at[nodes], spelling.opened[nodes] + 1, added[nodes])
        which = np.zeros(vocabulary.size, dtype=np.int32)
        tokens, text = vocabulary.tokens_within(trie.first[nodes], trie.first[nodes] + 1)
        which[tokens] = number[text] + 1
        ends = np.append(NOWHERE, at[nodes][first]).astype(np.intp)
        gains = np.concatenate([np.zeros((1, gained.shape[1]), dtype=np.intp), gained[added[nodes][first]]])
        opens = np.append(-1, spelling.opened[nodes][first])
        owners, kinds = list[int](), list[int]()
        for owner in np.flatnonzero(opens >= 0).tolist():
            several = self._open_kinds[opens[owner]]
            owners += [owner] * len(several)
            kinds += several
        owning = np.array(owners, dtype=np.intp)
        after, codes = automaton.follow(ends[owning], np.array(kinds, dtype=np.intp))
        left = np.array([spelling.ranges[number][2] for number in opens[owning].tolist()], dtype=np.intp)
        # the rest of a character costs tokens
        more = automaton.vectors[codes] + left[:, None] * np.array(automaton.token, dtype=np.intp)
        return Reached(ends, gains, owning, after, gains[owning] + more, left), which

    def _stopped(
        self, met: IntArray, root: int | None, at: NDArray[np.int32], added: NDArray[np.int32], gained: IntArray
    ) -> list[Stopped]:
        automaton, trie, whole = self.automaton, self.vocabulary.trie, self._kinds
        found = []
        for stop, cut, states in automaton.stopping if automaton.stops else ():
            nodes = met[np.isin(at[met], states) & (whole[met] >= 0) & (met != root)]
            judged, characters = nodes.copy(), np.full(nodes.size, cut)
            while (moving := (characters > 0) & (judged > 0)).any():
                characters[moving] -= whole[judged[moving]] >= 0
                judged[moving] = trie.parent[judged[moving]]
                inside = moving & (characters == 0) & (whole[judged] == INSIDE)
                while inside.any():  # the value ends where a character does
                    judged[inside] = trie.parent[judged[inside]]
                    inside &= whole[judged] == INSIDE
            states_of = at[judged].astype(np.intp)
            first, which = distinct_rows(states_of, characters, added[judged])
            tokens, ranges = self.vocabulary.tokens_within(trie.first[nodes], trie.end[nodes])
            judged_at = states_of[first], gained[added[judged[first]]], characters[first]
            found.append(Stopped(stop, *judged_at, tokens, which[ranges]))
        return found

    def _passed(
        self, met: IntArray, root: int | None, at: NDArray[np.int32], added: NDArray[np.int32], gained: IntArray
    ) -> Passed | None:
        """Tokens that read the following text after a place between two characters."""
        vocabulary, trie = self.vocabulary, self.vocabulary.trie
        if not self._following or root is None:
            return None
        origins = met[(self._kinds[met] >= 0) | (met == root)]
        nodes, number = origins, np.arange(origins.size)
        first, end, which = [], [], []
        for byte in self._following:
            child = np.searchsorted(trie.key, nodes * 256 + byte)
            exists = trie.key[np.minimum(child, trie.key.size - 1)] == nodes * 256 + byte
            nodes, number = child[exists], number[exists]
            whole = trie.ends[nodes]
            first.append(trie.first[nodes[whole]])
            end.append(trie.first[nodes[whole]] + 1)
            which.append(number[whole])
        first.append(trie.first[nodes])
        end.append(trie.end[nodes])
        which.append(number)
        tokens, ranges = vocabulary.tokens_within(np.concatenate(first), np.concatenate(end))
        number = np.concatenate(which)[ranges]
        used, number = np.unique(number, return_inverse=True)
        places = origins[used]
        states, at_start = at[places].astype(np.intp), places == root
        distinct, which_place = distinct_rows(states, at_start, added[places])
        judged_at = states[distinct], gained[added[places[distinct]]], at_start[distinct]
        return Passed(*judged_at, tokens, which_place[number.ravel()])


class Sums:
    """Sums of increments of the counts along the paths of a walk. A sum is a number; zero is the sum of none."""

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        zero = automaton.counts.zero
        self._numbers: dict[tuple[int, ...], int] = {zero: 0}

    @property
    def vectors(self) -> IntArray:
        """The sums by their numbers, shape (sums, units)."""
        return np.array(list(self._numbers), dtype=np.intp)

    def after(self, sums: NDArray[np.int32], codes: NDArray[np.int16]) -> NDArray[np.int32]:
        """Sums with one more increment each."""
        increments = self._automaton.vectors.tolist()
        width = len(increments)
        pairs = sums.astype(np.intp) * width + codes
        distinct = np.flatnonzero(np.bincount(pairs))
        known, vectors = list(self._numbers), list[int]()
        for pair in distinct.tolist():
            sum_of = tuple(map(add, known[pair // width], increments[pair % width]))
            vectors.append(self._numbers.setdefault(sum_of, len(self._numbers)))
        numbers = np.zeros(int(distinct.max(initial=0)) + 1, dtype=np.int32)
        numbers[distinct] = vectors
        after: NDArray[np.int32] = numbers[pairs]
        return after


def distinct_rows(*columns: NDArray[np.integer]) -> tuple[IntArray, NDArray[np.int32]]:
    """An index of each distinct row, and the number of every row, from columns of small numbers."""
    key = columns[0].astype(np.int64)
    for column in columns[1:]:
        key = key * (int(column.max(initial=0)) + 1) + column
    size = int(key.max(initial=0)) + 1
    if size > MAX_KEYS:
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        return first, which.ravel().astype(np.int32)
    index = np.full(size, -1, dtype=np.int32)
    index[key] = np.arange(key.size, dtype=np.int32)
    distinct = np.flatnonzero(index >= 0)
    number = np.zeros(size, dtype=np.int32)
    number[distinct] = np.arange(distinct.size, dtype=np.int32)
    return index[distinct].astype(np.intp), number[key]


def next_character(data: bytes, at: int) -> str | None:
    """The whole character at a place of the data; None if there is none."""
    byte = data[at]
    size = 1 + (byte >= 0xC2) + (byte >= 0xE0) + (byte >= 0xF0)
    try:
        return data[at : at + size].decode()
    except UnicodeDecodeError:
        return None


def bytes_of_last(text: bytes, characters: int) -> int:
    """Number of bytes of the last characters of a text."""
    at = len(text)
    while characters:
        at -= 1
        characters -= starts_character(text[at])
    return len(text) - at


class ChoiceMasks:
    """Masks of a hole whose value is one of some texts. A place is given by the text."""

    def __init__(self, options: Iterable[bytes], vocabulary: Vocabulary, following: bytes, memory: Memory) -> None:
        self.vocabulary = vocabulary
        self._options = sorted(set(options))
        self._following = following
        self._memory = memory
        self.start = Place(0, ())
        self.shortest = min(map(len, self._options))
        self._longest = max(map(len, self._options))
        self.is_empty = self._options == [b""]
        self.size_bytes = 1000 + sum(100 + len(option) for option in self._options)

    def may_end(self, place: Place, text: bytes) -> bool:
        at = bisect_left(self._options, text)
        return at < len(self._options) and self._options[at] == text

    def lives(self, place: Place, text: bytes) -> bool:
        return bool(self._beginning_with(text))

    def certain(self, place: Place, text: bytes) -> int:
        return len(text)

    def _beginning_with(self, text: bytes) -> list[bytes]:
        first = bisect_left(self._options, text)
        return self._options[first : bisect_left(self._options, text + b"\xff", first)]

    def _left(self, text: bytes, data: bytes) -> int:
        """Number of leading bytes of the data that continue an option."""
        return bisect_left(range(len(data)), True, key=lambda at: not self._beginning_with(text + data[: at + 1]))

    def after(self, place: Place, text: bytes, data: bytes, tokens: int) -> Advance | None:
        fits = self._left(text, data)
        if fits == len(data):
            is_over = self._beginning_with(text + data) == [text + data]
            return Advance(place, "forced" if is_over else None, 0)
        return Advance(place, "end-of-text", len(data) - fits) if self.may_end(place, text + data[:fits]) else None

    def forced(self, place: Place, text: bytes) -> bytes:
        several = self._beginning_with(text)
        return several[0][len(text) : _shared(several[0], several[-1])]

    def mask(self, place: Place, text: bytes, held: bytes, tokens_left: int) -> Flags:
        limit = tokens_left if tokens_left <= self._longest else FAR
        key = self, text, held, limit
        mask = self._memory.masks.get(key)
        if mask is None:
            mask = self._mask(text, held, limit)
            mask.flags.writeable = False
            self._memory.masks.put(key, mask, mask.nbytes + 1000)
        return mask

    def _mask(self, text: bytes, held: bytes, tokens_left: int) -> Flags:
        vocabulary, following, found = self.vocabulary, self._following, set[int]()
        numbers, longest, said = vocabulary.numbers, vocabulary.longest, b""
        options = self._beginning_with(text)
        for option in options:
            rest = held + option[len(text) :]
            shared = _shared(said, rest) if tokens_left >= FAR else len(held)
            nearest = max(shared, len(held), len(rest) - tokens_left) + 1
            found.update(numbers.get(rest[:end], -1) for end in range(nearest, min(len(rest), longest) + 1))
            if following and len(rest) < longest and not self._beginning_with(option + following[:1]):
                ends = range(len(rest) + 1, min(len(rest) + len(following), longest) + 1)
                found.update(numbers.get((rest + following)[:end], -1) for end in ends)
                found.update(vocabulary.beginning_with(rest + following))
            said = rest
        found.update(vocabulary.beginnings(held) if held else ())
        mask = np.zeros(vocabulary.size, dtype=np.bool_)
        mask[vocabulary.tokens_of(sorted(found - {-1}))] = True
        if options[0] == text and not held:
            mask[vocabulary.eos] = True
            if not following:  # any token that continues no option ends the hole (S18)
                continues = {option[len(text)] for option in options if len(option) > len(text)}
                mask |= ~np.isin(vocabulary.first_bytes, [*continues, NO_BYTE])
        return mask


def _shared(one: bytes, other: bytes) -> int:
    """Number of leading bytes that two texts share."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), min(len(one), len(other)))
