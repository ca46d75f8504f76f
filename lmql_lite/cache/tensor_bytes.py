"""Named tensors as the bytes of a safetensors file, written with one copy and read without a copy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lmql_lite.store.tier import Buffer

Bits: TypeAlias = NDArray[Any]
"""Tensor as unsigned integers of the same item size, since numpy has no bfloat16 and a cache only moves bits."""

SAFETENSORS_DTYPES = {
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "int8": "I8",
    "uint8": "U8",
    "int64": "I64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
"""Names of dtypes in safetensors files, by torch's names."""
_TORCH_DTYPES = {name: torch_name for torch_name, name in SAFETENSORS_DTYPES.items()}
_ITEM_BYTES = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8}
_ALIGNMENT = 64


@dataclass(frozen=True)
class TensorBits:
    """Tensor of a file: its name, torch's name of its dtype, and its bits."""

    name: str
    dtype: str
    bits: Bits


def encode_tensors(tensors: Sequence[TensorBits], metadata: Mapping[str, str]) -> bytearray:
    """Bytes of a file. The arrays are copied once, whatever their memory layout. Raises KeyError for other dtypes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for one in tensors:
        offsets = [end, end + one.bits.nbytes]
        header[one.name] = {
            "dtype": SAFETENSORS_DTYPES[one.dtype],
            "shape": list(one.bits.shape),
            "data_offsets": offsets,
        }
        end += one.bits.nbytes
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-(8 + len(head)) % _ALIGNMENT)
    data = bytearray(8 + len(head) + end)
    data[: 8 + len(head)] = len(head).to_bytes(8, "little") + head
    at = 8 + len(head)
    for one in tensors:
        np.copyto(np.frombuffer(data, one.bits.dtype, one.bits.size, at).reshape(one.bits.shape), one.bits)
        at += one.bits.nbytes
    return data


def decode_tensors(data: Buffer) -> tuple[list[TensorBits], Mapping[str, str]]:
    """Tensors of a file, as views of its bytes, and its metadata. Raises ValueError for invalid bytes."""
    try:
        header, body = read_header(data)
        metadata = header.pop("__metadata__", {})
        tensors, end = [], 0
        for name, tensor in header.items():
            begin, stop = tensor["data_offsets"]
            shape, size = [int(side) for side in tensor["shape"]], _ITEM_BYTES[tensor["dtype"]]
            if begin != end or stop - begin != size * int(np.prod(shape)) or min(shape, default=0) < 0:
                raise ValueError(f"the size of the tensor {name} does not match its shape")
            array = np.frombuffer(data, f"u{size}", (stop - begin) // size, body + begin).reshape(shape)
            tensors.append(TensorBits(name, _TORCH_DTYPES[tensor["dtype"]], array))
            end = stop
        if body + end != len(data):
            raise ValueError("it is incomplete")
        return tensors, metadata
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it cannot be read ({error})") from error


def read_header(beginning: Buffer) -> tuple[dict[str, Any], int]:
    """Header of a file, from its first bytes, and the offset of its tensors. Raises ValueError for a truncated
    header."""
    length = int.from_bytes(beginning[:8], "little")
    if length > len(beginning) - 8:
        raise ValueError("its header is longer than the page")
    header = json.loads(bytes(beginning[8 : 8 + length]))
    return header, 8 + length
