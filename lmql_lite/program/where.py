"""Conditions: the clauses of a `where`, evaluated with a symbol in place of the hole.

`and`, `or`, `not`, `in` and chains of comparisons are read from the tree. A function that is not of the language never
gets the symbol: Python judges such a part once the hole has a value (S21).
"""

from __future__ import annotations

import ast
import builtins
import copy
import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

from lmql_lite.constraints.formats import SHAPES
from lmql_lite.constraints.pattern import NO_PATTERN
from lmql_lite.constraints.simplify import satisfies
from lmql_lite.constraints.terms import And, Constant, Inside, Matches, Not, Or, Term, conjunction, measured
from lmql_lite.errors import ConstraintError, QueryError, Span
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import STOPS
from lmql_lite.lang.names import Names, every_node, is_named, reads, values, words
from lmql_lite.lang.source import span_of
from lmql_lite.program.bytecode import NotWritten, compiled, written
from lmql_lite.program.symbols import (
    MADE,
    OPERATORS,
    PARTS,
    PLAIN,
    RELATIONS,
    SHAPE,
    UNKNOWN,
    WAYS,
    Kind,
    PartsSymbol,
    PlaceSymbol,
    Symbol,
    Unguided,
)
from lmql_lite.program.values import wrong

Evaluate = Callable[[CodeType], object]
SYMBOLS: Mapping[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.GtE: ">=",
    ast.Gt: ">",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}
NEGATIVE = {"!=": "==", "not in": "in", "is not": "is"}
"""Maps comparisons to those that must not hold for them."""
OPPOSITE = {"<": ">=", ">=": "<", ">": "<=", "<=": ">"}
FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "in": "contains"}
"""Maps symbols to those with the sides exchanged, where these differ."""
EXAMPLES = {
    "STOPS_AT": '(X, "\\n")',
    "STOPS_BEFORE": '(X, "\\n")',
    "STARTS_WITH": '(X, ["a", "b"])',
    "ENDS_WITH": '(X, ["a", "b"])',
    "REGEX": '(X, r"[a-z]+")',
    **dict.fromkeys(SHAPES, "(X)"),
}
"""Maps functions of a `where` clause to examples of their arguments."""
TAKES = {"REGEX": "a hole and a regular expression", **dict.fromkeys(SHAPES, "a hole")}
ALONE = "give it a clause of its own, joined by `and`"
ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, NameError)
"""Errors of Python's own operations."""
CALLED = ("len", "int", "float", "str", "abs", "round", "range", "date", "datetime", "time", "Decimal", "compile")
"""Functions in the value that a place is compared with. Other calls are made when Python judges, and only then:
`sorted(rows)` may exhaust an iterator."""
MAX_POSITIONS = 16
"""Most items of a list in each of which an item is looked for, or before one that a condition is about."""
IN_JSON = 'put it into the type, such as Field(gt=30, max_length=16, pattern="^[A-Z]"), or raise max_backtracks'
"""Hint of the error if Python judged JSON values, and none of them met the clause."""
NO_VALUE = object()
FINAL = "#final"
"""Name of the flag that is true when the text that Python judges is complete."""
TEXT = "#text"
"""Name of the text of a hole in code that judges it, where the hole's own name stands for its value."""


