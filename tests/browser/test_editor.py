"""The editor: problems where they are, colours, words that are offered; and the page without its bundle."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.conftest import ROOT, Open, Server, Tab

MARKED = ".cm-lintRange-error"
QUIET = "document.getElementById('problem-count').textContent === 'none'"


@pytest.mark.parametrize(
    "before", ["", "# 🙂\n'🙂 é 日 e\u0301' ", "# tab\tand\r\n"], ids=["ascii", "outside the BMP", "CRLF"]
)
def test_a_mistake_is_underlined_exactly_where_it_is(tab: Tab, before: str) -> None:
    tab.write(f'{before}"[X]" where STOPS_AT(Y, "a")\n')
    tab.page.wait_for_selector(MARKED)
    assert tab.page.locator(MARKED).all_text_contents() == ["Y"]
    tab.page.keyboard.press("F8")
    assert tab.page.evaluate("getSelection().toString()") == "Y"
    tab.page.keyboard.type("X")
    tab.until(QUIET)
    assert tab.page.locator(MARKED).count() == 0


def test_an_answer_to_an_older_text_changes_nothing(tab: Tab) -> None:
    held = []
    tab.page.route("**/api/check", lambda route: held.append(route))
    tab.write('"[X" ')
    while not held:
        tab.page.wait_for_timeout(20)
    tab.write('"fine"')
    while len(held) < 2:
        tab.page.wait_for_timeout(20)
    held[1].continue_()
    tab.until(QUIET)
    held[0].continue_()
    tab.page.wait_for_timeout(300)
    assert tab.page.evaluate(QUIET)


def test_a_failure_of_a_run_is_marked_where_it_happened(tab: Tab) -> None:
    tab.run('"text"\nx = 1 / 0\n', "failed")
    tab.page.wait_for_selector(MARKED)
    assert "1 / 0" in "".join(tab.page.locator(MARKED).all_text_contents())


def offered(tab: Tab, letter: str, word: str) -> None:
    """The letter is typed, and the word offered. A slow browser tells late where the cursor went, and the editor then
    takes its offers back until the next letter: so it may be typed again."""
    found = tab.page.locator(f".cm-tooltip-autocomplete li:has-text('{word}')")
    for _ in range(5):
        tab.page.keyboard.type(letter)
        for _ in range(40):
            if found.count():
                return
            tab.page.wait_for_timeout(100)
        tab.page.keyboard.press("Backspace")
    raise AssertionError(f"{word} was not offered")


def test_words_of_the_language_and_of_the_query_are_offered(tab: Tab) -> None:
    tab.write('"[ANSWER]" where ')
    tab.page.wait_for_timeout(400)  # the query's own names come with its check
    tab.page.keyboard.press("ControlOrMeta+End")
    tab.page.keyboard.type("STOP")
    offered(tab, "S", "STOPS_AT")
    assert {"STOPS_AT", "STOPS_BEFORE"} <= set(tab.page.locator(".cm-completionLabel").all_text_contents())
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.type("_AT(ANS")
    offered(tab, "W", "ANSWER")


def test_a_query_has_its_colours(tab: Tab) -> None:
    tab.write(
        "sample(n=2)\n"
        '    "{:user}Say [[it]] in {n + 1} words\\n[A: int] [@loud(1) B]"\n'
        '    text = "no [HOLE]"  # a note\n'
        "    for i in range(3):\n"
        "        ('one '\n"
        "         'two [C]')\n"
        "where\n"
        '    STOPS_AT(B, "x") and True\n'
    )

    def shown(kind: str) -> list[str]:
        return tab.page.locator(f"#query .code-{kind}").all_text_contents()

    tab.page.wait_for_selector("#query .code-clause")
    assert shown("hole") == ["A", "B", "C"]
    assert shown("role") == ["{:user}"]
    assert shown("decoder") == ["sample"]
    assert shown("clause") == ["where"]
    assert shown("condition") == ["STOPS_AT"]
    assert "".join(shown("decorator")) == "@loud"  # in two, once the check has marked the name
    assert shown("keyword") == ["for", "in", "and"]
    assert "".join(shown("string")) == '"no [HOLE]""x"'
    assert shown("comment") == ["# a note"]
    assert shown("escape") == ["[[", "]]", "\\n"]


@pytest.fixture
def plain_server(chromium: object, tmp_path: Path) -> Iterator[Server]:
    """A checkout in which nothing was built."""
    checkout = tmp_path / "checkout"
    (checkout / "playground").mkdir(parents=True)
    for name in ("grammar", "demo", "examples"):
        os.symlink(ROOT / name, checkout / name)
    shutil.copytree(ROOT / "lmql_lite", checkout / "lmql_lite", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "playground" / "src", checkout / "playground" / "src")
    for name in ("index.html", "style.css", "view.css"):
        shutil.copy(ROOT / "playground" / name, checkout / "playground" / name)
    (tmp_path / "queries").mkdir()
    server = Server(tmp_path / "queries", package=checkout)
    yield server
    server.stop()


def test_without_the_bundle_the_page_works_and_says_how_to_build_the_rest(plain_server: Server, open_tab: Open) -> None:
    tab = open_tab(plain_server)
    assert tab.page.get_attribute("html", "data-ready") == "plain"
    assert "npm" in tab.page.inner_text("#build")
    tab.write('"[X]" where STOPS_AT(Y, "a")\n')
    tab.page.wait_for_selector("#problems li")
    tab.page.keyboard.press("F8")
    assert tab.page.evaluate("getSelection().toString()") == "Y"
    tab.run((ROOT / "examples" / "01_packing_list.lq").read_text("utf-8"))
    assert tab.page.locator("#output .hole").count() == 4
    tab.show("trie")
    tab.page.uncheck("#trie-ghosts")
    tab.settle()
    assert tab.page.locator("#trie .run").count() == 8
    tab.show("tokens")
    assert tab.page.locator("#tokens .token.model").count() == 13
