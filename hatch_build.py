"""Build hook that puts the tables of the parsers and the page of the playground into wheels, and the page into sdists.

A build takes the bundle in `playground/dist` if it is newer than its sources, else the page's own modules, which work
by themselves. It never runs npm and never writes into the checkout, except with LMQL_LITE_RELEASE=1: a release makes
its bundle, and fails without one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NEEDED = ("index.html", "lq-view.js", "THIRD_PARTY_NOTICES.txt")
NOT_SOURCES = ("dist", "node_modules")
SOURCES = {".html", ".css", ".js", ".mjs", ".json"}


class Bundle(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises RuntimeError for a release without its bundle."""
        if version == "editable":
            return
        root = Path(self.root)
        page, dist = root / "playground", root / "playground" / "dist"
        is_release = os.environ.get("LMQL_LITE_RELEASE") == "1"
        if is_release and (problem := bundle(page)):
            raise RuntimeError(f"a release needs the bundle of the page: {problem}")
        files = [dist] if is_built(page) else list(own_files(page))
        into = "" if self.target_name == "sdist" else "lmql_lite/"
        if self.target_name == "sdist":
            files = [file for file in files if file == dist]  # the rest is in it anyway
        else:
            files += sorted((root / "examples").glob("*.lq"))
            beside = ("-shm", "-wal")  # what SQLite keeps beside a file that is open
            files += sorted(file for file in (root / "examples").glob("[0-9]*/*") if not file.name.endswith(beside))
            files += [root / "examples" / "inputs.json"]
            self.made = tempfile.TemporaryDirectory()
            build_data["force_include"][str(tables(root, Path(self.made.name)))] = "lmql_lite/grammar/tables.json"
        build_data["force_include"] |= {str(file): f"{into}{file.relative_to(root).as_posix()}" for file in files}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "made"):
            self.made.cleanup()


def tables(root: Path, folder: Path) -> Path:
    """A file with the tables of the parsers, written into this folder."""
    command = [sys.executable, "-c", "from lmql_lite.lang.grammar import tables; print(tables())"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the tables of the parsers cannot be made: {done.stderr.strip()[-2000:]}")
    file = folder / "tables.json"
    file.write_text(done.stdout, "utf-8")
    return file


def own_files(page: Path) -> Iterator[Path]:
    """Files that a browser loads without a bundle."""
    yield page / "index.html"
    yield from sorted(page.glob("*.css"))
    yield page / "src"


def is_built(page: Path) -> bool:
    """True if the bundle is complete and newer than its sources."""
    dist = page / "dist"
    if not all((dist / name).is_file() for name in NEEDED):
        return False
    sources = (file for top in page.iterdir() if top.name not in NOT_SOURCES for file in (top, *top.rglob("*")))
    return (
        max(file.stat().st_mtime for file in sources if file.suffix in SOURCES) <= (dist / "index.html").stat().st_mtime
    )


def bundle(page: Path) -> str | None:
    """Makes the bundle. Returns the reason why it could not, None if it could."""
    npm = shutil.which("npm")
    if npm is None:
        return "there is no npm"
    fetch = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"]
    for command in (fetch, [npm, "run", "build"]):
        done = subprocess.run(command, cwd=page, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"`{' '.join(['npm', *command[1:]])}` failed: {(done.stderr or done.stdout).strip()[-2000:]}"
    missing = [name for name in NEEDED if not (page / "dist" / name).is_file()]
    return f"the build left no {' and no '.join(missing)}" if missing else None
