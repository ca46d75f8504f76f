"""What the page says while it waits: for a server, for a worker, for the check of what was just pasted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.browser.conftest import Open, Server, Tab

if TYPE_CHECKING:
    from playwright.sync_api import Route

SILENT = "import time\ntime.sleep(600)\n"
TREE = """import time
for i in range({count}):
    "line {{i}}:[X]\\n" where X in [" yes", " no"]
    time.sleep(0.05)
"""


def test_a_run_that_has_said_nothing_yet_says_that_it_is_under_way(tab: Tab) -> None:
    tab.page.route("**/api/runs/*/events*", lambda route: None)  # no line of it ever comes
    tab.write(SILENT)
    tab.page.click("#run")
    tab.page.wait_for_selector("#output-waiting:visible")
    assert tab.page.is_hidden("#output-empty")
    assert tab.page.get_attribute("#state", "data-state") == "running"
    assert tab.page.is_enabled("#stop")
    tab.page.evaluate(
        """async () => {
        const headers = { Authorization: "Bearer " + sessionStorage.token };
        const { runs } = await (await fetch("/api/runs", { headers })).json();
        for (const { run } of runs) await fetch("/api/runs/" + run, { method: "DELETE", headers });
    }"""
    )


def test_a_click_on_run_is_answered_before_the_server_answers(tab: Tab) -> None:
    started: list[Route] = []
    tab.page.route("**/api/runs", lambda route: started.append(route))
    tab.write('"text"\n')
    tab.page.click("#run")
    tab.page.wait_for_selector("#state[data-state=starting]")
    tab.page.keyboard.press("ControlOrMeta+Enter")
    tab.page.wait_for_selector("#run[aria-disabled=true]")
    while not started:
        tab.page.wait_for_timeout(20)
    started[0].continue_()
    tab.wait("done")
    assert len(started) == 1, "it was started twice"
    assert tab.text() == "text"


def test_a_query_that_is_pasted_and_run_at_once_is_given_its_inputs(tab: Tab) -> None:
    tab.write('"{place}"\n')
    tab.page.fill("textarea[aria-label='input place']", "Rome")
    tab.write('"none"\n')
    tab.page.wait_for_selector("#inputs-section", state="hidden")
    tab.write('"Hello {place}"\n')
    tab.page.keyboard.press("ControlOrMeta+Enter")
    tab.wait("done")
    assert tab.text() == "Hello Rome"


def test_a_server_that_is_gone_is_a_sentence_and_not_what_the_browser_calls_it(server: Server, open_tab: Open) -> None:
    tab = open_tab(server)
    tab.until("document.getElementById('problem-count').textContent === 'none'")
    server.stop()
    tab.page.click("#run")
    tab.page.wait_for_selector("#banner:visible")
    assert "does not answer — start `lq playground` again" in tab.page.inner_text("#banner")
    assert tab.page.is_enabled("#run")
    assert all("net::ERR" in each for each in tab.complaints)
    tab.complaints.clear()


def test_what_is_drawn_of_the_tree_stays_while_it_grows(tab: Tab) -> None:
    tab.write(TREE.format(count=40))
    tab.show("trie")
    tab.page.click("#run")
    tab.until("document.querySelector('#trie .run')?.textContent.includes('line 0')")
    tab.until("document.querySelectorAll('#trie .run').length >= 6")
    tab.page.locator("#trie .run").first.click()
    tab.page.evaluate("window.first_run = document.querySelector('#trie .run')")
    before = tab.page.locator("#trie .run").count()
    tab.until(f"document.querySelectorAll('#trie .run').length > {before + 10}")
    assert tab.page.evaluate("first_run.isConnected && document.activeElement === first_run")
    assert tab.page.evaluate("first_run.getAttribute('aria-selected')") == "true"
    assert tab.page.locator('#trie [tabindex="0"]').count() == 1
    tab.wait("done")
