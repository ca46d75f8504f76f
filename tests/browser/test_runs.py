"""Runs under way: stopped, cut off from the page and found again, and several of them at once."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.apps.playground_server import is_alive
from tests.browser.conftest import Open, Server, Tab

SLOW = """import time
for i in range({count}):
    "{word} {{i}}:[X]\\n" where X in [" yes", " no"]
    time.sleep({pause})
"""
WITH_CHILD = """import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(f"processes {os.getpid()} {child.pid}.")
"""
MODEL_AT_WORK = WITH_CHILD + 'while True:\n    "A list of things:[X]\\n" where STOPS_BEFORE(X, "\\n")\n'
SPIN = '"text"\ndef spin():\n    while True:\n        pass\n\nspin()\n'
PYTHON_AT_WORK = WITH_CHILD + SPIN
DEAF = WITH_CHILD + "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SPIN


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("query", [MODEL_AT_WORK, PYTHON_AT_WORK, DEAF], ids=["model", "Python", "deaf Python"])
def test_a_run_that_is_stopped_is_gone_with_all_that_it_started(tab: Tab, query: str) -> None:
    tab.write(query)
    tab.page.click("#run")
    tab.show("log")
    tab.until("document.getElementById('log').textContent.includes('processes')")
    processes = [int(each) for each in re.findall(r"\d+", tab.page.inner_text("#log .log .said"))]
    assert len(processes) == 2 and all(map(is_alive, processes))
    tab.page.click("#stop")
    tab.wait("stopped")
    assert not any(map(is_alive, processes))
    tab.show("output")
    tab.run('"after"')
    assert tab.text() == "after"


def _end(connection: socket.socket) -> None:
    """Whoever waits for it hears of it, in this process too, which closing it alone would not do."""
    with suppress(OSError):  # it has ended by itself
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)


class Proxy:
    """Stands between page and server, and hangs up when it is told to. It asks the server by its own name."""

    def __init__(self, server: Server) -> None:
        self._theirs = server.origin.removeprefix("http://").encode()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._ours = f"127.0.0.1:{self.port}".encode()
        self._to = ("127.0.0.1", server.port)
        self._open: set[socket.socket] = set()
        self.refuses = False
        self.asked: list[str] = []
        """The paths under /events that were asked for."""
        threading.Thread(target=self._accept, daemon=True).start()

    def hang_up(self) -> None:
        """Every connection ends in the middle, as if somebody had pulled the plug."""
        for each in tuple(self._open):
            _end(each)

    def close(self) -> None:
        self._listener.close()
        self.hang_up()

    def _accept(self) -> None:
        while True:
            try:
                page, _ = self._listener.accept()
            except OSError:
                return
            if self.refuses:
                page.close()
                continue
            server = socket.create_connection(self._to)
            self._open |= {page, server}
            threading.Thread(target=self._pass, args=(page, server, self._request), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, page, None), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes] | None) -> None:
        try:
            while data := source.recv(2**16):
                target.sendall(change(data) if change else data)
        except OSError:
            pass
        finally:
            for each in (source, target):
                _end(each)
                self._open.discard(each)
                each.close()

    def _request(self, data: bytes) -> bytes:
        self.asked += re.findall(r"GET (/api/runs/\w+/events\S*)", data.decode("latin-1"))
        return data.replace(self._ours, self._theirs)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server)
    yield proxy
    proxy.close()


def test_a_lost_connection_costs_no_token_and_doubles_none(server: Server, open_tab: Open, proxy: Proxy) -> None:
    tab = open_tab(server, address=f"http://127.0.0.1:{proxy.port}/#token={server.token}")
    tab.write(SLOW.format(count=40, pause=0.05, word="line"))
    tab.page.click("#run")
    tab.until("document.querySelectorAll('#output .hole:not(.open)').length >= 5")
    proxy.hang_up()
    tab.until("document.querySelectorAll('#output .hole:not(.open)').length >= 15")
    proxy.refuses = True
    proxy.hang_up()
    tab.page.wait_for_selector("#banner:visible")
    assert "the connection is lost" in tab.page.inner_text("#banner")
    proxy.refuses = False
    tab.wait("done")
    assert tab.page.is_hidden("#banner")
    assert len(proxy.asked) >= 3, "the connection was not lost"
    holes = tab.page.locator("#output .hole").count()
    said = re.findall(r"line (\d+): (?:yes|no)", tab.text())
    assert holes == 40 and said == [str(number) for number in range(40)]
    (run,) = set(re.findall(r"/runs/(\w+)/", "".join(proxy.asked)))
    kept = tab.page.evaluate(
        f"fetch('/api/runs/{run}/events', {{headers: {{Authorization: 'Bearer ' + sessionStorage.token}}}})"
        ".then(answer => answer.text())"
    )
    lines = [json.loads(line) for line in kept.splitlines() if line]
    assert tab.text() == lines[-1]["prompt"]
    tokens = [line for line in lines if line["type"] == "token"]
    tab.show("tokens")
    tab.page.locator("#tokens .token").first.click()
    tab.page.keyboard.press("End")
    assert tab.page.get_attribute(":focus", "aria-posinset") == str(len(tokens))
    tab.complaints[:] = [each for each in tab.complaints if "net::ERR" not in each]


def test_two_tabs_run_two_queries_and_hear_nothing_of_one_another(open_tab: Open, shared_server: Server) -> None:
    first = open_tab()
    second = Tab(first.page.context.new_page())
    second.open(shared_server.address)
    first.write(SLOW.format(count=40, pause=0.1, word="first"))
    second.write(SLOW.format(count=50, pause=0.3, word="second"))
    first.page.click("#run")
    second.page.click("#run")
    for tab, word in ((first, "first"), (second, "second")):  # before that a recording stands there
        tab.until(f"document.querySelector('#output').textContent.includes('{word} 2:')")
    second.page.click("#stop")
    second.wait("stopped")
    first.wait("done")
    assert re.findall(r"(\w+) (\d+):", first.text()) == [("first", str(number)) for number in range(40)]
    assert "first" not in second.text() and "second 2:" in second.text()
    first.page.reload()
    first.wait("done")
    second.page.reload()
    second.wait("stopped")
    assert "second" not in first.text() and "first" not in second.text()
    assert second.complaints == []
