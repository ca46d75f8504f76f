"""Planner of a run. It asks no model, and runs only Python of the query that has no side effects (foreseen.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from math import ceil, inf
from typing import Any

from lmql_lite.constraints.server_grammar import pushed
from lmql_lite.constraints.terms import And, Choice, Length, Matches, Or, Stop, StopPattern, Term, conjunction
from lmql_lite.engine import frame
from lmql_lite.engine.foreseen import Foreseen, NotForeseen
from lmql_lite.engine.generate.generator import lookahead_at
from lmql_lite.engine.generate.question import TOKEN_BYTES, PushDown, requested, text_engine, tokens_for
from lmql_lite.engine.generate.remote_scheduler import TURN_TOKENS
from lmql_lite.engine.plan import Plan, PlannedHole, Spending, Way
from lmql_lite.engine.session import Session
from lmql_lite.engine.settings import Settings, checked
from lmql_lite.errors import ConstraintError, InputError, Span
from lmql_lite.lang.nodes import Expression
from lmql_lite.models.answer_form import ROOM, AnswerForm
from lmql_lite.models.base import Capabilities, Completer, Model
from lmql_lite.models.chat import chat_of
from lmql_lite.program.conditions import All, Condition
from lmql_lite.program.json_types import JsonType
from lmql_lite.program.ops import Enter, Hole, Jump, JumpIf, Next, Program, PromptText, Turn
from lmql_lite.program.types import TextType
from lmql_lite.program.values import texts_of

ENDLESS = 2**31
"""Number of tokens that no hole reaches."""


async def planned(
    program: Program,
    inputs: Mapping[str, Any],
    settings: Settings,
    session: Session,
    model: str | Model | None = None,
) -> Plan:
    """The plan of a run. Asks a server for its capabilities if that costs nothing.

    Raises InputError for a wrong option, and ModelError as `probe` does.
    """
    foreseen = Foreseen(program, inputs)
    header: dict[str, Any] = {"decoder": program.decoder}
    unknown = []
    for option in program.options:
        try:
            header[option.name] = foreseen.value(option.value)
        except NotForeseen:
            if option.name not in settings.given:
                unknown.append(option.name)
    settings = settings.over(checked(header, {option.name: option.span for option in program.options}))
    if model is None and program.model is not None:
        try:
            model = foreseen.value(program.model.value)
        except NotForeseen:
            raise InputError(
                "The model is computed at run time, so this query cannot be planned.",
                span=program.model.span,
                hint="name one: model=",
            ) from None
    found = session.model(model)
    can = await session.capabilities(found, settings) if isinstance(found, Completer) else None
    is_met = can is not None or not isinstance(found, Completer)
    server = can if is_met else Capabilities(continues_turns=False, probe_costs=True)
    problems: list[str] = []
    if server is None and not isinstance(found, Completer) and chat_of(found.tokenizer) is None:
        tags = (op for op in program.ops if isinstance(op, Turn))
        problems += [f"{_place(tag.span)}: this model has no turns" for tag in tags]
    limit = inf if "max_tokens" in unknown else settings.limit
    planner = _Planner(program, inputs, foreseen, server, limit, problems, tells=settings.tells)
    # beams have one branch more, which takes the best token each time (S24)
    branches = inf if "n" in unknown else float(settings.results + settings.has_beams)
    return Plan(
        model=found.name,
        decoder=settings.decoder_name,
        max_tokens=_whole(planner.limit),
        holes=tuple(planner.holes(isolated=settings.is_isolated, speculates=settings.speculate)),
        loops=tuple(planner.endless),
        spending=planner.spending(branches) if is_met else planner.spending(branches).with_probe(),
        budget=settings.budget,
        missing=tuple(wanted.name for wanted in program.inputs if wanted.name not in inputs),
        unknown=tuple(unknown),
        problems=tuple(problems),
        is_met=is_met,
        on_server=server is not None,
    )


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop: the ops from `head` to `last`, which jumps back."""

    head: int
    last: int
    passes: float

    def holds(self, at: int) -> bool:
        return self.head <= at <= self.last


