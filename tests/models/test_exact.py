"""Exact models: equal bits in one shot, in pieces, beside others and from disk. Close calls of the others (S5)."""

from __future__ import annotations

import asyncio
import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmql_lite as lq
from lmql_lite.cache.kv.config import KVCacheConfig
from lmql_lite.errors import ModelError
from lmql_lite.models.base import ScoreRequest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("transformers", reason="needs transformers: pip install 'lmql-lite[local]'")

from lmql_lite.models.transformers import exactness  # noqa: E402
from lmql_lite.models.transformers.scorer import TransformersModel  # noqa: E402
from tests.cache.kv.tiny_models import CONFIGS, RECURRENT, tiny  # noqa: E402
from tests.models.byte_tokenizers import byte_tokenizer  # noqa: E402

LENGTH, CHUNK = 280, 64


@pytest.fixture(autouse=True)
def probed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMQL_LITE_HOME", str(tmp_path / "home"))


def model_of(kind: str, dtype: str = "float32", **access: Any) -> TransformersModel:
    network = copy.deepcopy(tiny(kind)).to(getattr(torch, dtype))
    model = lq.model(network, byte_tokenizer(), **access)
    assert isinstance(model, TransformersModel)
    return model


def scores(model: TransformersModel, *asked: tuple[tuple[int, ...], int]) -> list[np.ndarray]:
    """Scores after the first tokens of each text, all asked at once."""
    rows = asyncio.run(model.score([ScoreRequest(ids[:end]) for ids, end in asked]))
    return [row for (row,) in rows]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_an_exact_model_gives_the_same_bits_however_it_is_asked(kind: str, dtype: str, tmp_path: Path) -> None:
    try:
        model = model_of(kind, dtype, exact=True, kv=KVCacheConfig(chunk_size=CHUNK, local_disk=str(tmp_path)))
    except ModelError as error:
        assert (kind[:4], dtype) == ("gpt2", "bfloat16") and "scores differ between passes" in error.message
        return
    assert model.epsilon == 0
    ids, other = (tuple(np.random.default_rng(seed).integers(2, 250, LENGTH).tolist()) for seed in (1, 2))
    (whole,) = scores(model, (ids, LENGTH))
    alone = model_of(kind, dtype, exact=True)
    for end in (60, 255, LENGTH - 2, LENGTH - 1):
        scores(alone, (ids, end))
    np.testing.assert_array_equal(scores(alone, (ids, LENGTH))[0], whole, "in chunks and steps")
    beside = model_of(kind, dtype, exact=True)
    scores(beside, (ids, 100), (other, 33))
    np.testing.assert_array_equal(scores(beside, (other, 190), (ids, LENGTH), (other, 34))[1], whole, "beside others")
    scores(model, (other, 1))  # it has stored the prompt
    again = model_of(kind, dtype, exact=True, kv=KVCacheConfig(chunk_size=CHUNK, local_disk=str(tmp_path)))
    np.testing.assert_array_equal(scores(again, (ids, LENGTH))[0], whole, "from disk")
    assert again.kv is not None and again.kv.report().found >= LENGTH - 1


def test_half_precision_is_exact_of_itself_and_float32_states_its_noise() -> None:
    assert model_of("llama", "bfloat16").epsilon == 0 == model_of("llama", exact=True).epsilon
    assert 0 < model_of("llama").epsilon < 1e-3
    noisy = model_of("llama", "bfloat16", exact=False)
    assert noisy.epsilon > 1e-2  # the last bit of these scores changes tokens


def test_a_demand_that_cannot_be_met_is_an_error_and_auto_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="cannot be exact: its network is fed one sequence after the other"):
        model_of(next(iter(RECURRENT)), exact=True)
    monkeypatch.setattr(exactness, "_noise", lambda *_: 0.25)
    with pytest.raises(ModelError, match=r"scores differ between passes by up to 0\.2 nats"):
        model_of("llama", exact=True)
    assert model_of("llama", "bfloat16").epsilon == 0.5
    with pytest.raises(ModelError, match="exact='yes' says nothing"):
        model_of("llama", exact="yes")


class WithNoise:
    """A scripted model that states this noise."""

    def __init__(self, script: str, certainty: float, epsilon: float) -> None:
        self._model = lq.ScriptedModel(script, certainty=certainty)
        self.name, self.fingerprint = "noisy", f"noisy {epsilon}"
        self.tokenizer, self.context_length = self._model.tokenizer, self._model.context_length
        self.epsilon = epsilon

    async def score(self, requests: Any) -> Any:
        return await self._model.score(requests)


@pytest.mark.parametrize(("epsilon", "close"), [(0.0, 0), (1e-6, 0), (1000.0, 5)])
@pytest.mark.parametrize("decoder", ["argmax", "sample(seed=3)"])
def test_choices_that_noise_may_change_are_counted(epsilon: float, close: int, decoder: str) -> None:
    model = WithNoise("Say: 12345", 8.0, epsilon)
    for _ in range(2):  # asked, and from the tree
        result = lq.run_sync(f'{decoder} "Say: [X]" where len(TOKENS(X)) == 5', model=model)
        assert result.usage.close_calls == close


def test_forced_text_and_the_only_allowed_token_are_no_close_calls() -> None:
    model = WithNoise("Say: abc", 8.0, 1000.0)
    result = lq.run_sync('"Say: [X]" where X in ["abc"]', model=model)
    assert result["X"] == "abc" and not result.usage.close_calls


def test_a_model_that_states_no_noise_has_no_close_calls_to_report() -> None:
    assert lq.run_sync('"Say:[X]"', model=lq.ScriptedModel("Say: hi")).usage.close_calls is None
