"""Disk tier: one file per entry in one folder, shared by any number of processes.

The folder is the index: the files' names are the keys, and their sizes and access times are used, so that nothing has
to be loaded and neither a restart nor a crash loses anything. Entries of a group have a folder of their own inside it.
Only the holder of the lock file writes: to a temporary file, then by a rename. The lock file has the number of bytes in
use, so that the folder is listed to evict entries and after a crash, and never to store one. Values are verified on
reading, and damaged files are set aside.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from threading import Lock

from lmql_lite.store.files import TEMPORARY_PREFIX, lock_file, replace_file
from lmql_lite.store.tier import (
    MAX_GROUP,
    Buffer,
    CorruptEntry,
    Notices,
    Store,
    TierCounts,
    envelope_size,
    group_of,
    seal,
    unseal,
)

_LOCK_SECONDS = 2.0
"""Maximum wait of a writer for other processes, after which its entry is not stored."""
_MAX_NAME_LENGTH = 240
_ROOM = 0.9
"""Share of the cap that eviction leaves in use, so that the entries after it find room without one."""
_PINNED_SECONDS = 4102444800
"""Time of last access, in Unix seconds, of a pinned file: the year 2100, so that every process sees the pin."""
_DAMAGED = ".damaged"
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


def file_name(key: str) -> str:
    """Key as a file name that Windows accepts too: other bytes become `!` and two hexadecimal digits.

    >>> file_name("model/x@1@0"), file_name("Zoë"), file_name("nul")
    ('model!2fx@1@0', 'Zo!c3!ab', '!6eul')
    """
    first = 1 if _RESERVED.match(key) or key.startswith(".") else 0
    escaped = re.compile(r"[^A-Za-z0-9@%._=+,~()-]+")
    return "".join(f"!{byte:02x}" for byte in key[:first].encode()) + escaped.sub(
        lambda found: "".join(f"!{byte:02x}" for byte in found[0].encode()), key[first:]
    )


class DiskTier(Store):
    """Entries as files in `folder`, at most `most_bytes` in total, from all processes.

    Files are named after their keys and end in `suffix`. A folder that cannot be created, read or written is a tier
    without entries, with a notice. Caches that share a folder and a suffix have keys of different patterns: only a key
    that matches `keys` is an entry of this tier. With `reads_only` nothing is written, not even a time of use.

        tier = DiskTier(Path("cache/kv"), 2**30)
        tier.put("key", b"value")
    """

    def __init__(
        self,
        folder: Path,
        most_bytes: int,
        suffix: str = ".entry",
        keys: re.Pattern[str] | None = None,
        *,
        reads_only: bool = False,
    ) -> None:
        self.name, self.counts, self.notices = "disk", TierCounts(), Notices()
        self._folder, self._most, self._suffix = folder, most_bytes, suffix
        self._keys, self._reads_only = keys, reads_only
        self._guard = Lock()
        self._account = f"{suffix} {keys.pattern if keys else ''}"
        """Name of this tier's entry in the lock file, beside those of other caches in the folder."""
        self._used = 0
        with self._failures("the folder cannot be created"):
            if not reads_only:
                folder.mkdir(parents=True, exist_ok=True)

    def get(self, keys: Sequence[str]) -> list[Buffer | None]:
        values: list[Buffer | None] = [self._read(key) for key in keys]
        self.touch([key for key, value in zip(keys, values, strict=True) if value is not None])
        self.counts.add_read(values)
        return values

    def head(self, keys: Sequence[str], size: int) -> list[Buffer | None]:
        heads: list[Buffer | None] = [None] * len(keys)
        for place, key in enumerate(keys):
            with suppress(OSError), open(self._path(key), "rb", 0, opener=_unnoticed) as file:
                file.seek(envelope_size(key))
                heads[place] = file.read(size)
        return heads

    def contains(self, keys: Sequence[str]) -> list[bool]:
        return [self._path(key).exists() for key in keys]

    def put(self, key: str, value: Buffer) -> bool:
        if self._reads_only:
            return False
        path, size = self._path(key), envelope_size(key) + len(value)
        if size > self._most or len(path.name) > _MAX_NAME_LENGTH:
            self.notices.add(f"{self._folder}: an entry of {size} bytes was not kept: the cap is {self._most} bytes")
            return False
        envelope = seal(key, value)
        with self._failures("an entry cannot be written"), self._locked() as held:
            more = size - (path.stat().st_size if path.exists() else 0)
            if held and self._make_room(more, path):
                path.parent.mkdir(exist_ok=True)
                replace_file(path, (envelope, value))
                os.utime(path, ns=(time.time_ns(), time.time_ns()))  # the file system's own clock is behind by a tick
                self._used += more
                self.counts.written_bytes += len(value)
                return True
        return False

    def touch(self, keys: Sequence[str]) -> None:
        now = time.time_ns()
        for place, key in enumerate(() if self._reads_only else keys):
            with suppress(OSError):
                found = (path := self._path(key)).stat()
                os.utime(path, ns=(max(now - place * 1000, found.st_atime_ns), found.st_mtime_ns))

    def delete(self, key: str) -> bool:
        if self._reads_only:
            return False
        with self._failures("an entry cannot be removed"), self._locked() as held:
            if held and (path := self._path(key)).exists():
                self._used -= path.stat().st_size
                path.unlink()
                return True
        return False

    def pin(self, key: str, pinned: bool) -> bool:
        with suppress(OSError):
            if not self._reads_only:
                os.utime(self._path(key), (_PINNED_SECONDS if pinned else time.time(), time.time()))
                return True
        return False

    def sizes(self) -> dict[str, int]:
        """See `Store.sizes`. The least recently used entry comes first."""
        return self._sizes(self._files())

    def group(self, name: str) -> list[str]:
        return list(self._sizes(islice(self._listed(self._folder / file_name(name)), MAX_GROUP)))

    def _sizes(self, files: Iterator[tuple[float, int, Path]]) -> dict[str, int]:
        end = len(self._suffix)
        return {_key(path.name[:-end]): size for _, size, path in sorted(files) if path.suffix == self._suffix}

    def close(self) -> None:
        """Does nothing, since no file is open between calls."""

    def _path(self, key: str) -> Path:
        group = group_of(key)
        folder = self._folder if group is None else self._folder / file_name(group)
        return folder / (file_name(key) + self._suffix)

    def _read(self, key: str) -> memoryview | None:
        path = self._path(key)
        try:
            with open(path, "rb", 0, opener=_unnoticed) as file:
                data = bytearray(os.fstat(file.fileno()).st_size)
                view, filled = memoryview(data), 0
                while count := file.readinto(view[filled:]):
                    filled += count
            return unseal(key, view[:filled])
        except FileNotFoundError:
            return None
        except OSError as error:
            self._fail(error, "an entry cannot be read")
        except CorruptEntry as error:
            self.counts.corrupt += 1
            self.notices.add(f"{path} is damaged ({error})" + ("" if self._reads_only else " and was set aside"))
            with suppress(OSError):
                if not self._reads_only:
                    path.replace(path.with_name(path.name + _DAMAGED))
        return None

    @contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        """Turns an error of the file system into a notice."""
        try:
            yield
        except OSError as error:
            self._fail(error, what)

    def _fail(self, error: OSError, what: str) -> None:
        self.counts.errors += 1
        self.notices.add(f"{self._folder}: {what} ({error.strerror or error})")

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Holds the lock file, with `_used` up to date. Yields False if others held it for too long.

        The lock file has no accounts while files change, so that the next process sees a crash, and counts anew.
        """
        path = self._folder / ".lock"
        with self._guard, lock_file(path, _LOCK_SECONDS) as held:
            if held:
                accounts = _accounts(path)
                _overwrite(path, b"-")
                self._used = accounts.get(self._account, -1)
                if self._used < 0:
                    self._used = self._count()
                yield True
                _overwrite(path, json.dumps({**accounts, self._account: self._used}).encode())
            else:
                self.notices.add(f"{self._folder} is locked by another process: an entry was not kept")
                yield False

    def _count(self) -> int:
        """Bytes in use. Removes temporary files that a crash has left."""
        for temporary in self._folder.rglob(TEMPORARY_PREFIX + "*"):
            temporary.unlink(missing_ok=True)
        return sum(size for _, size, _ in self._files())

    def _make_room(self, need: int, replaced: Path) -> bool:
        """Evicts entries until `need` more bytes fit and a tenth of the cap is free, damaged files first.

        False if pinned entries leave no room.
        """
        if self._used + need <= self._most:
            return True
        files = sorted(self._files(), key=lambda file: (file[2].suffix == self._suffix, file[0]))
        self._used = sum(size for _, size, _ in files)
        for used_at, size, path in files:
            used = self._used + need
            if used <= self._most and used - size < _ROOM * self._most:
                break
            if used_at < _PINNED_SECONDS and path != replaced:
                with suppress(OSError):
                    path.unlink()
                    self._used -= size
                    self.counts.evictions += 1
                with suppress(OSError):
                    if path.parent != self._folder:
                        path.parent.rmdir()  # of a group without entries
        if self._used + need > self._most:
            self.notices.add(f"{self._folder}: an entry was not kept: pinned ones fill the cap of {self._most} bytes")
        return self._used + need <= self._most

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Time of last use, size and path of each entry's file, including damaged ones."""
        yield from self._listed(self._folder)
        with suppress(OSError), os.scandir(self._folder) as names:
            for name in names:
                if name.is_dir(follow_symlinks=False):
                    yield from self._listed(Path(name.path))

    def _listed(self, folder: Path) -> Iterator[tuple[float, int, Path]]:
        """As `_files`, of one folder."""
        with suppress(OSError), os.scandir(folder) as names:
            for name in names:
                key = name.name.removesuffix(_DAMAGED).removesuffix(self._suffix)
                is_entry = key != name.name and (self._keys is None or self._keys.fullmatch(_key(key)) is not None)
                with suppress(OSError):
                    if is_entry and name.is_file(follow_symlinks=False):
                        found = name.stat()
                        yield found.st_atime, found.st_size, Path(name.path)


def _overwrite(path: Path, data: bytes) -> None:
    """Replaces the content of a file in place. ext4 would sync a file that is first cut to nothing, at each put."""
    with open(path, "r+b", 0) as file:
        file.write(data)
        file.truncate()


def _accounts(path: Path) -> dict[str, int]:
    """Bytes in use by account, from the lock file. None of them after a crash."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and all(isinstance(size, int) for size in found.values()) else {}


def _unnoticed(path: str, flags: int) -> int:
    """Opens a file without a change of its access time, which is the time of last use and set only by `touch`."""
    with suppress(PermissionError):
        return os.open(path, flags | getattr(os, "O_NOATIME", 0))
    return os.open(path, flags)


def _key(name: str) -> str:
    """Key of a name made by `file_name`."""
    return re.sub(
        "(?:![0-9a-f]{2})+", lambda found: bytes.fromhex(found[0].replace("!", "")).decode(errors="replace"), name
    )
