"""Arithmetic of blocks. Numbers are those of the statements in the reference's section 3.1."""

from __future__ import annotations

import copy
import doctest
from typing import Any

import pytest

from lmql_lite.cache.kv import kv_blocks
from lmql_lite.cache.kv.kv_blocks import (
    SimpleLRUCache,
    can_rotate,
    divergence,
    joined_blocks,
    merge_dynamic_caches,
    rotated_kv,
)
from lmql_lite.cache.kv.kv_layout import Unsupported, cache_keyword, from_cache, to_cache
from tests.cache.kv.tiny_models import CONFIGS, RECURRENT, prompt, scores, tiny, torch, transformers

ROTATING = [name for name in CONFIGS if "learned" not in name]


def block(network: Any, tokens: Any, place: int = 0) -> Any:
    past = transformers.DynamicCache()
    with torch.inference_mode():
        places = torch.arange(place, place + len(tokens))[None]
        network(input_ids=tokens[None], position_ids=places, **{cache_keyword(network): past}, use_cache=True)
    return from_cache(past, len(tokens))


def test_examples_in_docstrings_run() -> None:
    failed, run = doctest.testmod(kv_blocks)
    assert run and not failed


def test_statements_1_2_and_check_28_of_the_lru_cache() -> None:
    evicted: list[str] = []
    cache: SimpleLRUCache[str] = SimpleLRUCache(2, evicted.append)
    cache.put("a", "A")
    cache.put("b", "B")
    assert cache.get("a") == "A" and cache.get("none") is None and cache.current_size() == 2
    cache.put("b", "B2")  # a value that is replaced is not evicted
    assert evicted == [] and cache.get("b") == "B2"
    cache.put("c", "C")
    assert evicted == ["A"] and cache.get("a") is None and cache.current_size() == 2
    seen: list[object] = []
    watching: SimpleLRUCache[str] = SimpleLRUCache(1, lambda _: seen.append(watching.get("new")))
    watching.put("old", "1")
    watching.put("new", "2")
    assert seen == [None] and watching.get("new") == "2"  # called before the new entry is visible
    for capacity in (0, -1):
        none: SimpleLRUCache[str] = SimpleLRUCache(capacity, evicted.append)
        none.put("a", "A")
        assert none.get("a") is None and none.current_size() == 0 and evicted == ["A"]


def test_statement_7_and_check_28_merged_caches_are_the_layers_one_after_the_other() -> None:
    network = tiny("qwen2, grouped queries")
    caches = [to_cache(block(network, prompt(count, seed=count))) for count in (5, 1, 9)]
    before = [from_cache(cache, cache.get_seq_length()) for cache in caches]
    kept = [tuple((k.clone(), v.clone()) for k, v in one) for one in before]
    merged = merge_dynamic_caches(caches)
    assert merged.get_seq_length() == 15
    for number, layer in enumerate(merged.layers):
        assert torch.equal(layer.keys, torch.cat([cache.layers[number].keys for cache in caches], dim=-2))
        assert torch.equal(layer.values, torch.cat([cache.layers[number].values for cache in caches], dim=-2))
        layer.keys.zero_()
    for one, twin in zip(before, kept, strict=True):
        assert all(
            torch.equal(a, b) for pair, other in zip(one, twin, strict=True) for a, b in zip(pair, other, strict=True)
        )


def test_statement_7_and_check_28_no_cache_and_sliding_windows_raise() -> None:
    with pytest.raises(ValueError, match="there is no cache to merge"):
        merge_dynamic_caches([])
    sliding = transformers.DynamicCache(config=tiny("mistral, sliding window").config)
    scores(tiny("mistral, sliding window"), prompt(5), sliding)
    with pytest.raises(ValueError, match="sliding window"):
        merge_dynamic_caches([sliding])
    plain = to_cache(block(tiny("llama"), prompt(5)))
    fewer = copy.deepcopy(plain)
    fewer.layers.pop()
    empty = copy.deepcopy(plain)
    empty.layers[0].keys = None
    for other in (fewer, empty):
        with pytest.raises(ValueError, match="differ in their layers"):
            merge_dynamic_caches([plain, other])


