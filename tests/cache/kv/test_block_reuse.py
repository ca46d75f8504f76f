"""Prompts with reused blocks against a full prefill, on tiny models (checks 13, 28 and 29)."""

from __future__ import annotations

from functools import cache
from statistics import mean
from typing import Any

import pytest

from lmql_lite.cache.kv.block_policy import BlockPolicy, CBlock
from lmql_lite.cache.kv.block_reuse import BlockReuse, KeptBlocks, prefilled_by, unsupported_reason
from lmql_lite.cache.kv.kv_config import KVCacheConfig, KVCacheMetadata
from lmql_lite.cache.kv.kv_engine import KVCacheEngine
from lmql_lite.cache.kv.kv_layout import cache_keyword, from_cache
from lmql_lite.cache.kv.kv_page import KVError
from lmql_lite.cache.kv.scattered_pass import KVSlots, scattered_pass
from tests.cache.kv.tiny_models import CONFIGS, RECURRENT, prompt, scores, tiny, torch, transformers

MOVABLE = [name for name in CONFIGS if "learned" not in name]
SPANS = [(0, 30), (33, 60), (60, 90)]


@cache
def reuse(name: str, policy: str) -> BlockReuse:
    return BlockReuse(tiny(name), BlockPolicy.parse(policy), prefilled_by(tiny(name)))


def divergences(name: str, policy: str, samples: int = 6) -> list[Any]:
    prompts = [(prompt(90, seed=seed).tolist(), prompt(20, seed=100 + seed).tolist()) for seed in range(samples)]
    return [reuse(name, policy).measured(tokens, SPANS, suffix)[0] for tokens, suffix in prompts]


def mean_kl(name: str, policy: str) -> float:
    return mean(one.mean_kl for one in divergences(name, policy))


@pytest.mark.parametrize("name", [*CONFIGS, *RECURRENT])
def test_support_is_found_out_by_asking_the_network(name: str) -> None:
    before = tiny(name).config._attn_implementation
    reason = unsupported_reason(tiny(name))
    assert (reason is None) == (name in MOVABLE)
    assert reason is None or "its keys cannot be moved by a rotation" in reason
    assert tiny(name).config._attn_implementation == before


@pytest.mark.parametrize("name", MOVABLE)
def test_check_29_blend_of_all_tokens_is_a_full_prefill(name: str) -> None:
    for policy in ("blend(1.0)", "blend(1.0, behind=0)", "blend(1.0, recompute=deviation)"):
        for one in divergences(name, policy, samples=2):
            assert one.largest <= 1e-4 and one.top1 == 1.0 and one.mean_kl <= 1e-6


@pytest.mark.parametrize("name", MOVABLE)
def test_check_29_more_tokens_computed_again_are_nearer_and_smash_is_furthest(name: str) -> None:
    ladder = [mean_kl(name, f"blend({share}, behind=0)") for share in (0.1, 0.5, 0.9, 1.0)]
    assert ladder[3] < ladder[2] < ladder[0]
    assert mean_kl(name, "rotate(behind=0)") < mean_kl(name, "smash")


def test_check_29_a_thrown_away_head_brings_moved_blocks_nearer() -> None:
    assert mean_kl("llama", "rotate(behind=16)") < mean_kl("llama", "rotate(behind=0)")


@pytest.mark.parametrize("name", MOVABLE)
def test_check_29_moved_blocks_have_the_keys_of_a_prefill_at_their_place(name: str) -> None:
    network = tiny(name)
    tokens = prompt(60).tolist()
    slots = reuse(name, "rotate(behind=0)").slots(tokens, [(0, 30), (30, 60)])
    past = transformers.DynamicCache()
    with torch.inference_mode():
        rest, there = torch.tensor([tokens[30:]]), torch.arange(30, 60)[None]
        network(input_ids=rest, position_ids=there, **{cache_keyword(network): past}, use_cache=True)
    for (keys, values), (own_keys, own_values) in zip(slots.kv(), from_cache(past, 30), strict=True):
        assert (keys[:, 30:] - own_keys).abs().max() <= 1e-4 and (values[:, 30:] - own_values).abs().max() <= 1e-4
    assert slots.missing == (59,)
    logits = reuse(name, "rotate(behind=0)").ask(slots, tokens + [5] * 10, range(60, 70))
    assert logits.shape[0] == 10 and slots.missing == () and slots.length == 70


