"""Keys and values of live sequences: buffers that forks share, and the sequences that are at hand, bounded in bytes.

A sequence is a list of buffers and a length. A sequence that ends where its buffer ends grows in place; any other one
goes on in a buffer of its own and shares what is before it. To cut a sequence is arithmetic, to fork it copies nothing,
or in pages (`align`) at most the tokens of one page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

from lmql_lite.models.base import KVScope
from lmql_lite.tokens import common_length

if TYPE_CHECKING:
    import torch

    Pair = tuple[torch.Tensor, torch.Tensor]
    """Keys and values of a layer, each [heads, tokens, head size]."""

PAGE = 256
"""Tokens of a page: step of the sums of exact attention, as of the chunks on the tiers."""
_GRAIN = 32
"""Room is made for at least this many tokens at once, where nothing needs whole pages."""
_MOST_BUFFERS = 8
"""A sequence of more buffers is copied into one when it grows."""
_REDO_TOKENS = 16
"""A sequence that leaves another at most this many tokens before its end replaces it."""


class KVBuffer:
    """Keys and values of consecutive tokens, for each layer; the first of them stands at place `begin` of its sequence.

    Places from `end` on are free. A `closed` buffer never grows.
    """

    __slots__ = ("begin", "closed", "end", "parts")

    def __init__(self, begin: int, end: int, parts: dict[int, Pair] | None = None) -> None:
        self.begin, self.end = begin, end
        self.parts: dict[int, Pair] = {} if parts is None else parts
        self.closed = parts is not None

    def room(self, layer: int, keys: torch.Tensor, values: torch.Tensor, count: int, align: int) -> Pair:
        """Tensors of a layer with room for `count` tokens; `keys` and `values` tell heads, sizes and precision."""
        old = self.parts.get(layer)
        if old is not None and old[0].shape[1] >= count:
            return old
        grain = align if align > 1 else _GRAIN
        wanted = max(count, 0 if old is None else min(2 * old[0].shape[1], old[0].shape[1] + 8 * PAGE))
        size = -(-wanted // grain) * grain
        new = (
            keys.new_zeros(keys.shape[0], size, keys.shape[2]),
            values.new_zeros(values.shape[0], size, values.shape[2]),
        )
        if old is not None:
            for before, after in zip(old, new, strict=True):
                after[:, : before.shape[1]] = before
        self.parts[layer] = new
        return new

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for pair in self.parts.values() for tensor in pair)


@dataclass(frozen=True, slots=True)
class KVSequence:
    """Keys and values of `length` tokens. Each buffer covers the places up to the beginning of the next one."""

    buffers: tuple[KVBuffer, ...] = ()
    length: int = 0

    def cut(self, length: int) -> KVSequence:
        """The first tokens; nothing is copied."""
        return KVSequence(tuple(buffer for buffer in self.buffers if buffer.begin < length), length)

    def grown(self, count: int, align: int) -> tuple[KVSequence, int]:
        """The sequence with room for `count` more tokens, and the place from which on its last buffer must be filled:
        that of the first new token, or before it, where known tokens have to be copied."""
        length = self.length + count
        last = self.buffers[-1] if self.buffers else None
        if last is not None and last.end == self.length and not last.closed and len(self.buffers) <= _MOST_BUFFERS:
            last.end = length
            return KVSequence(self.buffers, length), self.length
        begin = self.length - self.length % align if len(self.buffers) < _MOST_BUFFERS else 0
        kept = tuple(buffer for buffer in self.buffers if buffer.begin < begin)
        return KVSequence((*kept, KVBuffer(begin, length)), length), begin

    def spans(self, layer: int, begin: int = 0) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Keys and values from place `begin` on, buffer by buffer, each with the place of its first token."""
        ends = [*(buffer.begin for buffer in self.buffers[1:]), self.length]
        for buffer, end in zip(self.buffers, ends, strict=True):
            first = max(begin, buffer.begin)
            if first < end:
                keys, values = buffer.parts[layer]
                cut = slice(first - buffer.begin, end - buffer.begin)
                yield first, keys[:, cut], values[:, cut]

    def kv(self, begin: int = 0) -> tuple[Pair, ...]:
        """Keys and values of all layers from place `begin` on."""
        import torch

        layers = []
        for layer in sorted(self.buffers[0].parts):
            _, keys, values = zip(*self.spans(layer, begin), strict=True)
            layers.append((torch.cat(keys, 1), torch.cat(values, 1)) if len(keys) > 1 else (keys[0], values[0]))
        return tuple(layers)

    @classmethod
    def of(cls, kv: Iterable[Pair], length: int) -> KVSequence:
        """Sequence over tensors that somebody else made; they are not changed."""
        return cls((KVBuffer(0, length, dict(enumerate(kv))),), length)


