"""Everybody can use the page: by keyboard alone, with a reader of the screen, in any colours, on a narrow screen."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from tests.browser.conftest import PLAYGROUND, Open, Tab
from tests.browser.test_page import PACKING, PICKY

VIEWS = ("output", "trie", "runs", "tokens", "log")
DIALOGS = ("examples", "share", "help")
WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


def test_the_whole_way_by_keyboard_alone(tab: Tab) -> None:
    keyboard, page = tab.page.keyboard, tab.page

    def focused() -> str:
        return str(page.evaluate("document.activeElement.id || document.activeElement.className.baseVal || ''"))

    keyboard.press("Tab")
    assert page.inner_text(":focus") == "Skip to the query"
    keyboard.press("Enter")
    keyboard.press("Tab")
    assert page.get_attribute(":focus", "aria-label") == "query"
    keyboard.press("ControlOrMeta+a")
    keyboard.type('"A list of colours:[COLOUR]" where COLOUR in [" red", " blue"]')
    keyboard.press("Escape")  # no word is wanted
    keyboard.press("ControlOrMeta+Enter")
    tab.wait("done")
    keyboard.press("Alt+2")
    assert focused() == "tab-trie"
    for _ in range(5):  # show, alternatives, as a list, the tree
        keyboard.press("Tab")
        if "run" in focused():
            break
    assert "run prompt" in focused()
    keyboard.press("ArrowRight")
    assert "run prompt" not in focused()
    assert page.is_visible("#card")
    keyboard.press("ArrowLeft")
    assert "run prompt" in focused()
    keyboard.press("Escape")
    assert page.is_hidden("#card")
    keyboard.press("ArrowRight")
    keyboard.press("Alt+1")
    keyboard.press("ArrowLeft")
    assert focused() == "tab-runs" and page.is_visible("#panel-runs")
    keyboard.press("Tab")
    assert focused() == "more"
    keyboard.press("ArrowDown")
    assert page.is_visible("#panel-tokens")
    keyboard.press("Alt+5")
    assert focused() == "more" and page.is_visible("#panel-log")
    keyboard.press("Alt+4")
    tab.settle()
    keyboard.press("Tab")
    keyboard.press("Tab")
    assert page.get_attribute(":focus", "aria-posinset") == "1"
    keyboard.press("End")
    last = page.get_attribute(":focus", "aria-posinset")
    assert int(last or 0) > 4
    keyboard.press("ArrowLeft")
    assert page.get_attribute(":focus", "aria-posinset") == str(int(last or 0) - 1)
    keyboard.press("?")
    assert page.is_visible("#help-dialog")
    keyboard.press("Escape")
    assert page.is_hidden("#help-dialog")


def test_escape_stops_a_run_only_when_it_is_pressed_twice(tab: Tab) -> None:
    tab.write('import time\nwhile True:\n    "x"\n    time.sleep(0.05)\n')
    tab.page.keyboard.press("ControlOrMeta+Enter")
    tab.page.wait_for_selector("#state[data-state=running]")
    tab.page.focus("#tab-output")
    tab.page.keyboard.press("Escape")
    assert "again" in tab.page.inner_text("#say")
    assert tab.page.is_enabled("#stop")
    tab.page.keyboard.press("Escape")
    tab.wait("stopped")


def test_tab_leaves_the_editor_when_it_is_told_to(tab: Tab) -> None:
    tab.write('"x"')
    tab.page.keyboard.press("Control+m")
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.closest('#query') === null")


def test_a_completed_hole_is_said_once_and_not_every_token(tab: Tab) -> None:
    tab.page.evaluate(
        """() => { window.said = []; new MutationObserver(() => said.push(document.getElementById("say").textContent))
        .observe(document.getElementById("say"), { childList: true, characterData: true, subtree: true }); }"""
    )
    tab.run(PACKING)
    said = tab.page.evaluate("said")
    assert said[-1] == "the run is done"
    assert len(said) <= 5 and all(each.startswith("hole completed: THING = ") for each in said[:-1])
    assert tab.page.get_attribute("#output", "aria-live") == "off"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(open_tab: Open, scheme: str) -> None:
    tab = open_tab(color_scheme=scheme)
    tab.write('"[X" where STOPS_AT(Y, "a")')
    tab.page.wait_for_selector("#problems li")
    tab.run(PICKY)
    tab.page.evaluate((PLAYGROUND / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8"))

    def check(where: str) -> None:
        found: list[dict[str, Any]] = tab.page.evaluate("axe.run({ resultTypes: ['violations'] })")["violations"]
        told = [(each["id"], [node["html"][:200] for node in each["nodes"]][:3]) for each in found]
        assert told == [], where

    for view in VIEWS:
        tab.show(view)
        if view == "tokens":
            tab.page.locator("#tokens .token").first.click()
        check(view)
    for dialog in DIALOGS:
        tab.page.click(f"#{dialog}")
        tab.page.wait_for_selector(f"#{dialog}-dialog[open]")
        check(dialog)
        tab.page.keyboard.press("Escape")


LOOKS = """() => Object.fromEntries([...document.querySelectorAll("#legend-kinds .token")].map((token) => {
    const style = getComputedStyle(token);
    return [token.textContent, { edge: style.borderBottomColor, fill: style.backgroundColor, text: style.color,
        line: style.borderBottomStyle, mark: getComputedStyle(token, "::before").content,
        struck: style.textDecorationLine }];
}))"""


def test_forced_colours_leave_six_kinds_that_differ(open_tab: Open) -> None:
    tab = open_tab(forced_colors="active")
    tab.show("tokens")
    looks = tab.page.evaluate(LOOKS)
    for (one, look), (other, another) in combinations(looks.items(), 2):
        differ = [name for name in ("line", "mark", "struck") if look[name] != another[name]]
        assert differ, f"{one} and {other} look the same"


@pytest.mark.parametrize(
    ("width", "scale"), [(320, 1), (640, 2), (780, 1)], ids=["320 px", "200 % of 1280 px", "780 px"]
)
def test_a_narrow_page_has_no_side_scroll(open_tab: Open, width: int, scale: int) -> None:
    tab = open_tab(viewport={"width": width, "height": 640}, device_scale_factor=scale)
    tab.run(PICKY)
    for view in VIEWS:
        tab.show(view)
        assert tab.page.evaluate(WIDER) == 0, view
        hidden = tab.page.evaluate(
            """() => [...document.querySelectorAll("button, select, input, textarea")].filter((each) => {
            const place = each.getBoundingClientRect();
            return place.width > 1 && (place.left < 0 || place.right > innerWidth + 1); }).map((each) => each.id)"""
        )
        assert hidden == [], view
    if width == 780:
        assert tab.page.evaluate("document.querySelector('header').offsetHeight") < 60, "it is one line"
    for dialog in DIALOGS:
        tab.page.click(f"#{dialog}")
        tab.page.wait_for_selector(f"#{dialog}-dialog[open]")
        assert tab.page.evaluate(WIDER) == 0, dialog
        tab.page.keyboard.press("Escape")
