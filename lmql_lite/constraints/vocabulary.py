"""A model's vocabulary as a trie of bytes, laid out in levels so that numpy walks all tokens at once.

Tokens with equal bytes are one text here. Texts are sorted, so that those below a node of the trie are a range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.intp]
Flags = NDArray[np.bool_]


MAX_LEAP = 32
"""Most characters of a token that shortens a distance."""
LEAPS_OF_A_KIND = 3


class TokenTrie(NamedTuple):
    """The nodes of a trie of texts, numbered level by level from the root 0, and within a level by their texts.

    All ranges are half-open. The nodes at a depth are `levels[depth] .. levels[depth + 1]`, the children of a node
    `children[node] .. children[node + 1]`, and the texts that begin with a node `first .. end`. `key` is
    `parent * 256 + byte`, in ascending order. `ends` is true if a node is a whole text, the first of its range;
    `ending` lists those nodes.
    """

    levels: list[int]
    parent: IntArray
    byte: IntArray
    key: IntArray
    children: IntArray
    first: IntArray
    end: IntArray
    ends: Flags
    ending: IntArray


class Characters(NamedTuple):
    """The characters along the paths of a trie.

    `code` has for each node the number in `codes` of the character that ends with it, INSIDE or INVALID. `opened` has
    for a node inside a character the number in `ranges` of the characters that it may become, else -1. A range has the
    lowest and the highest code point, and the bytes to come.
    """

    code: NDArray[np.int32]
    codes: IntArray
    opened: NDArray[np.int32]
    ranges: list[tuple[int, int, int]]


INSIDE, INVALID = -1, -2
NO_BYTE = 256


class Vocabulary:
    """Tokens by their bytes, built once per tokenizer. Only `eos` has tokens without bytes (special, unused)."""

    def __init__(self, tokens: tuple[bytes | None, ...], eos: frozenset[int]) -> None:
        self.tokens = tokens
        self.size = len(tokens)
        self.eos: IntArray = np.array(sorted(eos), dtype=np.intp)
        by_text = sorted((data, token) for token, data in enumerate(tokens) if data and token not in eos)
        self.texts: list[bytes] = []
        starts: list[int] = []
        for at, (data, _) in enumerate(by_text):
            if not self.texts or self.texts[-1] != data:
                self.texts.append(data)
                starts.append(at)
        self.lengths: IntArray = np.array([len(data or b"") for data in tokens], dtype=np.intp)
        """Number of bytes of every token, shape (tokens,)."""
        self.first_bytes: NDArray[np.int16] = np.full(self.size, NO_BYTE, dtype=np.int16)
        """First byte of every token, NO_BYTE for tokens without bytes; shape (tokens,)."""
        for data, token in by_text:
            self.first_bytes[token] = data[0]
        self._by_text: IntArray = np.array([token for _, token in by_text], dtype=np.intp)
        self._starts: IntArray = np.array([*starts, len(by_text)], dtype=np.intp)
        """The tokens of a text are `_by_text[_starts[text] : _starts[text + 1]]`."""
        self.longest = max(map(len, self.texts), default=0)
        self.first_byte: NDArray[np.uint8] = np.array([text[0] for text in self.texts], dtype=np.uint8)
        """First byte of every text, shape (texts,)."""
        self.trie = self._lay_out()
        self.nodes: IntArray = np.zeros(self.size, dtype=np.intp)
        """Node of every token, the root for tokens without bytes; shape (tokens,)."""
        self.text_of: IntArray = np.full(self.size, len(self.texts), dtype=np.intp)
        """Text number of every token, `len(texts)` for tokens without bytes; shape (tokens,)."""
        self.text_of[self._by_text] = np.repeat(np.arange(len(self.texts)), np.diff(self._starts))
        self._containing: dict[bytes, IntArray] = {}
        self.nodes[self._by_text] = self._node_of_texts()[self.text_of[self._by_text]]

    @cached_property
    def spelling(self) -> Characters:
        """The characters along the paths of the trie."""
        parents, byte = self.trie.parent, self.trie.byte.copy()
        byte[0] = 0  # the root is whole
        code = np.where(byte < 0x80, byte, INVALID).astype(np.int32)
        opened = np.full(byte.size, -1, dtype=np.int32)
        begun, ranges = dict[int, bytes](), dict[tuple[int, int, int], int]()
        for node in np.flatnonzero(byte >= 0x80).tolist():  # level by level, so that a parent comes first
            data = begun.get(int(parents[node]), b"") + bytes([int(byte[node])])
            low, high, left = open_range(data) or (INVALID, INVALID, 0)
            code[node] = INSIDE if left else low
            if left:
                begun[node] = data
                opened[node] = ranges.setdefault((low, high, left), len(ranges))
        for first, end in pairwise(self.trie.levels[1:]):
            before = code[parents[first:end]]
            is_cut = (before == INSIDE) & (byte[first:end] < 0x80)
            code[first:end][is_cut | (before == INVALID)] = INVALID
        opened[code != INSIDE] = -1
        codes, code[code >= 0] = np.unique(code[code >= 0], return_inverse=True)
        return Characters(code, codes.astype(np.intp), opened, list(ranges))

    @cached_property
    def leaps(self) -> tuple[str, ...]:
        """Some tokens of each length, plain words above all: limits on tokens are judged by them (S19)."""
        found: dict[tuple[int, int, bool], list[str]] = {}
        for text in self.texts:
            if len(text) <= MAX_LEAP and text.isascii():
                said = text.decode()
                kind = len(said), len(said.split()) + said.count("\n"), said.strip().isalpha()
                several = found.setdefault(kind, [])
                if len(several) < LEAPS_OF_A_KIND:
                    several.append(said)
        return tuple(each for several in found.values() for each in several)

    def pieces(self, texts: Iterable[bytes]) -> list[str]:
        """Longest tokens at each place of these texts, without those of parts of characters."""
        found: dict[str, None] = {}
        for text in texts:
            for at in range(len(text)):
                longest = self.beginnings(text[at : at + MAX_LEAP])[-1:]
                found |= {self.texts[number].decode("utf-8", "replace"): None for number in longest}
        return [each for each in found if "\ufffd" not in each]

    @cached_property
    def numbers(self) -> dict[bytes, int]:
        """Number of each text."""
        return {text: number for number, text in enumerate(self.texts)}

    def containing(self, part: bytes) -> IntArray:
        """Tokens that contain these bytes, ascending."""
        if part not in self._containing:
            found = [token for token in self._by_text.tolist() if part in (self.tokens[token] or b"")]
            self._containing[part] = np.array(sorted(found), dtype=np.intp)
        return self._containing[part]

    def _lay_out(self) -> TokenTrie:
        sizes = np.array([len(text) for text in self.texts], dtype=np.intp)
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp)
        flat = np.frombuffer(b"".join(self.texts), dtype=np.uint8)
        # number of leading bytes that each text shares with the one before it
        shared = np.zeros(sizes.size, dtype=np.intp)
        alike = np.arange(1, sizes.size)
        for depth in range(self.longest):
            alike = alike[np.minimum(sizes[alike - 1], sizes[alike]) > depth]
            alike = alike[flat[starts[alike - 1] + depth] == flat[starts[alike] + depth]]
            shared[alike] = depth + 1
        firsts: list[IntArray] = [np.zeros(1, dtype=np.intp)]
        ends: list[IntArray] = [np.array([sizes.size], dtype=np.intp)]
        parents: list[IntArray] = [np.zeros(1, dtype=np.intp)]
        levels = [0, 1]
        for depth in range(1, self.longest + 1):
            borders = np.flatnonzero(shared < depth)  # where the texts of one node end and those of another begin
            after = np.append(borders[1:], sizes.size)
            long_enough = sizes[borders] >= depth
            first = borders[long_enough]
            parents.append(levels[-2] + np.searchsorted(firsts[-1], first, side="right") - 1)
            firsts.append(first)
            ends.append(after[long_enough])
            levels.append(levels[-1] + first.size)
        first, parent = np.concatenate(firsts), np.concatenate(parents)
        depths = np.repeat(np.arange(self.longest + 1), np.diff(levels))
        byte = flat[np.maximum(starts[first] + depths - 1, 0)].astype(np.intp) if flat.size else np.zeros(1, np.intp)
        complete = (sizes[first] == depths) & (depths > 0) if flat.size else np.zeros(1, dtype=np.bool_)
        key = parent * 256 + byte
        key[0] = -1  # the root has no parent
        return TokenTrie(
            levels=levels,
            parent=parent,
            byte=byte,
            key=key,
            children=1 + np.searchsorted(parent[1:], np.arange(first.size + 1)),
            first=first,
            end=np.concatenate(ends),
            ends=complete,
            ending=np.flatnonzero(complete),
        )

    def _node_of_texts(self) -> IntArray:
        nodes = np.empty(len(self.texts), dtype=np.intp)
        nodes[self.trie.first[self.trie.ending]] = self.trie.ending
        return nodes

    # Looking up --------------------------------------------------------------------------------------------------

    def node(self, text: bytes) -> int | None:
        """Node of the trie for this text; None if no token begins with it."""
        here = 0
        for byte in text:
            child = int(np.searchsorted(self.trie.key, here * 256 + byte))
            if child == self.trie.key.size or self.trie.key[child] != here * 256 + byte:
                return None
            here = child
        return here

    def beginning_with(self, prefix: bytes) -> range:
        """Range of all texts that begin with `prefix`, itself included."""
        return range(bisect_left(self.texts, prefix), bisect_right(self.texts, prefix + b"\xff" * self.longest))

    def between(self, low: bytes, high: bytes) -> range:
        """Range of all texts from `low` on, and before `high`."""
        return range(bisect_left(self.texts, low), bisect_left(self.texts, high))

    def tokens_within(self, first: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
        """Tokens of the texts in many ranges `first .. end`, and for each token the index of its range."""
        low, high = self._starts[first], self._starts[end]
        sizes = high - low
        which = np.repeat(np.arange(sizes.size), sizes)
        return self._by_text[np.arange(which.size) + (low - np.cumsum(sizes) + sizes)[which]], which

    def tokens_of(self, texts: list[int]) -> IntArray:
        found = np.array(texts, dtype=np.intp)
        return self.tokens_within(found, found + 1)[0]

    def allowing(self, texts: Flags) -> Flags:
        """Flags of all tokens, shape (tokens,), from flags of the texts. False for tokens without bytes."""
        return np.append(texts[: len(self.texts)], False).take(self.text_of, mode="clip")

    def beginnings(self, text: bytes) -> list[int]:
        """All texts that are a prefix of `text`, itself included."""
        whole = self.beginning_with(text)[:1]
        return self.within(text) + [index for index in whole if self.texts[index] == text]

    def within(self, text: bytes) -> list[int]:
        """All texts that are a proper prefix of `text`."""
        found = []
        for length in range(1, min(len(text), self.longest + 1)):
            index = bisect_left(self.texts, text[:length])
            if index < len(self.texts) and self.texts[index] == text[:length]:
                found.append(index)
        return found

    def extends(self, text: bytes) -> bool:
        """True if some token begins with `text` and is longer. Then text that ends so may be tokenised differently."""
        return any(self.texts[index] != text for index in self.beginning_with(text)[:2])


def open_range(data: bytes) -> tuple[int, int, int] | None:
    """Lowest and highest character that these bytes begin, and the bytes to come; None if they begin none."""
    size = 1 + (data[0] >= 0xC2) + (data[0] >= 0xE0) + (data[0] >= 0xF0)
    left = size - len(data)
    if left < 0 or 0x80 <= data[0] < 0xC2 or data[0] > 0xF4 or not all(0x80 <= byte < 0xC0 for byte in data[1:]):
        return None
    value = data[0] if size == 1 else data[0] & 0xFF >> size + 1
    for byte in data[1:]:
        value = value << 6 | byte & 0x3F
    low = max(value << 6 * left, (0, 0, 0x80, 0x800, 0x10000)[size])
    high = min((value + 1 << 6 * left) - 1, 0x10FFFF)
    return None if low > high or (low >= 0xD800 and high <= 0xDFFF) else (low, high, left)
