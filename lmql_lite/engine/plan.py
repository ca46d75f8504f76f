"""Plan of a run, made before anything is spent, as plain values for people and scripts.

It asks no model, and runs no Python of the query but expressions of literals, given inputs and builtins without side
effects.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import CO_COROUTINE
from itertools import count
from types import CodeType
from typing import Any

from lmql_lite.constraints.terms import Constant, Term, conjunction
from lmql_lite.engine.budget import Budget
from lmql_lite.engine.environment import value_of
from lmql_lite.engine.forms import Forms, Way, requested, text_engine
from lmql_lite.engine.segment import lookahead_at
from lmql_lite.engine.session import Session
from lmql_lite.engine.settings import Settings, checked
from lmql_lite.errors import ConstraintError, InputError, Span
from lmql_lite.lang.nodes import Expression
from lmql_lite.models.base import Capabilities, Completer, Model
from lmql_lite.models.chat import chat_of
from lmql_lite.program.bytecode import names_of
from lmql_lite.program.json_types import JsonType
from lmql_lite.program.ops import Hole, Program, Turn
from lmql_lite.program.types import TextType
from lmql_lite.program.where import Condition


@dataclass(frozen=True, slots=True)
class PlannedHole:
    """A hole in a plan. `conditions` guide the model; `judged` are checked by Python on the complete value. Both are
    source text.

    `later` are conditions, types or options that depend on the run. Holes with equal `segment` numbers are matched as
    one (S16); `way` is the means by which the model meets the conditions.
    """

    name: str
    span: Span
    conditions: tuple[str, ...]
    judged: tuple[str, ...]
    later: tuple[str, ...]
    segment: int
    way: Way


@dataclass(frozen=True, slots=True)
class Plan:
    """Holes of a run, and the means by which a model meets their conditions.

    `max_tokens` is None if it depends on the run. `missing` are inputs that are not given, `unknown` are options of the
    header that depend on the run. `problems` would end a run. Unless `is_met`, a probe of the server would cost money.
    The run then probes first, and the plan assumes a server with few features.
    """

    model: str
    decoder: str
    max_tokens: int | None
    holes: tuple[PlannedHole, ...]
    budget: Budget = Budget()  # noqa: RUF009  a frozen value
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    is_met: bool = True

    def __repr__(self) -> str:
        holes = ", ".join(hole.name for hole in self.holes)
        return f"Plan({self.model!r}, {self.decoder}, holes=[{holes}])"


ENDLESS = 2**31
"""Number of tokens that no hole reaches."""


HARMLESS = {
    function.__name__: function
    for function in (abs, bool, chr, float, int, len, list, max, min, range, set, sorted, str, tuple)
}
"""Builtins without side effects that call no code of the query."""
DATA = (str, int, float, bool, type(None), range, tuple, list, set, frozenset, dict)


class NotConstant(Exception):
    """The value depends on the run."""


class _Constants:
    """Values of expressions of literals, builtins and inputs that are the same in every run. An input is, unless the
    query binds its name or its statements mention it."""

    def __init__(self, program: Program, inputs: Mapping[str, Any]) -> None:
        pieces = (*program.prologue, *program.python)
        touched = program.bound.union(*(names_of(piece.code) for piece in pieces if isinstance(piece.tree, ast.Module)))
        given = {name: value for name, value in inputs.items() if type(value) in DATA and name not in touched}
        self._known = {"__builtins__": {}, **HARMLESS, **given}
        self._names = (HARMLESS.keys() | given.keys()) - touched

    def value(self, code: CodeType) -> Any:
        """The value of an expression. Raises NotConstant if it depends on the run, or cannot be evaluated."""
        if code.co_flags & CO_COROUTINE or not names_of(code) <= self._names:
            raise NotConstant
        try:
            return value_of(code, self._known)
        except Exception:
            raise NotConstant from None


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
    constants = _Constants(program, inputs)
    header: dict[str, Any] = {"decoder": program.decoder}
    unknown = []
    for option in program.options:
        try:
            header[option.name] = constants.value(option.value)
        except NotConstant:
            if option.name not in settings.given:
                unknown.append(option.name)
    settings = settings.over(checked(header, {option.name: option.span for option in program.options}))
    if model is None and program.model is not None:
        try:
            model = constants.value(program.model.value)
        except NotConstant:
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
        tags = (part for part in program.parts if isinstance(part, Turn))
        problems += [f"{_place(tag.span)}: this model has no turns" for tag in tags]
    holes = _Holes(program, constants, server, problems, tells=settings.tells)
    return Plan(
        model=found.name,
        decoder=settings.decoder_name,
        max_tokens=None if "max_tokens" in unknown else settings.limit,
        holes=tuple(holes.planned(isolated=settings.is_isolated, speculates=settings.speculate)),
        budget=settings.budget,
        missing=tuple(wanted.name for wanted in program.inputs if wanted.name not in inputs),
        unknown=tuple(unknown),
        problems=tuple(problems),
        is_met=is_met,
    )


class _Holes:
    """The holes of a program in their order. `server` is None for a model in this process."""

    def __init__(
        self,
        program: Program,
        constants: _Constants,
        server: Capabilities | None,
        problems: list[str],
        *,
        tells: bool,
    ) -> None:
        self._tells = tells
        self._problems = problems
        self._program = program
        self._constants = constants
        self._server = server
        self._engine = text_engine(by_server=server is not None)
        self._forms = Forms(self._engine, server or Capabilities(""))
        self._terms = {at: self._condition(op) for at, op in enumerate(program.parts) if isinstance(op, Hole)}

    def planned(self, *, isolated: bool, speculates: bool) -> Iterator[PlannedHole]:
        numbers, number, left = count(1), 0, 0
        segment: Way = "masks"
        for at, (term, later) in self._terms.items():
            op = self._program.parts[at]
            assert isinstance(op, Hole)
            if not op.continues_segment:
                number, left = next(numbers), 0
            if left == 0:
                segment, left = self._way(op, at, isolated=isolated, speculates=speculates)
            left -= 1
            clauses = [
                each.source for each in (*(part.span for part in _guiding(op)), *(part.span for part in _unread(op)))
            ]
            yield PlannedHole(
                name=op.name,
                span=op.span,
                conditions=tuple(dict.fromkeys(clauses)),
                judged=tuple(condition.span.source for condition in op.judges),
                later=later,
                segment=number,
                way="stops" if isolated and segment == "freely" and self._forms.stops(op, term) else segment,
            )

    def _condition(self, op: Hole) -> tuple[Term, tuple[str, ...]]:
        """The known part of a hole's condition, and the clauses that depend on the run."""
        terms: list[Term] = []
        later = []
        for part in _guiding(op):
            try:
                terms.append(part.bind(self._constants.value))
            except (NotConstant, re.error, TypeError, ValueError):
                later.append(part.span.source)
            except ConstraintError as error:
                self._problems.append(str(error))
        if op.type is not None and op.type.spec is None:
            later += [op.type.span.source, *(clause.span.source for clause in _unread(op))]
        elif op.type is not None and isinstance(op.type.spec, TextType):
            terms.insert(0, op.type.spec.term)
        if op.distribution is not None:
            try:
                self._constants.value(op.distribution.options)
            except NotConstant:
                later.append(op.distribution.span.source)
        term = conjunction(tuple(terms))
        try:
            if op.type is not None and isinstance(op.type.spec, JsonType):
                op.type.spec.bounded(term, op.name, op.span)
            else:
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
        lookahead = lookahead_at(self._program, at, lambda place: self._terms[place][0], "{}" if _is_json(op) else None)
        lookahead = requested(lookahead, speculates=speculates)
        many = lookahead.holes
        unknown = [later for place, (_, later) in self._terms.items() if place >= at][:many]
        if any(unknown) and lookahead.schema is None:
            stops = self._server.stops and not op.may_reject and (isolated or not lookahead.goes_on)
            return ("later" if self._server.takes_languages or stops else "freely"), many
        asked = self._forms.form(op, lookahead, tells=self._tells)
        return asked.way, asked.lookahead.holes


def _guiding(op: Hole) -> tuple[Condition, ...]:
    """The conditions that guide, in part or altogether."""
    return tuple(each for each in op.conditions if not (each.is_known and each.term == Constant(True)))


def _unread(op: Hole) -> tuple[Expression, ...]:
    """Clauses that need the type of the hole."""
    clauses = op.type.clauses if op.type is not None and op.type.spec is None else ()
    return tuple(clause.expression for clause in clauses)


def _is_json(op: Hole) -> bool:
    return op.type is not None and isinstance(op.type.spec, JsonType)


def _place(span: Span) -> str:
    return f"{span.name}:{span.line}:{span.column}"
