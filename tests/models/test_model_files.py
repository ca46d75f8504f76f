"""Models of the hub: used if they are on this machine, and never downloaded unasked."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from lmql_lite.errors import ModelError
from lmql_lite.models.model_files import downloaded, located

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's own folder of downloads, empty, on a machine without a network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def test_a_model_that_was_downloaded_is_found_with_its_commit_and_without_a_network(cache: Path) -> None:
    model = cache / "models--owner--tiny"
    snapshot = model / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    with pytest.raises(ModelError, match=r"no config\.json"):
        located("owner/tiny")
    (snapshot / "config.json").write_text("{}")
    assert located("owner/tiny") == (snapshot, COMMIT)


def test_a_model_that_is_not_here_is_not_downloaded_but_the_command_is_told() -> None:
    with pytest.raises(ModelError, match="no model of the hub of that name is on this machine") as raised:
        located("owner/tiny")
    assert raised.value.hint == "a model of the hub is downloaded once: hf download owner/tiny"


@pytest.mark.parametrize("name", ["notes.txt", "nowhere/", "none.gguf"])
def test_a_path_that_is_no_model_is_a_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(ModelError, match="is neither the folder of a model") as raised:
        located(f"{tmp_path}/{name}")
    assert raised.value.hint


def test_models_that_were_downloaded_are_listed_and_data_sets_and_halves_are_not(cache: Path) -> None:
    for folder, file in (
        ("models--owner--tiny", "config.json"),
        ("models--owner--half", "tokenizer.json"),
        ("datasets--owner--rows", "config.json"),
    ):
        snapshot = cache / folder / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        (cache / folder / "refs").mkdir()
        (cache / folder / "refs" / "main").write_text(COMMIT)
        (snapshot / file).write_text("{}")
    assert downloaded() == ("owner/tiny",)


def test_a_machine_without_downloads_has_no_models_of_the_hub(cache: Path) -> None:
    cache.rmdir()
    assert downloaded() == ()
