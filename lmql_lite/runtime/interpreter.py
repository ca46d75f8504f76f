"""One run: a program, what its caller wishes, and the hypotheses that go through it. Events stream up.

The caller of `Run.stream` drives the run by reading them. Reads the tree through the frontier, writes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

from lmql_lite.errors import BudgetError
from lmql_lite.program.ops import Program
from lmql_lite.runtime import events
from lmql_lite.runtime.environment import Environment
from lmql_lite.runtime.frames import Frame
from lmql_lite.runtime.hypothesis import Hypothesis
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.nested import Elsewhere
from lmql_lite.runtime.result import Result
from lmql_lite.runtime.settings import Settings
from lmql_lite.runtime.writer import Writer
from lmql_lite.tokens import Sampling

LAST_STEPS = 1000
"""Of what a query runs in any case, behind the last step that it may have."""


class Run:
    """One run of one program by one model, behind the text `before`."""

    def __init__(
        self,
        program: Program,
        environment: Environment,
        settings: Settings,
        sampling: Sampling,
        writer: Writer,
        ledger: Ledger,
        elsewhere: Elsewhere | None = None,
        before: str = "",
    ) -> None:
        self._program = program
        self._environment = environment
        self._settings = settings
        self._sampling = sampling
        self._writer = writer
        self._ledger = ledger
        self._elsewhere = elsewhere
        self._before = before
        self._steps = 0
        self._most_steps = settings.steps

    @property
    def seed(self) -> int:
        return self._sampling.seed

    async def stream(self) -> AsyncGenerator[events.Event, None]:
        """Runs the program to its end; the last event carries the result."""
        yield self._started()
        hypothesis = self._first()
        try:
            while not hypothesis.is_over:
                self._steps += 1
                if self._steps <= self._most_steps:
                    await hypothesis.step()
                else:
                    self._most_steps += LAST_STEPS
                    await hypothesis.fail(self._endless(hypothesis))
                for event in _news(hypothesis):
                    yield event
            yield events.Finished(self._result(hypothesis))
        except GeneratorExit:
            await hypothesis.close()
            raise
        finally:
            hypothesis.leave()
            self._writer.leave()

    def _started(self) -> events.Started:
        return events.Started(self._writer.model, self._settings.decoder_name, self.seed, self._program.returns)

    def _first(self) -> Hypothesis:
        """The hypothesis that the run begins with."""
        shared = tuple(self._environment.values())
        frame = Frame(self._program, self._environment, self._settings, self._sampling, shared)
        hypothesis = Hypothesis(frame, self._writer, self._ledger, self._elsewhere)
        hypothesis.begin(self._before)
        return hypothesis

    def _endless(self, hypothesis: Hypothesis) -> BudgetError:
        """A run has had as many steps as it may."""
        return BudgetError(
            f"the run has not come to its end within {self._settings.steps:,} steps, and is here",
            span=hypothesis.op.span,
            hint="if this is no endless loop, raise step_budget",
        )

    def _result(self, hypothesis: Hypothesis) -> Result:
        state, frame = hypothesis.state, hypothesis.frame
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


def _news(hypothesis: Hypothesis) -> Iterator[events.Event]:
    news, hypothesis.news = hypothesis.news, []
    yield from news
