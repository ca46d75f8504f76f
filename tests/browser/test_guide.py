"""The first minute: three steps that are ticked off, and do not come back."""

from __future__ import annotations

from tests.browser.conftest import Open, Server, Tab

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
