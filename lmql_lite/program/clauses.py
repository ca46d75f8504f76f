"""Clauses of a hole whose type is known: each guides the model, or judges the value.

In a mixed clause, an automaton can follow only some parts: these parts guide, and Python judges the whole (S21).
Clauses that no text can meet are refused, where that is visible without an automaton.
"""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any as Anything
from typing import NamedTuple

from lmql_lite.constraints.simplify import conflict, simplify
from lmql_lite.constraints.terms import And, Choice, Constant, Term
from lmql_lite.constraints.units import Unit
from lmql_lite.errors import ConstraintError, QueryError, Span
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import CONSTRAINTS, STOPS
from lmql_lite.lang.names import Names, every_node, is_named, reads, values, words
from lmql_lite.program.bytecode import NotWritten, code_of, compiled, span_of
from lmql_lite.program.conditions import All, Any, Atom, Condition, at_compile_time, bounds_length, reach, truth
from lmql_lite.program.json_types import JsonType
from lmql_lite.program.mistakes import refuse_mistakes
from lmql_lite.program.number_terms import SHAPE, Kind, length_fits
from lmql_lite.program.ops import FINAL, GUIDED, TEXT, VALUE, Clause, FinalCall, Hole, Predicate
from lmql_lite.program.places import lowered, remedy
from lmql_lite.program.types import typed
from lmql_lite.program.where import (
    OTHER,
    PLAIN,
    Subject,
    TextLength,
    Unguided,
    WholeText,
    lower,
    mentioned,
    subject,
    tidied_text,
)


def conjuncts(where: nodes.Expression) -> list[nodes.Expression]:
    """The parts of a top-level `and`, each with its own span."""
    body = where.tree.body
    if not (isinstance(body, ast.BoolOp) and isinstance(body.op, ast.And)):
        return [where]
    parts = [nodes.Expression(span_of(value, where.span), ast.Expression(value)) for value in body.values]
    return [inner for part in parts for inner in conjuncts(part)]


def asked(hole: Hole, clauses: Sequence[Clause]) -> Hole:
    """The hole with its clauses, read according to its type. Raises QueryError for a clause that cannot be honoured."""
    spec = hole.type.spec if hole.type else None
    if isinstance(spec, JsonType):
        return _asked_of_json(hole, clauses, spec)
    number = None if spec else _number(hole.name, clauses)
    bare = spec.bare if spec else WholeText(kind=number)
    conditions: list[Condition] = []
    predicates: list[Predicate] = []
    # the value of a query or a decorator need not be text
    is_text = bare == PLAIN and not hole.callees and not hole.decorators
    whole: list[tuple[nodes.Expression, Condition]] = []
    for clause in clauses:
        expression = clause.expression
        try:
            guiding = _lowered(expression, hole.name, bare, is_text=is_text)
        except Unguided:
            guiding, judging = mixed(expression, hole.name, bare)
            predicates.append(replace(judging, others=clause.others))
        else:
            whole += [(expression, guiding)] if guiding else []
        if guiding is not None:
            conditions.append(clause.bearing(guiding))
    if not all(isinstance(condition, Atom) and condition.is_stop for _, condition in whole):
        refuse_contradiction(hole.name, whole)
    condition = All(hole.span, tuple(conditions))
    return replace(hole, condition=condition, predicates=tuple(predicates), number=number)


def _lowered(clause: nodes.Expression, hole: str, bare: Subject, *, is_text: bool) -> Condition | None:
    """Condition of a clause. If the hole `is_text`, a common mistake is reported before the error that follows from it.

    A condition with a known term is a supported form with literals, so it has no mistake.
    """
    try:
        condition = lower(clause, hole, bare)
    except QueryError:
        if is_text:
            refuse_mistakes(clause, hole)
        raise
    if is_text and not (isinstance(condition, Atom) and condition.known is not None):
        refuse_mistakes(clause, hole)
    return condition


def _number(hole: str, clauses: Sequence[Clause]) -> Kind | None:
    """Kind of number that the hole becomes by `INT(X)` or `FLOAT(X)`, if that is a clause of its own."""
    for kind, name in SHAPE.items():
        for clause in clauses:
            match clause.expression.tree.body:
                case ast.Call(ast.Name(function), [ast.Name(first)], []) if (function, first) == (name, hole):
                    return kind
    return None


