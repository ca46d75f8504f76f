"""The demo model: the same numbers as transformers, and the same bits however it is asked."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lmql_lite.assets import asset
from lmql_lite.errors import ModelError
from lmql_lite.models import demo
from lmql_lite.models.base import ScoreRequest
from lmql_lite.models.demo import DemoModel

FOLDER = asset("demo/model", "config.json").parent
SEA = "A list of things not to forget when going to the sea (not travelling): \n- Sunglasses \n-"
PROMPTS = (
    SEA,
    "A good dad joke. A indicates the punchline\nQ:",
    "Q: When did the first moon landing take place?\nA:",
    "Ada is 36 years old and lives in London.\nAs JSON:",
    "Q: A box holds 12 eggs. How many eggs are in 7 boxes?\nLet's calculate: <<",
)


@pytest.fixture
def model() -> DemoModel:
    return DemoModel.load()


def score(model: DemoModel, *requests: ScoreRequest) -> list[list[NDArray[np.float32]]]:
    return asyncio.run(model.score(requests))


def ids_of(model: DemoModel, text: str) -> tuple[int, ...]:
    return (*model.tokenizer.bos, *model.tokenizer.encode(text.encode()))


def greedy(model: DemoModel, ids: tuple[int, ...], count: int) -> list[int]:
    start = len(ids)
    while len(ids) < start + count and ids[-1] not in model.tokenizer.eos:
        ids += (int(score(model, ScoreRequest(ids))[0][0].argmax()),)
    return list(ids[start:])


def random_ids(seed: int, count: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return (0, *(rng.randrange(2, 1500) for _ in range(count - 1)))


def test_same_logits_and_same_text_as_transformers(model: DemoModel) -> None:
    torch = pytest.importorskip("torch", reason="compares with transformers, which needs torch")
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    transformers.utils.logging.disable_progress_bar()
    reference = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    for ids in (random_ids(0, 200), ids_of(model, SEA + " Sunscreen \n- Beach towel \n- Hat \n" * 20)[:200]):
        with torch.no_grad():
            expected = reference(torch.tensor([ids])).logits[0].double().numpy()
        # the reference rounds to float32 in between, on every processor in its own way: 2e-5 to 1.1e-4 were seen
        assert np.abs(model.logits(ids) - expected).max() < 5e-4
    for prompt in PROMPTS:
        ids = ids_of(model, prompt)
        made = reference.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False)[0, len(ids) :].tolist()
        assert greedy(model, ids, 40) == made


def test_alone_in_a_batch_and_with_remembered_keys_the_bits_are_equal(model: DemoModel) -> None:
    requests = [ScoreRequest(ids_of(model, prompt)) for prompt in PROMPTS]
    requests += [ScoreRequest(random_ids(seed, 10 + 23 * seed)) for seed in range(1, 8)]
    alone = [score(DemoModel.load(), request)[0][0] for request in requests]
    for _ in range(2):  # the second time everything is remembered
        for row, expected in zip(score(model, *requests), alone, strict=True):
            assert np.array_equal(row[0], expected)
    step_by_step = DemoModel.load()
    ids = requests[-1].prefix
    at_once = score(DemoModel.load(), ScoreRequest((), ids, tuple(range(1, len(ids) + 1))))[0]
    twice = score(model, ScoreRequest(ids[:9], ids[9:], (0, 3, 8, 3)))[0]
    assert all(np.array_equal(row, at_once[8 + place]) for row, place in zip(twice, (0, 3, 8, 3), strict=True))
    for length in range(1, len(ids) + 1):
        assert np.array_equal(score(step_by_step, ScoreRequest(ids[:length]))[0][0], at_once[length - 1])


def test_any_history_gives_the_same_bits(model: DemoModel) -> None:
    """Branching, shortened and forgotten sequences: more of them than are remembered."""
    rng = random.Random(3)
    fresh: dict[tuple[int, ...], NDArray[np.float32]] = {}
    trunk = random_ids(5, 40)
    for _ in range(12):
        batch = []
        for _ in range(rng.randrange(1, 15)):
            tail = tuple(rng.randrange(2, 6) for _ in range(rng.randrange(3)))
            batch.append(ScoreRequest(trunk[: rng.randrange(1, 40)], tail, (len(tail),)))
        for request, row in zip(batch, score(model, *batch), strict=True):
            ids = request.prefix + request.new_ids
            if ids not in fresh:
                fresh[ids] = score(DemoModel.load(), ScoreRequest(ids))[0][0]
            assert np.array_equal(row[0], fresh[ids])


def test_a_shared_beginning_is_computed_once(model: DemoModel) -> None:
    shared = random_ids(9, 100)
    score(model, *(ScoreRequest(shared, (number,), (1,)) for number in range(2, 8)))
    assert model.forward_passes == 2
    score(model, *(ScoreRequest((*shared, number), (9,), (0, 1)) for number in range(2, 8)))
    assert model.forward_passes == 3


def test_sums_are_exact(model: DemoModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the equal bits rest on: weights lie on the grid, and no sum can come near the limit of float64."""
    largest: dict[tuple[int, int], float] = {}
    longest = [0.0]

    def measured(x: NDArray[np.float64], bits: int) -> NDArray[np.float64]:
        key = bits, x.shape[-1]
        largest[key] = max(largest.get(key, 0.0), float(np.abs(x).max()))
        if key == (demo._VALUE_BITS, 48):  # queries, keys and values of one head
            longest[0] = max(longest[0], float(np.linalg.norm(x, axis=-1).max()))
        return grid(x, bits)

    grid = demo._grid
    monkeypatch.setattr(demo, "_grid", measured)
    for ids in (random_ids(4, 512), *(ids_of(model, prompt) for prompt in PROMPTS)):
        model.logits(ids)

    matrices = [(model._embedding.T, demo._VALUE_BITS)]
    for layer in model._layers:
        matrices += [(matrix, demo._VALUE_BITS) for matrix in (layer.qkv, layer.output, layer.gate_up)]
        matrices += [(layer.down, demo._GATED_BITS)]
    for matrix, bits in matrices:
        assert np.array_equal(matrix * 2.0**demo._WEIGHT_BITS, np.rint(matrix * 2.0**demo._WEIGHT_BITS))
        possible = np.abs(matrix).sum(axis=0).max() * largest[bits, matrix.shape[0]]
        assert possible < 2.0 ** (53 - bits - demo._WEIGHT_BITS)
    assert largest[demo._VALUE_BITS, 48] < 2.0 ** (53 - demo._VALUE_BITS - demo._SHARE_BITS)
    assert longest[0] ** 2 < 2.0 ** (53 - 2 * demo._VALUE_BITS)  # sum |q k| is at most |q| |k|
    assert 192 * largest[demo._SQUARE_BITS, 192] < 2.0 ** (53 - demo._SQUARE_BITS)


