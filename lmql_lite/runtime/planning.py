"""A plan is made: no model is asked, and no Python of the query runs but what can have no effect (`foreseen.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from math import ceil, inf
from typing import Any, Literal

from lmql_lite.cache.texts import END
from lmql_lite.constraints.hole import Engine
from lmql_lite.constraints.pushdown import pushed
from lmql_lite.constraints.terms import Length, Term, conjunction
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.errors import ConstraintError, InputError, Span
from lmql_lite.lang.nodes import Expression
from lmql_lite.models.base import Completer, Endpoint, Model
from lmql_lite.program.conditions import All, Condition
from lmql_lite.program.endings import endings, fits_all, longest_text, parts_of
from lmql_lite.program.ops import Hole, Interpolated, Jump, Next, Op, Option, Program, Text, Turn
from lmql_lite.program.options import texts_of
from lmql_lite.program.schemas import JsonType
from lmql_lite.program.types import TextType
from lmql_lite.runtime.flow import Flow, Loop
from lmql_lite.runtime.foreseen import Foreseen, NotForeseen
from lmql_lite.runtime.plan import Plan, PlannedHole, PlannedLoop, Spending, Way
from lmql_lite.runtime.pushing import Pushing, is_free
from lmql_lite.runtime.session import Session
from lmql_lite.runtime.settings import Settings, checked
from lmql_lite.runtime.text_fill import BANNED
from lmql_lite.runtime.text_frontier import GO_ON, LEAST_STRIDE, MOST_STRIDE, TURN_TOKENS
from lmql_lite.runtime.writer import Outlook

Kind = Literal["usual", "most"]
ENDLESS = 2**31
"""More tokens than a hole ever has."""


async def planned(
    program: Program,
    inputs: Mapping[str, Any],
    settings: Settings,
    session: Session,
    model: str | Model | None = None,
) -> Plan:
    """Asks a server what it is, and no more. Raises InputError for a wrong option, and ModelError as `meet` does."""
    foreseen = Foreseen(program, inputs)
    header: dict[str, Any] = {"decoder": program.decoder}
    unknown = []
    for option in program.options:
        try:
            header[option.name] = foreseen.value(option.value)
        except NotForeseen:
            unknown.append(option.name)
    said = {each.name for each in fields(settings) if getattr(settings, each.name) is not None}
    unknown = [name for name in unknown if name not in said]
    wishes = settings.over(checked(header, {option.name: option.span for option in program.options}))
    budget = wishes.budget
    if model is None and program.model is not None:
        model = _named(program.model, foreseen)
    model = session.model(model)
    endpoint = await model.meet() if isinstance(model, Completer) else None
    planner = _Planner(program, foreseen, wishes, endpoint, limited="max_tokens" not in unknown)
    holes = tuple(planner.holes())
    return Plan(
        model=model.name,
        decoder=wishes.decoder_name,
        max_tokens=_whole(planner.limit),
        holes=holes,
        loops=tuple(planner.loops()),
        usual=planner.total("usual"),
        most=planner.total("most"),
        budget=budget,
        missing=tuple(wanted.name for wanted in program.inputs if wanted.name not in inputs),
        unknown=tuple(unknown),
        problems=tuple(planner.problems),
        met=endpoint.spent if endpoint else None,
        on_server=endpoint is not None,
    )


def _named(model: Option, foreseen: Foreseen) -> str | Model:
    try:
        named: str | Model = foreseen.value(model.value)
    except NotForeseen:
        raise InputError(
            "which model is asked only a run finds out", span=model.span, hint="name one: model="
        ) from None
    return named


@dataclass(frozen=True, slots=True)
class _Asked:
    """For one hole, once: so many requests, each of which sends the text so far `texts` times, and is answered with so
    many tokens."""

    requests: float
    answer: float
    texts: float = 1


class _Planner:
    def __init__(
        self, program: Program, foreseen: Foreseen, wishes: Settings, endpoint: Endpoint | None, *, limited: bool
    ) -> None:
        self.problems: list[str] = []
        self.limit: float = wishes.limit if limited else inf
        self._ops = program.ops
        self._foreseen = foreseen
        self._flow = Flow(program, foreseen)
        self._endpoint = endpoint
        self._isolated = wishes.is_isolated
        self._speculates = wishes.speculate is not False and not wishes.is_isolated
        self._backtracks = wishes.backtracks
        self._engine = Engine(Vocabulary((*(bytes([byte]) for byte in range(END)), None), frozenset({END})))
        self._pushing = Pushing(self._engine, endpoint or Endpoint(""))
        self._known = {at: self._condition(op) for at, op in enumerate(self._ops) if isinstance(op, Hole)}
        self._asked: dict[int, Mapping[Kind, _Asked]] = {}
        self._pushed: dict[int, tuple[Term | bytes, ...]] = {}
        """What is held to a grammar, by the hole with which it begins."""
        self._text = [self._text_of(op) for op in self._ops]
        if endpoint is None:
            tags = (op for op in self._ops if isinstance(op, Turn))
            self.problems += [f"{_place(tag.span)}: this model is not asked in turns" for tag in tags]

    # Holes -------------------------------------------------------------------------------------------------------

    def holes(self) -> Iterator[PlannedHole]:
        segment, left = 0, 0
        """So many holes of the segment are held to the same request."""
        for at, (term, later) in self._known.items():
            op = self._ops[at]
            assert isinstance(op, Hole)
            if not op.continues_segment or left == 0 or self._isolated:
                segment += not op.continues_segment or not segment
                way, held = self._way(op, at, later)
                left = held
            begins = left == held
            left -= 1
            most = self._most_tokens(op, term)
            self._asked[at] = self._bounds(op, at, way, held, most, begins=begins)
            self._text[at] = self._size_of(op, term, most)
            clauses = [part.span.source for part in _conditions(op)]
            clauses += [clause.span.source for clause in _unread(op)]
            yield PlannedHole(
                name=op.name,
                span=op.span,
                conditions=tuple(dict.fromkeys(clauses)),
                judged=tuple(predicate.span.source for predicate in op.predicates),
                later=later,
                ends=tuple(self._ends(op, term, later)),
                most_tokens=_whole(most),
                times=_whole(self._flow.times(at)),
                always=self._flow.is_certain(at),
                segment=segment,
                way=way,
                with_holes=held,
            )

    def _condition(self, op: Hole) -> tuple[Term, tuple[str, ...]]:
        """What is known of a hole's condition, and what of it is not."""
        terms: list[Term] = []
        later = []
        for part in _conditions(op):
            try:
                terms.append(part.bind(self._foreseen.value))
            except (NotForeseen, re.error, TypeError, ValueError):
                later.append(part.span.source)
            except ConstraintError as error:
                self.problems.append(str(error))
        if op.type is not None and op.type.spec is None:
            later += [op.type.span.source, *(clause.span.source for clause in _unread(op))]
        elif op.type is not None and isinstance(op.type.spec, TextType):
            terms.insert(0, op.type.spec.term)
        if op.distribution is not None:
            try:
                self._foreseen.value(op.distribution.options)
            except NotForeseen:
                later.append(op.distribution.span.source)
        term = conjunction(tuple(terms))
        try:
            self._engine.matcher(term, op.following, ENDLESS, op.name, op.span)
        except ConstraintError as error:
            self.problems.append(str(error))
        return term, tuple(later)

    def _way(self, op: Hole, at: int, later: tuple[str, ...]) -> tuple[Way, int]:
        """How the model is held to the segment that begins here, and how many holes of it one request is for.

        As `TextWriter` decides it, which knows the values by then.
        """
        endpoint = self._endpoint
        if endpoint is None:
            return "masks", 1
        if op.distribution is not None:
            if not endpoint.scores:
                self.problems.append(
                    f"{_place(op.span)}: [{op.name}] has a distribution, and the server scores no texts"
                )
            return "scores", 1
        outlook, unknown = self._outlook(at)
        if self._isolated:
            outlook = Outlook(outlook.parts[:1], goes_on=False, is_whole=True)
            unknown = bool(later)
        outlook = replace(outlook, goes_on=outlook.goes_on and self._speculates)
        many = sum(not isinstance(part, bytes) for part in outlook.parts)
        if op.type is not None and isinstance(op.type.spec, JsonType):
            return ("schema" if endpoint.takes_schemas else "freely"), 1
        if unknown:
            may_push = endpoint.takes_languages or (endpoint.stops and not op.may_reject and not outlook.goes_on)
            return ("later" if may_push else "freely"), many
        if not op.may_reject and not outlook.goes_on and self._pushing.stops(outlook):
            return "stops", many
        held, language = self._pushing.language(outlook)
        if language is None or (held.goes_on and is_free(language)):
            return "freely", sum(not isinstance(part, bytes) for part in held.parts)
        self._pushed[at] = held.parts
        return "grammar", sum(not isinstance(part, bytes) for part in held.parts)

    def _outlook(self, at: int) -> tuple[Outlook, bool]:
        """From this hole to the end of its segment, and whether something in it is not known."""
        term, later = self._known[at]
        parts: list[Term | bytes] = [term]
        unknown, end = bool(later), at + 1
        while isinstance(self._ops[end], Text | Hole):
            op = self._ops[end]
            if isinstance(op, Text):
                literal = [part for part in op.parts if isinstance(part, str)]
                if len(literal) < len(op.parts):
                    break
                parts.append("".join(literal).encode())
            elif isinstance(op, Hole):
                if not op.continues_segment:
                    break
                term, later = self._known[end]
                parts.append(term)
                unknown = unknown or bool(later)
            end += 1
        goes_on = any(isinstance(op, Hole | Jump | Next) for op in self._ops[end:])
        return Outlook(tuple(parts), goes_on=goes_on, is_whole=True), unknown

    def _most_tokens(self, op: Hole, term: Term) -> float:
        """A token has at least a byte."""
        if op.distribution is not None:
            return max((float(len(text.encode())) for text in self._options(op)), default=inf)
        if op.type is not None and isinstance(op.type.spec, JsonType):
            return self.limit
        counted = [part.at_most for part in parts_of(term) if isinstance(part, Length) and part.unit == "tokens"]
        return min([self.limit, self._longest((term,)), *(float(most) for most in counted if most is not None)])

    def _size_of(self, op: Hole, term: Term, most: float) -> float:
        """Tokens of a value where it stands in a prompt: what is forced does not count for `max_tokens`."""
        longest = (
            most if op.distribution or (op.type and isinstance(op.type.spec, JsonType)) else self._longest((term,))
        )
        return self.limit if longest == inf else longest

    def _options(self, op: Hole) -> tuple[str, ...]:
        assert op.distribution is not None
        try:
            return texts_of(self._foreseen.value(op.distribution.options))
        except Exception:  # not known yet, or a mistake that the run reports
            return ()

    def _longest(self, parts: tuple[Term | bytes, ...]) -> float:
        """Bytes of the longest text of a segment; inf where there is none, or it is too much to say."""
        try:
            found = pushed([part if isinstance(part, bytes) else self._engine.automaton(part) for part in parts])
        except ConstraintError:
            return inf
        return longest_text(found.language) if found and found.exact else inf

    def _bounds(self, op: Hole, at: int, way: Way, held: int, most: float, *, begins: bool) -> Mapping[Kind, _Asked]:
        tries = 1 + self._backtracks if op.may_reject else 1
        if self._endpoint is None:
            return {"usual": _Asked(0, most), "most": _Asked(0, most * tries)}
        if way == "scores":
            options = len(self._options(op)) or inf
            weighing = _Asked(1 + options if self._endpoint.chat_only else 1, 1 + options, texts=1 + options)
            return {"usual": weighing, "most": weighing}
        goes_on = held > 1 or (self._speculates and self._outlook(at)[0].goes_on)
        speaks_on = way in ("freely", "later") and goes_on and not self._isolated
        answer = max(self.limit, LEAST_STRIDE) if speaks_on else self.limit
        if way == "grammar" and begins:
            answer = min(answer, self._longest(self._pushed[at]))
        elif way == "stops":
            answer = min(answer, most)
        usual = float(begins)
        term, later = self._known[at]
        if way in ("freely", "stops") and not later and not op.may_reject and fits_all(term):
            requests = _times(ceil(most / LEAST_STRIDE), 1) if most < inf else inf
        else:  # each token may not fit, and be asked for otherwise
            requests = most * tries * (2 + (BANNED if self._endpoint.takes_bans else 0))
        longest = max(self.limit, MOST_STRIDE) if speaks_on else self.limit
        return {"usual": _Asked(usual, answer), "most": _Asked(max(requests, usual), longest)}

    # Amounts -----------------------------------------------------------------------------------------------------

    def loops(self) -> Iterator[PlannedLoop]:
        for loop in self._flow.loops:
            if any(loop.holds(at) for at in self._known):
                yield PlannedLoop(loop.span, _whole(loop.passes), self.total("usual", loop))

    def total(self, kind: Kind, within: Loop | None = None) -> Spending:
        """Of the whole run, or of the first pass of a loop."""
        reach = self._flow.heaviest(self._text)
        if within is not None:
            before = reach[within.head - 1] if within.head else 0.0
            reach = [before + text for text in self._flow.heaviest(self._text, within)]
        each = [self._spent(at, kind, reach, within) for at in range(len(self._ops))]
        return Spending(*(_whole(self._flow.heaviest(weights, within)[-1]) for weights in zip(*each, strict=True)))

    def _spent(self, at: int, kind: Kind, reach: list[float], within: Loop | None) -> tuple[float, float, float]:
        """By one op, once: requests, tokens of prompts and of answers."""
        op = self._ops[at]
        if self._endpoint is None:
            return (
                0,
                0 if isinstance(op, Hole) else self._text[at],
                self._asked[at][kind].answer if at in self._asked else 0,
            )
        if at not in self._asked:
            return 0, 0, 0
        asked = self._asked[at][kind]
        inside = (loop for loop in self._flow.loops if loop.holds(at) and (within is None or loop.head > within.head))
        longest = next((reach[loop.last] for loop in inside), reach[at])  # the text of its last pass
        prompt = _times(_times(asked.requests, asked.texts), self._prompt(self._endpoint, longest))
        return asked.requests, prompt, _times(asked.requests, asked.answer)

    def _prompt(self, endpoint: Endpoint, text: float) -> float:
        """Tokens of a prompt with this text."""
        text += 1  # that of the beginning
        if endpoint.chat_only:
            text += 2 * TURN_TOKENS + (0 if endpoint.continues_turns else TURN_TOKENS + len(GO_ON))
        return min(text, inf if endpoint.context_length is None else endpoint.context_length)

    def _text_of(self, op: Op) -> float:
        """Tokens that an op adds to the prompt, at most."""
        if isinstance(op, Turn):
            return TURN_TOKENS
        if not isinstance(op, Text):
            return 0
        return sum(len(part.encode()) if isinstance(part, str) else self._size(part) for part in op.parts)

    def _size(self, part: Interpolated) -> float:
        try:
            value = self._foreseen.value(part.code)
            converted = {"s": str(value), "r": repr(value), "a": ascii(value)}.get(part.conversion, value)
            return len(format(converted, part.format).encode())
        except (NotForeseen, ValueError, TypeError):
            return inf

    # Words -------------------------------------------------------------------------------------------------------

    def _ends(self, op: Hole, term: Term, later: tuple[str, ...]) -> Iterator[str]:
        if op.distribution is not None:
            yield "it is one of its options"
            return
        if op.type is not None and isinstance(op.type.spec, JsonType):
            yield "where its JSON is complete"
            return
        yield from endings(term)
        if later:
            yield "as its conditions say, once what they depend on is known"
        yield "where the model ends the text, if its conditions hold"


def _conditions(op: Hole) -> tuple[Condition, ...]:
    return op.condition.conditions if isinstance(op.condition, All) else (op.condition,)


def _unread(op: Hole) -> tuple[Expression, ...]:
    """Clauses that mean something only when the type is known."""
    return op.type.clauses if op.type is not None and op.type.spec is None else ()


def _times(many: float, each: float) -> float:
    return many * each if many and each else 0.0


def _whole(number: float) -> int | None:
    return None if number == inf else ceil(number)


def _place(span: Span) -> str:
    return f"{span.name}:{span.line}:{span.column}"
