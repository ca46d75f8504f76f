"""Text of the page for a person: inputs that are missing, endings, the card of a token, answers in the list of runs."""

from __future__ import annotations

import pytest

from tests.browser.conftest import Open, Server, Tab
from tests.browser.test_page import PACKING

KIND = '"Is {thing} a bird, a fish or a mammal? [KIND]" where KIND in ["bird", "fish", "mammal"]\n'
SLOW = 'import time\nfor i in range(200):\n    "{i} "\n    time.sleep(0.1)\n'
SCROLLED = """() => [...document.querySelectorAll(".right, .right *")].filter((each) => {
    const { overflowY } = getComputedStyle(each);
    return ["auto", "scroll"].includes(overflowY) && each.scrollHeight > each.clientHeight + 1 && each.clientHeight > 0;
}).map((each) => each.id || each.className)"""
BOXES = """() => ["output", "panels", "ledger"].map((id) => {
    const { left, top, width, height, bottom } = document.getElementById(id).getBoundingClientRect();
    return { left, top, width, height, isSeen: top >= 0 && bottom <= innerHeight };
})"""


def test_an_empty_input_box_is_not_run_and_the_page_says_which(tab: Tab) -> None:
    tab.write(KIND)
    box = tab.page.locator("textarea[aria-label='input thing']")
    box.wait_for()
    tab.page.click("#run")
    tab.page.wait_for_selector("#banner:visible")
    assert "the input thing is empty" in tab.page.inner_text("#banner")
    assert box.get_attribute("aria-invalid") == "true"
    assert tab.page.evaluate("document.activeElement.getAttribute('aria-label')") == "input thing"
    tab.page.keyboard.type("A trout")
    assert box.get_attribute("aria-invalid") is None
    tab.page.keyboard.press("ControlOrMeta+Enter")
    tab.wait("done")
    assert tab.text().startswith("Is A trout a bird")
    assert tab.page.is_hidden("#banner")


def test_an_empty_text_is_an_input_where_it_is_written_as_json(tab: Tab) -> None:
    tab.write('"<{thing}>"\nreturn thing == ""\n')
    tab.page.fill("textarea[aria-label='input thing']", '""')
    tab.page.select_option("select[aria-label='kind of thing']", "json")
    tab.run()
    assert (tab.text(), tab.page.inner_text("#result .value")) == ("<>", "true")


@pytest.mark.parametrize("way", ["two empty", "a line of many", "not JSON"])
def test_inputs_that_cannot_be_run_are_a_sentence(tab: Tab, way: str) -> None:
    tab.write('"{one} {two}"\n')
    tab.page.wait_for_selector("textarea[aria-label='input two']")
    if way != "two empty":
        tab.page.fill("textarea[aria-label='input one']", "x")
        tab.page.select_option("select[aria-label='kind of two']", "lines" if way == "a line of many" else "json")
    tab.page.click("#run")
    tab.page.wait_for_selector("#banner:visible")
    says = {"two empty": "the inputs one, two are empty", "a line of many": "no line", "not JSON": "not JSON"}
    assert says[way] in tab.page.inner_text("#banner")


def test_a_hole_that_is_complete_is_not_called_forced(tab: Tab) -> None:
    tab.run('"Pick:[KIND]" where KIND in [" red", " green"]\n')
    row = tab.page.locator("#holes tbody tr").inner_text().split("\t")
    assert row[-1].strip() == "complete"
    shown = tab.page.inner_text("#panel-output")
    assert "forced" not in shown and "complete" in shown
    tab.show("log")
    assert "ended by complete" in tab.page.inner_text("#log")


def test_a_run_that_the_user_stopped_is_not_shown_as_an_error(tab: Tab) -> None:
    tab.write(SLOW)
    tab.page.click("#run")
    tab.until("document.getElementById('output').textContent.includes('3 ')")
    tab.page.click("#stop")
    tab.wait("stopped")
    assert "The run was stopped" in tab.page.inner_text("#result")
    assert tab.page.locator("#result .failure").count() == 0
    red = tab.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--bad')")
    assert red
    tab.show("log")
    assert tab.page.locator("#log .error").count() == 0
    tab.show("runs")
    assert "✕" not in tab.page.inner_text("#runs-grid")


