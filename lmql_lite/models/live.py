"""Requests in progress in a model in this process, and the live sequences that they may go on from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple
from weakref import ref

from typing_extensions import TypeVar

from lmql_lite.errors import ModelError
from lmql_lite.models.base import KVScope, PassCounts, ScoreRequest
from lmql_lite.tokens import common_length

State = TypeVar("State")
REDO_TOKENS = 4
"""A sequence that leaves another at most this many tokens before its end replaces it: copying costs more."""


class Lane(NamedTuple):
    """Sequences that can go on from each other: those whose keys have one `band` of a rotation, and one scope."""

    band: int = 0
    scope: ref[KVScope] | None = None

    @classmethod
    def of(cls, band: int, scope: KVScope | None) -> Lane:
        return cls(band, None if scope is None else ref(scope))

    @property
    def is_left(self) -> bool:
        """True if nothing will go on in this lane: its scope has ended."""
        return self.scope is not None and self.scope() is None


SHARED = Lane()
"""Lane of short texts of all runs."""


@dataclass(eq=False, slots=True)
class ScoreJob:
    """A request in progress: all ids up to the last place to score, the lengths after which scores are wanted, the
    receiver of the counts, and the scope."""

    ids: tuple[int, ...]
    ends: tuple[int, ...]
    counts: PassCounts | None = None
    scope: KVScope | None = None
    rows: dict[int, Any] = field(default_factory=dict)
    """Answers by end."""

    @classmethod
    def of(cls, request: ScoreRequest, model: str, context_length: int, width: int) -> ScoreJob:
        """Job of a request to a model with scores for `width` tokens. Raises ModelError for what it cannot score."""
        ids, ends = request.checked(model, context_length)
        if ids and not 0 <= min(ids) <= max(ids) < width:
            raise ModelError(f"{model} has scores for {width} tokens, but the text contains token {max(ids)}")
        return cls(ids, ends, request.counts, request.scope)

    def length(self, end: int) -> int:
        """Length of the text up to a place, as the rotation of its keys counts it."""
        return end

    def border(self, place: int) -> int:
        """Largest place up to `place` at which a known beginning may end."""
        return place

    def inputs(self, begin: int, end: int, device: Any) -> dict[str, Any]:
        """Inputs of the network for the tokens between two places."""
        import torch

        return {"input_ids": torch.tensor([self.ids[begin:end]], device=device)}

    def count(self, known: int, tier: str = "memory") -> int:
        """Counts for the run that asks: all tokens but the known ones are fed. Returns their number."""
        fed = len(self.ids) - known
        if self.counts is not None:
            self.counts.add(fed, known, tier)
        return fed


@dataclass(frozen=True, eq=False, slots=True)
class Live(Generic[State]):
    """A sequence, and what its model keeps of it: keys and values, or another state."""

    ids: tuple[int, ...]
    state: State
    lane: Lane = SHARED


class LiveSequences(Generic[State]):
    """Sequences that requests may go on from, of `max_size` in all; the least recently used ones leave first.

    `size` is that of states, by default their number. If states can be cut, a sequence that is the beginning of another
    one is not listed, because it is a cut of the other one. If they cannot, a sequence serves only texts that go on
    from its very end.
    """

    def __init__(self, max_size: int, size: Callable[[list[State]], int] = len, *, can_cut: bool = True) -> None:
        self.max_size, self.can_cut, self._size = max_size, can_cut, size
        self.all: list[Live[State]] = []

    def longest(self, ids: Sequence[int], limit: int, lane: Lane = SHARED) -> tuple[Live[State] | None, int]:
        """The sequence of a lane that shares most of the first `limit` tokens, and how many it shares."""
        best, most = None, 0
        for live in reversed(self.all):
            if live.lane != lane:
                continue
            if len(live.ids) <= limit and _begins(ids, live.ids):
                shared = len(live.ids)
            else:
                shared = min(common_length(live.ids, ids), limit) if self.can_cut else 0
            if shared > most:
                best, most = live, shared
        return best, most

    def put(self, ids: tuple[int, ...], state: State, lane: Lane = SHARED) -> None:
        """Adds a sequence, in the place of those that are its beginnings, if states can be cut."""
        if self.can_cut:
            self.all = [live for live in self.all if live.lane != lane or not _begins(ids, live.ids)]
        self.all.append(Live(ids, state, lane))

    def take(self, live: Live[State], length: int) -> bool:
        """True if a request that shares `length` tokens with a sequence replaces it. Its state is the caller's then."""
        if len(live.ids) - length > REDO_TOKENS:
            return False
        self.all.remove(live)
        return True

    def evict(self) -> None:
        """Evicts what is too much, and what nobody goes on from; of the others, the sequence that was used last stays
        in any case."""
        self.all = [live for live in self.all if not live.lane.is_left]
        while len(self.all) > 1 and self.size > self.max_size:
            del self.all[0]

    @property
    def size(self) -> int:
        return self._size([live.state for live in self.all])


def _begins(ids: Sequence[int], beginning: Sequence[int]) -> bool:
    """True if one sequence begins with another; the last token is compared first, because it mostly differs."""
    count = len(beginning)
    return 0 < count <= len(ids) and ids[count - 1] == beginning[-1] and ids[:count] == beginning
