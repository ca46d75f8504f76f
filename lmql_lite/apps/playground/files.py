"""The query files that somebody named on the command line: a folder with all that are in it, or one file."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lmql_lite.apps.playground.replies import Refused
from lmql_lite.errors import InputError
from lmql_lite.lang.source import Source

SUFFIXES = (".lq", ".lmql")
MOST_BYTES = 1_000_000
MOST_FILES = 1000
DEEPEST = 6

_PART = re.compile(r"(?!\.)[^\0-\x1f/\\:*?\"<>|]{1,200}(?<![. ])")
"""Nothing hidden, no `..`, no drive, no other separator."""


@dataclass(frozen=True, slots=True)
class Files:
    """Reads and writes nothing else. Names have `/` between folders; a file has one version per content."""

    root: Path
    """Without symbolic links."""
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
            raise InputError(f"the page has no way to name '{path}'", hint="give it a name of letters and digits")
        return Files(place.parent, place.name)

    def names(self) -> list[str]:
        return [self.only] if self.only else sorted(self._below(self.root, DEEPEST))[:MOST_FILES]

    def size(self, name: str) -> int:
        """0 where it is gone by now."""
        try:
            return (self.root / name).stat().st_size
        except OSError:
            return 0

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
            raise Refused(404, f"there is no file {name!r}")
        try:
            return Source.from_bytes(name, data).text, _version(data)
        except InputError as error:
            raise Refused(422, error.message, error.hint) from None

    def write(self, name: str, text: str, version: str | None) -> str:
        """Gives the new version; after a crash the file is the old one or the new one.

        Raises Refused where it is not what was read as `version`; None is a file that was not there."""
        place = self._place(name)
        old = self._data(place)
        if (None if old is None else _version(old)) != version:
            raise Refused(
                409, f"{name!r} has changed since it was read", "load it again, or save it under another name"
            )
        if not place.parent.is_dir():
            raise Refused(404, f"there is no folder for {name!r}")
        if old is not None and b"\r\n" in old and "\r" not in text:
            text = text.replace("\n", "\r\n")  # editors of pages know one kind of line end
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise Refused(422, "the text has half of a character", "save it without") from None
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
            raise Refused(422, f"{name!r} cannot be saved: {error.strerror or error}") from None
        return _version(data)

    def _place(self, name: str) -> Path:
        parts = name.split("/")
        if not all(map(_is_part, parts)) or not name.endswith(SUFFIXES) or len(parts) > DEEPEST + 1:
            raise Refused(422, f"{name!r} is no name of a query file", "such as joke.lq, or jokes/dad.lq")
        if self.only not in (None, name):
            raise Refused(404, f"the playground was started with {self.only!r} alone", "start it with a folder")
        place = self.root.joinpath(*parts)
        if place.resolve() != place:
            raise Refused(422, f"{name!r} is, or goes through, a symbolic link", "name the file where it is")
        return place

    def _data(self, place: Path) -> bytes | None:
        try:
            found = place.stat()
            if not stat.S_ISREG(found.st_mode):
                raise Refused(422, f"{place.name!r} is no file")  # a pipe would be waited for
            if found.st_size > MOST_BYTES:
                raise Refused(422, f"{place.name!r} is larger than {MOST_BYTES:,} bytes")
            return place.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Refused(422, f"{place.name!r} cannot be read: {error.strerror or error}") from None


def _is_part(name: str) -> bool:
    """Of a path. What is not printable may show as another name."""
    return name.isprintable() and _PART.fullmatch(name) is not None


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
