"""The first minute: three steps that are ticked off, and do not come back."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.browser.conftest import Open, Server, Tab
from tests.conftest import ROOT

LIST = '"Things to pack:\\n-[FIRST]\\n" where STOPS_BEFORE(FIRST, "\\n")\n'


def done(tab: Tab) -> list[str]:
    return tab.page.locator("#guide .done").evaluate_all("steps => steps.map(step => step.id)")


def test_three_steps_are_ticked_off_as_they_are_done(open_tab: Open, server: Server) -> None:
    tab = open_tab(server)
    assert tab.page.is_visible("#guide") and done(tab) == []
    tab.run(LIST)
    assert done(tab) == ["guide-run"]
    tab.run()
    assert done(tab) == ["guide-run", "guide-again"]
    tab.page.reload()
    tab.wait("done")
    assert done(tab) == ["guide-run", "guide-again"], "what was done stays done"
    tab.page.locator("#output .hole .source").first.click(position={"x": 4, "y": 8})
    assert tab.page.is_hidden("#guide")
    tab.page.reload()
    tab.wait("done")
    assert tab.page.is_hidden("#guide"), "it does not come back"


def test_the_folder_of_the_examples_opened_on_a_test_in_a_folder_within(open_tab: Open, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    server = Server(tmp_path / "examples")
    try:
        tab = open_tab(server)
        tab.page.wait_for_selector("#examples-dialog[open]")
        assert tab.page.locator("#gallery button").first.inner_text().startswith("Packing list")
        tab.page.keyboard.press("Escape")
        assert "A list of things" in tab.page.inner_text("#query")
        assert tab.page.locator("#guide kbd").all_inner_texts() == ["Ctrl", "Enter"]
    finally:
        server.stop()