# Clauses -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause of a `where` at one hole. `others` are the other holes that it reads, with their names as expressions.

    While one of these has no value, a clause that `waits` counts as true.
    """

    expression: nodes.Expression
    others: tuple[tuple[str, CodeType], ...] = ()
    waits: bool = False

    @property
    def span(self) -> Span:
        return self.expression.span

    def has_values(self, evaluate: Evaluate) -> bool:
        """True if all other holes have values. Raises ConstraintError if one has none and the clause cannot wait for
        it."""
        for name, code in self.others:
            try:
                value = evaluate(code)
            except NameError:
                value = NO_VALUE
            if value is not vars(builtins).get(name, NO_VALUE):
                continue
            if self.waits:
                return False
            raise ConstraintError(
                f"`{self.span.source}` reads [{name}], which has no value yet",
                span=self.span,
                hint=f"fill [{name}] first, or put the condition into the `where` at the end of the query",
            )
        return True

    @contextmanager
    def reading_values(self, evaluate: Evaluate) -> Iterator[None]:
        """Raises ConstraintError if Python fails because a hole has a number or a date instead of text."""
        try:
            yield
        except (TypeError, AttributeError) as error:
            for name, code in self.others:
                value = evaluate(code)
                if isinstance(value, int | float | datetime.date | Enum):
                    kind = "number" if type(value) in (int, float) else type(value).__name__
                    sentence = f"`{self.span.source}` reads [{name}], which is then the {kind} {value}: {error}"
                    hint = f"write str({name}) for its text"
                    raise ConstraintError(sentence, span=self.span, hint=hint) from error
            raise


def conjuncts(where: nodes.Expression) -> list[nodes.Expression]:
    """The parts of a top-level `and`, each with its own span."""
    body = where.tree.body
    if not (isinstance(body, ast.BoolOp) and isinstance(body.op, ast.And)):
        return [where]
    parts = [nodes.Expression(span_of(value, where.span), ast.Expression(value)) for value in body.values]
    return [inner for part in parts for inner in conjuncts(part)]


def mentioned(expression: nodes.Expression, names: Iterable[str]) -> set[str]:
    """Names among `names` that the expression reads."""
    return {name.id for name in values(expression.tree)}.intersection(names)


class FinalCall(NamedTuple):
    """Call of a function that may judge incomplete text: `function` with `by_place` positional arguments, its own
    keywords, and `final=FINAL`."""

    code: CodeType
    function: CodeType
    by_place: int


class JudgingCode(NamedTuple):
    """Python that judges the value of a hole. `call` is set if it is a call of a name."""

    code: CodeType
    call: FinalCall | None = None


@dataclass(frozen=True, eq=False)
class Condition:
    """A clause, read for the type of its hole: its term guides, and Python judges if there is a `judgement`.

    `term` allows every text that may meet the clause. If the clause `is_known`, it is the same in every run. `remedy`
    is the hint of the error if no value does.
    """

    clause: Clause
    hole: str
    root: Symbol
    codes: tuple[tuple[ast.expr, CodeType], ...]
    skipped: frozenset[ast.expr]
    """Parts of the clause that are left to Python."""
    term: Term
    is_known: bool
    judgement: JudgingCode | None = None
    remedy: str = "raise max_backtracks, or write the condition without Python, so that it guides the model"

    @property
    def span(self) -> Span:
        return self.clause.span

    def bind(self, evaluate: Evaluate) -> Term:
        """The term of a run. Raises ConstraintError for a value of a wrong type."""
        if self.clause.others and not self.clause.has_values(evaluate):
            return Constant(True, self.span)
        if self.is_known:
            return self.term
        codes = dict(self.codes)
        reading = ClauseReading(self.span, self.hole, self.root, lambda node: evaluate(codes[node]), self.skipped)
        with self.clause.reading_values(evaluate):
            return reading.term(self.clause.expression.tree.body)


def read(clause: Clause, hole: str, root: Symbol) -> Condition:
    """The condition of a clause on a hole. Raises QueryError, with the span of the part, for mistakes.

    Python also judges the value if a part cannot guide exactly.
    """
    expression = clause.expression
    reading = CompileTimeReading(expression.span, hole, root)
    term = reading.term(expression.tree.body)
    codes = () if reading.is_known else tuple(reading.codes.items())
    skipped = frozenset(reading.skipped)
    found = Condition(clause, hole, root, codes, skipped, term, reading.is_known)
    if isinstance(root, PlaceSymbol):
        return replace(found, judgement=judging(expression.tree.body, expression.span, hole), remedy=IN_JSON)
    if not reading.leaves_to_python:
        return found
    part = expression.tree.body
    while isinstance(part, ast.BoolOp | ast.UnaryOp):
        inner = part.values if isinstance(part, ast.BoolOp) else [part.operand]
        part = next((each for each in inner if _counts_tokens(each)), ast.Constant(None))
    if _counts_tokens(part):
        sentence = f"a bound on the tokens of [{hole}] cannot be joined by `or` with what only Python can judge"
        hint = "count its characters or words instead"
        raise QueryError(sentence, span=span_of(part, expression.span), hint=hint)
    tree = copy.deepcopy(expression.tree.body)
    judged = InPython(tree, hole, is_typed=root != PLAIN).part(tree)
    return replace(found, judgement=judging(judged, expression.span, hole))


def _counts_tokens(node: ast.expr) -> bool:
    return any(word.id == "TOKENS" for word in words(node))


# Evaluation ----------------------------------------------------------------------------------------------------------


def placed(term: Term, span: Span) -> Term:
    """The term with this place for all of its parts."""
    match term:
        case And(terms) | Or(terms):
            return replace(term, terms=tuple(placed(each, span) for each in terms), span=span)
        case Not(inner):
            return Not(placed(inner, span), span)
    return replace(term, span=span)


class ClauseReading:
    """One evaluation of a clause in a run. `given` evaluates the Python that does not read the hole (S20).

    `not` moves inwards, so that `holds` says which truth of a part is meant. A part that is left to Python counts as
    true.
    """

    is_lazy = True
    """True if parts after one that decides are not evaluated, as in Python."""

    def __init__(
        self,
        span: Span,
        hole: str,
        root: Symbol,
        given: Callable[[ast.expr], Any],
        skipped: frozenset[ast.expr] = frozenset(),
    ) -> None:
        self.span = span
        self.hole = hole
        self.roots: dict[str, Symbol] = {hole: root}
        self.is_json = isinstance(root, PlaceSymbol)
        self.leaves_to_python = False
        self._given = given
        self._skipped = skipped

    def place(self, node: ast.expr) -> Span:
        return span_of(node, self.span)

    def reads_hole(self, *nodes: ast.AST) -> bool:
        return any(name.id in self.roots for node in nodes for name in values(node))

    def given(self, node: ast.expr) -> Any:
        """Value of Python that does not read the hole. Raises Unguided if it does."""
        if self.reads_hole(node):
            raise Unguided
        try:
            return self._given(node)
        except ERRORS:
            if self.is_json:  # Python raises it again when it judges
                raise Unguided from None
            raise

    # Parts -----------------------------------------------------------------------------------------------------------

    def term(self, node: ast.expr, holds: bool = True) -> Term:
        match node:
            case ast.UnaryOp(ast.Not(), operand) if self.reads_hole(node):
                return placed(self.term(operand, not holds), self.place(node))  # quoted with its `not`
            case ast.BoolOp(operator, parts) if self.reads_hole(node):
                return self.joined(node, isinstance(operator, ast.And) is holds, parts, holds)
        try:
            return self.atom(node, holds)
        except Unguided:
            return self.left(node)
        except (ConstraintError, QueryError) as error:
            raise error if error.span else self.located(error, node) from None

    def joined(self, node: ast.expr, every: bool, parts: Iterable[ast.expr], holds: bool) -> Term:
        terms: list[Term] = []
        for part in parts:
            is_decided = self.is_lazy and Constant(not every) in terms
            if not is_decided or (not every and _has_stops(part)):  # a stop always stops
                terms.append(self.term(part, holds))
        return self.join(node, every, terms)

    def join(self, node: ast.expr, every: bool, terms: list[Term]) -> Term:
        if len(terms) == 1:
            return terms[0]
        return conjunction(tuple(terms)) if every else Or(tuple(terms), self.place(node))

    def left(self, node: ast.expr) -> Term:
        """The term of a part that is left to Python."""
        self.leaves_to_python = True
        return Constant(True, self.place(node))

    def located(self, error: ConstraintError | QueryError, node: ast.expr) -> ConstraintError | QueryError:
        return type(error)(error.message, span=self.place(node), hint=error.hint)

    def atom(self, node: ast.expr, holds: bool) -> Term:
        """The term of a part without `and`, `or` and `not`."""
        span = self.place(node)
        if node in self._skipped:
            raise Unguided
        if not self.reads_hole(node):
            value = self.given(node)
            return Constant(value is UNKNOWN or bool(value) is holds, span)
        if isinstance(node, ast.Compare):
            return self.chain(node, holds)
        found = self.value(node, holds)
        return placed(self.tested(found, "true", True, holds) if isinstance(found, Symbol) else found, span)

    # Comparisons -----------------------------------------------------------------------------------------------------

    def chain(self, node: ast.Compare, holds: bool) -> Term:
        """A chain of comparisons. Each side is evaluated once."""
        match node:
            case ast.Compare(found, [ast.Is() | ast.IsNot() as asked], [ast.Constant(None)]) if _is_match(found):
                return placed(self.value(found, isinstance(asked, ast.IsNot) is holds), self.place(node))
        terms: list[Term] = []
        left = self.value(node.left)
        for operator, side in zip(node.ops, node.comparators, strict=True):
            if self.is_lazy and Constant(not holds) in terms:
                break
            right = self.value(side)
            terms.append(placed(self.pair(left, SYMBOLS[type(operator)], right, holds), self.place(node)))
            left = right
        return self.join(node, holds, terms)

    def pair(self, left: Any, relation: str, right: Any, holds: bool) -> Term:
        if isinstance(left, Term) or isinstance(right, Term):
            raise Unguided
        if isinstance(left, PlaceSymbol) and isinstance(right, PlaceSymbol):
            return And((left.there(), right.there()))
        if isinstance(left, Symbol) and isinstance(right, Symbol):
            raise Unguided
        if relation in NEGATIVE:
            relation, holds = NEGATIVE[relation], not holds
        if isinstance(left, Symbol):
            return self.tested(left, relation, right, holds)
        if isinstance(right, Symbol):
            return self.tested(right, FLIPPED.get(relation, relation), left, holds)
        return Constant(left is UNKNOWN or right is UNKNOWN or bool(OPERATORS[relation](left, right)) is holds)

    def tested(self, symbol: Symbol, relation: str, value: Any, holds: bool = True) -> Term:
        """The term of a comparison of a symbol with a value."""
        if not holds and relation in OPPOSITE:
            relation, holds = OPPOSITE[relation], True
        if not symbol.is_exact(relation, holds):
            self.leaves_to_python = True
        return symbol.term(relation, value, holds)

    # Values ----------------------------------------------------------------------------------------------------------

    def value(self, node: ast.expr, holds: bool = True) -> Any:
        """Value of an expression: if it reads the hole, a symbol, or if it is true or false, the term of the texts for
        which it `holds`. Raises Unguided if only Python can evaluate it."""
        match node:
            case _ if not self.reads_hole(node):
                return self.given(node)
            case ast.Name(name):
                return self.roots[name]
            case ast.Attribute(owner, name):
                return self.symbol(owner).attribute(name)
            case ast.Subscript(owner, ast.Slice(lower, upper, step)):
                bounds = [each and self.given(each) for each in (lower, upper, step)]
                return self.symbol(owner).item(slice(*bounds))
            case ast.Subscript(owner, key):
                return self.symbol(owner).item(self.given(key))
            case ast.Call(ast.Name(name)) if name in EXAMPLES:
                return self.of_language(node, name, holds)
            case ast.Call(ast.Name(name), [ast.Name(self.hole)], []) if name in PARTS:
                return PartsSymbol(PARTS[name])
            case ast.Call(ast.Name("len"), [measured], []):
                return self.symbol(measured).length()
            case ast.Call(ast.Name("int" | "float" as kind), [text], []):
                return self.symbol(text).number("int" if kind == "int" else "float")
            case ast.Call(ast.Name("all" | "any"), [ast.GeneratorExp()], []) if self.is_json and holds:
                return self.of_items(node)
            case ast.Call(ast.Attribute(owner, name), arguments, keywords):
                if name in WAYS and not self.reads_hole(owner):
                    return self.of_pattern(node, owner, name, holds)
                if not keywords and not self.reads_hole(*arguments):
                    return self.of_method(self.symbol(owner), name, arguments, holds)
        raise Unguided

    def symbol(self, node: ast.expr) -> Symbol:
        found = self.value(node)
        if isinstance(found, Symbol):
            return found
        raise Unguided

    def of_language(self, node: ast.Call, name: str, holds: bool) -> Term:
        """Term of a function of `where`, whose first argument is the hole."""
        match node:
            case ast.Call(_, [ast.Name(self.hole)], []) if name in SHAPES:
                return Matches(SHAPES[name]) if holds else Not(Matches(SHAPES[name]))
            case ast.Call(_, [ast.Name(self.hole), value], []) if name in RELATIONS and not self.reads_hole(value):
                return self.tested(self.roots[self.hole], RELATIONS[name], self.given(value), holds)
        takes = f"{name} takes {TAKES.get(name, 'a hole and a text')}"
        raise QueryError(takes, span=self.place(node), hint=name + EXAMPLES[name].replace("X", self.hole))

    def of_method(self, symbol: Symbol, name: str, arguments: list[ast.expr], holds: bool) -> Symbol | Term:
        given = tuple([self.given(each) for each in arguments])
        if name in ("startswith", "endswith") and len(given) == 1:
            return self.tested(symbol, name, given[0], holds)
        found = symbol.called(name, given)
        return found if holds or isinstance(found, Symbol) else Not(found)

    def of_pattern(self, node: ast.Call, owner: ast.expr, way: str, holds: bool) -> Term:
        """`pattern.search(X)`, `re.search(pattern, X, flags)`."""
        is_module = isinstance(owner, ast.Name) and owner.id == "re"
        flags = [each.value for each in node.keywords if each.arg == "flags"]
        match node.args:
            case [text] if not is_module and not node.keywords:
                return self.tested(self.symbol(text), way, self.given(owner), holds)
            case [pattern, text, *more] if is_module and len(flags) == len(node.keywords):
                flags += more
                if len(flags) > 1 or self.reads_hole(pattern, *flags):
                    raise Unguided
                symbol, module = self.symbol(text), self.given(owner)
                if module is not re and module is not UNKNOWN:
                    sentence = "only Python's own re can guide the model, and this is another object"
                    raise wrong(sentence, module, "use it inside a function")
                return self.tested(symbol, way, _combined(*[self.given(each) for each in (*flags, pattern)]), holds)
        raise Unguided

    def of_items(self, node: ast.Call) -> Term:
        """`all(p.age > 17 for p in X)`, for parts that are joined by `and`; `any(..)`."""
        assert isinstance(node.func, ast.Name) and isinstance(node.args[0], ast.GeneratorExp)
        name, element, (loop, *inner) = node.func.id, node.args[0].elt, node.args[0].generators
        owner = self.symbol(loop.iter)
        if (
            not isinstance(owner, PlaceSymbol)
            or not isinstance(loop.target, ast.Name)
            or inner
            or loop.ifs
            or loop.is_async
        ):
            raise Unguided
        item = owner.step("each" if name == "all" else "some")
        around = self.roots
        self.roots = {**around, loop.target.id: item}
        try:
            found = self.term(element)
        finally:
            self.roots = around
        if name == "any":
            return found
        # `all` of no items is true, whatever else the condition reads; and it does not distribute over `or`
        parts, size = found.terms if isinstance(found, And) else (found,), len(item.path)
        return And(tuple(part for part in parts if isinstance(part, Inside) and part.path[:size] == item.path))


def _is_match(node: ast.expr) -> bool:
    """True if this is `re.search(..)` or the like, which is None or not."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WAYS


