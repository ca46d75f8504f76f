"""Tiny models with random weights, one per kind of attention, and what they say with and without a cache."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'lmql-lite[local]'")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from lmql_lite.cache.kv.layout import cache_keyword  # noqa: E402

VOCABULARY = 256
WINDOW = 40
_COMMON = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 1, "max_position_embeddings": 512}
_SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**_COMMON, **{**_SHAPE, "num_key_value_heads": 4}),
    "qwen2, grouped queries": lambda: transformers.Qwen2Config(**_COMMON, **_SHAPE),
    "gpt2, learned positions": lambda: transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=512, n_embd=32, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=1
    ),
    "gpt-neox, partial rotation": lambda: transformers.GPTNeoXConfig(
        **_COMMON, **{key: value for key, value in _SHAPE.items() if key != "num_key_value_heads"}
    ),
    "mistral, sliding window": lambda: transformers.MistralConfig(**_COMMON, **_SHAPE, sliding_window=WINDOW),
    "phi3, fused projections, one key head": lambda: transformers.Phi3Config(
        **_COMMON, **{**_SHAPE, "num_key_value_heads": 1}, pad_token_id=1
    ),
    "gemma2, alternating windows": lambda: transformers.Gemma2Config(
        **_COMMON, **_SHAPE, head_dim=8, sliding_window=WINDOW, attn_implementation="eager"
    ),
    "gemma3, hybrid windows": lambda: transformers.Gemma3TextConfig(
        **_COMMON,
        **_SHAPE,
        head_dim=8,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    ),
}
RECURRENT: dict[str, Callable[[], Any]] = {
    "mamba": lambda: transformers.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4),
    "qwen3-next, linear attention": lambda: transformers.Qwen3NextConfig(
        **_COMMON,
        **_SHAPE,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "linear_attention", "full_attention"],
    ),
}


@cache
def tiny(name: str) -> Any:
    """Network in evaluation mode, the same for every test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(7)
        network = transformers.AutoModelForCausalLM.from_config({**CONFIGS, **RECURRENT}[name](), dtype=torch.float32)
        with torch.no_grad():
            for parameter in network.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0.0, 0.15)
    return network.eval()


def prompt(count: int, seed: int = 5) -> Any:
    return torch.randint(2, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Divergence:
    """Divergence of scores from those of a full prefill: KL in nats per token, the share of equal best tokens, and the
    largest difference of a logit."""

    mean_kl: float
    top1: float
    largest: float


def divergence(full: Any, reused: Any) -> Divergence:
    """Divergence of the logits `reused` from `full`, both [tokens, vocabulary], at least one token."""
    one, other = torch.log_softmax(full.double(), -1), torch.log_softmax(reused.double(), -1)
    kl = (one.exp() * (one - other)).sum(-1)
    return Divergence(
        mean_kl=float(kl.mean()),
        top1=float((one.argmax(-1) == other.argmax(-1)).double().mean()),
        largest=float((full.double() - reused.double()).abs().max()),
    )


@torch.inference_mode()
def scores(network: Any, tokens: Any, past: Any = None) -> Any:
    """Logits after each of `tokens`, which follow what `past` holds."""
    if past is None:
        return network(input_ids=tokens[None], use_cache=False).logits[0]
    return network(input_ids=tokens[None], **{cache_keyword(network): past}, use_cache=True).logits[0]


def greedy(network: Any, tokens: Any, count: int, past: Any = None, known: int = 0) -> list[int]:
    """Next tokens, by one pass over everything for each, or token by token behind `past`."""
    text = tokens.tolist()
    for _ in range(count):
        if past is None:
            text.append(int(scores(network, torch.tensor(text))[-1].argmax()))
        else:
            text.append(int(scores(network, torch.tensor(text[known:]), past)[-1].argmax()))
            known = len(text) - 1
    return text[len(tokens) :]
