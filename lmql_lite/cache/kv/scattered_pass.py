"""Scattered pass: a network pass over tokens at any places of a sequence, whose keys and values it replaces.

Plain passes append. A scattered pass recomputes a subset in every layer, while the other places keep their keys and
values. So text, gaps between reused blocks and tokens that a policy recomputes take one pass.

Attention is this module's function, registered as `lq_scattered` during a pass. In place of the mask it gets the
distance from each query to each slot, so that causality and windows are one comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lmql_lite.cache.kv.layout import KV, cache_keyword

if TYPE_CHECKING:
    import torch

_ROOM = 64
"""Number of spare slots beyond the needed length."""


class KVSlots:
    """Keys and values of one sequence in writable tensors, with one slot for each place.

    `missing` are the places below `length` with empty slots, in ascending order.
    """

    def __init__(self) -> None:
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Keys and values per layer, `[heads, room, head size]`."""
        self.length = 0
        self.missing: tuple[int, ...] = ()

    def put(self, kv: KV, begin: int, room: int) -> None:
        """Writes keys and values of consecutive tokens, starting at the place `begin`."""
        for number, (keys, values) in enumerate(kv):
            self.reserve(number, keys, values, max(room, begin + keys.shape[1]))
            own_keys, own_values = self.layers[number]
            own_keys[:, begin : begin + keys.shape[1]] = keys
            own_values[:, begin : begin + keys.shape[1]] = values
        self.length = max(self.length, begin + kv[0][0].shape[1])

    def reserve(self, number: int, keys: torch.Tensor, values: torch.Tensor, room: int) -> None:
        """Makes room for `room` tokens in a layer whose tensors are shaped like `keys` and `values`."""
        import torch

        if number == len(self.layers):
            shapes = [(one.shape[0], room + _ROOM, one.shape[2]) for one in (keys, values)]
            self.layers.append((keys.new_zeros(shapes[0]), values.new_zeros(shapes[1])))
        own = self.layers[number]
        if own[0].shape[1] < room:
            more = room - own[0].shape[1] + max(_ROOM, room // 2)
            keys, values = (torch.nn.functional.pad(one, (0, 0, 0, more)) for one in own)
            self.layers[number] = keys, values

    def cut(self, length: int) -> KVSlots:
        """Copy of the slots of the first `length` tokens."""
        fork = KVSlots()
        fork.put(self.kv(length), 0, length)
        fork.missing = tuple(place for place in self.missing if place < length)
        return fork

    def kv(self, length: int | None = None) -> KV:
        """Keys and values of the first `length` tokens, as views."""
        end = self.length if length is None else length
        return tuple((keys[:, :end], values[:, :end]) for keys, values in self.layers)

    @property
    def nbytes(self) -> int:
        """Memory of all slots."""
        return sum(one.numel() * one.element_size() for pair in self.layers for one in pair)


def scattered_pass(
    network: Any,
    slots: KVSlots,
    tokens: Sequence[int],
    places: Sequence[int],
    wanted: Sequence[int] = (),
) -> torch.Tensor:
    """Computes `tokens` at ascending `places`, each seeing all slots up to its own, and writes their slots.

    Returns the logits `[wanted, vocabulary]` after the tokens with these numbers; at least one is computed.
    """
    import torch

    length = max(slots.length, places[-1] + 1)
    device = network.device
    at = torch.tensor(list(places), device=device)
    distances = at[:, None] - torch.arange(length, device=device)[None]
    keep = torch.tensor(list(wanted) or [len(tokens) - 1], device=device)
    with torch.inference_mode(), _attending(network):
        output = network(
            input_ids=torch.tensor([list(tokens)], device=device),
            position_ids=at[None],
            attention_mask=distances[None, None],
            use_cache=True,
            logits_to_keep=keep,
            **{cache_keyword(network): _cache_over(slots, at, length)},
        )
    slots.length = length
    done = set(places)
    slots.missing = tuple(place for place in slots.missing if place not in done)
    logits: torch.Tensor = output.logits[0]
    return logits


def _cache_over(slots: KVSlots, at: torch.Tensor, length: int) -> Any:
    """Cache for one pass of the network. An update writes the slots and returns all of them."""
    import transformers

    library: Any = transformers

    class Scattering(library.Cache):  # type: ignore[misc]  # the library is loaded late
        def __init__(self) -> None:
            super().__init__(layers=[])

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return 0

        def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
            return length, 0

        def update(self, keys: Any, values: Any, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
            slots.reserve(layer_idx, keys[0], values[0], length)
            own_keys, own_values = slots.layers[layer_idx]
            own_keys.index_copy_(1, at, keys[0])
            own_values.index_copy_(1, at, values[0])
            return own_keys[None, :, :length], own_values[None, :, :length]

    return Scattering()


@contextmanager
def _attending(network: Any) -> Iterator[None]:
    """Replaces the network's attention by `_attention`. The caller ensures that no other pass runs meanwhile."""
    import transformers

    library: Any = transformers
    library.AttentionInterface.register("lq_scattered", _attention)
    before = network.config._attn_implementation
    network.set_attn_implementation("lq_scattered")
    try:
        yield
    finally:
        network.set_attn_implementation(before)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    distances: torch.Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of queries to all slots at a distance of at least 0 and within the window. Heads that share keys are
    rows of one matrix, so that no keys are copied."""
    from torch.nn.functional import scaled_dot_product_attention

    heads, rows, size = query.shape[1:]
    groups = heads // key.shape[1]
    allowed = distances[0, 0] >= 0
    if sliding_window:
        allowed &= distances[0, 0] < sliding_window
    scale = size**-0.5 if scaling is None else scaling
    together = query[0].reshape(key.shape[1], groups * rows, size)
    allowed = allowed.repeat(groups, 1)
    if softcap:
        weights = together @ key[0].transpose(1, 2) * scale
        weights = (weights / softcap).tanh() * softcap
        weights = weights.masked_fill(~allowed, float("-inf")).float().softmax(-1).to(value.dtype)
        said = weights @ value[0]
    else:
        said = scaled_dot_product_attention(together[None], key, value, attn_mask=allowed, scale=scale)[0]
    return said.reshape(heads, rows, -1).transpose(0, 1)[None].contiguous(), None
