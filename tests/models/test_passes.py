"""Passes of rows against a network's own pass, and the bits of exact passes, on eight architectures (S5)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")

from lmql_lite.models import model_files  # noqa: E402
from lmql_lite.models.live import ScoreJob  # noqa: E402
from lmql_lite.models.transformers.exactness import facts_of  # noqa: E402
from lmql_lite.models.transformers.rows import PackedRows, SingleRows, cache_kind  # noqa: E402
from tests.cache.kv.tiny_models import CONFIGS, RECURRENT, tiny  # noqa: E402

LENGTH = 300
"""Longer than a page, so that its border is crossed."""


@pytest.fixture(autouse=True)
def probed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMQL_LITE_HOME", str(tmp_path / "home"))


def text(seed: int, count: int) -> tuple[int, ...]:
    return tuple(int(each) for each in np.random.default_rng(seed).integers(2, 250, count))


@torch.inference_mode()
def run(rows: PackedRows | SingleRows, *asked: tuple[Sequence[int], Sequence[int]]) -> list[Any]:
    jobs = [ScoreJob(tuple(ids), tuple(ends)) for ids, ends in asked]
    rows.run(jobs)
    return [torch.stack([job.rows[end] for end in job.ends]) for job in jobs]


@torch.inference_mode()
def own(network: Any, ids: Sequence[int]) -> Any:
    return network(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def in_four_ways(rows: PackedRows, ids: tuple[int, ...]) -> dict[str, Any]:
    """Logits of the last ten places: in chunks, step by step, in a batch with others, and in a tree of branches."""
    ends, found = range(LENGTH - 9, LENGTH + 1), {}
    for end in (7, 60, 255):  # behind 7, layers with a window and without one begin with the same key
        run(rows, (ids[:end], (end,)))
    (found["chunks"],) = run(rows, (ids, ends))
    rows.live.all.clear()
    run(rows, (ids[: LENGTH - 10], (LENGTH - 10,)))
    found["steps"] = torch.cat([run(rows, (ids[:end], (end,)))[0] for end in ends])
    rows.live.all.clear()
    others = [text(seed, 20 + 90 * seed) for seed in range(1, 4)]
    run(rows, (ids[: LENGTH - 10], (LENGTH - 10,)), *((other, (len(other),)) for other in others))
    steps = []
    for step, end in enumerate(ends, 1):
        grown = [((*other, *(9,) * step), (len(other) + step,)) for other in others]
        steps.append(run(rows, grown[0], (ids[:end], (end,)), *grown[1:])[1])
    found["batches"] = torch.cat(steps)
    rows.live.all.clear()
    run(rows, (ids[:250], (250,)))
    branches = [((*ids[:at], 3, 4, 5), (at + 3,)) for at in (LENGTH - 8, LENGTH - 5, 251, LENGTH - 2)]
    found["trees"] = run(rows, *branches, (ids, ends))[-1]
    return found


@pytest.mark.parametrize("kind", CONFIGS)
def test_rows_score_as_the_networks_own_pass(kind: str) -> None:
    network, ids = tiny(kind), text(11, LENGTH)
    facts = facts_of(network, kind, exact=False)
    assert (facts.width, facts.is_fed_rows, facts.step) == (256, True, 0) and 0 < facts.noise < 1e-3
    expected = own(network, ids)[-10:]
    for way, logits in in_four_ways(PackedRows(network, 1 << 30), ids).items():
        assert (logits - expected).abs().max() < 1e-4, way


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_exact_passes_give_the_same_bits_in_every_way(kind: str, dtype: str) -> None:
    network = copy.deepcopy(tiny(kind)).to(getattr(torch, dtype))
    facts = facts_of(network, kind, exact=True)
    rows, ids = PackedRows(network, 1 << 30, step=facts.step), text(12, LENGTH)
    (whole,) = run(rows, (ids, range(LENGTH - 9, LENGTH + 1)))
    rows.forget()
    if not facts.step:  # Conv1D of GPT-2 in bfloat16, on processors without instructions for it: then the probe says so
        assert (kind[:4], dtype) == ("gpt2", "bfloat16")
        return
    for way, logits in in_four_ways(rows, ids).items():
        assert torch.equal(logits, whole), (way, (logits - whole).abs().max())


@pytest.mark.parametrize("kind", RECURRENT)
def test_the_probe_finds_what_recurrent_networks_can(kind: str) -> None:
    facts = facts_of(tiny(kind), kind, exact=True)
    assert (facts.is_fed_rows, facts.kind, facts.step) == (False, "state", 0) and 0 <= facts.noise < 1e-3


def test_a_probe_that_took_long_is_remembered_for_its_model(tmp_path: Path, monkeypatch: Any) -> None:
    network, place = tiny("llama"), tmp_path / "home" / "findings.json"
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


def test_keys_that_come_from_a_tier_give_the_same_bits() -> None:
    from lmql_lite.models.transformers.passes import KVSequence

    network = tiny("qwen2, grouped queries")
    step = facts_of(network, "of a tier", exact=True).step
    rows, ids = PackedRows(network, 1 << 30, step=step), text(13, LENGTH)
    (whole,) = run(rows, (ids, (LENGTH - 3, LENGTH)))
    kv = tuple((keys.clone(), values.clone()) for keys, values in rows.live.all[0].state.kv())
    rows.live.all.clear()
    rows.live.put(ids[:280], KVSequence.of(kv, 280))
    fed = rows.fed
    assert torch.equal(run(rows, (ids, (LENGTH - 3, LENGTH)))[0], whole) and rows.fed - fed == 20


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_token_of_a_recurrent_network_costs_a_token(kind: str) -> None:
    network, ids = tiny(kind), text(14, 60)
    rows = SingleRows(network, cache_kind(network))
    assert rows.kind == "state"
    expected = own(network, ids)
    for end in range(20, 61):
        (logits,) = run(rows, (ids[:end], (end,)))
        assert (logits[0] - expected[end - 1]).abs().max() < 1e-3
    assert rows.fed == 60
    wrong = (*ids[:60], 7, 8)
    run(rows, (wrong, (60, 61, 62)))  # a draft of two tokens that turn out wrong
    right = (*ids[:60], 9)
    assert (run(rows, (right, (61,)))[0][0] - own(network, right)[60]).abs().max() < 1e-3
    assert rows.fed <= 60 + 60 + 2 + 1
