"""Files of given entries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lmql_lite.cache.frames import Entry
from lmql_lite.cache.tokens_file import TokensFile


def write(path: Path, entries: Sequence[Entry]) -> Path:
    """One append per entry."""

    async def go() -> None:
        async with await TokensFile.open(path) as file:
            for entry in entries:
                assert await file.append(partial(lambda each, news: [each], entry))

    asyncio.run(go())
    return path
