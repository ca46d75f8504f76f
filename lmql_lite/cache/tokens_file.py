"""`.tokens` files: the log of a token tree on disk, shared by any number of processes (D19).

Every operation is one trip to a thread: what must happen under the lock then happens even if who waits for it is
cancelled, and neither reading nor decoding holds up the event loop. The work itself is `FrameFile`'s.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from aiofiles.os import wrap

from lmql_lite.cache.frame_file import FrameFile
from lmql_lite.cache.log import Admit, Kept, News, Number


class TokensFile:
    """A `Log` in a file. Safe for threads and event loops.

    Refused with a CacheError, and left as they are: what is no `.tokens` file, or one of a newer format; a directory,
    device, pipe or socket; a link that leads nowhere; a path whose folder is missing; a file that may not be read.
    A link to a file is followed. An empty file becomes a `.tokens` file with the first append.

    With a notice and without keeping anything: a file or folder that may not be written (what is there is read), a full
    disk, a file system without locks, a lock that another process holds for `LOCK_SECONDS`, a file that was replaced by
    something else while it was open. With a notice and without what cannot be read: damage of any kind. A file that was
    removed is made anew by the next append; one that was replaced is opened anew. `Renumbered` tells of both.
    """

    def __init__(self, file: FrameFile) -> None:
        self._file = file

    @staticmethod
    async def open(path: str | os.PathLike[str], *, durable: bool = False) -> TokensFile:
        """Opens or makes the file; its entries are the first news. With `durable`, all outlives a power cut."""
        file = FrameFile(Path(path), durable=durable)
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

    async def append(self, number: Number, kept: Kept | None = None) -> bool:
        """See `Log.append`. True once all was written (write(2)), with `durable` also synced (S34).

        ValueError where `number` returns entries that cannot follow what it was shown. A crash in the middle may keep
        the first of several entries. On False nothing was kept, and the numbers that `number` gave are void.
        """
        done: bool = await wrap(self._file.append)(number, kept)
        return done

    async def follow(self, admit: Admit | None = None) -> list[News]:
        """See `Log.follow`. Takes no lock, and never waits for a writer of another process."""
        news: list[News] = await wrap(self._file.follow)(admit)
        return news

    async def rewrite(self, number: Number) -> bool:
        """See `Log.rewrite`: a new file is written beside it, synced, and renamed into its place."""
        kept: bool = await wrap(self._file.rewrite)(number)
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