def settled(hole: Hole, annotation: Anything) -> Hole:
    """A hole whose type was computed at run time; `annotation` is the value of its annotation."""
    assert hole.type is not None, "only the type of a typed hole is found out"
    spec = typed(annotation, hole.name, hole.type.span)
    return asked(replace(hole, type=replace(hole.type, spec=spec)), hole.type.clauses)


def _asked_of_json(hole: Hole, clauses: Sequence[Clause], spec: JsonType) -> Hole:
    """A hole of a JSON type: bounds of a list's length join its schema. Python judges all other conditions, which
    narrow the schema as far as they are about places inside the value."""
    conditions: list[Condition] = []
    predicates: list[Predicate] = []
    for clause in clauses:
        judging = replace(_judged(clause.expression, hole.name, spec), others=clause.others)
        try:
            guiding: Condition | None = lower(clause.expression, hole.name, OTHER)
        except QueryError:  # a mistake for text, but not always for a value
            guiding = None
        is_given = isinstance(guiding, Atom) and guiding.term is truth
        if guiding is not None and (is_given or (spec.is_list and bounds_length(guiding))):
            conditions.append(clause.bearing(guiding))
        else:
            predicates.append(judging)
            narrowing = lowered(clause.expression, hole.name)
            conditions += [clause.bearing(narrowing)] if narrowing else []
    condition = All(hole.span, tuple(conditions))
    spec.refuse_contradiction(_written(conditions), hole.name, hole.span)
    return replace(hole, condition=condition, predicates=tuple(predicates))


def _written(conditions: Iterable[Condition]) -> list[Term]:
    """The terms of the conditions whose values are written out."""
    terms: list[Term] = []
    for condition in conditions:
        with suppress(NotWritten):
            found = condition.bind(at_compile_time)
            terms += found.terms if isinstance(found, And) else (found,)
    return terms


def _judged(clause: nodes.Expression, hole: str, spec: JsonType) -> Predicate:
    """A condition on a JSON value. Python judges it, because no automaton follows its text and its grammar at once."""
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
    return Predicate(clause.span, code_of(clause), remedy=remedy(clause, hole))


# Mixed clauses -----------------------------------------------------------------------------------------------------


def mixed(clause: nodes.Expression, hole: str, bare: Subject) -> tuple[Condition | None, Predicate]:
    """Condition of the parts that an automaton can follow, None if there are none, and the predicate for the whole.

    While the model is guided, a part that only Python can judge counts as true. Raises Unguided if such a part has a
    function of `where`.
    """
    parts = GuidingParts(clause, hole, bare)
    condition, judged = parts.read(clause.tree.body)
    if not isinstance(bare, WholeText) or bare.kind:
        judged = OfValue(copy.deepcopy(judged), hole, bare).tree
    return condition, replace(predicate(judged, clause.span, hole), guided=tuple(parts.guided))


def predicate(node: ast.expr, span: Span, hole: str) -> Predicate:
    """Predicate of any Python. If it is a call, the function may take `final`: True if the text is complete."""
    code = compiled(node, span)
    match node:
        case ast.Call(function, arguments, keywords) if is_named(function) and not reads(function, hole):
            starred = any(isinstance(argument, ast.Starred) for argument in arguments)
            if not starred and all(keyword.arg not in ("final", None) for keyword in keywords):
                final = ast.keyword("final", ast.Name(FINAL, ast.Load()))
                told = ast.copy_location(ast.Call(function, arguments, [*keywords, final]), node)
                call = FinalCall(compiled(told, span), compiled(function, span), len(arguments))
                return Predicate(span, code, call)
    return Predicate(span, code)


LENGTH = "length of the hole"
ARITHMETIC = ("abs", "bool", "divmod", "float", "int", "max", "min", "pow", "range", "round", "sum")
"""Built-in functions that only compute."""
SIMPLE = (
    *(ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.IfExp, ast.Constant, ast.Name, ast.Attribute),
    *(ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Set),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)
