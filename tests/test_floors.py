"""The house of DESIGN.md section 3: a file imports its own room or a lower floor, never sideways, never up."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from tests.conftest import parsed

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


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    """Every module of the package that a file imports, nested and TYPE_CHECKING ones too."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            if module.split(".")[0] == "lmql_lite":
                named = [f"{module}.{alias.name}" for alias in node.names if is_module(f"{module}.{alias.name}")]
                yield from named or [module]
        elif isinstance(node, ast.Import):
            assert not any(alias.name.split(".")[0] == "lmql_lite" for alias in node.names), f"{path}: import module"


def test_a_file_imports_only_downwards() -> None:
    for path in FILES:
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for module in imports(path) if room not in FACES else ():
            if module == "lmql_lite":  # the face: its version, for the command line
                assert room == "apps", f"{path} may not import the package's face"
                continue
            other = module.split(".")[1]
            assert other == room or LEVEL[other] < LEVEL[room], f"{path} may not import {module}"


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
