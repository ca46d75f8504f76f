"""The server of the tests comes and goes with them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.servers.llama import missing, serving

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
ROOT = Path(__file__).parent.parent.parent
HOLDER = """\
import sys, time
from pathlib import Path
from tests.servers.llama import serving
with serving(Path(sys.argv[1]), Path(sys.argv[2])) as server:
    print(server.process.pid, flush=True)
    time.sleep(600)
"""


def ended(pid: int) -> bool:
    """True for a process that is gone or waits only to be asked for its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="looks for processes in /proc")
def test_a_server_goes_when_the_tests_are_killed(demo_gguf: Path, tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, demo_gguf, tmp_path / "server.log"], stdout=subprocess.PIPE, cwd=ROOT
    )
    with holder:
        assert holder.stdout is not None
        server = int(holder.stdout.readline())
        assert not ended(server)
        holder.kill()
    deadline = time.monotonic() + 30
    while not ended(server) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended(server)


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="ended with status 1 before it answered") as caught,
        serving(tmp_path / "nothing.gguf", tmp_path / "server.log"),
    ):
        pass
    assert "Model path does not exist" in str(caught.value)


def test_a_server_is_gone_when_its_block_is_left(demo_gguf: Path, tmp_path: Path) -> None:
    with serving(demo_gguf, tmp_path / "server.log") as server:
        assert server.process.poll() is None
    assert server.process.returncode is not None
