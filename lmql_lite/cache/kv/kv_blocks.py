"""Arithmetic of prompt blocks: moved keys, joined blocks, and their divergence from a prefill.

A block that was prefilled at one place is used at another. Its values and rotated keys equal those of a prefill of the
block alone at the new place; its attention to the text before it is missing. So a joined sequence is an approximation,
unless it is one block at its own place. All functions use the layout `huggingface`.
"""

from __future__ import annotations

import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lmql_lite.cache.kv.kv_layout import KV, Unsupported, cache_keyword, from_cache
from lmql_lite.cache.kv.kv_page import KVError
from lmql_lite.cache.kv.rotation import Rotation, original_length, rope_parameters

if TYPE_CHECKING:
    import torch

Value = TypeVar("Value")

_PROBE_PLACES = (1, 7, 250)
_TOLERANCE = 1e-4
"""Largest difference up to place 256. Beyond it grows with the place, like the noise of single precision."""


class SimpleLRUCache(Generic[Value]):
    """Cache of at most `capacity` values; with 0 or fewer it keeps nothing.

    `on_evict` is called with each evicted value, before the new one is visible.

    >>> cache = SimpleLRUCache(1, on_evict=print)
    >>> cache.put("a", "first"); cache.put("b", "second"); cache.get("a"), cache.get("b"), cache.current_size()
    first
    (None, 'second', 1)
    """

    def __init__(self, capacity: int, on_evict: Callable[[Value], object] | None = None) -> None:
        self.capacity, self._on_evict = capacity, on_evict
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def put(self, key: Hashable, value: Value) -> None:
        """Stores a value as the most recently used. Replacing the value of a key evicts nothing."""
        if self.capacity <= 0:
            return
        if key not in self._values and len(self._values) >= self.capacity:
            _, evicted = self._values.popitem(last=False)
            if self._on_evict is not None:
                self._on_evict(evicted)
        self._values[key] = value
        self._values.move_to_end(key)

    def get(self, key: Hashable) -> Value | None:
        """Value of a key, which becomes the most recently used; None if there is none."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def current_size(self) -> int:
        """Number of values."""
        return len(self._values)


def merge_dynamic_caches(caches: Iterable[Any]) -> Any:
    """New transformers cache with the unchanged keys and values of `caches`, one after the other.

    Keys keep the places at which they were computed: rotate them first (`joined_blocks`). The caches are not changed.
    Raises KVError without a cache, and for one with sliding windows or layers without keys of their own.
    """
    import torch
    import transformers

    library: Any = transformers
    caches = list(caches)
    if not caches:
        raise KVError("there is no cache to merge", hint="give at least one")
    for layer in (layer for cache in caches for layer in cache.layers):
        if getattr(layer, "is_sliding", False):
            raise Unsupported("layers with a sliding window cannot be merged: they drop tokens by place")
    parts = [[(layer.keys, layer.values) for layer in cache.layers] for cache in caches]
    if len({len(part) for part in parts}) > 1 or any(
        tensor is None for part in parts for pair in part for tensor in pair
    ):
        raise Unsupported("the caches differ in their layers, or a layer has no keys and values of its own")
    merged = library.DynamicCache()
    for number, layers in enumerate(zip(*parts, strict=True)):
        keys, values = (torch.cat(tensors, dim=-2) for tensors in zip(*layers, strict=True))
        merged.update(keys, values, number)
    return merged


def rotated_kv(network: Any, kv: KV, by: int) -> KV:
    """Keys and values of a block, with keys moved forward by `by` places by the network's own rotation.

    Angles are computed in double precision. Raises Unsupported if the network has no rotation that can be applied to
    keys alone. `can_rotate` tests if the rotation is right.
    """
    import torch

    base = getattr(network, "base_model", network)
    rotary = getattr(base, "rotary_emb", None)
    attention = {one.layer_idx: one for one in base.modules() if getattr(one, "layer_idx", None) is not None}
    if rotary is None or not set(range(len(kv))) <= set(attention):
        raise Unsupported(f"{type(network).__name__} has no rotation of keys")
    has_kinds = "layer_type" in inspect.signature(rotary.forward).parameters
    angles: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}
    moved = []
    for number, (keys, values) in enumerate(kv):
        module = attention[number]
        apply: Any = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
        if apply is None:
            raise Unsupported(f"{type(module).__name__} has no rotation that can be applied to keys")
        kind = (module.layer_type,) if has_kinds else ()
        wide = keys[None] if keys.dtype in (torch.float32, torch.float64) else keys[None].float()
        if kind not in angles:
            dummy = torch.zeros(1, 1, 1, dtype=torch.float64, device=keys.device)
            cos, sin = (one.double() for one in rotary(dummy, torch.tensor([[by]], device=keys.device), *kind))
            scale = (cos**2 + sin**2).sqrt()  # some rotations also scale the keys, which has been done
            angles[kind] = ((cos / scale).to(wide.dtype), (sin / scale).to(wide.dtype))
        _, turned = apply(wide[:, :0], wide, *angles[kind])  # no queries are needed
        moved.append((turned[0].to(keys.dtype), values))
    return tuple(moved)


def can_rotate(network: Any, tokens: Sequence[int] = (3, 5, 7, 11, 13, 17)) -> bool:
    """True if rotated keys equal those of a prefill at the new place, in every layer, to 1e-4.

    This is tested on the network itself by five small passes, also beyond its context. So learned positions and layers
    with states are detected whatever their names. A rotation that depends on the length of the text is none.
    """
    import torch

    config = network.config.get_text_config()
    known = [original_length(config, part) for part in rope_parameters(config)]
    behind = {place + 1 for place in (*known, getattr(config, "max_position_embeddings", None)) if place is not None}
    keyword = cache_keyword(network)

    def prefilled(place: int) -> KV:
        import transformers

        library: Any = transformers
        past = library.DynamicCache()
        ids = torch.tensor([list(tokens)], device=network.device)
        places = torch.arange(place, place + len(tokens), device=network.device)[None]
        with torch.inference_mode():
            network(input_ids=ids, position_ids=places, **{keyword: past}, use_cache=True)
        return from_cache(past, len(tokens))

    try:
        if Rotation(network).changes:
            return False
        here = prefilled(0)
        for place in (*_PROBE_PLACES, *behind):
            most = _TOLERANCE * max(1, place / 256)
            for moved, there in zip(rotated_kv(network, here, place), prefilled(place), strict=True):
                if any((one - other).abs().max() > most for one, other in zip(moved, there, strict=True)):
                    return False
    except (Unsupported, AttributeError, IndexError, TypeError, ValueError, RuntimeError):
        return False
    return True


def joined_blocks(network: Any, blocks: Iterable[tuple[KV, int]], *, rotate: bool = True) -> KV:
    """Keys and values of consecutive blocks. Each block comes with the place at which it was prefilled.

    `rotate=False` does not move keys, which is wrong and only for comparison. Raises KVError without blocks.
    """
    import torch

    place, moved = 0, []
    for kv, first in blocks:
        moved.append(rotated_kv(network, kv, place - first) if rotate and place != first else kv)
        place += kv[0][0].shape[1]
    if not moved:
        raise KVError("there is no block to join", hint="give at least one")
    return tuple(
        (torch.cat([kv[layer][0] for kv in moved], 1), torch.cat([kv[layer][1] for kv in moved], 1))
        for layer in range(len(moved[0]))
    )


@dataclass(frozen=True)
class Divergence:
    """Divergence of scores from those of a full prefill: KL in nats per token, and the share of equal best tokens."""

    mean_kl: float
    p95_kl: float
    first_kl: float
    top1: float
    largest: float
    """Largest difference of a logit."""


def divergence(full: torch.Tensor, reused: torch.Tensor) -> Divergence:
    """Divergence of the logits `reused` from `full`, both [tokens, vocabulary], at least one token."""
    import torch

    one, other = torch.log_softmax(full.double(), -1), torch.log_softmax(reused.double(), -1)
    kl = (one.exp() * (one - other)).sum(-1)
    return Divergence(
        mean_kl=float(kl.mean()),
        p95_kl=float(kl.quantile(0.95)),
        first_kl=float(kl[0]),
        top1=float((one.argmax(-1) == other.argmax(-1)).double().mean()),
        largest=float((full.double() - reused.double()).abs().max()),
    )
