"""What the README and the pages show is true: queries compile, Python runs, options exist, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import lmql_lite as lq
from lmql_lite.apps.cli import lq as command

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = PAGES[0].read_text("utf-8")
TEXTS = "\n".join(page.read_text("utf-8") for page in PAGES)


def fences(language: str, text: str = README) -> list[str]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [inside for kind, inside in found if kind == language]


@pytest.mark.parametrize(
    "source", dict.fromkeys(fences("lq", TEXTS)), ids=lambda source: source.splitlines()[0].removeprefix("# ")
)
def test_every_query_runs_on_the_demo_model(source: str) -> None:
    query = lq.compile(source)
    found = query.run_sync({"weather": "rainy"} if "weather" in query.inputs else {})
    assert all(result.prompt for result in (found if isinstance(found, list) else [found]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_first_query_is_the_first_example() -> None:
    example = (ROOT / "examples" / "01_packing_list.lq").read_text("utf-8")
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
