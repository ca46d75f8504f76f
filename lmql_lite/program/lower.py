"""`where` expressions to conditions, one per hole. Total: what cannot be enforced is an error (law 3)."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import CodeType

from lmql_lite.constraints.pattern import NO_PATTERN
from lmql_lite.constraints.shapes import METHODS, SHAPES
from lmql_lite.constraints.spellings import EVENLY, Inexact
from lmql_lite.errors import ConstraintError, QueryError, Span
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import STOPS
from lmql_lite.lang.names import values, words
from lmql_lite.program.conditions import All, Any, Condition, negated
from lmql_lite.program.given import Compared, Given
from lmql_lite.program.numbers import LengthIn, LengthIs, NumberIn, NumberIs, Occurs
from lmql_lite.program.patterns import Fits, StopsAt, Way
from lmql_lite.program.python import compile_expression, span_of
from lmql_lite.program.subjects import (
    PLAIN,
    UNITS,
    Count,
    Day,
    Number,
    OneListed,
    Part,
    Size,
    Subject,
    Text,
    subject,
    tidied_text,
)
from lmql_lite.program.texts import Edge, Has, OneOf, PartOf, Shaped
from lmql_lite.program.typed_values import DateIn, DateIs, ListedIn, ListedIs
from lmql_lite.program.values import Comparison
from lmql_lite.program.written import written

FLIPPED: dict[str, Comparison] = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
SYMBOLS: dict[type[ast.cmpop], Comparison] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.GtE: ">=",
    ast.Gt: ">",
}
WORDS = {ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not"}
WAYS: dict[str, Way] = {"fullmatch": "fullmatch", "match": "match", "search": "search"}
EXAMPLES = {
    "STOPS_AT": '(X, "\\n")',
    "STOPS_BEFORE": '(X, "\\n")',
    "STARTS_WITH": '(X, ["a", "b"])',
    "ENDS_WITH": '(X, ["a", "b"])',
    "REGEX": '(X, r"[a-z]+")',
    **dict.fromkeys(SHAPES, "(X)"),
}
"""The functions of a `where` clause, as they are called."""
TAKES = {"REGEX": "a hole and a regular expression", **dict.fromkeys(SHAPES, "a hole")}
SUPPORTED = (
    'len(X) < 80, len(WORDS(X)) < 20, X in [...], X == "..", ".." in X, X.startswith(".."), X.isdigit(), '
    're.search(r"..", X), REGEX(X, r".."), INT(X), DATE(X), int(X) < 120, float(X) < 1.5, STOPS_AT(X, ".."), '
    'STOPS_BEFORE(X, "..") and and/or/not of these'
)


class Unguided(QueryError):
    """A condition that no automaton can say: it cannot guide the model, only judge what it has said (S21)."""


def conjuncts(where: nodes.Expression) -> list[nodes.Expression]:
    """The parts of a top-level `and`, each with its own span."""
    body = where.tree.body
    if not (isinstance(body, ast.BoolOp) and isinstance(body.op, ast.And)):
        return [where]
    return [
        part
        for value in body.values
        for part in conjuncts(nodes.Expression(span_of(value, where.span), ast.Expression(value)))
    ]


def mentioned(expression: nodes.Expression, names: Iterable[str]) -> set[str]:
    """Which of `names` the expression reads."""
    return {name.id for name in values(expression.tree)}.intersection(names)


def lower(clause: nodes.Expression, hole: str, bare: Subject = PLAIN) -> Condition:
    """The condition that one clause puts on one hole; `bare` is what its type lets its name stand for.

    Raises Unguided, with the part that is to blame, where only Python can judge it, and QueryError for mistakes.
    """
    return Lowering(clause.span, hole, bare).condition(clause.tree.body)


class Lowering:
    """One clause. Every other name in it, earlier holes too, is Python and has its value by then (S20)."""

    def __init__(self, span: Span, hole: str, bare: Subject) -> None:
        self._span = span
        self._hole = hole
        self._bare = bare
        self._codes: dict[ast.expr, CodeType] = {}

    def condition(self, node: ast.expr) -> Condition:
        span = span_of(node, self._span)
        if not self._reads_hole(node):
            return Given(span, self._code(node))
        match node:
            case ast.BoolOp(ast.And(), values):
                return All(span, tuple(self.condition(value) for value in values))
            case ast.BoolOp(ast.Or(), values):
                return Any(span, tuple(self.condition(value) for value in values))
            case ast.UnaryOp(ast.Not(), operand):
                self._refuse_stops(operand)
                return replace(negated(self.condition(operand)), span=span)
            case ast.Compare(ast.Call(ast.Name("type"), [text], []), _, [kind]) if self._is_hole(text):
                raise QueryError(
                    "the type of a hole stands at the hole",
                    span=span,
                    hint=f"write [{self._hole}: {ast.unparse(kind)}] in the prompt",
                )
            case ast.Compare(left, operators, comparators):
                sides = [left, *comparators]
                pairs = tuple(
                    self._comparison(node, sides[at], operator, sides[at + 1]) for at, operator in enumerate(operators)
                )
                return pairs[0] if len(pairs) == 1 else All(span, pairs)
            case ast.Call(ast.Name(name), arguments, keywords) if name in EXAMPLES:
                return self._function(span, name, arguments, keywords)
            case ast.Call(ast.Attribute(ast.Name("re"), name), [pattern, text, *_]) if (
                name in WAYS and self._is_hole(text) and not self._reads_hole(pattern)
            ):
                return self._by_re(node, WAYS[name])
            case ast.Call(ast.Attribute(owner, name), arguments, []):
                return self._method(node, owner, name, arguments)
        raise self._unsupported(node)

    def _function(self, span: Span, name: str, arguments: list[ast.expr], keywords: list[ast.keyword]) -> Condition:
        """A function of the `where` clause: its first argument is the hole."""
        match arguments:
            case [first] if self._is_hole(first) and not keywords and name in SHAPES:
                return Shaped(span, name)
            case [first, value] if (
                self._is_hole(first) and not keywords and not self._reads_hole(value) and name not in SHAPES
            ):
                if name in STOPS:
                    return self._with(value, lambda code: StopsAt(span, code, inclusive=name == "STOPS_AT"))
                if name == "REGEX":
                    return self._with(value, lambda code: Fits(span, code))
                return self._with(
                    value, lambda code: Edge(span, code, at_start=name == "STARTS_WITH", tuple_only=False)
                )
        takes = f"{name} takes {TAKES.get(name, 'a hole and a text')}"
        raise QueryError(takes, span=span, hint=name + EXAMPLES[name].replace("X", self._hole))

    def _method(self, node: ast.expr, owner: ast.expr, name: str, arguments: list[ast.expr]) -> Condition:
        """A method of the hole's text, or of a compiled regular expression."""
        span = span_of(node, self._span)
        match arguments:
            case [] if self._is_hole(owner) and name in METHODS:
                return Shaped(span, name)
            case [value] if name in ("startswith", "endswith") and not self._reads_hole(value):
                at_start, tidied = name == "startswith", tidied_text(owner, self._hole)
                if tidied and (tidied.case is None or tidied.case in EVENLY or at_start):
                    return self._with(value, lambda code: Edge(span, code, at_start, tuple_only=True, tidied=tidied))
            case [text] if self._is_hole(text) and name in WAYS and not self._reads_hole(owner):
                return self._with(owner, lambda code: Fits(span, code, WAYS[name]))
        raise self._unsupported(node)

    def _by_re(self, node: ast.Call, way: Way) -> Condition:
        """`re.search(pattern, X, flags)`: with flags it is what `re.compile` makes of the two that is searched for."""
        span = span_of(node, self._span)
        assert isinstance(node.func, ast.Attribute)
        module, (pattern, _, *flags) = node.func.value, node.args
        flags += [keyword.value for keyword in node.keywords if keyword.arg == "flags"]
        if len(flags) > 1 or len(flags) + 2 != len(node.args) + len(node.keywords) or any(map(self._reads_hole, flags)):
            raise self._unsupported(node)
        if flags:
            make = ast.copy_location(ast.Attribute(module, "compile", ast.Load()), module)
            pattern = ast.copy_location(ast.Call(make, [pattern, *flags], []), pattern)
        named = self._code(module)
        return self._with(pattern, lambda code: Fits(span, code, way, named))

    def _comparison(self, whole: ast.Compare, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Condition:
        span = span_of(whole, self._span)
        reads_left, reads_right = self._reads_hole(left), self._reads_hole(right)
        if not reads_left and not reads_right:
            symbol = SYMBOLS.get(type(operator)) or WORDS[type(operator)]
            return Compared(span, self._code(left), symbol, self._code(right))
        if reads_left and reads_right:
            raise self._unsupported(whole)
        if isinstance(operator, ast.In | ast.NotIn):
            inside = self._inside(whole, left, right)
            return negated(inside) if isinstance(operator, ast.NotIn) else inside
        if isinstance(operator, ast.Is | ast.IsNot):
            found = self.condition(left) if isinstance(left, ast.Call) and _is_none(right) else None
            if not isinstance(found, Fits):
                raise self._unsupported(whole)
            return negated(found) if isinstance(operator, ast.Is) else found
        asked, value = (left, right) if reads_left else (right, left)
        comparison = SYMBOLS[type(operator)]
        return self._compared(whole, asked, comparison if reads_left else FLIPPED[comparison], value)

    def _inside(self, whole: ast.expr, left: ast.expr, right: ast.expr) -> Condition:
        span = span_of(whole, self._span)
        around = tidied_text(right, self._hole)
        if around and not (around.left or around.right) and (around.case is None or around.case in EVENLY):
            return self._with(left, lambda code: Has(span, code, around.case))
        match subject(left, self._hole, self._bare):
            case Text(tidied, kind):
                return self._with(right, lambda code: OneOf(span, code, single=False, tidied=tidied, kind=kind))
            case Part() as part:
                return self._part(span, part, right)
            case Size(unit):
                return self._with(right, lambda code: LengthIn(span, code, unit))
            case Number(kind):
                return self._with(right, lambda code: NumberIn(span, code, inside=True, kind=kind))
            case OneListed(listed):
                return self._with(right, lambda code: ListedIn(span, code, listed))
            case Day():
                return self._with(right, lambda code: DateIn(span, code))
        raise self._unsupported(whole)

    def _compared(self, whole: ast.expr, asked: ast.expr, comparison: Comparison, value: ast.expr) -> Condition:
        span = span_of(whole, self._span)
        about = subject(asked, self._hole, self._bare)
        if isinstance(about, Text) and about.kind is not None and comparison not in ("==", "!="):
            about = Number(about.kind)
        match about:
            case Text(tidied, kind) if comparison in ("==", "!="):
                same = self._with(value, lambda code: OneOf(span, code, single=True, tidied=tidied, kind=kind))
                return same if comparison == "==" else negated(same)
            case Size(unit):
                return self._with(value, lambda code: LengthIs(span, comparison, code, unit))
            case Number(kind):
                return self._with(value, lambda code: NumberIs(span, comparison, code, kind))
            case OneListed(listed):
                return self._with(value, lambda code: ListedIs(span, comparison, code, listed))
            case Day():
                return self._with(value, lambda code: DateIs(span, comparison, code))
            case Count(phrase, more) if not self._reads_hole(phrase):
                counted = self._code(phrase)
                return self._with(value, lambda code: Occurs(span, counted, comparison, code, more))
            case Part() as part if comparison in ("==", "!="):
                one = ast.copy_location(ast.Tuple([value], ast.Load()), value)
                same = self._part(span, part, one)
                return same if comparison == "==" else negated(same)
        raise self._unsupported(whole)

    def _part(self, span: Span, part: Part, texts: ast.expr) -> Condition:
        """A part of the hole's text is one of these."""
        bounds = [bound for bound in (part.first, part.last) if bound is not None]
        if any(map(self._reads_hole, bounds)):
            raise self._unsupported(texts)
        first, last = (None if bound is None else self._code(bound) for bound in (part.first, part.last))
        return self._with(texts, lambda code: PartOf(span, code, first, last, part.is_single))

    def _with(self, value: ast.expr, make: Callable[[CodeType], Condition]) -> Condition:
        """A condition with a value in it; tried at once where that is written out (S22)."""
        condition = make(self._code(value))
        try:
            condition.bind(self.written)
        except Inexact as error:
            raise Unguided(error.message, span=error.span, hint=error.hint) from None
        except ConstraintError as error:
            raise QueryError(error.message, span=span_of(value, self._span), hint=error.hint) from None
        except re.error as error:
            sentence = f"this is no regular expression: {error}"
            raise QueryError(sentence, span=span_of(value, self._span), hint=NO_PATTERN) from None
        except Exception:  # not written out; or an error of Python's own, which is raised where the clause runs
            return condition
        return condition

    def written(self, code: CodeType) -> object:
        """The value of a part of the clause, without running it. Raises NotWritten."""
        return written(next(node for node, known in self._codes.items() if known is code))

    def _code(self, node: ast.expr) -> CodeType:
        """One code object for each part of a clause, however many conditions it stands in."""
        if node not in self._codes:
            self._refuse_foreign(node)
            self._codes[node] = compile_expression(node, span_of(node, self._span))
        return self._codes[node]

    def _reads_hole(self, node: ast.AST) -> bool:
        return any(name.id == self._hole for name in values(node))

    def _is_hole(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == self._hole

    def _refuse_stops(self, operand: ast.expr) -> None:
        for name, span in self._stops(operand):
            raise QueryError(
                f"{name} cannot stand under `not`: a stop says where a value ends, not what it is",
                span=span,
                hint=f'to forbid a phrase write `not ".." in {self._hole}`',
            )

    def _refuse_foreign(self, node: ast.expr) -> None:
        for name, span in self._stops(node):
            raise QueryError(
                f"{name} says where its own hole ends and cannot be part of a condition on [{self._hole}]",
                span=span,
                hint="give it a clause of its own, joined by `and`",
            )
        for part in ast.walk(node):
            match part:
                case ast.Call(ast.Name(name), [ast.Name(other), *_]) if name in EXAMPLES or name in UNITS:
                    raise QueryError(
                        f"{name} guides the hole it is asked of and cannot be part of a condition on [{self._hole}]",
                        span=span_of(part, self._span),
                        hint=f"give it a clause of its own, joined by `and`, or ask in Python what {other} is",
                    )

    def _stops(self, node: ast.expr) -> Iterator[tuple[str, Span]]:
        for part in ast.walk(node):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in STOPS:
                yield part.func.id, span_of(part, self._span)

    def _unsupported(self, node: ast.expr) -> QueryError:
        for part in ast.walk(node):
            match part:
                case ast.Call(ast.Name(name)) if name in UNITS:
                    return QueryError(
                        f"{name} only says how long a value is: len({name}({self._hole})) is compared with a number",
                        span=span_of(part, self._span),
                        hint=f"len({name}({self._hole})) < 20"
                        + (f"; in Python the words are {self._hole}.split()" if name == "WORDS" else ""),
                    )
        said = next((each.id for each in words(node)), None)
        sentence = f"{said} cannot stand inside what only Python can judge" if said else "only Python can judge this"
        hint = "give it a clause of its own, joined by `and`" + (
            "" if said else f"; what guides the model: {SUPPORTED}"
        )
        return Unguided(sentence, span=span_of(node, self._span), hint=hint)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