@dataclass(frozen=True, slots=True)
class _Asked:
    """Bounds of one filling of a hole: its requests, the tokens of each answer, and those of the value in the
    prompt."""

    requests: float
    answer: float
    value: float


class _Planner:
    """Plans the holes of a program in their order. `server` is None for a model in this process."""

    def __init__(
        self,
        program: Program,
        inputs: Mapping[str, Any],
        foreseen: Foreseen,
        server: Capabilities | None,
        limit: float,
        problems: list[str],
        *,
        tells: bool,
    ) -> None:
        self.limit = limit
        self._tells = tells
        self._sentence_bytes: dict[int, float] = {}
        """Maximum tokens of the sentences that list allowed answers, by hole."""
        self._problems = problems
        self._ops = program.ops
        self._foreseen = foreseen
        self._server = server
        self._queries = {name for name, value in inputs.items() if isinstance(value, frame.Callable)}
        self._has_queries = bool(program.queries)
        self._engine = text_engine(by_server=server is not None)
        self._pushing = PushDown(self._engine, server or Capabilities(""))
        lasts = {op.target: at for at, op in enumerate(self._ops) if isinstance(op, Jump) and op.target <= at}
        self._loops = [_Loop(head, last, self._passes(head)) for head, last in sorted(lasts.items())]
        self._terms = {at: self._condition(op) for at, op in enumerate(self._ops) if isinstance(op, Hole)}
        self._asked: dict[int, _Asked] = {}

    @property
    def endless(self) -> Iterator[Span]:
        """Places of unbounded loops with holes."""
        for loop in self._loops:
            if loop.passes == inf and any(loop.holds(at) for at in self._terms):
                yield self._ops[loop.head].span

    def holes(self, *, isolated: bool, speculates: bool) -> Iterator[PlannedHole]:
        numbers, number, left = count(1), 0, 0
        segment: Way = "masks"
        for at, (term, later) in self._terms.items():
            op = self._ops[at]
            assert isinstance(op, Hole)
            if not op.continues_segment:
                number, left = next(numbers), 0
            begins = left == 0 or isolated
            if left == 0:
                segment, left = self._way(op, at, isolated=isolated, speculates=speculates)
            left -= 1
            way = "stops" if isolated and segment == "freely" and self._pushing.stops(op, term) else segment
            most = self._most_tokens(op, term)
            self._asked[at] = self._requests(op, term, way, most, begins=begins)
            clauses = [part.span.source for part in (*_conditions(op), *_unread(op))]
            yield PlannedHole(
                name=op.name,
                span=op.span,
                conditions=tuple(dict.fromkeys(clauses)),
                judged=tuple(predicate.span.source for predicate in op.predicates),
                later=later,
                ends=tuple(_ends(op, term, later)),
                most_tokens=_whole(most),
                times=_whole(self._times(at)),
                segment=number,
                way=way,
            )

    def spending(self, branches: float) -> Spending:
        """Sum of the bounds of all holes."""
        if self._server is None:
            texts = sum(_times(self._text(at), self._times(at)) for at in range(len(self._ops)))
            tokens = sum(_times(asked.answer, self._times(at)) for at, asked in self._asked.items())
            return Spending(0, _whole(_times(texts, branches)), _whole(_times(tokens, branches)))
        requests = prompts = answers = 0.0
        for at, asked in self._asked.items():
            many = _times(_times(asked.requests, self._times(at)), branches)
            requests += many
            prompts += _times(many, self._prompt(at))
            answers += _times(many, asked.answer)
        return Spending(_whole(requests), _whole(prompts), _whole(answers))

    def _prompt(self, at: int) -> float:
        """Tokens of the prompt of a hole, in the last pass of its loops."""
        assert self._server is not None, "only servers get prompts"
        end = max([at, *(loop.last for loop in self._loops if loop.holds(at))])
        size = 1.0
        for place in range(end + 1):
            value = self._asked[place].value if place in self._asked else self._text(place)
            size += _times(value, self._times(place))
        size += 4 * TURN_TOKENS + self._sentence_bytes.get(at, 0) if self._server.chat_only else 0
        return min(size, inf if self._server.context_length is None else self._server.context_length)

    def _condition(self, op: Hole) -> tuple[Term, tuple[str, ...]]:
        """The known part of a hole's condition, and the clauses that depend on the run."""
        terms: list[Term] = []
        later = []
        for part in _conditions(op):
            try:
                terms.append(part.bind(self._foreseen.value))
            except (NotForeseen, re.error, TypeError, ValueError):
                later.append(part.span.source)
            except ConstraintError as error:
                self._problems.append(str(error))
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
            self._problems.append(str(error))
        return term, tuple(later)

    def _way(self, op: Hole, at: int, *, isolated: bool, speculates: bool) -> tuple[Way, int]:
        """Means for the segment that begins here, and the number of its holes in one request."""
        if self._server is None:
            return "masks", 1
        if op.distribution is not None:
            if not self._server.scores:
                place = _place(op.span)
                self._problems.append(f"{place}: [{op.name}] has a distribution, but the server cannot score texts")
            return "scores", 1
        lookahead = lookahead_at(self._ops, at, lambda place: self._terms[place][0], "{}" if _is_json(op) else None)
        lookahead = requested(lookahead, speculates=speculates)
        many = lookahead.holes
        unknown = [later for place, (_, later) in self._terms.items() if place >= at][:many]
        if any(unknown) and lookahead.schema is None:
            stops = self._server.stops and not op.may_reject and (isolated or not lookahead.goes_on)
            return ("later" if self._server.takes_languages or stops else "freely"), many
        asked = self._pushing.question(op, lookahead, tells=self._tells)
        if isinstance(asked.pushed, AnswerForm):
            self._sentence_bytes[at] = len(asked.pushed.sentence.encode())
        return asked.way, asked.lookahead.holes

    def _requests(self, op: Hole, term: Term, way: Way, most: float, *, begins: bool) -> _Asked:
        if self._is_open(op):
            return _Asked(inf, inf, inf)
        if self._server is None:
            return _Asked(0, most, most)
        longest = most if op.distribution or _is_json(op) else self._longest(term)
        value = self.limit if longest == inf else longest
        if way == "scores":
            many = 1.0 + (len(self._options(op)) or inf)
            return _Asked(many, many, value)
        room = ROOM if way in ("told", "schema") else 0
        answer = room + _asked_for({"stops": most}.get(way, self.limit))
        if way == "grammar" and begins and longest < inf:
            answer = min(answer, longest)
        return _Asked(float(begins), answer + 1, value)  # one token more for the healed end of the prompt (S10)

    def _is_open(self, op: Hole) -> bool:
        """True if there is no bound: another query may fill the hole, or the model may call tools."""
        if op.decoder is not None and any(option.name == "tools" for option in op.decoder.options):
            return True
        return any(
            callee.form == "hole" or self._has_queries or self._queries.intersection(callee.function.co_names)
            for callee in op.callees
        )

    def _most_tokens(self, op: Hole, term: Term) -> float:
        """Maximum tokens of the value; a token has at least one byte."""
        if self._is_open(op):
            return inf
        if op.distribution is not None:
            return max((float(len(text.encode())) for text in self._options(op)), default=inf)
        if _is_json(op):
            return self.limit
        counted = [part.at_most for part in _parts(term) if isinstance(part, Length) and part.unit == "tokens"]
        return min([self.limit, self._longest(term), *(float(most) for most in counted if most is not None)])

    def _options(self, op: Hole) -> tuple[str, ...]:
        assert op.distribution is not None
        try:
            return texts_of(self._foreseen.value(op.distribution.options))
        except Exception:  # not known yet, or an error that the run will report
            return ()

    def _longest(self, term: Term) -> float:
        """Maximum bytes of a value; inf if there is no limit, or the search takes too long."""
        try:
            found = pushed([self._engine.automaton(term)])
        except ConstraintError:
            return inf
        longest = found.language.longest() if found and found.exact else None
        return inf if longest is None else longest

    def _text(self, at: int) -> float:
        """Maximum tokens of the program's own text at an op."""
        op = self._ops[at]
        if isinstance(op, Turn):
            return TURN_TOKENS
        size = 0.0
        for part in op.parts if isinstance(op, PromptText) else ():
            if isinstance(part, str):
                size += len(part.encode())
                continue
            try:
                value = self._foreseen.value(part.code)
                converted = {"s": str(value), "r": repr(value), "a": ascii(value)}.get(part.conversion, value)
                size += len(format(converted, part.format).encode())
            except (NotForeseen, ValueError, TypeError):
                return inf
        return size

    def _times(self, at: int) -> float:
        """Maximum number of times that an op runs."""
        times = 1.0
        for loop in self._loops:
            times = _times(times, loop.passes) if loop.holds(at) else times
        return times

    def _passes(self, head: int) -> float:
        """Maximum passes of a loop; inf if they are not known."""
        op, before = self._ops[head], self._ops[head - 1]
        try:
            if isinstance(op, JumpIf):
                return inf if self._foreseen.value(op.test) else 0.0
            if isinstance(op, Next) and isinstance(before, Enter):
                return float(len(self._foreseen.value(before.iterable)))
        except (NotForeseen, TypeError):
            pass
        return inf


