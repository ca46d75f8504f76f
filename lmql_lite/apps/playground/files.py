"""Files of the playground: queries in the folder or file of the command line, the page's own files, and the
examples."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from starlette.responses import Response

from lmql_lite.apps.playground.guard import RequestRefused
from lmql_lite.assets import folder
from lmql_lite.errors import InputError
from lmql_lite.lang.source import Source

SUFFIXES = (".lq", ".lmql")
MAX_FILE_BYTES = 1_000_000
MAX_FILES = 1000
MAX_DEPTH = 6

_PART = re.compile(r"(?!\.)[^\0-\x1f/\\:*?\"<>|]{1,200}(?<![. ])")
"""Part of a path: not hidden, no `..`, no drive, no other separator."""
_DEVICE = re.compile(r"(?i)(con|prn|aux|nul|(com|lpt)[0-9¹²³]) *(\..*)?")
"""Name of a device on Windows, whatever its suffix."""


@dataclass(frozen=True, slots=True)
class Files:
    """The queries of a folder or file; nothing else is read or written. Names have `/` between folders. The version of
    a file depends on its content."""

    root: Path
    """Folder, with symbolic links resolved."""
    only: str | None = None

    @staticmethod
    def of(path: Path) -> Files:
        """Raises InputError for what is neither a folder nor a query file."""
        if path.is_dir():
            return Files(path.resolve())
        if path.suffix not in SUFFIXES:
            raise InputError(f"'{path}' is neither a folder nor a .lq file", hint="name one of them, or nothing")
        Source.from_file(path)
        place = path.resolve()
        if not _is_part(place.name):
            raise InputError(
                f"the page cannot open '{path}' under this name", hint="give it a name of letters and digits"
            )
        return Files(place.parent, place.name)

    @property
    def key(self) -> str:
        """Key of the folder, the same at each start."""
        return key_of(str(self.root))

    def names(self) -> list[str]:
        return [self.only] if self.only else sorted(self._below(self.root, MAX_DEPTH))[:MAX_FILES]

    def size(self, name: str) -> int:
        """0 where it is gone by now."""
        try:
            return (self.root / name).stat().st_size
        except OSError:
            return 0

    def is_copy(self, name: str, text: str) -> bool:
        """True if the file has exactly this text."""
        try:
            return self.read(name)[0] == text
        except RequestRefused:
            return False

    def _below(self, folder: Path, depth: int) -> Iterator[str]:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in entries:
            if not _is_part(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False) and depth and entry.name != "node_modules":
                yield from self._below(Path(entry.path), depth - 1)
            elif entry.is_file(follow_symlinks=False) and entry.name.endswith(SUFFIXES):
                yield Path(entry.path).relative_to(self.root).as_posix()

    def read(self, name: str) -> tuple[str, str]:
        """The text and its version. Raises Refused."""
        data = self._data(self._place(name))
        if data is None:
            raise RequestRefused(404, f"there is no file {name!r}")
        try:
            return Source.from_bytes(name, data).text, _version(data)
        except InputError as error:
            raise RequestRefused(422, error.message, error.hint) from None

    def write(self, name: str, text: str, version: str | None) -> str:
        """Gives the new version; after a crash the file is the old one or the new one.

        Raises Refused where it is not what was read as `version`; None is a file that was not there."""
        place = self._place(name)
        old = self._data(place)
        if old is None and any(map(_DEVICE.fullmatch, name.split("/"))):
            raise RequestRefused(422, f"{name!r} names a device on Windows, not a file", "choose another name")
        if old is None and version is not None:
            raise RequestRefused(409, f"{name!r} is no longer in the folder", "save it as a new file")
        if old is not None and version is None:
            raise RequestRefused(409, f"there is already a file {name!r}", "open it, or save under another name")
        if old is not None and _version(old) != version:
            raise RequestRefused(
                409, f"{name!r} has changed since it was read", "load it again, or save it under another name"
            )
        if not place.parent.is_dir():
            raise RequestRefused(404, f"there is no folder for {name!r}", "make the folder first, or leave it out")
        if old is not None and b"\r\n" in old and "\r" not in text:
            text = text.replace("\n", "\r\n")  # editors of pages know one kind of line end
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise RequestRefused(422, "the text has half of a character", "save it without") from None
        mode = 0o666 if old is None else place.stat().st_mode & 0o777
        aside = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
        try:
            with open(aside, "xb", opener=lambda path, flags: os.open(path, flags, mode)) as file:
                file.write(data)
            if old is not None:
                os.chmod(aside, mode)
            os.replace(aside, place)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise RequestRefused(422, f"{name!r} cannot be saved: {error.strerror or error}") from None
        return _version(data)

    def _place(self, name: str) -> Path:
        parts = name.split("/")
        if not all(map(_is_part, parts)) or not name.endswith(SUFFIXES) or len(parts) > MAX_DEPTH + 1:
            raise RequestRefused(422, f"{name!r} is not a name of a query file", "such as joke.lq, or jokes/dad.lq")
        if self.only not in (None, name):
            raise RequestRefused(404, f"the playground was started with {self.only!r} alone", "start it with a folder")
        place = self.root.joinpath(*parts)
        if place.resolve() != place:
            raise RequestRefused(422, f"{name!r} is, or goes through, a symbolic link", "name the file where it is")
        return place

    def _data(self, place: Path) -> bytes | None:
        try:
            found = place.stat()
            if not stat.S_ISREG(found.st_mode):
                raise RequestRefused(422, f"{place.name!r} is not a file")  # a pipe would be waited for
            if found.st_size > MAX_FILE_BYTES:
                raise RequestRefused(422, f"{place.name!r} is larger than {MAX_FILE_BYTES:,} bytes")
            return place.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RequestRefused(422, f"{place.name!r} cannot be read: {error.strerror or error}") from None


def key_of(folder: str) -> str:
    """Key under which the page keeps the drafts of a folder; of "" without one."""
    return hashlib.sha256(folder.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _is_part(name: str) -> bool:
    """True for a part of a path. A name that is not printable may look like another one."""
    return name.isprintable() and _PART.fullmatch(name) is not None


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


HOW_TO_BUILD = "for colours, completion and the tree run: cd playground && npm ci --ignore-scripts && npm run build"
"""Command that builds the bundle in a checkout; an installed package has nothing to build it from."""
HOW_TO_INSTALL = f"{HOW_TO_BUILD}, in a checkout, and install the package from there again; releases have it built"

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
    """Command that builds the bundle, None where it is built."""

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
            raise RequestRefused(404, "there is no such file")
        data = place.read_bytes()
        if place.suffix == ".html":
            data = data.replace(b"__NONCE__", nonce.encode())
        return Response(data, media_type=kind)


def examples() -> list[dict[str, Any]]:
    """Each query of `examples/`; the first sentence of its first comment is its title. `inputs` and `typed`, the lines
    that `input()` reads, are what one may try it with."""
    found, given = [], json.loads((folder("examples") / "inputs.json").read_text("utf-8"))
    for place in sorted(folder("examples").glob("*.lq")):
        text = place.read_text("utf-8")
        comment = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), text.split("\n")))
        title = comment.split(". ")[0].rstrip(".")
        found.append(
            {"name": place.name, "title": title, "text": text, "inputs": {}, "typed": [], **given.get(place.stem, {})}
        )
    return found
