"""The log of a token tree, as its users see it: append entries, follow what others append. A file is one (D19).

`Numbers` keeps the books of one reader. Node numbers are what a writer and a reader must agree on: where they cannot, a
reader drops nodes and never guesses, since a node taken for another one would be a wrong answer, not a miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lmql_lite.cache.frames import BATCH, Batch, Entry, Frame, FrameError, Model
from lmql_lite.cache.payloads import decode, decode_batches


@dataclass(frozen=True, slots=True)
class Lost:
    """`count` nodes from `first` on are numbered but cannot be read; what hangs on them is to be dropped with them.

    With a count of 0 a declaration of the model was lost, or facts alone. Its number is taken either way.
    """

    model: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Renumbered:
    """Another log took the place of the one that was read: forget all numbers, what follows is the whole of it."""


News = Model | Batch | Lost | Renumbered
Number = Callable[[list[News]], Iterable[Entry]]
"""Takes what others appended and returns what to append, numbered to follow it."""
Admit = Callable[[list[News]], object]
"""Takes what others appended."""
Kept = Callable[[], object]
"""Is told that what was numbered last is kept."""


class Log(Protocol):
    """Entries that any number of processes append and follow.

    What is told to `number`, `admit` and `kept` is told on a thread of its own (so it may take long, and must be safe
    for threads), one after the other for all callers, and also where the one who waits has been cancelled: who keeps
    books keeps them there.
    """

    @property
    def notices(self) -> list[str]:
        """Sentences for the user, each once: why something is not kept, or was not found."""
        ...

    async def append(self, number: Number, kept: Kept | None = None) -> bool:
        """Appends what `number` returns, all of it or nothing; True once it is kept (S34).

        No other process appends between what `number` is shown and what it returns. It is called once, or not at all
        where nothing can be kept. Without `kept` after it, the numbers that it gave are void.
        """
        ...

    async def follow(self, admit: Admit | None = None) -> list[News]:
        """What others appended since the last look, in order."""
        ...

    async def rewrite(self, number: Number) -> bool:
        """Like `append`, but what `number` returns takes the place of everything, numbered from 1 again."""
        ...

    async def close(self) -> None: ...


RUN_BYTES = 2**21
"""Payloads that are decoded together: enough for thousands of small frames, and memory for it is soon free again."""


MAX_LOST = 2**24
"""So many numbers may be missing where frames cannot be read: 16 large ones in a row. What says that there are more is
made up, and would only take memory."""


class NumberClash(Exception):
    """A frame takes numbers that are taken: its writer saw less of the log than its reader."""


class Numbers:
    """Which models are declared and which node numbers are taken, in the order of the log."""

    def __init__(self) -> None:
        self._models: dict[int, Model] = {}
        self._stops: dict[int, int] = {}
        self._given_up: set[int] = set()

    def stop(self, model: int) -> int:
        """The first number that no node of the model has taken."""
        return self._stops.get(model, 1)

    def admit_some(self, frames: Sequence[Frame], begin: int) -> Sequence[Model | Batch | Lost]:
        """What the frames from place `begin` on say: of the first, and of as many more as can be read along with it.

        NumberClash where the first one cannot follow.
        """
        end = self._end_of_run(frames, begin)
        if end - begin > 1:
            size = self._models[frames[begin].model].vocabulary_size or 2**31
            try:
                batches = decode_batches(frames[begin:end], size)
            except FrameError:  # of one of them: all are looked at singly
                return [self.admit(frame) for frame in frames[begin:end]]
            self._stops[batches[-1].model] = batches[-1].stop
            return batches
        return [self.admit(frames[begin])]

    def _end_of_run(self, frames: Sequence[Frame], begin: int) -> int:
        """Where batches of one model end that follow the log and one another without a gap, and are not too many."""
        model = frames[begin].model
        if model not in self._models or model in self._given_up:
            return begin
        stop, size, end = self.stop(model), 0, begin
        while end < len(frames) and size < RUN_BYTES:
            frame = frames[end]
            if frame.kind != BATCH or frame.model != model or frame.first != stop or frame.payload is None:
                break
            stop, size, end = stop + frame.count, size + len(frame.payload), end + 1
        return end

    def admit(self, frame: Frame) -> Model | Batch | Lost:
        """What the next frame of the log says, or what is lost with it. NumberClash where it cannot follow."""
        if self._is_far(frame):
            self.give_up(frame.model)
        if frame.payload is None or frame.model in self._given_up:
            return self._lose(frame)
        if frame.count and frame.first < self.stop(frame.model):
            raise NumberClash
        try:
            entry = decode(frame)
        except FrameError:
            return self._lose(frame)
        if isinstance(entry, Model):
            if self._models.setdefault(entry.number, entry) != entry:
                raise NumberClash
        elif self._knows_all(entry):
            self._stops[entry.model] = max(self.stop(entry.model), entry.stop)
        else:
            return self._lose(frame)
        return entry

    def book(self, entry: Entry) -> bool:
        """Takes the numbers of an entry of one's own; False where its model was given up.

        ValueError where it cannot follow what the log holds: its writer numbered it wrongly.
        """
        if isinstance(entry, Model):
            fits = self._models.setdefault(entry.number, entry) == entry
        else:
            fits = self._knows_all(entry) and entry.first >= self.stop(entry.model)
            self._stops[entry.model] = entry.stop
        model = entry.number if isinstance(entry, Model) else entry.model
        if not fits and model not in self._given_up:
            raise ValueError(f"this entry cannot follow what the log holds of model {model}")
        return model not in self._given_up

    def copy(self) -> Numbers:
        copied = Numbers()
        copied._models, copied._stops, copied._given_up = dict(self._models), dict(self._stops), set(self._given_up)
        return copied

    def give_up(self, model: int) -> None:
        """The numbers of this model's nodes say nothing any more: what follows of it is lost."""
        self._given_up.add(model)

    @property
    def models(self) -> tuple[Model, ...]:
        return tuple(self._models.values())

    def _knows_all(self, batch: Batch) -> bool:
        """Whether the batch's model is declared and its tokens are below the size of the vocabulary."""
        model = self._models.get(batch.model)
        if model is None:
            return False
        columns = (batch.tokens, batch.heads.ids, batch.verdicts.tokens, batch.draws.tokens)
        bound = model.vocabulary_size or 2**31
        return all(not len(tokens) or int(tokens.max()) < bound for tokens in columns)

    def _is_far(self, frame: Frame) -> bool:
        return frame.first + frame.count - self.stop(frame.model) > MAX_LOST

    def _lose(self, frame: Frame) -> Lost:
        if self._is_far(frame):
            return Lost(frame.model, self.stop(frame.model), 0)
        if frame.count:
            self._stops[frame.model] = max(self.stop(frame.model), frame.first + frame.count)
        return Lost(frame.model, frame.first, frame.count)
