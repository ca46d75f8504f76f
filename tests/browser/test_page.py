"""The views of a run in the page: text, tokens, tree, ledger, log; and its files."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from tests.browser.conftest import ROOT, Open, Server, Tab

PACKING = (ROOT / "examples" / "01_packing_list.lq").read_text("utf-8")
CLAUSES = """"A list of things not to forget when going to the sea (not travelling): \\n"
"- Sunglasses \\n"
for i in range(3):
    "-[THING]" where STOPS_AT(THING, "\\n") and "o" not in THING
"""
GUESSED = """"A list of things not to forget when going to the sea (not travelling): \\n"
"- Sunglasses \\n"
for i in range(6):
    "-[THING]" where STOPS_AT(THING, "\\n")
"\\nA list of things not to forget when going to the sea (not travelling): \\n"
"- Umbrella \\n"
for i in range(4):
    "-[THING]" where STOPS_AT(THING, "\\n")
"""
BEAMS = """beam(n=3)
    "Q: Is it?\\nA:[A]\\n"
    "B:[B]"
where
    A in [" yes", " no", " perhaps"] and len(B) < 9
"""
PICKY = """def even(text):
    return len(text) % 2 == 0

"A list of things not to forget when going to the sea (not travelling): \\n"
"- Sunglasses \\n"
"-[THING]" where STOPS_AT(THING, "\\n") and even(THING)
"""


def test_the_page_loads_from_its_server_alone_and_complains_of_nothing(tab: Tab, shared_server: Server) -> None:
    assert tab.page.title() == "01_packing_list.lq – lq playground"
    assert tab.page.get_attribute("html", "data-ready") == "rich"
    assert {urlsplit(url).netloc for url in tab.asked if not url.startswith("data:")} == {
        urlsplit(shared_server.origin).netloc
    }


def test_a_first_run_fills_the_output(server: Server, open_tab: Open) -> None:
    tab = open_tab(server)
    tab.page.click("#run")
    tab.until("document.querySelectorAll('#output .hole:not(.open)').length === 4")
    tab.wait("done")
    assert tab.text() == (ROOT / "examples" / "expected" / "01_packing_list.txt").read_text("utf-8")
    assert tab.page.locator("#output .hole").first.text_content() == "THING stop Swimsuit \n"
    assert tab.page.locator("#holes table tbody td").first.inner_text().strip() == "Umbrella"


def test_a_second_run_asks_the_model_nothing(server: Server, open_tab: Open) -> None:
    tab = open_tab(server)
    tab.run(PACKING)
    assert (tab.count("tokens_from_model"), tab.count("tokens_from_cache")) == ("13", "0")
    tab.run()
    assert (tab.count("tokens_from_model"), tab.count("tokens_from_cache")) == ("0", "13")
    assert tab.page.inner_text("#hero strong") == "13 tokens: 13 from the cache, the model was not called"
    assert tab.page.is_hidden("#saved")
    tab.page.click("#ledger summary >> nth=0")
    assert tab.page.inner_text("#saved") == "saved 13 of 13 tokens (100 %)"
    tab.show("trie")
    kinds = tab.page.locator("#trie .edge:not(.ghost)").evaluate_all("edges => edges.map(edge => edge.classList[1])")
    assert set(kinds) == {"cache", "prompt"}


def labels(tab: Tab, kind: str) -> list[str]:
    """Names of the parts of the tree of a kind."""
    return tab.page.locator(f"#trie .run{kind}").evaluate_all("parts => parts.map((part) => part.ariaLabel)")


def test_what_was_taken_back_is_a_ghost_in_the_tree_and_not_in_the_text(tab: Tab) -> None:
    tab.run(PICKY)
    assert "Beach ball" not in tab.text() and " Sun hat" in tab.text()
    tab.show("trie")
    assert "✕  Beach ball ⏎" in tab.page.locator("#trie .run.dropped > text").all_text_contents()
    dash = tab.page.locator("#trie .edge.dropped").first.evaluate("edge => getComputedStyle(edge).strokeDasharray")
    assert dash != "none"
    assert any("Beach ball" in label and "taken back" in label for label in labels(tab, ".dropped"))
    tab.show("tokens")
    struck = tab.page.locator("#tokens .token.dropped").all_text_contents()
    assert " Beach" in struck


def test_a_guess_that_missed_is_a_ghost_in_the_tree_and_not_in_the_text(tab: Tab) -> None:
    tab.run(GUESSED)
    missed = int(tab.count("draft_rejected"))
    assert missed and int(tab.count("draft_accepted")), "the query has become one that tells nothing"
    tab.show("trie")
    rows = [label for label in labels(tab, ".dropped") if "drafted, but not reached" in label]
    assert sum(int(found[1]) for row in rows if (found := re.search(r"(\d+) tokens?, reached", row))) == missed
    texts = {row.partition(":")[0].strip("✕⏎ ") for row in rows}
    second = tab.page.locator("#output").inner_text().rpartition("travelling")[2]
    assert any(text and text not in second for text in texts), "each guess that missed is in the text elsewhere"
    assert labels(tab, ".draft")


def test_a_token_tells_which_clause_forbade_what_the_model_liked_better(tab: Tab) -> None:
    tab.run(CLAUSES)
    tab.show("tokens")
    tab.page.locator("#tokens .token", has_text="lip").click()
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("ArrowRight")  # behind "Flip-" there comes no "flops"
    rows = tab.page.locator("#card tbody tr").all_inner_texts()
    assert any("✓ taken" in row for row in rows)
    forbidden = [row for row in rows if 'forbidden by "o" not in THING' in row]
    assert forbidden and forbidden[0].startswith("flops")
    tab.page.click("#card .facts summary")
    assert "of 1,536 tokens" in tab.page.inner_text("#card")


def test_of_beams_the_result_is_shown_and_those_given_up_are_ghosts(tab: Tab) -> None:
    tab.run(BEAMS)
    shown = tab.page.locator("#hypothesis option:checked").inner_text()
    assert "the result" in shown
    values = tab.page.locator("#holes tbody tr").all_inner_texts()
    answer = next(row.split("\t")[1].strip() for row in values if row.startswith("A"))
    assert f"A: {answer}" in tab.text()
    given_up = [each for each in tab.page.locator("#hypothesis option").all_inner_texts() if "given up" in each]
    tab.show("trie")
    ghosts = [label for label in labels(tab, ".dropped") if "of a branch that was given up" in label]
    assert bool(given_up) == bool(ghosts)


def test_several_hypotheses_can_be_looked_at_one_by_one(tab: Tab) -> None:
    tab.run('sample(n=3, temperature=1.2, seed=5)\n    "A:[WORD]\\n"\nwhere\n    WORD in [" yes", " no", " perhaps"]')
    states = tab.page.locator("#hypothesis option").all_text_contents()
    assert len(states) == 3
    said = set()
    for state in states:
        tab.page.select_option("#hypothesis", state)
        tab.settle()
        said.add(tab.text())
    assert said <= {"A: yes\n", "A: no\n", "A: perhaps\n"} and said
    tab.show("trie")
    passes = tab.page.locator("#trie .run").first.get_attribute("aria-label") or ""
    assert passes.endswith("3 times")


def test_the_form_has_the_options_of_the_table_and_a_run_gets_them(tab: Tab) -> None:
    tab.page.click("details.options summary")
    tab.page.fill("#option-seed", "7")
    tab.page.fill("#option-top_p", "0.5")
    tab.page.select_option("#option-decoder", "sample")
    tab.page.select_option("#option-speculate", "false")
    with tab.page.expect_request(lambda request: request.url.endswith("/api/runs")) as sent:
        tab.run('"Say:[X]" where len(X) < 5')
    options = sent.value.post_data_json["options"]
    given = {name: value for name, value in options.items() if value is not None and name != "model"}
    assert given == {"seed": 7, "top_p": 0.5, "decoder": "sample", "speculate": False}


def test_a_report_is_downloaded(tab: Tab) -> None:
    tab.run(PACKING)
    tab.page.click("#share")
    with tab.page.expect_download() as download:
        tab.page.click("#download-report")
    page = Path(download.value.path()).read_text("utf-8")
    assert page.startswith("<!doctype html>") and "Swimsuit" in page


def test_the_inputs_of_an_example_are_offered_and_ones_own_are_kept(server: Server, open_tab: Open) -> None:
    tab, field = open_tab(server), "textarea[aria-label='input review']"
    for review in ("The room was dirty and the staff was rude.", "The room was clean."):
        tab.page.click("#examples")
        tab.page.click("#gallery button:has-text('05_sentiment.lq')")
        tab.page.wait_for_selector(field)
        assert tab.page.input_value(field) == review
        tab.page.fill(field, "The room was clean.")


def test_a_recording_carries_its_query_to_another_page(server: Server, open_tab: Open, tmp_path: Path) -> None:
    tab = open_tab(server)
    tab.write('"Dear {name}, [X]" where X in ["hello", "good bye"]\n')
    tab.page.fill("textarea[aria-label='input name']", "Ada")
    tab.page.click("#run")
    tab.wait("done")
    tab.page.click("#share")
    with tab.page.expect_download() as download:
        tab.page.click("#download-lqrun")
    download.value.save_as(tmp_path / "kept.lqrun")
    other = open_tab(server)
    (tmp_path / "none.lqrun").write_text("no recording\n", "utf-8")
    other.page.click("#share")
    other.page.set_input_files("#open-lqrun", tmp_path / "none.lqrun")
    other.until("document.getElementById('share-says').textContent.includes('is not a recording')")
    other.page.set_input_files("#open-lqrun", tmp_path / "kept.lqrun")
    other.until("document.getElementById('banner').textContent.includes('this is its query')")
    other.settle()
    assert other.text() == tab.text()
    assert other.page.input_value("textarea[aria-label='input name']") == "Ada"
    assert other.page.is_hidden("#stale"), "the run is of this text"
