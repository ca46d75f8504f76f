"""llama-cpp-python's server over the demo model."""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path

from tests.servers.processes import LEAVES_WITH_ITS_PARENT, ServerProcess, running

CONTEXT = 1024
"""Tokens of a prompt and its continuation together. The demo model was trained for 512."""
ALIAS = "demo"
_ADDRESS = re.compile(r"Uvicorn running on (http://127\.0\.0\.1:\d+)")

_CHILD = f"""\
{LEAVES_WITH_ITS_PARENT}
import runpy
runpy.run_module("llama_cpp.server", run_name="__main__", alter_sys=True)
"""


def missing() -> str | None:
    """Why there can be no server here; None where there can."""
    absent = [name for name in ("llama_cpp", "fastapi", "gguf", "httpx") if find_spec(name) is None]
    return f"needs {', '.join(absent)}: pip install --group servers" if absent else None


def serving(model: Path, log: Path, *, interrupt_requests: bool = False) -> AbstractContextManager[ServerProcess]:
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
    return running([sys.executable, "-c", _CHILD, *arguments], log, _ADDRESS)