def test_a_click_on_a_token_moves_nothing_and_scrolls_nothing(open_tab: Open, server: Server) -> None:
    tab = open_tab(server, viewport={"width": 1280, "height": 800})
    tab.run(PACKING)
    before, scrolled = tab.page.evaluate(BOXES), tab.page.evaluate(SCROLLED)
    token = tab.page.locator("#output .hole .source").first
    token.click(position={"x": 8, "y": 8})
    tab.page.wait_for_selector("#card:visible")
    assert tab.page.evaluate(BOXES) == before and all(box["isSeen"] for box in before)
    assert tab.page.evaluate(SCROLLED) == scrolled == []
    place, card = token.bounding_box(), tab.page.locator("#card").bounding_box()
    assert place is not None and card is not None
    assert card["y"] >= place["y"] + place["height"] and card["y"] - place["y"] < 60, "it is beside the token"
    assert card["y"] + card["height"] <= 800
    assert tab.page.evaluate("[...CSS.highlights.get('lq-token')].join('')") == " Sw"
    tab.page.keyboard.press("Escape")
    assert not tab.page.evaluate("CSS.highlights.has('lq-token')")


@pytest.mark.parametrize("view", ["tokens", "trie"])
def test_the_card_stays_on_the_screen_wherever_the_token_is(open_tab: Open, server: Server, view: str) -> None:
    tab = open_tab(server, viewport={"width": 1280, "height": 800})
    tab.run(PACKING)
    tab.show(view)
    cells = tab.page.locator("#tokens .token" if view == "tokens" else "#trie .run")
    for at in (0, cells.count() // 2, cells.count() - 1):
        cells.nth(at).click()
        place, card = cells.nth(at).bounding_box(), tab.page.locator("#card").bounding_box()
        assert place is not None and card is not None
        assert card["y"] >= 0 and card["y"] + card["height"] <= 801 and card["x"] + card["width"] <= 1281
        covers = card["y"] < place["y"] + place["height"] and card["y"] + card["height"] > place["y"]
        assert not covers, "the token is still to be seen"
        tab.page.keyboard.press("Escape")


def test_the_example_of_a_chat_runs_with_the_lines_of_its_box(server: Server, open_tab: Open) -> None:
    tab = open_tab(server)
    tab.page.click("#examples")
    tab.page.click("#gallery button:has-text('14_chat.lq')")
    tab.page.wait_for_selector("#typed:visible")
    tab.run()
    assert tab.page.inner_text("#result .value") == "questions answered: 3"
    tab.page.fill("#typed", "What colour is snow?\n")
    tab.run()
    assert tab.page.inner_text("#result .value") == "questions answered: 1"
    tab.page.fill("#typed", "")
    tab.run(state="failed")
    assert "box below the query" in tab.page.inner_text("#result")
    tab.write('"no lines"\n')
    tab.page.wait_for_selector("#typed", state="hidden")


def test_the_tree_is_called_so_everywhere(tab: Tab) -> None:
    assert "Trie" not in tab.page.inner_text("body") and "trie" not in tab.page.inner_text("body")
    tab.page.click("#help")
    shown = tab.page.inner_text("#help-dialog")
    assert "Tree" in shown and "trie" not in shown.lower()


def test_the_output_reads_as_text_and_a_hole_is_named_under_the_pointer(tab: Tab) -> None:
    tab.run('"Pick:[KIND]\\n" where KIND in [" red", " green"]\nreturn KIND\n')
    label = tab.page.locator("#output .hole > .label")
    clear = "(label) => getComputedStyle(label).opacity"
    assert label.evaluate(clear) == "0"
    tab.page.hover("#output .hole .source")
    assert label.evaluate(clear) == "1" and label.inner_text().startswith("KIND complete")
    places = tab.page.evaluate("['result', 'output', 'holes'].map((id) => document.getElementById(id).offsetTop)")
    assert places == sorted(places), "the value comes first"


def test_the_ledger_is_one_headline_with_a_bar_until_its_details_are_opened(tab: Tab) -> None:
    tab.run('"Pick:[KIND]\\n" where KIND in [" red", " green"]\n')
    assert tab.page.locator("#ledger p:visible").count() == 1 and "tokens of output" not in tab.page.inner_text(
        "#ledger"
    )
    assert tab.page.is_hidden("#ledger table")
    tab.page.click("#ledger details.all > summary")
    assert "tokens of output" in tab.page.inner_text("#ledger") and tab.page.is_visible("#ledger table")
