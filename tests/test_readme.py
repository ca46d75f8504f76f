"""What the README shows is true: its queries compile, its Python runs, its commands and options exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import lmql_lite as lq
from lmql_lite.apps.cli import lq as command

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
FENCES = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def fences(language: str) -> list[str]:
    return [text for kind, text in FENCES if kind == language]


@pytest.mark.parametrize("source", fences("lq"), ids=lambda source: source.splitlines()[0])
def test_every_query_runs_on_the_demo_model(source: str) -> None:
    query = lq.compile(source)
    result = query.run_sync({"weather": "rainy"} if "weather" in query.inputs else {})
    assert result.prompt


def test_the_first_query_is_the_first_example() -> None:
    example = (Path(__file__).parent.parent / "examples" / "01_packing_list.lq").read_text("utf-8")
    assert fences("lq")[0].splitlines()[1:] == example.splitlines()[1:]


def test_the_python_runs_as_it_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, text in enumerate(fences("python")):
        file = tmp_path / f"readme_{number}.py"
        file.write_text(text, "utf-8")  # a file: @query reads its query from the source
        exec(compile(text, str(file), "exec"), {"__name__": f"readme_{number}"})
    assert "this is a test" in capsys.readouterr().out.lower()


def test_every_option_of_the_command_line_is_named() -> None:
    assert isinstance(command, click.Group)
    run = command.commands["run"]
    for parameter in run.params:
        if isinstance(parameter, click.Option):
            assert any(option in README for option in parameter.opts), parameter.opts
    assert set(command.commands) == set(re.findall(r"^lq (\w+)", README, re.MULTILINE))
