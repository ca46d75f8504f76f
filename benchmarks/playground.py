"""What a person waits for on the playground's page: the first token, a stop, and frames while 50,000 tokens come.

    python benchmarks/playground.py [--runs 7] [--only first|frames|pieces|size]

A real `lq playground` in a process of its own, and Chromium without a window, driven by Playwright, over loopback. A
frame is what lies between two calls of requestAnimationFrame. Medians, with the least and the greatest of n runs. Where
the machine has something else to do, frames are late whatever the page does: a page that does nothing is measured
beside it, and each row says how much processor time the longest task of the page's main thread took, by the browser's
own trace.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import httpx  # noqa: E402
from playwright.sync_api import Browser, sync_playwright  # noqa: E402

from tests.browser.conftest import PLAYGROUND, Server, Tab, build  # noqa: E402
from tests.browser.recordings import lines, long_run  # noqa: E402

EXAMPLE = (ROOT / "examples" / "01_packing_list.lq").read_text("utf-8")
FORCED = (
    " alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon phi"
    " chi psi omega"
)
"""76 tokens of the demo model."""
TOKENS = 50_000
MANY = f'''for i in range({TOKENS // 76 + 1}):\n    "Say:[X]\\n" where X in ["{FORCED}"]\n'''
ASKED = """for i in range(10):\n    "List {i * 7919}:[X]\\n" where len(TOKENS(X)) == 40\n"""
ENDLESS = "def spin():\n    while True:\n        pass\n\nspin()\n"
VIEWS = ("output", "trie", "tokens", "log")
MOST_BYTES, MOST_FIRST_MS, MOST_FRAME_MS = 200_000, 300, 100

FIRST = """() => new Promise((done) => {
    const began = performance.now();
    document.querySelectorAll("#output .hole").forEach((hole) => { hole.dataset.old = "yes"; });
    const look = () => {
        const hole = document.querySelector("#output .hole:not([data-old])");
        const said = hole && hole.textContent.replace(/^[A-Z]+/, "").trim();
        if (said) requestAnimationFrame(() => done(performance.now() - began));
        else requestAnimationFrame(look);
    };
    document.getElementById("run").click();
    requestAnimationFrame(look);
})"""
"""From the click to the frame behind the one that has a token of a hole."""

STOP = """() => new Promise((done) => {
    const began = performance.now();
    const look = () => document.getElementById("state").dataset.state === "stopped"
        ? done(performance.now() - began) : requestAnimationFrame(look);
    document.getElementById("stop").click();
    look();
})"""

WATCH = """() => {
    window.frames_ms = [];
    let before = performance.now();
    const frame = () => {
        const now = performance.now();
        frames_ms.push(now - before);
        before = now;
        requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
}"""
FORGET = "() => { frames_ms.length = 0; }"
WORST = "() => frames_ms.reduce((most, each) => Math.max(most, each), 0)"
IS_DONE = "document.getElementById('state').dataset.state === 'done'"
IS_DRAWN = "document.getElementById('panels').getAttribute('aria-busy') === 'false'"


@contextmanager
def playground() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def tab_of(browser: Browser, address: str) -> Iterator[Tab]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    tab = Tab(context.new_page())
    tab.open(address)
    yield tab
    context.close()


def told(what: str, values: list[float], most: float | None = None) -> None:
    middle = statistics.median(values)
    line = f"{what:<58} {middle:8.0f} ms   {min(values):6.0f} .. {max(values):6.0f}   n={len(values)}"
    if most is not None:
        line += f"   {'holds' if max(values) <= most else 'MISSED'}: at most {most:.0f}"
    print(line, flush=True)


def first(browser: Browser, runs: int) -> None:
    """The wait for the first token, some seconds after the server was started, when two processes are ready; again as
    soon as that run is over, and once more, when the next process is still starting. And the wait for the end of a run
    that would have none."""
    firsts, again, third, stops, five = [], [], [], [], []
    for _ in range(runs):
        with playground() as server, tab_of(browser, server.address) as tab:
            tab.write(EXAMPLE)
            tab.page.wait_for_timeout(4000)
            firsts.append(tab.page.evaluate(FIRST))
            tab.wait("done")
            again.append(tab.page.evaluate(FIRST))
            tab.wait("done")
            third.append(tab.page.evaluate(FIRST))
            tab.wait("done")
            for _ in range(5):
                tab.page.wait_for_timeout(1000)
                five.append(tab.page.evaluate(FIRST))
                tab.wait("done")
            tab.write(ENDLESS)
            tab.page.click("#run")
            tab.page.wait_for_selector("#state[data-state=running]")
            tab.page.wait_for_timeout(1500)
            stops.append(tab.page.evaluate(STOP))
    told("click to the first painted token, first run", firsts, MOST_FIRST_MS)
    told("click to the first painted token, at once again", again, MOST_FIRST_MS)
    told("click to the first painted token, and once more", third, MOST_FIRST_MS)
    told("click to the first painted token, five times, 1 s apart", five, MOST_FIRST_MS)
    told("click on Stop until it says that the run is stopped", stops, 1000)


def frames(browser: Browser, runs: int) -> None:
    """The longest frame while 50,000 tokens are shown: read from a recording, and as they come from a server."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "long.lqrun"
        place.write_text("".join(lines(long_run(TOKENS))), "utf-8")
        with playground() as server:
            idle(browser, server, runs)
            recorded(browser, server, place, runs)
            live(browser, server, runs)


def recorded(browser: Browser, server: Server, place: Path, runs: int) -> None:
    for view in VIEWS:

        def show(tab: Tab, view: str = view) -> None:
            tab.page.click(f"#tab-{view}")
            tab.page.click("#share")
            tab.page.evaluate(FORGET)
            tab.page.set_input_files("#open-lqrun", place)

        measure(browser, server, f"a recording of {TOKENS:,} tokens, {view}", show, runs)


def live(browser: Browser, server: Server, runs: int) -> None:
    """A run that says as many tokens as fast as it can: what a condition forces needs no model. Worker, server and
    browser share the cores."""
    for view in VIEWS:

        def show(tab: Tab, view: str = view) -> None:
            tab.write(MANY)
            tab.page.wait_for_timeout(2000)
            tab.page.click(f"#tab-{view}")
            tab.page.evaluate(FORGET)
            tab.page.click("#run")
            tab.page.wait_for_selector("#state[data-state=running]")

        measure(browser, server, f"{TOKENS:,} tokens as they come, {view}", show, runs)


def pieces(runs: int) -> None:
    """How many pieces the lines of a run come in, and their bytes: of a model that is asked for each token, and of
    tokens that nobody is asked for."""
    for what, text in (("of a model, 400 tokens", ASKED), (f"forced, {TOKENS:,} tokens", MANY)):
        counts, sizes = list[int](), list[int]()
        for _ in range(runs):
            with playground() as server, httpx.Client(base_url=server.origin, timeout=120) as http:
                http.headers["Authorization"] = f"Bearer {server.token}"
                time.sleep(2)
                run = http.post("/api/runs", json={"text": text}).json()["run"]
                with http.stream("GET", f"/api/runs/{run}/events") as answer:
                    came = [len(piece) for piece in answer.iter_raw()]
            counts.append(len(came))
            sizes.append(sum(came))
        print(f"{what:<40} {statistics.median(counts):6.0f} pieces   {min(counts)} .. {max(counts)}   n={runs}")
        print(f"    {statistics.median(sizes):,.0f} bytes", flush=True)


def measure(browser: Browser, server: Server, what: str, show: Callable[[Tab], None], runs: int) -> None:
    worst, tasks, whole = list[float](), list[float](), list[float]()
    for _ in range(runs):
        with tab_of(browser, server.address) as tab:
            tab.page.evaluate(WATCH)
            browser.start_tracing(page=tab.page, categories=["toplevel", "__metadata"])
            began = time.perf_counter()
            show(tab)
            tab.until(IS_DONE, seconds=120)
            tab.until(IS_DRAWN, seconds=120)
            tab.page.wait_for_timeout(300)
            whole.append(1000 * (time.perf_counter() - began) - 300)
            worst.append(tab.page.evaluate(WORST))
            tasks.append(longest_task(browser.stop_tracing()))
    told(f"longest frame, {what}", worst, MOST_FRAME_MS)
    told("    processor time of the longest task", tasks, MOST_FRAME_MS)
    print(f"    all of it shown after {statistics.median(whole) / 1000:.1f} s", flush=True)


def longest_task(trace: bytes) -> float:
    """Milliseconds of processor time, of the main threads of pages."""
    found = json.loads(trace)["traceEvents"]
    names = {(each["pid"], each["tid"]) for each in found if each.get("args", {}).get("name") == "CrRendererMain"}
    tasks = [each["tdur"] for each in found if "tdur" in each and (each["pid"], each["tid"]) in names]
    return max(tasks, default=0) / 1000


def idle(browser: Browser, server: Server, runs: int) -> None:
    """What frames are like where the page has nothing to do."""
    worst = []
    for _ in range(runs):
        with tab_of(browser, server.address) as tab:
            tab.page.evaluate(WATCH)
            tab.page.wait_for_timeout(500)
            tab.page.evaluate(FORGET)
            tab.page.wait_for_timeout(4000)
            worst.append(tab.page.evaluate(WORST))
    told("longest frame, nothing happens for 4 s", worst)


def size() -> None:
    """The JavaScript that a browser reads, compressed as a server would."""
    found = sum(len(gzip.compress(path.read_bytes(), 9)) for path in (PLAYGROUND / "dist" / "src").rglob("*.js"))
    print(f"JavaScript, compressed: {found:,} bytes   {'holds' if found <= MOST_BYTES else 'MISSED'}: {MOST_BYTES:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--only", choices=["first", "frames", "pieces", "size"])
    arguments = parser.parse_args()
    build()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        print(f"Chromium {browser.version}, Python {platform.python_version()}, {platform.machine()}")
        if arguments.only in (None, "size"):
            size()
        if arguments.only in (None, "first"):
            first(browser, arguments.runs)
        if arguments.only in (None, "pieces"):
            pieces(arguments.runs)
        if arguments.only in (None, "frames"):
            frames(browser, arguments.runs)
        browser.close()


if __name__ == "__main__":
    main()
