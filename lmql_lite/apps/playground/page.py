"""The page's own files, with the bundle where it was built and without where not; and the examples."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from starlette.responses import Response

from lmql_lite.apps.playground.replies import Refused
from lmql_lite.assets import folder

HOW_TO_BUILD = "for colours, completion and the tree: npm ci && npm run build, in playground/"
"""In a checkout. An installed package has nothing to build it from."""
HOW_TO_INSTALL = "for colours, completion and the tree: install the package anew where npm is, from its sources"

TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".json": "application/json",
    ".map": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain",
}


@dataclass(frozen=True, slots=True)
class Page:
    root: Path
    build: str | None
    """How the bundle is made, where it is not there."""

    @staticmethod
    def find() -> Page:
        home = folder("playground")
        if (home / "dist" / "index.html").is_file():
            return Page((home / "dist").resolve(), None)
        return Page(home.resolve(), HOW_TO_BUILD if (home / "package.json").is_file() else HOW_TO_INSTALL)

    def file(self, path: str, nonce: str) -> Response:
        """Raises Refused for what is not there, and for what is not for the browser."""
        parts = (path or "index.html").split("/")
        place = self.root.joinpath(*parts)
        kind = TYPES.get(place.suffix)
        is_hidden = any(part in ("", "node_modules") or part.startswith(".") for part in parts)
        is_hidden |= any(character in path for character in "\0\\:")
        if kind is None or is_hidden or place.resolve() != place or not place.is_file():
            raise Refused(404, "there is no such file")
        data = place.read_bytes()
        if place.suffix == ".html":
            data = data.replace(b"__NONCE__", nonce.encode())
        return Response(data, media_type=kind)


def examples() -> list[dict[str, Any]]:
    """Each query of `examples/`; the first sentence of its first comment is its title, and `inputs` are what its
    recorded run was given."""
    found, inputs = [], json.loads((folder("examples") / "recorded" / "inputs.json").read_text("utf-8"))
    for place in sorted(folder("examples").glob("*.lq")):
        text = place.read_text("utf-8")
        comment = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), text.split("\n")))
        title = comment.split(". ")[0].rstrip(".")
        found.append({"name": place.name, "title": title, "text": text, "inputs": inputs.get(place.stem, {})})
    return found


def recording(name: str) -> bytes:
    """The lines of an example's recorded run. Raises Refused where there is none."""
    for place in (folder("examples") / "recorded").glob("*.lqrun"):
        if f"{place.stem}.lq" == name:
            return place.read_bytes()
    raise Refused(404, "there is no such recording")
