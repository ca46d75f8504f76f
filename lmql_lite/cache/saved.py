"""The trees of one log: what it holds is read into them, what is new in them is written to it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from lmql_lite.cache.books import Books
from lmql_lite.cache.changes import Changes
from lmql_lite.cache.frames import MAX_MODEL, Batch, Entry, Model
from lmql_lite.cache.log import Log, Lost, News, Renumbered
from lmql_lite.cache.trie import MAX_BYTES, Trie


@dataclass(frozen=True, slots=True)
class Numbered:
    """What the log was given to keep, and has not yet said of that it does."""

    books: Books
    batches: list[Batch]
    changes: Changes
    """They hold the nodes that have numbers now."""


class SavedTrees:
    """One log, and a tree for each model that has facts in it. Runs of several threads and event loops may share it.

    `max_bytes` bounds what each tree has that the log does not hold: facts, and nodes on the way to none of its facts.
    With `reads_only` nothing is saved, and no books are kept of what is new. `runs` numbers the runs on these trees
    (S31); `clock` tells when facts are written.

    All books are kept where the log tells what is new and what is kept (see `Log`): one after the other, and whoever
    waits for it.
    """

    def __init__(
        self,
        log: Log,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
        *,
        reads_only: bool = False,
    ) -> None:
        self.max_bytes = max_bytes
        self.reads_only = reads_only
        self.runs = itertools.count(1)
        self._log = log
        self._clock = clock
        self._trees: dict[str, Trie] = {}
        self._books: dict[int, Books] = {}
        """By the number under which their model is declared."""
        self._latest: dict[str, Books] = {}
        """Of each model those that were declared last. Whoever did could not read what was declared before, and others
        cannot either: what is new is written under this number."""
        self._taken: set[int] = set()
        """Numbers of models, also of those whose declaration is lost."""
        self._unsure: Numbered | None = None

    @property
    def notices(self) -> tuple[str, ...]:
        return tuple(self._log.notices)

    def tree(self, fingerprint: str) -> Trie:
        tree = self._trees.get(fingerprint)
        if tree is None:
            tree = self._trees.setdefault(fingerprint, Trie(self.max_bytes))
            if not self.reads_only:
                tree.record()
        return tree

    async def follow(self) -> None:
        """Reads what others have written since the last look."""
        await self._log.follow(self._admit_all)

    async def save(self, fingerprint: str, name: str, vocabulary_size: int) -> bool:
        """Writes what is new in a model's tree. True once it is kept (S34). What cannot be kept now never is."""
        tree = self.tree(fingerprint)
        if not tree.has_news and self._unsure is None:  # else another run is writing it, and is waited for
            return True
        kept = await self._log.append(partial(self._number, Model(0, fingerprint, name, vocabulary_size)), self._settle)
        if not kept:
            tree.changes()
        return kept

    async def close(self) -> None:
        await self._log.close()

    def _number(self, model: Model, news: list[News]) -> list[Entry]:
        """What is to be written."""
        self._admit_all(news)
        tree = self.tree(model.fingerprint)
        books = self._latest.get(model.fingerprint)
        if books is None:
            books = Books(replace(model, number=self._free_number()), tree)
        changes = tree.changes()  # only now: what the log has just taken back is no news
        self._unsure = Numbered(books, [], changes)
        if not changes.places:
            return []
        self._unsure.batches.extend(books.batches(changes, int(self._clock())))
        is_declared = books.model.number in self._books
        return [*([] if is_declared else [books.model]), *self._unsure.batches]

    def _settle(self) -> None:
        """What was numbered last is kept."""
        unsure = self._unsure
        if unsure is not None and unsure.batches:
            self._open(unsure.books)
            unsure.books.settle(unsure.batches)
        self._unsure = None

    def _free_number(self) -> int:
        """Above all that were ever taken, as far as that can be read; where there is none, one that is free below."""
        highest = max(self._taken, default=0)
        if highest < MAX_MODEL:
            return highest + 1
        return next(number for number in itertools.count(1) if number not in self._taken)

    def _open(self, books: Books) -> None:
        if books.model.number not in self._books:
            self._books[books.model.number] = self._latest[books.model.fingerprint] = books
            self._taken.add(books.model.number)

    def _admit_all(self, news: Iterable[News]) -> None:
        """In order; batches that follow one another without a gap at once."""
        if self._unsure is not None:  # it was not kept
            self._unsure.books.take_back()
            self._unsure = None
        run: list[Batch] = []
        for each in news:
            if run and not (isinstance(each, Batch) and _goes_with(each, run[-1])):
                self._books[run[0].model].admit(run)
                run = []
            if isinstance(each, Batch):
                run.append(each)
            else:
                self._admit(each)
        if run:
            self._books[run[0].model].admit(run)

    def _admit(self, news: Model | Lost | Renumbered) -> None:
        match news:
            case Model():
                self._open(Books(news, self.tree(news.fingerprint)))
            case Lost(model, first, count):
                self._taken.add(model)
                if model in self._books:
                    self._books[model].lose(first, count)
            case Renumbered():
                self._books, self._latest, self._taken = {}, {}, set()
                for tree in list(self._trees.values()):
                    tree.outdate()


def _goes_with(batch: Batch, before: Batch) -> bool:
    return batch.model == before.model and batch.first == before.stop and not (batch.replaces or before.replaces)
