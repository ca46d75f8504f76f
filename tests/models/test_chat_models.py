"""Role tags with causal language models in Hugging Face format, tiny ones with random weights."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.assets import asset
from lmql_lite.models.base import ScoreRequest
from lmql_lite.models.demo import DemoModel
from tests.models import templates

torch = pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'lmql-lite[local]'")

from lmql_lite.models.transformers.scorer import TransformersModel  # noqa: E402

TALK = """
"{:user}What is 2+2?[A]{:user}And 3+3?{:assistant}[B]{:user}So?[C]"
where A in ["It is 4."] and B in ["6, of course"] and len(TOKENS(C)) < 4
"""
"""Words that a model chooses may be cut into tokens otherwise than a tokenizer would; those that are forced are not."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny matrices are done before a second thread has woken up."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def save(folder: Path, template: str) -> Any:
    """A folder as `save_pretrained` leaves it; its tokenizer."""
    torch.manual_seed(7)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(
        vocab_size=420, max_position_embeddings=256, bos_token_id=0, eos_token_id=1, num_key_value_heads=1, **shape
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=templates.byte_level(), bos_token="<s>", eos_token="</s>", chat_template=template
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


class Overheard:
    """A Scorer, and every text that it is asked about."""

    def __init__(self, model: TransformersModel) -> None:
        self._model = model
        self.asked: set[tuple[int, ...]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def score(self, requests: list[ScoreRequest]) -> Any:
        self.asked.update(request.prefix for request in requests)
        return await self._model.score(requests)


def test_a_model_is_asked_what_its_template_says_S30(tmp_path: Path) -> None:
    tokenizer = save(tmp_path, templates.DEFAULT_SYSTEM)
    model = Overheard(TransformersModel.load(tmp_path))
    result = lq.run_sync(TALK, model=model, session=lq.Session(), speculate=False)
    result.check_ledger()
    turns = (("user", "What is 2+2?"), ("assistant", result["A"]), ("user", "And 3+3?"), ("assistant", result["B"]))
    said = [{"role": role, "content": text} for role, text in (*turns, ("user", "So?"))]
    lq.run_sync('"{:user}What is 2+2?[A]" where len(TOKENS(A)) < 4', model=model, session=lq.Session())
    for end in (1, 5):
        wanted = tokenizer.apply_chat_template(said[:end], add_generation_prompt=True, tokenize=True, return_dict=False)
        assert tuple(wanted) in model.asked
    assert result.prompt == f"What is 2+2?{result['A']}And 3+3?{result['B']}So?{result['C']}"


def test_the_template_is_part_of_the_fingerprint_S4(tmp_path: Path) -> None:
    prints = []
    for number, template in enumerate((templates.DEFAULT_SYSTEM, templates.PLAIN)):
        save(tmp_path / str(number), template)
        prints.append(TransformersModel.load(tmp_path / str(number)).fingerprint)
    assert len(set(prints)) == 2


def test_a_demo_model_with_a_template_has_turns_and_another_fingerprint(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(asset("demo/model", "config.json").parent, folder)
    plain = DemoModel.load(folder)
    assert plain.fingerprint == DemoModel.load().fingerprint
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    template = (
        "{{ bos_token }}"
        "{% for m in messages %}{{ ('Q: ' if m.role == 'user' else 'A: ') + m.content + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'A:' }}{% endif %}"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    model = DemoModel.load(folder)
    assert model.fingerprint != plain.fingerprint
    result = lq.run_sync(
        '"{:user}What is the capital of France?[A]{:user}What colour is snow?{:assistant}[B]"'
        ' where STOPS_BEFORE(A, "\\n") and STOPS_BEFORE(B, "\\n")',
        model=model,
        session=lq.Session(),
    )
    assert (result["A"], result["B"]) == (" Paris", " white")
