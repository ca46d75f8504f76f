"""What pages of other sites, names of files and the address bar can do to the playground: nothing.

Rows of the table in playground/PROTOCOL.md that only a browser can try. `evil.test` is a name of this machine here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import Open, Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Frame, Page

ATTACK = """async ({ origin, token }) => {
    const body = JSON.stringify({ text: "while True:\\n    pass" });
    const own = { Authorization: `Bearer ${token}` };
    const json = { "Content-Type": "application/json" };
    const loaded = (name, set) => new Promise((done, fail) => {
        const made = Object.assign(document.createElement(name), set, { onload: done, onerror: () => fail(name) });
        document.body.append(made);
    });
    const tries = {
        "a form's post": () => fetch(`${origin}/api/runs`, { method: "POST", mode: "no-cors", body }),
        "a post with the token": () =>
            fetch(`${origin}/api/runs`, { method: "POST", headers: { ...own, ...json }, body }),
        "reading with the token": () => fetch(`${origin}/api/about`, { headers: own }),
        "reading without": () => fetch(`${origin}/api/about`, { mode: "no-cors" }),
        "reading the page": () => fetch(`${origin}/`, { mode: "no-cors" }),
        "stopping": () => fetch(`${origin}/api/runs/x`, { method: "DELETE", headers: own }),
        "a beacon": async () => {
            navigator.sendBeacon(`${origin}/api/runs`, body);
            throw new Error("its answer cannot be heard");
        },
        "a socket": () => new Promise((done, fail) => {
            const socket = new WebSocket(`${origin.replace("http", "ws")}/api/runs`);
            Object.assign(socket, { onopen: done, onerror: fail });
        }),
        "a script": () => loaded("script", { src: `${origin}/src/main.js` }),
        "a picture": () => loaded("img", { src: `${origin}/api/about` }),
        "events": () => new Promise((done, fail) => {
            Object.assign(new EventSource(`${origin}/api/runs`), { onopen: done, onerror: fail });
        }),
    };
    const told = {};
    for (const [name, act] of Object.entries(tries)) {
        try {
            const answer = await act();
            told[name] = answer instanceof Response ? `${answer.type} ${answer.status}` : "done";
        } catch {
            told[name] = "refused";
        }
    }
    return told;
}"""
ASK = "fetch('{}', {{ headers: {{ Authorization: 'Bearer ' + sessionStorage.token }} }}).then(said => said.json())"
RUNS = ASK.format("/api/runs")


@dataclass
class Site:
    """Of somebody else, on another port. Every name that leads here is one of its names."""

    port: int
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of the requests that it got."""

    def at(self, host: str) -> str:
        return f"http://{host}:{self.port}/"


@pytest.fixture
def site() -> Iterator[Site]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.headers.append(dict(self.headers))
            data = b"<!doctype html><title>somebody else</title><body>"
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as listener:
        found = Site(listener.server_address[1])
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            listener.shutdown()
            thread.join()


@pytest.fixture
def stranger(chromium: Browser) -> Iterator[Page]:
    """A page in a context of its own; what it complains of is its own affair."""
    context = chromium.new_context()
    context.set_default_timeout(15_000)
    yield context.new_page()
    context.close()


@contextmanager
def nothing_is_started(server: Server, open_tab: Open) -> Iterator[None]:
    tab = open_tab(server)
    before = tab.page.evaluate(RUNS)
    yield
    assert tab.page.evaluate(RUNS) == before


def attack(where: Page | Frame, server: Server) -> None:
    told = where.evaluate(ATTACK, {"origin": server.origin, "token": server.token})
    assert len(told) == 11 and set(told.values()) == {"refused"}, told


# Row 6: foreign origins ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "evil.test"])
def test_a_page_of_another_origin_starts_and_reads_nothing(
    host: str, site: Site, server: Server, stranger: Page, open_tab: Open
) -> None:
    with nothing_is_started(server, open_tab):
        stranger.goto(site.at(host))
        attack(stranger, server)


def test_the_same_server_under_its_other_name_is_another_origin(server: Server, stranger: Page, open_tab: Open) -> None:
    with nothing_is_started(server, open_tab):
        stranger.goto(f"http://localhost:{server.port}/none.txt")
        told = stranger.evaluate(ATTACK, {"origin": server.origin, "token": server.token})
        assert set(told.values()) == {"refused"}, told


def test_a_page_from_a_file_is_refused(server: Server, stranger: Page, open_tab: Open, tmp_path: Path) -> None:
    (tmp_path / "attack.html").write_text("<!doctype html><body>", "utf-8")
    with nothing_is_started(server, open_tab):
        stranger.goto((tmp_path / "attack.html").as_uri())
        attack(stranger, server)


