"""Reuse of blocks in a prompt: keys and values of each block are moved to its place, and partly recomputed.

A prompt is token ids and the spans of its blocks. The beginning up to the end of the first block is a true prefix, and
exact, if that block begins within the head. Every further block was prefilled after the head and is moved to its place:
its values and rotated keys equal those of a prefill of the block alone there, and its attention to the text before it
is missing. Text between blocks is computed in place, and sees all text before it. All functions use the layout
`huggingface`.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lmql_lite.cache.kv.blocks import BlockPolicy
from lmql_lite.cache.kv.engine import KVCacheEngine
from lmql_lite.cache.kv.layout import KV, Unsupported, cache_keyword, from_cache, to_cache
from lmql_lite.cache.kv.pages import KVError
from lmql_lite.cache.kv.rotation import Rotation, original_length, rope_parameters
from lmql_lite.cache.kv.scattered_pass import KVSlots, scattered_pass

if TYPE_CHECKING:
    import torch

Span = tuple[int, int]
"""Begin and end of a block, in tokens of the prompt."""
Prefilled = Callable[[tuple[int, ...]], KV]
"""Function that returns keys and values of a whole sequence, computed or known."""
_PROBE_TOKENS = 24
_TOLERANCE = 1e-3


def prefilled_by(network: Any) -> Prefilled:
    """Prefill by plain passes of the network. Raises Unsupported for a network without keys and values to keep."""
    return lambda tokens: _continued(network, tokens, (), 0)


class KeptBlocks:
    """Prefill of tokens that an engine does not know; the engine keeps the result.

    `fed` is the number of tokens computed so far, `found` that of the tokens that were known, by tier.
    """

    def __init__(self, engine: KVCacheEngine, network: Any) -> None:
        self._engine, self._network = engine, network
        self.fed = 0
        self.found = Counter[str]()

    def __call__(self, tokens: tuple[int, ...]) -> KV:
        kv, by_tier = self._engine.found(tokens)
        self.found += Counter(by_tier)
        known = sum(by_tier.values())
        if known < len(tokens):
            self.fed += len(tokens) - known
            kv = _continued(self._network, tokens, kv, known)
            self._engine.store(tokens, kv, blocking=False)
        return tuple((keys.to(self._network.device), values.to(self._network.device)) for keys, values in kv)


def _continued(network: Any, tokens: tuple[int, ...], kv: KV, known: int) -> KV:
    """Keys and values of all tokens, given those of the first `known` ones."""
    import torch

    past = to_cache(kv, network.device)
    new = torch.tensor([tokens[known:]], device=network.device)
    with torch.inference_mode():
        network(input_ids=new, **{cache_keyword(network): past}, use_cache=True, logits_to_keep=1)
    return from_cache(past, len(tokens))


def unsupported_reason(network: Any) -> str | None:
    """The reason why blocks of this network cannot be moved; None if they can.

    This is tested on the network itself. Rotated keys are compared with computed ones, and a scattered pass over a
    whole text is compared with a plain pass.
    """
    import torch

    if not can_rotate(network):
        return "its keys cannot be moved by a rotation: it has learned positions, states, or keys of another form"
    tokens = tuple(range(3, 3 + _PROBE_TOKENS))
    with torch.inference_mode():
        plain = network(input_ids=torch.tensor([tokens], device=network.device), use_cache=False).logits[0]
    try:
        own = scattered_pass(network, KVSlots(), tokens, range(len(tokens)), range(len(tokens)))
    except (Unsupported, AttributeError, IndexError, TypeError, ValueError, RuntimeError, KeyError) as error:
        return f"its attention does not accept other keys ({type(error).__name__})"
    if own.shape != plain.shape or (own - plain).abs().max() > _TOLERANCE * max(1.0, float(plain.abs().max())):
        return "its attention computes other scores when its keys are replaced"
    return None


class BlockReuse:
    """Prompts with blocks, for one network under one policy. `prefilled` returns keys and values of a block.

    reuse = BlockReuse(network, BlockPolicy.parse("rotate"), prefilled_by(network))
    slots = reuse.slots(ids, spans)
    logits = reuse.ask(slots, ids + suffix, [len(ids)])    # after the first token of the suffix
    """

    def __init__(self, network: Any, policy: BlockPolicy, prefilled: Prefilled) -> None:
        self.network, self.policy = network, policy
        self._prefilled = prefilled
        self.fed = 0
        """Number of tokens fed to the network so far, without prefills and passes that stop after two layers."""

    def slots(self, tokens: Sequence[int], spans: Sequence[Span], alike: int | None = None) -> KVSlots:
        """Keys and values of a prompt that ends with its last block. Tokens to compute are in `missing`, among them
        always the last one, whose scores are needed. Other prompts have the same first `alike` tokens, None for all
        before the first block: blocks are prefilled after no others.
        """
        slots, place, moved = KVSlots(), 0, list[int]()
        missing: list[int] = []
        most = self.policy.head if alike is None else min(self.policy.head, alike)
        head = tuple(tokens[:most])
        for begin, end in spans:
            before = head[:begin]
            kv = self._prefilled((*before, *tokens[begin:end]))
            if not slots.length and len(before) == begin:
                slots.put(kv, 0, len(tokens))
            else:
                missing += range(place, begin)
                moved += range(begin, end)
                by = begin - len(before)
                own = tuple((keys[:, len(before) :], values[:, len(before) :]) for keys, values in kv)
                placed = rotated_kv(self.network, own, by) if by and self.policy.kind != "smash" else own
                slots.put(placed, begin, len(tokens))
            place = end
        count = len(moved) if self.policy.kind == "exact" else int(self.policy.recomputed * len(moved))
        chosen = moved[len(moved) - count :]
        slots.missing = tuple(sorted({*missing, *chosen, len(tokens) - 1}))
        return slots

    def ask(self, slots: KVSlots, tokens: Sequence[int], wanted: Sequence[int]) -> torch.Tensor:
        """Logits after the tokens at the places `wanted`. Computes missing tokens and those after `slots`."""
        places = (*slots.missing, *range(slots.length, len(tokens)))
        self.fed += len(places)
        numbers = {place: number for number, place in enumerate(places)}
        return scattered_pass(
            self.network, slots, [tokens[at] for at in places], places, [numbers[place] for place in wanted]
        )


# Arithmetic of blocks -------------------------------------------------------------------------------------------------


Value = TypeVar("Value")

_PROBE_PLACES = (1, 7, 250)
_KEY_TOLERANCE = 1e-4
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

    Keys keep the places at which they were computed: rotate them first (`rotated_kv`). The caches are not changed.
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
            most = _KEY_TOLERANCE * max(1, place / 256)
            for moved, there in zip(rotated_kv(network, here, place), prefilled(place), strict=True):
                if any((one - other).abs().max() > most for one, other in zip(moved, there, strict=True)):
                    return False
    except (Unsupported, AttributeError, IndexError, TypeError, ValueError, RuntimeError):
        return False
    return True
