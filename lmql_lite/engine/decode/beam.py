"""beam: keeps the `n` most likely continuations of all branches; the base of the decoders whose branches compete (S24).

Each branch runs to its next question to the model, all questions are asked at once, and the best continuations are
kept.

One branch leads: it goes as an only branch would, whatever its score, so that the best result is never worse than that
of argmax. The score of a branch is the sum of the raw log-probabilities of the tokens that the model chose, including
ends of holes and cut tokens, and of the tokens that conditions forced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Hashable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from lmql_lite.engine import events
from lmql_lite.engine.branch import Branch
from lmql_lite.engine.decode.decoder import Batches
from lmql_lite.engine.fill import matcher_of
from lmql_lite.engine.generator import Generator
from lmql_lite.engine.local import LocalFill, LocalGenerator, Way
from lmql_lite.engine.record import Step
from lmql_lite.engine.replay import same
from lmql_lite.engine.run import Run
from lmql_lite.engine.state import NO_ID, TEMPLATE, UNREAD
from lmql_lite.errors import ConstraintError, QueryError
from lmql_lite.tokens import Token

PATIENCE = 0.2
"""Seconds without progress of any branch before the one that waits for the others is refused."""


class ForcedScores:
    """Sums of the log-probabilities of the tokens on the paths of all beams that a condition forced or a query gave
    (S24).

    They leave out text that replaces a cut token, because the cut token counts as chosen. With `observes`, the
    program's own text after the beginning of the first hole counts as well (S36).
    """

    def __init__(self, *, observes: bool) -> None:
        self._observes = observes
        self._sums: dict[Step | None, tuple[float, bool]] = {None: (0.0, False)}
        """The sum up to a step, and True if text of a hole is on the path to it."""

    def of(self, newest: Step | None) -> float:
        """The sum along a path, as far as it is known."""
        while newest not in self._sums:
            assert newest is not None, "the sum of an empty path is known"
            newest = newest.before
        return self._sums[newest][0]

    def is_known(self, newest: Step | None) -> bool:
        """True if no score along a path is missing."""
        steps = self._new(newest)
        if any(counts for *_, counts in steps):
            return False
        self._add(steps, {})
        return True

    async def weigh(self, generator: Generator, newest: Step | None) -> None:
        """Asks for the missing scores along a path, together with the questions of the other beams in this round."""
        steps = self._new(newest)
        assert isinstance(generator, LocalGenerator), "only a model that scores has several branches"
        logprobs: dict[Step, float] = {}
        for run in _runs([step for step, _, counts in steps if counts]):  # mostly one run, asked for in this tick
            logprobs.update(zip(run, await generator.logprobs(run), strict=True))
        self._add(steps, logprobs)

    def _new(self, newest: Step | None) -> list[tuple[Step, bool, bool]]:
        """The steps of a path whose sums are not known, oldest first, each with True once text of a hole has begun, and
        True if it counts."""
        path = list[Step]()
        while newest not in self._sums:
            assert newest is not None, "the sum of an empty path is known"
            path.append(newest)
            newest = newest.before
        _, has_begun = self._sums[newest]
        steps = []
        for step in reversed(path):
            token = step.token
            has_begun = has_begun or token.hole not in (None, TEMPLATE, UNREAD)
            is_said = token.source == "prompt" and token.hole is None and token.id != NO_ID
            is_text = token.source == "forced" or (self._observes and has_begun and is_said)
            steps.append((step, has_begun, is_text and token.logprob is None))
        return steps

    def _add(self, steps: list[tuple[Step, bool, bool]], logprobs: Mapping[Step, float]) -> None:
        for step, has_begun, _ in steps:
            self._sums[step] = self._sums[step.before][0] + logprobs.get(step, 0.0), has_begun


def _runs(steps: list[Step]) -> Iterator[list[Step]]:
    """Runs of steps that are consecutive on the path."""
    run: list[Step] = []
    for step in steps:
        if run and run[-1].node != step.parent:
            yield run
            run = []
        run.append(step)
    if run:
        yield run


@dataclass(slots=True, eq=False)
class Beam:
    """A branch that competes. `ways` are its possible next tokens; a beam that leads takes the first."""

    branch: Branch
    number: int
    forced: ForcedScores
    ways: list[Way] = field(default_factory=list)
    error: ConstraintError | None = None

    @property
    def score(self) -> float:
        return self.branch.state.score + self.forced.of(self.branch.state.newest)

    @property
    def order(self) -> tuple[float, int]:
        """Sort key: best first, ties by age."""
        return -self.score, self.number

    @property
    def leads(self) -> bool:
        return self.branch.leads

    @property
    def is_lost(self) -> bool:
        return self.error is not None or self.branch.rejection is not None


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """A beam and its next token, at its `rank` among the beam's; None if the beam had no choice and went on."""

    beam: Beam
    way: Way | None = None
    rank: int = 0

    @property
    def score(self) -> float:
        return self.beam.score + (self.way.score if self.way else 0.0)

    @property
    def order(self) -> tuple[float, int, int]:
        return -self.score, self.beam.number, self.rank

    @property
    def leads(self) -> bool:
        return self.beam.leads and not self.rank


