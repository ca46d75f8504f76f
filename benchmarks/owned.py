"""Cost of owning a package, printed as JSON by its own interpreter: `PYTHON owned.py MODULE DISTRIBUTION`.

Processor seconds of its import; lines of its Python (code: without blank lines, comments and docstrings) and modules;
the packages that pip installs with it, itself included and optional ones left out, and their size in megabytes.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import sys
import time
from pathlib import Path


def code_lines(text: str) -> int:
    """Number of lines that are neither blank nor a comment, less those of strings that stand alone; those of a file
    that is no Python in full."""
    lines = text.splitlines()
    count = sum(1 for line in lines if line.strip() and not line.lstrip().startswith("#"))
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return count
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            count -= sum(1 for line in lines[node.lineno - 1 : node.end_lineno] if line.strip())
    return count


def installed_with(name: str) -> list[importlib.metadata.Distribution]:
    from packaging.requirements import Requirement

    found, left = dict[str, importlib.metadata.Distribution](), [name]
    while left:
        one = left.pop().lower().replace("_", "-")
        if one in found:
            continue
        try:
            found[one] = importlib.metadata.distribution(one)
        except importlib.metadata.PackageNotFoundError:
            continue
        needs = [Requirement(need) for need in found[one].requires or ()]
        left += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return list(found.values())


def megabytes(files: list[Path]) -> float:
    return sum(file.stat().st_size for file in files if file.is_file() and file.suffix != ".pyc") / 2**20


def main(name: str, distribution: str) -> None:
    begin = time.process_time()
    package = importlib.import_module(name)
    cpu = time.process_time() - begin
    top = Path(str(package.__file__)).parent
    sources = sorted(top.rglob("*.py"))
    own = megabytes(list(top.rglob("*")))
    itself = {name, distribution.replace("-", "_")}
    others = [each for each in installed_with(distribution) if each.metadata["Name"].replace("-", "_") not in itself]
    size = own + sum(megabytes([Path(str(file.locate())) for file in each.files or ()]) for each in others)
    packages = len(installed_with(distribution))
    lines = sum(code_lines(source.read_text("utf-8")) for source in sources)
    report = {"import": cpu, "lines": lines, "modules": len(sources), "packages": packages, "own": own, "size": size}
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
