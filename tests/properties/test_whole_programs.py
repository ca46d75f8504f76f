"""Law 3 for whole programs, and laws 1 and 3 together: random ones, run in every state of a cache, judged by an oracle.

A finished hole meets its `where` as plain Python evaluates it, what is refused cannot be met, no error is Python's own,
and no cache changes anything. 2,000 programs; LMQL_LITE_PROGRAMS=100000 runs a campaign, LMQL_LITE_FIRST_PROGRAM=n
begins with another one.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

import lmql_lite as lq
from tests.properties.random_programs import Program, random_program, smallest
from tests.properties.watching import Watch, query_of

PROGRAMS = int(os.environ.get("LMQL_LITE_PROGRAMS", "2000"))
FIRST = int(os.environ.get("LMQL_LITE_FIRST_PROGRAM", "0"))
SHARE = 250
"""Programs of one test."""


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
        self._watch = watch
        self._folder = folder
        self._files = 0

    async def fault(self, program: Program, states: tuple[str, ...]) -> Fault | None:
        """The first thing that is wrong with the program."""
        self._watch.broken.clear()
        try:
            query = lq.compile(program.source)
        except lq.QueryError as error:
            self.counts["refused when compiled"] += 1
            is_right = "mentions no hole" in str(error)
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
            seen = await self._seen(query, program, model=model, cache=cache, **run)
            if isinstance(seen, Fault):
                return seen
            if seen != off:
                first = next((pair for pair in zip(seen, off, strict=False) if pair[0] != pair[1]), (seen, off))
                return Fault("caches differ", f"{state}, run {number + 1}: {first[0]!r}, without a cache {first[1]!r}")
            if number and isinstance(model, lq.ScriptedModel) and model.calls > calls:
                return Fault("caches differ", f"{state}: the model is asked again")
        return None

    async def _seen(self, query: lq.Query, program: Program, **options: Any) -> Seen | Fault:
        """All that a cache may not change."""
        watch = self._watch
        watch.opened.clear()
        watch.broken.clear()
        named: dict[str, Any] = {"model": program.made(), "session": self.session, **program.options, **options}
        try:
            found = await query.run(program.inputs, **named)
        except (lq.ConstraintError, lq.QueryError) as error:
            self.counts["refused"] += 1
            fault = self._false_refusal(program, error, is_compiled=True)
            return fault or (type(error).__name__, str(error))
        except lq.LmqlLiteError as error:
            return Fault("raw error", f"{type(error).__name__}: {error}")
        except AssertionError as error:
            if not watch.broken:
                return Fault("raw error", repr(error))
        except Exception as error:
            if _is_programs_own(error, program):
                return ("own error", repr(error))
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
        """Brute force finds a text where the error says that there is none."""
        broken, self._watch.broken[:] = list(self._watch.broken), []
        if broken:
            return Fault("broken where", broken[0])
        sentence = str(error)
        if not is_compiled and "nothing can fill" not in sentence:
            return Fault("raw error", sentence)
        if any(patient in sentence for patient in ("has no value that meets", "does not meet")):
            return None  # Python judges, as often as it may
        limit = program.options.get("max_tokens", 14)
        if is_compiled:
            last = self._watch.opened[-1]
            if f"[{last.hole}]" not in sentence:
                return None
            text = query_of(last.source).filler(last.hole, last.place, last.names, last.known, limit)
        else:
            return self._false_when_compiled(program, error)
        return None if text is None else Fault("false refusal", f"{text!r} fills [{sentence.partition('[')[2]}")

    def _false_when_compiled(self, program: Program, error: lq.QueryError) -> Fault | None:
        query, limit = query_of(program.source), program.options.get("max_tokens", 14)
        for problem in error.problems:
            hole = problem.message.partition("nothing can fill [")[2].partition("]")[0]
            places = [prompt for prompt in query.prompts if hole in prompt.holes]
            at = problem.span.start if problem.span else 0
            own = [prompt for prompt in places if prompt.start <= at < prompt.line_end]
            texts = [query.filler(hole, prompt.start, None, (), limit) for prompt in own or places]
            if None not in texts:
                return Fault("false refusal", f"{texts[0]!r} fills {problem.message[17:]}")
        return None


def _is_programs_own(error: Exception, program: Program) -> bool:
    """Whether a statement of the program raised it, as it would in Python: none does, but in what is left of one."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    lines, query = program.source.split("\n"), query_of(program.source)
    if trace is None or not trace.tb_frame.f_code.co_filename.startswith("<query") or trace.tb_lineno > len(lines):
        return False
    at = sum(len(line) + 1 for line in lines[: trace.tb_lineno])
    return " where " not in lines[trace.tb_lineno - 1] and not (query.clauses and at > query.where[0])


async def judged(campaign: Campaign, program: Program, states: tuple[str, ...]) -> str | None:
    """None where nothing is wrong; else the fault, and the smallest program that has it."""
    fault = await campaign.fault(program, states)
    if fault is None:
        return None

    def alike(found: Fault | None) -> str:
        said = re.sub(r"'[^']*'|\[[^\]]*\]|`[^`]*`|\d+", "", found.sentence) if found else ""
        return found.kind + (said[:60] if found.kind == "raw error" else "") if found else ""

    kind = alike(fault)

    async def fails(smaller: Program) -> bool:
        try:
            return alike(await campaign.fault(smaller, states)) == kind
        except Exception:
            return False

    program = await smallest(program, fails)
    fault = await campaign.fault(program, states) or fault
    return f"{fault.kind}: {fault.sentence}\n{program}"


@pytest.mark.parametrize("first", range(FIRST, FIRST + PROGRAMS, SHARE))
def test_random_programs_hold_their_where_in_every_state_of_the_cache(
    first: int, every_where_holds: Watch, tmp_path: Path
) -> None:
    campaign = Campaign(every_where_holds, tmp_path)
    faults = []
    for seed in range(first, first + SHARE):
        states = tuple(random.Random(seed).sample(STATES, 1))
        found = asyncio.run(judged(campaign, random_program(seed), states))
        if found is not None:
            faults.append(f"program {seed}, {states}: {found}")
    assert not faults, "\n\n".join(faults)
    assert campaign.counts["finished"] > SHARE / 2, campaign.counts
