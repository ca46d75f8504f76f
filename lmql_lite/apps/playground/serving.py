"""The server of one playground: its socket, its start and its shutdown."""

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

from lmql_lite.apps.playground.files import Files, key_of
from lmql_lite.apps.playground.guard import Guard
from lmql_lite.apps.playground.process import Checker, Workers
from lmql_lite.apps.playground.routes import SESSION, Playground
from lmql_lite.apps.playground.runs import Limits, Runs, Scrub, secrets_of
from lmql_lite.errors import InputError
from lmql_lite.models.registry import Access

HOST = "127.0.0.1"
FIRST_PORT = 20_000
PORTS = 10_000
"""Below the ports that systems give out by themselves."""
CHECK_SECONDS = 10

Ready = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of `lq playground`. Queries that name no model use the first one."""

    models: Mapping[str, Access]
    files: Files | None = None
    cache: Path | None = None
    bounds: Mapping[str, Any] | None = None
    limits: Limits = Limits()  # noqa: RUF009  a frozen value


def listening(port: int) -> socket.socket:
    """Socket on this machine alone; port 0 is any free one. Raises InputError."""
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


def listening_for(folder: Files | None) -> socket.socket:
    """Socket on the folder's own port, so that the browser finds its drafts after a restart: it keeps them by address.
    Any free port if that one is taken."""
    try:
        return listening(FIRST_PORT + int(folder.key if folder else key_of(""), 16) % PORTS)
    except InputError:
        return listening(0)


def serve(options: ServerOptions, here: socket.socket, ready: Ready) -> None:
    """Serves until the server is ended; then no run is left. `ready` is called with the address of the page, which
    has the token."""
    with tempfile.TemporaryDirectory(prefix="lq-playground-") as own:
        _Server(options, here, Path(own), ready).run(sockets=[here])


class _Server(uvicorn.Server):
    def __init__(self, options: ServerOptions, here: socket.socket, own: Path, ready: Ready) -> None:
        port, token = here.getsockname()[1], secrets.token_urlsafe(32)
        self._address = f"http://{HOST}:{port}/#token={token}"
        self._ready = ready
        self._playground = playground_of(options, own, token)
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
        self._playground.runs.prepare()
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


def playground_of(options: ServerOptions, own: Path, token: str) -> Playground:
    """Runs get the environment without its secrets, and those that their models need."""
    secret = secrets_of(os.environ)
    needed = {"HF_TOKEN"} if any(model.startswith("local:") for model in options.models) else set()
    given = {name: value for name, value in os.environ.items() if name not in secret or name in needed}
    offer = {
        "models": options.models,
        "first": next(iter(options.models)),
        "memory_bytes": options.limits.memory_bytes,
    }
    folder = options.files.root if options.files else Path.cwd()
    workers = Workers(offer, given, own)
    cache = (options.cache or own / SESSION).absolute()
    return Playground(
        workers=workers,
        runs=Runs(workers, folder, options.limits, Scrub([*secret.values(), token])),
        checks=Checker(workers, own, CHECK_SECONDS),
        models=tuple(options.models),
        fixed={**(options.bounds or {}), "cache": str(cache)},
        cache_name=SESSION if options.cache is None else options.cache.name,
        files=options.files,
        limits=options.limits,
    )


def open_browser(address: str) -> None:
    """Opens a browser if there is a display; one that does not start is not a failure."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    with suppress(webbrowser.Error, OSError):
        webbrowser.open(address)
