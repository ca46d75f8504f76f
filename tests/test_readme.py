"""What the README and the pages show is true: queries compile, Python runs, options exist, links lead somewhere."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
from contextlib import redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import lmql_lite as lq
from lmql_lite.apps.cli import lq as command

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
README = PAGES[0].read_text("utf-8")
TEXTS = "\n".join(page.read_text("utf-8") for page in PAGES)


def fences(language: str, text: str = README) -> list[str]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [inside for kind, inside in found if kind == language]


INPUTS = {"animal": "a trout", "place": "Rome", "weather": "rainy"}
"""Inputs of the queries on the pages."""


def with_outputs(text: str) -> list[tuple[str, str, str]]:
    """Code of a page whose next fence is its output: kind, code and output."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    pairs = pairwise(found)
    return [(kind, code, output) for (kind, code), (other, output) in pairs if kind in CODE and other == "text"]


CODE = ("lq", "python")
OUTPUTS = [(page.name, *each) for page in PAGES for each in with_outputs(page.read_text("utf-8"))]


@pytest.mark.parametrize(
    "source", dict.fromkeys(fences("lq", TEXTS)), ids=lambda source: source.splitlines()[0].removeprefix("# ")
)
def test_every_query_runs_on_the_demo_model(source: str) -> None:
    query = lq.compile(source)
    found = query.run_sync({name: INPUTS[name] for name in query.inputs})
    assert all(result.prompt for result in (found if isinstance(found, list) else [found]))


