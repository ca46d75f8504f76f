"""Chunks, hashes, keys and bytes of pages. Numbers are those of the statements in the reference's section 1.1."""

from __future__ import annotations

import doctest
import hashlib
import random
from urllib.parse import unquote

import numpy as np
import pytest

from lmql_lite.cache.kv import pages
from lmql_lite.cache.kv.pages import (
    KVError,
    chunk_hash,
    chunk_tokens,
    decode_page,
    dtype_name,
    encode_page,
    page_key,
    prefix_hashes,
)
from lmql_lite.store import disk, tier


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, np.int64)


@pytest.mark.parametrize("module", [pages, disk, tier])
def test_examples_in_docstrings_run(module: object) -> None:
    failed, run = doctest.testmod(module)  # type: ignore[arg-type]
    assert run and not failed


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1000])
def test_statement_1_chunks_are_consecutive_slices(count: int) -> None:
    ids = np.arange(count)
    chunks = chunk_tokens(ids, 256)
    assert [len(chunk) for chunk in chunks] == [256] * (count // 256) + [count % 256] * bool(count % 256)
    assert np.array_equal(np.concatenate([tokens(), *chunks]), ids)


def test_statements_2_3_and_check_5_hashes_are_known_answers() -> None:
    first = hashlib.sha256(b"".join(n.to_bytes(8, "little", signed=True) for n in (1, 2, 3))).hexdigest()
    assert chunk_hash(tokens(1, 2, 3), "") == first
    assert first == "e2e2033ae7e19d680599d4eb0a1359a2b48ec5baac75066c317fbf85159c54ef"
    second = hashlib.sha256(first.encode("ascii") + (4).to_bytes(8, "little")).hexdigest()
    assert chunk_hash(tokens(4), first) == second
    for kind in (np.int32, np.uint16, np.int64, ">i8"):
        assert chunk_hash(np.array([1, 2, 3], kind).astype(np.int64), "") == first


def test_statements_4_5_and_check_5_a_hash_depends_on_every_token_up_to_its_end() -> None:
    ids = np.arange(1000)
    hashes = prefix_hashes(chunk_tokens(ids, 256))
    assert hashes[0] == chunk_hash(ids[:256], "") and hashes[3] == chunk_hash(ids[768:], hashes[2])
    for place in (0, 255, 256, 700, 999):
        changed = ids.copy()
        changed[place] += 1
        others = prefix_hashes(chunk_tokens(changed, 256))
        assert [a == b for a, b in zip(hashes, others, strict=True)] == [n < place // 256 for n in range(4)]


def test_statements_6_and_7_no_two_models_share_a_key() -> None:
    models = ["m", "org/model", "a@b", "a%40b", "@@", "Zoë", "C:\\models\\x y", ""]
    keys = [page_key("vllm", model, 8, 3, "ab", "half", tags={"weights": "a@b%c"}) for model in models]
    assert len(set(keys)) == len(models)
    for model, key in zip(models, keys, strict=True):
        fields = key.split("@")
        assert unquote(fields[1]) == model and [*fields[:1], *fields[2:6]] == ["vllm", "8", "3", "ab", "half"]


def test_statement_7_dtypes_have_names_and_others_raise() -> None:
    assert [dtype_name(name) for name in ("half", "bfloat16", "float", "double", "int8", "uint8", "fp8_e4m3fn")] == [
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "int8",
        "uint8",
        "float8_e4m3fn",
    ]
    for name in ("complex64", "int64", "", "q4"):
        with pytest.raises(ValueError, match="cannot be stored"):
            dtype_name(name)


def page_bytes() -> bytearray:
    layers = [(np.arange(24, dtype="u4").reshape(2, 3, 4), np.arange(30, dtype="u4").reshape(1, 3, 10))] * 2
    return encode_page(tokens(5, 6, 7), "parent", layers, "float32")


def test_a_page_is_a_safetensors_file() -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    found = safetensors.load(bytes(page_bytes()))
    assert set(found) == {"tokens", "k.0", "v.0", "k.1", "v.1"} and found["v.1"].shape == (1, 3, 10)


def test_other_bytes_are_an_error_and_never_a_page_of_other_sizes() -> None:
    whole, numbers = page_bytes(), random.Random(3)
    length = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(3000):
        damaged = bytearray(whole)
        for _ in range(numbers.randrange(1, 3)):
            damaged[numbers.randrange(length)] = numbers.randrange(32, 127)
        if numbers.random() < 0.2:
            del damaged[numbers.randrange(len(damaged)) :]
        try:
            page = decode_page(damaged)
        except KVError:
            continue
        assert sum(a.nbytes for pair in page.layers for a in pair) + page.tokens.nbytes <= len(damaged)
    for other in (b"", b"\x80\x04K\x01.", b"{}", bytes(100), b"\xff" * 100, bytes(8) + b"[]", b"[" * 100_000):
        with pytest.raises(KVError):
            decode_page(other)


def test_the_index_of_pages_starts_over_where_it_is_full() -> None:
    index = pages.KVIndex(tier.MemoryTier(2**20), lambda page, place: "")
    for number in range(2**16 + 1):
        index.add(f"{number}@after%{pages.place_tags(str(number), tokens(1))[0]}", tokens(1))
        assert number or index.closest("0", tokens(1))
    assert [bool(index.closest(str(number), tokens(1))) for number in (0, 2**16)] == [False, True]
