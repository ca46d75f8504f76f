"""`[tool.lmql-lite]` in the nearest pyproject.toml: the default model of the command `lq`."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

from lmql_lite.errors import InputError, did_you_mean

VARIABLES = {"model": "LQ_MODEL", "base-url": "LQ_BASE_URL"}
"""Keys of the table, and the variables of the environment that override them."""
HERE = ("localhost", "127.0.0.1", "::1")


def read_configuration(folder: Path) -> None:
    """Sets the variables that are not set to what the nearest pyproject.toml at or above the folder says.

    Raises InputError for a file that cannot be read, an unknown key, an unknown model, and an address that is not on
    this machine: whoever wrote the file would be sent the user's key.
    """
    file = next((path for each in (folder, *folder.parents) if (path := each / "pyproject.toml").is_file()), None)
    if file is None:
        return
    try:
        table = tomllib.loads(file.read_text("utf-8")).get("tool", {}).get("lmql-lite", {})
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {error}", hint="repair it, or run lq in another folder") from None
    if not isinstance(table, dict):
        raise InputError(f"{file}: tool.lmql-lite is not a table", hint="write [tool.lmql-lite]")
    for key, value in table.items():
        place = f"{file}: [tool.lmql-lite]"
        if key not in VARIABLES:
            hint = did_you_mean(key, VARIABLES) or f"it may have {' and '.join(VARIABLES)}"
            raise InputError(f"{place} has no key {key!r}", hint=hint)
        if not isinstance(value, str):
            raise InputError(f"{place} {key} is a text; this is {value!r}", hint=f'for example {key} = "..."')
        if key == "model":
            _check_model(place, value)
        elif urlsplit(value).hostname not in HERE:
            hint = "set LQ_BASE_URL: the server is sent your key, so that no file of a project may choose it"
            raise InputError(f"{place} base-url {value!r} is not on this machine", hint=hint)
        os.environ.setdefault(VARIABLES[key], value)


def _check_model(place: str, model: str) -> None:
    from lmql_lite.models.registry import KINDS, is_known

    if not is_known(model):
        raise InputError(f"{place} names the model {model!r}, which is not known", hint=f"use {KINDS}")
