"""Page of a sequence: a chunk of tokens with the keys and values of every layer, its key, hash and bytes; and an index
of pages by their first tokens, for hits that end inside a page.

Pages of one sequence form a chain: the hash of each covers all tokens up to its end. The bytes are those of a
safetensors file: `tokens`, then `k.0`, `v.0`, `k.1`, ... , and under `parent` the hash of the page before it.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.tensor_bytes import Bits, TensorBits, decode_tensors, encode_tensors, read_header
from lmql_lite.errors import CacheError
from lmql_lite.store.tier import Buffer, Store, group_of

Tokens: TypeAlias = NDArray[np.int64]

SHARED_TOKENS = 16
"""Number of tokens of a page that its key identifies. Common beginnings of longer pages are found from this length
on."""

LMCACHE_DTYPES = {
    "float16": "half",
    "bfloat16": "bfloat16",
    "float32": "float",
    "float64": "double",
    "int8": "int8",
    "uint8": "uint8",
    "float8_e4m3fn": "fp8_e4m3fn",
    "float8_e5m2": "fp8_e5m2",
}
"""Names in LMCache's keys, by torch's names."""
_MAX_PAGES = 1 << 16
"""Maximum number of pages in the index, after which it starts over."""
_MAX_CANDIDATES = 64
"""Maximum number of pages at one place, the latest ones, so that a look-up costs the same beside any number."""
_HEAD_BYTES = 1 << 16
_ALIASES = {"fp8": "uint8", "fp8_e4m3": "float8_e4m3fn"}
"""Further names of LMCache, which later versions write."""


class KVError(CacheError, ValueError, AssertionError):
    """Wrong use of the engine: its configuration, a mask, a shape. Upstream raises ValueError or AssertionError."""


def dtype_name(dtype: object) -> str:
    """torch's name of a dtype, from the dtype or any name known to LMCache. Raises KVError for others.

    >>> dtype_name("torch.bfloat16"), dtype_name("half"), dtype_name("float")
    ('bfloat16', 'float16', 'float32')
    """
    name = str(dtype).removeprefix("torch.")
    name = _ALIASES.get(name, name)
    for known, other in LMCACHE_DTYPES.items():
        if name in (known, other):
            return known
    raise KVError(f"keys and values of dtype {dtype} cannot be stored", hint=f"one of {', '.join(LMCACHE_DTYPES)}")


def page_key(*identity: object, tags: Mapping[str, str]) -> str:
    """Key of a page: `fmt@model@world_size@worker_id@chunk_hash@dtype@tag%value@...`, percent-escaped, so that any two
    keys differ. Pages whose keys differ are unrelated.

    >>> page_key("vllm", "org/m@1", 1, 0, "ab", "half", tags={"weights": "c0"})
    'vllm@org%2Fm%401@1@0@ab@half@weights%c0'
    """
    fields = [quote(str(field), safe="") for field in identity]
    return "@".join(fields + [f"{tag}%{quote(value, safe='')}" for tag, value in tags.items()])


def chunk_tokens(tokens: Tokens, chunk_size: int) -> list[Tokens]:
    """Consecutive slices of `chunk_size` tokens; the last one may be shorter."""
    return [tokens[begin : begin + chunk_size] for begin in range(0, len(tokens), chunk_size)]


def chunk_hash(tokens: Tokens, prefix_hash: str) -> str:
    """SHA-256, in hexadecimal, of the hash of the prefix and the tokens as little-endian int64."""
    return hashlib.sha256(prefix_hash.encode("ascii") + tokens.astype("<i8").tobytes()).hexdigest()


def prefix_hashes(chunks: Sequence[Tokens], initial: str = "") -> list[str]:
    """Hash of each chunk, which depends on every token up to its end."""
    hashes, last = [], initial
    for chunk in chunks:
        last = chunk_hash(chunk, last)
        hashes.append(last)
    return hashes


def place_tags(parent: str, tokens: Tokens) -> list[str]:
    """Values of the tag `after` of pages that follow the page `parent` and begin like `tokens`.

    The tag names the parent and the first tokens, at most 16, so that keys alone show which pages may have a common
    beginning with `tokens`. The last value is that of a page with exactly these tokens.
    """
    lengths = range(1, min(len(tokens), SHARED_TOKENS) + 1)
    return [f"{parent[:16]}.{zlib.crc32(tokens[:length].astype('<i8').tobytes()):08x}" for length in lengths]


@dataclass(frozen=True)
class KVPage:
    """Tokens of a page and their keys and values: two arrays per layer, with the layout's token axis."""

    tokens: Tokens
    parent: str
    layers: tuple[tuple[Bits, Bits], ...]