"""Syntax nodes of expressions that only compute."""


def negated_parts(node: ast.BoolOp) -> ast.BoolOp:
    """`not` before `and` or `or`, moved inwards: `not (a or b)` is `not a and not b`."""
    parts: list[ast.expr] = [ast.copy_location(ast.UnaryOp(ast.Not(), value), value) for value in node.values]
    return ast.copy_location(ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), parts), node)


class GuidingParts:
    def __init__(self, clause: nodes.Expression, hole: str, bare: Subject) -> None:
        self._clause = clause
        self._hole = hole
        self._bare = bare
        self.guided: list[Condition] = []
        """Parts with functions of `where`, which are not Python: an automaton judges them at the end as well."""

    def read(self, node: ast.expr) -> tuple[Condition | None, ast.expr]:
        """Condition of the parts that guide, and the node for Python to judge, in which their results are looked up."""
        part = nodes.Expression(span_of(node, self._clause.span), ast.Expression(node))
        functions = {word.id for word in words(node)}
        try:
            condition = lower(part, self._hole, self._bare)
        except Unguided:
            match node:
                case ast.UnaryOp(ast.Not(), ast.BoolOp() as inner):
                    return self.read(negated_parts(inner))
            if isinstance(node, ast.BoolOp):
                return self._read_all(part, node, functions)
            if functions:
                raise
            return self._by_length(part, node) or self._by_casefold(part, node), node
        if not functions:
            return condition, node
        if "TOKENS" in functions:
            raise QueryError(
                f"a bound on the tokens of [{self._hole}] cannot be joined by `or` with what only Python can judge",
                span=part.span,
                hint="count its characters or words instead",
            )
        looked_up = ast.Subscript(ast.Name(GUIDED, ast.Load()), ast.Constant(len(self.guided)), ast.Load())
        self.guided.append(condition)
        return condition, ast.copy_location(looked_up, node)

    def _by_length(self, part: nodes.Expression, node: ast.expr) -> Condition | None:
        """Condition of a node that reads only the length of the hole."""
        lengths = Lengths(self._hole, self._bare)
        asked: ast.expr = lengths.visit(copy.deepcopy(node))
        if len(lengths.units) != 1 or lengths.asks_more or any(name.id == self._hole for name in values(asked)):
            return None
        given = ast.arguments([], [ast.arg(LENGTH)], None, [], [], None, [])
        function = ast.copy_location(ast.Lambda(given, asked), node)
        return Atom(part.span, partial(length_fits, lengths.units.pop()), (compiled(function, part.span),))

    def _by_casefold(self, part: nodes.Expression, node: ast.expr) -> Condition | None:
        """Condition by `casefold()` where the lower case of a Greek sigma depends on its neighbours: texts with equal
        lower case have an equal casefold. The reverse does not hold, so its `not` would exclude valid texts."""
        match node:
            case ast.Compare(left, [ast.Eq() | ast.In()], [right]):
                sides = [left, right]
            case ast.Call(ast.Attribute(owner, "startswith" | "endswith"), [_], []):
                sides = [owner]
            case _:
                return None
        made = [side for side in sides if (text := tidied_text(side, self._hole)) and text.case == "lower"]
        if len(made) != 1:
            return None
        folded: ast.expr = Folded().visit(copy.deepcopy(node))
        try:
            return lower(nodes.Expression(part.span, ast.Expression(folded)), self._hole, self._bare)
        except QueryError:
            return None

    def _read_all(
        self, part: nodes.Expression, node: ast.BoolOp, functions: set[str]
    ) -> tuple[Condition | None, ast.expr]:
        read = [self.read(value) for value in node.values]
        judged = ast.copy_location(ast.BoolOp(node.op, [each for _, each in read]), node)
        known = tuple(condition for condition, _ in read if condition is not None)
        if isinstance(node.op, ast.And):
            return (All(part.span, known) if known else None), judged
        if len(known) == len(read):
            return Any(part.span, known), judged
        # one of the other parts may be true of any text; but a stop always stops
        true = Atom(part.span, truth, (compiled(ast.Constant(True), part.span),))
        return (Any(part.span, (*known, true)) if functions.intersection(STOPS) else None), judged