class Lane(NamedTuple):
    """Sequences that can go on from each other: those whose keys have one `band` of a rotation, and one scope."""

    band: int = 0
    scope: ref[KVScope] | None = None

    @classmethod
    def of(cls, band: int, scope: KVScope | None) -> Lane:
        return cls(band, None if scope is None else ref(scope))

    @property
    def is_left(self) -> bool:
        """True if nothing will go on in this lane: its scope has ended."""
        return self.scope is not None and self.scope() is None


SHARED = Lane()
"""Lane of short texts of all runs."""


@dataclass(frozen=True, slots=True)
class LiveSequence:
    """Tokens, and their keys and values."""

    ids: tuple[int, ...]
    kv: KVSequence
    lane: Lane = SHARED


class LiveSequences:
    """Sequences whose keys and values are at hand, at most `max_bytes` of them, the least recently used leaves first.

    A sequence that is the beginning of another one is not listed: it is a cut of the other one.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.all: list[LiveSequence] = []

    def longest(self, ids: tuple[int, ...], limit: int, lane: Lane = SHARED) -> tuple[LiveSequence | None, int]:
        """The sequence of a lane that shares most of the first `limit` tokens, and how many it shares."""
        best, most = None, 0
        for live in reversed(self.all):
            if live.lane != lane:
                continue
            count = len(live.ids)
            if count <= limit and count and live.ids[-1] == ids[count - 1] and live.ids == ids[:count]:
                shared = count
            else:
                shared = min(common_length(live.ids, ids), limit)
            if shared > most:
                best, most = live, shared
        return best, most

    def take(self, live: LiveSequence, length: int, in_use: Iterable[KVSequence]) -> KVSequence:
        """The first tokens of a sequence. If they are nearly all of it, and nobody else needs the rest, the rest is
        given up, so that the sequence grows in place."""
        last = live.kv.buffers[-1]
        if 0 < len(live.ids) - length <= _REDO_TOKENS and last.begin < length and last.end == len(live.ids):
            others = [other.kv for other in self.all if other is not live]
            if not any(last in other.buffers for other in (*others, *in_use)):
                self.all.remove(live)
                last.end = length
        return live.kv.cut(length)

    def put(self, ids: tuple[int, ...], kv: KVSequence, lane: Lane = SHARED) -> None:
        """Adds a sequence, in the place of those that are its beginnings."""
        self.all = [
            live
            for live in self.all
            if live.lane != lane
            or len(live.ids) > len(ids)
            or live.ids[-1] != ids[len(live.ids) - 1]
            or live.ids != ids[: len(live.ids)]
        ]
        self.all.append(LiveSequence(ids, kv, lane))

    def evict(self) -> None:
        """Evicts what is too much, and what nobody goes on from; of the others, the sequence that was used last stays
        in any case."""
        self.all = [live for live in self.all if not live.lane.is_left]
        while len(self.all) > 1 and self.nbytes > self.max_bytes:
            del self.all[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers; shared ones count once."""
        return sum(each.nbytes for each in {buffer for live in self.all for buffer in live.kv.buffers})

    def clear(self) -> None:
        self.all = []
