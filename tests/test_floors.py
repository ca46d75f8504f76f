"""The house of DESIGN.md section 3: a file imports its own room or a lower floor, never sideways, never up."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lmql_lite"
FLOORS = [
    {"errors", "assets", "redaction"},
    {"media", "options", "tokens"},
    {"html", "plain"},
    {"lang", "constraints", "store"},
    {"cache", "program"},
    {"models"},
    {"engine"},
    {"observe"},
    {"api"},
    {"decorators", "prompts"},
    {"data"},
    {"apps", "integrations"},
]
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
FACES = {"__init__", "__main__"}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in ("grammar", "demo"))


def is_module(name: str) -> bool:
    return (PACKAGE.parent / Path(*name.split("."))).with_suffix(".py").is_file()


def imports(path: Path) -> Iterator[str]:
    """Every module of the package that a file imports, nested and TYPE_CHECKING ones too."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            if module.split(".")[0] == "lmql_lite":
                named = [f"{module}.{alias.name}" for alias in node.names if is_module(f"{module}.{alias.name}")]
                yield from named or [module]
        elif isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] == "lmql_lite" for alias in node.names), f"{path}: import module"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_downwards(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for module in imports(path):
        if room in FACES:
            continue
        if module == "lmql_lite":  # the face: its version, for the command line
            assert room == "apps", f"{room} may not import the package's face"
            continue
        other = module.split(".")[1]
        assert other == room or LEVEL[other] < LEVEL[room], f"{room} may not import {other}"


def test_no_circles_within_a_room() -> None:
    graph = {}
    for path in FILES:
        name = ".".join(("lmql_lite", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        graph[name] = set(imports(path))
    tuple(TopologicalSorter(graph).static_order())


def test_no_circles_between_the_smaller_rooms() -> None:
    """`engine/decode/` is one thing, and so is each file that stands in `engine/` itself."""
    graph: dict[str, set[str]] = {}

    def thing(module: str) -> str:
        return ".".join(module.split(".")[: 3 if (PACKAGE.parent / Path(*module.split(".")[:3])).is_dir() else 4])

    for path in FILES:
        name = ".".join(("lmql_lite", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        others = {thing(module) for module in imports(path)}
        graph.setdefault(thing(name), set()).update(others - {thing(name)})
    tuple(TopologicalSorter(graph).static_order())
