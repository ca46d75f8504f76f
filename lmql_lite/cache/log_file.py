"""One `.tokens` file, blocking: who may open it, how it is read, locked, appended to and replaced (D19).

Knows frames, not what they say. Three rules keep it safe at every byte. Only the holder of the lock writes, at the
end, with one write a frame. What was whole once is never cut: only the torn beginning of a frame is, and other damage
is left where it is and stepped over. And before a reader goes on it looks whether the file still is the one it read.
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
"""Takes frames that others appended, and whether they are the beginning of another file than was read before. True
where all of them can be used."""
Payloads = Callable[[], Generator[bytes, None, None]]
"""Payloads to write: the next one is asked for when the one before is written."""

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
LOCK_SECONDS = 30.0
"""Seconds that a writer waits for the lock before it goes on without writing."""


class LogFile:
    """A reader's and writer's place in the file. Safe for threads: one call at a time, the others wait.

    Refused with a CacheError, and left as they are: what is not a `.tokens` file, or one of a newer format; a
    directory, device, pipe or socket; a link that leads nowhere; a path whose folder is missing; a file that may not be
    read. A link to a file is followed. An empty file becomes a `.tokens` file with the first append.

    With a notice and without keeping anything: a file or folder that may not be written (what is there is read), a full
    disk, a file system without locks, a lock that another process holds for `LOCK_SECONDS`, a file that was replaced by
    something else while it was open. With a notice and without what cannot be read: damage of any kind. A file that was
    removed is made anew by the next append; one that was replaced is opened anew.

    With `durable` each write is synced before it counts, so that all outlives a power cut (S34).
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
        """The unseen frames are those of another file than was read before."""
        self._position = self._end = 0
        """Bytes that were read, and the offset at which the holder of the lock may write."""
        self._last_head: tuple[int, bytes] = (0, b"")

    def open(self) -> None:
        """Opens or makes the file. Does nothing where it was closed before that.

        CacheError where the file is not ours to use.
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
        """Reads what others appended; nothing, and a notice, where it cannot be read."""
        with self._guard:
            try:
                if self._is_current(create=False):
                    self._look()
            except (OSError, CacheError) as error:
                self._note(f"cannot be read any more ({reason(error)})")
            self._show(admit)

    def append(self, admit: Admit, payloads: Payloads) -> bool:
        """Reads what others appended, then writes frames behind it, one write each. False where one is not kept."""
        with self._guard, self._locked() as held:
            if not held:
                return False
            self._show(admit)
            with closing(payloads()) as generated:
                return self._write(generated)

    def rewrite(self, admit: Admit, payloads: Payloads) -> bool:
        """Like `append`, but the frames take the place of all others, and are asked for before any is written.

        A crash leaves the old file whole, and a hidden file that the next one removes.
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
        """The file, read-only if need be (`writable` then says so); None where it is missing and cannot be made."""
        file, self.writable = open_file(self._path, self._given)
        if not self.writable:
            self._note(f"may not be {'made' if file is None else 'written'}: nothing new will be kept")
        return file

    def _is_current(self, *, create: bool) -> bool:
        """True where there is a file to read. Opens anew where another one took its place, or where `create` asks."""
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
        """Reads what is new into `_unseen`. Returns the file's size, or less: what follows is a torn frame."""
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
        self._note("is damaged; what cannot be read is asked for again (lq cache verify says where)")

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
        """Holds the lock with everything read and the end in order. False, with a notice, where that cannot be."""
        file = None
        try:
            file = self._lock()
            held = file is not None and self._mend()
        except (OSError, CacheError) as error:
            self._note(f"cannot be used any more, nothing new will be kept ({reason(error)})")
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
                self._note("another process keeps it locked: nothing new was kept")
                return None
            else:
                time.sleep(random.uniform(0.0002, 0.002))
        return None

    def _mend(self) -> bool:
        """Reads all that is new; cuts a torn frame; steps over any other damage."""
        end, size = self._look(), self._size()
        if end < size:
            self._open_file.truncate(end)
        elif self._position < size:
            self._note_damage()
        self._end = min(end, size)
        return True

    def _put(self, data: bytes, position: int) -> None:
        """Writes all or nothing, as far as that can be said without a crash. OSError where the disk is full."""
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
            self._note(f"cannot hold what was learned last, which is not kept ({error.message})")
            return False
        except OSError as error:
            self._note(f"cannot be written, nothing new will be kept ({reason(error)})")
            return False
        return True

    def _replace(self, payloads: Payloads) -> bool:
        with closing(payloads()) as generated:
            made = list(generated)
        beside = self._path.with_name(f".{self._path.name}.rewrite")
        fresh, is_there, why = LogFile(beside, durable=True), False, ""
        try:
            beside.unlink(missing_ok=True)  # left by a crash: whoever makes one holds the lock
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
            self._note(f"could not be rewritten beside itself{why}, and stays as it is")
            return False
        sync_folder(self._path.parent)
        return True

    def _take_place_of(self, fresh: LogFile, beside: Path) -> None:
        """Renames `beside` to the path. Continues in it, or opens the path anew where Windows had both closed first.

        Raises OSError where it cannot be renamed: on Windows also while another process has the file open.
        """
        try:
            os.replace(beside, self._path)
        except PermissionError:  # Windows renames no open file, and replaces none
            fresh.close()
            self._open_file.close()
            self._file = None
            self._start_over()
            os.replace(beside, self._path)
        else:
            self._open_file.close()  # and so unlocked: whoever waits for it sees that the path names another one
            self._file, self._position, self._end, self._last_head = (
                fresh._file, fresh._position, fresh._end, fresh._last_head
            )  # fmt: skip


def open_file(path: Path, given: Path) -> tuple[FileIO | None, bool]:
    """The file, made where it is missing, and whether it may be written; None where it is missing and cannot be made.

    `given` is how its user calls it. CacheError for what is no file, and where it may not even be read.
    """
    if not path.parent.is_dir():
        raise CacheError(f"{given}: its folder does not exist", hint=f"make it: mkdir -p {path.parent}")
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
    """As the end of a sentence."""
    if isinstance(error, CacheError):
        return error.message
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
