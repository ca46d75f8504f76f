"""Forward pass over any number of rows of any lengths, through the attention interface of transformers, and the buffers
of keys and values that it fills.

The new tokens of all rows are one sequence for the network: linear layers see them together, without padding. Attention
runs row by row, each over the keys and values of its own sequence. A row may continue from a place inside another row
of the same pass, so drafts, options and branches form a tree.

An exact pass sums over whole pages in a fixed order, and has rows in multiples of a step (`exactness.py`), padding
included: then scores of a place are the same bits whatever else is in the pass and however the text before it was fed
(S5).

A sequence is a list of buffers and a length. A sequence that ends where its buffer ends grows in place; any other one
goes on in a buffer of its own and shares what is before it. To cut a sequence is arithmetic, to fork it copies nothing,
or in pages (`align`) at most the tokens of one page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from lmql_lite.models.live import ScoreJob

if TYPE_CHECKING:
    import torch

    Pair = tuple[torch.Tensor, torch.Tensor]
    """Keys and values of a layer, each [heads, tokens, head size]."""

_NAME = "lmql_lite_rows"
_FEW = 64
"""At most this many tokens of a row share the keys of a group of heads without a copy of them for each head."""
PAGE = 256
"""Tokens of a page: step of the sums of exact attention, as of the chunks on the tiers."""
_GRAIN = 32
"""Room is made for at least this many tokens at once, where nothing needs whole pages."""
_MAX_BUFFERS = 8
"""A sequence of more buffers is copied into one when it grows."""


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
        if last is not None and last.end == self.length and not last.closed and len(self.buffers) <= _MAX_BUFFERS:
            last.end = length
            return KVSequence(self.buffers, length), self.length
        begin = self.length - self.length % align if len(self.buffers) < _MAX_BUFFERS else 0
        kept = tuple(buffer for buffer in self.buffers if buffer.begin < begin)
        return KVSequence((*kept, KVBuffer(begin, length)), length), begin

    def spans(self, layer: int, begin: int = 0) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Keys and values from place `begin` on, buffer by buffer, each with the place of its first token."""
        ends = [*(buffer.begin for buffer in self.buffers[1:]), self.length]
        for buffer, end in zip(self.buffers, ends, strict=True):
            first = max(begin, buffer.begin)
            if first < end:
                keys, values = buffer.parts[layer]
                place, count = first - buffer.begin, end - first
                yield first, keys.narrow(1, place, count), values.narrow(1, place, count)

    def pair(self, layer: int, begin: int = 0) -> Pair:
        """Keys and values of a layer from place `begin` on."""
        (_, keys, values), *more = self.spans(layer, begin)
        if not more:
            return keys, values
        import torch

        return torch.cat([keys, *(each[1] for each in more)], 1), torch.cat([values, *(each[2] for each in more)], 1)

    def kv(self, begin: int = 0) -> tuple[Pair, ...]:
        """Keys and values of all layers from place `begin` on."""
        return tuple(self.pair(layer, begin) for layer in sorted(self.buffers[0].parts))

    @classmethod
    def of(cls, kv: Iterable[Pair], length: int) -> KVSequence:
        """Sequence over tensors that somebody else made; they are not changed."""
        return cls((KVBuffer(0, length, dict(enumerate(kv))),), length)


@dataclass(eq=False, slots=True)
class PassRow:
    """New tokens of a sequence: the last of `ids`, from place `first` on. `kv` has room for them.

    `filled` is the place from which on the last buffer is filled in this pass; tokens between it and `first` are copied
    from `known`. `parent` is a row of this pass that this one goes on from; `start` is the first place on the way to
    this row that this pass computes.
    """

    ids: tuple[int, ...]
    first: int
    known: KVSequence
    kv: KVSequence
    filled: int
    parent: PassRow | None
    start: int
    wanted: dict[int, list[ScoreJob]] = field(default_factory=dict)
    """Jobs by the lengths after which they want scores."""
    offset: int = 0
    masks: dict[tuple[int, int], Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.ids) - self.first

    def is_all(self, tensor: torch.Tensor) -> bool:
        """True if the tokens of a pass, [heads, tokens, head size], are those of this row: then no slice is needed."""
        return bool(self.count == tensor.shape[1])


