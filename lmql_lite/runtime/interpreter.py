"""One run: a program, what its caller wishes, and the hypotheses that go through it. Events stream up.

The caller of `Run.stream` drives the run by reading them. Reads the tree through the frontier, writes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from lmql_lite.program.ops import STEP, Program
from lmql_lite.runtime import events
from lmql_lite.runtime.environment import Environment
from lmql_lite.runtime.frames import Frame
from lmql_lite.runtime.hypothesis import Hypothesis
from lmql_lite.runtime.nested import Elsewhere
from lmql_lite.runtime.result import Result
from lmql_lite.runtime.settings import Settings
from lmql_lite.runtime.steps import Steps
from lmql_lite.runtime.writer import Writer
from lmql_lite.tokens import Sampling

AHEAD = 64
"""So many tokens that are known are gone over before a watcher is told of them: a millisecond or two."""


class Run:
    """One run of one program by one model, behind the text `before`."""

    def __init__(
        self,
        program: Program,
        environment: Environment,
        settings: Settings,
        sampling: Sampling,
        writer: Writer,
        elsewhere: Elsewhere | None = None,
        before: str = "",
    ) -> None:
        self._program = program
        self._environment = environment
        self._settings = settings
        self._sampling = sampling
        self._writer = writer
        self._elsewhere = elsewhere
        self._before = before
        self._steps = Steps(settings.steps)

    @property
    def seed(self) -> int:
        return self._sampling.seed

    async def stream(self) -> AsyncGenerator[events.Batch, None]:
        """Runs the program to its end; the last event carries the result."""
        yield [self._started()]
        hypothesis = self._first()
        try:
            while not hypothesis.is_over:
                await hypothesis.step(AHEAD)
                if news := hypothesis.news():
                    yield news
            yield [events.Finished(self._result(hypothesis))]
        except GeneratorExit:
            await hypothesis.close()
            raise
        finally:
            hypothesis.leave()
            await self._writer.close()

    def _started(self) -> events.Started:
        return events.Started(self._writer.model, self._settings.decoder_name, self.seed, self._program.returns)

    def _first(self) -> Hypothesis:
        """The hypothesis that the run begins with."""
        self._environment[STEP] = self._steps.take
        shared = tuple(self._environment.values())
        frame = Frame(self._program, self._environment, self._settings, self._sampling, shared)
        hypothesis = Hypothesis(frame, self._writer, self._steps, self._elsewhere)
        hypothesis.begin(self._before)
        return hypothesis

    def _result(self, hypothesis: Hypothesis) -> Result:
        state, (frame, *_) = hypothesis.state, hypothesis.frames
        return Result(
            prompt=state.text,
            variables=dict(frame.variables),
            value=hypothesis.value,
            tokens=state.tokens(),
            usage=hypothesis.ledger.usage(),
            endings=dict(frame.endings),
            seed=self._sampling.seed,
            model=self._writer.model,
            score=state.score,
        )
