"""Log file: opens, reads, locks, appends to and replaces one `.tokens` file, blocking (D19).

It handles frames, not their contents. Three rules keep the file safe. Only the holder of the lock writes, at the end,
with one write per frame. Complete frames are never cut: only an incomplete frame at the end is, and other damage is
skipped and left in place. Before it reads on, a reader checks that the file is still the one that it read.
"""

from __future__ import annotations

import errno
import os
import random
import stat
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from io import FileIO
from pathlib import Path
from threading import Lock

from lmql_lite.cache.framing import HEAD_BYTES, FrameError, LogFrame, check_format, frame_bytes, scan
from lmql_lite.errors import CacheError
from lmql_lite.store.atomic_file import sync_folder
from lmql_lite.store.file_lock import try_lock, unlock

Admit = Callable[[Sequence[LogFrame], bool], bool]
"""Function that takes frames which others appended, and a flag that they begin another file. Returns True if all frames
are usable."""
Payloads = Callable[[], Generator[bytes, None, None]]
"""Payloads to write; each is requested after the one before is written."""

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
LOCK_SECONDS = 30.0
"""Seconds that a writer waits for the lock before it goes on without writing."""


class LogFile:
    """Reader and writer of the file, with its position. Safe for threads: one call at a time, the others wait.

    These raise a CacheError and are not changed: a file that is not a `.tokens` file or has a newer format; a
    directory, device, pipe or socket; a link that leads nowhere; a path whose folder is missing; a file without read
    permission. A link to a file is followed. An empty file becomes a `.tokens` file at the first append.

    These give a notice, and new entries are not kept: a file or folder without write permission (existing entries are
    read), a full disk, a file system without locks, a lock that another process holds for `LOCK_SECONDS`, an open file
    that is replaced by something else. Damage of any kind gives a notice, and damaged entries are misses. A removed
    file is created again by the next append; a replaced file is opened again.

    With `durable` each write is synced before it counts, so that it survives a power failure (S34).
    """

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.notices: list[str] = []
        self.writable = True
        self._given, self._path = path, Path(os.path.realpath(path))
        self._durable = durable
        self._guard = Lock()
        self._file: FileIO | None = None
        self._closed = False
        self._unseen: list[LogFrame] = []
        self._is_other = False
        """True if the unseen frames belong to another file than the one read before."""
        self._position = self._end = 0
        """Number of bytes read, which is also the offset at which the holder of the lock may write."""
        self._last_head: tuple[int, bytes] = (0, b"")

    def open(self) -> None:
        """Opens or creates the file. Does nothing if it was closed before.

        Raises CacheError if the file cannot be used.
        """
        with self._guard:
            if self._closed:
                return
            self._file = self._opened()
            try:
                if self._file is not None:
                    check_format(self._file, self._given)
            except OSError as error:
                self._open_file.close()
                raise CacheError(f"{self._given} cannot be read ({reason(error)})") from error
            except CacheError:
                self._open_file.close()
                raise

    def follow(self, admit: Admit) -> None:
        """Reads frames that others appended. If that fails, adds a notice and reads nothing."""
        with self._guard:
            try:
                if self._is_current(create=False):
                    self._look()
            except (OSError, CacheError) as error:
                self._note(f"can no longer be read ({reason(error)})")
            self._show(admit)

    def append(self, admit: Admit, payloads: Payloads) -> bool:
        """Reads frames that others appended, then writes frames after them, one write each. False if one is not
        kept."""
        with self._guard, self._locked() as held:
            if not held:
                return False
            self._show(admit)
            with closing(payloads()) as generated:
                return self._write(generated)

    def rewrite(self, admit: Admit, payloads: Payloads) -> bool:
        """Like `append`, but the frames replace all others, and all are requested before any is written.

        A crash leaves the old file complete, and a hidden file that the next rewrite removes.
        """
        with self._guard, self._locked() as held:
            if not held:
                return False
            self._show(admit)
            return self._replace(payloads)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            if self._file is not None:
                self._file.close()
                self._file = None

    def _note(self, what: str) -> None:
        sentence = f"{self._given}: {what}"
        if sentence not in self.notices:
            self.notices.append(sentence)

    def _show(self, admit: Admit) -> None:
        frames, is_other = self._unseen, self._is_other
        self._unseen, self._is_other = [], False
        if (frames or is_other) and not admit(frames, is_other):
            self._note_damage()

    # -- opening

    def _opened(self) -> FileIO | None:
        """The file, opened read-only if necessary; None if it is missing and cannot be created."""
        file, self.writable = open_file(self._path, self._given)
        if not self.writable:
            self._note(f"cannot be {'created' if file is None else 'written'}: new entries are not kept")
        return file

    def _is_current(self, *, create: bool) -> bool:
        """True if there is a file to read. Opens it again if another file replaced it, or with `create` if it is
        missing."""
        if self._closed:
            raise ValueError("the tokens file is closed")
        try:
            there: os.stat_result | None = os.stat(self._path)
        except FileNotFoundError:
            there = None
        if self._file is not None and there is not None and os.path.samestat(os.fstat(self._file.fileno()), there):
            return True
        if there is None and not create:
            if self._file is not None:
                self._file.close()
                self._file = None
                self._start_over()
            return False
        file = self._opened()
        if file is None:
            return False
        if self._file is not None:
            self._file.close()
            self._start_over()
        self._file = file
        return True

    def _start_over(self) -> None:
        self._position = self._end = 0
        self._last_head = (0, b"")
        self._unseen, self._is_other = [], True

    # -- reading

    def _look(self) -> int:
        """Reads new frames into `_unseen`. Returns the file's size without an incomplete frame at the end."""
        size = self._size()
        start, head = self._last_head
        if size < self._position or self._bytes(start, len(head)) != head:  # overwritten in place
            self._start_over()
        if self._position == 0:
            check_format(self._open_file, self._given)
        if size == self._position:
            return size
        found = scan(self._bytes(self._position, size - self._position), self._position)
        self._unseen += [place.frame for place in found.places]
        if found.places:
            start = found.places[-1].start
            self._last_head = (start, self._bytes(start, HEAD_BYTES))
        if found.gaps:
            self._note_damage()
        self._position = found.end
        return found.end if found.torn else size

    def _note_damage(self) -> None:
        self._note("is damaged; unreadable entries are asked for again (lq cache verify lists the places)")

    def _size(self) -> int:
        return os.fstat(self._open_file.fileno()).st_size

    @property
    def _open_file(self) -> FileIO:
        assert self._file is not None
        return self._file

    def _bytes(self, start: int, size: int) -> bytes:
        """At most `size` bytes of the file; fewer at its end."""
        if not size:
            return b""
        self._open_file.seek(start)
        parts = []
        while size and (part := self._open_file.read(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    # -- writing

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Holds the lock with everything read and the end repaired. Yields False, with a notice, if that fails."""
        file = None
        try:
            file = self._lock()
            held = file is not None and self._mend()
        except (OSError, CacheError) as error:
            self._note(f"can no longer be used, new entries are not kept ({reason(error)})")
            held = False
        try:
            yield held
        finally:
            if file is not None and not file.closed:
                unlock(file)

    def _lock(self) -> FileIO | None:
        """The open file, locked, and still the one that the path names."""
        deadline = time.monotonic() + LOCK_SECONDS
        while self._is_current(create=True):
            if not self.writable:
                return None
            file = self._open_file
            if try_lock(file):
                if self._is_current(create=True) and file is self._file:
                    return file
                if not file.closed:
                    unlock(file)
            elif time.monotonic() > deadline:
                self._note("is locked by another process: new entries were not kept")
                return None
            else:
                time.sleep(random.uniform(0.0002, 0.002))
        return None

    def _mend(self) -> bool:
        """Reads new frames, cuts an incomplete frame at the end, and skips other damage."""
        end, size = self._look(), self._size()
        if end < size:
            self._open_file.truncate(end)
        elif self._position < size:
            self._note_damage()
        self._end = min(end, size)
        return True

    def _put(self, data: bytes, position: int) -> None:
        """Writes everything or nothing, unless the process crashes. Raises OSError if the disk is full."""
        file = self._open_file
        file.seek(position)
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[file.write(rest) :]
            if self._durable:
                os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                file.truncate(position)
            raise

    def _write(self, payloads: Iterator[bytes]) -> bool:
        try:
            for payload in payloads:
                frame = frame_bytes(payload)
                self._put(frame, self._end)
                if self._durable and not self._end:
                    sync_folder(self._path.parent)
                self._last_head = (self._end, frame[:HEAD_BYTES])
                self._position = self._end = self._end + len(frame)
        except FrameError as error:
            self._note(f"cannot hold the latest entries, which are not kept ({error.message})")
            return False
        except OSError as error:
            self._note(f"cannot be written, new entries are not kept ({reason(error)})")
            return False
        return True

    def _replace(self, payloads: Payloads) -> bool:
        with closing(payloads()) as generated:
            made = list(generated)
        beside = self._path.with_name(f".{self._path.name}.rewrite")
        fresh, is_there, why = LogFile(beside, durable=True), False, ""
        try:
            beside.unlink(missing_ok=True)  # left by a crash, since its writer would hold the lock
            fresh.open()
            if fresh.append(lambda *_: True, lambda: (payload for payload in made)):
                os.chmod(beside, stat.S_IMODE(os.fstat(self._open_file.fileno()).st_mode))
                self._take_place_of(fresh, beside)
                is_there = True
        except (OSError, CacheError) as error:
            why = f" ({reason(error)})"
        finally:
            if not is_there:
                fresh.close()
                with suppress(OSError):
                    beside.unlink(missing_ok=True)
        if not is_there:
            self._note(f"could not be rewritten{why}, and is unchanged")
            return False
        sync_folder(self._path.parent)
        return True

    def _take_place_of(self, fresh: LogFile, beside: Path) -> None:
        """Renames `beside` to the path, and continues in it. Windows must close both files first, and opens the path
        again.

        Raises OSError if the rename fails, on Windows also while another process has the file open.
        """
        try:
            os.replace(beside, self._path)
        except PermissionError:  # Windows neither renames nor replaces open files
            fresh.close()
            self._open_file.close()
            self._file = None
            self._start_over()
            os.replace(beside, self._path)
        else:
            self._open_file.close()  # this unlocks it; a waiting process then sees that the path names another file
            self._file, self._position, self._end, self._last_head = (
                fresh._file, fresh._position, fresh._end, fresh._last_head
            )  # fmt: skip


def open_file(path: Path, given: Path) -> tuple[FileIO | None, bool]:
    """The file, created if it is missing, and True if it is writable; None if it is missing and cannot be created.

    `given` is the user's name of the file. Raises CacheError for a path that is not a file, and for one without read
    permission.
    """
    if not path.parent.is_dir():
        raise CacheError(f"{given}: its folder does not exist", hint=f"create it: mkdir -p {path.parent}")
    if given.is_symlink() and not path.exists():
        raise CacheError(f"{given} is a link that leads nowhere", hint="remove it, or name another file")
    exists = path.exists()
    if path.is_dir():
        raise CacheError(f"{given} is a directory", hint=f"name a file in it: {given / 'cache.tokens'}")
    if exists and not path.is_file():
        raise CacheError(f"{given} is a device, pipe or socket", hint="name a file")
    try:
        return _regular(os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666), "r+", given), True
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise CacheError(f"{given} cannot be opened ({reason(error)})") from error
    if not exists:
        return None, False
    try:
        return _regular(os.open(path, os.O_RDONLY | _FLAGS), "r", given), False
    except OSError as error:
        raise CacheError(f"{given} may not be read", hint="ask its owner, or name another file") from error


def _regular(descriptor: int, mode: str, given: Path) -> FileIO:
    file = FileIO(descriptor, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise CacheError(f"{given} is no longer a file")
    return file


def reason(error: Exception) -> str:
    """The reason of an error, as the end of a sentence."""
    if isinstance(error, CacheError):
        return error.message
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
