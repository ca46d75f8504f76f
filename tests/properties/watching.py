"""The oracle of whole programs, attached to runs: it judges every hole as soon as a run has filled it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from unittest.mock import patch

from lmql_lite.engine import hole, subquery
from lmql_lite.engine.branch import Branch
from lmql_lite.engine.record import Answer
from lmql_lite.engine.result import Result
from lmql_lite.engine.run import Run
from lmql_lite.program.ops import Hole
from lmql_lite.tokens import Token
from tests.properties.plain_where import FUNCTIONS, STOPS
from tests.properties.whole_programs import WRITTEN, Filling, Query

query_of = lru_cache(500)(Query)


@dataclass(frozen=True)
class Opened:
    """A hole when it was opened, with the variables of its query at that time."""

    source: str
    hole: str
    place: int
    names: dict[str, Any]
    known: frozenset[str]


@dataclass
class Watch:
    broken: list[str] = field(default_factory=list)
    opened: deque[Opened] = field(default_factory=lambda: deque(maxlen=64))
    fillings: int = 0

    def opens(self, branch: Branch, op: Hole) -> None:
        frame = branch.frame
        known = frozenset(frame.variables)
        self.opened.append(Opened(op.span.text, op.name, op.span.start, dict(frame.environment), known))

    def fills(self, branch: Branch, value: Any, text: str, ending: str) -> None:
        frame, op = branch.frame, branch.part
        assert isinstance(op, Hole), "only holes are filled"
        names = {**frame.environment, op.name: value if op.type else text}
        filling = Filling(op.name, op.span.start, names, frame.variables.keys(), text, ending, value)
        self.fillings += 1
        self.broken += query_of(op.span.text).broken(filling)

    def finishes(self, result: Result, source: str) -> None:
        """Judges conditions on holes alone by the result's values and tokens too, if no hole is filled twice."""
        query = query_of(source)
        written = Counter(name for prompt in query.prompts for _, name in prompt.places)
        if not query.is_straight or max(written.values(), default=0) > 1 or "[@" in source:
            return
        kept = Counter(token.hole for token in result.tokens if token.fate == "kept")
        cut = {token.hole for token in result.tokens if token.fate != "kept"}
        # the value of a nested query has the tokens that generated it, under their own holes
        asked = {name for prompt in query.prompts for name, kind in prompt.holes.items() if "(" in kind}
        tokens = {name: kept[name] for name in written if name not in cut | asked}
        if result.usage.forward_passes is None:  # of a server, whose tokens are estimated from the text
            tokens = {name: -(-len(str(result.variables.get(name, ""))) // 4) for name in tokens}
        plain = query.holes.union(FUNCTIONS, STOPS, WRITTEN, ["TOKENS"])
        for prompt in query.prompts:
            for name in prompt.holes.keys() & result.variables.keys():
                names, value, behind = result.variables, result.variables[name], prompt.end - 1
                if not (isinstance(value, str) or prompt.holes[name]):
                    continue  # the text of the hole may have been another one
                filling = Filling(name, behind, names, names, str(value), "forced", value, tokens)
                asked = [clause for some in query.asked(name, behind, names) for clause in some]
                if all(clause.names <= plain for clause in asked):
                    self.broken += [f"at the end: {each}" for each in query.broken(filling)]


@contextmanager
def watched() -> Iterator[Watch]:
    """Watches all runs inside the context. A finished run raises AssertionError if it broke a `where`."""
    watch = Watch()
    begin, bind, finish = Run._hole, hole.bind, Run.result

    async def watched_begin(run: Run, branch: Branch, op: Hole) -> None:
        watch.opens(branch, op)
        await begin(run, branch, op)

    async def watched_bind(
        branch: Branch, name: str, value: Any, text: str, ending: Any, rest: str, answer: Answer = None
    ) -> None:
        watch.fills(branch, value, text, ending)
        await bind(branch, name, value, text, ending, rest, answer)

    def watched_finish(run: Run, branch: Branch, pruned: tuple[Token, ...] = ()) -> Result:
        result = finish(run, branch, pruned)
        watch.finishes(result, run._program.span.text)
        assert not watch.broken, (watch.broken, run._program.span.text)
        return result

    with ExitStack() as patches:
        patches.enter_context(patch.object(Run, "_hole", watched_begin))
        for room in (hole, subquery):
            patches.enter_context(patch.object(room, "bind", watched_bind))
        patches.enter_context(patch.object(Run, "result", watched_finish))
        yield watch
    assert not watch.broken, watch.broken
