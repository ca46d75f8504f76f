"""TransformersModel against a plain full forward, on tiny models with random weights."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from lmql_lite.assets import asset
from lmql_lite.errors import ModelError
from lmql_lite.models import model_files
from lmql_lite.models.base import ScoreRequest
from lmql_lite.models.registry import load
from lmql_lite.models.transformers import checkpoint

torch = pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'lmql-lite[local]'")

from lmql_lite.models.transformers.rows import PackedRows  # noqa: E402
from lmql_lite.models.transformers.scorer import TransformersModel  # noqa: E402

TEXT = [
    "Things to pack for a week at the sea:",
    "A good dad joke. Q: what is brown and sticky?",
    "A: a stick, at last.",
]
CONTEXT = 64
SHAPE = {"vocab_size": 320, "max_position_embeddings": CONTEXT, "bos_token_id": 0, "eos_token_id": 1}
LAYERS = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
HEADS = {"num_key_value_heads": 2, "head_dim": 8}


def tokenizer(bos: bool) -> Any:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT, trainer)
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 0)]
        )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def save(folder: Path, config: Any, kind: Any = None, bos: bool = True, **options: Any) -> Path:
    """A folder as `save_pretrained` leaves it. The weights are wide, so that the scores differ visibly."""
    torch.manual_seed(7)
    model = (kind or transformers.AutoModelForCausalLM.from_config)(config)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.normal_(0.0, 0.15)
    model.save_pretrained(folder, **options)
    tokenizer(bos).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny matrices are done before a second thread has woken up."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("llama"), transformers.LlamaConfig(**SHAPE, **LAYERS, **HEADS))


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = transformers.GPT2Config(
        vocab_size=320, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=1
    )
    return save(tmp_path_factory.mktemp("gpt2"), config, bos=False)


@pytest.fixture
def llama(llama_folder: Path) -> TransformersModel:
    return TransformersModel.load(llama_folder)


def plain(folder: Path) -> Callable[[tuple[int, ...]], NDArray[np.float32]]:
    """Log-probabilities after every token, from one full forward with nothing remembered."""
    with checkpoint.loading("plain"):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()

    def scores(ids: tuple[int, ...]) -> NDArray[np.float32]:
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        rows: NDArray[np.float32] = torch.log_softmax(logits.float(), dim=-1).numpy()
        return rows

    return scores


def ask(model: TransformersModel, *requests: ScoreRequest) -> list[list[NDArray[np.float32]]]:
    return asyncio.run(model.score(requests))


def ids(seed: int, count: int) -> tuple[int, ...]:
    return tuple(int(number) for number in np.random.default_rng(seed).integers(2, 300, count))


def check(
    model: TransformersModel, truth: Callable[[tuple[int, ...]], NDArray[np.float32]], *requests: ScoreRequest
) -> None:
    for request, rows in zip(requests, ask(model, *requests), strict=True):
        expected = truth(request.prefix + request.new_ids)
        assert len(rows) == len(request.positions)
        for position, row in zip(request.positions, rows, strict=True):
            assert row.dtype == np.float32 and row.shape == (320,)
            assert row.base is None or row.base.size == 320, "it keeps no other row alive"
            np.testing.assert_allclose(row, expected[len(request.prefix) + position - 1], atol=1e-5)


def test_scores_are_those_of_a_full_forward(llama: TransformersModel, llama_folder: Path) -> None:
    model, truth, prefix = llama, plain(llama_folder), ids(1, 20)
    check(model, truth, ScoreRequest(prefix))
    check(model, truth, ScoreRequest(prefix, ids(2, 3), (3,)))
    check(model, truth, ScoreRequest(prefix, ids(3, 5), (0, 2, 5)), ScoreRequest(prefix, ids(4, 5), (5, 1, 1)))
    check(model, truth, ScoreRequest((), prefix, tuple(range(1, 21))))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_texts_that_part_and_meet_again_and_drafts_that_were_wrong_leave_no_trace(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """Near and far branches, repeats, shorter texts: whatever is remembered, the scores are the same."""
    folder = request.getfixturevalue(f"{kind}_folder")
    model, truth, stem = TransformersModel.load(folder), plain(folder), ids(6, 16)
    branches = [stem, (*stem, 5, 6, 7, 8, 9, 10), (*stem, 5, 6, 11), stem[:4], (*stem[:10], *ids(7, 12)), ids(8, 9)]
    for number in np.random.default_rng(9).integers(0, len(branches), 24):
        check(model, truth, ScoreRequest(branches[number], (3, 4), (0, 2)))
    check(model, truth, ScoreRequest(stem, ids(11, 8), tuple(range(9))))
    check(model, truth, ScoreRequest((*stem, 7), ids(12, 8), tuple(range(9))))
    check(model, truth, ScoreRequest((*stem, 7, 8)))


def test_known_text_is_not_fed_again(llama: TransformersModel) -> None:
    model, stem = llama, ids(13, 20)
    before = model.tokens_fed
    ask(model, ScoreRequest(stem), ScoreRequest(stem, (3, 4), (0, 1, 2)), ScoreRequest((*stem, 3), (9,), (1,)))
    assert model.tokens_fed - before == 20 + 2 + 1, "what the three have in common is fed once"
    one, two = (*stem, *ids(14, 6)), (*stem, *ids(15, 6))
    ask(model, ScoreRequest(one), ScoreRequest(two))
    before = model.tokens_fed
    for step in range(1, 6):
        ask(model, ScoreRequest(one, one[:step], (step,)), ScoreRequest(two, two[:step], (step,)))
    assert model.tokens_fed - before == 10, "two branches that grow in turn must not drive each other out"


def test_requests_together_are_one_pass(llama: TransformersModel, llama_folder: Path) -> None:
    """Options, drafts and texts of several runs: prefixes of one another, alike, and nothing in common."""
    truth, stem, passes = plain(llama_folder), ids(33, 12), llama.forward_passes
    options = [ScoreRequest(stem, (*ids(34, 2), option), (0, 1, 2, 3)) for option in range(5, 15)]
    check(llama, truth, *options, ScoreRequest(stem[:4]), ScoreRequest(ids(35, 7), (4,), (0, 1)), ScoreRequest(stem))
    assert llama.forward_passes == passes + 1 and llama.tokens_fed >= 12 + 2 + 10 + 8


def test_many_long_prompts_are_fed_once(llama_folder: Path) -> None:
    """From the ninth sequence on, prompts used to be read again for every token."""
    model = TransformersModel.load(llama_folder)
    texts, before = [ids(100 + number, 40) for number in range(32)], model.tokens_fed
    for step in range(5):
        ask(model, *(ScoreRequest(text, (7,) * step, (step,)) for text in texts))
    assert 32 * 40 < model.tokens_fed - before <= 32 * (40 + 4)


def wait_until(holds: Callable[[], bool]) -> None:
    last = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < last, "this did not come true"
        time.sleep(0.01)


def test_what_is_remembered_is_bounded_in_bytes(llama_folder: Path) -> None:
    model, truth = TransformersModel.load(llama_folder), plain(llama_folder)
    rows = model._rows
    assert isinstance(rows, PackedRows)
    ask(model, ScoreRequest(ids(1, 40)))
    rows.live.max_size = 3 * rows.live.size
    for seed in range(20):
        check(model, truth, ScoreRequest(ids(seed, 25 + seed % 4 * 10)))
        wait_until(lambda: rows.live.size <= rows.live.max_size)  # memory is freed after the answer
    assert len(rows.live.all) >= 3


def test_a_fork_shares_what_is_before_it(llama_folder: Path) -> None:
    model, stem = TransformersModel.load(llama_folder), ids(36, 50)
    ask(model, ScoreRequest(stem))
    rows = model._rows
    assert isinstance(rows, PackedRows)
    alone = rows.live.size
    ask(model, *(ScoreRequest(stem, (option,), (1,)) for option in range(5, 9)))
    assert len(rows.live.all) == 4 and rows.live.size <= alone + 4 * alone * 32 // 50


def test_threads_and_loops_share_a_model(llama: TransformersModel, llama_folder: Path) -> None:
    truth, failures = plain(llama_folder), []

    def work(seed: int) -> None:
        try:
            for step in range(8):
                check(llama, truth, ScoreRequest(ids(seed % 2, 12), ids(seed, 1 + step), (0, 1 + step)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(20, 26)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and llama.forward_passes <= 48


def test_the_loop_is_free_while_the_model_works(llama: TransformersModel) -> None:
    async def both() -> bool:
        gate, forward = threading.Event(), llama.network.forward

        def gated(*given: Any, **named: Any) -> Any:
            gate.wait(10)
            return forward(*given, **named)

        llama.network.forward = gated
        scoring = asyncio.create_task(llama.score([ScoreRequest(ids(27, 4))]))
        await asyncio.sleep(0.05)
        waited = not scoring.done()
        gate.set()
        await scoring
        return waited

    assert asyncio.run(both())


def test_special_ids_and_vocabulary(llama: TransformersModel, gpt2_folder: Path) -> None:
    assert (llama.tokenizer.bos, llama.tokenizer.eos, llama.context_length) == ((0,), frozenset({1}), CONTEXT)
    assert len(llama.tokenizer.vocabulary) == 320 and llama.tokenizer.vocabulary[310] is None
    text = "Things to pack, äöü 😀".encode()
    assert b"".join(llama.tokenizer.vocabulary[number] or b"?" for number in llama.tokenizer.encode(text)) == text
    other = TransformersModel.load(gpt2_folder)
    assert (other.tokenizer.bos, other.tokenizer.eos, other.context_length) == ((), frozenset({1}), CONTEXT)
    endless = transformers.MambaConfig(vocab_size=320, hidden_size=16, num_hidden_layers=2, state_size=4)
    assert checkpoint.context_length(endless) > 100_000


def changed(folder: Path, to: Path, name: str, **settings: Any) -> Path:
    """A copy of a model, with these settings in one of its files."""
    copy = shutil.copytree(folder, to)
    (copy / name).write_text(json.dumps(json.loads((copy / name).read_text()) | settings))
    return copy


def test_settings_may_name_several_ends_of_text_and_ask_for_a_bos(
    llama_folder: Path, gpt2_folder: Path, tmp_path: Path
) -> None:
    ends = changed(llama_folder, tmp_path / "ends", "generation_config.json", eos_token_id=[1, 280])
    assert TransformersModel.load(ends).tokenizer.eos == {1, 280}
    begin = changed(gpt2_folder, tmp_path / "begin", "tokenizer_config.json", add_bos_token=True)
    assert TransformersModel.load(begin).tokenizer.bos in {(0,), ()}  # () where the release no longer heeds it


def test_the_fingerprint_is_that_of_the_files(llama_folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    first, copy = load(f"local:{llama_folder}"), shutil.copytree(llama_folder, tmp_path / "elsewhere")
    same = load(f"local:{copy}")
    assert same.fingerprint == first.fingerprint
    assert (first.name, same.name) == (f"local:{llama_folder}", f"local:{copy}")
    weights = load_file(copy / "model.safetensors")
    weights["model.norm.weight"][3] += 1e-3
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    other = changed(llama_folder, tmp_path / "other", "config.json", rms_norm_eps=0.5)
    prints = {first.fingerprint, *(TransformersModel.load(each).fingerprint for each in (copy, other))}
    assert len(prints) == 3


@pytest.mark.parametrize(
    ("stored", "wanted", "used"),
    [
        ("float16", None, "float32"),
        ("bfloat16", None, "bfloat16" if checkpoint.has_native_bfloat16() else "float32"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float32", "bfloat16", "bfloat16"),
    ],
)
def test_half_precision_on_the_cpu(stored: str, wanted: str | None, used: str, tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**SHAPE, **LAYERS, **HEADS)
    save(tmp_path, config, lambda config: transformers.LlamaForCausalLM(config).to(getattr(torch, stored)))
    model = load(f"local:{tmp_path}", device="cpu", dtype=wanted)
    assert isinstance(model, TransformersModel) and model.network.dtype == getattr(torch, used)
    (row,) = ask(model, ScoreRequest(ids(28, 6)))[0]
    assert row.dtype == np.float32 and abs(np.exp(row.astype(np.float64)).sum() - 1) < 1e-5


def test_options_that_cannot_be_had_are_named(llama_folder: Path) -> None:
    for options, words in (
        ({"device": "warp"}, "the device 'warp' cannot be used"),
        ({"dtype": "float3"}, "'float3' is not a precision"),
        ({"base_url": "http://localhost"}, "only for models behind an API"),
    ):
        with pytest.raises(ModelError, match=words):
            load(f"local:{llama_folder}", **options)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="dtype= is for models in this process"):
        load("openai/gpt-4o", dtype="float32")


def test_a_loaded_network_is_a_model(llama_folder: Path) -> None:
    import lmql_lite as lq

    with checkpoint.loading("plain"):
        network = transformers.AutoModelForCausalLM.from_pretrained(llama_folder)
        spelling = transformers.AutoTokenizer.from_pretrained(llama_folder)
    model, other = lq.model(network, spelling), TransformersModel.load(llama_folder)
    assert isinstance(model, TransformersModel)
    check(model, plain(llama_folder), ScoreRequest(ids(31, 9), (3,), (0, 1)))
    assert (model.tokenizer.bos, model.tokenizer.eos) == (other.tokenizer.bos, other.tokenizer.eos)
    with torch.no_grad():
        network.model.norm.weight[3] += 1e-3
    assert lq.model(network, spelling).fingerprint != model.fingerprint
    with pytest.raises(ModelError, match="needs its tokenizer"):
        lq.model(network)
    with pytest.raises(ModelError, match="Linear is not a causal language model"):
        lq.model(torch.nn.Linear(2, 2), spelling)


def test_weights_are_digested_once(llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "_LONG", 0.0)
    monkeypatch.setenv("LMQL_LITE_HOME", str(tmp_path / "home"))
    weights = shutil.copytree(llama_folder, tmp_path / "copy") / "model.safetensors"
    first = model_files.digest(weights)
    monkeypatch.setattr(model_files.hashlib, "file_digest", None)  # reading the file again would fail
    assert model_files.digest(weights) == first
    monkeypatch.undo()
    monkeypatch.setenv("LMQL_LITE_HOME", str(tmp_path / "home"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    assert model_files.digest(weights) != first


def test_a_tokenizer_with_more_tokens_than_the_model_has_scores(tmp_path: Path) -> None:
    small = SHAPE | {"vocab_size": 290}
    model = TransformersModel.load(save(tmp_path, transformers.LlamaConfig(**small, **LAYERS, **HEADS)))
    size = len(model.tokenizer.vocabulary)
    assert size > 290
    (row,) = ask(model, ScoreRequest((5, 6)))[0]
    assert row.shape == (size,) and np.isneginf(row[290:]).all() and np.isfinite(row[:290]).all()
    with pytest.raises(ModelError, match=f"scores for 290 tokens, but the text contains token {size - 1}"):
        ask(model, ScoreRequest((5, size - 1)))


def test_what_cannot_be_scored_is_said(llama: TransformersModel) -> None:
    with pytest.raises(ModelError, match=r"65 tokens long, but local:.* reads at most 64") as caught:
        ask(llama, ScoreRequest(ids(29, 60), ids(30, 5)))
    assert caught.value.hint
    ask(llama, ScoreRequest(ids(29, 60), ids(30, 4), (4,)))
    with pytest.raises(ModelError, match="no scores before the first token") as caught:
        ask(llama, ScoreRequest(()))
    assert caught.value.hint
    with pytest.raises(ModelError, match=r"positions \(3,\) are not within the 2 new tokens"):
        ask(llama, ScoreRequest((2,), (3, 4), (3,)))
    passes = llama.forward_passes
    assert ask(llama, ScoreRequest(ids(18, 5), (), ())) == [[]] and ask(llama) == []
    assert llama.forward_passes == passes


def test_scores_that_are_no_numbers(llama: TransformersModel) -> None:
    with torch.no_grad():
        llama.network.model.norm.weight.fill_(float("nan"))
    with pytest.raises(ModelError, match="not numbers"):
        ask(llama, ScoreRequest((2, 3)))


def test_running_out_of_memory_is_said_and_survived(llama: TransformersModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes.")

    with monkeypatch.context() as patch:
        patch.setattr(llama.network, "forward", full)
        with pytest.raises(ModelError, match="out of memory on a text of 2 tokens"):
            ask(llama, ScoreRequest((2, 3)))
    assert ask(llama, ScoreRequest((2, 3)))


def refused(name: str | Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        TransformersModel.load(name)
    return caught.value


def test_folders_that_are_no_model(llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is neither the folder of a model nor a .gguf file" in refused(tmp_path / "absent").message
    assert "no config.json" in refused(tmp_path).message

    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    offline = refused("somebody/no-such-model")
    assert "no model of the hub of that name is on this machine" in offline.message and offline.hint

    def broken(name: str, file: str, data: bytes | None) -> ModelError:
        path = shutil.copytree(llama_folder, tmp_path / name) / file
        path.unlink() if data is None else path.write_bytes(data)
        return refused(path.parent)

    assert (
        "its weights cannot be loaded (safetensors and GGUF are read)"
        in broken("bare", "model.safetensors", None).message
    )
    assert "weights cannot be loaded" in broken("torn", "model.safetensors", b"?").message
    assert "config.json" in broken("words", "config.json", b"{").message
    assert "tokenizer" in broken("mute", "tokenizer.json", None).message
    for setting, value, sentences in (
        ("model_type", "no-such-architecture", ("config.json", "no-such-architecture")),
        ("num_hidden_layers", 4, ("its weights lack", "model.layers.3")),
        ("architectures", ["LlamaModel"], ("not a causal language model, but LlamaModel",)),
    ):
        error = refused(changed(llama_folder, tmp_path / setting, "config.json", **{setting: value}))
        assert all(each in error.message for each in sentences)


def test_a_model_that_reads_both_ways_is_refused(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=320, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    save(tmp_path, config, transformers.BertForMaskedLM)
    assert "not a causal language model, but BertForMaskedLM" in refused(tmp_path).message


def test_code_that_comes_with_a_model_is_not_run(llama_folder: Path, tmp_path: Path) -> None:
    classes = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
    copy = changed(llama_folder, tmp_path / "copy", "config.json", model_type="own", auto_map=classes)
    (copy / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Own: pass\n")
    assert "config.json cannot be used" in refused(copy).message
    assert not (tmp_path / "ran").exists()


SILENT = """
import asyncio, logging, sys
from lmql_lite.models.base import ScoreRequest
from lmql_lite.models.transformers.scorer import TransformersModel
assert not {"torch", "transformers"} & set(sys.modules)
model = TransformersModel.load(sys.argv[1])
asyncio.run(model.score([ScoreRequest((2, 3, 4)), ScoreRequest((2, 3, 4), (5,), (0, 1)), ScoreRequest((2, 9))]))
from transformers.utils import logging as library
assert library.get_verbosity() == logging.WARNING and library.is_progress_bar_enabled()
try:
    TransformersModel.load(sys.argv[1] + "-absent")
except Exception:
    pass
"""


def test_nothing_is_printed(llama_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SILENT, str(llama_folder)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("door", ["python", "lq run"])
def test_nothing_is_printed_while_a_gguf_file_is_converted(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = pytest.importorskip("tests.servers.gguf", reason="needs gguf").convert
    convert(asset("demo/model", "config.json").parent, tmp_path / "demo.gguf")
    monkeypatch.setenv("LMQL_LITE_HOME", str(tmp_path / "home"))
    model = f"local:{tmp_path / 'demo.gguf'}"
    code = f"import lmql_lite as lq; lq.model({model!r})"
    run = ["-m", "lmql_lite", "run", "-e", '"Say:[X]" where len(TOKENS(X)) < 2', "--model", model]
    command = ["-c", code] if door == "python" else run
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / "home" / "models").glob("demo-*/config.json"))
