"""Passes of rows against a network's own pass, and the bits of exact passes, on eight architectures (S5)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")

from lmql_lite.models import pass_probe  # noqa: E402
from lmql_lite.models.exact_step import exact_step  # noqa: E402
from lmql_lite.models.packed_rows import PackedRows, ScoreJob  # noqa: E402
from lmql_lite.models.pass_probe import can_pack, noise  # noqa: E402
from lmql_lite.models.single_rows import SingleRows  # noqa: E402
from tests.cache.kv.tiny_models import CONFIGS, RECURRENT, tiny  # noqa: E402

LENGTH = 300
"""Longer than a page, so that its border is crossed."""


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
    rows.live.clear()
    run(rows, (ids[: LENGTH - 10], (LENGTH - 10,)))
    found["steps"] = torch.cat([run(rows, (ids[:end], (end,)))[0] for end in ends])
    rows.live.clear()
    others = [text(seed, 20 + 90 * seed) for seed in range(1, 4)]
    run(rows, (ids[: LENGTH - 10], (LENGTH - 10,)), *((other, (len(other),)) for other in others))
    steps = []
    for step, end in enumerate(ends, 1):
        grown = [((*other, *(9,) * step), (len(other) + step,)) for other in others]
        steps.append(run(rows, grown[0], (ids[:end], (end,)), *grown[1:])[1])
    found["batches"] = torch.cat(steps)
    rows.live.clear()
    run(rows, (ids[:250], (250,)))
    branches = [((*ids[:at], 3, 4, 5), (at + 3,)) for at in (LENGTH - 8, LENGTH - 5, 251, LENGTH - 2)]
    found["trees"] = run(rows, *branches, (ids, ends))[-1]
    return found


@pytest.mark.parametrize("kind", CONFIGS)
def test_rows_score_as_the_networks_own_pass(kind: str) -> None:
    network, ids = tiny(kind), text(11, LENGTH)
    assert can_pack(network) == (256, True)
    expected = own(network, ids)[-10:]
    for way, logits in in_four_ways(PackedRows(network, 1 << 30), ids).items():
        assert (logits - expected).abs().max() < 1e-4, way


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_exact_passes_give_the_same_bits_in_every_way(kind: str, dtype: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("LMQL_LITE_HOME", str(tmp_path))
    network = copy.deepcopy(tiny(kind)).to(getattr(torch, dtype))
    rows, ids = PackedRows(network, 1 << 30, step=exact_step(network)), text(12, LENGTH)
    found = noise(rows, network, kind)
    rows.forget()
    (whole,) = run(rows, (ids, range(LENGTH - 9, LENGTH + 1)))
    rows.forget()
    if found:  # Conv1D of GPT-2 in bfloat16, on processors without instructions for it: then the probe says so
        assert (kind[:4], dtype) == ("gpt2", "bfloat16")
        return
    for way, logits in in_four_ways(rows, ids).items():
        assert torch.equal(logits, whole), (way, (logits - whole).abs().max())


@pytest.mark.parametrize("kind", [*CONFIGS, *RECURRENT])
def test_the_probe_finds_the_noise_of_passes_that_are_not_exact(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("LMQL_LITE_HOME", str(tmp_path))
    monkeypatch.setattr(pass_probe, "_LONG", 600.0)
    network = tiny(kind)
    rows = PackedRows(network, 1 << 30) if kind in CONFIGS else SingleRows(network, 512)
    found = noise(rows, network, kind)
    assert 0 < found < 1e-3
    assert not (tmp_path / "probes").exists()  # it did not take long


def test_a_probe_that_took_long_is_remembered_for_its_model(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("LMQL_LITE_HOME", str(tmp_path))
    monkeypatch.setattr(pass_probe, "_LONG", 0.0)
    network = tiny("llama")
    found = noise(PackedRows(network, 1 << 30), network, "one")
    again, other = PackedRows(network, 1 << 30), PackedRows(network, 1 << 30)
    assert noise(again, network, "one") == found and again.passes == 0
    assert noise(other, network, "another") == found and other.passes > 0
    assert noise(PackedRows(network, 1 << 30, step=exact_step(network)), network, "one") == 0


def test_keys_that_come_from_a_tier_give_the_same_bits() -> None:
    from lmql_lite.models.kv_rows import KVSequence

    network = tiny("qwen2, grouped queries")
    rows, ids = PackedRows(network, 1 << 30, step=exact_step(network)), text(13, LENGTH)
    (whole,) = run(rows, (ids, (LENGTH - 3, LENGTH)))
    kv = tuple((keys.clone(), values.clone()) for keys, values in rows.live.all[0].kv.kv())
    rows.live.clear()
    rows.live.put(ids[:280], KVSequence.of(kv, 280))
    fed = rows.fed
    assert torch.equal(run(rows, (ids, (LENGTH - 3, LENGTH)))[0], whole) and rows.fed - fed == 20


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_token_of_a_recurrent_network_costs_a_token(kind: str) -> None:
    network, ids = tiny(kind), text(14, 60)
    assert can_pack(network)[1] is False
    rows = SingleRows(network, 1 << 20)
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
