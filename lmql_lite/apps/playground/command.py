"""`lq playground`."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lmql_lite.apps.run_command import two_prices
from lmql_lite.apps.terminal import note, reporting, write
from lmql_lite.errors import InputError

if TYPE_CHECKING:
    from lmql_lite.models.registry import Access


@click.command(short_help="Write and run queries in the browser.")
@click.argument("path", metavar="[FILE|DIR]", required=False)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Port of the server; 0 is any free one. Default: the same one for a folder each time, if it is free.",
)
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="ID",
    help="A model that runs may use besides demo: local:NAME_OR_PATH, openai/NAME. May be repeated; runs of a query "
    "that names no model use the first one. No other models are asked.",
)
@click.option("--base-url", metavar="URL", help="Address of the server of openai/NAME, as for lq run.")
@click.option(
    "--cache",
    metavar="FILE",
    help="File that keeps the models' answers (x.tokens). Default: they are kept until the server ends.",
)
@click.option("--max-cost", type=float, metavar="SUM", help="Maximum cost of a run; needs --prices.")
@click.option("--prices", metavar="IN,OUT", callback=two_prices, help="Prices of a million tokens, as for lq run.")
def playground(
    path: str | None,
    port: int | None,
    no_open: bool,
    models: tuple[str, ...],
    base_url: str | None,
    cache: str | None,
    max_cost: float | None,
    prices: tuple[float, ...] | None,
) -> None:
    """Edit and run queries in the browser, and see where every token came from.

    Serves this machine only. The address contains a token; anyone who knows it can run Python as you. FILE or DIR names
    the queries that the page can open and save. Ctrl-C ends the server and all runs.
    """
    with reporting(as_json=False):
        if max_cost is not None and prices is None:
            raise InputError(
                "--max-cost needs --prices, because servers do not report them", hint="--prices 0.15,0.60, for example"
            )
        offered = _offered(models, base_url)
        if cache is not None and not cache.endswith(".tokens"):
            raise InputError(
                f"--cache takes a .tokens file; {cache!r} does not end in .tokens", hint="--cache play.tokens"
            )
        from lmql_lite.apps.playground.files import Files, Page
        from lmql_lite.apps.playground.serving import ServerOptions, listening, listening_for, open_browser, serve

        files = None if path is None else Files.of(Path(path))
        bounds = {"prices": prices, **({} if max_cost is None else {"max_cost": max_cost})} if prices else {}
        options = ServerOptions(offered, files, Path(cache) if cache else None, bounds)

        def ready(address: str) -> None:
            write(f"Playground ready: {address}\n")
            if (build := Page.find().build) is not None:
                note(f"this is the plain page; {build}")
            note("Ctrl-C stops the server")
            if not no_open:
                threading.Thread(target=open_browser, args=(address,), daemon=True).start()  # it may wait for it

        serve(options, listening_for(files) if port is None else listening(port), ready)


def _offered(models: tuple[str, ...], base_url: str | None) -> dict[str, Access]:
    """`demo` is always there, and comes first where no other is named."""
    from lmql_lite.apps.configuration import read_configuration
    from lmql_lite.models.registry import KINDS, SERVERS, is_known

    read_configuration(Path.cwd())
    base_url = base_url or os.environ.get("LQ_BASE_URL")
    offered: dict[str, Access] = {}
    for model in models or (os.environ.get("LQ_MODEL") or "demo",):
        if not is_known(model):
            raise InputError(f"no model is called {model!r}", hint=f"there is {KINDS}")
        is_server = model.partition("/")[0] in ("openai", *SERVERS)
        offered[model] = {"base_url": base_url, "api_key": os.environ.get("OPENAI_API_KEY")} if is_server else {}
    if base_url is not None and not any(map(bool, offered.values())):
        raise InputError("--base-url is the address of a model, but no model is named", hint="add --model openai/NAME")
    return offered | {"demo": {}}
