"""Runs of one page as a grid: what they were given down, queries and models across, and answers in the cells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.browser.conftest import Open, Server, Tab

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LIST = '"Things to pack:\\n-[FIRST]\\n-[SECOND]\\n" where STOPS_BEFORE(FIRST, "\\n") and STOPS_BEFORE(SECOND, "\\n")\n'
ASKS = '"Q: What is the capital of {country}?\\nA:[CITY]" where STOPS_BEFORE(CITY, "\\n")\n'


def grid(tab: Tab) -> dict[str, list[list[str]]]:
    """Texts of the runs in each cell, by what they were given. The first row has the queries."""
    return {
        name: cells
        for name, *cells in tab.page.locator("#runs-grid tr").evaluate_all(
            """rows => rows.map(row => [...row.children].map((cell, at) => at === 0 ? cell.textContent
                : [...(cell.querySelector(".answer") ? cell.children : [cell])].map(each => each.textContent)))"""
        )
    }


def test_a_cell_has_all_runs_that_were_given_the_same_with_what_the_last_one_saved(
    open_tab: Open, server: Server
) -> None:
    tab = open_tab(server)
    tab.show("runs")
    assert "inputs down, queries and models across" in (tab.page.locator("#runs-empty").text_content() or "")
    counts = []
    for _ in range(2):
        tab.run(LIST)
        counts.append(f": {tab.count('tokens_from_cache')} from the cache, {tab.count('tokens_from_model')} from the")
    tab.show("runs")
    ((newest, oldest),) = grid(tab)["no inputs"]
    assert "Run 2 ✓ done" in newest and counts[1] in newest and ", 0 from the model" in newest
    assert "Run 1 ✓ done" in oldest and counts[0] in oldest
    assert tab.page.locator("#runs-grid mark").count() == 0, "the texts are the same"


def test_inputs_go_down_and_queries_across_and_what_differs_is_marked(tab: Tab) -> None:
    tab.write(ASKS)
    tab.page.locator("[aria-label='input country']").fill("France\nItaly\n\nSpain")
    tab.page.locator("[aria-label='kind of country']").select_option("lines")
    tab.page.click("#run")
    tab.page.wait_for_selector("#runs-grid tbody tr:nth-child(3)")
    tab.wait("done")
    assert tab.page.locator("#runs-grid mark").count() == 0, "there is nothing to compare with"
    tab.write(ASKS.replace("Q: What", "Q: Tell me what"))
    tab.page.click("#run")
    tab.until("document.querySelectorAll('#runs-grid .answer').length === 6")
    tab.wait("done")
    head, *rows = grid(tab).items()
    assert [len(cells) for _, cells in (head, *rows)] == [2] * 4
    assert [name for name, _ in rows] == ["country = France", "country = Italy", "country = Spain"]
    assert tab.page.locator("#runs-grid thead mark").all_text_contents() == ["Tell me w"]
    for _, (first, second) in rows:
        answers = [re.match(r"CITY (.*?)Run \d", text) for text in (*first, *second)]
        assert all(answers)
    marked = tab.page.locator("#runs-grid tbody td:nth-child(2) mark").count()
    assert marked == 0, "the first column is what the others are compared with"


def test_an_answer_that_differs_is_marked_and_a_run_is_seen_again_by_keyboard(tab: Tab) -> None:
    tab.run('"Say[X]" where X in [" red"]\n')
    tab.run('"Say[X]" where X in [" green"]\n')
    tab.run('x = 1 / 0\n"Say[X]" where X in [" red"]\n', state="failed")
    tab.show("runs")
    ((red,), (green,), (failed,)) = grid(tab)["no inputs"]
    assert red.startswith("X  red") and green.startswith("X  green")
    assert "✕" in failed and "division" in failed
    assert "green" in "".join(tab.page.locator("#runs-grid tbody mark").all_text_contents())
    tab.page.focus("#run-1")
    tab.page.keyboard.press("Enter")
    tab.settle()
    assert tab.text() == "Say red"
    assert tab.page.locator("#stale").is_visible(), "it is of an earlier text"


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
