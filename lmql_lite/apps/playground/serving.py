"""The server of one playground, from its socket to its end."""

from __future__ import annotations

import errno
import os
import secrets
import signal
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from lmql_lite.apps.playground.app import SESSION, Playground
from lmql_lite.apps.playground.files import Files
from lmql_lite.apps.playground.guard import Guard
from lmql_lite.apps.playground.keys import Scrub, secrets_of
from lmql_lite.apps.playground.limits import Limits
from lmql_lite.apps.playground.orphans import MARK, marked, watched
from lmql_lite.apps.playground.questions import Questions
from lmql_lite.apps.playground.runs import Runs
from lmql_lite.errors import InputError
from lmql_lite.models.registry import Access

HOST = "127.0.0.1"
CHECK_SECONDS = 10
PLAN_SECONDS = 120
"""A plan may load a model."""

Ready = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What somebody asks for on the command line. The first of the models is that of queries which name none."""

    models: Mapping[str, Access]
    files: Files | None = None
    cache: Path | None = None
    bounds: Mapping[str, Any] | None = None
    limits: Limits = Limits()  # noqa: RUF009  a frozen value


def listening(port: int) -> socket.socket:
    """On this machine alone; port 0 is any that is free. Raises InputError."""
    here = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":  # elsewhere this would take the port from who has it
        here.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        here.bind((HOST, port))
        here.listen()
    except (OSError, OverflowError) as error:
        here.close()
        number = getattr(error, "errno", None)
        why = "is in use" if number == errno.EADDRINUSE else "cannot be used"
        raise InputError(f"port {port} {why}", hint="name another one; --port 0 takes one that is free") from None
    return here


def serve(wishes: Wishes, here: socket.socket, ready: Ready) -> None:
    """Until somebody ends it; then no run is left. `ready` is told the address of the page, with the token in it."""
    environment = marked(os.environ)
    with tempfile.TemporaryDirectory(prefix="lq-playground-") as own, watched(environment[MARK], own):
        _Server(wishes, here, Path(own), environment, ready).run(sockets=[here])


class _Server(uvicorn.Server):
    def __init__(
        self, wishes: Wishes, here: socket.socket, own: Path, environment: Mapping[str, str], ready: Ready
    ) -> None:
        port, token = here.getsockname()[1], secrets.token_urlsafe(32)
        self._address = f"http://{HOST}:{port}/#token={token}"
        self._ready = ready
        self._playground = playground_of(wishes, own, token, environment)
        config = uvicorn.Config(
            Guard(self._playground.app(), token, port),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=100,
            timeout_graceful_shutdown=2,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._playground.runs.spares.prepare()
        self._ready(self._address)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._playground.close()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ctrl-C is how a server ends, and no failure; its own folder goes when it does."""
        names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        before = {name: signal.signal(signal.Signals[name], self.handle_exit) for name in names}
        try:
            yield
        finally:
            for name, handler in before.items():
                signal.signal(signal.Signals[name], handler)


def playground_of(wishes: Wishes, own: Path, token: str, environment: Mapping[str, str]) -> Playground:
    """Runs get the environment without its secrets, and those that their models need."""
    secret = secrets_of(environment)
    needed = {"HF_TOKEN"} if any(model.startswith("local:") for model in wishes.models) else set()
    given = {name: value for name, value in environment.items() if name not in secret or name in needed}
    offer = {
        "models": wishes.models,
        "first": next(iter(wishes.models)),
        "memory_bytes": wishes.limits.memory_bytes,
    }
    folder = wishes.files.root if wishes.files else Path.cwd()
    cache = (wishes.cache or own / SESSION).absolute()
    return Playground(
        runs=Runs(offer, folder, given, wishes.limits, Scrub([*secret.values(), token])),
        checks=Questions(offer, own, given, CHECK_SECONDS),
        plans=Questions(offer, folder, given, PLAN_SECONDS),
        models=tuple(wishes.models),
        fixed={**(wishes.bounds or {}), "cache": str(cache)},
        cache_name=SESSION if wishes.cache is None else wishes.cache.name,
        files=wishes.files,
        limits=wishes.limits,
    )


def open_browser(address: str) -> None:
    """Where there is a display; a browser that does not start is no failure."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    with suppress(webbrowser.Error, OSError):
        webbrowser.open(address)
