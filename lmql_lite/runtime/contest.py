"""Hypotheses that compete, round by round: each goes on to where the model is asked, all are asked about at once, and
the best of their ways are gone (S24).

One of them leads: it goes as the only one would, whatever its score, so that the best result is never worse than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Hashable, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from lmql_lite.errors import ConstraintError
from lmql_lite.runtime import events
from lmql_lite.runtime.fill import Way
from lmql_lite.runtime.hypothesis import Hypothesis
from lmql_lite.runtime.merging import are_equal, place_of
from lmql_lite.runtime.state import Step
from lmql_lite.runtime.weights import Weights


@dataclass(slots=True, eq=False)
class Beam:
    """A hypothesis under way. `ways` are those that it may go next, first the one that it goes if it leads."""

    hypothesis: Hypothesis
    number: int
    weights: Weights = field(default_factory=Weights)
    ways: list[Way] = field(default_factory=list)
    error: ConstraintError | None = None

    @property
    def score(self) -> float:
        return self.hypothesis.state.score + self.weights.sum

    @property
    def order(self) -> tuple[float, int]:
        """Best first, ties to the elder."""
        return -self.score, self.number

    @property
    def leads(self) -> bool:
        return self.hypothesis.leads

    @property
    def is_lost(self) -> bool:
        return self.error is not None or self.hypothesis.is_rejected


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A way of a beam, its `rank`th; None where it had no choice and is there already."""

    beam: Beam
    way: Way | None = None
    rank: int = 0

    @property
    def order(self) -> tuple[float, int, int]:
        added = self.way.score if self.way else 0.0
        return -(self.beam.score + added), self.beam.number, self.rank

    @property
    def leads(self) -> bool:
        return self.beam.leads and not self.rank


