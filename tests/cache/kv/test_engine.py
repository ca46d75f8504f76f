"""The engine's surface. Numbers are those of the statements in the reference's section 1.1."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmql_lite.cache.kv.config import KVCacheMetadata
from lmql_lite.cache.kv.engine import KVCacheEngine
from lmql_lite.cache.kv.pages import decode_page, encode_page
from tests.cache.kv.engines import HEADS, LAYERS, METADATA, SIZE, config, cut, ids, kv, opened, same, torch
from tests.conftest import examples

TIERS = ["memory", "disk", "both"]


@pytest.fixture(params=TIERS)
def tiers(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return {
        "folder": None if request.param == "memory" else tmp_path,
        "local_cpu": request.param != "disk",
    }


OTHERS = {"fmt": "vllm", "model_name": "org-model@1", "world_size": 2, "worker_id": 1, "dtype": "float16"}


@pytest.mark.parametrize(("change", "other"), [*OTHERS.items(), ("fingerprint", "f" * 64)])
def test_statement_8_and_check_11_another_key_field_is_a_miss(tmp_path: Path, change: str, other: Any) -> None:
    with opened(tmp_path) as engine:
        engine.store(ids(300), kv(300))
        assert engine.lookup(ids(300)) == 300
    with opened(tmp_path, replace(METADATA, **{change: other})) as engine:
        assert engine.lookup(ids(300)) == 0 and engine.retrieve(ids(300))[0] == ()
        assert engine.longest(ids(300)) == ((), 0)


def test_statement_9_files_carry_the_key_and_the_full_key_stands_inside(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        engine.store(ids(256), kv(256))
        (path,) = tmp_path.rglob("*.pt")
        assert path.name.startswith("huggingface@org%2Fmodel%401@1@0@")
        assert path.stem.encode() in path.read_bytes()[:400]


@pytest.mark.parametrize("fmt", ["huggingface", "vllm"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "int8"])
def test_statements_11_12_24_25_and_check_6_both_layouts_come_back_bit_for_bit(
    tiers: dict[str, Any], fmt: str, dtype: str
) -> None:
    stored = kv(600, fmt=fmt, dtype=getattr(torch, dtype))
    with opened(metadata=replace(METADATA, fmt=fmt, dtype=dtype), **tiers) as engine:
        engine.store(ids(600), stored)
        found, mask = engine.retrieve(ids(600))
        assert mask.all() and all(
            torch.equal(a.view(torch.uint8), b.contiguous().view(torch.uint8)) and a.dtype == b.dtype
            for pair, twin in zip(found, stored, strict=True)
            for a, b in zip(pair, twin, strict=True)
        )
        blob, mask = engine.retrieve(ids(600), return_tuple=False)
        shape = (HEADS, 600, SIZE) if fmt == "huggingface" else (600, HEADS, SIZE)
        assert blob.shape == (LAYERS, 2, *shape) and mask.sum() == 600
        assert all(a.view(torch.uint8).eq(b.view(torch.uint8)).all() for a, b in zip(blob[1], found[1], strict=True))


def suffix(count: int, skipped: int) -> Any:
    return torch.arange(count) >= skipped


def test_statements_10_13_14_and_check_7_other_shapes_and_masks_raise() -> None:
    batched = tuple((k[None], v[None]) for k, v in kv(300))
    with opened(chunk_size=64) as engine:
        for kind, sentence, *given in (
            (AssertionError, r"those of \[299\] tokens, not of 300", ids(300), kv(299)),
            (ValueError, "a pair of tensors for each layer", ids(300), ()),
            (ValueError, "4 dimensions instead of 3", ids(300), batched),
            (ValueError, "dtype", ids(300), kv(300, dtype=torch.float16)),
            (ValueError, "not a sequence of ids", ids(300)[None], kv(300)),
            (AssertionError, "not a multiple of the chunk size 64", ids(300), kv(200), suffix(300, 100)),
            (AssertionError, "a mask needs skip_existing=True", ids(300), kv(236), suffix(300, 64), False),
            (ValueError, "must be False for a beginning", ids(300), kv(172), ~suffix(300, 172)),
            (ValueError, "is not a mask of 300 tokens", ids(300), kv(300), suffix(299, 0)),
            (ValueError, "is not a mask of 300 tokens", ids(300), kv(300), suffix(300, 0).int() + 1),
            (ValueError, "is not a mask of 300 tokens", ids(300), kv(300), suffix(300, 0)[None]),
            (AssertionError, "tokens, not of", ids(300), kv(300), suffix(300, 64)),
        ):
            with pytest.raises(kind, match=sentence):
                engine.store(*given)
        with pytest.raises(ValueError, match="must be False for a beginning"):
            engine.retrieve(ids(300), ~suffix(300, 100))
        assert engine.tiers.keys() == []


def test_statement_11_and_check_6_another_layout_raises() -> None:
    with pytest.raises(ValueError, match="'tgi' is not a layout"):
        KVCacheMetadata("m", fmt="tgi")
    with pytest.raises(ValueError, match="of dtype complex64 cannot be stored"):
        KVCacheMetadata("m", dtype="complex64")


def after(tokens: Any, fmt: str) -> Any:
    """Keys and values that depend on all tokens up to theirs, as those of a model do."""
    places = torch.arange(LAYERS * 2 * HEADS * SIZE).reshape(LAYERS, 2, HEADS, SIZE)
    whole = (torch.cumsum(tokens, 0)[:, None, None, None, None] + places).float()
    order = (1, 2, 3, 0, 4) if fmt == "huggingface" else (1, 2, 0, 3, 4)
    return tuple((layer[0], layer[1]) for layer in whole.permute(order))


def shared(page: tuple[int, ...], text: tuple[int, ...]) -> int:
    """Number of tokens with which both begin."""
    equal = [one == other for one, other in zip(page, text, strict=False)]
    return [*equal, False].index(False)


TEXTS = st.builds(
    lambda common, seed, count: torch.cat([ids(common), ids(100, seed)])[:count],
    st.integers(0, 100),
    st.integers(1, 3),
    st.integers(0, 110),
)


def known(pages: set[tuple[int, ...]], parts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The parts that are pages, up to the first that is not."""
    return [*itertools.takewhile(pages.__contains__, parts)]


