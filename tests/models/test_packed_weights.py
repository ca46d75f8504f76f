"""Packed weights: the same scores, in float32 on the processor, and nothing where they are not faster."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'lmql-lite[local]'")

from lmql_lite.models import packed_weights  # noqa: E402
from lmql_lite.models.exact_step import exact_step  # noqa: E402
from lmql_lite.models.packed_rows import PackedRows  # noqa: E402
from lmql_lite.models.packed_weights import is_packed, pack_weights  # noqa: E402
from lmql_lite.models.pass_probe import can_pack, kernel, noise  # noqa: E402


@pytest.fixture(params=[True, False], ids=["tied", "apart"])
def network(request: pytest.FixtureRequest) -> Any:
    config = transformers.Qwen2Config(
        vocab_size=2048, hidden_size=256, intermediate_size=2048, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=request.param,
    )  # fmt: skip
    torch.manual_seed(5)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.fixture
def always_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise") or not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(packed_weights, "_is_faster", lambda _: True)


@torch.inference_mode()
def test_a_packed_network_has_the_scores_of_the_other_and_large_matrices_once(
    network: Any, always_faster: None
) -> None:
    ids = torch.tensor([np.random.default_rng(1).integers(2, 2000, 40).tolist()])
    packed = copy.deepcopy(network)
    assert pack_weights(packed) == 2 * 3 + 1 and is_packed(packed) and not is_packed(network)
    expected = network(input_ids=ids, use_cache=False).logits
    assert (packed(input_ids=ids, use_cache=False).logits - expected).abs().max() < 1e-4
    sizes = [sum(each.numel() for each in one.parameters()) for one in (network, packed)]
    is_tied = network.config.tie_word_embeddings
    assert sizes[0] - sizes[1] == 2 * 3 * 256 * 2048 + (0 if is_tied else 256 * 2048)
    assert can_pack(packed) == (2048, True)


def test_a_packed_network_can_be_exact_and_its_pages_are_its_own(network: Any, always_faster: None) -> None:
    before = kernel(network, exact=True)
    pack_weights(network)
    assert kernel(network, exact=True) != before
    assert noise(PackedRows(network, 1 << 30, step=exact_step(network)), network, "packed") == 0


def test_nothing_is_packed_that_would_gain_nothing(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pack_weights(copy.deepcopy(network).to(torch.bfloat16)) == 0
    monkeypatch.setattr(packed_weights, "_seconds", lambda layer, _: 1.0)
    assert pack_weights(network) == 0 and not is_packed(network)
    monkeypatch.setattr(packed_weights, "_LEAST_WEIGHTS", 1 << 30)
    assert pack_weights(network) == 0


def test_a_torch_without_these_functions_packs_nothing(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(packed_weights, "_packed_class", lambda: refuse)
    assert pack_weights(network) == 0
