"""Files and queries in the editor: one's text never gets into another, and nothing that was typed is lost."""

from __future__ import annotations

import pytest

from tests.browser.conftest import EDITOR, Open, Server, Tab

TWO = {"a.lq": '"text of a"\n', "b.lq": '"text of b"\n'}
TURNED = '"\u2067 // \u2066"\n'


@pytest.fixture
def folder(server: Server) -> Server:
    for name, text in TWO.items():
        (server.folder / name).write_text(text, "utf-8")
    return server


def choose(tab: Tab, name: str) -> None:
    tab.page.click("#examples")
    tab.page.click(f"#gallery button:has-text('{name}')")
    tab.until(f"document.getElementById('name').textContent.endsWith('{name}')")


def text(tab: Tab) -> str:
    return "\n".join(tab.page.locator("#query .cm-line").all_text_contents())


def test_undo_never_brings_the_text_of_another_file(folder: Server, open_tab: Open) -> None:
    tab = open_tab(folder)
    choose(tab, "b.lq")
    tab.page.locator(EDITOR).focus()
    for _ in range(3):
        tab.page.keyboard.press("ControlOrMeta+z")
    assert text(tab) == TWO["b.lq"]
    tab.page.keyboard.press("ControlOrMeta+s")
    tab.until("document.getElementById('banner').textContent === 'b.lq is saved'")
    assert {name: (folder.folder / name).read_text("utf-8") for name in TWO} == TWO


def test_after_loading_anew_the_same_file_is_saved_with_the_same_options(folder: Server, open_tab: Open) -> None:
    tab = open_tab(folder)
    tab.write('"three"\n')
    tab.page.click("details.options summary")
    tab.page.fill("#option-seed", "17")
    tab.page.reload()
    tab.page.wait_for_selector("html[data-ready]")
    assert tab.page.inner_text("#name") == "● a.lq"
    assert tab.page.input_value("#option-seed") == "17"
    tab.page.click("#save")
    tab.until("document.getElementById('banner').textContent === 'a.lq is saved'")
    assert (folder.folder / "a.lq").read_text("utf-8") == '"three"\n'


def test_characters_that_nobody_sees_are_marked_and_named(server: Server, open_tab: Open) -> None:
    tab = open_tab(server)
    tab.write(TURNED)
    assert tab.page.locator("#query .cm-specialChar").all_text_contents() == ["⟨U+2067⟩", "⟨U+2066⟩"]
    tab.page.wait_for_selector("#problems li")
    assert "invisible character U+2067" in tab.page.inner_text("#problems")


def test_output_of_an_earlier_text_says_so(server: Server, open_tab: Open) -> None:
    tab = open_tab(server)
    tab.run('"one"\n')
    assert tab.page.is_hidden("#stale")
    tab.write('"two"\n')
    assert tab.page.is_visible("#stale")
    tab.run()
    assert tab.page.is_hidden("#stale")


def test_run_keeps_the_focus(server: Server, open_tab: Open) -> None:
    tab = open_tab(server)
    tab.write('"one"\n')
    tab.page.focus("#run")
    tab.page.keyboard.press("Enter")
    tab.wait("done")
    assert tab.page.evaluate("document.activeElement.id") == "run"