STEPS = st.tuples(st.sampled_from(["store", "store", "ask", "clear", "reopen"]), TEXTS, st.integers(0, 110))


@given(
    steps=st.lists(STEPS, max_size=12),
    place=st.sampled_from(["memory", "disk", "both"]),
    fmt=st.sampled_from(["huggingface", "vllm"]),
    unfull=st.booleans(),
)
@settings(deadline=None, derandomize=True, max_examples=examples(200))
def test_statements_14_17_20_to_23_26_27_and_checks_4_7_10_an_engine_is_a_dictionary_of_beginnings(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], place: str, fmt: str, unfull: bool
) -> None:
    """`longest` hits to the token, where 16 tokens of a page are the same, or all of a shorter one."""
    folder = None if place == "memory" else tmp_path_factory.mktemp("pages")
    options = config(folder, chunk_size=32, local_cpu=place != "disk", save_unfull_chunk=unfull)
    metadata = replace(METADATA, fmt=fmt)
    engine, pages, was_cleared = KVCacheEngine(options, metadata), set[tuple[int, ...]](), False
    for what, tokens, skipped in steps:
        text, kv_of_text = tuple(tokens.tolist()), after(tokens, fmt)
        count, skipped = len(text), min(skipped, len(text))
        first = skipped // 32
        parts = [text[: begin + 32] for begin in range(0, count, 32)]

        if what == "store":
            engine.store(tokens, cut(kv_of_text, 32 * first, count, fmt), suffix(count, 32 * first))
            pages |= {part for part in parts[first:] if unfull or len(part) % 32 == 0}
        elif what == "clear":
            gone = known(pages, parts)
            assert engine.clear(tokens) == len(gone)
            pages, was_cleared = pages.difference(gone), True
        elif what == "reopen" and folder is not None:
            engine.close()
            engine = KVCacheEngine(options, metadata)

        begin = len([(), *known(pages, parts)][-1])
        assert engine.lookup(tokens) == begin
        before, mask = engine.tiers.counts.hits, suffix(count, skipped)
        found, is_found = engine.retrieve(tokens, mask)
        assert engine.tiers.counts.hits - before == sum(part in pages for part in parts[first:])
        end = max(skipped, len([(), *known(pages, parts[first:])][-1]))
        assert is_found.tolist() == [skipped <= at < end for at in range(count)]
        assert same(found, cut(kv_of_text, skipped, end, fmt)) if skipped < end else found == ()
        assert skipped < end or engine.retrieve(tokens, mask, return_tuple=False)[0] == ()
        for tensor in itertools.chain(*found):
            tensor.zero_()  # what is returned aliases nothing

        found, longest = engine.longest(tokens)
        following = [(shared(page, text) - begin, len(page) - begin) for page in pages if page[:begin] == text[:begin]]
        hits = [like for like, size in following if min(16, size) <= like and 0 < size <= 32]
        expected = begin + max(hits, default=0)
        assert longest == expected or (was_cleared and begin <= longest < expected)
        assert same(found, cut(kv_of_text, 0, longest, fmt)) if longest else found == ()
    engine.close()