class OfValue(ast.NodeTransformer):
    """Replaces X by the text of a typed hole in `len(X)`, and by the number of `INT(X)` or `FLOAT(X)` in `str(X)`."""

    def __init__(self, tree: ast.expr, hole: str, bare: Subject) -> None:
        self._reads = {id(name) for name in Names().scan([tree]).reads if name.id == hole}
        self._function, self._instead = ("str", VALUE) if isinstance(bare, WholeText) else ("len", TEXT)
        self.tree: ast.expr = self.visit(tree)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(ast.Name(function), [name], []) if function == self._function and id(name) in self._reads:
                instead = ast.copy_location(ast.Name(self._instead, ast.Load()), name)
                return ast.copy_location(ast.Call(node.func, [instead], []), node)
        return self.generic_visit(node)


class Folded(ast.NodeTransformer):
    """Replaces `lower()` by `casefold()`, and the texts by their casefold."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = "casefold" if node.attr == "lower" else node.attr
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        return ast.copy_location(ast.Constant(value.casefold() if isinstance(value, str) else value), node)


class Lengths(ast.NodeTransformer):
    """Replaces the length of the hole by a parameter."""

    def __init__(self, hole: str, bare: Subject) -> None:
        self._hole = hole
        self._bare = bare
        self.units: set[Unit] = set()
        self.asks_more = False
        """True if the condition does more than compute, such as calling a function of the query."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match subject(node, self._hole, self._bare):
            case TextLength(unit):
                self.units.add(unit)
                return ast.copy_location(ast.Name(LENGTH, ast.Load()), node)
        if not (isinstance(node.func, ast.Name) and node.func.id in ARITHMETIC):
            self.asks_more = True
        return self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, SIMPLE):
            self.asks_more = True
        return super().generic_visit(node)


class Known(NamedTuple):
    """A clause that is the same in every run because its values are written out."""

    clause: nodes.Expression
    term: Term
    reach: tuple[float, float]


def refuse_contradiction(hole: str, clauses: Iterable[tuple[nodes.Expression, Condition]]) -> None:
    """Raises ConstraintError with a minimal set of clauses that contradict each other. Contradictions that are not
    visible here are found when the hole opens."""
    guilty = _conflict([known for clause, condition in clauses if (known := _known(clause, condition))])
    if not guilty:
        return
    *others, last = (f"`{each.clause.span.source}`" for each in guilty)
    reason = f"{', '.join(others)} and {last} cannot hold together" if others else f"no text satisfies {last}"
    hint = "remove one of them, or combine them with `or`" if others else "look at its bounds, its spaces and its case"
    if not others and not mentioned(guilty[-1].clause, [hole]):
        reason, hint = f"{last} is false", f"write a condition on {hole}"
    if guilty[-1].term == Choice(()):
        hint = "the list of options is empty"
    raise ConstraintError(f"nothing can fill [{hole}]: {reason}", span=guilty[-1].clause.span, hint=hint)


def _known(clause: nodes.Expression, condition: Condition) -> Known | None:
    try:
        return Known(clause, condition.bind(at_compile_time), reach(condition, at_compile_time))
    except Exception:  # a value is not written out, or is wrong, which is reported elsewhere
        return None


def _conflict(known: list[Known]) -> list[Known]:
    """A minimal set of clauses that cannot hold together; empty if all may hold."""
    lowest, highest = -math.inf, math.inf
    for at, after in enumerate(known):
        lowest, highest = max(lowest, after.reach[0]), min(highest, after.reach[1])
        if lowest > highest:
            return _apart(known[: at + 1])
    return conflict(known, _is_impossible) if _is_impossible(known) else []


def _apart(known: list[Known]) -> list[Known]:
    """The last clause, and the first one whose numbers are all out of its range; only the last if no number meets
    it."""
    after = known[-1]
    before = next(each for each in known if max(each.reach[0], after.reach[0]) > min(each.reach[1], after.reach[1]))
    return [after] if before is after else [before, after]


def _is_impossible(known: Iterable[Known]) -> bool:
    return simplify(And(tuple(each.term for each in known))) == Constant(False)
