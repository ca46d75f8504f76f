"""vLLM's server over the demo model, on the CPU, in an environment of its own: `install_vllm.sh` makes one."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.servers.processes import LEAVES_WITH_ITS_PARENT, ServerProcess, running

VARIABLE = "LMQL_LITE_VLLM_PYTHON"
"""Names the Python of the environment."""
ALIAS = "demo"
CONTEXT = 512
"""Tokens of a prompt and its continuation together: as many as the model was trained for."""
_PYTHON = os.environ.get(VARIABLE) and os.path.abspath(os.environ[VARIABLE])
"""Found out before a test goes to another folder."""
_PATIENCE = 300.0

_CHILD = f"""\
{LEAVES_WITH_ITS_PARENT}
import runpy
runpy.run_module("vllm.entrypoints.cli.main", run_name="__main__", alter_sys=True)
"""


def missing() -> str | None:
    """Why there can be no server here; None where there can."""
    if not _PYTHON:
        return f"{VARIABLE} names no Python with vLLM (tests/servers/install_vllm.sh makes an environment that has it)"
    if not os.access(_PYTHON, os.X_OK):
        return f"{VARIABLE} names no program: {_PYTHON}"
    return None if find_spec("httpx") else "needs httpx: pip install --group servers"


@contextmanager
def serving(model: Path, log: Path, template: Path) -> Iterator[ServerProcess]:
    """Serve a folder in Hugging Face format, with this file as template of chats, from now until the block is left.

    In float32, and with as few threads as it takes. What the server writes is in `log`.

    Raises RuntimeError, with the end of the log, where the server ends or does not answer.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "served-model-name": ALIAS,
        "host": "127.0.0.1",
        "port": port,
        "dtype": "float32",
        "chat-template": template,
        "enforce-eager": None,
        "enable-prompt-tokens-details": None,  # it tells how many tokens of a prompt it knew
        "disable-uvicorn-access-log": None,
    }
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value) if part is not None]
    environment = {
        "HOME": str(log.parent),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    command = [_PYTHON or "", "-c", _CHILD, "serve", str(model), *arguments]
    address = re.compile(rf"(http://127\.0\.0\.1:{port})\b(?s:.*)Application startup complete")
    with running(command, log, address, patience=_PATIENCE, environment=environment) as server:
        yield server
