"""Runs of one page: their list, and several of them beside each other."""

from __future__ import annotations

from tests.browser.conftest import Open, Server, Tab

LIST = '"Things to pack:\\n-[FIRST]\\n-[SECOND]\\n" where STOPS_BEFORE(FIRST, "\\n") and STOPS_BEFORE(SECOND, "\\n")\n'
ASKS = '"Q: What is the capital of {country}?\\nA:[CITY]" where STOPS_BEFORE(CITY, "\\n")\n'


def grid(tab: Tab) -> dict[str, list[str]]:
    """The rows of the runs that stand beside each other."""
    rows = tab.page.locator("#runs-grid tr").evaluate_all(
        "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    )
    return {name: cells for name, *cells in rows}


def test_the_second_run_stands_beside_the_first_with_what_it_saved(open_tab: Open, server: Server) -> None:
    tab = open_tab(server)
    tab.show("runs")
    assert "Each run on this page is listed here" in (tab.page.locator("#runs-empty").text_content() or "")
    tab.run(LIST)
    ledger = [tab.count("tokens_from_cache"), tab.count("tokens_from_model")]
    tab.run()
    ledger += [tab.count("tokens_from_cache"), tab.count("tokens_from_model")]
    tab.show("runs")
    rows = grid(tab)
    assert rows[""] == ["Run 1", "Run 2"]
    assert [rows["from the cache"][0], rows["of the model"][0]] == ledger[:2]
    assert [rows["from the cache"][1], rows["of the model"][1]] == ledger[2:]
    assert rows["of the model"][1] == "0" and rows["FIRST"][0] == rows["FIRST"][1]
    assert tab.page.locator("#runs-grid .differs code").count() == 0, "the texts are the same"


def test_what_differs_is_marked_and_a_run_is_seen_again(tab: Tab) -> None:
    tab.run('"Say[X]" where X in [" red"]\n')
    tab.run('"Say[X]" where X in [" green"]\n')
    tab.show("runs")
    assert grid(tab)["X"] == ["␣red".replace("␣", " "), " green"]
    assert tab.page.locator("#runs-grid mark").all_text_contents()
    tab.page.click("#runs-list tr:has-text('Run 1') button")
    tab.settle()
    assert tab.text() == "Say red"
    assert tab.page.locator("#stale").is_visible(), "it is of an earlier text"


def test_an_input_with_a_value_on_each_line_makes_a_run_of_every_line(tab: Tab) -> None:
    tab.write(ASKS)
    field = tab.page.locator("[aria-label='input country']")
    field.fill("France\nItaly\n\nSpain")
    tab.page.locator("[aria-label='kind of country']").select_option("lines")
    tab.page.click("#run")
    tab.page.wait_for_selector("#runs-grid th:nth-child(4)")
    tab.wait("done")
    rows = grid(tab)
    assert rows["country"] == ["France", "Italy", "Spain"]
    assert len(rows["CITY"]) == 3 and all(rows["CITY"])


def test_runs_are_chosen_by_keyboard(tab: Tab) -> None:
    for colour in ("red", "green", "blue"):
        tab.run(f'"Say[X]" where X in [" {colour}"]\n')
    tab.show("runs")
    assert grid(tab)[""] == ["Run 2", "Run 3"]
    tab.page.focus("#beside-1")
    tab.page.keyboard.press("Space")
    assert grid(tab)[""] == ["Run 1", "Run 2", "Run 3"]
    assert tab.page.evaluate("document.activeElement.id") == "beside-1", "the focus stays"


def test_a_run_that_failed_says_so_beside_one_that_did_not(tab: Tab) -> None:
    tab.run('"Say[X]" where X in [" red"]\n')
    tab.run('x = 1 / 0\n"Say[X]" where X in [" red"]\n', state="failed")
    tab.show("runs")
    ended = grid(tab)["ended"]
    assert ended[0] == "✓ done" and ended[1].startswith("✕") and "division" in ended[1]


def test_the_phone_shows_them_without_side_scroll(open_tab: Open, server: Server) -> None:
    tab = open_tab(server, viewport={"width": 320, "height": 640})
    tab.run(LIST)
    tab.run()
    tab.show("runs")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 320
