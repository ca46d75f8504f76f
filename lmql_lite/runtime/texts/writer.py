"""Writing with a model behind an API: what is known of its text is read, the rest is streamed and checked."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from lmql_lite.cache.tree import Node
from lmql_lite.constraints.hole import Engine
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.constraints.terms import identity
from lmql_lite.errors import Span
from lmql_lite.program.ops import Hole
from lmql_lite.runtime.choosing import Choosing, Chosen
from lmql_lite.runtime.environment import Environment
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.result import OptionScores, Usage
from lmql_lite.runtime.score import probabilities
from lmql_lite.runtime.state import State, Step, data_of
from lmql_lite.runtime.texts.fill import TextFill
from lmql_lite.runtime.texts.frontier import Reader, TextFrontier
from lmql_lite.runtime.texts.path import UNNUMBERED, TextPath
from lmql_lite.runtime.texts.pushing import Pushing, seen
from lmql_lite.runtime.texts.weighing import TextWeighing
from lmql_lite.runtime.texts.wishes import Segment, Wishes
from lmql_lite.runtime.writer import Outlook, pinned
from lmql_lite.tokens import Role, Sampling, Token


class TextWriter:
    """Belongs to one run. `isolated`: each hole asks for itself, and the server speaks no further (S7)."""

    spells_freely = True

    def __init__(
        self,
        frontier: TextFrontier,
        engine: Engine,
        pushing: Pushing,
        ledger: Ledger,
        sampling: Sampling,
        *,
        isolated: bool,
        speculate: bool,
    ) -> None:
        self.model = frontier.completer.name
        self.engine = engine
        self._frontier = frontier
        self.ledger = ledger
        self._sampling = sampling
        self._isolated = isolated
        self._speculate = speculate
        self._pushing = pushing
        ledger.by_server = True
        self._reader = Reader(ledger)
        self._path = TextPath(frontier.texts, ledger, chat=frontier.endpoint.chat_only)
        self._segment: Segment | None = None
        self._left = 0
        """So many holes of the segment are still to come."""
        self._filling: TextFill | None = None

    def fork(self) -> TextWriter:
        raise AssertionError("hypotheses of a server never part ways")

    async def logprobs(self, steps: Sequence[Step]) -> list[float]:
        raise AssertionError("a server is not asked about tokens that it did not choose")

    def start(self) -> State:
        return self._path.start()

    def turn(self, state: State, role: Role, span: Span) -> State:
        return self._path.begin(state, role)

    def fill(self, op: Hole, state: State, sampling: Sampling, limit: int, outlook: Callable[[], Outlook]) -> TextFill:
        before = self._filling
        # a server counts for its penalties from where the request began: each hole is a request of its own
        alone = self._isolated or sampling.penalises
        goes_on = op.continues_segment and self._left > 0 and not (before and before.fell_short)
        if self._segment is None or alone or not goes_on:
            self._segment = self._begun(op, state, outlook(), alone=alone)
        self._left -= 1
        if alone:
            self._reader.leave()
        wishes = Wishes(self._segment, self._frontier.endpoint, sampling, self._isolated)
        self._filling = TextFill(op, self._path, self._frontier, self._reader, self.ledger, wishes, limit)
        return self._filling

    def _begun(self, op: Hole, state: State, outlook: Outlook, *, alone: bool) -> Segment:
        """What the server is held to from here on; `alone`: in this hole."""
        outlook = seen(outlook, isolated=alone, speculates=self._speculate)
        own = b"%d" % secrets.randbits(64) if self._isolated else b""
        known = [part if isinstance(part, bytes) else identity(part) for part in outlook.parts]
        parts = (state.text.encode(), repr((known, outlook.schema)).encode(), own)
        digest = hashlib.blake2b(b"\0".join(parts), digest_size=16).digest()
        begin = state.depth + len(data_of(state.pending))
        held = self._pushing.held(op, outlook)
        self._left = held.holes
        return Segment(digest, begin, held.language, held.pushed, held.stops, goes_on=held.goes_on)

    def begin_call(self, state: State) -> State:
        return state

    async def choose(
        self,
        op: Hole,
        environment: Environment,
        state: State,
        options: Any,
        sampling: Sampling,
        matcher: Matcher,
        limit: int,
    ) -> Chosen:
        self._begin()
        weighing = TextWeighing(op.name, self._path, self._frontier, self.ledger, isolated=self._isolated)
        choosing = Choosing(op, environment, weighing, self.engine, sampling, limit)
        return await choosing.choose(state, options, matcher)

    async def score(self, state: State, options: tuple[str, ...]) -> OptionScores:
        """Which tokens the options are made of is not known: each is one piece."""
        self._begin()
        before, frontier = self.ledger.requests, self._frontier
        aside = TextPath(frontier.texts, Ledger(self.ledger.run), chat=frontier.endpoint.chat_only)
        weighing = TextWeighing("", aside, frontier, self.ledger, isolated=self._isolated)
        logprobs = await weighing.scores(weighing.settle(state), options)
        pieces = tuple(
            (Token(UNNUMBERED, option.encode(), None, "model", "kept", logprob),)
            for option, logprob in zip(options, logprobs, strict=True)
        )
        usage = Usage(requests=self.ledger.requests - before, forward_passes=None)
        return OptionScores(options, logprobs, probabilities(logprobs), pieces, usage)

    def _begin(self) -> None:
        """What is scored is a request of its own: whatever was being said is left."""
        self._reader.leave()

    async def waiting(self, answer: Awaitable[Any], state: State, span: Span) -> Any:
        """Meanwhile the server goes on, if it is still speaking."""
        return await answer

    def stand(self, before: Node | None, after: Node | None) -> None:
        pinned(self._frontier.texts.tree, before, after)

    def leave(self) -> None:
        self._reader.leave()

    async def close(self) -> None:
        await self._reader.close()

    async def finish(self, state: State) -> State:
        stream = self._reader.stream
        if stream is not None and stream.ends(self._frontier.said(stream.tip)):
            await stream.over()  # the server ends here by itself, and then says what it cost
        self._reader.leave()
        state = self._path.settle(state)
        self.ledger.used(self._frontier.texts.tree.way_to(state.node))
        return state