def _ends(op: Hole, term: Term, later: tuple[str, ...]) -> Iterator[str]:
    """Descriptions of the places where a value ends. End-of-text and `max_tokens` may end any value."""
    if op.distribution is not None:
        yield "after one of its options"
        return
    if _is_json(op):
        yield "where its JSON is complete"
        return
    for part in dict.fromkeys(_parts(term)):
        match part:
            case Stop(phrase, inclusive):
                yield f"{'after' if inclusive else 'before'} {phrase.decode()!r}"
            case StopPattern(pattern, _, inclusive):
                yield f"{'after' if inclusive else 'before'} what {pattern!r} matches"
            case Choice(options):
                yield f"where one of {len(options):,} texts is complete"
            case Matches(delimits=True):
                yield "where its pattern cannot go on"
            case Length(_, at_most, unit) if at_most is not None:
                yield f"at {at_most:,} {unit}"
    if later:
        yield "as its conditions say, once their values are known"
    yield "where the model ends the text, if its conditions hold"


def _parts(term: Term) -> Iterator[Term]:
    """The parts of a term that may end a hole."""
    if isinstance(term, And | Or):
        for part in term.terms:
            yield from _parts(part)
    else:
        yield term


def _conditions(op: Hole) -> tuple[Condition, ...]:
    return op.condition.conditions if isinstance(op.condition, All) else (op.condition,)


def _unread(op: Hole) -> tuple[Expression, ...]:
    """Clauses that need the type of the hole."""
    clauses = op.type.clauses if op.type is not None and op.type.spec is None else ()
    return tuple(clause.expression for clause in clauses)


def _is_json(op: Hole) -> bool:
    return op.type is not None and isinstance(op.type.spec, JsonType)


def _place(span: Span) -> str:
    return f"{span.name}:{span.line}:{span.column}"


def _times(many: float, each: float) -> float:
    """The product, with 0 times inf being 0."""
    return many * each if many and each else 0.0


def _asked_for(tokens: float) -> float:
    """Tokens of a request for a value of at most `tokens` tokens."""
    return tokens if tokens == inf else tokens_for(int(tokens) * TOKEN_BYTES)


def _whole(number: float) -> int | None:
    """The number as an int; None for inf."""
    return None if number == inf else ceil(number)
