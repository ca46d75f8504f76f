"""The connector in a real vLLM, with a tiny random LLaVA: a producer's process and a consumer's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.servers import vllm

ROOT = Path(__file__).parents[2]
ENGINE = Path(__file__).parent / "vllm_engine.py"
SECONDS = 300

pytestmark = pytest.mark.xdist_group("vllm")


@pytest.fixture(scope="module")
def python() -> str:
    """Python with vLLM and the packages of pictures."""
    if reason := vllm.missing():
        pytest.skip(reason)
    found = os.environ[vllm.VARIABLE]
    done = subprocess.run([found, "-c", "import torchvision, PIL, yaml"], capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"vLLM's environment has no torchvision: {done.stderr.strip().splitlines()[-1]}")
    return os.path.abspath(found)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random LLaVA with heads of 32, the least that vLLM's attention takes on the CPU."""
    from safetensors.torch import load_file, save_file

    from tests.models.tiny_multimodal import TEXT, llava

    folder = llava(tmp_path_factory.mktemp("models") / "llava", {**TEXT, "hidden_size": 128})
    file = folder / "model.safetensors"
    weights = load_file(file)  # vLLM knows the tower's tensors by the names of older releases
    named = {name.replace("vision_tower.", "vision_tower.vision_model."): one for name, one in weights.items()}
    save_file(named, file, {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder on the path in which the package is installed, as far as plug-ins are looked for."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "lmql_lite-0.dist-info").mkdir()
    (folder / "lmql_lite-0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: lmql-lite\nVersion: 0\n")
    points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    group = "vllm.general_plugins"
    lines = [f"[{group}]", *(f"{name} = {target}" for name, target in points[group].items())]
    (folder / "lmql_lite-0.dist-info" / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def shown(
    python: str, model: Path, paths: list[Path], transfer: dict[str, Any], pictures: list[list[Any]]
) -> tuple[list[dict[str, Any]], str]:
    """Encoder calls and tokens of each picture's request, and all that the process wrote."""
    environment = os.environ | {
        "HOME": str(model.parent),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
    command = [python, str(ENGINE), str(model), json.dumps(transfer), json.dumps(pictures)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, cwd=model.parent)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    last = [line for line in done.stdout.splitlines() if line.startswith("[{")][-1]
    return json.loads(last), done.stdout + done.stderr


def test_a_consumer_in_another_process_never_runs_the_encoder(
    python: str, model: Path, site: Path, tmp_path: Path
) -> None:
    """Statements 2, 3, 15, 17 and 20. The producer is found by its module path, the consumer by the plug-in."""
    disk = tmp_path / "ec"
    transfer = {"ec_connector": "LmqlLiteECConnector", "ec_connector_extra_config": {"local_disk": str(disk)}}
    path = {"ec_connector_module_path": "lmql_lite.integrations.vllm_ec"}
    produced, log = shown(python, model, [ROOT], {**transfer, **path, "ec_role": "ec_producer"}, [[1, "a"], [1, "a"]])
    assert [one["calls"] for one in produced] == [1, 0]
    assert len(re.findall(r"EC put: stored \d+ bytes for mm_hash=", log)) == 1
    (file,) = disk.glob("*.pt")
    assert re.fullmatch(r".+@1@0@[0-9a-f]{1,16}@float\.pt", file.name)
    before = file.stat().st_ino, file.stat().st_mtime_ns, file.read_bytes()
    pictures = [[1, "a"], [1, "the same under another name"], [2, "b"]]
    consumed, log = shown(python, model, [ROOT, site], {**transfer, "ec_role": "ec_consumer"}, pictures)
    known, encoded, other = consumed
    assert known["calls"] == 0 and len(known["tokens"]) == 4
    assert encoded["calls"] == other["calls"] == 1
    assert known["tokens"] == encoded["tokens"] != other["tokens"]
    assert [*disk.glob("*.pt")] == [file] and "EC put" not in log
    assert (file.stat().st_ino, file.stat().st_mtime_ns, file.read_bytes()) == before
