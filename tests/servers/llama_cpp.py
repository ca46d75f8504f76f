"""llama.cpp's own server over the demo model, as the package `xllamacpp` has it: the C++ server of `llama-server`."""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path

from tests.servers.processes import LEAVES_WITH_ITS_PARENT, ServerProcess, running

CONTEXT = 512
"""Tokens of a prompt and its continuation together: the server grants no more than the model was trained for."""
ALIAS = "demo"
SLOTS = 4
"""So many requests it does at once; the others wait."""
_ADDRESS = re.compile(r"serving at (http://127\.0\.0\.1:\d+)")

_CHILD = f"""\
{LEAVES_WITH_ITS_PARENT}
import sys, threading
from xllamacpp import CommonParams, Server, ggml_type

model, template = sys.argv[1:]
settings = CommonParams()  # it listens on 127.0.0.1, on any port that is free
settings.model.path = model
settings.model_alias = {{"{ALIAS}"}}
settings.chat_template = template
settings.n_ctx = {SLOTS * CONTEXT}
settings.n_parallel = {SLOTS}
settings.cpuparams.n_threads = 1
settings.cache_type_k = settings.cache_type_v = ggml_type.GGML_TYPE_F32
settings.endpoint_metrics = True
settings.ui = False
server = Server(settings)
os.write(1, f"serving at {{server.listening_address}}\\n".encode())  # in one piece: its own threads write there too
threading.Event().wait()
"""


def missing() -> str | None:
    """Why there can be no server here; None where there can."""
    absent = [name for name in ("xllamacpp", "gguf", "httpx") if find_spec(name) is None]
    return f"needs {', '.join(absent)}: pip install --group servers" if absent else None


def serving(model: Path, log: Path, template: str) -> AbstractContextManager[ServerProcess]:
    """Serve a GGUF file on a free port, with this template of chats, from now until the block is left.

    Scores are as exact as llama.cpp's get: one thread, keys and values in float32. What the server writes is in `log`.

    Raises RuntimeError, with the end of the log, where the server ends or does not answer.
    """
    return running([sys.executable, "-c", _CHILD, model, template], log, _ADDRESS)
