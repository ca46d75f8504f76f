"""Takes the README's picture of the page, `docs/playground.png`, in a real Chromium: the tree of a second run.

npm --prefix playground run build && python playground/picture.py [FILE]
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

TOP = Path(__file__).parent.parent
PICTURE = TOP / "docs" / "playground.png"
QUERY = TOP / "examples" / "01_packing_list.lq"
EDIT = '"What I need most is the[MOST]." where MOST in [" water bottle", " water melon", " hat"]\n'
"""Text added before the second run: it asks the model, and leaves some tokens without a choice."""


def main(picture: Path = PICTURE) -> None:
    with tempfile.TemporaryDirectory() as folder:
        query = Path(shutil.copy(QUERY, folder))
        command = [sys.executable, "-m", "lmql_lite", "playground", "--no-open", str(query)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=TOP)
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None, "the playground did not start"
            take(found.group(), picture)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)


def take(address: str, picture: Path) -> None:
    with sync_playwright() as playwright:
        place = shutil.which("chromium") or shutil.which("chromium-browser")
        # A container's /dev/shm may be too small for a page.
        browser = playwright.chromium.launch(executable_path=place, args=["--no-sandbox", "--disable-dev-shm-usage"])
        page = browser.new_page(viewport={"width": 1280, "height": 830})
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        run(page)
        page.focus("#query [contenteditable]")
        page.keyboard.press("ControlOrMeta+End")
        page.keyboard.insert_text(EDIT)
        run(page)
        page.click("#tab-trie")
        page.wait_for_selector("#trie .run")
        page.wait_for_selector("#panels[aria-busy=false]")
        page.screenshot(path=picture)
        browser.close()


def run(page: Page) -> None:
    page.click("#run")
    page.wait_for_selector("#state[data-state=running], #state[data-state=starting]", state="attached")
    page.wait_for_selector("#state[data-state=done]", timeout=60_000)
    page.wait_for_selector("#panels[aria-busy=false]")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
