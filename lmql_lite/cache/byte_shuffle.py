"""Columns of numbers as bytes: of the low ones, which are noise, number by number, of the others plane by plane.

A plane has one byte of every number. Bytes of one meaning deflate well when they stand together, a column of small
numbers has few planes, and the planes of many columns make those of one long column when they are joined.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SMALL = 2**14
"""Fewer bytes are packed with the fixed code of deflate, which is read twice as quickly where there is little."""


def width_of(column: NDArray[Any]) -> int:
    """Bytes that the largest number of a column of numbers from 0 needs; 0 where all are 0."""
    return (int(column.max()).bit_length() + 7) // 8 if column.size else 0


def bytes_of(column: NDArray[Any]) -> NDArray[np.uint8]:
    """Shape (numbers, 4 or 8): the bytes of numbers from 0, the lowest first."""
    wide = np.ascontiguousarray(column, "<u4" if width_of(column) <= 4 else "<u8")
    return wide.view(np.uint8).reshape(-1, wide.itemsize)


def column_of(low: bytes, noise: int, planes: Sequence[Sequence[bytes]], length: int) -> NDArray[Any]:
    """The column of that length whose numbers have `noise` low bytes in `low`; `planes[i]` are the parts of the plane
    of the byte after, i places on. uint32, or uint64 where there are more than four bytes."""
    size = 4 if noise + len(planes) <= 4 else 8
    column = np.zeros((length, size), np.uint8)
    if low:
        column[:, :noise] = np.frombuffer(low, np.uint8).reshape(-1, noise)
    for place, parts in enumerate(planes, start=noise):
        column[:, place] = np.frombuffer(b"".join(parts), np.uint8)
    return column.view(f"<u{size}").reshape(-1).astype(f"=u{size}", copy=False)


def pack(plain: bytes) -> bytes:
    """Deflated where that is shorter, else as it is: its length tells."""
    strategy = zlib.Z_FIXED if len(plain) < _SMALL else zlib.Z_DEFAULT_STRATEGY
    stream = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
    deflated = stream.compress(plain) + stream.flush()
    return deflated if len(deflated) < len(plain) else plain


def unpack(packed: bytes, size: int) -> bytes | None:
    """What was packed, `size` bytes; None where it was not that. Never makes more, whatever the stream says.

    Raises zlib.error for what is no stream.
    """
    if len(packed) == size:
        return packed
    stream = zlib.decompressobj()
    plain = stream.decompress(packed, size + 1)
    return plain if len(plain) == size and stream.eof and not stream.unused_data else None
