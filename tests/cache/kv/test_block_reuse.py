"""Prompts with reused blocks against a full prefill, and the arithmetic of blocks, on tiny models.

Numbers are those of the statements in the reference's section 3.1, and of its checks.
"""

from __future__ import annotations

import copy
import doctest
from collections.abc import Sequence
from functools import cache
from statistics import mean
from typing import Any

import pytest

from lmql_lite.cache.kv import block_reuse
from lmql_lite.cache.kv.block_reuse import (
    BlockReuse,
    SimpleLRUCache,
    can_rotate,
    merge_dynamic_caches,
    prefilled_by,
    rotated_kv,
    unsupported_reason,
)
from lmql_lite.cache.kv.blocks import BlockPolicy, CBlock
from lmql_lite.cache.kv.layout import Unsupported, cache_keyword, from_cache, to_cache
from lmql_lite.cache.kv.pages import KVError
from lmql_lite.cache.kv.scattered_pass import KVSlots, scattered_pass
from tests.cache.kv.tiny_models import (
    CONFIGS,
    RECURRENT,
    Divergence,
    divergence,
    prompt,
    scores,
    tiny,
    torch,
    transformers,
)

MOVABLE = [name for name in CONFIGS if "learned" not in name]
SPANS = [(0, 30), (33, 60), (60, 90)]


@cache
def reuse(name: str, policy: str) -> BlockReuse:
    return BlockReuse(tiny(name), BlockPolicy.parse(policy), prefilled_by(tiny(name)))


def near(one: Any, other: Any, most: float = 1e-4) -> bool:
    """True if two tensors, or keys and values of all layers, differ by little."""
    if isinstance(one, torch.Tensor):
        return bool((one - other).abs().max() <= most)
    return all(near(a, b, most) for pair, twin in zip(one, other, strict=True) for a, b in zip(pair, twin, strict=True))


def block(network: Any, tokens: Any, place: int = 0) -> Any:
    """Keys and values of tokens that a text at `place` begins with."""
    past = transformers.DynamicCache()
    with torch.inference_mode():
        places = torch.arange(place, place + len(tokens))[None]
        network(input_ids=tokens[None], position_ids=places, **{cache_keyword(network): past}, use_cache=True)
    return from_cache(past, len(tokens))


def measured(name: str, policy: str, spans: Sequence[tuple[int, int]] = SPANS, seed: int = 0) -> Divergence:
    """Divergence of scores after a prompt of which `spans` are blocks from those of a full prefill."""
    own, tokens, suffix = reuse(name, policy), prompt(90, seed=seed).tolist(), prompt(20, seed=100 + seed).tolist()
    reused = own.ask(own.slots(tokens, spans), (*tokens, *suffix), range(90, 110))
    return divergence(scores(own.network, torch.tensor([*tokens, *suffix]))[90:], reused)


def mean_kl(name: str, policy: str) -> float:
    return mean(measured(name, policy, seed=seed).mean_kl for seed in range(6))


@pytest.mark.parametrize("name", [*CONFIGS, *RECURRENT])
def test_check_29_keys_are_rotated_to_those_of_a_prefill_at_the_new_place_or_refused(name: str) -> None:
    network = tiny(name)
    before, reason = network.config._attn_implementation, unsupported_reason(network)
    assert network.config._attn_implementation == before
    assert can_rotate(network) == (reason is None) == (name in MOVABLE)
    if name in MOVABLE:
        here = block(network, prompt(20))
        for place in (1, 63, 300):
            assert near(rotated_kv(network, here, place), block(network, prompt(20), place))
        assert near(rotated_kv(network, rotated_kv(network, here, 90), -90), here, 1e-5)
    else:
        assert reason is not None and "its keys cannot be moved by a rotation" in reason
    if "learned" in name:
        with pytest.raises(Unsupported, match="has no rotation of keys"):
            rotated_kv(network, block(network, prompt(5)), 3)


@pytest.mark.parametrize("name", MOVABLE)
def test_check_29_blend_of_all_tokens_is_a_full_prefill(name: str) -> None:
    for policy in ("blend(1.0)", "blend(1.0, behind=0)"):
        for seed in range(2):
            one = measured(name, policy, seed=seed)
            assert one.largest <= 1e-4 and one.top1 == 1.0 and one.mean_kl <= 1e-6


@pytest.mark.parametrize("name", MOVABLE)
def test_check_29_more_tokens_computed_again_are_nearer_and_smash_is_furthest(name: str) -> None:
    ladder = [mean_kl(name, f"blend({share}, behind=0)") for share in (0.1, 0.5, 0.9, 1.0)]
    assert ladder[3] < ladder[2] < ladder[0]
    assert mean_kl(name, "rotate(behind=0)") < mean_kl(name, "smash")