class Contest:
    """`width` hypotheses are under way at most."""

    def __init__(self, first: Hypothesis, width: int) -> None:
        self.live = [Beam(first, 0)]
        self.finished: list[Beam] = []
        """Best first."""
        self._ended: list[Beam] = []
        """At their end, and not weighed yet."""
        self._width = width
        self._numbers = 1
        self._told: list[events.Event] = []
        self._pruned: list[Step | None] = []
        """Where the histories of hypotheses end that were given up."""
        self._failure: ConstraintError | None = None

    def news(self) -> list[events.Event]:
        """What was told since this was last asked for."""
        for beam in self._all_beams:
            self._tell(beam)
        told, self._told = self._told, []
        return told

    async def round(self) -> None:
        """Each hypothesis takes one token. Raises what the query raises; a ConstraintError only where no hypothesis is
        left, and then that of the one that led."""
        await self._all(self._advance(beam) for beam in self.live)
        await self._give_up_lost()
        self._ended = [beam for beam in self.live if beam.hypothesis.is_over]
        self.live = [beam for beam in self.live if not beam.hypothesis.is_over]
        if len(self.finished) + len(self._ended) >= self._width:  # then there may be nothing left to ask
            await self._all(self._ask(beam) for beam in self._ended)
            await self._finish()
        await self._all(self._ask(beam) for beam in (*self.live, *self._ended))
        await self._give_up_lost()
        await self._finish()
        # of those that are one the best goes on, and beside it the one that leads
        await self._give_up(*(beam for beam in _doubles(self.live) if not beam.leads))
        await self._go(self._best())
        await self._give_up_lost()
        if not self.live and not self.finished:
            assert self._failure is not None, "a hypothesis is lost where it could not go on"
            raise self._failure

    def lost_steps(self, results: Iterable[Beam]) -> list[Step]:
        """What hypotheses said that were given up, where no result has it."""
        seen: set[int] = set()
        for beam in results:
            list(_steps(beam.hypothesis.state.history, seen))
        return [step for history in self._pruned for step in _steps(history, seen)]

    async def close(self) -> None:
        """Nobody reads on. What one of them raises does not keep the others from their end."""
        async with AsyncExitStack() as stack:
            for beam in self.live:
                stack.push_async_callback(_close, beam)

    def leave(self) -> None:
        for beam in self._all_beams:
            beam.hypothesis.leave()

    @property
    def _all_beams(self) -> list[Beam]:
        return [*self.live, *self._ended, *self.finished]

    # A round -----------------------------------------------------------------------------------------------------

    async def _all(self, works: Iterable[Awaitable[None]]) -> None:
        """All at once. Raises what the first of them raises, when they all have come to an end."""
        for outcome in await asyncio.gather(*works, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _tried(self, beam: Beam, work: Awaitable[None]) -> None:
        """A condition that cannot be met ends this hypothesis alone."""
        try:
            await work
        except ConstraintError as error:
            beam.error = error

    async def _advance(self, beam: Beam) -> None:
        """On to where the model is asked for a token of a hole."""
        hypothesis = beam.hypothesis
        while not (hypothesis.is_over or hypothesis.is_asking or beam.is_lost):
            await self._tried(beam, hypothesis.step())

    async def _ask(self, beam: Beam) -> None:
        """Which ways there are, and what the tokens are worth that nobody chose; where there is but one, it is gone."""
        hypothesis = beam.hypothesis
        if hypothesis.is_over:
            await self._weigh(beam)
        elif hypothesis.may_part:  # which settles the text at once: what it forced is weighed with what is asked
            await asyncio.gather(self._tried(beam, self._look_ahead(beam)), self._weigh(beam))
        else:  # what it says meanwhile is weighed next time, whether it has to wait for the model or not
            before = beam.weights.weigh(hypothesis, hypothesis.state.history)
            await asyncio.gather(self._tried(beam, hypothesis.step()), before)

    async def _weigh(self, beam: Beam) -> None:
        await beam.weights.weigh(beam.hypothesis, beam.hypothesis.state.history)

    async def _look_ahead(self, beam: Beam) -> None:
        beam.ways = await beam.hypothesis.ways(self._width)

    async def _finish(self) -> None:
        """Some are at their end. Who cannot become one of the best any more is given up: scores only fall, but where a
        query returns, so that the one that leads is followed to its end."""
        self.finished = sorted([*self.finished, *self._ended], key=lambda beam: beam.order)
        self._ended = []
        await self._give_up(*_doubles(self.finished))
        await self._give_up(*self.finished[self._width :])
        await self._give_up(*(beam for beam in self.live if not beam.leads and not self._may_win(beam.score)))

    def _may_win(self, score: float) -> bool:
        return len(self.finished) < self._width or score > self.finished[-1].score

    def _best(self) -> list[Candidate]:
        """The ways that are gone, and beams that have gone theirs; the one that leads has a place in any case."""
        candidates = [
            candidate
            for beam in self.live
            for candidate in ([Candidate(beam, *way[::-1]) for way in enumerate(beam.ways)] or [Candidate(beam)])
        ]
        leading = [candidate for candidate in candidates if candidate.leads]
        others = [each for each in candidates if not each.leads and self._may_win(-each.order[0])]
        best = sorted([*leading, *others], key=lambda candidate: candidate.order)[: self._width]
        if leading and leading[0] not in best:
            best[-1] = leading[0]
        return best

    async def _go(self, best: list[Candidate]) -> None:
        chosen: dict[Beam, list[Candidate]] = {beam: [] for beam in self.live}
        for candidate in sorted(best, key=lambda candidate: candidate.rank):
            chosen[candidate.beam].append(candidate)
        await self._give_up(*(beam for beam, mine in chosen.items() if not mine))
        going: list[tuple[Beam, Way]] = []
        for beam in list(self.live):
            mine, beam.ways = chosen[beam], []
            beams = [beam, *(self._fork(beam) for _ in mine[1:])]
            if len(beams) > 1:
                self._told.append(events.Forked(beam.number, tuple(each.number for each in beams)))
            going += [(each, candidate.way) for each, candidate in zip(beams, mine, strict=True) if candidate.way]
            self.live += beams[1:]
        await self._all(self._tried(beam, beam.hypothesis.go(way)) for beam, way in going)

    def _fork(self, beam: Beam) -> Beam:
        self._tell(beam)
        fork = Beam(beam.hypothesis.fork(), self._numbers, beam.weights.fork())
        self._numbers += 1
        return fork

    # Who is given up ---------------------------------------------------------------------------------------------

    async def _give_up_lost(self) -> None:
        lost = [beam for beam in self.live if beam.is_lost]
        for beam in lost:
            if beam.error is not None and (beam.leads or self._failure is None):
                self._failure = beam.error
        await self._give_up(*lost)

    async def _give_up(self, *beams: Beam) -> None:
        gone = set(beams)
        self.live = [beam for beam in self.live if beam not in gone]
        self.finished = [beam for beam in self.finished if beam not in gone]
        for beam in beams:
            self._pruned.append(beam.hypothesis.state.history)
            await _close(beam)
            self._tell(beam)
            self._told.append(events.Pruned(beam.number))
            beam.hypothesis.leave()

    def _tell(self, beam: Beam) -> None:
        self._told += [numbered(event, beam.number) for event in beam.hypothesis.news()]


def numbered(event: events.Event, number: int) -> events.Event:
    """With the number of the hypothesis that it is about."""
    match event:
        case events.Started() | events.Notice() | events.Forked() | events.Pruned() | events.Finished():
            return event
    return replace(event, state=number)


async def _close(beam: Beam) -> None:
    if any(frame.blocks.has_last_words for frame in beam.hypothesis.frames):
        await beam.hypothesis.close()


def _doubles(beams: Iterable[Beam]) -> list[Beam]:
    """Those that are one with a better one."""
    doubles: list[Beam] = []
    here: dict[Hashable, list[Beam]] = {}
    for beam in sorted(beams, key=lambda beam: beam.order):
        others = here.setdefault(place_of(beam.hypothesis), [])
        if any(are_equal(beam.hypothesis, other.hypothesis) for other in others):
            doubles.append(beam)
        else:
            others.append(beam)
    return doubles


def _steps(history: Step | None, seen: set[int]) -> Iterator[Step]:
    """From the newest one back to one that was seen."""
    while history is not None and id(history) not in seen:
        seen.add(id(history))
        yield history
        history = history.before
