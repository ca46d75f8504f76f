"""Connector for vLLM, on stubs of its modules. Numbers are those of the statements in the reference section 2.1."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'lmql-lite[local]'")

MODULE = "lmql_lite.integrations.vllm_ec"
BASE = "vllm.distributed.ec_transfer.ec_connector.base"


class StubBase:
    """vLLM's own base class, as far as a connector sees it (0.32)."""

    def __init__(self, vllm_config: Any, role: Any) -> None:
        if vllm_config.ec_transfer_config is None:
            raise ValueError("ec_transfer_config must be set for ECConnectorBase")
        self._connector_metadata: Any = None
        self.role = role

    def bind_connector_metadata(self, metadata: Any) -> None:
        self._connector_metadata = metadata


Connector = Callable[..., Any]


@pytest.fixture
def connector(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Connector]:
    """Connectors of one role each, of engines whose entries are in one folder."""
    names = [
        "vllm",
        "vllm.distributed",
        "vllm.distributed.ec_transfer",
        BASE.rpartition(".")[0],
        BASE,
        "vllm.platforms",
    ]
    modules: dict[str, Any] = {name: ModuleType(name) for name in names}
    modules[BASE].ECConnectorBase, modules[BASE].ECConnectorMetadata = StubBase, object
    modules["vllm.platforms"].current_platform = SimpleNamespace(device_type="cpu")
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    kind = importlib.import_module(MODULE).LmqlLiteECConnector
    made = []

    def make(ec_role: str = "ec_both", engine: str = "one", **extra: Any) -> Any:
        extra = {"local_disk": str(tmp_path / "ec"), **extra}
        transfer = SimpleNamespace(ec_role=ec_role, engine_id=engine, ec_connector_extra_config=extra)
        model = SimpleNamespace(model="org/model", dtype=torch.bfloat16)
        made.append(kind(SimpleNamespace(ec_transfer_config=transfer, model_config=model), "worker"))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()
    sys.modules.pop(MODULE, None)


def request(*hashes: str) -> Any:
    return SimpleNamespace(mm_features=[SimpleNamespace(identifier=one) for one in hashes])


def output(seed: int = 0) -> Any:
    return torch.randn((5, 8), generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def test_statement_2_a_producer_saves_what_there_is(connector: Connector, tmp_path: Path) -> None:
    producer = connector("ec_producer")
    producer.save_caches({"a": output()}, "a")
    producer.save_caches({"a": output()}, "b")
    assert len(list((tmp_path / "ec").glob("org%2Fmodel@1@0@*@bfloat16.pt"))) == 1
    assert not producer.has_cache_item("a")  # what a producer is asked for is encoded


def test_statement_3_a_consumer_writes_nothing(connector: Connector, tmp_path: Path) -> None:
    consumer = connector("ec_consumer")
    consumer.save_caches({"a": output()}, "a")
    assert not (tmp_path / "ec").exists() and not consumer.has_cache_item("a")


@pytest.mark.parametrize("old", [False, True], ids=["mm_features", "mm_hashes"])
def test_statement_20_from_a_producer_to_a_consumer(connector: Connector, old: bool) -> None:
    connector("ec_producer", "one").save_caches({"a": output(1), "b": output(2)}, "b")
    connector("ec_producer", "one").save_caches({"a": output(1), "b": output(2)}, "a")
    scheduler, worker = connector("ec_consumer", "two"), connector("ec_consumer", "three")
    asked = SimpleNamespace(mm_hashes=["b", "new", "a"]) if old else request("b", "new", "a")
    assert scheduler.has_caches(asked) == [True, False, True]
    for index in range(3):
        scheduler.update_state_after_alloc(asked, index)
    meta = scheduler.build_connector_meta(None)
    assert meta.mm_hashes == ["a", "b"] and scheduler.build_connector_meta(None).mm_hashes == []
    cache = {"a": "untouched"}
    worker.bind_connector_metadata(meta)
    worker.start_load_caches(cache)
    assert cache["a"] == "untouched" and torch.equal(torch.as_tensor(cache["b"]), output(2))


def test_statement_2_a_miss_stays_absent(connector: Connector) -> None:
    worker = connector("ec_both")
    module = importlib.import_module(MODULE)
    cache: dict[str, Any] = {}
    worker.start_load_caches(cache, metadata=module.ItemsToLoad(["gone"]))
    assert cache == {}


def test_a_damaged_entry_is_not_reported_as_known(connector: Connector, tmp_path: Path) -> None:
    connector("ec_producer", "one").save_caches({"a": output()}, "a")
    (path,) = (tmp_path / "ec").glob("*.pt")
    path.write_bytes(path.read_bytes()[:-1])
    assert not connector("ec_both", "two").has_cache_item("a")


def test_scheduler_and_worker_of_one_process_share_memory(connector: Connector) -> None:
    worker, scheduler = connector(local_disk=None), connector(local_disk=None)
    worker.save_caches({"a": output()}, "a")
    assert scheduler.has_cache_item("a")


def test_statement_1_a_role_that_there_is_not(connector: Connector) -> None:
    with pytest.raises(ValueError, match="ec_role is"):
        connector("ec_other", "other")


def test_statement_19_the_role_of_the_connector_changes_nothing(connector: Connector) -> None:
    connector("ec_producer", "one").save_caches({"a": output()}, "a")
    assert connector("ec_both", "two").has_cache_item("a")


@pytest.mark.parametrize("same_process", [True, False])
def test_the_hit_rate_counts_each_item_once_and_its_misses(
    connector: Connector, same_process: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The order of calls of vLLM's scheduler and worker, for ten items of which one is known."""
    connector("ec_producer", "before").save_caches({"item 0": output()}, "item 0")
    scheduler = connector("ec_both", "scheduler")
    worker = connector("ec_both", "scheduler" if same_process else "worker")
    asked = request(*(f"item {number}" for number in range(10)))
    known = [scheduler.has_cache_item(f"item {number}") for number in range(10)]
    assert known == [True] + [False] * 9
    for number in range(10):
        scheduler.update_state_after_alloc(asked, number)
    cache: dict[str, Any] = {}
    worker.start_load_caches(cache, metadata=scheduler.build_connector_meta(None))
    assert list(cache) == ["item 0"]
    for number in range(1, 10):
        cache[f"item {number}"] = output(number)
        worker.save_caches(cache, f"item {number}")
    with caplog.at_level("INFO", "lmql_lite.cache.encoder"):
        scheduler.shutdown()
        worker.shutdown()
    assert [line for line in caplog.messages if "hit rate" in line] == ["MM cache hit rate: 10.0%"]


def test_an_item_that_is_asked_for_again_is_counted_again(connector: Connector) -> None:
    both = connector()
    both.save_caches({"a": output()}, "a")
    assert [both.has_cache_item(name) for name in ("a", "b", "a", "a")] == [True, False, True, True]
    assert both.has_caches(request("a", "b")) == [True, False]
    report = both._cache.report()
    assert (report.hits, report.misses) == (4, 2)


def test_the_name_in_configurations_for_lmcache(connector: Connector) -> None:
    connector()
    module = importlib.import_module(MODULE)
    assert module.LMCacheECConnector is module.LmqlLiteECConnector
