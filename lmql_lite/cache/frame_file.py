"""One `.tokens` file, blocking: who may open it, how it is read, locked, appended to and replaced (D19).

Three rules keep it safe at every byte. Only the holder of the lock writes, at the end, with one write. What was whole
once is never cut: only the torn beginning of a frame is, and other damage is left where it is and stepped over. And
before a reader goes on it looks whether the file still is the one it read.
"""

from __future__ import annotations

import os
import random
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from threading import Lock

from lmql_lite.cache.file_access import open_file, reason, sync_folder
from lmql_lite.cache.file_lock import try_lock, unlock
from lmql_lite.cache.frames import Entry, FrameError
from lmql_lite.cache.framing import (
    FILE_HEAD_BYTES,
    FRAME_HEAD_BYTES,
    NewerVersion,
    file_head,
    frame_bytes,
    may_become_file_head,
    read_file_head,
    scan,
)
from lmql_lite.cache.log import Admit, Kept, Lost, News, Number, NumberClash, Numbers, Renumbered
from lmql_lite.cache.payloads import encode
from lmql_lite.errors import CacheError

LOCK_SECONDS = 30.0
"""So long a writer waits for the others before it goes on without keeping."""


class FrameFile:
    """A reader's and writer's place in the file. Safe for threads: one call at a time, the others wait."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.notices: list[str] = []
        self.writable = True
        self._given, self._path = path, Path(os.path.realpath(path))
        self._durable = durable
        self._guard = Lock()
        self._file: FileIO | None = None
        self._closed = False
        self._unseen: list[News] = []
        self._begin(b"")

    def _begin(self, salt: bytes) -> None:
        self._salt = salt
        self._position = FILE_HEAD_BYTES if salt else 0
        self._end = self._position  # where the holder of the lock may write
        self._last_head: tuple[int, bytes] = (0, b"")
        self._numbers = Numbers()

    def open(self) -> None:
        """Opens or makes the file and reads its head, if there is one: the first one who appends writes it.

        Nothing, where it was closed before that.

        CacheError where the file is not ours to use (see `TokensFile`).
        """
        with self._guard:
            if self._closed:
                return
            self._file = self._opened()
            try:
                if self._file is not None:
                    self._read_head()
            except OSError as error:
                self._open_file.close()
                raise CacheError(f"{self._given} cannot be read ({reason(error)})") from error
            except CacheError:
                self._open_file.close()
                raise

    def follow(self, admit: Admit | None = None) -> list[News]:
        """What others appended; nothing, and a notice, where it cannot be read."""
        with self._guard:
            try:
                if self._is_current(create=False):
                    self._look()
            except (OSError, CacheError) as error:
                self._note(f"cannot be read any more ({reason(error)})")
            news = self._take_unseen()
            if admit is not None:
                admit(news)
            return news

    def append(self, number: Number, kept: Kept | None = None) -> bool:
        """See `Log.append`."""
        with self._guard, self._locked() as held:
            if not held:
                return False
            entries = list(number(self._take_unseen()))
            if entries and not self._write(entries):
                return False
            if kept is not None:
                kept()
            return True

    def rewrite(self, number: Number) -> bool:
        """See `Log.rewrite`. A crash leaves the old file whole, and a hidden file that the next one removes."""
        with self._guard, self._locked() as held:
            return held and self._replace(number)

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

    def _take_unseen(self) -> list[News]:
        news, self._unseen = self._unseen, []
        return news

    # -- opening

    def _opened(self) -> FileIO | None:
        """The file, read-only if need be (`writable` then says so); None where it is missing and cannot be made."""
        file, self.writable = open_file(self._path, self._given)
        if not self.writable:
            self._note(f"may not be {'made' if file is None else 'written'}: nothing new will be kept")
        return file

    def _is_current(self, *, create: bool) -> bool:
        """Whether there is a file to read; first opens anew where another one took its place (or where none is).

        Where none is any more, it is forgotten what stood where in it.
        """
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
        self._begin(b"")
        self._unseen = [Renumbered()]

    def _read_head(self) -> bool:
        """Reads the file's head unless it is known; False where it is still to be written."""
        if self._salt:
            return True
        data = self._bytes(0, FILE_HEAD_BYTES)
        if may_become_file_head(data):
            return False
        try:
            salt = read_file_head(data)
        except NewerVersion:
            raise CacheError(
                f"{self._given} was written by a newer lmql-lite", hint="update lmql-lite, or name another file"
            ) from None
        if salt is None:
            raise CacheError(
                f"{self._given} is not a .tokens file", hint="it was left as it is; name another file for the cache"
            )
        self._begin(salt)
        return True

    # -- reading

    def _look(self) -> int:
        """Reads what is new into `_unseen`. Returns the file's size, or less: what follows is a torn frame."""
        if not self._read_head():
            return 0
        size = self._size()
        start, head = self._last_head
        if size < self._position or self._bytes(start, len(head)) != head:  # overwritten in place
            return self._look_anew()
        if size == self._position:
            return size
        is_whole = self._position == FILE_HEAD_BYTES
        found = scan(self._bytes(self._position, size - self._position), self._position, self._salt)
        frames, at = [place.frame for place in found.places], 0
        while at < len(frames):
            try:
                news = self._numbers.admit_some(frames, at)
            except NumberClash:
                if not is_whole:  # the one who wrote it could not read all that was read here: see what is there now
                    return self._look_anew()
                self._numbers.give_up(frames[at].model)
                news = self._numbers.admit_some(frames, at)
            if any(isinstance(one, Lost) for one in news):
                self._note_damage()
            self._unseen += news
            at += len(news)
        if found.places:
            start = found.places[-1].start
            self._last_head = (start, self._bytes(start, FRAME_HEAD_BYTES))
        if found.gaps:
            self._note_damage()
        self._position = found.end
        return found.end if found.torn else size

    def _look_anew(self) -> int:
        self._start_over()
        return self._look()

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
        """Reads all that is new; writes the head where none is; cuts a torn frame; steps over any other damage."""
        end = self._look()
        if not self._salt:
            self._open_file.truncate(0)
            self._put(file_head(), 0)
            if self._durable:
                sync_folder(self._path)
            return self._read_head()
        size = self._size()
        if end < size:
            self._open_file.truncate(end)
        elif self._position < size:
            self._note_damage()
        self._end = end
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

    def _write(self, entries: list[Entry]) -> bool:
        numbers = self._numbers.copy()
        if not all(numbers.book(entry) for entry in entries):
            self._note("holds two accounts of one model, so nothing new is kept (lq cache compact mends it)")
            return False
        position, parts = self._end, []
        try:
            for entry in entries:
                parts.append(frame_bytes(encode(entry), position, self._salt))
                position += len(parts[-1])
            self._put(b"".join(parts), self._end)
        except FrameError as error:
            self._note(f"cannot hold what was learned last, which is not kept ({error.message})")
            return False
        except OSError as error:
            self._note(f"cannot be written, nothing new will be kept ({reason(error)})")
            return False
        self._numbers, self._position, self._end = numbers, position, position
        self._last_head = (position - len(parts[-1]), parts[-1][:FRAME_HEAD_BYTES])
        return True

    def _replace(self, number: Number) -> bool:
        entries = list(number(self._take_unseen()))
        beside = self._path.with_name(f".{self._path.name}.rewrite")
        fresh, is_there = FrameFile(beside, durable=True), False
        try:
            beside.unlink(missing_ok=True)  # left by a crash: whoever makes one holds the lock
            fresh.open()
            if fresh.append(lambda _: entries):
                os.chmod(beside, stat.S_IMODE(os.fstat(self._open_file.fileno()).st_mode))
                os.replace(beside, self._path)
                is_there = True
        except (OSError, CacheError):
            pass
        finally:
            if not is_there:
                fresh.close()
                with suppress(OSError):
                    beside.unlink(missing_ok=True)
        if not is_there:
            self._note("could not be rewritten beside itself, and stays as it is")
            return False
        sync_folder(self._path)
        self._open_file.close()  # and so unlocked: whoever waits for it sees that the path names another one
        self._file, self._salt, self._numbers = fresh._file, fresh._salt, fresh._numbers
        self._position, self._end, self._last_head = fresh._position, fresh._end, fresh._last_head
        return True
