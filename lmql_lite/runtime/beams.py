"""A run with beams: `beam(n=4)`, `beam_sample(n=4)`. Its hypotheses compete (contest.py), the best are its results.

The score of a result is the sum of the raw log-probabilities of what conditions forced, and of all that the model was
let choose, the ends of holes and tokens that were cut there included.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from lmql_lite.runtime import events
from lmql_lite.runtime.contest import Contest
from lmql_lite.runtime.interpreter import Run
from lmql_lite.runtime.result import Result


class Beams(Run):
    async def stream(self) -> AsyncGenerator[events.Batch, None]:
        """Runs the program to its ends; the last event carries the results."""
        yield [self._started()]
        contest = Contest(self._first(), self._settings.results)
        try:
            while contest.live:
                await contest.round()
                if news := contest.news():
                    yield news
            results = self._results(contest)
            yield [events.Finished(results[0], tuple(results) if self._settings.results > 1 else ())]
        except BaseException:  # of one of them, or of who drives them: the others are over, too
            await contest.close()
            raise
        finally:
            contest.leave()
            await self._writer.close()

    def _results(self, contest: Contest) -> list[Result]:
        """Best first. What hypotheses said that were given up is on the books of each: all of it is what they cost."""
        lost, results = contest.lost_steps(contest.finished), []
        for beam in contest.finished:
            pruned = tuple(beam.hypothesis.ledger.prune(lost))
            result = self._result(beam.hypothesis)
            results.append(replace(result, tokens=result.tokens + pruned, score=beam.score))
        return results
