"""Cases beside a query, run on the page: a mark and a reason for each; and one query with each model."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.browser.conftest import ROOT, Open, Server, Tab
from tests.browser.test_beside import grid

if TYPE_CHECKING:
    from playwright.sync_api import Browser

QUERY = '"It is[SKY]," where SKY in [" rainy", " sunny"]\n"so take the[THING]." where THING in [" umbrella", " hat"]\n'
QUERY = f'"Today {{day}}: "\n{QUERY}return THING\n'
CASES = """\
[[case]]
name = "any thing"
inputs = { day = "Monday" }
assert = ["THING in (' umbrella', ' hat')", "len(SKY) == 6"]

[[case]]
name = "a boat <img src=x>"
inputs = { day = "Tuesday" }
returns = " boat"

[[case]]
name = "some seeds"
inputs = { day = "Friday" }
options = { decoder = "sample" }
seeds = 2
assert = "SKY != ''"
"""
MARKS = ["✓ passed", "✕ failed", "✓ passed", "✓ passed"]


def prepared(server: Server) -> None:
    (server.folder / "weather.lq").write_text(QUERY)
    (server.folder / "weather.cases.toml").write_text(CASES)


def opened(tab: Tab) -> None:
    tab.page.click("#examples")
    tab.page.click("#gallery button:has-text('weather.lq')")
    tab.show("runs")
    tab.page.wait_for_selector("#run-cases:not([hidden])")


def test_cases_beside_a_query_have_marks_and_reasons_as_lq_test_has_them(open_tab: Open, server: Server) -> None:
    prepared(server)
    tab = open_tab(server)
    opened(tab)
    assert tab.page.inner_text("#run-cases") == "Run the 3 cases"
    tab.page.click("#run-cases")
    tab.until("document.getElementById('cases-say').textContent.includes('passed')", seconds=40)
    tab.settle()
    assert tab.page.inner_text("#cases-say") == "2 of 3 cases passed; failed: a boat <img src=x>"
    found = [(given, cell[0]) for given, (cell, *_) in grid(tab).items()][1:]
    assert [re.findall("✓ passed|✕ failed", ended) for _, ended in found] == [[each] for each in MARKS]
    assert "case any thing" in found[0][0] and "day = Monday" in found[0][0] and "seed = 1" in found[3][0]
    (reason,) = re.findall(r"✕ failed: (.*?) · ", found[1][1])
    assert "expected ' boat'" in reason
    done = subprocess.run(
        [sys.executable, "-m", "lmql_lite", "test", "weather.lq", "--model", "demo"],
        cwd=server.folder, capture_output=True, text=True, timeout=120, env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert "3 cases: 2 passed, 1 failed" in done.stdout and "FAIL  a boat <img src=x>" in done.stdout
    assert reason in done.stdout, "the reason is that of `lq test`"


def test_cases_run_the_text_in_the_editor_and_another_file_has_its_own(open_tab: Open, server: Server) -> None:
    prepared(server)
    (server.folder / "other.lq").write_text('"other"\n')
    tab = open_tab(server)
    opened(tab)
    tab.write(QUERY.replace("return THING", 'return " boat"'))
    tab.page.click("#run-cases")
    tab.until("document.getElementById('cases-say').textContent.includes('passed')", seconds=40)
    assert tab.page.inner_text("#cases-say") == "3 of 3 cases passed"
    tab.page.click("#examples")
    tab.page.click("#gallery button:has-text('other.lq')")
    tab.page.wait_for_selector("#run-cases", state="hidden")


def test_a_case_file_with_a_mistake_is_a_sentence(open_tab: Open, server: Server) -> None:
    prepared(server)
    (server.folder / "weather.cases.toml").write_text(CASES + "nonsense = 1\n")
    tab = open_tab(server)
    tab.page.click("#examples")
    tab.page.click("#gallery button:has-text('weather.lq')")
    tab.until("document.getElementById('banner').textContent.includes('nonsense')")
    tab.complaints = [each for each in tab.complaints if "422" not in each]


def test_a_query_is_run_with_each_model(chromium: Browser, open_tab: Open, tmp_path: Path) -> None:
    server = Server(tmp_path, options=("--model", "demo", "--model", "openai/none", "--base-url", "http://127.0.0.1:9"))
    try:
        tab = open_tab(server)
        tab.write('"A list:\\n-[X]" where X in [" one", " two"]\n')
        tab.show("runs")
        tab.page.click("#run-models")
        tab.until("document.querySelectorAll('#runs-grid .answer').length === 2", seconds=40)
        tab.page.wait_for_selector("#run[aria-disabled=false]", timeout=40_000)
        tab.settle()
        ((first,), (second,)), ((done,), (failed,)) = grid(tab).values()
        assert "demo" in first and "✓ done" in done
        assert "openai/none" in second and "✕ " in failed
    finally:
        server.stop()
