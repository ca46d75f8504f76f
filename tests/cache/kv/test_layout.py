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
    WINDOW,
    greedy,
    prompt,
    scores,
    tiny,
    torch,
    transformers,
)

CHUNK = 32
LENGTHS = [0, 1, CHUNK, 3 * CHUNK + 5]
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
        if count:  # wholly known: the last token is computed again
            past = to_cache(cut(engine.longest(asked[:count])[0], 0, count - 1))
            assert (scores(network, asked[count - 1 : count], past)[-1] - expected[count - 1]).abs().max() <= 1e-4


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


@pytest.mark.parametrize(
    "change",
    [
        lambda network: network.lm_head.weight.data[3, 3].add_(1e-3),
        lambda network: network.config.rope_parameters.update(rope_theta=5e5),
        lambda network: network.model.layers[0].register_parameter("lora", torch.nn.Parameter(torch.ones(3))),
        lambda network: network.to(torch.bfloat16),
    ],
    ids=["retrained", "another rotation", "with an adapter", "half precision"],
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


class HandsOn(torch.nn.Module):  # type: ignore[misc]  # torch is imported late
    """Network within another module."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, **given: Any) -> Any:
        return self.network(**given)


@pytest.mark.parametrize("name", [*CONFIGS, *RECURRENT])
def test_check_13_a_network_takes_its_cache_back_and_recurrent_layers_are_refused(name: str) -> None:
    tokens, wrapped = prompt(12), HandsOn(tiny(name))
    keyword = cache_keyword(wrapped)
    assert keyword == cache_keyword(tiny(name))
    with torch.inference_mode():
        whole = wrapped(input_ids=tokens[None], use_cache=False).logits[0]
        past = cache_of(wrapped(input_ids=tokens[None, :11], use_cache=True))
        place = {"cache_position": torch.tensor([11])} if keyword == "cache_params" else {}
        last = wrapped(input_ids=tokens[None, 11:], use_cache=True, **{keyword: past}, **place).logits[0]
    assert (last[-1] - whole[-1]).abs().max() <= 1e-4
    if name in RECURRENT:
        with pytest.raises(Unsupported):
            from_cache(past, 12)


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


class QuantizedLayer(transformers.cache_utils.DynamicLayer):  # type: ignore[misc]  # torch is imported late
    """Layer of a kind that is not known."""


@pytest.mark.parametrize(
    ("change", "count", "sentence"),
    [
        (lambda past: None, 21, "holds 20 tokens of 21"),
        (
            lambda past: past.layers[1].__dict__.update(keys=None, values=None),
            12,
            "layer 1 has no keys and values",
        ),
        (lambda past: setattr(past.layers[2], "__class__", QuantizedLayer), 12, "layer 2 is a QuantizedLayer"),
        (lambda past: past.batch_repeat_interleave(2), 12, "holds 2 sequences, not one"),
        (lambda past: past.layers.clear(), 0, "holds no keys and values"),
    ],
)
def test_layers_of_other_kinds_are_refused(change: Callable[[Any], object], count: int, sentence: str) -> None:
    past = transformers.DynamicCache()
    scores(tiny("llama"), prompt(20), past)
    assert from_cache(past, 12)[0][0].shape == (4, 12, 8)
    change(past)
    with pytest.raises(Unsupported, match=sentence):
        from_cache(past, count)


def test_static_layers_are_cut() -> None:
    network = tiny("llama")
    past, static = transformers.DynamicCache(), transformers.StaticCache(config=network.config, max_cache_len=64)
    for cache in (past, static):
        scores(network, prompt(20), cache)
    for pair, twin in zip(from_cache(static, 20), from_cache(past, 20), strict=True):
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(pair, twin, strict=True))
    for cache, sentence in ((static, "trimmed"), (None, "holds no keys and values"), ((), "holds no keys and values")):
        with pytest.raises(Unsupported, match=sentence):
            from_cache(cache, 21)