def test_a_first_block_within_the_head_is_a_true_prefix() -> None:
    tokens, suffix = prompt(50).tolist(), prompt(10, seed=9).tolist()
    exact, _ = reuse("llama", "rotate(behind=8)").measured(tokens, [(6, 50)], suffix)
    moved, _ = reuse("llama", "rotate(behind=5)").measured(tokens, [(6, 50)], suffix)
    assert exact.largest <= 1e-4 and moved.largest > 1e-2


def test_a_pass_over_some_places_is_that_over_all_where_the_rest_is_known() -> None:
    for name in MOVABLE:
        network, tokens = tiny(name), prompt(100).tolist()
        whole = KVSlots()
        full = scattered_pass(network, whole, tokens, range(100), range(100))
        assert (full - scores(network, torch.tensor(tokens))).abs().max() <= 1e-4
        places = [3, 7, 50, 51, 99]
        some = scattered_pass(network, whole.cut(100), [tokens[at] for at in places], places, range(5))
        assert (some - full[places]).abs().max() <= 1e-4


def test_slots_grow_and_are_cut_without_a_trace() -> None:
    network, tokens = tiny("llama"), prompt(300).tolist()
    slots = KVSlots()
    scattered_pass(network, slots, tokens[:10], range(10))
    fork = slots.cut(4)
    logits = scattered_pass(network, slots, tokens[10:], range(10, 300), [289])
    assert slots.length == 300 and (logits - scores(network, torch.tensor(tokens))[-1]).abs().max() <= 1e-4
    other = scattered_pass(network, fork, tokens[50:60], range(4, 14), [9])
    expected = scores(network, torch.tensor(tokens[:4] + tokens[50:60]))[-1]
    assert (other - expected).abs().max() <= 1e-4 and fork.nbytes < slots.nbytes


def test_check_29_known_blocks_are_not_computed_again() -> None:
    network, fed = tiny("llama"), list[int]()
    hook = network.model.layers[0].register_forward_pre_hook(lambda _, inputs: fed.append(inputs[0].shape[1]))
    engine = KVCacheEngine(KVCacheConfig(chunk_size=16), KVCacheMetadata("tiny", fingerprint="t"))
    try:
        own = BlockReuse(network, BlockPolicy.parse("rotate(behind=4)"), KeptBlocks(engine, network))
        tokens, suffix = prompt(90).tolist(), prompt(10, seed=9).tolist()
        first = own.ask(own.slots(tokens, SPANS), tokens + suffix, range(90, 100))
        cold, fed[:] = sum(fed), []
        second = own.ask(own.slots(tokens, SPANS), tokens + suffix, range(90, 100))
    finally:
        hook.remove()
        engine.close()
    assert cold >= 100 and sum(fed) == 3 + 1 + 10  # between two blocks, the last token of a block, and the suffix
    assert (first - second).abs().max() <= 1e-5


def test_policies_are_read_and_written() -> None:
    for text in ("exact", "rotate(behind=64)", "blend(0.15, behind=16, recompute=deviation, max_kl=0.1)", "smash"):
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
        ("blend(0.5, recompute=far)", "recompute is 'far'"),
        ("rotate(max_kl=nan)", "max_kl is nan"),
        ("rotate!", "not a policy for blocks"),
    ):
        with pytest.raises(KVError) as raised:
            BlockPolicy.parse(text)
        assert said in raised.value.message or said in (raised.value.hint or "")


def test_a_block_is_a_str() -> None:
    one = CBlock("text")
    assert one == "text" and one.cache and not CBlock("text", cache=False).cache and one + "!" == "text!"
