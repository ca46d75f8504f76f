"""Text with changes that no file has: it is listed, kept over a reload, and not wiped by a file or another tab."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import EDITOR, ROOT, Open, Server, Tab

if TYPE_CHECKING:
    from playwright.sync_api import Dialog

DATES = (ROOT / "examples" / "06_dates.lq").read_text("utf-8")
NO_STORAGE = """for (const name of ["localStorage", "sessionStorage"])
    Object.defineProperty(window, name, { get() { throw new DOMException("no", "SecurityError"); } });"""
FULL = """Storage.prototype.setItem = function () { throw new DOMException("full", "QuotaExceededError"); };"""
SAVED = "document.getElementById('banner').textContent === '{} is saved'"


TWO = {"a.lq": '"text of a"\n', "b.lq": '"text of b"\n'}
TURNED = '"\u2067 // \u2066"\n'


@pytest.fixture
def folder(server: Server) -> Server:
    for name, content in TWO.items():
        (server.folder / name).write_text(content, "utf-8")
    return server


def text(tab: Tab) -> str:
    return "\n".join(tab.page.locator("#query .cm-line").all_text_contents())


def listed(tab: Tab) -> list[str]:
    """Names of the drafts that the list shows."""
    tab.page.click("#examples")
    tab.page.wait_for_selector("#examples-dialog[open]")
    names = tab.page.locator("#drafts .example b").all_inner_texts()
    tab.page.keyboard.press("Escape")
    return names


def choose(tab: Tab, name: str, within: str = "#gallery") -> None:
    tab.page.click("#examples")
    tab.page.locator(f"{within} button.example", has_text=name).first.click()
    tab.page.wait_for_selector("#examples-dialog", state="hidden")
    tab.until(f"document.getElementById('name').textContent.endsWith('{name}')")


def new(tab: Tab, query: str) -> None:
    tab.page.click("#new")
    tab.write(query)


def loaded_anew(tab: Tab) -> None:
    tab.page.reload()
    tab.page.wait_for_selector("html[data-ready]")


def another(tab: Tab, server: Server) -> Tab:
    """Another tab of the same browser."""
    other = Tab(tab.page.context.new_page())
    other.open(server.address)
    return other


def saved(tab: Tab, name: str) -> None:
    tab.until(SAVED.format(name))


# A draft is listed, and found again --------------------------------------------------------------------------------


def test_a_new_query_is_listed_after_something_else_was_opened(folder: Server, open_tab: Open) -> None:
    tab = open_tab(folder)
    new(tab, '"first"\n')
    choose(tab, "06_dates.lq")
    assert listed(tab) == ["● untitled.lq"]
    new(tab, '"second"\n')
    choose(tab, "a.lq")
    assert sorted(listed(tab)) == ["● untitled-2.lq", "● untitled.lq"]
    choose(tab, "untitled.lq", "#drafts")
    assert text(tab) == '"first"\n' and tab.page.inner_text("#name") == "● untitled.lq"
    choose(tab, "untitled-2.lq", "#drafts")
    assert text(tab) == '"second"\n'


def test_a_draft_of_a_file_survives_a_reload_with_another_file_open(folder: Server, open_tab: Open) -> None:
    tab = open_tab(folder)
    tab.write('"changed"\n')
    choose(tab, "b.lq")
    loaded_anew(tab)
    assert text(tab) == TWO["b.lq"]
    assert listed(tab) == ["● a.lq"]
    choose(tab, "a.lq")
    assert text(tab) == '"changed"\n' and tab.page.inner_text("#name") == "● a.lq"
    tab.page.click("#save")
    saved(tab, "a.lq")
    assert (folder.folder / "a.lq").read_text("utf-8") == '"changed"\n'
    assert listed(tab) == [] and tab.page.inner_text("#name") == "a.lq"


def test_a_draft_is_found_in_another_tab_after_its_own_was_closed(folder: Server, open_tab: Open) -> None:
    tab = open_tab(folder)
    new(tab, '# é 日 🙂\n"new"\n')
    other = another(tab, folder)
    tab.page.close()
    assert listed(other) == ["● untitled.lq"]
    choose(other, "untitled.lq", "#drafts")
    assert text(other) == '# é 日 🙂\n"new"\n'
    other.page.click("#save")
    other.page.keyboard.press("Enter")
    saved(other, "untitled.lq")
    assert listed(other) == []


def test_an_edited_example_is_a_draft_too_and_the_example_stays(folder: Server, open_tab: Open) -> None:
    tab = open_tab(folder)
    choose(tab, "06_dates.lq")
    tab.write('"mine"\n')
    choose(tab, "a.lq")
    loaded_anew(tab)
    choose(tab, "06_dates.lq")
    assert text(tab) == '"mine"\n'
    tab.page.click("#examples")
    tab.page.click("#drafts button[aria-label='delete the draft of 06_dates.lq']")
    tab.page.keyboard.press("Enter")
    tab.until("!document.getElementById('name').textContent.startsWith('●')")
    assert listed(tab) == []
    choose(tab, "06_dates.lq")
    assert text(tab) == DATES


def test_a_text_that_is_as_it_was_is_no_draft(folder: Server, open_tab: Open) -> None:
    tab = open_tab(folder)
    tab.page.locator(EDITOR).focus()
    tab.page.keyboard.type("# ")
    assert listed(tab) == ["● a.lq"]
    tab.page.locator(EDITOR).focus()
    for _ in range(2):
        tab.page.keyboard.press("Backspace")
    assert listed(tab) == []
    tab.page.click("#new")
    assert listed(tab) == [], "an empty query"


def test_a_draft_is_deleted_only_after_a_question(folder: Server, open_tab: Open) -> None:
    tab = open_tab(folder)
    new(tab, '"one"\n')
    remove = "#drafts button[aria-label='delete the draft of untitled.lq']"
    tab.page.click("#examples")
    tab.page.click(remove)
    tab.page.wait_for_selector("#delete-dialog[open]")
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.press("Escape")
    assert listed(tab) == ["● untitled.lq"] and text(tab) == '"one"\n'
    tab.page.click("#examples")
    tab.page.click(remove)
    tab.page.keyboard.press("Enter")
    tab.until("!document.getElementById('name').textContent.includes('●')")
    assert listed(tab) == []


# Closing asks --------------------------------------------------------------------------------------------------------


def asked_at_closing(tab: Tab) -> bool:
    """True if the browser asks; the tab then stays open."""
    questions: list[str] = []

    def refuse(dialog: Dialog) -> None:
        kind = dialog.type
        dialog.dismiss()
        questions.append(kind)

    watch = tab.page.context.new_page()
    tab.page.on("dialog", refuse)
    tab.page.close(run_before_unload=True)
    for _ in range(100):
        if questions or tab.page.is_closed():
            break
        watch.wait_for_timeout(20)
    # the end of the test closes the tab, which would wait for an answer for ever
    tab.page.remove_listener("dialog", refuse)
    if not tab.page.is_closed():
        tab.page.on("dialog", lambda dialog: dialog.accept())
        tab.page.goto("about:blank")
    return questions == ["beforeunload"]


@pytest.mark.parametrize("way", ["changes", "a draft that is not shown", "saved"])
def test_closing_asks_where_something_is_not_saved(folder: Server, open_tab: Open, way: str) -> None:
    tab = open_tab(folder)
    if way == "a draft that is not shown":
        new(tab, '"new"\n')
    else:
        tab.page.locator(EDITOR).click()
        tab.page.keyboard.type("# more")
    if way == "saved":
        tab.page.keyboard.press("ControlOrMeta+s")
        saved(tab, "a.lq")
    if way != "changes":
        choose(tab, "b.lq")
    assert asked_at_closing(tab) == (way != "saved")


# Others change the same ----------------------------------------------------------------------------------------------


def test_two_tabs_with_drafts_of_one_file_keep_both(folder: Server, open_tab: Open) -> None:
    first = open_tab(folder)
    second = another(first, folder)
    first.write('"first"\n')
    second.write('"second"\n')
    first.page.locator(EDITOR).focus()
    first.page.keyboard.type("# more")
    for tab in (first, second):
        tab.until("document.getElementById('examples').textContent.includes('2')")
        assert listed(tab) == ["● a.lq", "● a.lq"]
    for tab in (first, second):
        loaded_anew(tab)
    assert text(first) == '"first"\n# more' and text(second) == '"second"\n'
    first.page.click("#save")
    saved(first, "a.lq")
    second.until("document.getElementById('conflict').hidden === false || true")
    assert text(second) == '"second"\n'
    assert listed(second) == ["● a.lq"]


def test_a_draft_that_two_tabs_edit_becomes_two(folder: Server, open_tab: Open) -> None:
    first = open_tab(folder)
    new(first, '"base"\n')
    second = another(first, folder)
    choose(second, "untitled.lq", "#drafts")
    second.write('"second"\n')
    first.until("document.getElementById('examples').textContent.includes('2')")
    assert text(first) == '"base"\n'
    first.write('"first"\n')
    loaded_anew(first)
    loaded_anew(second)
    assert (text(first), text(second)) == ('"first"\n', '"second"\n')
    assert len(listed(first)) == 2


def test_a_draft_whose_file_has_changed_shows_both_and_loses_neither(folder: Server, open_tab: Open) -> None:
    tab = open_tab(folder)
    tab.write('"mine"\n')
    choose(tab, "b.lq")
    (folder.folder / "a.lq").write_text('"theirs"\n', "utf-8")
    choose(tab, "a.lq")
    assert text(tab) == '"mine"\n'
    assert "has changed" in tab.page.inner_text("#conflict")
    tab.page.click("#conflict button")
    assert tab.page.inner_text("#conflict-theirs").strip() == '"theirs"'
    assert tab.page.inner_text("#conflict-mine").strip() == '"mine"'
    tab.page.click("#conflict-load")
    tab.until("document.getElementById('name').textContent === 'a.lq'")
    assert text(tab) == '"theirs"\n'
    assert listed(tab) == ["● a.lq"], "the other text is still there"
    choose(tab, "a.lq", "#drafts")
    assert text(tab) == '"mine"\n'


@pytest.mark.parametrize("way", ["load", "other name", "overwrite"])
def test_a_refused_save_offers_three_ways_that_work(folder: Server, open_tab: Open, way: str) -> None:
    tab = open_tab(folder)
    tab.write('"mine"\n')
    (folder.folder / "a.lq").write_text('"theirs"\n', "utf-8")
    tab.page.locator(EDITOR).focus()
    tab.page.keyboard.press("ControlOrMeta+s")
    tab.page.wait_for_selector("#conflict-dialog[open]")
    if way == "load":
        tab.page.click("#conflict-load")
        tab.until("document.getElementById('name').textContent === 'a.lq'")
        assert text(tab) == '"theirs"\n' and listed(tab) == ["● a.lq"]
    elif way == "overwrite":
        tab.page.click("#conflict-overwrite")
        saved(tab, "a.lq")
        assert (folder.folder / "a.lq").read_text("utf-8") == '"mine"\n' and listed(tab) == []
    else:
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#save-dialog[open]")
        tab.page.keyboard.press("Enter")
        saved(tab, "a-2.lq")
        assert (folder.folder / "a-2.lq").read_text("utf-8") == '"mine"\n'
    if way != "overwrite":
        assert (folder.folder / "a.lq").read_text("utf-8") == '"theirs"\n'
    tab.complaints.clear()  # the browser reports a 409


def test_a_file_that_is_gone_can_be_saved_again(folder: Server, open_tab: Open) -> None:
    tab = open_tab(folder)
    tab.write('"mine"\n')
    (folder.folder / "a.lq").unlink()
    loaded_anew(tab)
    assert text(tab) == '"mine"\n' and "no longer" in tab.page.inner_text("#conflict")
    tab.page.click("#save")
    tab.page.click("#conflict-overwrite")
    saved(tab, "a.lq")
    assert (folder.folder / "a.lq").read_text("utf-8") == '"mine"\n'
    tab.complaints.clear()  # the browser reports 404 and 409


def followed(tab: Tab, server: Server) -> None:
    """Opens the address of a server that was started anew in a page that is open: only the token is another one."""
    with tab.page.expect_event("load"):
        tab.page.goto(server.address)
    tab.page.wait_for_selector("html[data-ready]")


def test_drafts_of_two_folders_on_one_port_do_not_mix(chromium: object, open_tab: Open, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.lq").write_text(f'"{name}"\n', "utf-8")
    server = Server(tmp_path / "one")
    port = server.port
    try:
        tab = open_tab(server)
        tab.write('"draft of one"\n')
        server.stop()
        server = Server(tmp_path / "two", options=("--port", str(port)))
        followed(tab, server)
        assert text(tab) == '"two"\n' and listed(tab) == []
        server.stop()
        server = Server(tmp_path / "one", options=("--port", str(port)))
        followed(tab, server)
        assert listed(tab) == ["● a.lq"]
        choose(tab, "a.lq")
        assert text(tab) == '"draft of one"\n'
    finally:
        server.stop()
    tab.complaints.clear()  # the server was away, and a check was cut short


# Where the browser keeps nothing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [NO_STORAGE, FULL], ids=["forbidden", "full"])
def test_where_the_browser_keeps_nothing_a_sentence_says_so_and_the_text_stays(
    folder: Server, open_tab: Open, script: str
) -> None:
    tab = open_tab(folder)
    context = tab.page.context
    context.add_init_script(script)
    tab = Tab(context.new_page())
    tab.open(folder.address)
    tab.write('"kept by the page"\n')
    tab.page.wait_for_selector("#banner:visible")
    assert "only while this page is open" in tab.page.inner_text("#banner")
    choose(tab, "b.lq")
    assert listed(tab) == ["● a.lq"]
    choose(tab, "a.lq")
    assert text(tab) == '"kept by the page"\n'
    tab.page.click("#save")
    saved(tab, "a.lq")
    assert tab.complaints == []
    assert not asked_at_closing(tab)


# A file named like an example ----------------------------------------------------------------------------------------


@pytest.fixture
def copied(chromium: object, tmp_path: Path) -> Iterator[Server]:
    """A folder with copies of the examples."""
    (tmp_path / "my").mkdir()
    for place in (ROOT / "examples").glob("*.lq"):
        shutil.copy(place, tmp_path / "my")
    server = Server(tmp_path / "my")
    yield server
    server.stop()


def test_a_file_named_like_an_example_opens_as_the_file(copied: Server, open_tab: Open) -> None:
    (copied.folder / "06_dates.lq").write_text('"my own dates"\n', "utf-8")
    tab = open_tab(copied)
    choose(tab, "06_dates.lq", "#files")
    assert text(tab) == '"my own dates"\n'
    tab.write('"my own dates, changed"\n')
    tab.page.click("#save")
    saved(tab, "06_dates.lq")
    assert (copied.folder / "06_dates.lq").read_text("utf-8") == '"my own dates, changed"\n'
    choose(tab, "06_dates.lq", "#shipped")
    assert text(tab) == DATES, "the example is there as well"


def test_a_copy_of_an_example_is_saved_to_the_copy(copied: Server, open_tab: Open) -> None:
    tab = open_tab(copied)
    tab.page.wait_for_selector("#examples-dialog[open]")
    tab.page.keyboard.press("Escape")
    choose(tab, "06_dates.lq")
    assert text(tab) == DATES
    tab.write('"changed"\n')
    tab.page.click("#save")
    saved(tab, "06_dates.lq")
    assert (copied.folder / "06_dates.lq").read_text("utf-8") == '"changed"\n'


# Save as -------------------------------------------------------------------------------------------------------------


def test_save_as_and_enter_saves(folder: Server, open_tab: Open) -> None:
    tab = open_tab(folder)
    new(tab, '"new"\n')
    tab.page.locator(EDITOR).focus()
    tab.page.keyboard.press("ControlOrMeta+s")
    tab.page.wait_for_selector("#save-dialog[open]")
    assert tab.page.evaluate("document.activeElement.id") == "save-name"
    tab.page.keyboard.press("Enter")
    saved(tab, "untitled.lq")
    assert (folder.folder / "untitled.lq").read_text("utf-8") == '"new"\n'
    tab.page.click("#save-as")
    tab.page.keyboard.type("with spaces é 日")
    tab.page.keyboard.press("Enter")
    saved(tab, "with spaces é 日.lq")
    assert (folder.folder / "with spaces é 日.lq").read_text("utf-8") == '"new"\n'
    tab.page.click("#save-as")
    tab.page.keyboard.press("Escape")
    assert tab.page.is_hidden("#save-dialog")


@pytest.mark.parametrize("name", ["con", "../up"])
def test_a_name_that_no_file_can_have_is_a_sentence_in_the_dialog(folder: Server, open_tab: Open, name: str) -> None:
    tab = open_tab(folder)
    new(tab, '"new"\n')
    tab.page.click("#save")
    tab.page.fill("#save-name", name)
    tab.page.keyboard.press("Enter")
    tab.until("document.getElementById('save-says').textContent !== ''")
    assert tab.page.is_visible("#save-dialog") and tab.page.input_value("#save-name") == name
    tab.page.fill("#save-name", "good")
    tab.page.keyboard.press("Enter")
    saved(tab, "good.lq")
    tab.complaints.clear()  # the browser reports what was refused


def test_save_as_never_overwrites_without_a_question(folder: Server, open_tab: Open) -> None:
    tab = open_tab(folder)
    new(tab, '"new"\n')
    tab.page.click("#save")
    tab.page.fill("#save-name", "b.lq")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#conflict-dialog[open]")
    assert "already" in tab.page.inner_text("#conflict-dialog")
    assert (folder.folder / "b.lq").read_text("utf-8") == TWO["b.lq"]
    tab.page.click("#conflict-overwrite")
    saved(tab, "b.lq")
    assert (folder.folder / "b.lq").read_text("utf-8") == '"new"\n'
    tab.complaints.clear()  # the browser reports a 409


def test_a_folder_that_cannot_be_written_is_a_sentence_and_the_text_stays(folder: Server, open_tab: Open) -> None:
    tab = open_tab(folder)
    tab.write('"mine"\n')
    shutil.rmtree(folder.folder)
    folder.folder.write_text("no folder", "utf-8")
    tab.page.click("#save")
    tab.page.wait_for_selector("#banner:visible")
    assert text(tab) == '"mine"\n' and tab.page.inner_text("#name") == "● a.lq"
    assert listed(tab) == ["● a.lq"]
    tab.complaints.clear()  # the browser reports what was refused


@pytest.mark.parametrize("dialog", ["examples", "share", "save-as"])
def test_no_dialog_opens_on_its_cross(folder: Server, open_tab: Open, dialog: str) -> None:
    tab = open_tab(folder)
    tab.page.click(f"#{dialog}")
    tab.page.wait_for_selector("dialog[open]")
    assert tab.page.evaluate("document.activeElement.dataset.close") is None
    tab.page.keyboard.press("Escape")
    assert tab.page.locator("dialog[open]").count() == 0


# The text in the editor -----------------------------------------------------------------------------------------------


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


def test_run_keeps_the_focus(server: Server, open_tab: Open) -> None:
    tab = open_tab(server)
    tab.write('"one"\n')
    tab.page.focus("#run")
    tab.page.keyboard.press("Enter")
    tab.wait("done")
    assert tab.page.evaluate("document.activeElement.id") == "run"
