"""Scores against a network's own pass, however they are asked for, and exact models: the same bits in one shot, in
pieces, beside others and from disk. Close calls of the others (S5)."""

from __future__ import annotations

import asyncio
import copy
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lmql_lite as lq
from lmql_lite.cache.kv.config import KVCacheConfig
from lmql_lite.errors import ModelError
from lmql_lite.models import model_files
from lmql_lite.models.base import Scorer, ScoreRequest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("transformers", reason="needs transformers: pip install 'lmql-lite[local]'")

from lmql_lite.models.transformers import exactness  # noqa: E402
from lmql_lite.models.transformers.scorer import TransformersModel  # noqa: E402
from tests.cache.kv.tiny_models import CONFIGS, RECURRENT, tiny  # noqa: E402
from tests.models.byte_tokenizers import byte_tokenizer  # noqa: E402

LENGTH, CHUNK = 300, 64
"""The text is longer than a page, so that its border is crossed."""
LAST = range(LENGTH - 9, LENGTH + 1)
Asked = tuple[Sequence[int], Sequence[int]]
Rows = NDArray[np.float32]


@pytest.fixture(autouse=True)
def probed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMQL_LITE_HOME", str(tmp_path / "home"))


def model_of(kind: str, dtype: str = "float32", **access: Any) -> TransformersModel:
    network = copy.deepcopy(tiny(kind)).to(getattr(torch, dtype))
    model = lq.model(network, byte_tokenizer(), **access)
    assert isinstance(model, TransformersModel)
    return model


def text(seed: int, count: int) -> tuple[int, ...]:
    return tuple(int(each) for each in np.random.default_rng(seed).integers(2, 250, count))


def scores(model: TransformersModel, *asked: Asked) -> list[Rows]:
    """Scores at some ends of each text, all asked at once."""
    found = asyncio.run(model.score([ScoreRequest((), tuple(ids[: max(ends)]), tuple(ends)) for ids, ends in asked]))
    return [np.stack(rows) for rows in found]


def in_every_way(model: TransformersModel, ids: tuple[int, ...]) -> dict[str, Rows]:
    """Scores at the last ten places: in chunks, step by step, in a batch with others, and in a tree of branches."""
    found = {}
    for end in (7, 60, 255):  # behind 7, layers with a window and without one begin with the same key
        scores(model, (ids, (end,)))
    (found["chunks"],) = scores(model, (ids, LAST))
    model._rows.forget()
    scores(model, (ids, (LENGTH - 10,)))
    found["steps"] = np.concatenate([scores(model, (ids, (end,)))[0] for end in LAST])
    model._rows.forget()
    others = [text(seed, 20 + 90 * seed) for seed in range(1, 4)]
    scores(model, (ids, (LENGTH - 10,)), *((other, (len(other),)) for other in others))
    steps = []
    for step, end in enumerate(LAST, 1):
        first, *rest = (((*other, *(9,) * step), (len(other) + step,)) for other in others)
        steps.append(scores(model, first, (ids, (end,)), *rest)[1])
    found["batches"] = np.concatenate(steps)
    model._rows.forget()
    scores(model, (ids, (250,)))
    branches = [((*ids[:at], 3, 4, 5), (at + 3,)) for at in (LENGTH - 8, LENGTH - 5, 251, LENGTH - 2)]
    found["trees"] = scores(model, *branches, (ids, LAST))[-1]
    return found


@pytest.mark.parametrize("kind", [*CONFIGS, *RECURRENT])
def test_scores_are_those_of_the_networks_own_pass_in_every_way(kind: str) -> None:
    model, ids, noise = model_of(kind), text(11, LENGTH), 1e-3 if kind in RECURRENT else 1e-4
    with torch.inference_mode():
        logits = tiny(kind)(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -10:]
    expected = torch.log_softmax(logits.float(), -1).numpy()
    assert (kind in RECURRENT or model.epsilon > 0) and model.epsilon < 1e-3
    for way, found in in_every_way(model, ids).items():
        np.testing.assert_allclose(found, expected, atol=noise, err_msg=way)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_an_exact_model_gives_the_same_bits_in_every_way(kind: str, dtype: str, tmp_path: Path) -> None:
    kv = KVCacheConfig(chunk_size=CHUNK, local_disk=str(tmp_path))
    try:
        model = model_of(kind, dtype, exact=True, kv=kv)
    except ModelError as error:  # on processors without instructions for it
        assert (kind[:4], dtype) == ("gpt2", "bfloat16") and "scores differ between passes" in error.message
        return
    ids = text(12, LENGTH)
    (whole,) = scores(model, (ids, LAST))
    scores(model, ((2,), (1,)))  # it has stored the prompt
    again = model_of(kind, dtype, exact=True, kv=kv)
    found = {"disk": scores(again, (ids, LAST))[0], **in_every_way(model_of(kind, dtype, exact=True), ids)}
    for way, rows in found.items():
        np.testing.assert_array_equal(rows, whole, way)
    assert model.epsilon == 0 and again.kv is not None and again.kv.report().found >= LAST[0] - 1


