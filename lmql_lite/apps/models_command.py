"""`lq models`."""

from __future__ import annotations

import asyncio
import os

import click

from lmql_lite.apps.interruption import until_interrupted
from lmql_lite.apps.terminal import BASE_URL, JSON, TIMEOUT, note, reporting, write, write_object
from lmql_lite.errors import ModelError

NAMED_BY = ("LQ_BASE_URL", "OPENAI_BASE_URL", "OPENAI_API_KEY")
"""Variables any of which says that there is a server to ask."""

PATIENCE_S = 2.0
"""Silence of another program at a server's usual address, after which it is taken for none."""


@click.command(short_help="List the models of this machine, or of a server.")
@BASE_URL
@TIMEOUT
@JSON
def models(base_url: str | None, timeout: float | None, as_json: bool) -> None:
    """List models, one on each line, as --model takes them.

    With --base-url, these are the models of that server. Without it, they are the models that run on this machine: in
    this process, and on an Ollama, vLLM or llama.cpp server at its usual address. If LQ_BASE_URL, OPENAI_BASE_URL or
    OPENAI_API_KEY is set, the models of that server follow.

    Nothing is generated, downloaded or paid for. A gateway may serve more models than it lists; Azure lists base
    models, and its deployments have other names.
    """
    with reporting(as_json):
        found = until_interrupted(_found(base_url, timeout))
        write_object({"models": found}) if as_json else write("\n".join(found))
        if base_url is None and "smol" not in found:
            from lmql_lite.models.model_files import SMOL_REMEDY

            note(f"smol, a small model for this machine, is not installed: {SMOL_REMEDY}")


async def _found(base_url: str | None, timeout: float | None) -> list[str]:
    from lmql_lite.models.registry import SERVERS, here, listed

    async def running(kind: str) -> list[str]:
        try:
            names = await listed(base_url=SERVERS[kind], api_key="none", timeout=timeout or PATIENCE_S)
            return [f"{kind}/{name}" for name in names]
        except ModelError:
            return []

    found: list[str] = []
    if base_url is None:
        found += here()
        for names in await asyncio.gather(*map(running, SERVERS)):
            found += names
    if base_url is not None or any(map(os.environ.get, NAMED_BY)):
        found += [f"openai/{name}" for name in await listed(base_url=base_url, timeout=timeout)]
    return found