def test_a_sandboxed_frame_without_an_origin_is_refused(
    site: Site, server: Server, stranger: Page, open_tab: Open
) -> None:
    with nothing_is_started(server, open_tab):
        stranger.goto(site.at("127.0.0.1"))
        stranger.evaluate(
            """() => document.body.append(Object.assign(document.createElement("iframe"),
            { sandbox: "allow-scripts allow-forms", srcdoc: "<!doctype html><body>" }))"""
        )
        frame = stranger.wait_for_selector("iframe").content_frame()
        assert frame is not None
        frame.wait_for_url("about:srcdoc")  # an empty page stands there before, and goes while it is asked
        assert frame.evaluate("origin") == "null"
        attack(frame, server)


def test_a_form_of_another_site_starts_nothing(site: Site, server: Server, stranger: Page, open_tab: Open) -> None:
    with nothing_is_started(server, open_tab):
        stranger.goto(site.at("127.0.0.1"))
        with stranger.expect_navigation() as answer:
            stranger.evaluate(
                """(address) => {
                const form = Object.assign(document.createElement("form"),
                    { action: address, method: "post", enctype: "text/plain" });
                const body = { name: '{"text": "1", "x": "', value: '"}' };
                form.append(Object.assign(document.createElement("input"), body));
                document.body.append(form);
                form.submit();
                }""",
                f"{server.origin}/api/runs",
            )
        assert answer.value is not None and answer.value.status == 403


# Row 5: a name that leads here -----------------------------------------------------------------------------------


def test_a_name_of_another_site_that_leads_here_is_refused_on_every_route(
    server: Server, stranger: Page, open_tab: Open
) -> None:
    """DNS rebinding: for the browser it is one origin, so that only Host tells."""
    with nothing_is_started(server, open_tab):
        answer = stranger.goto(f"http://evil.test:{server.port}/")
        assert answer is not None and answer.status == 403
        assert stranger.evaluate("origin") == f"http://evil.test:{server.port}"
        told = stranger.evaluate(
            """async (token) => {
            const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
            const body = JSON.stringify({ text: "1" });
            const found = [];
            for (const path of ["/", "/style.css", "/api/about", "/api/runs", "/api/files"])
                found.push((await fetch(path, { headers })).status);
            for (const path of ["/api/runs", "/api/check"])
                found.push((await fetch(path, { method: "POST", headers, body })).status);
            return found;
            }""",
            server.token,
        )
        assert told == [403] * 7


# Row 10: frames and scripts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["iframe", "object", "embed"])
def test_the_page_cannot_be_put_into_another_one(name: str, site: Site, server: Server, stranger: Page) -> None:
    stranger.goto(site.at("127.0.0.1"))
    refused: list[str] = []
    stranger.on("console", lambda said: refused.append(said.text))
    stranger.evaluate(
        """([name, address]) => document.body.append(Object.assign(document.createElement(name),
        name === "object" ? { data: address } : { src: address }))""",
        [name, server.address],
    )
    for _ in range(500):
        if any("frame-ancestors" in text or "refused to connect" in text for text in refused):
            break
        stranger.wait_for_timeout(20)
    else:
        raise AssertionError(f"nothing was refused: {refused}")
    assert not any(holds_the_playground(frame, server) for frame in stranger.frames)


def holds_the_playground(frame: Frame, server: Server) -> bool:
    from playwright.sync_api import Error as DriverError

    try:
        return frame.url.startswith(server.origin) or frame.locator("#run").count() > 0
    except DriverError:
        if frame.is_detached():  # an object that was refused gives its frame up, now or later
            return False
        raise


def test_a_page_that_opens_the_playground_does_not_get_hold_of_it(site: Site, server: Server, stranger: Page) -> None:
    stranger.goto(site.at("127.0.0.1"))
    with stranger.context.expect_page() as opened:
        stranger.evaluate("address => { window.other = window.open(address); }", server.address)
    opened.value.wait_for_selector("html[data-ready]")
    assert opened.value.evaluate("window.opener") is None
    assert stranger.evaluate("window.other.closed") is True  # cut off, not closed


