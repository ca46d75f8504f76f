"""What the page shows of an example before anything was run: a run of it that came with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.browser.conftest import ROOT, Open, Server, Tab

OWN = '"one"\n'


def runs(tab: Tab) -> int:
    asked = "fetch('/api/runs', {headers: {Authorization: 'Bearer ' + sessionStorage.token}})"
    return int(tab.page.evaluate(f"{asked}.then(said => said.json()).then(({{runs}}) => runs.length)"))


def choose(tab: Tab, name: str) -> None:
    tab.page.click("#examples")
    tab.page.click(f"#gallery button:has-text('{name}')")
    tab.until(f"document.getElementById('name').textContent === '{name}'")
    tab.page.wait_for_selector("#state[data-state=recorded]")
    tab.settle()


def test_a_card_shows_text_tokens_tree_and_ledger_of_a_recorded_run_and_runs_nothing(
    server: Server, open_tab: Open
) -> None:
    tab = open_tab(server)
    for place in sorted((ROOT / "examples").glob("*.lq")):
        choose(tab, place.name)
        lines = (ROOT / "examples" / "recorded" / f"{place.stem}.lqrun").read_text("utf-8").splitlines()
        last = json.loads(lines[-1])
        tab.until(f"document.getElementById('at').max === '{len(lines)}'")
        tab.settle()
        assert tab.text().strip() == last["prompt"].strip(), place.stem
        assert tab.page.is_visible("#recorded")
        assert tab.count("tokens_from_model") == str(last["usage"]["tokens_from_model"])
    tab.show("tokens")
    assert tab.page.locator("#tokens .token.model").count() > 10
    tab.show("trie")
    assert tab.page.locator("#trie .run").count() > 10
    assert runs(tab) == 0
    assert not [url for url in tab.asked if url.endswith("/api/plan")]


def test_a_run_takes_the_place_of_the_recorded_one_and_is_not_counted_with_it(server: Server, open_tab: Open) -> None:
    tab = open_tab(server)
    tab.wait("recorded")
    assert "Nothing has run here yet" in tab.page.inner_text("#panel-output")
    assert "Run it again" not in tab.page.inner_text("#ledger")
    tab.run()
    assert tab.page.is_hidden("#recorded")
    assert "Run it again" in tab.page.inner_text("#ledger")
    tab.show("trie")
    tab.page.select_option("#trie-scope", "page")
    tab.settle()
    label = tab.page.locator("#trie .run").first.get_attribute("aria-label") or ""
    assert label.endswith("reached once")


def test_the_inputs_of_a_recorded_run_are_there_for_a_run_of_ones_own(server: Server, open_tab: Open) -> None:
    tab = open_tab(server)
    choose(tab, "05_sentiment.lq")
    field = "textarea[aria-label='input review']"
    tab.page.wait_for_selector(field)
    assert tab.page.input_value(field) == "The room was dirty and the staff was rude."
    tab.run()
    assert tab.page.inner_text("#result .value") == "apologise"
    tab.page.fill(field, "The room was clean.")
    choose(tab, "05_sentiment.lq")
    assert tab.page.input_value(field) == "The room was clean."


def test_another_query_does_not_keep_the_recorded_run_of_an_example(server: Server, open_tab: Open) -> None:
    tab = open_tab(server)
    tab.wait("recorded")
    (server.folder / "mine.lq").write_text(OWN, "utf-8")
    tab.page.reload()
    tab.wait("recorded")
    tab.page.click("#examples")
    tab.page.click("#gallery button:has-text('mine.lq')")
    tab.until("document.getElementById('at-says').textContent === 'no run yet'")
    tab.settle()
    assert tab.page.is_hidden("#recorded") and tab.page.is_visible("#output-empty")
    assert tab.text() == ""


def test_a_run_that_is_under_way_is_not_hidden_by_a_card(tab: Tab) -> None:
    tab.write('import time\nfor i in range(200):\n    "{i} "\n    time.sleep(0.1)\n')
    tab.page.click("#run")
    tab.until("document.getElementById('output').textContent.includes('2 ')")
    tab.page.click("#examples")
    tab.page.click("#gallery button:has-text('06_dates.lq')")
    tab.until("document.getElementById('name').textContent === '06_dates.lq'")
    tab.until("document.getElementById('output').textContent.includes('9 ')")
    assert tab.page.get_attribute("#state", "data-state") == "running"
    tab.page.click("#stop")
    tab.wait("stopped")


def test_a_recording_carries_its_query_to_another_page(server: Server, open_tab: Open, tmp_path: Path) -> None:
    tab = open_tab(server)
    query = '"Dear {name}, [X]" where X in ["hello", "good bye"]\n'
    tab.write(query)
    tab.page.fill("textarea[aria-label='input name']", "Ada")
    tab.page.click("#run")
    tab.wait("done")
    text = tab.text()
    tab.page.click("#share")
    with tab.page.expect_download() as download:
        tab.page.click("#download-lqrun")
    download.value.save_as(tmp_path / "kept.lqrun")
    command = [sys.executable, "-m", "lmql_lite", "replay", str(tmp_path / "kept.lqrun")]
    assert subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.strip() == text
    other = open_tab(server)
    (tmp_path / "none.lqrun").write_text("no recording\n", "utf-8")
    other.page.click("#share")
    other.page.set_input_files("#open-lqrun", tmp_path / "none.lqrun")
    other.until("document.getElementById('share-says').textContent.includes('is not a recording')")
    other.page.set_input_files("#open-lqrun", tmp_path / "kept.lqrun")
    other.until("document.getElementById('banner').textContent.includes('this is its query')")
    other.settle()
    assert other.text() == text
    assert other.page.input_value("textarea[aria-label='input name']") == "Ada"
    assert other.page.is_hidden("#stale"), "the run is of this text"
    other.page.click("#run")
    other.wait("done")
    assert other.text() == text