def _combined(*flags_and_pattern: Any) -> Any:
    """A pattern with its flags."""
    *flags, pattern = flags_and_pattern
    if not flags or UNKNOWN in flags_and_pattern:
        return UNKNOWN if UNKNOWN in flags_and_pattern else pattern
    try:
        return re.compile(pattern, *flags)
    except re.error as error:
        raise ConstraintError(f"this is not a regular expression: {error}", hint=NO_PATTERN) from None


def _last_name(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _has_stops(node: ast.expr) -> bool:
    return any(word.id in STOPS for word in words(node))


class CompileTimeReading(ClauseReading):
    """An evaluation before any run. Values that are not written out are unknown, and count as what meets the clause.

    Every part is evaluated, so that mistakes are found wherever they stand.
    """

    is_lazy = False

    def __init__(self, span: Span, hole: str, root: Symbol) -> None:
        super().__init__(span, hole, root, self._written)
        self.codes: dict[ast.expr, CodeType] = {}
        self.skipped: list[ast.expr] = []
        self.is_known = True
        """True if the term is the same in every run."""
        self._last: ast.expr | None = None
        """The last value that was evaluated: an error is about it."""

    def _written(self, node: ast.expr) -> Any:
        self._last = node
        self._refuse_foreign(node)
        inside = every_node(node)
        calls = [each.func for each in inside if isinstance(each, ast.Call)]
        is_simple = all(isinstance(each, ast.Name | ast.Attribute) and _last_name(each) in CALLED for each in calls)
        if any(isinstance(each, ast.Await) for each in inside) or (self.is_json and not is_simple):
            raise Unguided
        self.codes[node] = compiled(node, self.place(node))
        if any(isinstance(each, ast.Name) for each in inside):
            self.is_known = False
        try:
            return written(node, {"re": re})
        except re.error as error:
            sentence = f"this is not a regular expression: {error}"
            raise QueryError(sentence, span=self.place(node), hint=NO_PATTERN) from None
        except (NotWritten, *ERRORS):  # Python raises an error again when a run evaluates it
            self.is_known = False
            return UNKNOWN

    def given(self, node: ast.expr) -> Any:
        if self.reads_hole(node):
            raise Unguided
        return self._given(node)

    def term(self, node: ast.expr, holds: bool = True) -> Term:
        match node:
            case ast.UnaryOp(ast.Not(), operand):
                for name, place in self._stops(operand):
                    sentence = f"{name} cannot be negated: a stop says where a value ends, not what it is"
                    raise QueryError(sentence, span=place, hint=f'to forbid a phrase write `not ".." in {self.hole}`')
            case ast.Compare(ast.Call(ast.Name("type"), [ast.Name(self.hole)], []), _, [kind]):
                hint = f"write [{self.hole}: {ast.unparse(kind)}] in the prompt"
                sentence = "the type of a hole is written inside its brackets"
                raise QueryError(sentence, span=self.place(node), hint=hint)
        return super().term(node, holds)

    def atom(self, node: ast.expr, holds: bool) -> Term:
        is_known = self.is_known
        try:
            return super().atom(node, holds)
        except Unguided:
            self.is_known = is_known
            self.skipped.append(node)
            raise

    def located(self, error: ConstraintError | QueryError, node: ast.expr) -> ConstraintError | QueryError:
        if isinstance(error, ConstraintError) and self._last is not None:
            node = self._last
        return QueryError(error.message, span=self.place(node), hint=error.hint)

    # Refusals --------------------------------------------------------------------------------------------------------

    def left(self, node: ast.expr) -> Term:
        for part in every_node(node):
            match part:
                case ast.Call(ast.Name(name)) if name in PARTS:
                    asked = f"len({name}({self.hole}))"
                    hint = f"{asked} < 20" + (
                        f"; in Python the words are {self.hole}.split()" if name == "WORDS" else ""
                    )
                    sentence = f"{name} only says how long a value is: {asked} is compared with a number"
                    raise QueryError(sentence, span=self.place(part), hint=hint)
        for word in words(node):
            sentence = f"{word.id} cannot be part of a condition that only Python can judge"
            raise QueryError(sentence, span=self.place(node), hint=ALONE)
        return super().left(node)

    def _refuse_foreign(self, node: ast.expr) -> None:
        for name, span in self._stops(node):
            sentence = f"{name} says where its own hole ends and cannot be part of a condition on [{self.hole}]"
            raise QueryError(sentence, span=span, hint=ALONE)
        for part in every_node(node):
            match part:
                case ast.Call(ast.Name(name), [ast.Name(other), *_]) if name in EXAMPLES or name in PARTS:
                    sentence = (
                        f"{name} guides the hole it is asked of and cannot be part of a condition on [{self.hole}]"
                    )
                    hint = f"{ALONE}, or ask in Python what {other} is"
                    raise QueryError(sentence, span=self.place(part), hint=hint)

    def _stops(self, node: ast.expr) -> Iterator[tuple[str, Span]]:
        for part in every_node(node):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in STOPS:
                yield part.func.id, self.place(part)


# Python that judges --------------------------------------------------------------------------------------------------


class MissingPart(Exception):
    """A text without the number or the character that is compared meets neither the comparison nor its opposite
    (S20)."""


class Numeral(str):
    """The text of a hole that `INT(X)` or `FLOAT(X)` makes a number: it compares with numbers as that number."""

    number: float

    @classmethod
    def of(cls, text: str, number: float) -> Numeral:
        found = cls(text)
        found.number = number
        return found

    def __str__(self) -> str:
        return str(self.number)

    def __format__(self, spec: str) -> str:
        return format(str.__str__(self), spec)

    def __hash__(self) -> int:
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) if isinstance(other, str) else self.number == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return super().__lt__(other) if isinstance(other, str) else self.number < other

    def __le__(self, other: Any) -> bool:
        return super().__le__(other) if isinstance(other, str) else self.number <= other

    def __gt__(self, other: Any) -> bool:
        return super().__gt__(other) if isinstance(other, str) else self.number > other

    def __ge__(self, other: Any) -> bool:
        return super().__ge__(other) if isinstance(other, str) else self.number >= other


