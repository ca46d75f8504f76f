"""Laws 1 and 3 for whole programs: random ones, run in every state of a cache, judged by an oracle.

A finished hole meets its `where` as plain Python evaluates it. A refused condition cannot be met. No error is Python's
own, and no cache changes anything. `python -m tests.properties.test_whole_programs FIRST COUNT` is a campaign.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

import lmql_lite as lq
from tests.properties.random_programs import Program, random_program
from tests.properties.watching import Watch, query_of, watched
from tests.properties.whole_programs import Filling, Query

PROGRAMS = 2000
SHARE = 250
"""Number of programs of one test."""


PATIENT = ("has no value that meets", "does not meet", "has no value yet")
"""Refusals that do not claim that nothing fits: the attempts at Python's judgement ran out, a decorator or a query
returned the value, or a hole is read before it is filled."""


class Fault(NamedTuple):
    kind: str
    sentence: str


Seen = tuple[Any, ...]
STATES = ("cold", "warm", "evicted", "file", "no guesses")


class Campaign:
    """Runs programs in one session, so that engines are made once for each model."""

    def __init__(self, watch: Watch, folder: Path) -> None:
        self.session = lq.Session()
        self.counts: Counter[str] = Counter()
        self._machine = watch
        self._folder = folder
        self._files = 0

    async def fault(self, program: Program, states: tuple[str, ...]) -> Fault | None:
        """First fault of the program; None if it has none."""
        self._machine.broken.clear()
        try:
            query = lq.compile(program.source)
        except (lq.QueryError, lq.ConstraintError) as error:
            self.counts["refused when compiled"] += 1
            is_right = "uses no hole" in str(error)
            return None if is_right else self._false_refusal(program, error, is_compiled=False)
        off = await self._seen(query, program, cache=False)
        if isinstance(off, Fault):
            return off
        for state in states:
            fault = await self._differs(query, program, state, off)
            if fault is not None:
                return fault
        return None

    async def _differs(self, query: lq.Query, program: Program, state: str, off: Seen) -> Fault | None:
        model = program.made()
        cache: Any = lq.TokenCache()
        runs: list[dict[str, Any]] = [{}]
        match state:
            case "warm":
                runs = [{}, {}]
            case "evicted":
                cache = lq.TokenCache(max_bytes=random.Random(program.source).choice([1, 2000]))
            case "file":
                self._files += 1
                cache = str(self._folder / f"{self._files}.tokens")
                runs = [{}, {"session": lq.Session(), "cache_mode": "replay"}]
            case "no guesses":
                runs = [{"speculate": False}]
        for number, run in enumerate(runs):
            calls = model.calls if isinstance(model, lq.ScriptedModel) else 0
            seen = await self._seen(query, program, off, model=model, cache=cache, **run)
            if isinstance(seen, Fault):
                return seen
            if seen != off:
                first = next((pair for pair in zip(seen, off, strict=False) if pair[0] != pair[1]), (seen, off))
                return Fault("caches differ", f"{state}, run {number + 1}: {first[0]!r}, without a cache {first[1]!r}")
            if number and isinstance(model, lq.ScriptedModel) and model.calls > calls:
                return Fault("caches differ", f"{state}: the model is asked again")
        return None

    async def _seen(self, query: lq.Query, program: Program, off: Seen = (), **options: Any) -> Seen | Fault:
        """All that a cache may not change, or a fault. A refusal equal to that of `off` is not judged again."""
        watch = self._machine
        watch.opened.clear()
        watch.broken.clear()
        named: dict[str, Any] = {"model": program.made(), "session": self.session, **program.options, **options}
        try:
            found = await query.run(program.inputs, **named)
        except (lq.ConstraintError, lq.QueryError) as error:
            self.counts["refused"] += 1
            said = type(error).__name__, str(error)
            is_known = said == off and not watch.broken
            return said if is_known else self._false_refusal(program, error, is_compiled=True) or said
        except lq.LmqlLiteError as error:
            return Fault("raw error", f"{type(error).__name__}: {error}")
        except AssertionError as error:
            if not watch.broken:
                return Fault("raw error", repr(error))
        except Exception as error:
            return Fault("raw error", repr(error))
        if watch.broken:
            broken, watch.broken[:] = list(watch.broken), []
            return Fault("broken where", broken[0])
        self.counts["finished"] += 1
        return tuple(
            (
                result.prompt,
                repr(result.variables),
                [(token.id, token.hole, token.fate, token.logprob) for token in result.tokens],
                dict(result.endings),
                result.score,
                result.seed,
            )
            for result in (found if isinstance(found, list) else [found])
        )

    def _false_refusal(
        self, program: Program, error: lq.ConstraintError | lq.QueryError, *, is_compiled: bool
    ) -> Fault | None:
        """Fault if brute force finds a text where the error says that there is none."""
        broken, self._machine.broken[:] = list(self._machine.broken), []
        if broken:
            return Fault("broken where", broken[0])
        sentence = str(error)
        if not is_compiled and "nothing can fill" not in sentence:
            return Fault("raw error", sentence)
        if any(patient in sentence for patient in PATIENT):
            return None
        limit = program.options.get("max_tokens", 10)
        if is_compiled:
            at = error.span.start if error.span else 0
            fillers = {
                query_of(each.source).filler(each.hole, each.place, each.names, each.known, limit)
                for each in self._machine.opened
                if f"[{each.hole}]" in sentence and query_of(each.source).is_about(each.place, at)
            }
            text = None if None in fillers or not fillers else fillers.pop()
        else:
            return self._false_when_compiled(program, error)
        return None if text is None else Fault("false refusal", f"{text!r} fills [{sentence.partition('[')[2]}")

    def _false_when_compiled(self, program: Program, error: lq.LmqlLiteError) -> Fault | None:
        query, limit = query_of(program.source), program.options.get("max_tokens", 10)
        for problem in error.problems:
            hole = problem.message.partition("nothing can fill [")[2].partition("]")[0]
            at = problem.span.start if problem.span else 0
            texts = [
                query.filler(hole, prompt.start, None, (), limit)
                for prompt in query.prompts
                if hole in prompt.holes and query.is_about(prompt.start, at)
            ]
            if texts and None not in texts:
                return Fault("false refusal", f"{texts[0]!r} fills {problem.message[17:]}")
        return None


def faults(campaign: Campaign, seeds: range) -> list[str]:
    found = []
    for seed in seeds:
        states = tuple(random.Random(seed).sample(STATES, 1))
        program = random_program(seed)
        fault = asyncio.run(campaign.fault(program, states))
        if fault is not None:
            found.append(f"program {seed}, {states}: {fault.kind}: {fault.sentence}\n{program}")
    return found


@pytest.mark.parametrize("first", range(0, PROGRAMS, SHARE))
def test_random_programs_hold_their_where_in_every_state_of_the_cache(
    first: int, every_where_holds: Watch, tmp_path: Path
) -> None:
    campaign = Campaign(every_where_holds, tmp_path)
    found = faults(campaign, range(first, first + SHARE))
    assert not found, "\n\n".join(found)
    assert campaign.counts["finished"] > SHARE / 2, campaign.counts


GLOBAL = (
    'argmax\n    "[A] [B] [A]"\n    for i in range(2):\n        "[B]"\nwhere\n    A != B and\n    flag and len(A) < 9'
)


@pytest.mark.parametrize(
    ("source", "hole", "names", "broken"),
    [
        ('"[X]" where flag and len(X) < 3', "[X]", {"X": "ab", "flag": False}, "flag"),
        ('"[A]"\n"[X]" where A == "z" and X in ["a"]', "[X]", {"A": "a", "X": "a"}, "A == 'z'"),
        (GLOBAL, "[B] [A]", {"A": "y", "B": "y", "flag": True}, None),  # A is certain to be filled again
        (GLOBAL, "[A]", {"A": "y", "B": "y", "flag": True}, "A != B"),  # ... and the loop may have no turn
        ('"[X]" where STOPS_AT(X, "b") and len(X) > 2', "[X]", {"X": "abcab c"}, "does not end at its first stop"),
        ('"[X]" where STOPS_AT(X, "b") and len(X) > 2', "[X]", {"X": "abcab"}, None),
        ('"[X: int]" where X > 3', "[X", {"X": "7"}, "is not of the type int"),
        ('"[X]" where (INT(X) and int(X) < 10) or X == "none"', "[X]", {"X": "none"}, None),
        ('"[X]" where re.search("b$", X) and "a" in X', "[X]", {"X": "ac"}, "re.search('b$', X)"),
    ],
)
def test_the_oracle_sees_each_kind_of_broken_clause(
    source: str, hole: str, names: dict[str, Any], broken: str | None
) -> None:
    text, place = str(names[hole[1]]), source.rindex(hole)
    found = Query(source).broken(Filling(hole[1], place, names, names.keys() & {"A", "B", "X"}, text))
    assert found == [] if broken is None else broken in found[0]


def test_the_oracle_finds_texts_that_were_refused() -> None:
    query = Query('"[X]" where (INT(X) and int(X) > 999 and len(X) < 3) or X == "none"')
    assert query.filler("X", 1, {}, (), most=10) == "none"
    assert Query('"[X]" where "ab" in X and len(X) < 2').filler("X", 1, {}, (), most=10) is None


@pytest.mark.parametrize("seed", range(3))
def test_tokens_are_those_that_were_chosen_for_the_hole(seed: int, every_where_holds: Watch) -> None:
    """S15: the result's tokens have the hole's name. No text precedes the hole, so no token began before it."""
    dice, done = random.Random(seed), 0
    for _ in range(12):
        least = dice.randint(0, 4)
        most = least + dice.randint(0, 3)
        rest = dice.choice(["", " and 'a' in X", " and len(X) > 7", " and len(WORDS(X)) == 2", " and not '.' in X"])
        source, chosen = f'"[X]" where {least} <= len(TOKENS(X)) <= {most}{rest}', dice.randint(0, 99)
        for model in (None, (chosen, 20.0, None), (chosen, 4.0, None), (chosen, 0.0, None)):
            program = Program(source, model=model)
            try:
                lq.run_sync(source, model=program.made(), decoder=dice.choice(["argmax", "sample"]), max_tokens=48)
                done += 1
            except lq.ConstraintError:
                continue
    assert done > 24 and every_where_holds.fillings >= done


def _campaign(first: int, count: int) -> int:
    """Tries so many programs. Returns the number of faults."""
    began, found = time.monotonic(), 0
    for seed in range(first, first + count, SHARE):
        seeds = range(seed, min(seed + SHARE, first + count))
        with watched() as watch, TemporaryDirectory() as folder:
            campaign = Campaign(watch, Path(folder))
            several = faults(campaign, seeds)
        found += len(several)
        sys.stderr.write("".join(f"{each}\n\n" for each in several))
        counts, spent = dict(campaign.counts), time.monotonic() - began
        sys.stderr.write(f"{counts}, {found} faults, {spent:.0f} s; go on with program {seeds.stop}\n")
    return found


if __name__ == "__main__":
    sys.exit(_campaign(int(sys.argv[1]), int(sys.argv[2])) > 0)