def test_statement_17_and_check_4_two_thousand_stored_three_thousand_asked_gives_1792() -> None:
    with opened() as engine:
        engine.store(ids(3000)[:2000], kv(2000))
        assert (engine.lookup(ids(3000)), engine.lookup(ids(3000)[:2000])) == (1792, 2000)


def test_pages_of_another_salt_are_unknown_and_it_stands_in_no_name(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        engine.store(ids(300), kv(300))
    with opened(tmp_path, cache_salt="tenant") as engine:
        assert engine.longest(ids(300))[1] == 0
        engine.store(ids(300), kv(300))
        assert engine.lookup(ids(300)) == 300 and not any("tenant" in path.name for path in tmp_path.rglob("*"))


def test_statements_15_16_19_and_check_8_existing_pages_are_not_rewritten_unless_told(tmp_path: Path) -> None:
    def written() -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in tmp_path.rglob("*.pt")}

    with opened(tmp_path) as engine:
        engine.store(ids(1000), kv(1000))
        before = written()
        assert len(before) == 4
        engine.store(ids(1000), kv(1000))
        assert written() == before
        engine.clear(ids(1000)[:512])
        engine.store(ids(1000), kv(1000))
        assert set(written()) == set(before)
        before = written()
        engine.store(ids(1000), kv(1000), skip_existing=False)
        assert set(written()) == set(before)
        assert all(written()[name] != number for name, number in before.items())
        assert same(engine.retrieve(ids(1000))[0], kv(1000))


def test_statement_18_and_check_9_tensors_may_change_after_a_store_that_does_not_wait(tmp_path: Path) -> None:
    changed = kv(2000)
    with opened(tmp_path, local_cpu=False) as engine:
        engine.store(ids(2000), changed)
    with opened(tmp_path, chunk_size=128) as engine:
        engine.store(ids(2000), changed, blocking=False)
        for pair in changed:
            for tensor in pair:
                tensor.zero_()
        assert engine.lookup(ids(2000)) == 2000
    for size in (256, 128):
        with opened(tmp_path, chunk_size=size) as engine:
            assert same(engine.retrieve(ids(2000))[0], kv(2000))


def test_statement_24_layers_of_different_shapes_come_back_as_a_tuple_only() -> None:
    uneven = tuple((torch.randn(2, 300, 4 + layer), torch.randn(1, 300, 8)) for layer in range(3))
    with opened() as engine:
        engine.store(ids(300), uneven)
        assert same(engine.retrieve(ids(300))[0], uneven)
        with pytest.raises(ValueError, match="do not form a single tensor"):
            engine.retrieve(ids(300), return_tuple=False)


def test_statement_28_and_check_9_close_writes_all_and_may_be_called_twice(tmp_path: Path) -> None:
    engine = KVCacheEngine(config(tmp_path, pipelined_backend=True), METADATA)
    engine.store(ids(4000), kv(4000), blocking=False)
    engine.close()
    engine.close()
    with opened(tmp_path) as again:
        assert again.lookup(ids(4000)) == 4000
    before = set(threading.enumerate())
    forgotten = KVCacheEngine(config(tmp_path / "other"), METADATA)
    forgotten.store(ids(4000), kv(4000), blocking=False)
    (worker,) = (each for each in threading.enumerate() if each not in before and each.name.startswith("lmql_lite"))
    del forgotten
    gc.collect()
    worker.join(10)
    assert not worker.is_alive()
    with opened(tmp_path / "other") as again:
        assert again.lookup(ids(4000)) == 4000