def _number(kind: Kind, text: str) -> float:
    if not _shape(SHAPE[kind], text):
        raise MissingPart
    return MADE[kind](text)


def _item(text: str, at: int) -> str:
    if isinstance(at, int) and not -len(text) <= at < len(text):
        raise MissingPart
    return text[at]


def _unless_missing(part: Callable[[], Any]) -> Any:
    try:
        return part()
    except MissingPart:
        return False


def _shape(name: str, text: str) -> bool:
    return satisfies(Matches(SHAPES[name]), text.encode())


def _relation(name: str, text: str, value: Any) -> bool:
    return satisfies(PLAIN.term(RELATIONS[name], value), text.encode())


def _parts(name: str, text: str) -> range:
    return range(measured(text, PARTS[name]))


IN_PYTHON: Mapping[str, Callable[..., Any]] = {
    **{f"#{name}": partial(_shape, name) for name in SHAPES},
    **{f"#{name}": partial(_relation, name) for name in RELATIONS},
    **{f"#{name}": partial(_parts, name) for name in PARTS},
    **{f"#{kind}": partial(_number, kind) for kind in SHAPE},
    "#item": _item,
    "#unless": _unless_missing,
}
"""Functions in code that judges a text, by their names, which are no names of a query."""


class InPython(ast.NodeTransformer):
    """Makes a clause on a text plain Python: `not` stands before single comparisons only, and functions of the language
    and methods get the text of the hole, also where its type has values of its own."""

    def __init__(self, tree: ast.expr, hole: str, *, is_typed: bool) -> None:
        self._reads = {id(name) for name in Names().scan([tree]).reads if name.id == hole}
        self._is_typed = is_typed

    def part(self, node: ast.expr, holds: bool = True) -> ast.expr:
        match node:
            case ast.UnaryOp(ast.Not(), operand):
                return self.part(operand, not holds)
            case ast.BoolOp(operator, parts):
                every = isinstance(operator, ast.And) is holds
                joined = ast.BoolOp(ast.And() if every else ast.Or(), [self.part(part, holds) for part in parts])
                return ast.copy_location(joined, node)
        judged: ast.expr = self.visit(node)
        found = judged if holds else ast.copy_location(ast.UnaryOp(ast.Not(), judged), node)
        inside = every_node(found)
        may_miss = any(isinstance(each, ast.Name) and each.id in ("#int", "#float", "#item") for each in inside)
        if not may_miss or any(isinstance(each, ast.Await) for each in inside):
            return found
        later = ast.Lambda(ast.arguments([], [], None, [], [], None, []), found)
        return ast.copy_location(ast.Call(ast.Name("#unless", ast.Load()), [later], []), node)

    def _text(self, node: ast.expr) -> ast.expr:
        """The text of the hole in place of its value."""
        return ast.copy_location(ast.Name(TEXT, ast.Load()), node) if id(node) in self._reads else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if self._is_typed and hasattr(str, node.attr):
            node.value = self._text(node.value)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if self._is_typed and isinstance(node.ops[-1], ast.In | ast.NotIn):
            node.comparators[-1] = self._text(node.comparators[-1])
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        text = self._text(node.value)
        if text is node.value or isinstance(node.slice, ast.Slice):
            return node
        item = ast.copy_location(ast.Name("#item", ast.Load()), node)
        return ast.copy_location(ast.Call(item, [text, node.slice], []), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(ast.Name(name) as function, [read, *others]) if id(read) in self._reads:
                if (name in SHAPE or name == "len") and others:
                    return node
                if f"#{name}" in IN_PYTHON:
                    node.func = ast.copy_location(ast.Name(f"#{name}", ast.Load()), function)
                if node.func is not function or name == "len":
                    node.args[0] = self._text(node.args[0])
            case ast.Call(ast.Attribute(_, name), arguments) if self._is_typed and name in WAYS:
                node.args = [self._text(each) for each in arguments]
        return node


def judging(node: ast.expr, span: Span, hole: str) -> JudgingCode:
    """Code that judges the value. If it is a call, the function may take `final`: True if the text is complete."""
    code = compiled(ast.fix_missing_locations(node), span)
    match node:
        case ast.Call(ast.Name(name)) if name in IN_PYTHON:
            pass
        case ast.Call(function, arguments, keywords) if is_named(function) and not reads(function, hole):
            starred = any(isinstance(argument, ast.Starred) for argument in arguments)
            if not starred and all(keyword.arg not in ("final", None) for keyword in keywords):
                final = ast.keyword("final", ast.Name(FINAL, ast.Load()))
                told = ast.copy_location(ast.Call(function, arguments, [*keywords, final]), node)
                return JudgingCode(
                    code,
                    FinalCall(
                        compiled(ast.fix_missing_locations(told), span), compiled(function, span), len(arguments)
                    ),
                )
    return JudgingCode(code)
