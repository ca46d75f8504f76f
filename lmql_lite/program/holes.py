"""From holes of prompt strings to ops: type, decoder, decorators, callees, and the placement of clauses.

A clause belongs to the holes that it names; one that names no hole of its string, or of the query, belongs to all of
them. A clause that names several is enforced at the last of them (S20). If the run decides which one is last, it is
enforced at each that may be, once the others have values.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from lmql_lite.constraints.simplify import conflict, simplify
from lmql_lite.constraints.terms import And, Choice, Constant, conjunction
from lmql_lite.errors import ConstraintError, QueryError, Span
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import CONSTRAINTS, STOPS
from lmql_lite.lang.names import every_node, is_named, reads
from lmql_lite.lang.source import span_of
from lmql_lite.options import Problem, decoder_named, decoder_problem, hole_clash, option_problem, value_problem
from lmql_lite.program.bytecode import NotWritten, code_of, code_of_call, compiled, constant
from lmql_lite.program.flow import Point
from lmql_lite.program.json_types import JsonType
from lmql_lite.program.ops import (
    CALL,
    Callee,
    Distribution,
    Hole,
    HoleDecoder,
    HoleDecorator,
    HoleType,
    OptionCode,
)
from lmql_lite.program.symbols import SHAPE, WAYS, Kind, PlaceSymbol, TextSymbol
from lmql_lite.program.types import NAMES, typed, written_type
from lmql_lite.program.where import Clause, Condition, conjuncts, mentioned, read

OF_TOOLS = ("tools", "max_calls")
"""Options of a hole about the functions that the model may call."""


@dataclass(frozen=True, slots=True)
class Holes:
    """The holes of one query."""

    bound: frozenset[str]
    """Names that the query binds."""
    own: frozenset[str]
    """Those, and its inputs."""

    def hole(self, hole: nodes.HoleNode, clauses: Sequence[Clause], distribution: Distribution | None) -> Hole:
        """Op of a hole. Raises QueryError for a type, a decoder or a clause that it cannot have."""
        call = hole.call
        op = Hole(
            hole.span,
            hole.name,
            distribution=distribution,
            decoder=self._decoder(hole.name, call) if call and not _is_action(hole, call) else None,
            decorators=tuple(
                HoleDecorator(each.span, code_of(each), code_of_call(CALL, each)) for each in hole.decorators
            ),
            callees=tuple(self._callees(hole, clauses)),
        )
        if hole.annotation is None:
            return asked(op, clauses)
        op = replace(op, type=self._type(hole.name, hole.annotation, tuple(clauses)))
        if op.type and op.type.spec:
            return asked(op, clauses)
        called = _callee("type", hole.annotation.tree.body, hole.annotation.span)
        return replace(op, callees=(called, *op.callees)) if called else op

    def _type(self, name: str, annotation: nodes.Expression, clauses: tuple[Clause, ...]) -> HoleType:
        """Type of the hole, if it is written out; otherwise the run computes it, and reads the clauses then."""
        try:
            spec = typed(written_type(annotation.tree.body, self.own), name, annotation.span)
        except NotWritten:
            spec = None
        except ConstraintError as error:
            raise QueryError(error.message, span=error.span, hint=error.hint) from None
        offered = tuple(each for each in mentioned(annotation, NAMES) if each not in self.bound)
        return HoleType(annotation.span, code_of(annotation), offered, clauses, spec)

    # Decoders ----------------------------------------------------------------------------------------------------

    def _decoder(self, hole: str, call: nodes.Expression) -> HoleDecoder:
        node = call.tree.body
        function = node.func if isinstance(node, ast.Call) else node
        name = ast.unparse(function)
        if problem := decoder_problem(name):
            hint = f"a query that fills the hole follows its name: [{hole}: {ast.unparse(node)}]"
            hint = hint if problem.hint is None or problem.hint.startswith("there are") else problem.hint
            raise QueryError(problem.sentence, span=span_of(function, call.span), hint=hint)
        name, given = decoder_named(name), node.keywords if isinstance(node, ast.Call) else []
        unnamed = [each.value for each in given if each.arg is None]
        for argument in (*(node.args if isinstance(node, ast.Call) else ()), *unnamed):
            hint = "write name=value, for example temperature=0.8"
            raise QueryError("a decoder takes named arguments only", span=span_of(argument, call.span), hint=hint)
        options = tuple(self._option(name, str(each.arg), each.value, call.span) for each in given)
        _refuse(hole_clash(hole, name, {str(each.arg): constant(each.value) for each in given}), call.span)
        return HoleDecoder(call.span, name, options)

    def _option(self, decoder: str, name: str, value: ast.expr, around: Span) -> OptionCode:
        span = span_of(value, around)
        if name not in OF_TOOLS:
            _refuse(option_problem(name, decoder, at_hole=True), span)
            if (known := constant(value)) is not None:
                _refuse(value_problem(name, known), span)
        return OptionCode(span, name, compiled(value, span))

    # Queries in a hole -------------------------------------------------------------------------------------------

    def _callees(self, hole: nodes.HoleNode, clauses: Sequence[Clause]) -> list[Callee]:
        """Functions, possibly queries, that its call form and its clauses call with the hole as first argument."""
        found = []
        if hole.call and _is_action(hole, hole.call):
            found.append(_callee("hole", hole.call.tree.body, hole.call.span, hole.name))
        for clause in (clause.expression for clause in clauses):
            match clause.tree.body:
                case ast.Call(function, [ast.Name(hole.name), *others], named) if self._may_be_query(function):
                    if not any(reads(each, hole.name) for each in (*others, *(each.value for each in named))):
                        found.append(_callee("where", clause.tree.body, clause.span, hole.name))
        return [each for each in found if each]

    def _may_be_query(self, function: ast.expr) -> bool:
        """True if the function is known only at run time."""
        first = ast.unparse(function).partition(".")[0]
        is_python = first in CONSTRAINTS or (first not in self.own and hasattr(builtins, first))
        return not is_python and not (isinstance(function, ast.Attribute) and function.attr in WAYS)


def _callee(
    form: Literal["type", "where", "hole"], node: ast.expr, span: Span, first: str | None = None
) -> Callee | None:
    """Callee of a name, or of a call of one; None for all else. `first` is the hole that is its first argument."""
    if not isinstance(node, ast.Call):
        return Callee(span, form, compiled(node, span), None) if is_named(node) else None
    if not is_named(node.func):
        return None
    everything = ast.arguments([], [], ast.arg("by_place"), [], [], ast.arg("by_name"), [])
    pair = ast.Tuple([ast.Name("by_place", ast.Load()), ast.Name("by_name", ast.Load())], ast.Load())
    given = ast.Call(ast.Lambda(everything, pair), node.args[1:] if first else node.args, node.keywords)
    arguments = compiled(ast.fix_missing_locations(ast.copy_location(given, node)), span)
    return Callee(span, form, compiled(node.func, span), arguments)


def _is_action(hole: nodes.HoleNode, call: nodes.Expression) -> bool:
    """True if this is `[f(X)]`, not `[f() X]`."""
    behind = hole.span.text[call.span.end : hole.span.end].lstrip()
    return behind[:1] in ("]", ":")


def _refuse(problem: Problem | None, span: Span) -> None:
    if problem is not None:
        raise QueryError(problem.sentence, span=span, hint=problem.hint)


# Conditions ---------------------------------------------------------------------------------------------------------


def asked(hole: Hole, clauses: Sequence[Clause]) -> Hole:
    """The hole with its clauses, read according to its type. Raises QueryError for a clause that cannot be honoured,
    and ConstraintError for clauses that contradict each other."""
    spec = hole.type.spec if hole.type else None
    if isinstance(spec, JsonType):
        for clause in clauses:
            _refuse_json(clause.expression, hole.name, spec)
        conditions = tuple([read(clause, hole.name, PlaceSymbol()) for clause in clauses])
        spec.bounded(
            conjunction(tuple(each.term for each in conditions if not each.clause.others)), hole.name, hole.span
        )
        return replace(hole, conditions=conditions)
    number = None if spec else _number(hole.name, clauses)
    root = replace(spec.bare if spec else TextSymbol(kind=number), is_made=bool(hole.callees or hole.decorators))
    conditions = tuple([read(clause, hole.name, root) for clause in clauses])
    _refuse_contradiction(hole.name, [each for each in conditions if not each.clause.others])
    return replace(hole, conditions=conditions, number=number)


def settled(hole: Hole, annotation: Any) -> Hole:
    """A hole whose type was computed at run time; `annotation` is the value of its annotation."""
    assert hole.type is not None, "only the type of a typed hole is found out"
    spec = typed(annotation, hole.name, hole.type.span)
    return asked(replace(hole, type=replace(hole.type, spec=spec)), hole.type.clauses)


def _number(hole: str, clauses: Sequence[Clause]) -> Kind | None:
    """Kind of number that the hole becomes by `INT(X)` or `FLOAT(X)`, if that is a clause of its own."""
    for kind, name in SHAPE.items():
        for clause in clauses:
            match clause.expression.tree.body:
                case ast.Call(ast.Name(function), [ast.Name(first)], []) if (function, first) == (name, hole):
                    return kind
    return None


def _refuse_json(clause: nodes.Expression, hole: str, spec: JsonType) -> None:
    """Raises QueryError for a condition on text: no automaton follows the text of JSON and its grammar at once."""
    for node in every_node(clause.tree):
        match node:
            case ast.Call(ast.Name(name)) if name in CONSTRAINTS:
                raise QueryError(
                    f"{name} cannot be honoured: it guides text, and [{hole}] is JSON, guided by its type",
                    span=clause.span,
                    hint="bound its tokens by max_tokens, and its parts by the type (max_length)"
                    if name == "TOKENS"
                    else f'ask in Python, as in {hole}.age > 17 or re.fullmatch(r"[a-z]+", {hole}.name)',
                )
            case ast.Call(ast.Name("len"), [ast.Name(name)]) if name == hole and not spec.has_length:
                raise QueryError(
                    f"a length of [{hole}] cannot be honoured: values of its type have none, and JSON cannot be cut",
                    span=span_of(node, clause.span),
                    hint=f"bound a part of it, such as len({hole}.name), or the type (max_length)",
                )


def _refuse_contradiction(hole: str, conditions: Sequence[Condition]) -> None:
    """Raises ConstraintError with a minimal set of clauses that contradict each other, where that is visible without
    an automaton. Other contradictions are found when the hole opens."""
    if not _are_impossible(conditions):
        return
    guilty = conflict(conditions, _are_impossible)
    *others, last = (f"`{each.span.source}`" for each in guilty)
    reason = f"{', '.join(others)} and {last} cannot hold together" if others else f"no text satisfies {last}"
    hint = "remove one of them, or combine them with `or`" if others else "look at its bounds, its spaces and its case"
    if not others and not mentioned(guilty[-1].clause.expression, [hole]):
        reason, hint = f"{last} is false", f"write a condition on {hole}"
    if guilty[-1].term == Choice(()):
        hint = "the list of options is empty"
    raise ConstraintError(f"nothing can fill [{hole}]: {reason}", span=guilty[-1].span, hint=hint)


def _are_impossible(conditions: Iterable[Condition]) -> bool:
    return simplify(And(tuple(each.term for each in conditions))) == Constant(False)


# Placement of clauses -----------------------------------------------------------------------------------------------


def clauses_of_string(
    where: nodes.Expression | None, in_string: Sequence[str], in_query: Iterable[str]
) -> list[list[Clause]]:
    """Clauses of each hole of one prompt string, in order. Holes of earlier strings have values by then."""
    found: list[list[Clause]] = [[] for _ in in_string]
    for each in _read(where, in_query) if where else ():
        own = each.holes.intersection(in_string)
        for place, name in enumerate(in_string):
            to_come = set(in_string[place + 1 :]) - {name}
            if not own or (name in own and own.isdisjoint(to_come)):
                found[place].append(each.clause(each.reads - {name}, waits=False))
    return found


def clauses_of_query(
    where: nodes.Expression, in_query: Iterable[str], holes: Mapping[int, str], points: Mapping[int, Point]
) -> Mapping[int, Sequence[Clause]]:
    """Clauses of the `where` at the end of a query, by the number of their hole. `holes` are the names of all holes."""
    found: dict[int, list[Clause]] = defaultdict(list)
    for each in _read(where, in_query):
        for number, name in holes.items():
            others = each.holes - {name}
            if each.holes and name not in each.holes:
                continue
            if not others or _may_be_last(points[number], holes, others):
                found[number].append(each.clause(each.reads - {name}, waits=bool(others)))
    return found


def _may_be_last(point: Point, holes: Mapping[int, str], others: frozenset[str]) -> bool:
    """True if a run may end after this point without filling any of the others."""

    def passes(reached: Point) -> bool:  # it is filled there, unless it fails inside a `try`
        return reached.part is None or holes.get(reached.part) not in others

    return any(not reached.onward for reached in point.reached(passes))


class _Read(NamedTuple):
    """One clause, the holes at which it is enforced, and all holes that it reads."""

    expression: nodes.Expression
    holes: frozenset[str]
    reads: frozenset[str]

    def clause(self, others: frozenset[str], *, waits: bool) -> Clause:
        span = self.expression.span
        codes = tuple(
            (name, compiled(ast.fix_missing_locations(ast.Name(name, ast.Load())), span)) for name in sorted(others)
        )
        return Clause(self.expression, codes, waits)


def _read(where: nodes.Expression, in_query: Iterable[str]) -> list[_Read]:
    found = []
    for clause in conjuncts(where):
        holes = reads = frozenset(mentioned(clause, in_query))
        match clause.tree.body:
            case ast.Call(ast.Name(function), [ast.Name(name), *_]) if function in STOPS:
                holes &= {name}  # a stop ends this hole only
        found.append(_Read(clause, holes, reads))
    return found
