"""Recording: a file of JSON lines that replaces every cache while a test runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from lmql_lite.cache.tokens.inspect import StoredPlace, read_file, trees_of
from lmql_lite.cache.tokens.recorded import RecordedRows, line_of_row, read_recording
from lmql_lite.cache.tokens.rows import Stored
from lmql_lite.cache.tokens.text import BYTES, Vocabulary, after_beginning, spelled
from lmql_lite.cache.tokens.tree import MAX_BYTES, TokenTree
from lmql_lite.cache.tokens.trees import ModelTrees
from lmql_lite.engine import events
from lmql_lite.engine.settings import Settings
from lmql_lite.errors import CacheError
from lmql_lite.store.log import ForeignFile, LogWriter

RecordMode = Literal["none", "new", "all"]
"""`none` asks no model; `new` asks for what the file lacks; `all` asks for everything, and the answers replace the
file."""
SHOWN = 40
"""Maximum number of characters of a text shown at a change."""
AHEAD = 24
"""Maximum number of tokens shown after a change."""


class Recording:
    """File that the runs of one test read and write. `name` is the name of the file in messages, `remedy` the hint for
    a missing or stale file. Where there is only an `older` one, a `.tokens` file, that is read.

    A run without a seed has seed 0, because a random seed would ask for other tokens every time.
    """

    def __init__(self, path: Path, mode: RecordMode, *, older: Path, name: str, remedy: str) -> None:
        self.path = path
        self._older = older
        self.name = name
        self.mode = mode
        self.remedy = remedy
        self.kept = 0
        """Number of tokens of holes from the file."""
        self.asked = 0
        """Number of tokens of holes from the model."""
        self.changes: list[str] = []
        """First difference of each run from the recording, if it has one."""
        self._was_there = path.exists()
        self._before: dict[str, StoredPlace] = {}
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

    def run(self, tree: TokenTree, fingerprint: str, vocabulary: Vocabulary | None) -> RecordedRun:
        """The record of a new run on the tree of a model. `vocabulary` is None for a model on a server."""
        assert self._rows is not None, "the trees are those of the recording"
        self._rows.vocabularies[fingerprint] = vocabulary
        return RecordedRun(self, tree, self._before.get(fingerprint), vocabulary or BYTES)

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

    def _stored(self) -> list[Stored]:
        if self._was_there:
            return read_recording(self.path)[0]
        return read_file(self._older).rows if self._older.exists() else []

    def _read(self) -> RecordedRows:
        if not self._was_there and not self._older.exists():
            raise CacheError(f"there is no recording {self.name}", hint=self.remedy)
        return RecordedRows(self._stored())

    @property
    def _place(self) -> Path:
        """The file to write: with mode `all` a new file beside the old one."""
        return self.path.with_name(f".{self.path.name}.new") if self.mode == "all" else self.path

    def _opened(self) -> RecordedRows:
        self._place.parent.mkdir(parents=True, exist_ok=True)
        known = self._stored()
        self._before = trees_of(known)
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
        if known and not self._was_there:  # what an older file has is written to the new one
            log.append([line_of_row(each) for each in known])
        return RecordedRows(known, log)


class RecordedRun:
    """One run under a recording. `before` is the tree of what its model has in the file."""

    def __init__(
        self, recording: Recording, tree: TokenTree, before: StoredPlace | None, vocabulary: Vocabulary
    ) -> None:
        self._recording = recording
        self._tree = tree
        self._before = before
        self._vocabulary = vocabulary
        self._compares = before is not None and recording.mode == "new"

    def see(self, batch: Iterable[events.Event]) -> None:
        """Counts the tokens of a batch, and finds the first difference from the recording."""
        for event in batch:
            match event:
                case events.TokenMoved(token, place=place) if token.hole is not None and token.fate == "kept":
                    self._recording.kept += token.source == "cache"
                    if token.source in ("model", "draft"):
                        self._recording.asked += 1
                        if self._compares and place is not None:
                            self._compares = False
                            self._recording.changes.append(self._change(self._tree.path(place)))

    def _change(self, path: tuple[int, ...]) -> str:
        assert self._before is not None, "a run without entries is not compared"
        here, at = self._before, 0
        while at < len(path) and path[at] in here.below:
            here, at = here.below[path[at]], at + 1
        before = after_beginning(path[:at], self._vocabulary)
        place = f"after {_tail(before, self._vocabulary)}" if before else "at the beginning"
        if at == len(path):
            return f"{place}: not recorded with these conditions or this seed"
        recorded = _shown(_onward(here), self._vocabulary)
        return f"{place}: recorded {recorded}, now {_shown(path[at : at + AHEAD], self._vocabulary)}"


def _onward(place: StoredPlace) -> tuple[int, ...]:
    """The stored tokens after a place, by the oldest entries."""
    found: list[int] = []
    while len(found) < AHEAD and place.below:
        token, place = next(iter(place.below.items()))
        found.append(token)
    return tuple(found)


def _tail(tokens: Sequence[int], vocabulary: Vocabulary) -> str:
    text = spelled(tokens, vocabulary)
    return text if len(text) <= SHOWN else f"…{text[-SHOWN:]}"


def _shown(tokens: tuple[int, ...], vocabulary: Vocabulary) -> str:
    text = spelled(tokens, vocabulary) if tokens else "nothing"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