def test_too_long_a_text_is_refused(model: DemoModel) -> None:
    assert model.context_length == 512
    score(model, ScoreRequest(random_ids(0, 512)))
    with pytest.raises(ModelError, match="the text is 513 tokens long, but the demo model reads at most 512"):
        score(model, ScoreRequest(random_ids(0, 513)))


def test_impossible_positions_are_refused(model: DemoModel) -> None:
    with pytest.raises(ModelError, match="are not within the 1 new tokens"):
        score(model, ScoreRequest((0,), (5,), (2,)))
    with pytest.raises(ModelError, match="before the first token"):
        score(model, ScoreRequest(()))
    assert score(model) == []
    assert score(model, ScoreRequest((0, 5), (), ())) == [[]]


def test_the_fingerprint_follows_every_file_and_a_missing_or_torn_folder_is_named(
    model: DemoModel, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        DemoModel.load(tmp_path)
    copy = shutil.copytree(FOLDER, tmp_path / "copy")
    assert DemoModel.load(copy).fingerprint == model.fingerprint
    config, weights = copy / "config.json", copy / "model.safetensors"
    config.write_text(config.read_text() + " ")
    assert DemoModel.load(copy).fingerprint != model.fingerprint
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cannot be read"):
        DemoModel.load(copy)


def test_the_folder_is_small_and_has_its_card() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*")) <= 8 * 2**20
    assert "apache-2.0" in (FOLDER / "README.md").read_text(encoding="utf-8").lower()