class BeamSearch:
    """The competing branches of a run. A decoder decides which beams move in a round and which continuations stay."""

    def __init__(self, run: Run, *, observes: bool = False) -> None:
        self.run = run
        self.forced = ForcedScores(observes=observes)
        self.live: list[Beam] = []
        self.best_beams: list[Beam] = []
        """Beams at their end, best first."""
        self.width = run.settings.results
        """Number of results."""
        self.options = run.settings.given
        self._ended: list[Beam] = []
        """Beams at their end that are not scored yet."""
        self._numbers = 1
        self._events: list[events.Event] = []
        self._pruned: list[Step | None] = []
        """Last steps of the records of beams that were given up."""
        self._failure: ConstraintError | None = None

    # Decided by a decoder -------------------------------------------------------------------------------------------

    @property
    def ways(self) -> int:
        """Maximum number of next tokens that a beam considers."""
        return self.width

    def moving(self) -> list[Beam]:
        """The beams that take a token in this round."""
        return self.live

    def kept(self, continuations: list[Continuation]) -> list[Continuation]:
        """The continuations to keep. A beam that leads always keeps one."""
        return self.best(continuations, self.width)

    @staticmethod
    def best(continuations: list[Continuation], most: int) -> list[Continuation]:
        """The most likely continuations, at most `most`; always with the one that leads."""
        best = sorted(continuations, key=lambda continuation: continuation.order)[:most]
        leading = [continuation for continuation in continuations if continuation.leads]
        if leading and leading[0] not in best:
            best[-1] = leading[0]
        return best

    def may_win(self, score: float) -> bool:
        """True if a beam of that score may still become a result."""
        return len(self.best_beams) < self.width or score > self.best_beams[-1].score

    # A round --------------------------------------------------------------------------------------------------------

    @classmethod
    async def decoded(cls, run: Run) -> Batches:
        """The events of a run."""
        search, (started, first) = cls(run), run.begin()
        search.begin(Beam(first, 0, search.forced))
        try:
            yield [started]
            while search.live:
                await search.advance()
                if batch := search.take_events():
                    yield batch
            yield [search.finished()]
        except BaseException:
            async with AsyncExitStack() as stack:
                for beam in search.live:
                    stack.push_async_callback(run.close_branch, beam.branch)
            raise
        finally:
            for beam in search._all_beams:
                beam.branch.leave()
            await run.generator.close()

    def begin(self, first: Beam) -> None:
        self.live.append(first)

    async def advance(self) -> None:
        """Each moving beam takes one token. Exceptions of the query pass through. A ConstraintError is raised only if
        no beam is left; it is that of the beam that led."""
        moving = self.moving()
        await self._to_questions(moving)
        await self._give_up_lost()
        self._ended = [beam for beam in self.live if beam.branch.is_over]
        self.live = [beam for beam in self.live if not beam.branch.is_over]
        if len(self.best_beams) + len(self._ended) >= self.width:  # enough results: maybe no beam is left to ask for
            await self._all(self._ask(beam) for beam in self._ended)
            await self._finish()
        asking = [beam for beam in (*self.live, *self._ended) if beam in moving and not self._is_known(beam)]
        await self._all(map(self._ask, asking))
        await self._give_up_lost()
        await self._finish()
        # of equal beams the best one is kept, and the one that leads
        await self._give_up(*(beam for beam in _doubles(self.live) if not beam.leads))
        await self._go(self.kept(self._continuations()))
        await self._give_up_lost()
        if not self.live and not self.best_beams:
            assert self._failure is not None, "a lost beam leaves its error"
            raise self._failure

    def take_events(self) -> list[events.Event]:
        for beam in self._all_beams:
            self._emit(beam)
        taken, self._events = self._events, []
        return taken

    def finished(self) -> events.Finished:
        """The last event. Each result includes the tokens of beams that were given up, as part of its cost."""
        pruned = self.pruned(self.best_beams)
        results = [replace(self.run.result(beam.branch, pruned), score=beam.score) for beam in self.best_beams]
        return events.Finished(results[0], tuple(results) if self.width > 1 else ())

    def pruned(self, results: list[Beam]) -> tuple[Token, ...]:
        """The tokens of holes that only beams without a result have."""
        seen: set[Step] = set()
        for beam in results:
            list(_steps(beam.branch.record.newest, seen))
        others = [beam.branch.record.newest for beam in self.best_beams if beam not in results]
        lost = (step.token for newest in (*others, *self._pruned) for step in _steps(newest, seen))
        return tuple(replace(token, fate="pruned") for token in lost if token.hole is not None)

    @property
    def _all_beams(self) -> list[Beam]:
        return [*self.live, *self._ended, *self.best_beams]

    async def _all(self, works: Iterable[Awaitable[None]]) -> None:
        """Awaits all concurrently. After all have ended, raises the first exception in their order."""
        for outcome in await asyncio.gather(*works, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _tried(self, beam: Beam, work: Awaitable[None]) -> None:
        """Awaits the work; a ConstraintError ends only this beam."""
        try:
            await work
        except ConstraintError as error:
            beam.error = error

    async def _to_questions(self, beams: list[Beam]) -> None:
        """Steps all beams to their next question. Raises QueryError if one waits for a lock or a queue that only the
        others could release."""
        beams = [beam for beam in beams if not _is_at_question(beam.branch)]
        tasks = [asyncio.create_task(self._to_question(beam)) for beam in beams]
        left = set(tasks)
        try:
            while left:
                done, left = await asyncio.wait(left, timeout=PATIENCE)
                held = [beam.branch for beam, task in zip(beams, tasks, strict=True) if task in left]
                is_alone = self._numbers == 1  # without a fork there is nobody to wait for
                if not (done or is_alone) and all(branch.waits_for_others for branch in held):
                    raise QueryError(
                        f"a branch of the run waits in {held[0].waits_for_others}(), and all others wait for it",
                        span=held[0].span,
                        hint="leave locks and queues to functions that the query calls, or use argmax or sample",
                    )
        finally:
            for task in left:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _to_question(self, beam: Beam) -> None:
        """Steps to the next place where the model is asked for a token of a hole."""
        branch = beam.branch
        while not (branch.is_over or beam.is_lost):
            if _is_at_question(branch):
                return
            await self._tried(beam, self.run.guarded(branch, self.run.step(branch)))

    def _is_known(self, beam: Beam) -> bool:
        """True if the next tokens of a beam and the scores of its forced tokens are in the tree."""
        branch = beam.branch
        if not branch.is_over and not beam.ways and may_part(branch):
            beam.ways = self.run.known_ways(branch, self.ways)
        return (branch.is_over or bool(beam.ways)) and self.forced.is_known(branch.state.newest)

    async def _ask(self, beam: Beam) -> None:
        """Asks for the next tokens of a beam and for the scores of its forced tokens. An only token is taken."""
        branch = beam.branch
        if branch.is_over:
            await self.forced.weigh(branch.generator, branch.state.newest)
        elif may_part(branch):  # the text is settled at once, so its forced tokens are scored in the same pass
            await asyncio.gather(self._tried(beam, self._look_ahead(beam)), self._weigh(beam))
        else:  # forced tokens of this step are scored in the next round, whether or not the beam waits for the model
            before = self.forced.weigh(branch.generator, branch.state.newest)
            step = self.run.guarded(branch, self.run.step(branch))
            await asyncio.gather(self._tried(beam, step), before)

    async def _weigh(self, beam: Beam) -> None:
        await self.forced.weigh(beam.branch.generator, beam.branch.state.newest)

    async def _look_ahead(self, beam: Beam) -> None:
        if not beam.ways:
            beam.ways = await self.run.guarded(beam.branch, self.run.ways(beam.branch, self.ways)) or []

    async def _finish(self) -> None:
        """Turns beams at their end into results, and gives up beams that can no longer become one. Scores only fall,
        except where a query returns, so the beam that leads runs to its end."""
        self.best_beams = sorted([*self.best_beams, *self._ended], key=lambda beam: beam.order)
        self._ended = []
        await self._give_up(*_doubles(self.best_beams))
        await self._give_up(*self.best_beams[self.width :])
        await self._give_up(*(beam for beam in self.live if not beam.leads and not self.may_win(beam.score)))

    def _continuations(self) -> list[Continuation]:
        """The continuations of all beams."""
        found: list[Continuation] = []
        for beam in self.live:
            ways = [Continuation(beam, way, rank) for rank, way in enumerate(beam.ways)]
            found += ways or [Continuation(beam)]
        return [each for each in found if each.leads or self.may_win(each.score)]

    async def _go(self, kept: list[Continuation]) -> None:
        chosen: dict[Beam, list[Continuation]] = {beam: [] for beam in self.live}
        for continuation in sorted(kept, key=lambda continuation: continuation.rank):
            chosen[continuation.beam].append(continuation)
        await self._give_up(*(beam for beam, mine in chosen.items() if not mine))
        going: list[tuple[Beam, Continuation]] = []
        for beam in list(self.live):
            mine, beam.ways = chosen[beam], []
            beams = [beam, *(self._fork(beam) for _ in mine[1:])]
            if len(beams) > 1:
                self._events.append(events.Forked(beam.number, tuple(each.number for each in beams)))
            going += [(each, one) for each, one in zip(beams, mine, strict=True) if one.way]
            self.live += beams[1:]
        judged = [each for each in going if _is_judged(each[0].branch)]
        for beam, continuation in going:
            if (beam, continuation) not in judged:  # no Python runs for it, and nothing waits
                await self._take(beam, continuation)
        await self._all(self._take(beam, continuation) for beam, continuation in judged)

    async def _take(self, beam: Beam, continuation: Continuation) -> None:
        assert continuation.way is not None, "the beam goes on"
        taking = self.run.take(beam.branch, continuation.way)
        await self._tried(beam, self.run.guarded(beam.branch, taking))

    def _fork(self, beam: Beam) -> Beam:
        self._emit(beam)
        fork = Beam(beam.branch.fork(self._numbers), self._numbers, self.forced)
        self._numbers += 1
        return fork

    # Beams that are given up ----------------------------------------------------------------------------------------

    async def _give_up_lost(self) -> None:
        lost = [beam for beam in self.live if beam.is_lost]
        for beam in lost:
            if beam.error is not None and (beam.leads or self._failure is None):
                self._failure = beam.error
        await self._give_up(*lost)

    async def _give_up(self, *beams: Beam) -> None:
        gone = set(beams)
        self.live = [beam for beam in self.live if beam not in gone]
        self.best_beams = [beam for beam in self.best_beams if beam not in gone]
        for beam in beams:
            self._pruned.append(beam.branch.record.newest)
            await self.run.close_branch(beam.branch)
            self._emit(beam)
            self._events.append(events.Pruned(beam.number))
            beam.branch.leave()

    def _emit(self, beam: Beam) -> None:
        new = beam.branch.record.events
        self._events += new
        new.clear()


def may_part(branch: Branch) -> bool:
    """True if the branch may fork at its hole. A hole with a decoder of its own does not fork."""
    hole, settings = branch.hole, branch.frame.settings
    is_plain = hole is not None and isinstance(hole.fill, LocalFill) and hole.op.decoder is None
    return is_plain and settings.has_beams


def _is_at_question(branch: Branch) -> bool:
    """True if the model is asked for the next token."""
    return branch.hole is not None and not matcher_of(branch.state).forced()


def _is_judged(branch: Branch) -> bool:
    """True if the query's Python reads the text of the open hole while it is filled."""
    hole = branch.hole
    return branch.frame.decoration is not None or (hole is not None and hole.op.may_reject)


def _doubles(beams: Iterable[Beam]) -> list[Beam]:
    """Beams that are equal to a better one."""
    doubles: list[Beam] = []
    here: dict[Hashable, list[Beam]] = {}
    for beam in sorted(beams, key=lambda beam: beam.order):
        others = here.setdefault(place_of(beam.branch), [])
        if any(are_equal(beam.branch, other.branch) for other in others):
            doubles.append(beam)
        else:
            others.append(beam)
    return doubles


def _steps(newest: Step | None, seen: set[Step]) -> Iterator[Step]:
    """The steps of a record from the newest back to the first seen one, all marked as seen."""
    while newest is not None and newest not in seen:
        seen.add(newest)
        yield newest
        newest = newest.earlier


# Equality of branches: their places, texts and answers (S24) ------------------------------------------------------


def place_of(branch: Branch) -> Hashable:
    """A value that is equal for branches at the same place of the program with the same text."""
    state, hole = branch.state, branch.hole
    callers = tuple(frame.caller.before.part for frame in branch.frames if frame.caller is not None)
    programs = tuple(id(frame.program) for frame in branch.frames)
    said = state.text.encode() + (matcher_of(state).text if hole else b"")
    return programs, callers, state.part, said, branch.is_over, hole is not None, state.turn


def are_equal(one: Branch, other: Branch) -> bool:
    """True if two branches at the same place have the same answers, of which their Python is a function."""
    return same(one.record.answers, other.record.answers)


DECODING = BeamSearch.decoded
