"""Real forward passes: what a model says after a hit is what it says without one. Checks of the reference's 6.2."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmql_lite.cache.kv.config import KVCacheMetadata
from lmql_lite.cache.kv.engine import KVCacheEngine
from lmql_lite.cache.kv.layout import Unsupported, cache_keyword, cache_of, from_cache, model_fingerprint, to_cache
from tests.cache.kv.engines import cut, opened
from tests.cache.kv.tiny_models import (
    CONFIGS,
    RECURRENT,
    VOCABULARY,
    WINDOW,
    greedy,
    prompt,
    scores,
    tiny,
    torch,
    transformers,
)

CHUNK = 32
LENGTHS = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK, 3 * CHUNK + 5]
SUFFIX = 20


def stored(engine: KVCacheEngine, network: Any, tokens: Any) -> None:
    """Prefills `tokens` and stores what was computed."""
    if len(tokens):
        past = transformers.DynamicCache()
        scores(network, tokens, past)
        engine.store(tokens, from_cache(past, len(tokens)))


@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("name", CONFIGS)
def test_checks_1_3_4_and_13_logits_and_greedy_text_are_those_of_a_model_without_cache(
    tmp_path: Path, name: str, count: int
) -> None:
    network = tiny(name)
    metadata = KVCacheMetadata(name, fingerprint=model_fingerprint(network))
    asked = prompt(count + SUFFIX)
    with opened(tmp_path, metadata, chunk_size=CHUNK) as engine:
        stored(engine, network, asked[:count])
    with opened(tmp_path, metadata, chunk_size=CHUNK) as engine:
        assert engine.lookup(asked[:count]) == count
        expected = scores(network, asked)
        text = greedy(network, asked, 8)
        for kv, known in (engine.retrieve(asked)[0], count // CHUNK * CHUNK), engine.longest(asked):
            past = to_cache(kv)
            assert past.get_seq_length() == known
            got = scores(network, asked[known:], past)
            assert (got - expected[known:]).abs().max() <= 1e-4
            assert greedy(network, asked, 8, to_cache(kv), known) == text
        assert engine.longest(asked)[1] == count


@pytest.mark.parametrize("name", CONFIGS)
def test_check_3_a_prompt_that_is_wholly_known_computes_its_last_token_again(tmp_path: Path, name: str) -> None:
    network = tiny(name)
    metadata = KVCacheMetadata(name, fingerprint=model_fingerprint(network))
    asked = prompt(2 * CHUNK)
    with opened(tmp_path, metadata, chunk_size=CHUNK) as engine:
        stored(engine, network, asked)
        kv, known = engine.longest(asked)
        assert known == len(asked)
        past = to_cache(cut(kv, 0, known - 1))
        assert (scores(network, asked[-1:], past)[-1] - scores(network, asked)[-1]).abs().max() <= 1e-4


def test_check_2_bfloat16_stays_within_its_own_noise(tmp_path: Path) -> None:
    network = copy.deepcopy(tiny("llama")).to(torch.bfloat16)
    metadata = KVCacheMetadata("llama", fingerprint=model_fingerprint(network), dtype="bfloat16")
    asked = prompt(3 * CHUNK + SUFFIX)
    with opened(tmp_path, metadata, chunk_size=CHUNK) as engine:
        stored(engine, network, asked[: 3 * CHUNK])
        kv, known = engine.longest(asked)
        full = torch.log_softmax(scores(network, asked)[known:].double(), -1)
        reused = torch.log_softmax(scores(network, asked[known:], to_cache(kv)).double(), -1)
        assert known == 3 * CHUNK and ((full.exp() * (full - reused)).sum(-1).mean()) < 1e-3


def test_a_hit_in_the_middle_of_another_prompts_page_is_exact(tmp_path: Path) -> None:
    network = tiny("qwen2, grouped queries")
    metadata = KVCacheMetadata("qwen2", fingerprint=model_fingerprint(network))
    first, other = prompt(100), prompt(100, seed=6)
    with opened(tmp_path, metadata, chunk_size=CHUNK) as engine:
        stored(engine, network, first)
        asked = torch.cat([first[:55], other])
        kv, known = engine.longest(asked)
        assert known == 55
        assert (scores(network, asked[known:], to_cache(kv)) - scores(network, asked)[known:]).abs().max() <= 1e-4


def _retrained(network: Any) -> None:
    with torch.no_grad():
        next(iter(network.parameters()))[3, 3] += 1e-3


def _other_rotation(network: Any) -> None:
    parameters = network.config.to_dict().get("rope_parameters")
    if parameters:
        network.config.rope_parameters = {**parameters, "rope_theta": 5e5}
    else:
        network.config.rope_theta = 5e5


def _with_adapter(network: Any) -> None:
    network.model.layers[0].self_attn.q_proj.register_parameter("lora", torch.nn.Parameter(torch.ones(3)))


@pytest.mark.parametrize(
    "change", [_retrained, _other_rotation, _with_adapter, lambda network: network.to(torch.bfloat16)]
)
def test_check_11_other_weights_under_the_same_name_are_a_miss(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    network = copy.deepcopy(tiny("llama"))
    before = model_fingerprint(network)
    assert before == model_fingerprint(copy.deepcopy(network)) and before != model_fingerprint(network, "exact")
    change(network)
    after = model_fingerprint(network)
    assert after != before
    with opened(tmp_path, KVCacheMetadata("same", fingerprint=before), chunk_size=CHUNK) as engine:
        stored(engine, tiny("llama"), prompt(CHUNK))
    with opened(tmp_path, KVCacheMetadata("same", fingerprint=after), chunk_size=CHUNK) as engine:
        assert engine.lookup(prompt(CHUNK)) == 0


def test_check_14_damage_on_disk_costs_time_and_no_token(tmp_path: Path) -> None:
    network = tiny("llama")
    metadata = KVCacheMetadata("llama", fingerprint=model_fingerprint(network))
    asked = prompt(3 * CHUNK + SUFFIX)
    expected = scores(network, asked)
    with opened(tmp_path, metadata, chunk_size=CHUNK, local_cpu=False) as engine:
        for place in range(3, 4000, 397):
            stored(engine, network, asked[: 3 * CHUNK])
            path = sorted(tmp_path.rglob("*.pt"))[place % 3]
            damaged = bytearray(path.read_bytes())
            damaged[place * 17 % len(damaged)] ^= 0x40
            path.write_bytes(damaged)
            kv, known = engine.longest(asked)
            assert known < 3 * CHUNK or place * 17 % len(damaged) < 500  # a flipped bit of the padding harms nothing
            assert (scores(network, asked[known:], to_cache(kv)) - expected[known:]).abs().max() <= 1e-4


@pytest.mark.parametrize("name", [*CONFIGS, *RECURRENT])
def test_a_network_takes_its_cache_back_without_a_warning_also_within_another_module(name: str) -> None:
    class HandsOn(torch.nn.Module):  # type: ignore[misc]  # torch is imported late
        def __init__(self) -> None:
            super().__init__()
            self.network = tiny(name)

        def forward(self, **given: Any) -> Any:
            return self.network(**given)

    tokens = prompt(12)
    wrapped = HandsOn()
    with torch.inference_mode():
        whole = wrapped(input_ids=tokens[None], use_cache=False).logits[0]
        past = cache_of(wrapped(input_ids=tokens[None, :11], use_cache=True))
        place = {"cache_position": torch.tensor([11])} if cache_keyword(wrapped) == "cache_params" else {}
        last = wrapped(input_ids=tokens[None, 11:], use_cache=True, **{cache_keyword(wrapped): past}, **place).logits[0]
    assert cache_keyword(wrapped) == cache_keyword(tiny(name))
    assert (last[-1] - whole[-1]).abs().max() <= 1e-4


@pytest.mark.parametrize("name", RECURRENT)
def test_check_13_recurrent_and_linear_layers_are_refused_and_still_run(name: str) -> None:
    network = tiny(name)
    with torch.inference_mode():
        answer = network(input_ids=prompt(20)[None], use_cache=True)
    with pytest.raises(Unsupported):
        from_cache(cache_of(answer), 20)
    assert torch.isfinite(answer.logits).all()


@pytest.mark.parametrize("name", ["mistral, sliding window", "gemma3, hybrid windows"])
def test_check_13_layers_that_dropped_the_first_tokens_are_refused(name: str) -> None:
    network = tiny(name)
    for count in (WINDOW - 5, WINDOW + 30):
        past = transformers.DynamicCache(config=network.config)
        scores(network, prompt(count), past)
        if count < WINDOW:
            assert len(from_cache(past, count)) == 3
        else:
            with pytest.raises(Unsupported, match="it was trimmed"):
                from_cache(past, count)


def test_shared_quantised_and_batched_layers_are_refused_and_static_ones_are_cut() -> None:
    network = tiny("llama")
    past = transformers.DynamicCache()
    scores(network, prompt(20), past)
    assert from_cache(past, 12)[0][0].shape == (4, 12, 8)
    with pytest.raises(Unsupported, match="holds 20 tokens of 21"):
        from_cache(past, 21)
    shared = copy.deepcopy(past)
    shared.layers[1].keys = shared.layers[1].values = None
    with pytest.raises(Unsupported, match="layer 1 has no keys and values of its own"):
        from_cache(shared, 12)

    class QuantizedLayer(type(past.layers[0])):  # type: ignore[misc]
        pass

    quantised = copy.deepcopy(past)
    quantised.layers[2].__class__ = QuantizedLayer
    with pytest.raises(Unsupported, match="layer 2 is a QuantizedLayer"):
        from_cache(quantised, 12)
    twice = copy.deepcopy(past)
    twice.batch_repeat_interleave(2)
    with pytest.raises(Unsupported, match="holds 2 sequences, not one"):
        from_cache(twice, 12)
    for nothing in (None, (), transformers.DynamicCache()):
        with pytest.raises(Unsupported, match="holds no keys and values"):
            from_cache(nothing, 0)
    static = transformers.StaticCache(config=network.config, max_cache_len=64)
    expected = scores(network, prompt(20), static)
    assert all(
        torch.allclose(a, b, atol=1e-5)
        for pair, twin in zip(from_cache(static, 20), from_cache(past, 20), strict=True)
        for a, b in zip(pair, twin, strict=True)
    )
    with pytest.raises(Unsupported, match="trimmed"):
        from_cache(static, 21)
    assert expected.shape == (20, VOCABULARY)