def test_statement_30_hit_rates_per_request_and_per_tier(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        engine.store(ids(512), kv(512))
    with opened(tmp_path) as engine:
        assert engine.report().hit_rate == 0.0
        for asked, found in (
            (torch.cat([ids(512), ids(488, seed=3)]), {"disk": 512}),
            (ids(512), {"memory": 512}),
            (ids(500, seed=5), {}),
        ):
            before = engine.report()
            engine.retrieve(asked)
            after = engine.report()
            assert after.asked - before.asked == len(asked)
            assert Counter(after.by_tier) - Counter(before.by_tier) == found
        assert (after.asked, after.found, after.hit_rate) == (2012, 1024, 1024 / 2012)
        assert after.by_tier == {"disk": 512, "memory": 512} and after.notices == ()
        assert after.tiers["memory"].hits == 2 and after.tiers["disk"].hits == 2


# -- beyond the seed


def test_trimmed_layers_are_refused_with_a_notice() -> None:
    with opened() as engine:
        trimmed = list(kv(300))
        trimmed[1] = cut([trimmed[1]], 200, 300)[0]
        engine.store(ids(300), tuple(trimmed))
        assert engine.lookup(ids(300)) == 0
        assert "layers hold [100, 300] of 300 tokens, and were not stored" in engine.report().notices[0]


def test_pages_are_pinned_and_cleared(tmp_path: Path) -> None:
    page = 100_000
    with opened(tmp_path, max_local_cpu_size=3 * page / 2**30, max_local_disk_size=3 * page / 2**30) as engine:
        engine.store(ids(512), kv(512))
        assert engine.pin(ids(512)) == 512
        for seed in range(1, 9):
            engine.store(ids(512, seed), kv(512, seed))
        assert engine.lookup(ids(512)) == 512 and engine.lookup(ids(512, 8)) > 0 and engine.lookup(ids(512, 2)) == 0
        engine.pin(ids(512), False)
        assert engine.clear(ids(512)) == 2 and engine.lookup(ids(512)) == 0


def test_check_20_a_small_cap_keeps_the_beginning_and_one_below_a_page_is_a_notice(
    tmp_path: Path,
) -> None:
    for size, pages in ((4 * 60_000, 4), (1000, 0)):
        caps = {"max_local_cpu_size": size / 2**30, "max_local_disk_size": size / 2**30}
        with opened(tmp_path / str(size), **caps) as engine:
            engine.store(ids(2000), kv(2000))
            assert engine.lookup(ids(2000)) == 256 * pages == engine.longest(ids(2000))[1]
            engine.store(ids(256, 1), kv(256, 1))
            assert engine.lookup(ids(2000)) == 256 * max(pages - 1, 0) and engine.lookup(ids(256, 1)) == 256 * bool(
                pages
            )
            assert all(sum(tier.sizes().values()) <= size for tier in engine.tiers.tiers)
            assert bool(pages) or sum("the cap is 1000 bytes" in notice for notice in engine.report().notices) >= 2


def test_check_14_a_foreign_or_damaged_page_is_a_miss_that_names_it(tmp_path: Path) -> None:
    with opened(tmp_path, local_cpu=False) as engine:
        engine.store(ids(512), kv(512))
        first, second = engine._known(ids(512))
        whole = bytes(engine.tiers.get([second])[0] or b"")
        page = decode_page(whole)
        others = bytes(encode_page(page.tokens + 1, page.parent, page.layers, "float32"))
        for value in (b"no page at all", bytes(1000), whole[:-4], others):
            engine.tiers.put(second, value)
            assert engine.retrieve(ids(512))[1].sum() == 256 == engine.lookup(ids(512))
        (path,) = (path for path in tmp_path.rglob("*.pt") if first in path.name)
        path.write_bytes(path.read_bytes()[:-1])
        assert engine.retrieve(ids(512))[0] == () and engine.longest(ids(512)) == ((), 0)
        assert any("is damaged" in notice for notice in engine.report().notices)
        engine.store(ids(512), kv(512))
        assert same(engine.retrieve(ids(512))[0], kv(512))


def test_foreign_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        engine.store(ids(300), kv(300))
        place = engine._known(ids(300))[0].rpartition("@after%")[2]
        foreign = [
            tmp_path / name for name in (f"x@after%{place}.pt", f"a@b@c@d@e@after%{place}.pt", "notes.txt", "!zz.pt")
        ]
        for path in foreign:
            path.write_bytes(b"no page")
    with opened(tmp_path) as engine:
        assert engine.longest(torch.cat([ids(300)[:100], ids(50, seed=2)]))[1] == 100
        assert all(path.exists() for path in foreign)


def test_check_15_a_planted_pickle_is_never_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("something executable was loaded"))
    with opened(tmp_path) as engine:
        engine.store(ids(300), kv(300))
    for path in tmp_path.rglob("*.pt"):
        path.write_bytes(b"cos\nsystem\n(S'echo never'\ntR.")
    with opened(tmp_path) as engine:
        assert engine.retrieve(ids(300))[0] == () and len(engine.report().notices) == 2


