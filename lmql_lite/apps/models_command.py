"""`lq models`."""

from __future__ import annotations

import asyncio

import click

from lmql_lite.apps.terminal import ACCESS, BASE_URL, reporting, write, write_object


@click.command(short_help="List the models that a server has.")
@BASE_URL
@click.option("--timeout", type=float, metavar="SECONDS", help=ACCESS["timeout"].help)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def models(base_url: str | None, timeout: float | None, as_json: bool) -> None:
    """List the models that a server has, one on each line, as --model takes them.

    Nothing is generated, and nothing is paid. A gateway may serve more models than it lists; Azure lists base models,
    and its deployments have names of their own.
    """
    with reporting(as_json):
        from lmql_lite.models.registry import listed

        found = [f"openai/{name}" for name in asyncio.run(listed(base_url=base_url, timeout=timeout))]
        write_object({"models": found}) if as_json else write("\n".join(found))