def test_half_precision_is_exact_of_itself_and_float32_states_its_noise() -> None:
    assert model_of("llama", "bfloat16").epsilon == 0 == model_of("llama", exact=True).epsilon
    assert 0 < model_of("llama").epsilon < 1e-3
    noisy = model_of("llama", "bfloat16", exact=False)
    assert noisy.epsilon > 1e-2  # the last bit of these scores changes tokens


def test_a_demand_that_cannot_be_met_is_an_error_and_auto_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in RECURRENT:
        with pytest.raises(ModelError, match="cannot be exact: its network is fed one sequence after the other"):
            model_of(kind, exact=True)
    monkeypatch.setattr(exactness, "_noise", lambda *_: 0.25)
    with pytest.raises(ModelError, match=r"scores differ between passes by up to 0\.2 nats"):
        model_of("llama", exact=True)
    assert model_of("llama", "bfloat16").epsilon == 0.5
    with pytest.raises(ModelError, match="exact='yes' says nothing"):
        model_of("llama", exact="yes")


def test_a_probe_that_took_long_is_remembered_for_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, place, facts_of = tiny("llama"), tmp_path / "home" / "findings.json", exactness.facts_of
    found = facts_of(network, "one", exact=False)
    assert not place.exists()  # it did not take long
    monkeypatch.setattr(model_files, "_LONG", 0.0)
    facts_of(network, "one", exact=False)
    with monkeypatch.context() as patched:
        patched.setattr(network, "forward", None)  # running the network would fail
        assert facts_of(network, "one", exact=False) == found
        for identity, exact in (("another", False), ("one", True)):
            with pytest.raises(TypeError):
                facts_of(network, identity, exact=exact)
    for damage in ("", "[]", "{", place.read_text().replace('"width": 256', '"width": 255')):
        place.write_text(damage)
        assert facts_of(network, "one", exact=False) == found


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_token_of_a_recurrent_network_costs_a_token(kind: str) -> None:
    model, ids = model_of(kind), text(14, 60)
    before = model.tokens_fed
    for end in range(20, 61):
        scores(model, (ids, (end,)))
    assert model.tokens_fed - before == 60
    scores(model, ((*ids, 7, 8), (60, 61, 62)))  # a draft of two tokens that turn out wrong
    right = ((*ids, 9), (61,))
    found = scores(model, right)[0]
    assert model.tokens_fed - before <= 60 + 60 + 2 + 1
    np.testing.assert_allclose(found, scores(model_of(kind), right)[0], atol=1e-3)


class WithNoise(Scorer):
    """A scripted model that states this noise."""

    def __init__(self, script: str, epsilon: float) -> None:
        self._model = lq.ScriptedModel(script, certainty=8.0)
        self.name, self.fingerprint = "noisy", f"noisy {epsilon}"
        self.tokenizer, self.context_length = self._model.tokenizer, self._model.context_length
        self.epsilon = epsilon

    async def score(self, requests: Any) -> Any:
        return await self._model.score(requests)


@pytest.mark.parametrize(("epsilon", "close"), [(0.0, 0), (1e-6, 0), (1000.0, 5)])
@pytest.mark.parametrize("decoder", ["argmax", "sample(seed=3)"])
def test_choices_that_noise_may_change_are_counted(epsilon: float, close: int, decoder: str) -> None:
    model = WithNoise("Say: 12345", epsilon)
    for _ in range(2):  # asked, and from the tree
        result = lq.run_sync(f'{decoder} "Say: [X]" where len(TOKENS(X)) == 5', model=model)
        assert result.usage.close_calls == close


def test_what_nobody_chose_is_no_close_call_and_a_model_that_states_no_noise_reports_none() -> None:
    result = lq.run_sync('"Say: [X]" where X in ["abc"]', model=WithNoise("Say: abc", 1000.0))
    assert result["X"] == "abc" and not result.usage.close_calls
    assert lq.run_sync('"Say:[X]"', model=lq.ScriptedModel("Say: hi")).usage.close_calls is None