@pytest.mark.parametrize("name", CONFIGS)
def test_check_29_rotated_keys_are_those_of_a_prefill_at_the_new_place(name: str) -> None:
    network = tiny(name)
    assert can_rotate(network) == (name in ROTATING)
    if name in ROTATING:
        here = block(network, prompt(20))
        for place in (1, 63, 300):
            there = block(network, prompt(20), place)
            for moved, expected in zip(rotated_kv(network, here, place), there, strict=True):
                assert (moved[0] - expected[0]).abs().max() <= 1e-4 and (moved[1] - expected[1]).abs().max() <= 1e-4
        back = rotated_kv(network, rotated_kv(network, here, 90), -90)
        assert max((a[0] - b[0]).abs().max() for a, b in zip(here, back, strict=True)) <= 1e-5


@pytest.mark.parametrize("name", RECURRENT)
def test_models_with_states_cannot_be_rotated(name: str) -> None:
    assert not can_rotate(tiny(name))


def test_learned_positions_have_no_rotation() -> None:
    network = tiny("gpt2, learned positions")
    with pytest.raises(Unsupported, match="has no rotation of keys"):
        rotated_kv(network, block(network, prompt(5)), 3)


@pytest.mark.parametrize("context", [64, 2048, 32_768])
@pytest.mark.parametrize("kind", ["default", "dynamic", "linear"])
def test_a_rotation_that_depends_on_the_length_of_the_text_is_found_out(kind: str, context: int) -> None:
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=context,
        rope_parameters={"rope_type": kind, "factor": 8.0, "rope_theta": 10_000.0},
    )
    torch.manual_seed(3)
    assert can_rotate(transformers.LlamaForCausalLM(config).eval()) == (kind != "dynamic")


@pytest.mark.parametrize("name", ROTATING)
def test_check_29_one_block_at_its_place_is_exact_and_rotation_is_nearer_than_none(name: str) -> None:
    network = tiny(name)
    first, second, suffix = prompt(24), prompt(24, seed=8), prompt(16, seed=9)
    whole = torch.cat([first, second, suffix])
    full = scores(network, whole)[48:]
    exact = scores(network, suffix, to_cache(joined_blocks(network, [(block(network, whole[:48]), 0)])))
    assert divergence(full, exact).mean_kl <= 1e-6 and divergence(full, exact).top1 == 1.0
    alone = [(block(network, first), 0), (block(network, second), 0)]
    rotated = scores(network, suffix, to_cache(joined_blocks(network, alone)))
    placed = [(block(network, first), 0), (block(network, second, 24), 24)]
    expected = scores(network, suffix, to_cache(joined_blocks(network, placed)))
    assert (rotated - expected).abs().max() <= 1e-3  # as if the second block had been prefilled at its place
    smashed = scores(network, suffix, merge_dynamic_caches([to_cache(kv) for kv, _ in alone]))
    assert torch.equal(smashed, scores(network, suffix, to_cache(joined_blocks(network, alone, rotate=False))))
    assert divergence(full, smashed).mean_kl > divergence(full, exact).mean_kl
    with pytest.raises(ValueError, match="there is no block to join"):
        joined_blocks(network, [])


def test_divergence_of_equal_and_of_other_scores() -> None:
    logits = torch.randn(7, 50, generator=torch.Generator().manual_seed(1))
    same = divergence(logits, logits + 3.0)  # scores are logits up to a constant
    assert abs(same.mean_kl) <= 1e-12 and same.top1 == 1.0
    other = divergence(logits, -logits)
    assert 0 < other.mean_kl <= other.p95_kl and other.first_kl > 0 and other.top1 < 1 and other.largest > 1