def forward(
    network: Any,
    rows: Sequence[PassRow],
    *,
    step: int,
    keyword: str,
    picks_places: bool,
    band: int = 0,
) -> torch.Tensor:
    """One pass: the logits after the wanted lengths of each row, in order. Fills the rows' keys and values.

    `step` is that of exact passes (`exactness.py`), or 0; `keyword` that of the network's cache. `band` is that of all
    rows (`Rotation`): a token at its last place, which no row attends to, makes the network rotate by it.
    """
    import torch

    offset, tokens, places, wanted = 0, list[int](), list[int](), list[int]()
    for row in rows:
        row.offset = offset
        wanted += [offset + end - 1 - row.first for end in sorted(row.wanted)]
        tokens += row.ids[row.first :]
        places += range(row.first, len(row.ids))
        offset += row.count
    least = offset + bool(band)
    padding = least - offset + (-least % step if step else 0)
    tokens += [tokens[-1]] * padding
    places += [max(band - 1, 0)] * padding
    wanted = wanted or [offset - 1]
    kept = wanted + [wanted[-1]] * (-len(wanted) % step if step else 0)
    device = network.device
    kept_rows = torch.tensor(kept, device=device)
    more = {"logits_to_keep": kept_rows} if picks_places else {}
    with _attending(network):
        logits: torch.Tensor = network(
            input_ids=torch.tensor([tokens], device=device),
            position_ids=torch.tensor([places], device=device),
            use_cache=True,
            **{keyword: _cache_class()(rows, step)},
            **more,
        ).logits[0]
    if not picks_places:
        logits = logits[kept_rows]
    return logits[: len(wanted)]


@contextmanager
def _attending(network: Any) -> Iterator[None]:
    """The network's attention is ours for one pass; afterwards it is its own again."""
    from transformers import AttentionInterface

    interface: Any = AttentionInterface
    if _NAME not in interface.valid_keys(interface()):
        interface.register(_NAME, _attention)
    before = network.config._attn_implementation
    network.config._attn_implementation = _NAME
    try:
        yield
    finally:
        network.config._attn_implementation = before


class LayerOfPass:
    """Stand-in for the keys of a layer, through which the attention function finds the rows of its pass."""

    def __init__(self, rows: Sequence[PassRow], layer: int, step: int) -> None:
        self.rows, self.layer, self.step = rows, layer, step


@cache
def _cache_class() -> Any:
    """Class of the object that a network takes for its cache during one pass."""
    from transformers import Cache

    base: Any = Cache

    class RowsCache(base):  # type: ignore[misc]
        def __init__(self, rows: Sequence[PassRow], step: int) -> None:
            super().__init__(layers=[])
            self.rows, self.step = rows, step

        def get_seq_length(self, *_: Any, **__: Any) -> int:
            return 0

        def get_mask_sizes(self, query_length: int, *_: Any, **__: Any) -> tuple[int, int]:
            return query_length, 0

        def update(self, keys: Any, values: Any, layer: int, *_: Any, **__: Any) -> tuple[Any, Any]:
            for row in self.rows:
                fill(row, layer, keys[0], values[0], PAGE if self.step else 1)
            return LayerOfPass(self.rows, layer, self.step), values

    return RowsCache


def fill(row: PassRow, layer: int, keys: torch.Tensor, values: torch.Tensor, align: int) -> None:
    """Writes the new keys and values of a row, [heads, tokens of the pass, head size], to their places."""
    buffer = row.kv.buffers[-1]
    pair = buffer.room(layer, keys, values, row.kv.length - buffer.begin, align)
    if row.filled < row.first:
        for place, *known in row.known.spans(layer, row.filled):
            for target, source in zip(pair, known, strict=True):
                target[:, place - buffer.begin : place - buffer.begin + source.shape[1]] = source
    begin, count = row.first - buffer.begin, row.count
    for target, source in zip(pair, (keys, values), strict=True):
        target.narrow(1, begin, count).copy_(source if row.is_all(source) else source.narrow(1, row.offset, count))


