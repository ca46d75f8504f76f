"""The example with a recording: its own tests pass, a second process asks the model for nothing, its README is true."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lmql_lite as lq
from lmql_lite.cache.tokens.inspect import read_file
from lmql_lite.models.demo import DemoModel

EXAMPLE = Path(__file__).parent.parent / "examples" / "13_recorded"
ANEW = "lq run joke.lq --cache joke.tokens"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The example somewhere else: whoever opens a recording has SQLite's own files beside it for a while."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "example", ignore=shutil.ignore_patterns("__pycache__")))


def process(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(EXAMPLE.parent.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_the_recording_is_of_the_model_that_ships(copied: Path) -> None:
    (model,) = read_file(copied / "joke.tokens").models
    assert model.fingerprint == DemoModel.load().fingerprint, f"record it anew, in {EXAMPLE}: {ANEW}"


def test_a_second_process_replays_it_without_the_model_and_leaves_it_as_it_is(copied: Path) -> None:
    before = (copied / "joke.tokens").read_bytes()
    command = ["lmql_lite", "run", "joke.lq", "--cache", "joke.tokens", "--cache-mode", "replay", "--json"]
    done = process(*command, folder=copied)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["value"] == {"question": "Why did the bicycle fall over?", "answer": "Because it was two tired."}
    assert told["usage"]["forward_passes"] == told["usage"]["tokens_from_model"] == 0
    assert (copied / "joke.tokens").read_bytes() == before


def test_it_says_what_the_model_says_without_it(copied: Path) -> None:
    replayed = lq.run_sync(copied / "joke.lq", cache=copied / "joke.tokens", cache_mode="replay")
    assert replayed.prompt == lq.run_sync(copied / "joke.lq", cache=False).prompt


def test_its_own_tests_pass_and_leave_no_file(copied: Path) -> None:
    before = sorted(copied.iterdir())
    done = process("pytest", "-q", "-p", "no:cacheprovider", "test_joke.py", folder=copied)
    assert done.returncode == 0, done.stdout
    assert sorted(copied.iterdir()) == before


def test_the_command_in_its_readme_records_it_anew(copied: Path) -> None:
    assert f"\n    {ANEW}\n" in (EXAMPLE / "README.md").read_text("utf-8")
    (recorded := copied / "joke.tokens").rename(copied / "old.tokens")
    done = process("lmql_lite", *ANEW.split()[1:], folder=copied)
    assert done.returncode == 0, done.stderr
    replayed = lq.run_sync(copied / "joke.lq", cache=recorded, cache_mode="replay")
    assert replayed.usage.forward_passes == 0
    old, new = read_file(copied / "old.tokens"), read_file(recorded)
    assert (new.count("top-k"), new.is_sound) == (old.count("top-k"), old.is_sound)