def test_check_29_a_thrown_away_head_brings_moved_blocks_nearer_and_a_first_block_within_it_is_a_prefix() -> None:
    assert mean_kl("llama", "rotate(behind=16)") < mean_kl("llama", "rotate(behind=0)")
    assert measured("llama", "rotate(behind=8)", [(6, 90)]).largest <= 1e-4
    assert measured("llama", "rotate(behind=5)", [(6, 90)]).largest > 1e-2


@pytest.mark.parametrize("name", MOVABLE)
def test_check_29_moved_blocks_have_the_keys_of_a_prefill_at_their_place(name: str) -> None:
    network = tiny(name)
    tokens = prompt(60).tolist()
    slots = reuse(name, "rotate(behind=0)").slots(tokens, [(0, 30), (30, 60)])
    assert near([(keys[:, 30:], values[:, 30:]) for keys, values in slots.kv()], block(network, prompt(60)[30:], 30))
    assert slots.missing == (59,)
    logits = reuse(name, "rotate(behind=0)").ask(slots, tokens + [5] * 10, range(60, 70))
    assert logits.shape[0] == 10 and slots.missing == () and slots.length == 70


def test_policies_are_read_and_written() -> None:
    for text in ("exact", "rotate(behind=64)", "blend(0.15, behind=16)", "smash"):
        assert str(BlockPolicy.parse(text)) == text
    assert BlockPolicy.parse("rotate") == BlockPolicy("rotate") and BlockPolicy.parse("smash").head == 0
    for text, said in (
        ("rotat", "did you mean rotate?"),
        ("blend", "such as blend"),
        ("blend(2)", "the share of tokens"),
        ("rotate(0.5)", "write blend(0.5)"),
        ("rotate(behind=x)", "behind is 'x'"),
        ("rotate(ahead=3)", "no option 'ahead'"),
        ("rotate(behind=-1)", "behind is -1"),
        ("blend(0.5, recompute=deviation)", "no option 'recompute'"),
        ("rotate(max_kl=0.1)", "no option 'max_kl'"),
        ("rotate!", "not a policy for blocks"),
    ):
        with pytest.raises(KVError) as raised:
            BlockPolicy.parse(text)
        assert said in raised.value.message or said in (raised.value.hint or "")


def test_a_block_is_a_str() -> None:
    one = CBlock("text")
    assert one == "text" and one.cache and not CBlock("text", cache=False).cache and one + "!" == "text!"


def test_examples_in_docstrings_run() -> None:
    failed, run = doctest.testmod(block_reuse)
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
    before = copy.deepcopy(caches)
    merged = merge_dynamic_caches(caches)
    assert merged.get_seq_length() == 15
    for number, layer in enumerate(merged.layers):
        assert torch.equal(layer.keys, torch.cat([cache.layers[number].keys for cache in caches], dim=-2))
        assert torch.equal(layer.values, torch.cat([cache.layers[number].values for cache in caches], dim=-2))
        layer.keys.zero_()
    for one, twin in zip(before, caches, strict=True):
        assert near(from_cache(one, one.get_seq_length()), from_cache(twin, one.get_seq_length()), 0)


def test_statement_7_and_check_28_no_cache_and_sliding_windows_raise() -> None:
    network, plain = tiny("mistral, sliding window"), to_cache(block(tiny("llama"), prompt(5)))
    sliding = transformers.DynamicCache(config=network.config)
    scores(network, prompt(5), sliding)
    fewer, empty = copy.deepcopy(plain), copy.deepcopy(plain)
    fewer.layers.pop()
    empty.layers[0].keys = None
    for caches, sentence in (
        ([], "there is no cache to merge"),
        ([sliding], "sliding window"),
        ([plain, fewer], "differ in their layers"),
        ([plain, empty], "differ in their layers"),
    ):
        with pytest.raises(ValueError, match=sentence):
            merge_dynamic_caches(caches)


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


def test_slots_grow_and_are_cut_without_a_trace() -> None:
    network, tokens, slots = tiny("llama"), prompt(300).tolist(), KVSlots()
    scattered_pass(network, slots, tokens[:10], range(10))
    fork = slots.cut(4)
    logits = scattered_pass(network, slots, tokens[10:], range(10, 300), [289])
    assert slots.length == 300 and near(logits, scores(network, torch.tensor(tokens))[-1:])
    other = scattered_pass(network, fork, tokens[50:60], range(4, 14), [9])
    assert near(other, scores(network, torch.tensor(tokens[:4] + tokens[50:60]))[-1:]) and fork.nbytes < slots.nbytes
