"""Conditions: the clauses of a `where`, evaluated with a symbol in place of the hole.

`and`, `or`, `not`, `in` and chains of comparisons are read from the tree. A function that is not of the language never
gets the symbol: Python judges such a part once the hole has a value (S21).
"""

from __future__ import annotations

import ast
import builtins
import copy
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, Literal

from lmql_lite.constraints.formats import METHODS, SHAPES
from lmql_lite.constraints.pattern import NO_PATTERN
from lmql_lite.constraints.simplify import satisfies
from lmql_lite.constraints.terms import And, Constant, Inside, Length, Matches, Not, Or, Term, conjunction
from lmql_lite.errors import ConstraintError, QueryError, Span
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import STOPS
from lmql_lite.lang.names import Names, every_node, values, words
from lmql_lite.lang.source import span_of
from lmql_lite.program.bytecode import NotWritten, compiled, constant, written
from lmql_lite.program.symbols import (
    OPERATORS,
    PARTS,
    RELATIONS,
    UNKNOWN,
    WAYS,
    PartsSymbol,
    PlaceSymbol,
    Symbol,
    TextSymbol,
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
IN_JSON = 'put it into the type, such as Field(gt=30, max_length=16, pattern="^[A-Z]"), or raise max_backtracks'
"""Hint of the error if Python judged JSON values, and none of them met the clause."""
NO_VALUE = object()
TEXT = "#text"
"""Name of the text of the hole in Python that judges its value."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """A part of a clause, as a complete value is judged: whether it `holds` by its term, and where Python can tell
    more, by its `code`. With `parts`, every part must hold, or any if not `holds`.
    """

    node: ast.expr
    holds: bool
    code: CodeType | None = None
    parts: tuple[Judgement, ...] = ()


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
    judgement: Judgement | None = None
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
        return self._reading(evaluate).term(self.clause.expression.tree.body)

    def _reading(self, evaluate: Evaluate) -> ClauseReading:
        codes = dict(self.codes)
        return ClauseReading(self.span, self.hole, self.root, lambda node: evaluate(codes[node]), self.skipped)

    async def accepts(self, text: str, evaluate: Evaluate, run: Callable[[CodeType], Awaitable[Any]]) -> bool:
        """True if a complete value meets the clause. `run` evaluates Python that reads the value under the hole's
        name."""

        async def is_met(part: Judgement) -> bool:
            if part.parts:
                for each in part.parts:
                    if await is_met(each) is not part.holds:
                        return not part.holds
                return part.holds
            if isinstance(self.root, TextSymbol):
                reading = self._reading(evaluate)
                if not satisfies(reading.term(part.node, part.holds), text.encode("utf-8", "surrogatepass")):
                    return False
                if part.node not in reading.of_python:
                    return True
            return part.code is None or bool(await run(part.code)) is part.holds

        return self.judgement is None or await is_met(self.judgement)


def read(clause: Clause, hole: str, root: Symbol) -> Condition:
    """The condition of a clause on a hole. Raises QueryError, with the span of the part, for mistakes.

    Python also judges the value if a part cannot guide exactly.
    """
    expression = clause.expression
    reading = CompileTimeReading(expression.span, hole, root)
    term = reading.term(expression.tree.body)
    codes, skipped = tuple(reading.codes.items()), frozenset(reading.skipped)
    found = Condition(clause, hole, root, codes, skipped, term, reading.is_known)
    if isinstance(root, PlaceSymbol):
        return replace(found, judgement=_in_python(expression.tree.body, reading, holds=True), remedy=IN_JSON)
    if not reading.of_python:
        return found
    part = expression.tree.body
    while isinstance(part, ast.BoolOp | ast.UnaryOp):
        inner = part.values if isinstance(part, ast.BoolOp) else [part.operand]
        part = next((each for each in inner if _counts_tokens(each)), ast.Constant(None))
    if _counts_tokens(part):
        sentence = f"a bound on the tokens of [{hole}] cannot be joined by `or` with what only Python can judge"
        hint = "count its characters or words instead"
        raise QueryError(sentence, span=span_of(part, expression.span), hint=hint)
    return replace(found, judgement=judgement_of(expression.tree.body, reading))


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
        self.of_python: set[ast.expr] = set()
        """Parts, without `and`, `or` and `not`, that Python judges."""
        self._given = given
        self._skipped = skipped
        self._is_exact = True
        """False if the term of the current part does not say all of it."""

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
        self._is_exact = True
        try:
            found = self.atom(node, holds)
        except Unguided:
            found = self.left(node)
        except (ConstraintError, QueryError) as error:
            raise error if error.span else self.located(error, node) from None
        if not self._is_exact:
            self.of_python.add(node)
        return found

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
        self._is_exact = False
        needs = () if self.is_json else tuple(_needs(node, self.hole))
        return placed(conjunction(needs), self.place(node)) if needs else Constant(True, self.place(node))

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
            self._is_exact = False
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
        if not symbol.is_exact(relation, value, holds):
            self._is_exact = False
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
            case ast.Call(ast.Name("all" | "any" as name), [ast.GeneratorExp(element, [loop])], []):
                if self.is_json and holds:
                    return self.of_items(element, loop, "each" if name == "all" else "some")
            case ast.Call(ast.Attribute(owner, name), arguments, keywords):
                if name in WAYS and not self.reads_hole(owner):
                    return self.of_pattern(node, owner, name, holds)
                symbol = self.symbol(owner)
                if isinstance(symbol, TextSymbol):
                    symbol.refuse_unknown(name)
                if not keywords and not self.reads_hole(*arguments):
                    return self.of_method(symbol, name, arguments, holds)
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

    def of_items(self, element: ast.expr, loop: ast.comprehension, which: Literal["each", "some"]) -> Term:
        """`all(p.age > 17 for p in X)`, `any(..)`, for parts that are joined by `and`."""
        owner = self.symbol(loop.iter)
        if not isinstance(owner, PlaceSymbol) or not isinstance(loop.target, ast.Name) or loop.ifs or loop.is_async:
            raise Unguided
        item, around = owner.step(which), self.roots
        self.roots = {**around, loop.target.id: item}
        try:
            found = self.term(element)
        finally:
            self.roots = around
        # `all` of no items is true, whatever else the condition reads
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
        self._refuse_mistakes(node)
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
        for word in words(node):
            sentence = f"{word.id} cannot be part of a condition that only Python can judge"
            hint = f"write len({word.id}({self.hole})) < 20" if word.id in PARTS else ALONE
            raise QueryError(sentence, span=self.place(node), hint=hint)
        return super().left(node)

    def _refuse_mistakes(self, part: ast.expr) -> None:
        """Raises QueryError for Python that fails for every text, wherever it stands in a part."""
        root, inside = self.roots[self.hole], every_node(part)
        has_names = any(isinstance(each, ast.arg | ast.comprehension) for each in inside)  # it may be one of them
        if not isinstance(root, TextSymbol) or not root.is_text or has_names:
            return
        for node in inside:
            match node:
                case ast.Attribute(ast.Name(self.hole), name):
                    root.refuse_unknown(name)
                case ast.expr() if found := self._mistake(node):
                    sentence, hint = found
                    raise QueryError(sentence, span=self.place(node), hint=hint)

    def _mistake(self, node: ast.expr) -> tuple[str, str] | None:
        """Sentence and hint for Python that fails for every text."""
        hole = self.hole
        match node:
            case ast.Call(ast.Name("len"), [ast.Compare(left, [operator], [right])]) if self.reads_hole(left):
                meant = f"len({ast.unparse(left)}) {SYMBOLS[type(operator)]} {ast.unparse(right)}"
                return "this len(...) closes after the comparison instead of before it", f"write {meant}"
            case ast.Call(ast.Name("len"), given, []) if len(given) != 1 and self.reads_hole(node):
                return f"len takes one value, and this call has {len(given)}", f"write len({hole})"
            case ast.Subscript(ast.Name(name)) if name in ("len", *EXAMPLES, *PARTS) and name not in self.roots:
                return f"{name} is a function and takes parentheses", f"write {name}({hole})"
            case ast.Call(ast.Name(name)) if name == hole and name not in EXAMPLES:
                return (
                    f"[{hole}] is text and cannot be called",
                    f"write {hole} alone, or put an operator between the two",
                )
            case ast.Call(ast.Attribute(ast.Name(name), method), [_, *_]) if name == hole and method in METHODS:
                return f"{hole}.{method}() takes nothing between its parentheses", f"write {hole}.{method}()"
            case ast.BinOp(_, ast.Sub() | ast.Div() | ast.FloorDiv() | ast.Pow()) | ast.UnaryOp(ast.USub()):
                if any(isinstance(side, ast.Name) and side.id == hole for side in ast.iter_child_nodes(node)):
                    return f"[{hole}] is text, and text has no arithmetic", f"write int({hole}), or [{hole}: int]"
        return None

    def _refuse_foreign(self, node: ast.expr) -> None:
        for word in words(node):
            sentence = f"{word.id} guides the hole it is asked of and cannot be part of a condition on [{self.hole}]"
            raise QueryError(sentence, span=self.place(node), hint=f"{ALONE}, or ask in Python what that hole is")

    def _stops(self, node: ast.expr) -> Iterator[tuple[str, Span]]:
        for part in every_node(node):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in STOPS:
                yield part.func.id, self.place(part)


# The judgement of a value --------------------------------------------------------------------------------------------

CONDITIONAL = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""Nodes of Python that may leave parts of them unevaluated."""


def _needs(node: ast.AST, hole: str) -> Iterator[Term]:
    """Terms that a text must meet so that Python can evaluate a part: a number for `int(X)`, a character for `X[0]`."""
    match node:
        case ast.Call(ast.Name("int" | "float" as kind), [ast.Name(name)], []) if name == hole:
            yield Matches(SHAPES[kind.upper()])
        case ast.Subscript(ast.Name(name), key) if name == hole and type(at := constant(key)) is int:
            yield Length(at + 1 if at >= 0 else -at, None)
    for child in ast.iter_child_nodes(node) if not isinstance(node, CONDITIONAL) else ():
        yield from _needs(child, hole)


def judgement_of(node: ast.expr, reading: CompileTimeReading, holds: bool = True) -> Judgement:
    """The judgement of a clause that was read, or of a part of it."""
    match node:
        case ast.UnaryOp(ast.Not(), operand) if reading.reads_hole(node):
            return judgement_of(operand, reading, not holds)
        case ast.BoolOp(operator, parts) if reading.reads_hole(node):
            every = isinstance(operator, ast.And) is holds
            return Judgement(node, every, parts=tuple([judgement_of(part, reading, holds) for part in parts]))
    if node in reading.of_python:
        return _in_python(node, reading, holds)
    return Judgement(node, holds)


def _in_python(node: ast.expr, reading: CompileTimeReading, holds: bool) -> Judgement:
    """The judgement of Python. There `len(X)` is that of the text, because the value may have no length."""
    tree = copy.deepcopy(node)
    reads = {id(name) for name in Names().scan([tree]).reads if name.id == reading.hole and not reading.is_json}
    for each in every_node(tree):
        match each:
            case ast.Call(ast.Name("len"), [read], []) if id(read) in reads:
                each.args = [ast.copy_location(ast.Name(TEXT, ast.Load()), read)]
    return Judgement(node, holds, compiled(tree, reading.span))
