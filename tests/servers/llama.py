"""llama.cpp's server over the demo model: a process of its own, which cannot outlive the tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

CONTEXT = 1024
"""Tokens of a prompt and its continuation together. The demo model was trained for 512."""
ALIAS = "demo"
_PATIENCE = 60.0
_GRACE = 5.0
_ADDRESS = re.compile(r"Uvicorn running on (http://127\.0\.0\.1:\d+)")

_CHILD = """\
import os, runpy, threading

def leave_with_the_parent():
    os.read(0, 1)
    os._exit(0)

threading.Thread(target=leave_with_the_parent, daemon=True).start()
runpy.run_module("llama_cpp.server", run_name="__main__", alter_sys=True)
"""
"""`python -m llama_cpp.server`, which also ends when its standard input does: however the parent dies, it is closed."""


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """A running server. `address` is `http://127.0.0.1:PORT`; clients that want `base_url` add `/v1`."""

    address: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def base_url(self) -> str:
        return f"{self.address}/v1"

    def logged(self) -> str:
        return self.log.read_text("utf-8", errors="replace")


def missing() -> str | None:
    """Why there can be no server here; None where there can."""
    absent = [name for name in ("llama_cpp", "fastapi", "gguf", "httpx") if find_spec(name) is None]
    return f"needs {', '.join(absent)}: pip install 'lmql-lite[servers]'" if absent else None


@contextmanager
def serving(model: Path, log: Path, *, interrupt_requests: bool = False) -> Iterator[LlamaServer]:
    """Serve a GGUF file on a free port, from now until the block is left. What the server writes is in `log`.

    Scores are as exact as llama.cpp's get: one thread, keys and values in float32. With `interrupt_requests`,
    which is the server's own default, a second request breaks off a stream that is under way; here it waits its turn.

    Raises RuntimeError, with the end of the log, where the server ends or does not answer.
    """
    options = {
        "model": model,
        "model_alias": ALIAS,
        "host": "127.0.0.1",
        "port": 0,  # any that is free: the log says which
        "n_ctx": CONTEXT,
        "n_threads": 1,
        "n_threads_batch": 1,
        "logits_all": True,  # without, asking for logprobs is an error
        "type_k": 0,
        "type_v": 0,
        "interrupt_requests": interrupt_requests,
        "verbose": True,
    }
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    # The server also reads settings from variables such as PORT, MODEL and SEED: it gets to see none of the tests'.
    environment = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment | {"PYTHONUNBUFFERED": "1"},
            cwd=log.parent,
        )
    try:
        yield LlamaServer(_address(process, log), log, process)
    finally:
        _end(process)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        ended = process.poll()
        text = log.read_text("utf-8", errors="replace")
        if found := _ADDRESS.search(text):
            return found[1]
        if ended is not None:
            raise RuntimeError(f"the server ended with status {ended} before it answered:\n{text[-3000:]}")
        time.sleep(0.02)
    raise RuntimeError(f"the server did not answer within {_PATIENCE:.0f} s:\n{text[-3000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()
