"""Layouts of keys and values: tuples per layer, one tensor, a transformers cache; and the identity of a model.

    huggingface   per layer [heads, tokens, head size], as one tensor [layers, 2, heads, tokens, head size]
    vllm          per layer [tokens, heads, head size], as one tensor [layers, 2, tokens, heads, head size]

There is no batch dimension. torch and transformers are imported only when they are needed.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.kv.pages import KVError, Tokens
from lmql_lite.cache.tensor_bytes import Bits

if TYPE_CHECKING:
    import torch

TokenIds: TypeAlias = "torch.Tensor | NDArray[Any] | Sequence[int]"
Mask: TypeAlias = "torch.Tensor | NDArray[np.bool_] | Sequence[bool]"
KV: TypeAlias = "tuple[tuple[torch.Tensor, torch.Tensor], ...]"
"""Keys and values of a sequence: a pair of tensors for each layer."""

TOKEN_AXIS = {"huggingface": 1, "vllm": 0}
"""Axis of the tokens in a layer's tensors, by layout."""

_CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""Keywords of the cache of a pass in releases of transformers, the newest first."""

_WHOLE_LAYERS = {"DynamicLayer", "DynamicSlidingWindowLayer", "StaticLayer"}
"""Cache layers of transformers that hold one key and one value per token, unless tokens were trimmed."""


class Unsupported(KVError):
    """A cache whose keys and values are not one pair per token and layer. It is not stored; the model still runs."""


def token_ids(tokens: TokenIds) -> Tokens:
    """Tokens as int64, from any form that callers use. Raises KVError if they are not one sequence."""
    ids = np.asarray(tokens.cpu() if hasattr(tokens, "cpu") else tokens)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise KVError(
            f"tokens of shape {ids.shape} and type {ids.dtype} are not a sequence of ids", hint="1-D, integers"
        )
    return ids.astype(np.int64)


def left_out(mask: Mask | None, tokens: int) -> int:
    """Number of tokens that a mask excludes at the beginning. Zeros and ones of any type are a mask as well.

    Raises KVError unless it is False..., True...
    """
    if mask is None:
        return 0
    # as numbers of double precision, since numpy lacks some types of torch
    flags = np.asarray(mask.detach().cpu().double() if hasattr(mask, "detach") else mask)
    if flags.dtype.kind in "iuf" and ((flags == 0) | (flags == 1)).all():
        flags = flags != 0
    if flags.shape != (tokens,) or flags.dtype != np.bool_:
        raise KVError(f"a mask of shape {flags.shape} and type {flags.dtype} is not a mask of {tokens} tokens")
    count = int((~flags).sum())
    if not flags[count:].all():
        raise KVError("the mask must be False for a beginning and True for the rest")
    return count


def kv_to_tensor(kv: KV) -> torch.Tensor:
    """One tensor from the tensors of all layers. Raises KVError if their shapes differ."""
    import torch

    if len({tuple(tensor.shape) for pair in kv for tensor in pair}) > 1:
        raise KVError("layers of different shapes do not form a single tensor", hint="use return_tuple=True")
    return torch.stack([torch.stack(pair) for pair in kv])


def as_bits(tensor: torch.Tensor) -> Bits:
    """Tensor as an array of unsigned integers on the CPU; a view if possible."""
    import torch

    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    array: Bits = tensor.detach().cpu().view(kinds[tensor.element_size()]).numpy()
    return array.view(f"u{tensor.element_size()}")


def joined_kv(pages: Sequence[Sequence[tuple[Bits, Bits]]], dtype: str, axis: int, begin: int, end: int) -> KV:
    """Tensors of all layers, from the arrays of consecutive pages: the tokens from `begin` to `end`.

    The values are copied once. If all layers have one shape, the tensors are views of one tensor.
    """
    import torch

    shapes = []
    for layer in pages[0]:
        for array in layer:
            shape = list(array.shape)
            shape[axis] = end - begin
            shapes.append(tuple(shape))
    kind = getattr(torch, dtype)
    if len(set(shapes)) == 1:
        whole = torch.empty((len(shapes) // 2, 2, *shapes[0]), dtype=kind)
        tensors = list(whole.flatten(0, 1).unbind(0))
    else:
        tensors = [torch.empty(shape, dtype=kind) for shape in shapes]
    for number, tensor in enumerate(tensors):
        target, at = np.moveaxis(as_bits(tensor), axis, 0), -begin
        for page in pages:
            source = np.moveaxis(page[number // 2][number % 2], axis, 0)
            low, high = max(at, 0), min(at + len(source), end - begin)
            target[low:high] = source[low - at : high - at]
            at += len(source)
    return tuple(zip(tensors[::2], tensors[1::2], strict=True))


def from_cache(cache: Any, tokens: int) -> KV:
    """Keys and values of the first `tokens` tokens in a transformers cache, in the layout `huggingface`.

    Raises Unsupported for a cache without storable prefixes: recurrent or linear-attention states, layers that share or
    quantise keys, windows that dropped the first tokens, several sequences.
    """
    kv = []
    for number, layer in enumerate(getattr(cache, "layers", None) or ()):
        kind, keys, values = type(layer).__name__, getattr(layer, "keys", None), getattr(layer, "values", None)
        if kind not in _WHOLE_LAYERS:
            raise Unsupported(f"layer {number} is a {kind}, which does not hold keys and values per token")
        if keys is None or values is None or keys.ndim != 4 or values.ndim != 4 or not keys.numel():
            raise Unsupported(f"layer {number} has no keys and values of its own")
        known = int(getattr(layer, "cumulative_length", keys.shape[2]))
        if keys.shape[0] != 1:
            raise Unsupported(f"layer {number} holds {keys.shape[0]} sequences, not one")
        if min(known, keys.shape[2]) < tokens or (known > keys.shape[2]):
            raise Unsupported(f"layer {number} holds {keys.shape[2]} tokens of {max(known, tokens)}: it was trimmed")
        kv.append((keys[0, :, :tokens], values[0, :, :tokens]))
    if not kv:
        raise Unsupported(f"{type(cache).__name__} holds no keys and values")
    return tuple(kv)


def to_cache(kv: KV, device: Any = None) -> Any:
    """New transformers cache with these keys and values (layout `huggingface`), every layer at full length.

    Masks follow the model's own config, so that layers with a window keep it.
    """
    import transformers

    library: Any = transformers
    cache = library.DynamicCache()
    for number, (keys, values) in enumerate(kv):
        cache.update(keys[None].to(device), values[None].to(device), number)
    return cache


def cache_keyword(network: Any) -> str:
    """Keyword by which the network's passes take their cache: releases of transformers differ in it.

    A network that hands on what it does not name takes what the first of its modules that names one takes.
    """
    found = (name for one in network.modules() for name in inspect.signature(one.forward).parameters)
    return next((name for name in found if name in _CACHE_NAMES), _CACHE_NAMES[0])


def cache_of(output: Any) -> Any:
    """Cache in what a pass returned; None without one. Where an older name stands for a newer one, it is not read."""
    return next((one for name in _CACHE_NAMES if (one := vars(output).get(name)) is not None), None)


def model_fingerprint(network: Any, extra: str = "") -> str:
    """Fingerprint of a network, 64 hexadecimal digits: over its config and every bit of its parameters and buffers.

    Reads all weights once, at memory speed. `extra` is text for anything else that changes keys and values, such as
    versions of libraries.
    """
    import torch

    config = {key: value for key, value in network.config.to_dict().items() if key not in _IRRELEVANT}
    digest = hashlib.sha256(json.dumps([extra, config], sort_keys=True, default=str).encode())
    with torch.no_grad():
        for name, tensor in (*network.named_parameters(), *network.named_buffers()):
            bits = as_bits(tensor.contiguous() if tensor.numel() else tensor.new_zeros(1))
            crc = zlib.crc32(np.ascontiguousarray(bits).reshape(-1).view(np.uint8).data)
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {crc:08x}\n".encode())
    return digest.hexdigest()


_IRRELEVANT = {"_name_or_path", "transformers_version", "architectures", "use_cache"}
"""Fields of a config that describe the origin of a model, and do not affect its results."""