def encode_page(tokens: Tokens, parent: str, layers: Sequence[tuple[Bits, Bits]], dtype: str) -> bytearray:
    """Bytes of a page. The arrays are copied once, whatever their memory layout; `dtype` is torch's name."""
    named = [TensorBits("tokens", "int64", tokens.astype("<i8"))]
    for number, (key, value) in enumerate(layers):
        named += [TensorBits(f"k.{number}", dtype, key), TensorBits(f"v.{number}", dtype, value)]
    return encode_tensors(named, {"format": "lmql_lite kv page 1", "parent": parent})


def decode_page(data: Buffer) -> KVPage:
    """Page from its bytes; the arrays are views of the bytes. Raises KVError for invalid bytes."""
    try:
        tensors, metadata = decode_tensors(data)
        parent = metadata["parent"]
    except (KeyError, TypeError, ValueError) as error:
        raise KVError(f"the page cannot be read ({error})") from error
    arrays: list[Bits] = []
    tokens = None
    for one in tensors:
        if one.name == "tokens":
            tokens = one.bits.view(np.int64)
        elif one.name == f"{'kv'[len(arrays) % 2]}.{len(arrays) // 2}" and one.bits.ndim == 3:
            arrays.append(one.bits)
        else:
            raise KVError(f"the page has an unexpected tensor {one.name}")
    if tokens is None or tokens.ndim != 1 or len(arrays) % 2 or not arrays:
        raise KVError("the page is incomplete")
    return KVPage(tokens, parent, tuple(zip(arrays[::2], arrays[1::2], strict=True)))


def page_tokens(beginning: Buffer) -> Tokens | None:
    """Tokens of a page from its first bytes; None if the bytes do not contain them."""
    try:
        header, body = read_header(beginning)
        (count,) = header["tokens"]["shape"]
        return np.frombuffer(beginning, "<i8", count, body + header["tokens"]["data_offsets"][0]).astype(np.int64)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None


# Index ----------------------------------------------------------------------------------------------------------------


def shared_tokens(one: Tokens, other: Tokens) -> int:
    """Number of common tokens at the beginnings of two sequences."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length


class KVIndex:
    """Keys and tokens of the pages that an engine has seen, by their place (`place_tags`).

    Only the tiers are authoritative: a page may be evicted, and pages of other processes are searched for once for
    each beginning. `key_of` returns this engine's key from a page's hash and its place.
    """

    def __init__(self, store: Store, key_of: Callable[[str, str], str]) -> None:
        self._store, self._key_of = store, key_of
        self._lock = threading.Lock()
        self._places: dict[str, dict[str, Tokens]] = {}
        self._count = 0
        self._listed: set[str] = set()
        """Places of beginnings that were searched for on the tiers."""

    def add(self, key: str, tokens: Tokens) -> None:
        """Adds a page that is on a tier."""
        with self._lock:
            if self._count >= _MAX_PAGES:
                self._places.clear()
                self._listed.clear()
                self._count = 0
            children = self._places.setdefault(group_of(key) or "", {})
            self._count += key not in children
            children.pop(key, None)
            children[key] = tokens.copy()
            if len(children) > _MAX_CANDIDATES:
                del children[next(iter(children))]
                self._count -= 1

    def closest(self, parent: str, ids: Tokens) -> list[tuple[int, str]]:
        """The best two pages after `parent` that begin like `ids`, at least one: the number of shared tokens, and the
        key."""
        places = place_tags(parent, ids)
        if places[-1] not in self._listed:
            self._listed.add(places[-1])
            self._look(places)
        with self._lock:
            children = [child for place in places for child in self._places.get(place, {}).items()]
        return sorted(((shared_tokens(tokens, ids), key) for key, tokens in children), reverse=True)[:2]

    def _look(self, places: Sequence[str]) -> None:
        """Adds pages at some places from the tiers: those of other and of earlier processes."""
        for place in places:
            ours = [key for key in self._store.group(place) if key == self._key_of(_page_hash(key), place)]
            latest = ours[-_MAX_CANDIDATES:]
            for key, head in zip(latest, self._store.head(latest, _HEAD_BYTES), strict=True):
                tokens = None if head is None else page_tokens(head)
                if tokens is not None:
                    self.add(key, tokens)


def _page_hash(key: str) -> str:
    """The page's hash in a key, "" in that of another program."""
    fields = key.split("@")
    return fields[4] if len(fields) > 4 else ""
