"""A real Redis server for a test: started, stopped, hung up and started again by the test."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest


class RedisServer:
    """Server on a free port of the loopback interface, without persistence. Use it in a `with` block."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            pytest.skip("redis-server is not installed: apt-get install redis-server")
        pytest.importorskip("redis", reason="the redis package is not installed: pip install 'lmql-lite[redis]'")
        self._program, self._folder = program, folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        command = [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen([*command, "--dir", str(self._folder)], stdout=subprocess.DEVNULL)
        for _ in range(500):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError("the Redis server does not start")

    def hang(self) -> None:
        """The server accepts connections and answers nothing any more."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Ends `hang`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait(10)
            self._process = None


class BreakerClock:
    """Time of the circuit breaker, which passes when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("lmql_lite.store.redis.time.monotonic", lambda: self.now)