def _attention(
    module: Any,
    query: torch.Tensor,
    key: Any,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of all rows of a pass, as transformers calls it. Shape of the result: (1, tokens, heads, size)."""
    if not isinstance(key, LayerOfPass) or s_aux is not None or attention_mask is not None:
        raise NotImplementedError("this attention is not that of keys and values in rows")
    query, window = query[0], sliding_window or 0
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    attend = _in_pages if key.step or softcap else _quickly
    if key.rows[0].is_all(query):
        return attend(query, key.rows[0], key.layer, scaling, window, softcap, key.step)[None], None
    out = query.new_zeros(query.shape[1], query.shape[0], value.shape[-1])
    for row in key.rows:
        cut = slice(row.offset, row.offset + row.count)
        out[cut] = attend(query[:, cut], row, key.layer, scaling, window, softcap, key.step)
    return out[None], None


def _quickly(
    query: torch.Tensor, row: PassRow, layer: int, scaling: float, window: int, softcap: float | None, step: int
) -> torch.Tensor:
    """Attention of a row by the library's fused function, [tokens, heads, size]."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as fused

    heads, count, size = query.shape
    begin = max(0, row.first - window + 1) if window else 0
    k, v = row.kv.pair(layer, begin)
    group = heads // k.shape[0]
    if count == 1:
        out = fused(query.reshape(1, -1, group, size), k[None], v[None], scale=scaling)
        return out.reshape(1, heads, -1)
    mask = None
    if begin or row.first or (window and len(row.ids) > window):
        mask = row.masks.get((begin, window))
        if mask is None:
            allowed = _allowed(row.first, count, begin, k.shape[1], window, query.device)
            mask = torch.zeros(allowed.shape, dtype=query.dtype, device=query.device).masked_fill_(~allowed, -torch.inf)
            row.masks[begin, window] = mask
    if count <= _FEW and mask is not None:
        together = query.reshape(1, -1, group * count, size)
        out = fused(together, k[None], v[None], attn_mask=mask.repeat(group, 1), scale=scaling)
        return out.reshape(heads, count, -1).transpose(0, 1)
    if group > 1:
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    out = fused(query[None], k[None], v[None], attn_mask=mask, is_causal=mask is None, scale=scaling)
    return out[0].transpose(0, 1)


def _in_pages(
    query: torch.Tensor, row: PassRow, layer: int, scaling: float, window: int, softcap: float | None, step: int
) -> torch.Tensor:
    """Attention of a row written out, page by page in order, at most a page of queries at a time."""
    import torch

    parts = []
    for at in range(0, query.shape[1], PAGE):
        piece = query[:, at : at + PAGE]
        parts.append(_block_in_pages(piece, row, row.first + at, layer, scaling, window, softcap, step))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _block_in_pages(
    query: torch.Tensor,
    row: PassRow,
    first: int,
    layer: int,
    scaling: float,
    window: int,
    softcap: float | None,
    step: int,
) -> torch.Tensor:
    """Attention of consecutive queries of a row, the first of which stands at place `first`."""
    import torch

    heads, count, size = query.shape
    pages = list(_pages(row.kv.cut(first + count), layer, bool(step)))
    group = heads // pages[0][0].shape[0]
    rows = query.reshape(-1, group, count, size).transpose(1, 2).reshape(-1, count * group, size)
    if count * group < step:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, step - count * group))
    scores = torch.cat([torch.matmul(rows, keys.transpose(1, 2)) for keys, _ in pages], -1) * scaling
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    allowed = _allowed(first, count, 0, scores.shape[-1], window, query.device)
    scores[:, : count * group].masked_fill_(~allowed.repeat_interleave(group, 0), -torch.inf)
    scores = scores.float()
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    total, mixed, at = None, None, 0
    for _, values in pages:
        share = weights[..., at : at + values.shape[1]]
        at += values.shape[1]
        one, other = share.sum(-1, keepdim=True), torch.matmul(share.to(values.dtype), values).float()
        total, mixed = (one, other) if total is None or mixed is None else (total + one, mixed + other)
    assert mixed is not None and total is not None, "a row has tokens"
    out = (mixed / total).to(query.dtype)[:, : count * group]
    return out.reshape(-1, count, group, out.shape[-1]).transpose(0, 1).reshape(count, heads, -1)


def _pages(kv: KVSequence, layer: int, exact: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values in pages: whole ones, the last one with what lies behind its end, or as they lie."""
    if not exact:
        yield from ((keys, values) for _, keys, values in kv.spans(layer))
        return
    ends = [*(buffer.begin for buffer in kv.buffers[1:]), kv.length]
    for buffer, end in zip(kv.buffers, ends, strict=True):
        keys, values = buffer.parts[layer]
        for begin in range(0, end - buffer.begin, PAGE):
            yield keys[:, begin : begin + PAGE], values[:, begin : begin + PAGE]


def _allowed(first: int, count: int, begin: int, keys: int, window: int, device: Any) -> torch.Tensor:
    """True where a query sees a key: queries stand at `first` and after, keys at `begin` and after."""
    import torch

    behind = torch.arange(first, first + count, device=device)[:, None] - torch.arange(
        begin, begin + keys, device=device
    )
    return (behind >= 0) & (behind < window) if window else behind >= 0
