"""A run that goes on from a place of another one: the second-best token, or text of one's own."""

from __future__ import annotations

import pytest

from tests.browser.conftest import Open, Server, Tab
from tests.browser.test_truth import lines_of

LIST = '"Things to pack:\\n-[FIRST]\\n-[SECOND]\\n" where STOPS_BEFORE(FIRST, "\\n") and STOPS_BEFORE(SECOND, "\\n")\n'


def first_token(tab: Tab, hole: str = "FIRST") -> None:
    """Opens the card of a hole's first token, with a click on the text."""
    tab.show("output")
    tab.page.locator(f"#output .hole[data-hole={hole}] .source").first.click(position={"x": 4, "y": 8})
    tab.page.wait_for_selector("#card:not([hidden])")


def test_the_second_best_token_is_taken_and_the_run_goes_on(open_tab: Open, server: Server) -> None:
    tab = open_tab(server)
    tab.run(LIST)
    before = tab.text()
    first_token(tab, "SECOND")
    button = tab.page.locator(".alternatives button").first
    taken = button.locator("xpath=ancestor::tr//code").text_content() or ""
    button.click()
    tab.wait("done")
    after, known = tab.text(), before[: before.index("\n-", before.index("-") + 1) + 2]
    assert after.startswith(known), "what stands before it is as it was"
    assert after[len(known) :].startswith(taken.replace("␣", " ")) and after != before
    assert "[SECOND] begins with" in (tab.page.locator("#onward").text_content() or "")
    *_, done = lines_of(server)
    assert done["usage"]["tokens_from_model"] == int(tab.count("tokens_from_model"))
    forced = [line for line in lines_of(server) if line["type"] == "token" and line["hole"] == "FIRST"]
    assert {line["source"] for line in forced} == {"forced"}, "nobody was asked for what is shared"


def test_a_text_is_changed_and_the_run_goes_on_from_it(open_tab: Open, server: Server) -> None:
    tab = open_tab(server)
    tab.run(LIST)
    first_token(tab)
    tab.page.click(".onward summary")
    tab.page.fill(".onward textarea", " a canoe")
    tab.page.click("text=Use it as the whole value")
    tab.wait("done")
    assert tab.text().startswith("Things to pack:\n- a canoe\n-")
    first_token(tab, "SECOND")
    tab.page.click(".onward summary")
    tab.page.fill(".onward textarea", " a pad")
    tab.page.click("text=Continue from this text")
    tab.wait("done")
    assert tab.text().startswith("Things to pack:\n- a canoe\n- a pad")


def test_a_text_that_the_conditions_forbid_is_refused_in_a_sentence(tab: Tab) -> None:
    tab.run('"Pick:[C]" where C in [" red", " green"]\n')
    first_token(tab, "C")
    tab.page.click(".onward summary")
    tab.page.fill(".onward textarea", " blue")
    tab.page.click("text=Use it as the whole value")
    tab.wait("failed")
    assert "[C] cannot be ' blue'" in (tab.page.locator("#result").text_content() or "")


def test_an_alternative_of_the_tree_is_two_clicks_away(tab: Tab) -> None:
    tab.run(LIST)
    tab.show("trie")
    ghosts = tab.page.locator("#trie [role=treeitem].ghost:not(.struck)")
    if not ghosts.count():
        pytest.fail("the tree shows no alternative")
    ghosts.first.click()
    tab.page.locator(".alternatives button").first.click()
    tab.wait("done")
    assert tab.page.locator("#onward").is_visible()
