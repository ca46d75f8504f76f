"""Networks whose rotation of keys is scaled, or changes with the length of a text, against their own full forward."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import lmql_lite as lq  # noqa: E402
from lmql_lite.errors import LmqlLiteError, ModelError  # noqa: E402
from lmql_lite.models.base import ScoreRequest  # noqa: E402
from lmql_lite.models.demo import DemoModel  # noqa: E402
from lmql_lite.models.transformers.scorer import TransformersModel  # noqa: E402
from tests.tables import cases, rows  # noqa: E402

TOKENIZER = DemoModel.load().tokenizer
SIZE = len(TOKENIZER.vocabulary)
BORDER = 24
HEADS = {
    "vocab_size": SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": BORDER,
    "initializer_range": 0.3,
}
SHAPE = {**HEADS, "intermediate_size": 64, "num_key_value_heads": 2}
MANY = {**SHAPE, "max_position_embeddings": 4 * BORDER}
LONG = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]}
LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8}
LLAMA3["rope_type"] = "llama3"
PHI = {"original_max_position_embeddings": BORDER, "pad_token_id": None}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
LAYERS = {"head_dim": 16, "sliding_window": 10, "layer_types": ["sliding_attention", "full_attention"]}


def kinds(full: str) -> dict[str, Any]:
    """A rotation for each kind of layer."""
    return {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": full, "factor": 4.0, "rope_theta": 1_000_000.0},
    }


CONFIGS = dict(rows("models/rotation", "networks"))
STATIC = {"yarn", "linear", "llama3", "a rotation for each kind of layer"}
WHOLE = {name for name in CONFIGS if name.startswith(("longrope", "llama3", "a rotation"))}
"""Configs whose `max_position_embeddings` is the length after scaling, or is not scaled in all layers."""


def config_of(kind: str) -> Any:
    return eval(CONFIGS[kind], globals())


def network(kind: str) -> Any:
    torch.manual_seed(3)
    return transformers.AutoModelForCausalLM.from_config(config_of(kind), dtype=torch.float32).eval()


def model(kind: str, **options: Any) -> TransformersModel:
    found = lq.model(network(kind), TOKENIZER, **options)
    assert isinstance(found, TransformersModel)
    return found


def text(seed: int, count: int) -> tuple[int, ...]:
    return tuple(int(each) for each in np.random.default_rng(seed).integers(3, SIZE, count))


class Own:
    """Scores by one full forward of a network that has seen no text before."""

    def __init__(self, kind: str) -> None:
        self._network = network(kind)

    @torch.inference_mode()
    def __call__(self, ids: Sequence[int]) -> Any:
        logits = copy.deepcopy(self._network)(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        return torch.log_softmax(logits.float(), -1).numpy()


def check(scorer: TransformersModel, own: Own, *asked: tuple[tuple[int, ...], int]) -> None:
    """Asks for the scores at the last places of some texts, all in one call."""
    requests = [
        ScoreRequest(ids[: len(ids) - back], ids[len(ids) - back :], tuple(range(back + 1))) for ids, back in asked
    ]
    for request, found in zip(requests, asyncio.run(scorer.score(requests)), strict=True):
        for position, row in zip(request.positions, found, strict=True):
            expected = own((*request.prefix, *request.new_ids[:position]))
            assert np.abs(row - expected[:SIZE]).max() < 1e-5 * max(1.0, np.abs(expected).max()), len(request.prefix)


@pytest.mark.parametrize("kind", CONFIGS)
def test_scores_are_the_networks_own_on_both_sides_of_the_border(kind: str) -> None:
    scorer, own = model(kind), Own(kind)
    most = min(scorer.context_length, 2 * BORDER)
    long, other = text(1, most), text(2, most)
    check(scorer, own, (long[:4], 0), (long, 0))
    check(scorer, own, (long[:17], 0))
    check(scorer, own, (long, 0), (other[: BORDER - 2], 0), (other, 1))
    for count in range(BORDER - 2, min(BORDER + 4, most + 1)):
        check(scorer, own, (long[:count], 0))
    check(scorer, own, ((*long[: BORDER - 4], *other[:3]), 2), (long[: BORDER + 2], 0))
    check(scorer, own, (long[: BORDER + 3], 6))
    check(scorer, own, (long[:5], 0))
    assert scorer.epsilon < 1e-3


@pytest.mark.parametrize("kind", ["longrope", "dynamic", "yarn"])
def test_keys_from_disk_are_those_of_the_right_rotation(kind: str, tmp_path: Path) -> None:
    own, long = Own(kind), text(4, 2 * BORDER)
    for count in (BORDER, 2 * BORDER, BORDER - 3, 2 * BORDER - 5):
        scorer = model(kind, kv=str(tmp_path))
        check(scorer, own, (long[:count], 0))
        assert scorer.kv is not None
        scorer.kv.close()
        again = model(kind, kv=str(tmp_path))
        check(again, own, (long[:count], 0))
        if count <= BORDER or kind != "dynamic":
            assert again.kv is not None
            assert again.kv.report().by_tier, "the second process reads the tier"


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_prompts_in_several_passes_are_rotated_by_their_whole_length(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lmql_lite.models.transformers import rows

    scorer, own = model(kind), Own(kind)
    monkeypatch.setattr(rows, "PASS_TOKENS", 10)
    check(scorer, own, (text(5, 2 * BORDER), 0), (text(6, BORDER), 0))


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_exact_passes_stay_exact_across_the_border(kind: str) -> None:
    scorer, own = model(kind, exact=True), Own(kind)
    assert scorer.epsilon == 0
    long = text(7, BORDER + 6)
    for count in (4, len(long), BORDER, len(long) - 1):
        check(scorer, own, (long[:count], 0))


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
@pytest.mark.parametrize("decoder", ["argmax", "sample", "beam"])
def test_an_answer_that_passes_the_border_is_that_of_an_uncached_run(kind: str, decoder: str) -> None:
    query = '"The weather today is:[A]\\nand tomorrow it is:[B]" where len(TOKENS(A)) < 12 and len(TOKENS(B)) < 16'
    options: dict[str, Any] = {"decoder": decoder, "seed": 5, **({"n": 2} if decoder == "beam" else {})}

    def texts(scorer: TransformersModel, **more: Any) -> list[str]:
        found = lq.run_sync(query, model=scorer, **options, **more)
        return [each.prompt for each in (found if isinstance(found, list) else [found])]

    warm = model(kind)
    assert texts(warm) == texts(warm) == texts(model(kind), cache=False, speculate=False)


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_context_is_as_long_as_the_scaled_rotation_reads(kind: str) -> None:
    factor = 1 if kind in WHOLE else 2 if kind == "dynamic under its old key" else 4
    assert model(kind).context_length == factor * config_of(kind).max_position_embeddings


@cases("models/rotation", "context lengths as configs of known models give them", globals())
def test_context_lengths_as_configs_of_known_models_give_them(stated: int, scaling: Any, length: int) -> None:
    from lmql_lite.models.transformers.checkpoint import context_length

    config = transformers.Qwen2Config(**{**SHAPE, "max_position_embeddings": stated}, rope_scaling=scaling)
    assert context_length(config) == length


@pytest.mark.parametrize("kind", sorted(set(CONFIGS) - STATIC))
def test_blocks_of_a_rotation_that_changes_are_refused(kind: str) -> None:
    with pytest.raises(LmqlLiteError, match="cannot move blocks"):
        lq.run_sync('"{block(t)}[X]"', {"t": "rain " * 9}, model=model(kind), blocks="rotate")


def test_a_rotation_that_the_config_does_not_name_is_refused() -> None:
    hidden = network("dynamic")
    hidden.config.rope_parameters = {"rope_type": "default", "rope_theta": 10_000.0}
    hidden.model.rotary_emb.config = copy.deepcopy(network("dynamic").config)
    with pytest.raises(ModelError, match="its rotation depends on the length of the text"):
        lq.model(hidden, TOKENIZER)