ADD = "document.body.append(Object.assign(document.createElement('script'), {{ {} }}))"
HTML = "document.body.insertAdjacentHTML('beforeend', `{}`)"
SCRIPTS: dict[str, str] = {
    "inline": ADD.format("textContent: 'window.ran = 1'"),
    "from elsewhere": ADD.format("src: SITE"),
    "data": ADD.format("src: 'data:,window.ran=1'"),
    "handler": HTML.format('<img src=x onerror="window.ran = 1">'),
    "frame": HTML.format('<iframe srcdoc="<script>parent.ran = 1</script>"></iframe>'),
    "frame of a site": HTML.format('<iframe src="${SITE}"></iframe>'),
    "form": HTML.format('<form action="${SITE}"><button id=go></button></form>') + "; go.click()",
    "address": "Object.assign(document.createElement('a'), { href: 'javascript:window.ran = 1' }).click()",
    "base": "document.head.prepend(Object.assign(document.createElement('base'), { href: SITE }))",
    "fetch": "fetch(SITE).then(() => { window.ran = 1; }, () => {})",
    "style": HTML.format('<p style="background: url(${SITE})">x</p>'),
    "picture": HTML.format('<img src="${SITE}">'),
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=list(SCRIPTS))
def test_what_gets_into_the_page_runs_nothing_and_sends_nothing(
    script: str, site: Site, shared_server: Server, stranger: Page
) -> None:
    said: list[str] = []
    stranger.on("console", lambda message: said.append(message.text))
    stranger.goto(shared_server.address)
    stranger.wait_for_selector("html[data-ready]")
    assert said == []
    stranger.evaluate(f"(SITE) => {{ {script}; }}", site.at("127.0.0.1"))
    for _ in range(500):
        if any("Content Security Policy" in text for text in said):
            break
        stranger.wait_for_timeout(20)
    else:
        raise AssertionError(f"nothing was refused: {said}")
    assert stranger.evaluate("window.ran") is None
    assert stranger.evaluate("document.baseURI").startswith(shared_server.origin)
    assert site.headers == []


# Rows 3 and 4: where the token is, and where not -----------------------------------------------------------------


def test_the_token_leaves_the_address_and_stays_in_this_tab(
    site: Site, server: Server, open_tab: Open, stranger: Page
) -> None:
    tab = open_tab(server)
    page = tab.page
    assert server.token not in page.url and "token" not in page.url
    assert page.evaluate("[sessionStorage.token, document.cookie]") == [server.token, ""]
    assert server.token not in page.evaluate("JSON.stringify(localStorage)") + page.content()
    assert page.context.cookies() == []
    tab.run('"hello"')
    assert not [address for address in tab.asked if server.token in address]
    other = page.context.new_page()  # of the same browser, opened without the token
    other.goto(server.origin)
    other.wait_for_selector("html[data-ready]")
    assert other.get_attribute("#run", "aria-disabled") == "true"
    assert other.evaluate("sessionStorage.token ?? null") is None
    page.evaluate("address => { location.href = address; }", site.at("127.0.0.1"))
    page.wait_for_url(site.at("127.0.0.1"))
    assert [each.get("Referer") for each in site.headers if "Upgrade-Insecure-Requests" in each] == [None]
    page.go_back()
    page.wait_for_selector("html[data-ready]")
    page.wait_for_selector("#run[aria-disabled=false]")
    assert server.token not in page.url


def test_the_token_stands_in_nothing_that_the_server_writes_but_its_address(server: Server, open_tab: Open) -> None:
    tab = open_tab(server)
    tab.run('"hello"')
    tab.page.close()
    server.stop()
    assert server.token not in server.said.replace(server.address, "")
    assert server.said.count(server.address) == 1


# Row 11: names -----------------------------------------------------------------------------------------------------

NAMES = [
    "'&quot;><b>.lq",
    "x' onclick=ran=1 y='.lq",
    "<img src=x onerror=ran=1>.lq",
    "a&lt;b.lq",
    "x\u202egpj.lq",
    "__proto__.lq",
    "%2e%2e.lq",
]


def test_names_of_files_stay_text(server: Server, open_tab: Open) -> None:
    for number, name in enumerate(NAMES):
        (server.folder / name).write_text(f'"file {number}"\n', "utf-8")
    tab = open_tab(server)
    offered = tab.page.evaluate(ASK.format("/api/files"))
    names = [each["name"] for each in offered["files"]]
    assert set(names) == {"a&lt;b.lq", "__proto__.lq", "%2e%2e.lq", "x' onclick=ran=1 y='.lq"}
    for name in names:
        tab.page.click("#examples")
        tab.page.locator("#files button").nth(names.index(name)).click()
        tab.until(f"document.querySelector('#query').textContent.includes('file {NAMES.index(name)}')")
        assert "\u202e" not in tab.page.inner_text("#name") + tab.page.title()
        assert tab.page.locator("#gallery img, #gallery b b, #name b").count() == 0
    assert tab.page.evaluate("window.ran ?? null") is None