@pytest.mark.parametrize("cycles", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_check_22_cycles_leave_no_threads_no_descriptors_and_no_memory(tmp_path: Path, cycles: int) -> None:
    def pages() -> int:
        """Memory pages of this process that are in use."""
        return int(Path("/proc/self/statm").read_text("ascii").split()[1])

    with opened(
        tmp_path, chunk_size=4, max_local_disk_size=40_000 / 2**30, max_local_cpu_size=20_000 / 2**30
    ) as engine:
        engine.store(ids(8), kv(8), blocking=False)
        engine.tiers.flush()
        threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
        for number in range(1, cycles):
            engine.store(ids(8, number), kv(8))
            engine.longest(ids(8, number))
            if number == cycles // 2:
                before = pages()
        # The index has two more pages a cycle, 1.4 kB; Python's table of interned names grows by 3.7 MB at once.
        assert (pages() - before) * os.sysconf("SC_PAGESIZE") < 16 << 20
        assert threading.active_count() == threads and len(os.listdir("/proc/self/fd")) == descriptors
        assert sum(engine.tiers.tiers[1].sizes().values()) <= 40_000


def test_pages_are_prefetched_into_memory(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        engine.store(ids(512), kv(512))
    with opened(tmp_path, KVCacheMetadata("m")) as engine:
        assert "without a fingerprint" in engine.report().notices[0] and engine.lookup(ids(512)) == 0
    with opened(tmp_path) as engine:
        engine.prefetch(ids(512))
        engine.tiers.flush()
        engine.retrieve(ids(512))
        assert engine.report().by_tier == {"memory": 512}


def test_many_threads_share_an_engine(tmp_path: Path) -> None:
    def work(number: int) -> bool:
        sequence = torch.cat([ids(300), torch.full((100,), 51_000 + number % 5)])
        engine.store(sequence, kv(400), blocking=number % 2 == 0)
        found, known = engine.longest(sequence)
        return bool(known) and same(found, kv(known))

    with opened(tmp_path, chunk_size=64) as engine, ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(40)))


def test_tokens_may_be_tensors_arrays_or_lists() -> None:
    with opened() as engine:
        engine.store(ids(300).to(torch.int32), kv(300))
        for form in (ids(300), ids(300).tolist(), ids(300).numpy(), ids(300).numpy().astype(np.uint16)):
            assert engine.lookup(form) == 300


@pytest.mark.parametrize(("wanted", "stored"), [(True, [128, 192, 200]), (False, [])])
def test_generated_tokens_are_stored_page_by_page_where_that_is_wanted(wanted: bool, stored: list[int]) -> None:
    calls: list[int] = []

    def current(count: int) -> Any:
        calls.append(count)
        return kv(count)

    with opened(chunk_size=64, save_decode_cache=wanted) as engine:
        engine.store(ids(200)[:100], kv(100))
        for count in range(101, 201):
            is_stored = engine.save_decoded(ids(200)[:count], partial(current, count), is_done=count == 200)
            assert is_stored == (count in stored)
        engine.tiers.flush()
        assert calls == stored and engine.longest(ids(200))[1] == (200 if wanted else 100)
        assert not wanted or same(engine.retrieve(ids(200))[0], kv(200))


def test_check_21_another_process_with_another_hash_seed_hits_everything(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from tests.cache.kv.engines import ids, kv, opened, same
with opened(Path(sys.argv[1])) as engine:
    assert engine.lookup(ids(700)) == 700 and same(engine.retrieve(ids(700))[0], kv(700))
    assert engine.longest(ids(700)[:650])[1] == 650
"""
    with opened(tmp_path) as engine:
        engine.store(ids(700), kv(700))
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", script, tmp_path], env=environment, timeout=120, check=True)


def test_the_python_of_the_documentation_runs() -> None:
    text = (Path(__file__).parents[3] / "docs" / "kv.md").read_text("utf-8")
    exec(text.split("```python\n")[1].split("```")[0], {})
    assert list(Path("kv-cache").rglob("*.pt"))