@pytest.mark.parametrize(("page", "kind", "code", "output"), OUTPUTS, ids=lambda part: part.splitlines()[0][:30])
def test_what_stands_under_code_is_its_output(
    page: str, kind: str, code: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"page.{'py' if kind == 'python' else 'lq'}"
    file.write_text(code, "utf-8")
    if kind == "python":
        with redirect_stdout(StringIO()) as out:
            exec(compile(code, str(file), "exec"), {"__name__": "page"})
        assert out.getvalue() == output
    else:
        inputs = [f"--var={name}={INPUTS[name]}" for name in lq.compile(code).inputs]
        ended = CliRunner().invoke(command, ["run", str(file), "--model", "demo", *inputs])
        assert ended.stdout == output, ended.stderr


def test_the_pages_have_outputs() -> None:
    assert len(OUTPUTS) > 5 and {kind for _, kind, _, _ in OUTPUTS} == set(CODE)


def test_the_first_command_prints_what_stands_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    ended = CliRunner().invoke(command, ["run", "examples/01_packing_list.lq", "--model", "demo"])
    assert "".join(f"    {line}\n" for line in ended.stdout.splitlines()) in README


def test_the_data_set_has_the_scores_that_stand_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [line] = [line for line in README.splitlines() if line.startswith("lq eval ")]
    shutil.copytree(ROOT / "examples" / "17_evaluation", tmp_path / "examples" / "17_evaluation")
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(command, shlex.split(line)[1:])
    assert f"{line}\n```\n\n```text\n{ended.stdout}```\n" in README


def test_the_mistake_is_reported_as_it_stands_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [source] = [each for each in fences("lq") if each.startswith("# choose.lq")]
    Path("choose.lq").write_text(source.replace("where KIND", "where KIN"), "utf-8")
    report = CliRunner().invoke(command, ["check", "choose.lq"]).stdout
    assert "".join(f"    {line}\n" for line in report.splitlines()) in README


KINDS = {
    "fish": "salmon trout shark tuna herring carp cod eel",
    "bird": "penguin eagle owl duck robin parrot swan raven sparrow chicken",
    "mammal": "dog cat whale horse bat mouse elephant dolphin lion rabbit",
}
"""The animals of demo/corpus/choices.py."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_readers_own_variation_of_the_first_query_with_an_input_is_answered_right(kind: str) -> None:
    [source] = [each for each in fences("lq") if each.startswith("# choose.lq")]
    animals = [f"{'an' if name[0] in 'aeiou' else 'a'} {name}" for name in KINDS[kind].split()]
    found = {animal: lq.run_sync(source, {"animal": animal}, model="demo")["KIND"] for animal in animals}
    assert found == dict.fromkeys(animals, f" {kind}")


def test_the_number_of_animals_that_it_knows_is_said() -> None:
    assert f"`demo` knows {len(' '.join(KINDS.values()).split())} animals" in README


def test_a_real_model_is_named_within_the_first_thirty_lines() -> None:
    assert "ollama/" in "\n".join(README.splitlines()[:30])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8"))
    own = [link for link in links if not link.startswith("https://")]
    assert [link for link in own if not (page.parent / link).exists()] == []


def test_the_first_fifteen_lines_have_the_command_and_a_program_with_its_output(tmp_path: Path) -> None:
    top = "\n".join(README.splitlines()[:15])
    [code] = fences("python", top + "\n")
    assert len(fences("sh", top + "\n")) == 1 and len(code.splitlines()) <= 8
    with redirect_stdout(StringIO()) as out:
        exec(compile(code, "top.py", "exec"), {"__name__": "top"})
    assert code.splitlines()[-1].endswith(f"  # {out.getvalue().rstrip()}")


def test_the_chart_shows_what_was_measured() -> None:
    chart = runpy.run_path(str(ROOT / "benchmarks" / "chart.py"))
    groups = chart["measured"]((ROOT / "benchmarks" / "RESULTS.md").read_text("utf-8"))
    assert chart["CHART"].read_text("utf-8") == chart["drawn"](groups)
    assert chart["CHART"].name in README
    assert all(bars[0].tool == "lmql_lite" and len(bars) > 4 for bars in groups.values())


def test_no_peer_but_the_one_named_needs_fewer_passes_and_no_condition_of_ours_is_broken() -> None:
    """Cells of the table that `python -m benchmarks` writes: passes, tokens, times, and whether the conditions held."""
    table = (ROOT / "benchmarks" / "RESULTS.md").read_text("utf-8").partition("## Beside")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if " · held" in line]
    (tools,) = [line.strip("|").split("|")[1:] for line in table.splitlines() if line.startswith("| task |")]
    assert rows
    fewer = list[str]()
    for task, *cells in rows:
        ours = cells[0]
        assert ours.endswith(" · held"), task
        fewer += [
            f"{task}: {tool.split()[0]} {counts(cell)}, ours {counts(ours)}"
            for tool, cell in zip(tools, cells, strict=True)
            if cell[0].isdigit() and passes(cell) < passes(ours)
        ]
    assert len(fewer) == 1
    found = re.fullmatch(r"few-shot labels of 200 rows: vllm (\S+) · (\S+), ours (\S+) · (\S+)", fewer[0])
    assert found is not None, fewer
    theirs, fed, ours, ours_fed = found.groups()
    assert f"vLLM, which labels 200 rows in {theirs} passes over\n{fed} tokens, where lmql_lite takes {ours}" in README
    assert f"lmql_lite takes {ours} over {ours_fed} (" in README


def counts(cell: str) -> str:
    return " · ".join(cell.split(" · ")[:2])


def passes(cell: str) -> int:
    return int(cell.split(" · ")[0].replace(",", ""))


def test_the_python_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, text in enumerate(fences("python")):
        file = tmp_path / f"page_{number}.py"
        file.write_text(text, "utf-8")  # a file: @query reads its query from the source
        exec(compile(text, str(file), "exec"), {"__name__": f"page_{number}"})


def test_the_web_application_answers_streams_and_takes_text_literally(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="needs fastapi")
    testing = pytest.importorskip("starlette.testclient", reason="needs httpx")
    [text] = fences("python", (ROOT / "docs" / "fastapi.md").read_text("utf-8"))
    file = tmp_path / "app.py"
    file.write_text(text, "utf-8")
    names: dict[str, Any] = {"__name__": "app"}
    exec(compile(text, str(file), "exec"), names)
    try:
        with testing.TestClient(names["app"]) as client:
            assert client.get("/kind/trout").json() == {"kind": "fish"}
            assert client.get("/stream/Rome").text == "Things to pack for Rome:\n- Passport\n"
            assert client.get("/stream/[X] {{:system}}").text.startswith("Things to pack for [X] {{:system}}:\n-")
    finally:
        lq.configure(model=None)


COMMAND_LINE = (ROOT / "docs" / "command-line.md").read_text("utf-8")


def test_every_option_of_the_command_line_is_named() -> None:
    assert isinstance(command, click.Group)
    context = click.Context(command)
    run = command.get_command(context, "run")
    assert run is not None
    for parameter in run.params:
        if isinstance(parameter, click.Option):
            assert any(option in COMMAND_LINE for option in parameter.opts), parameter.opts
    assert set(command.list_commands(context)) == set(re.findall(r"^lq (\w+)", COMMAND_LINE, re.MULTILINE))
