"""Tables of cases that tests share: text files beside them, with a section for each test."""

from __future__ import annotations

import datetime
import functools
import ipaddress
import pathlib
import re
import typing
import uuid
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pydantic
import pytest

ROOT = pathlib.Path(__file__).parent
MODULES = (datetime, functools, ipaddress, pathlib, pydantic, re, typing, uuid)
NAMES: Mapping[str, Any] = {
    **{module.__name__: module for module in MODULES},
    **{name: getattr(typing, name) for name in ("Annotated", "Any", "Literal")},
    **{each.__name__: each for each in (Decimal, Fraction, SimpleNamespace)},
}
"""Names in all tables."""


def cases(file: str, section: str, names: Mapping[str, Any] | None = None) -> pytest.MarkDecorator:
    """The parameters of a test, from a section of `tests/FILE.txt`."""
    columns, lines, found = _read(file, section, names)
    ids = [re.sub(" +", " ", line)[:70] for line in lines]
    return pytest.mark.parametrize([column.removesuffix("=") for column in columns], found, ids=ids)


def rows(file: str, section: str, names: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """The cases of a section, for a test that looks at all of them at once."""
    return [tuple(row) for row in _read(file, section, names)[2]]


def _read(file: str, section: str, names: Mapping[str, Any] | None) -> tuple[list[str], list[str], list[list[Any]]]:
    """Columns, lines and cells of a section.

    Its heading is `### section: column, column=`. Each line is a case, its cells two spaces or more apart. A cell
    is a text, `""` the empty one; in a column with `=` it is Python, with NAMES and `names`. Lines that begin with
    `# ` are notes.
    """
    text = (ROOT / f"{file}.txt").read_text("utf-8")
    found = re.search(rf"^### {section}: (.+)\n((?:(?!### ).*\n)*)", text, re.MULTILINE)
    assert found, f"{file}.txt has no section {section}"
    columns = found[1].split(", ")
    lines = [line for line in found[2].splitlines() if line and not line.startswith("# ")]

    def read(cell: str, column: str) -> Any:
        if column.endswith("="):
            return eval(cell, {**NAMES, **(names or {})})
        return "" if cell == '""' else cell

    cells = [re.split(" {2,}", line.rstrip()) for line in lines]
    return columns, lines, [[read(cell, column) for cell, column in zip(row, columns, strict=True)] for row in cells]
