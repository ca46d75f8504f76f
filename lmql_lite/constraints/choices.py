"""Masks of a choice: its options stay sorted texts, however many they are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np

from lmql_lite.constraints.automaton import FAR, Flags, Place
from lmql_lite.constraints.masks import Advance, Memory
from lmql_lite.constraints.vocabulary import Vocabulary


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

    def longest_valid(self, place: Place, text: bytes, data: bytes) -> int:
        fits = self._left(text, data)
        return len(data) if self.may_end(place, text + data[:fits]) else fits

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
                mask |= ~np.isin(vocabulary.first_bytes, list(continues)) & (vocabulary.nodes > 0)
        return mask


def _shared(one: bytes, other: bytes) -> int:
    """Number of leading bytes that two texts share."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), min(len(one), len(other)))
