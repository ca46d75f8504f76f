"""A run of 50,000 tokens: all of it can be looked at, and no view holds or draws all of it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.conftest import Open, Tab
from tests.browser.recordings import lines, long_run

TOKENS = 50_000
ELEMENTS = "document.getElementsByTagName('*').length"
MAX_ELEMENTS = 12_000
WATCHED = """() => {
    window.frames_drawn = new Set();
    const output = document.getElementById("output");
    const seen = new MutationObserver(() => frames_drawn.add(output.textContent.length));
    seen.observe(output, { childList: true, subtree: true });
}"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("recordings") / "long.lqrun"
    place.write_text("".join(lines(long_run(TOKENS))), "utf-8")
    return place


@pytest.fixture
def long_tab(open_tab: Open, recording: Path) -> Tab:
    tab = open_tab()
    tab.page.evaluate(WATCHED)
    tab.page.click("#share")
    tab.page.set_input_files("#open-lqrun", recording)
    tab.until("document.getElementById('state').dataset.state === 'done'", seconds=60)
    tab.until("document.getElementById('panels').getAttribute('aria-busy') === 'false'", seconds=60)
    return tab


def test_fifty_thousand_tokens_are_drawn_in_many_frames_and_in_bounded_pieces(long_tab: Tab) -> None:
    page = long_tab.page
    assert len(page.evaluate("[...frames_drawn]")) > 3
    assert page.evaluate("document.getElementById('output').textContent.length") > 250_000
    blocks = "[...document.querySelectorAll('#output .block')].map((block) => block.textContent.length)"
    longest = page.evaluate(f"Math.max(...{blocks})")
    assert longest < 10_000
    for view in ("output", "trie", "tokens", "log"):
        long_tab.choose(view)
        long_tab.until("document.getElementById('panels').getAttribute('aria-busy') === 'false'", seconds=60)
        assert page.evaluate(ELEMENTS) < MAX_ELEMENTS, view
    assert long_tab.count("tokens_from_cache") == str(TOKENS // 4)


def test_the_last_of_fifty_thousand_tokens_is_one_key_away(long_tab: Tab) -> None:
    page = long_tab.page
    long_tab.choose("tokens")
    long_tab.until("document.getElementById('panels').getAttribute('aria-busy') === 'false'", seconds=60)
    page.locator("#tokens .token").first.click()
    page.keyboard.press("End")
    assert page.get_attribute(":focus", "aria-posinset") == str(TOKENS + 1)
    assert page.evaluate(ELEMENTS) < MAX_ELEMENTS
    page.keyboard.press("Home")
    assert page.get_attribute(":focus", "aria-posinset") == "1"
