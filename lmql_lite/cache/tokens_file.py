"""`.tokens` files: the log of a token tree on disk, shared by any number of processes (D19).

Every operation is one trip to a thread: what must happen under the lock then happens even if who waits for it is
cancelled, and neither reading nor decoding holds up the event loop. The work itself is `FrameFile`'s.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from aiofiles.os import wrap

from lmql_lite.cache.log_file import Admit, LogFile, Payloads


class TokensFile:
    """The log of a token tree, in a file. Safe for threads and event loops.

    Refused with a CacheError, and left as they are: what is no `.tokens` file, or one of a newer format; a directory,
    device, pipe or socket; a link that leads nowhere; a path whose folder is missing; a file that may not be read.
    A link to a file is followed. An empty file becomes a `.tokens` file with the first append.

    What `admit` and `payloads` do is done on a thread of its own (so it may take long, and must be safe for threads),
    one after the other for all callers, and also where the one who waits has been cancelled.

    With a notice and without keeping anything: a file or folder that may not be written (what is there is read), a full
    disk, a file system without locks, a lock that another process holds for `LOCK_SECONDS`, a file that was replaced by
    something else while it was open. With a notice and without what cannot be read: damage of any kind. A file that was
    removed is made anew by the next append; one that was replaced is opened anew.
    """

    def __init__(self, file: LogFile) -> None:
        self._file = file

    @staticmethod
    async def open(path: str | os.PathLike[str], *, durable: bool = False) -> TokensFile:
        """Opens or makes the file; its records are the first that `admit` is shown.

        With `durable`, all outlives a power cut."""
        file = LogFile(Path(path), durable=durable)
        try:
            await wrap(file.open)()
        except asyncio.CancelledError:  # it may be at work in its thread: there it is closed, by whichever comes second
            asyncio.get_running_loop().run_in_executor(None, file.close)
            raise
        return TokensFile(file)

    @property
    def notices(self) -> list[str]:
        return self._file.notices

    @property
    def writable(self) -> bool:
        """Whether appending may work, as far as is known."""
        return self._file.writable

    async def append(self, admit: Admit, payloads: Payloads) -> bool:
        """Shows `admit` what others appended, then appends records. True once all were written (write(2)), with
        `durable` also synced (S34); False where one was not kept.

        No other process appends between what `admit` is shown and what `payloads` gives. Neither is called where
        nothing can be kept.
        """
        done: bool = await wrap(self._file.append)(admit, payloads)
        return done

    async def follow(self, admit: Admit) -> None:
        """Shows `admit` what others appended. Takes no lock, and never waits for a writer of another process."""
        await wrap(self._file.follow)(admit)

    async def rewrite(self, admit: Admit, payloads: Payloads) -> bool:
        """Like `append`, but the records take the place of all others: a new file is written beside it, synced, and
        renamed into its place."""
        kept: bool = await wrap(self._file.rewrite)(admit, payloads)
        return kept

    async def close(self) -> None:
        await wrap(self._file.close)()

    def close_at_once(self) -> None:
        """For an owner that goes away without an event loop."""
        self._file.close()

    async def __aenter__(self) -> TokensFile:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
