"""The holes of a hypothesis: how one is opened, filled and judged, and how it gets its value."""

from __future__ import annotations

from typing import Any

from lmql_lite.constraints.matcher import Ending, Matcher
from lmql_lite.constraints.terms import Term
from lmql_lite.errors import ConstraintError
from lmql_lite.program.clauses import settled
from lmql_lite.program.numbers import MADE
from lmql_lite.program.ops import Distribution, Hole
from lmql_lite.program.schemas import JsonType
from lmql_lite.program.types import NAMES, TextType
from lmql_lite.runtime import events
from lmql_lite.runtime.callees import called
from lmql_lite.runtime.decorated import decoration_of
from lmql_lite.runtime.environment import evaluate
from lmql_lite.runtime.fill import Fill, Way
from lmql_lite.runtime.hole_decoder import decoding_of
from lmql_lite.runtime.judge import Judge, Objection
from lmql_lite.runtime.nested import NestedCall, answered, unmet
from lmql_lite.runtime.opening import OpenHole, matcher_of, schema_of, text_term
from lmql_lite.runtime.outlook import outlook_of
from lmql_lite.runtime.standing import Standing
from lmql_lite.runtime.state import Step
from lmql_lite.runtime.tools.fill import ToolFill
from lmql_lite.runtime.writer import Outlook


