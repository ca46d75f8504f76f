"""Attention keys and values of prompts on disk: other processes find them, and scores are those without them."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path

import numpy as np
import pytest

import lmql_lite as lq
from lmql_lite.cache.kv.config import KVCacheConfig
from lmql_lite.errors import CacheError
from lmql_lite.models.base import PassCounts, ScoreRequest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'lmql-lite[local]'")

from lmql_lite.models.transformers.rows import PackedRows  # noqa: E402
from lmql_lite.models.transformers.scorer import TransformersModel  # noqa: E402
from tests.cache.kv.tiny_models import CONFIGS, tiny  # noqa: E402
from tests.models.byte_tokenizers import byte_tokenizer  # noqa: E402

CHUNK = 64


def model_on(kind: str, folder: Path | None) -> TransformersModel:
    """A new model object stands for a new process: it shares nothing but the folder."""
    kv = KVCacheConfig(chunk_size=CHUNK, local_disk=str(folder)) if folder else None
    model = lq.model(tiny(kind), byte_tokenizer(), kv=kv)
    assert isinstance(model, TransformersModel) and isinstance(model._rows, PackedRows)
    return model


def after(model: TransformersModel, ids: tuple[int, ...]) -> tuple[np.ndarray, PassCounts]:
    counts = PassCounts()
    ((row,),) = asyncio.run(model.score([ScoreRequest(ids, counts=counts)]))
    settled(model)
    return row, counts


def settled(model: TransformersModel) -> None:
    """Waits until the model has stored what it computed."""
    asyncio.run(model.score([ScoreRequest((2,))]))


def ids(seed: int, count: int) -> tuple[int, ...]:
    return tuple(int(each) for each in np.random.default_rng(seed).integers(2, 250, count))


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_new_process_finds_prompts_on_disk_and_scores_are_the_same(kind: str, tmp_path: Path) -> None:
    bare, text = model_on(kind, None), ids(1, 3 * CHUNK + 9)
    for length in (1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK, 3 * CHUNK + 5):
        folder = tmp_path / str(length)
        after(model_on(kind, folder), text[:length])
        warm = model_on(kind, folder)
        row, counts = after(warm, text[:length])
        assert counts.reused.get("disk", 0) == (length - 1 if length >= 16 else 0)
        np.testing.assert_allclose(row, after(bare, text[:length])[0], atol=1e-4)


def test_a_prompt_that_leaves_a_stored_one_is_known_to_the_token(tmp_path: Path) -> None:
    text = ids(2, 150)
    after(model_on("llama", tmp_path), text)
    warm, other = model_on("llama", tmp_path), (*text[:100], *ids(3, 30))
    row, counts = after(warm, other)
    assert counts.reused == {"disk": 100} and counts.fed == 30
    np.testing.assert_allclose(row, after(model_on("llama", None), other)[0], atol=1e-4)


def test_a_page_that_was_damaged_costs_time_alone(tmp_path: Path) -> None:
    text = ids(4, 100)
    after(model_on("llama", tmp_path), text)
    for path in tmp_path.glob("**/*.pt"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 255
        path.write_bytes(data)
    warm = model_on("llama", tmp_path)
    row, counts = after(warm, text)
    assert counts.fed == 100 and warm.kv is not None and warm.kv.report().notices
    np.testing.assert_allclose(row, after(model_on("llama", None), text)[0], atol=1e-4)


def test_usage_tells_where_keys_and_values_came_from(tmp_path: Path) -> None:
    source = f'"{"Some words. " * 10}[X]" where len(TOKENS(X)) == 4'
    cold = lq.run_sync(source, model=model_on("llama", tmp_path), cache=False, session=lq.Session()).usage
    warm_model = model_on("llama", tmp_path)
    warm = lq.run_sync(source, model=warm_model, cache=False, session=lq.Session()).usage
    assert (cold.kv_from_disk, warm.kv_from_disk) == (None, 119)
    assert (cold.tokens_fed, warm.tokens_fed) == (123, 4)
    assert warm.kv_from_memory == 120 + 121 + 122
    assert warm_model.kv is not None and warm_model.kv.report().by_tier == {"disk": 120}


def test_tokens_of_answers_are_stored_where_that_is_wanted(tmp_path: Path) -> None:
    config = KVCacheConfig(chunk_size=32, local_disk=str(tmp_path), save_decode_cache=True)
    text = ids(5, 20)
    first = lq.model(tiny("llama"), byte_tokenizer(), kv=config)
    assert isinstance(first, TransformersModel)
    for length in range(20, 70):
        text = (*text, 7)[:length]
        after(first, text)
    second = lq.model(tiny("llama"), byte_tokenizer(), kv=config)
    assert isinstance(second, TransformersModel)
    assert after(second, text)[1].reused == {"disk": 64}


def test_a_folder_that_cannot_be_and_a_url_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="remote_url"):
        lq.model(tiny("llama"), byte_tokenizer(), kv="ftp://somewhere")
    (tmp_path / "file").write_text("")
    model = lq.model(tiny("llama"), byte_tokenizer(), kv=str(tmp_path / "file" / "below"))
    assert isinstance(model, TransformersModel)
    assert after(model, ids(6, 40))[1].fed == 40
