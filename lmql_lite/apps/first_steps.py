"""`lq examples` and `lq doctor`, for new users."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

import click

from lmql_lite import __version__
from lmql_lite.apps.terminal import JSON, reporting, write, write_object
from lmql_lite.errors import InputError, LmqlLiteError

PACKAGES = ("torch", "transformers", "redis", "opentelemetry-api")
"""Packages of extras."""
VARIABLES = ("LQ_MODEL", "LQ_BASE_URL", "OPENAI_BASE_URL", "OPENAI_API_KEY")


@click.command(short_help="List the example queries, or copy them.")
@click.argument("into", metavar="[COPY-TO]", required=False, type=click.Path(path_type=Path))
def examples(into: Path | None) -> None:
    """List the examples that come with lq. With COPY-TO, copy them into that folder; no file is overwritten."""
    from lmql_lite.assets import folder

    with reporting(as_json=False):
        files = sorted(folder("examples").glob("[0-9]*"))
        if into is None:
            write("\n".join(f"{file.name:24}{_title(file)}" for file in files))
            return
        try:
            into.mkdir(parents=True, exist_ok=True)
            if taken := [file.name for file in files if (into / file.name).exists()]:
                raise InputError(f"'{into}' already has {taken[0]}", hint="name a new folder: nothing is overwritten")
            for file in files:
                if file.is_dir():
                    shutil.copytree(file, into / file.name, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(file, into)
        except OSError as error:
            raise InputError(f"'{into}' cannot be written: {error.strerror}", hint="name another folder") from None
        write(f"copied {len(files)} examples to {into}; try: lq run {into / files[0].name}")


def _title(file: Path) -> str:
    """First sentence of the comment in the first line, or of the heading in a folder's README."""
    text = (file / "README.md" if file.is_dir() else file).read_text("utf-8")
    first = text.partition("\n")[0]
    return first.removeprefix("#").strip().partition(". ")[0].removesuffix(".") if first.startswith("#") else ""


@click.command(short_help="Show versions, settings and models on this machine.")
@JSON
def doctor(as_json: bool) -> None:
    """Show versions, models and settings, ready to paste into an issue. No server is asked, and no key is shown."""
    with reporting(as_json):
        found = {
            "lq": __version__,
            "python": f"{platform.python_version()} on {platform.platform()}",
            **{package: _version(package) for package in PACKAGES},
            **{name: _shown(name) for name in VARIABLES},
            "pyproject.toml": _configured(),
            "current folder": "can be written" if os.access(Path.cwd(), os.W_OK) else "cannot be written",
            "temporary folder": tempfile.gettempdir(),
            "terminal": "yes" if sys.stdout.isatty() else "no",
            "demo model": _demo(),
            "smol": _smol(),
        }
        if as_json:
            write_object(found)
        else:
            write("\n".join(f"{name:20}{value}" for name, value in found.items()))


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _shown(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        return "not set"
    return "set" if variable.endswith("KEY") else json.dumps(value.rpartition("@")[2])


def _configured() -> str:
    from lmql_lite.apps.configuration import read_configuration

    before = os.environ.copy()
    try:
        read_configuration(Path.cwd())
    except LmqlLiteError as error:
        return str(error)
    chosen = [f"{name}={os.environ[name]}" for name in os.environ.keys() - before.keys()]
    return ", ".join(sorted(chosen)) or "says nothing"


def _smol() -> str:
    from lmql_lite.models.model_files import SMOL_REMEDY
    from lmql_lite.models.registry import here

    return "installed" if "smol" in here() else f"not installed: {SMOL_REMEDY}"


def _demo() -> str:
    from lmql_lite.api import run_sync

    began = time.process_time()
    result = run_sync('"Things to pack for the beach:\\n-[X]" where STOPS_AT(X, "\\n")', model="demo", cache=False)
    tokens = result.usage.completion_tokens or 0
    return f"{tokens} tokens in {time.process_time() - began:.2f} s of processor time"
