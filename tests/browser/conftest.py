"""A real server, and a real Chromium that looks at it. Tests of which one is missing are skipped, and say why.

The browser lives as long as the tests of one file: while it does, the thread has a running event loop, and other tests
cannot have one.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
DRIVER_FAILURE = r"^(Error|TargetClosedError|TimeoutError): "
PLAYGROUND = ROOT / "playground"
SOURCES = ("index.html", "*.css", "*.mjs", "package-lock.json", "src/**/*.js")

MAIN = ("output", "trie", "runs")
"""Views that have a tab; the others are options of a menu."""

EDITOR = "#query [contenteditable], #query textarea"
PASTE = """(editor, text) => {
    if (editor.matches("textarea")) {
        editor.setRangeText(text, editor.selectionStart, editor.selectionEnd, "end");
        editor.dispatchEvent(new Event("input"));
        return;
    }
    const clipboardData = new DataTransfer();
    clipboardData.setData("text/plain", text);
    editor.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
}"""


def build() -> None:
    """Makes `playground/dist` where it is not there, or is older than what it is made of."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("the page's tests need npm, which is not installed")
    with open(PLAYGROUND / "package.json", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one builder, however many workers
        steps = [] if (PLAYGROUND / "node_modules" / "esbuild").is_dir() else [[npm, "ci", "--ignore-scripts"]]
        if steps or _is_old():
            for step in [*steps, [npm, "run", "build"]]:
                done = subprocess.run(step, cwd=PLAYGROUND, capture_output=True, text=True, timeout=300)
                if done.returncode and step[1] == "ci":
                    pytest.skip(f"the page's packages cannot be fetched: {done.stderr[-300:]}")
                assert done.returncode == 0, done.stdout + done.stderr


def _is_old() -> bool:
    made = PLAYGROUND / "dist" / "index.html"
    newest = max(path.stat().st_mtime for pattern in SOURCES for path in PLAYGROUND.glob(pattern))
    return not made.is_file() or made.stat().st_mtime < newest


class Server:
    """`lq playground` in a process of its own."""

    def __init__(self, folder: Path, *, package: Path = ROOT, options: tuple[str, ...] = ()) -> None:
        environment = {**os.environ, "PYTHONPATH": str(package), "HOME": str(folder), "BROWSER": "true"}
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lmql_lite", "playground", "--no-open", "--port", "0", *options, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.said = ""
        """All that it has written, once it is stopped."""
        for line in self.process.stdout:
            self.said += line
            if found := re.search(r"http://\S+", line):
                self.address = found.group()
                break
        else:
            raise AssertionError(f"the playground did not start: {self.said}")
        self.origin, self.token = self.address.split("/#token=")

    @property
    def port(self) -> int:
        return int(self.origin.rpartition(":")[2])

    def stop(self) -> None:
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGINT)
        try:
            self.said += self.process.communicate(timeout=10)[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


class Tab:
    """One page, and what a person does on it. What it complained of is kept."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def open(self, address: str) -> None:
        self.page.goto(address)
        self.page.wait_for_selector("html[data-ready]")

    def until(self, expression: str, seconds: float = 15) -> None:
        """Waits for an expression to come true. The page's own rules forbid what Playwright has for that."""
        last = time.monotonic() + seconds
        while not self.page.evaluate(expression):
            assert time.monotonic() < last, f"this did not come true: {expression}"
            self.page.wait_for_timeout(20)

    def write(self, query: str) -> None:
        """Puts a query into the editor, as a paste does."""
        self.page.locator(EDITOR).focus()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.locator(EDITOR).evaluate(PASTE, query)

    def run(self, query: str | None = None, state: str = "done") -> None:
        """Runs what stands there, until it has ended."""
        if query is not None:
            self.write(query)
        self.page.click("#run")
        self.wait(state)

    def wait(self, state: str) -> None:
        self.page.wait_for_selector(f"#state[data-state={state}]", timeout=20_000)
        self.page.wait_for_selector("#run[aria-disabled=false]")
        self.settle()

    def show(self, view: str) -> None:
        self.choose(view)
        self.settle()

    def choose(self, view: str) -> None:
        if view in MAIN:
            self.page.click(f"#tab-{view}")
        else:
            self.page.select_option("#more", view)

    def settle(self) -> None:
        """Until everything that is in view is drawn."""
        self.page.wait_for_selector("#panels[aria-busy=false]")

    def count(self, name: str) -> str:
        """A row of the ledger."""
        return self.page.locator(f"[data-count={name}] td").text_content() or ""

    def text(self) -> str:
        """What Output shows, without the names of the holes."""
        return str(
            self.page.evaluate(
                """() => { const copy = document.getElementById("output").cloneNode(true);
                copy.querySelectorAll(".label").forEach((label) => label.remove());
                return [...copy.children].map((block) => block.textContent).join(""); }"""
            )
        )


@pytest.fixture(scope="module")
def running_chromium() -> Iterator[Callable[[], Browser]]:
    """Gives the browser; another one where it has died, so that its death costs one test and not those that follow."""
    driver = pytest.importorskip(
        "playwright.sync_api", reason="the page's tests need playwright (pip install '.[test]')"
    )
    place = shutil.which("chromium") or shutil.which("chromium-browser")
    if place is None:
        pytest.skip("the page's tests need Chromium (Debian: apt-get install chromium)")
    build()
    # A container's /dev/shm may be too small for a page.
    args = ["--no-sandbox", "--disable-dev-shm-usage", "--host-resolver-rules=MAP evil.test 127.0.0.1"]
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=place, args=args)

        def running() -> Browser:
            nonlocal browser
            if not browser.is_connected():
                browser = playwright.chromium.launch(executable_path=place, args=args)
            return browser

        yield running
        browser.close()


@pytest.fixture
def chromium(running_chromium: Callable[[], Browser]) -> Browser:
    return running_chromium()


@pytest.fixture(scope="module")
def shared_server(running_chromium: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For tests that do not care what other tests have run."""
    server = Server(tmp_path_factory.mktemp("queries"))
    yield server
    server.stop()


@pytest.fixture
def server(chromium: Browser, tmp_path: Path) -> Iterator[Server]:
    """Nothing has run on it, and its cache is empty."""
    server = Server(tmp_path)
    yield server
    server.stop()


Open = Callable[..., Tab]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test in which the browser's driver failed, and no assertion did, is tried once more, and reported."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=[DRIVER_FAILURE]))


@pytest.fixture
def open_tab(chromium: Browser, shared_server: Server) -> Iterator[Open]:
    """Opens a page in a context of its own; every complaint of it fails the test, unless it is expected."""
    from playwright.sync_api import Error

    contexts: list[BrowserContext] = []
    tabs: list[Tab] = []

    def opened(at: Server | None = None, address: str | None = None, **options: Any) -> Tab:
        contexts.append(chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **options}))
        contexts[-1].set_default_timeout(15_000)
        tab = Tab(contexts[-1].new_page())
        tabs.append(tab)
        tab.open(address or (at or shared_server).address)
        return tab

    yield opened
    complaints = [each for tab in tabs for each in tab.complaints]
    if chromium.is_connected():
        for context in contexts:
            with suppress(Error):  # it is closed already where a test has closed its last page
                context.close()
    assert complaints == []


@pytest.fixture
def tab(open_tab: Open) -> Tab:
    return open_tab()