class Holes:
    """Those of one hypothesis, which stands where `standing` says. `open` is the one that is being filled.

    `leads`: the hypothesis goes as the only one would. What Python rejects it fills otherwise, where others are given
    up: they are `rejected`.
    """

    def __init__(self, standing: Standing, *, leads: bool) -> None:
        self.open: OpenHole | None = None
        self.leads = leads
        self.is_rejected = False
        self._standing = standing

    def fork(self, standing: Standing) -> Holes:
        fork = Holes(standing, leads=False)
        fork.open = self.open and self.open.fork(standing.writer)
        fork.is_rejected = self.is_rejected
        return fork

    @property
    def matcher(self) -> Matcher:
        """Where the open hole stands."""
        assert self._standing.state.matcher is not None, "a hole is open"
        return self._standing.state.matcher

    async def begin(self, op: Hole) -> tuple[Hole, NestedCall] | None:
        """Opens a hole. One that is the matter of a query is given back, with the call of that."""
        here, frame = self._standing, self._standing.frame
        for under_way in here.frames:
            under_way.blocks.refuse_cancelled()
        here.news.append(events.HoleOpened(op.name, op.span))
        frame.decoration = await decoration_of(op, here.python, here.context)
        frame.opened = here.state
        if frame.decoration is not None:
            here.own()
            fixed = await frame.decoration.fixed(frame.environment)
            if fixed is not None:
                await self._give(op, fixed)
                return None
        if op.distribution is not None:
            await self._choose(op, op.distribution)
            return None
        if op.callees:  # a query may be one of this query's own, and see its variables
            here.own()
        op, nested = await called(op, lambda code: here.python(code, op.span))
        if nested is not None:
            return op, nested
        await self._ask(await self._settled(op))
        return None

    async def fill(self, hole: OpenHole, ahead: int) -> int:
        """One token, or a stretch of forced text; behind it so many more tokens at most, as far as they are known.
        Gives how many more."""
        here = self._standing
        here.state = await hole.filling.step(here.state, self.matcher)
        if isinstance(hole.filling, ToolFill):
            here.news += hole.filling.told()
        await self._look(hole)
        return await self._run_ahead(hole, ahead) if self.open is hole else 0

    async def _run_ahead(self, hole: OpenHole, most: int) -> int:
        """Tokens that are known, up to the end of the hole, as long as Python has no part in it: nobody waits here."""
        here, filling, many = self._standing, hole.filling, 0
        if not isinstance(filling, Fill) or hole.op.may_reject or here.frame.decoration is not None:
            return 0
        matcher, is_guarded = self.matcher, here.is_guarded
        while many < most and (state := filling.known(here.state, matcher)) is not None:
            many += 1
            here.state, matcher = state, state.matcher or matcher
            if matcher.ending is not None:
                await self._look(hole)
                break
            here.tell(hole.term)
            if not is_guarded:
                self._say_ready(hole, matcher)
        return many

    def give_up(self) -> list[Step]:
        """The open hole gets no value. Gives what was said in it and left the path."""
        hole, self.open = self.open, None
        return hole.filling.give_up(self._standing.state) if hole else []

    # Where hypotheses part ways ------------------------------------------------------------------------------------

    @property
    def may_part(self) -> bool:
        """Whether the open hole is filled as the whole run is: with a decoder of its own it goes one way."""
        hole, settings = self.open, self._standing.frame.settings
        return hole is not None and isinstance(hole.filling, Fill) and hole.op.decoder is None and settings.has_beams

    async def ways(self, most: int) -> list[Way]:
        """How the open hole may go on where it `may_part`."""
        here, filling = self._standing, self._filling
        here.state = filling.settle(here.state)
        self._tell()
        return await filling.ways(here.state, self.matcher, most)

    async def take(self, way: Way) -> None:
        """Goes one of them."""
        assert self.open is not None, "a hole is open"
        self._standing.state = self._filling.take(way)
        await self._look(self.open)

    @property
    def _filling(self) -> Fill:
        assert self.open is not None and isinstance(self.open.filling, Fill), "the open hole may part"
        return self.open.filling

    # Values that the model does not say ----------------------------------------------------------------------------

    async def _give(self, op: Hole, value: Any) -> None:
        """A decorator gives the value in the model's place. It has to meet type and conditions all the same."""
        here, op = self._standing, await self._settled(op)
        value, text, broken = _given(op, self.term(op), value)
        await self.check(op, broken, value, "a decorator")
        here.state = answered(here.state, here.state, text, op.name, here.ledger)
        await self.bind(op.name, value, text, "forced", text)

    async def _choose(self, op: Hole, distribution: Distribution) -> None:
        """A distribution is weighed, and one of its options becomes the value."""
        here = self._standing
        options = await here.python(distribution.options, distribution.span)
        op = await self._settled(op)
        limit, writer = here.frame.settings.limit, here.writer
        matcher = matcher_of(op, self.term(op), limit, writer)
        here.own()
        frame = here.frame
        chosen = await writer.choose(op, frame.environment, here.state, options, frame.sampling, matcher, limit)
        here.state = chosen.state
        self._tell()
        await self.bind(op.name, chosen.value, chosen.text, "forced", chosen.text)
        here.frame.variables[f"P({op.name})"] = chosen.distribution

    async def check(self, op: Hole, broken: Objection | None, value: Any, giver: str) -> None:
        """Whether a value that no model said meets the conditions of its hole; `broken` is one that it does not."""
        if broken is None and op.predicates:
            self._standing.own()
            broken = await Judge(op).judged(value, str(value), self._standing.frame.environment)
        if broken is not None:
            because = f" ({broken.reason})" if broken.reason else ""
            raise ConstraintError(
                f"[{op.name}] does not meet `{broken.span.source}`: {giver} gave {str(value)!r}{because}",
                span=broken.span,
                hint=f"{giver} has to give a value that meets it",
            )

    # Values that the model says ------------------------------------------------------------------------------------

    async def _ask(self, op: Hole) -> None:
        here, term = self._standing, self.term(op)
        frame, writer = here.frame, here.writer
        limit = frame.settings.limit
        matcher = matcher_of(op, term, limit, writer)
        decoding = await decoding_of(op, frame.settings, frame.sampling, here.python)
        filling = decoding.filling(op, term, here.state, limit, writer, lambda: self._outlook(op, term))
        here.state = filling.open(here.state, matcher)
        self.open = OpenHole(op, term, filling, Judge(op))
        await self._look(self.open)

    async def _look(self, hole: OpenHole) -> None:
        """What the open hole says by now is shown and judged: it may have to go back, and it may have its value."""
        here, may_reject = self._standing, hole.op.may_reject
        while True:
            here.tell(hole.term)
            matcher = self.matcher
            await self._show(hole, matcher)
            if may_reject:
                here.own()
            elif matcher.ending is None:
                return
            broken = await hole.judge.objects(matcher, here.frame.environment)
            if broken is None:
                break
            if not self.leads:
                self.is_rejected = True
                return
            back = await hole.filling.go_back() if hole.rejections < here.frame.settings.backtracks else None
            if back is None:
                raise hole.rejected(broken, matcher)
            hole.rejections += 1
            here.state = back
        if matcher.ending is not None:
            await self._close(hole, matcher, matcher.ending)

    async def _show(self, hole: OpenHole, matcher: Matcher) -> None:
        """What it says by now, as far as that is certain. Decorators are told; a watcher waits for them."""
        here = self._standing
        decoration = here.frame.decoration
        if decoration is not None:
            if not hole.op.may_reject:
                here.own()
                text = matcher.text[: matcher.certain].decode("utf-8", "ignore")
                await decoration.tell(text, here.frame.environment)
        elif not here.is_guarded:
            self._say_ready(hole, matcher)

    def _say_ready(self, hole: OpenHole, matcher: Matcher) -> None:
        if ready := hole.ready(matcher):
            self._standing.say(events.Text(ready, hole.op.name))

    async def _close(self, hole: OpenHole, matcher: Matcher, ending: Ending) -> None:
        name, text = hole.op.name, matcher.value.decode()
        self._standing.state = hole.filling.close(self._standing.state, matcher)
        self.open = None
        self._tell()
        await self.bind(name, hole.judge.value, text, ending, matcher.value[hole.shown :].decode())

    async def bind(self, name: str, value: Any, text: str, ending: Ending, untold: str) -> None:
        """A hole has its value: the query's own Python sees it, and goes on behind it."""
        here, frame = self._standing, self._standing.frame
        if frame.decoration is not None and frame.opened is not None:
            here.own()
            value, said = await frame.decoration.finished(value, text, frame.environment)
            if said != text:
                here.state = answered(frame.opened, here.state, said, name, here.ledger)
                self._tell()
                text = untold = said
        frame.opened = frame.decoration = None
        if untold:
            here.say(events.Text(untold, name))
        frame.environment[name] = frame.variables[name] = value
        frame.endings[name] = ending
        here.news += [events.HoleClosed(name, text, ending), events.Bound(name, value)]
        here.go(here.state)

    def _tell(self) -> None:
        self._standing.tell(self.open.term if self.open else None)

    # What is known of a hole when it opens -------------------------------------------------------------------------

    async def _settled(self, op: Hole) -> Hole:
        """The hole with its type known; names that an annotation may use are the query's own where it binds them."""
        if op.type is None or op.type.spec is not None:
            return op
        here = self._standing
        here.own()
        names = {**here.frame.environment, **{name: NAMES[name] for name in op.type.offered}}
        return settled(op, await evaluate(op.type.code, names))

    def term(self, op: Hole) -> Term:
        """Its condition, the values in it being known."""
        return self._standing.frame.term(op, self._standing.state.pc, self._standing.now)

    def _outlook(self, op: Hole, term: Term) -> Outlook:
        """What is known of the segment that begins with this hole."""
        frame, here = self._standing.frame, self._standing.state.pc

        def text_at(at: int) -> Term:
            later = frame.program.ops[at]
            assert isinstance(later, Hole), "a segment is made of holes and texts"
            return text_term(op, term) if at == here else text_term(later, frame.bind(at, self._standing.now))

        return outlook_of(frame.program.ops, here, text_at, schema_of(op, term))


def _given(op: Hole, term: Term, value: Any) -> tuple[Any, str, Objection | None]:
    """A value that no model said, as the hole's type has it; its text; and the type or condition that it breaks."""
    spec = op.type.spec if op.type else None
    if spec is None or op.type is None:
        text, broken = str(value), unmet(op, term, str(value))
        return MADE[op.number](text) if op.number and broken is None else value, text, broken
    try:
        text = spec.spelled(value)
        if isinstance(spec, TextType) and (broken := unmet(op, text_term(op, term), text)):
            return value, text, broken
        value = spec.convert(text)
    except (ValueError, RecursionError) as error:
        return value, "", Objection(op.type.span, str(error))
    if isinstance(spec, JsonType) and not spec.has_right_length(value, term, op.name, op.span):
        return value, text, Objection(term.span or op.span)
    return value, text, None
