"""Recording: a file of JSON lines that replaces every cache while a test runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from lmql_lite.cache.tokens.recorded import RecordedRows, read_recording
from lmql_lite.cache.tokens.text import Vocabulary
from lmql_lite.cache.tokens.tree import MAX_BYTES
from lmql_lite.cache.tokens.trees import ModelTrees
from lmql_lite.engine import events
from lmql_lite.engine.settings import Settings
from lmql_lite.errors import CacheError
from lmql_lite.store.log import ForeignFile, LogWriter

RecordMode = Literal["none", "new", "all"]
"""`none` asks no model; `new` asks for what the file lacks; `all` asks for everything, and the answers replace the
file."""


class Recording:
    """File that the runs of one test read and write. `name` is the name of the file in messages, `remedy` the hint for
    a missing or stale file.

    A run without a seed has seed 0, because a random seed would ask for other tokens every time.
    """

    def __init__(self, path: Path, mode: RecordMode, *, name: str, remedy: str) -> None:
        self.path = path
        self.name = name
        self.mode = mode
        self.remedy = remedy
        self.kept = 0
        """Number of tokens of holes from the file."""
        self.asked = 0
        """Number of tokens of holes from the model."""
        self._was_there = path.exists()
        self._rows: RecordedRows | None = None
        self._trees: ModelTrees | None = None

    @property
    def replays(self) -> bool:
        return self.mode == "none"

    def over(self, settings: Settings) -> Settings:
        """Settings of a run whose cache is this recording."""
        seed = settings.given.get("seed", 0)
        mode = "replay" if self.replays else "rw"
        return settings.changed({"cache": True, "cache_mode": mode, "use_caches": None, "seed": seed})

    async def trees(self) -> ModelTrees:
        """The trees of the file. Raises CacheError for a file that is missing or is not a recording."""
        if self._trees is None:
            self._rows = self._read() if self.replays else self._opened()
            self._trees = ModelTrees(MAX_BYTES, self._rows, reads_only=self.replays)
        return self._trees

    def names(self, fingerprint: str, vocabulary: Vocabulary | None) -> None:
        """Tells the vocabulary of a model, in which the file shows its tokens; None for a model on a server."""
        assert self._rows is not None, "the trees are those of the recording"
        self._rows.vocabularies[fingerprint] = vocabulary

    def see(self, batch: Iterable[events.Event]) -> None:
        """Counts the tokens of a batch of a run's events."""
        for event in batch:
            match event:
                case events.TokenMoved(token) if token.hole is not None and token.fate == "kept":
                    self.kept += token.source == "cache"
                    self.asked += token.source in ("model", "draft")

    def stale(self, error: CacheError) -> CacheError:
        """The error of a replay, with the file and the remedy."""
        return CacheError(f"{self.name} is stale: {error.message}", hint=self.remedy)

    async def close(self, *, keep: bool = True) -> None:
        """Closes the file. With `keep=False` a new file does not replace the old one."""
        if self._trees is not None and not self.replays:
            await self._trees.close()
            self._trees = None
            if self._place != self.path:
                if keep:
                    os.replace(self._place, self.path)
                else:
                    self._place.unlink()
            elif not self._was_there and not self.path.stat().st_size:
                self.path.unlink()

    def _read(self) -> RecordedRows:
        if not self._was_there:
            raise CacheError(f"there is no recording {self.name}", hint=self.remedy)
        return RecordedRows(read_recording(self.path)[0])

    @property
    def _place(self) -> Path:
        """The file to write: with mode `all` a new file beside the old one."""
        return self.path.with_name(f".{self.path.name}.new") if self.mode == "all" else self.path

    def _opened(self) -> RecordedRows:
        self._place.parent.mkdir(parents=True, exist_ok=True)
        known = read_recording(self.path)[0] if self._was_there else []  # no other file is replaced
        if self.mode == "all":
            known = []
            with suppress(FileNotFoundError):
                self._place.unlink()
        try:
            log = LogWriter(self._place, b"")
        except BlockingIOError:
            raise CacheError(
                f"{self.name} is being written by another process", hint="wait until it has ended"
            ) from None
        except ForeignFile as error:
            raise CacheError(f"{self.name} is not a recording", hint="it was not changed; name another file") from error
        except OSError as error:
            raise CacheError(f"{self.name} cannot be written ({error.strerror or error})") from error
        return RecordedRows(known, log)
