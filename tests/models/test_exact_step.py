"""Exact passes are filled up to as few rows as this processor needs, and to no fewer."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'lmql-lite[local]'")

from lmql_lite.models.transformers.exactness import MOST_ROWS, exact_step  # noqa: E402


def network(dtype: Any = torch.float32, width: int = 256) -> Any:
    config = transformers.Qwen2Config(
        vocab_size=512, hidden_size=128, intermediate_size=width, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=512,
    )  # fmt: skip
    torch.manual_seed(5)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


@pytest.mark.parametrize(("alone", "step"), [(2, 4), (4, 4), (5, 8), (9, MOST_ROWS), (40, MOST_ROWS)])
def test_a_layer_with_other_bits_for_few_rows_is_given_more(alone: int, step: int) -> None:
    """`alone` rows and more take one way through the layer."""
    plain, other = network(), network()
    layer = other.model.layers[0].mlp.down_proj
    own = layer.forward
    layer.forward = lambda rows: own(rows) + 1e-3 * (len(rows) < alone)
    assert exact_step(other) == max(exact_step(plain), step)
    assert exact_step(plain) in (1, 4, 8, MOST_ROWS)


def test_no_vector_of_activations_is_left_half_full() -> None:
    assert exact_step(network(torch.bfloat16)) == 1
    assert exact_step(network(torch.bfloat16, width=264)) == 8
