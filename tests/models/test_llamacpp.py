"""llama.cpp in this process, over the demo model as a GGUF file: its scores are those of the demo model itself."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmql_lite as lq
from lmql_lite.assets import asset
from lmql_lite.errors import ModelError
from lmql_lite.models import llamacpp
from lmql_lite.models.base import PassCounts, ScoreRequest
from lmql_lite.models.registry import is_known, load

pytest.importorskip("llama_cpp", reason="needs llama-cpp-python: pip install 'lmql-lite[llamacpp]'")
pytest.importorskip("gguf", reason="needs gguf: pip install 'lmql-lite[local]'")

from lmql_lite.models.llamacpp import LlamaCppModel

TEXT = b"Things to pack for the beach:\n- a towel\n- sun cream\n- a hat\n-"
NEAR = 0.02
"""Its keys and values are float16, and sums are float32."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.servers.gguf import convert

    return convert(asset("demo/model", "config.json").parent, tmp_path_factory.mktemp("gguf") / "demo.gguf")


@pytest.fixture(scope="module")
def model(file: Path) -> LlamaCppModel:
    found = lq.model(f"llamacpp:{file}")
    assert isinstance(found, LlamaCppModel)
    return found


def scores(model: Any, *asked: tuple[int, ...]) -> list[np.ndarray]:
    return [rows[0] for rows in asyncio.run(model.score([ScoreRequest(ids) for ids in asked]))]


def spelled(data: bytes = TEXT) -> tuple[int, ...]:
    tokenizer = lq.model("demo").tokenizer
    return (*tokenizer.bos, *tokenizer.encode(data))


def texts(count: int, length: int) -> list[tuple[int, ...]]:
    return [(0, *np.random.default_rng(seed).integers(300, 1500, length).tolist()) for seed in range(count)]


def test_scores_are_those_of_the_same_model_elsewhere_however_they_are_asked_for(model: LlamaCppModel) -> None:
    demo, ids = lq.model("demo"), spelled()
    ways = [[ids], [ids[:1], ids[:5]], [ids[:9], ids, (*ids[:12], 55, 66)], [(*ids[:12], 55), (*ids, 77), ids]]
    for asked in ways:
        for mine, own in zip(scores(model, *asked), scores(demo, *asked), strict=True):
            assert np.abs(mine - own)[own > -12].max() < NEAR
    several = ScoreRequest(ids[:4], ids[4:9], (0, 3, 5))
    (mine,), (own,) = (asyncio.run(each.score([several])) for each in (model, demo))
    assert len(mine) == 3 and np.abs(np.stack(mine) - np.stack(own)).max(where=np.stack(own) > -12, initial=0) < NEAR


def test_greedy_texts_are_those_of_the_demo_model(model: LlamaCppModel) -> None:
    query = '"Things to pack for the beach:\\n-[A]\\n-[B]" where STOPS_BEFORE(A, "\\n") and STOPS_BEFORE(B, "\\n")'
    mine, own = (lq.run_sync(query, model=each, cache=lq.TokenCache()) for each in (model, "demo"))
    assert mine.prompt == own.prompt and len(own["A"]) > 2
    assert mine.usage.tokens_fed is not None and mine.usage.close_calls is not None


def test_known_text_is_not_fed_again_and_shared_text_once(model: LlamaCppModel) -> None:
    first, second = texts(2, 60)
    scores(model, first)
    counts = PassCounts()
    asyncio.run(model.score([ScoreRequest((*first, 301, 302), counts=counts)]))
    assert (counts.fed, counts.reused) == (2, {"memory": 61})
    before, passes = model.tokens_fed, model.forward_passes
    scores(model, (*second, 301), (*second, 302), (*second, 303, 304))
    assert model.tokens_fed - before == 60 + 1 + 1 + 2 and model.forward_passes == passes + 1


def test_more_texts_than_sequences_are_right_all_the_same(model: LlamaCppModel) -> None:
    asked = texts(40, 20)
    together, alone = scores(model, *asked), [scores(lq.model("demo"), ids)[0] for ids in asked]
    for mine, own in zip(together, alone, strict=True):
        assert np.abs(mine - own)[own > -12].max() < NEAR


def test_sequences_make_room_and_a_text_that_has_none_is_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llamacpp, "_CELLS", 512)
    small = LlamaCppModel(str(file))
    one, two, three = texts(3, 300)
    first = scores(small, one)[0]
    scores(small, two), scores(small, three)
    np.testing.assert_allclose(scores(small, one)[0], first, atol=NEAR)
    with pytest.raises(ModelError, match="has no room for a text of 301 tokens beside 2 others"):
        scores(small, one, two, three)
    np.testing.assert_allclose(scores(small, one)[0], first, atol=NEAR)
    with pytest.raises(ModelError, match=r"the text is 601 tokens long, but .* reads at most 512"):
        scores(small, texts(1, 600)[0])


def test_threads_and_loops_share_it(model: LlamaCppModel) -> None:
    asked = texts(12, 30)
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda ids: scores(model, ids)[0], asked))
    for mine, ids in zip(found, asked, strict=True):
        np.testing.assert_allclose(mine, scores(model, ids)[0], atol=NEAR)


def test_its_tokens_are_those_of_the_model_and_spell_any_bytes(model: LlamaCppModel) -> None:
    tokenizer, own = model.tokenizer, lq.model("demo").tokenizer
    assert (tokenizer.vocabulary, tokenizer.bos, tokenizer.eos) == (own.vocabulary, own.bos, own.eos)
    for data in (b"", b"a", TEXT, "Ärger 😀 \t漢字\x00<s>".encode(), b"\xff a \xe6\xbc b", b"  two  spaces \r\n"):
        assert b"".join(tokenizer.vocabulary[each] or b"?" for each in tokenizer.encode(data)) == data
    assert tokenizer.encode(TEXT) == own.encode(TEXT)


def test_its_noise_is_stated_and_it_is_let_go(file: Path) -> None:
    found = LlamaCppModel(str(file))
    assert 0 <= found.epsilon < 0.1
    scores(found, spelled())
    del found
    gc.collect()


def test_files_that_are_no_model_are_named(tmp_path: Path, file: Path) -> None:
    with pytest.raises(ModelError, match="there is no such file"):
        load(f"llamacpp:{tmp_path / 'no.gguf'}")
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(ModelError, match="cannot be read as a GGUF file"):
        load(f"llamacpp:{wrong}")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:100_000])
    with pytest.raises(ModelError, match="cannot be read as a GGUF file"):
        load(f"llamacpp:{cut}")
    with pytest.raises(ModelError, match="device= is for models that torch runs"):
        load(f"llamacpp:{file}", device="cpu")


def test_a_colon_runs_a_file_here_and_a_slash_asks_a_server(file: Path) -> None:
    assert is_known("llamacpp:x.gguf") and is_known("llamacpp/x")
    assert load("llamacpp/x").name == "openai/x"
    with pytest.raises(ModelError) as told:
        load(f"llama.cpp:{file}")
    assert "`llamacpp:FILE.gguf` for one that llama.cpp runs" in str(told.value.hint)
