"""The example with a picture: a tiny random model answers within its conditions, and sees the picture once."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lmql_lite.models.registry import is_known
from tests.models.tiny_multimodal import qwen2_vl

EXAMPLE = Path(__file__).parent.parent / "examples" / "16_picture"
TEMPLATE = """{% for message in messages %}{{ message.role + ': ' + message.content + '</s>' }}{% endfor %}\
{% if add_generation_prompt %}assistant: {% endif %}"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = qwen2_vl(tmp_path_factory.mktemp("model"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def run(folder: Path, model: Path, *more: str) -> dict[str, object]:
    root = str(EXAMPLE.parent.parent)
    environment = os.environ | {"PYTHONPATH": root, "LMCACHE_EC_LOCAL_DISK": "encoder"}
    command = [sys.executable, "-m", "lmql_lite", "run", "receipt.lq", "--model", f"local:{model}", *more]
    command += ["--var", "picture=receipt.png", "--json"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_its_answers_are_of_their_types_and_another_process_encodes_nothing(model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "example"))
    first = run(folder, model, "--cache", "receipt.tokens")
    value = first["value"]
    assert isinstance(value, dict) and isinstance(value["total"], float) and value["total"] >= 0
    assert value["paid"] in ("in cash", "by card", "later")
    (entry,) = (folder / "encoder").glob("*.pt")
    written = entry.stat().st_mtime_ns, entry.stat().st_ino
    assert run(folder, model)["value"] == value
    assert [(path.stat().st_mtime_ns, path.stat().st_ino) for path in (folder / "encoder").glob("*.pt")] == [written]
    replayed = run(folder, model, "--cache", "receipt.tokens", "--cache-mode", "replay")
    usage = replayed["usage"]
    assert replayed["value"] == value and isinstance(usage, dict) and usage["forward_passes"] == 0
    stored = (folder / "receipt.tokens").read_bytes()
    picture = (folder / "receipt.png").read_bytes()
    assert not any(picture[at : at + 24] in stored for at in range(0, len(picture) - 24, 8))


def test_its_text_names_a_model_that_can_be_loaded_by_id() -> None:
    for text in ((EXAMPLE / name).read_text("utf-8") for name in ("receipt.lq", "README.md")):
        named = re.findall(r"--model (\S+)", text)
        assert named and all(is_known(name) for name in named)
