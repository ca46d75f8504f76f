"""`use_caches=False`: nothing that was computed for another run, hole or row is reused (S7)."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import lmql_lite as lq
from lmql_lite.apps.cli import lq as command
from lmql_lite.errors import InputError, ModelError
from tests.tables import cases

QUERY = """
"{document}\\nQ: {question}\\nA:[A]\\nB:[B]" where len(TOKENS(A)) <= 6 and len(TOKENS(B)) <= 5
"""
DOCUMENT = "It rained on the old town all day, and the people stayed at home. " * 2
INPUTS = [{"document": DOCUMENT, "question": question} for question in ("Who?", "Where?", "What came after it?")]
KINDS = ["packed", "one after the other", "state"]


def texts(query: str, inputs: dict[str, str] | None = None, **options: Any) -> list[tuple[str, Any]]:
    found = lq.run_sync(query, inputs, **options)
    return [(each.prompt, each.value) for each in (found if isinstance(found, list) else [found])]


@cases("engine/use_caches", "the text is that of a cached run", globals())
def test_the_text_is_that_of_a_cached_run(query: str) -> None:
    for inputs in (*INPUTS, INPUTS[0]):
        assert texts(query, inputs, seed=7) == texts(query, inputs, seed=7, use_caches=False)


@given(st.text("ab ,.\n", max_size=30), st.integers(0, 9), st.sampled_from(["argmax", "sample", "beam"]))
@settings(max_examples=15, deadline=None)
def test_the_text_of_any_prompt_is_that_of_a_cached_run(text: str, seed: int, decoder: str) -> None:
    query = '"{text}:[X]\\n{text}[Y]" where len(TOKENS(X)) <= 4 and len(TOKENS(Y)) <= 3'
    once, again = (
        texts(query, {"text": text}, seed=seed, decoder=decoder, use_caches=reuses) for reuses in (None, False)
    )
    assert once == again


def test_known_answers_are_not_read() -> None:
    model = lq.ScriptedModel("Say: hello there")
    passes = [
        lq.run_sync('"Say:[X]"', model=model, use_caches=reuses).usage.forward_passes for reuses in (None, None, False)
    ]
    assert passes[1] == 0 < passes[2]


@pytest.fixture(scope="module", params=KINDS)
def network(request: pytest.FixtureRequest) -> Any:
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from lmql_lite.models.demo import DemoModel

    tokenizer = DemoModel.load().tokenizer
    common = {"vocab_size": len(tokenizer.vocabulary), "hidden_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "initializer_range": 0.3}
    configs = {
        "packed": lambda: transformers.Qwen2Config(
            **common, **heads, intermediate_size=64, num_key_value_heads=2, max_position_embeddings=512
        ),
        "one after the other": lambda: transformers.FalconConfig(**common, **heads, max_position_embeddings=512),
        "state": lambda: transformers.MambaConfig(**common, state_size=4),
    }
    torch.manual_seed(1)
    made = transformers.AutoModelForCausalLM.from_config(configs[request.param](), dtype=torch.float32)
    return made.eval(), tokenizer


def is_whole(result: Any) -> bool:
    """True if a run fed for each hole the tokens before it and all but its last one. bos and a healed token come in
    addition."""
    holes: dict[str, int] = {}
    for at, token in enumerate(token for token in result.tokens if token.fate == "kept"):
        if token.hole:
            holes[token.hole] = at
    found: int = result.usage.tokens_fed
    return 0 <= found - sum(holes.values()) <= 3 * len(holes)


def test_tokens_fed_is_the_prompt_once_for_each_hole(network: Any) -> None:
    model = lq.model(*network)
    for inputs in (INPUTS[0], INPUTS[0], INPUTS[1]):
        plain = lq.run_sync(QUERY, inputs, model=model)
        result = lq.run_sync(QUERY, inputs, model=model, use_caches=False)
        assert result.prompt == plain.prompt
        assert is_whole(result)
    assert not is_whole(plain)


def test_rows_that_run_together_share_nothing(network: Any) -> None:
    model, query = lq.model(*network), lq.compile(QUERY)
    alone = [query.run_sync(inputs, model=model, use_caches=False) for inputs in INPUTS]
    together = query.map_sync(INPUTS, model=model, use_caches=False)
    assert [each.prompt for each in together] == [each.prompt for each in alone]
    assert [each.usage.tokens_fed for each in together] == [each.usage.tokens_fed for each in alone]
    assert all(map(is_whole, together))


def test_every_run_of_a_model_without_caches_computes_everything_anew(network: Any) -> None:
    model = lq.model(*network, use_caches=False)
    for _ in range(2):
        assert is_whole(lq.run_sync(QUERY, INPUTS[0], model=model))
    scores = [lq.score_sync(DOCUMENT, [" yes", " no"], model=model).usage.tokens_fed for _ in range(2)]
    assert scores[0] == scores[1] and scores[0]


@pytest.mark.parametrize("network", ["packed"], indirect=True)
def test_keys_on_disk_are_neither_read_nor_written(network: Any, tmp_path: Path) -> None:
    model = lq.model(*network, kv=str(tmp_path))
    lq.run_sync(QUERY, INPUTS[0], model=model, use_caches=False)
    model.kv.close()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 4096]
    model = lq.model(*network, kv=str(tmp_path))
    lq.run_sync(QUERY, INPUTS[0], model=model, cache=False)
    model.kv.close()
    model = lq.model(*network, kv=str(tmp_path))
    usage = lq.run_sync(QUERY, INPUTS[0], model=model, use_caches=False).usage
    assert not usage.kv_from_disk


@pytest.mark.parametrize("network", ["packed"], indirect=True)
def test_keys_of_holes_that_are_filled_take_no_memory(network: Any) -> None:
    model = lq.model(*network)
    for inputs in INPUTS:
        lq.run_sync(QUERY, inputs, model=model, use_caches=False)
    for _ in range(100):  # the thread of the passes may refer to its last request for a moment after the answer
        gc.collect()
        model._rows.settle()
        if not model._rows.live.all:
            break
        time.sleep(0.05)
    assert not model._rows.live.all


REUSE = [
    {"cache": "answers.tokens"},
    {"cache": True},
    {"cache": lq.TokenCache("answers.tokens")},
    {"cache": "answers.tokens", "cache_mode": "replay"},
    {"cache_mode": "rw"},
    {"blocks": "rotate"},
]


@pytest.mark.parametrize("options", REUSE, ids=str)
def test_an_option_that_asks_for_reuse_contradicts_it(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="use_caches=False computes everything anew, which") as caught:
        lq.run_sync('"Say:[X]"', model=lq.ScriptedModel("Say: hi"), use_caches=False, **options)
    assert caught.value.hint
    assert not (tmp_path / "answers.tokens").exists()
    with pytest.raises(InputError, match="contradicts"):
        lq.run_sync('argmax(use_caches=False)\n"Say:[X]"', model=lq.ScriptedModel("Say: hi"), **options)


def test_a_call_without_caches_leaves_out_those_of_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    query = 'argmax(cache="answers.tokens", cache_mode="refresh", blocks="rotate")\n"Say:[X]"'
    assert lq.run_sync(query, model=lq.ScriptedModel("Say: hi"), use_caches=False)["X"] == " hi"
    assert not (tmp_path / "answers.tokens").exists()


@pytest.mark.parametrize("options", [{"cache": False}, {"cache_mode": "off"}, {"blocks": "exact"}], ids=str)
def test_options_that_reuse_nothing_go_with_it(options: dict[str, Any]) -> None:
    assert lq.run_sync('"Say:[X]"', model=lq.ScriptedModel("Say: hi"), use_caches=False, **options)["X"] == " hi"


def test_the_command_has_it() -> None:
    run = ["run", "-e", '"Say:[X]" where len(TOKENS(X)) < 3', "--model", "demo", "--no-use-caches"]
    assert CliRunner().invoke(command, run).exit_code == 0
    refused = CliRunner().invoke(command, [*run, "--cache", "on"])
    assert refused.exit_code != 0 and "use_caches=False" in refused.output


@pytest.mark.parametrize("name", ["demo", "openai/some"])
def test_a_model_of_any_kind_takes_it(name: str) -> None:
    assert lq.model(name, use_caches=False).use_caches is False
    with pytest.raises(ModelError, match="use_caches='no'"):
        lq.model(name, use_caches="no")
