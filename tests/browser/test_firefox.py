"""The page and a report in Debian's Firefox, driven through its own Marionette: one run, its sums, its tree."""

from __future__ import annotations

import io
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmql_lite.observe.lines import read
from lmql_lite.observe.report import report
from tests.browser.conftest import ROOT, Server, build
from tests.browser.test_truth import SOURCES, lines_of

BOXES = """const found = {}; for (const label of ROOT.querySelectorAll(".output .hole > .label[data-counts]"))
    for (const [kind, count] of Object.entries(JSON.parse(label.dataset.counts)))
        if (count) found[kind] = (found[kind] ?? 0) + count;
    return found;"""
LEDGER = """return Object.fromEntries([...ROOT.querySelectorAll("[data-count]")]
    .map((row) => [row.dataset.count, row.querySelector("td").textContent]));"""


class Firefox:
    """A browser without a window."""

    def __init__(self, place: str, profile: Path) -> None:
        profile.mkdir()
        (profile / "user.js").write_text('user_pref("marionette.port", 0);\n')
        self._process = subprocess.Popen(
            [place, "--headless", "--marionette", "--no-remote", "--profile", str(profile)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"HOME": str(profile), "PATH": "/usr/bin:/bin"},
        )
        port = profile / "MarionetteActivePort"
        last = time.monotonic() + 60
        while not port.is_file() or not port.read_text():
            assert time.monotonic() < last and self._process.poll() is None, "Firefox does not start"
            time.sleep(0.1)
        self._socket = socket.create_connection(("127.0.0.1", int(port.read_text())), timeout=60)
        self._stream = self._socket.makefile("rb")
        self._count = 0
        self._read()
        self.ask("WebDriver:NewSession", capabilities={})

    def ask(self, command: str, **parameters: Any) -> Any:
        """Sends a command of WebDriver and gives its answer."""
        self._count += 1
        data = json.dumps([0, self._count, command, parameters]).encode()
        self._socket.sendall(b"%d:%s" % (len(data), data))
        _, number, error, answer = self._read()
        assert number == self._count and error is None, (command, error)
        return answer

    def _read(self) -> Any:
        size = b""
        while (byte := self._stream.read(1)) != b":":
            assert byte, "Firefox has ended"
            size += byte
        return json.loads(self._stream.read(int(size)))

    def open(self, address: str) -> None:
        self.ask("WebDriver:Navigate", url=address)

    def run(self, script: str) -> Any:
        return self.ask("WebDriver:ExecuteScript", script=script, args=[])["value"]

    def until(self, expression: str, seconds: float = 40) -> None:
        last = time.monotonic() + seconds
        while not self.run(f"return Boolean({expression});"):
            assert time.monotonic() < last, f"this did not come true: {expression}"
            time.sleep(0.05)

    def end(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


@pytest.fixture
def firefox(tmp_path: Path) -> Iterator[Firefox]:
    place = shutil.which("firefox-esr") or shutil.which("firefox")
    if place is None:
        pytest.skip("needs Firefox (Debian: apt-get install firefox-esr)")
    build()
    browser = Firefox(place, tmp_path / "profile")
    yield browser
    browser.end()


def test_an_example_runs_in_firefox_and_its_boxes_are_the_ledger(firefox: Firefox, tmp_path: Path) -> None:
    server = Server(tmp_path)
    try:
        firefox.open(server.address)
        firefox.until("document.documentElement.dataset.ready === 'rich'")
        firefox.run("document.getElementById('examples').click();")
        firefox.run(
            "const cards = [...document.querySelectorAll('#gallery button')];"
            "cards.find((card) => card.textContent.includes('07_record')).click();"
        )
        firefox.until("document.getElementById('state').dataset.state === 'recorded'")
        for _ in ("cold", "warm"):
            firefox.run("document.getElementById('run').click();")
            firefox.until("document.getElementById('state').dataset.state !== 'recorded'")
            firefox.until("document.getElementById('run').getAttribute('aria-disabled') === 'false'")
            firefox.until("document.getElementById('panels').getAttribute('aria-busy') === 'false'")
            usage = lines_of(server)[-1]["usage"]
            expected = {kind: usage[row] for kind, row in SOURCES.items() if usage[row]}
            assert firefox.run(BOXES.replace("ROOT", "document")) == expected
            ledger = firefox.run(LEDGER.replace("ROOT", "document"))
            assert {kind: int(ledger[row]) for kind, row in SOURCES.items() if ledger[row] != "0"} == expected
        firefox.run("document.getElementById('tab-trie').click();")
        firefox.until("document.querySelectorAll('#trie [role=treeitem]').length > 5")
    finally:
        server.stop()


def test_a_report_is_drawn_in_firefox(firefox: Firefox, tmp_path: Path) -> None:
    data = (ROOT / "examples" / "recorded" / "07_record.lqrun").read_bytes()
    (tmp_path / "report.html").write_text(report(list(read(io.BytesIO(data), "x.lqrun"))), "utf-8")
    firefox.open((tmp_path / "report.html").as_uri())
    root = "document.querySelector('lq-view').shadowRoot"
    firefox.until(f"{root}?.querySelector('.panels[aria-busy=false] .output .block')")
    usage = json.loads(data.splitlines()[-1])["usage"]
    expected = {kind: usage[row] for kind, row in SOURCES.items() if usage[row]}
    assert firefox.run(BOXES.replace("ROOT", root)) == expected
    ledger = firefox.run(LEDGER.replace("ROOT", root))
    assert {kind: int(ledger[row]) for kind, row in SOURCES.items() if ledger[row] != "0"} == expected
