"""The processes of a server come and go with it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers.processes import LEAVES_WITH_ITS_PARENT, running
from tests.servers.test_llama_process import ROOT, ended

SERVER = f"""\
{LEAVES_WITH_ITS_PARENT}
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, "of http://127.0.0.1:1", flush=True)
child.wait()
"""
ANSWERS = re.compile(r"child \d+ of (http://127\.0\.0\.1:1)")
HOLDER = """\
import sys, time
from pathlib import Path
from tests.servers.processes import running
from tests.servers.test_processes import ANSWERS, SERVER
with running([sys.executable, "-c", SERVER], Path(sys.argv[1]), ANSWERS):
    print("there", flush=True)
    time.sleep(600)
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="looks for processes in /proc")


def child_in(log: Path) -> int:
    found = re.search(r"child (\d+)", log.read_text("utf-8"))
    assert found is not None
    return int(found[1])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_server_has_started_goes_with_it(tmp_path: Path) -> None:
    with running([sys.executable, "-c", SERVER], tmp_path / "server.log", ANSWERS) as server:
        child = child_in(server.log)
        assert not ended(child) and server.address == "http://127.0.0.1:1"
    wait_for(lambda: ended(child))
    assert server.process.returncode is not None


def test_what_a_server_has_started_goes_when_the_tests_are_killed(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with subprocess.Popen([sys.executable, "-c", HOLDER, log], stdout=subprocess.PIPE, cwd=ROOT) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"there\n"
        child = child_in(log)
        assert not ended(child)
        holder.kill()
    wait_for(lambda: ended(child))
