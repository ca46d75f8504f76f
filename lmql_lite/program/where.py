"""Compiles `where` expressions to conditions, one per hole. A condition that cannot be enforced is an error (law 3).

A `Subject` is the side of a comparison that reads the hole. `Lowering` is the table of the Python expressions that
guide a model.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from types import CodeType
from typing import Literal, get_args

from lmql_lite.constraints import units
from lmql_lite.constraints.formats import CLOCK_PARTS, DATE_PARTS, METHODS, SHAPES
from lmql_lite.constraints.letter_case import Case, Inexact
from lmql_lite.constraints.pattern import NO_PATTERN
from lmql_lite.constraints.terms import Term
from lmql_lite.constraints.units import Unit
from lmql_lite.errors import ConstraintError, QueryError, Span
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import STOPS
from lmql_lite.lang.names import every_node, values, words
from lmql_lite.program import number_terms, text_terms
from lmql_lite.program.bytecode import compiled, span_of, written
from lmql_lite.program.conditions import All, Any, Atom, Condition, negated, truth
from lmql_lite.program.number_terms import OPPOSITE, Comparison, Kind, Listed
from lmql_lite.program.text_terms import AS_IT_IS, Tidied, Way

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
WAYS: dict[str, Way] = {way: way for way in get_args(Way)}
UNITS: dict[str, Unit] = {"CHARS" if unit == "characters" else unit.upper(): unit for unit in units.UNITS}
"""Maps functions of a `where` clause inside `len()` to their units."""
CASES: dict[str, Case] = {case: case for case in get_args(Case)}
STRIPS = ("strip", "lstrip", "rstrip")
EXAMPLES = {
    "STOPS_AT": '(X, "\\n")',
    "STOPS_BEFORE": '(X, "\\n")',
    "STARTS_WITH": '(X, ["a", "b"])',
    "ENDS_WITH": '(X, ["a", "b"])',
    "REGEX": '(X, r"[a-z]+")',
    **dict.fromkeys(SHAPES, "(X)"),
}
"""Maps functions of a `where` clause to examples of their arguments."""
TERMS: dict[str, Callable[..., Term]] = {
    "STOPS_AT": partial(text_terms.stops, True),
    "STOPS_BEFORE": partial(text_terms.stops, False),
    "STARTS_WITH": partial(text_terms.edge, True, False, AS_IT_IS),
    "ENDS_WITH": partial(text_terms.edge, False, False, AS_IT_IS),
    "REGEX": partial(text_terms.fits, "fullmatch"),
}
"""Maps functions that take a value to the makers of their terms."""
TAKES = {"REGEX": "a hole and a regular expression", **dict.fromkeys(SHAPES, "a hole")}
SUPPORTED = (
    'len(X) < 80, len(WORDS(X)) < 20, X.count("..") < 3, X in [...], X == "..", ".." in X, X.startswith(".."), '
    'X.isdigit(), re.search(r"..", X), REGEX(X, r".."), INT(X), DATE(X), int(X) < 120, float(X) < 1.5, '
    'STOPS_AT(X, ".."), STOPS_BEFORE(X, "..") and and/or/not of these'
)
KNOWN = {"re": re}
"""Names whose values are assumed at compile time."""


class Unguided(QueryError):
    """A condition that no automaton can follow: it cannot guide the model, only judge its text (S21)."""


# Subjects ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WholeText:
    """`X`, `X.strip()`, `X.lower()`. With a `kind` of number, it is also compared as one."""

    tidied: Tidied = AS_IT_IS
    kind: Kind | None = None


@dataclass(frozen=True, slots=True)
class TextLength:
    """`len(X)`, `len(WORDS(X))`."""

    unit: Unit


@dataclass(frozen=True, slots=True)
class TextCount:
    """`X.count(phrase)`."""

    phrase: ast.expr


@dataclass(frozen=True, slots=True)
class ParsedNumber:
    """`int(X)`, `float(X)`."""

    kind: Kind


@dataclass(frozen=True, slots=True)
class TextPart:
    """`X[bounds]`: one character, or a slice without a step."""

    bounds: tuple[ast.expr, ...]


@dataclass(frozen=True, slots=True)
class TypedValue:
    """`X` of a type with `listed` values, of dates, or (None) of any other type, which only Python can compare."""

    listed: Listed | Literal["date", "datetime", "time"] | None = None


@dataclass(frozen=True, slots=True)
class DatePart:
    """`X.year` of a date, or `X.hour` of a datetime or a time."""

    name: str
    kind: Literal["date", "datetime", "time"] = "date"


Subject = WholeText | TextLength | TextCount | ParsedNumber | TextPart | TypedValue | DatePart
PLAIN = WholeText()
"""Subject of a hole without a type."""
OTHER = TypedValue()
ORDER = ("<", "<=", ">", ">=")
PARTS = {"date": DATE_PARTS, "datetime": {**DATE_PARTS, **CLOCK_PARTS}, "time": CLOCK_PARTS}
"""Attributes of dates, datetimes and times that guide."""


def subject(node: ast.expr, hole: str, bare: Subject) -> Subject | None:
    """Subject of an expression; None if only Python can evaluate it. `bare` is the subject of the hole's name alone."""
    match node:
        case ast.Name(name) if name == hole:
            return bare
        case ast.Call(ast.Name("len"), [measured], []):
            return TextLength(unit) if (unit := _unit(measured, hole)) else None
        case ast.Call(ast.Attribute(ast.Name(name), "count"), [phrase], []) if (
            name == hole and isinstance(bare, WholeText) and not any(each.id == hole for each in values(phrase))
        ):
            return TextCount(phrase)
        case ast.Call(ast.Name("int" | "float" as kind), [ast.Name(name)], []) if name == hole:
            return ParsedNumber("int" if kind == "int" else "float")
        case ast.Subscript(ast.Name(name), place) if name == hole and isinstance(bare, WholeText):
            if not isinstance(place, ast.Slice):
                return TextPart((place,))
            ends = [bound or ast.copy_location(ast.Constant(None), place) for bound in (place.lower, place.upper)]
            return TextPart(tuple(ends)) if place.step is None else None
        case ast.Attribute(ast.Name(name), part) if name == hole and isinstance(bare, TypedValue):
            if isinstance(bare.listed, str) and part in PARTS[bare.listed]:
                return DatePart(part, bare.listed)
    tidied = tidied_text(node, hole)
    return WholeText(tidied) if tidied else None


def _unit(measured: ast.expr, hole: str) -> Unit | None:
    match measured:
        case ast.Name(name) if name == hole:
            return "characters"
        case ast.Call(ast.Name(function), [ast.Name(name)], []) if name == hole:
            return UNITS.get(function)
        case ast.Call(ast.Attribute(ast.Name(name), "split"), [], []) if name == hole:
            return "words"
    return None


def tidied_text(node: ast.expr, hole: str) -> Tidied | None:
    """Methods applied to the text of the hole; None for any other expression."""
    match node:
        case ast.Name(name) if name == hole:
            return AS_IT_IS
        case ast.Call(ast.Attribute(owner, method), [], []) if method in CASES or method in STRIPS:
            tidied = tidied_text(owner, hole)
            if tidied is None:
                return None
            if method in CASES:
                return replace(tidied, case=CASES[method]) if tidied.case in (None, method) else None
            return replace(tidied, left=tidied.left or method != "rstrip", right=tidied.right or method != "lstrip")
    return None


# Clauses -------------------------------------------------------------------------------------------------------------


def mentioned(expression: nodes.Expression, names: Iterable[str]) -> set[str]:
    """Names among `names` that the expression reads."""
    return {name.id for name in values(expression.tree)}.intersection(names)


def lower(clause: nodes.Expression, hole: str, bare: Subject = PLAIN) -> Condition:
    """Condition of one clause on one hole; `bare` is the subject of its name alone, which depends on its type.

    Raises Unguided, with the span of the part, if only Python can judge it, and QueryError for mistakes.
    """
    return Lowering(clause.span, hole, bare).condition(clause.tree.body)


@dataclass(frozen=True, slots=True)
class Lowering:
    """Compiles one clause. Every name in it except the hole, earlier holes too, is Python and has a value (S20)."""

    span: Span
    hole: str
    bare: Subject
    codes: dict[ast.expr, CodeType] = field(default_factory=dict)

    def condition(self, node: ast.expr) -> Condition:
        span = span_of(node, self.span)
        if not self._reads_hole(node):
            return self._atom(span, truth, node)
        match node:
            case ast.BoolOp(operator, parts):
                lowered = tuple([self.condition(part) for part in parts])
                return All(span, lowered) if isinstance(operator, ast.And) else Any(span, lowered)
            case ast.UnaryOp(ast.Not(), operand):
                for name, place in self._stops(operand):
                    sentence = f"{name} cannot be negated: a stop says where a value ends, not what it is"
                    hint = f'to forbid a phrase write `not ".." in {self.hole}`'
                    raise QueryError(sentence, span=place, hint=hint)
                return replace(negated(self.condition(operand)), span=span)
            case ast.Compare(ast.Call(ast.Name("type"), [ast.Name(self.hole)], []), _, [kind]):
                hint = f"write [{self.hole}: {ast.unparse(kind)}] in the prompt"
                raise QueryError("the type of a hole is written inside its brackets", span=span, hint=hint)
            case ast.Compare(left, operators, comparators):
                sides = [left, *comparators]
                pairs = [
                    self._comparison(node, sides[at], operator, sides[at + 1]) for at, operator in enumerate(operators)
                ]
                return pairs[0] if len(pairs) == 1 else All(span, tuple(pairs))
            case ast.Call(ast.Name(name), arguments, keywords) if name in EXAMPLES:
                return self._function(span, name, arguments, keywords)
            case ast.Call(ast.Attribute(ast.Name("re"), name), [pattern, ast.Name(self.hole), *_]) if (
                name in WAYS and not self._reads_hole(pattern)
            ):
                return self._by_re(node, WAYS[name])
            case ast.Call(ast.Attribute(ast.Name(self.hole), name), [], []) if name in METHODS:
                return self._atom(span, partial(text_terms.shaped, name))
            case ast.Call(ast.Attribute(owner, "startswith" | "endswith" as name), [value], []) if (
                tidied := tidied_text(owner, self.hole)
            ) and not self._reads_hole(value):
                return self._atom(span, partial(text_terms.edge, name == "startswith", True, tidied), value)
            case ast.Call(ast.Attribute(owner, name), [ast.Name(self.hole)], []) if (
                name in WAYS and not self._reads_hole(owner)
            ):
                return self._atom(span, partial(text_terms.fits, WAYS[name]), owner)
        raise self._unguided(node)

    def _function(self, span: Span, name: str, arguments: list[ast.expr], keywords: list[ast.keyword]) -> Condition:
        """Condition of a function of `where`, whose first argument is the hole."""
        match arguments:
            case [ast.Name(self.hole)] if not keywords and name in SHAPES:
                return self._atom(span, partial(text_terms.shaped, name))
            case [ast.Name(self.hole), value] if not keywords and not self._reads_hole(value) and name in TERMS:
                return replace(self._atom(span, TERMS[name], value), is_stop=name in STOPS)
        takes = f"{name} takes {TAKES.get(name, 'a hole and a text')}"
        raise QueryError(takes, span=span, hint=name + EXAMPLES[name].replace("X", self.hole))

    def _by_re(self, node: ast.Call, way: Way) -> Condition:
        """`re.search(pattern, X, flags)`: with flags, the pattern is the `re.compile` of both."""
        assert isinstance(node.func, ast.Attribute)
        module, (pattern, _, *flags) = node.func.value, node.args
        flags += [keyword.value for keyword in node.keywords if keyword.arg == "flags"]
        if len(flags) > 1 or len(flags) + 2 != len(node.args) + len(node.keywords) or any(map(self._reads_hole, flags)):
            raise self._unguided(node)
        if flags:
            make = ast.copy_location(ast.Attribute(module, "compile", ast.Load()), module)
            pattern = ast.copy_location(ast.Call(make, [pattern, *flags], []), pattern)
        return self._atom(span_of(node, self.span), partial(text_terms.fits_by, way), module, pattern)

    def _comparison(self, whole: ast.Compare, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Condition:
        span = span_of(whole, self.span)
        reads_left, reads_right = self._reads_hole(left), self._reads_hole(right)
        if reads_left and reads_right:
            raise self._unguided(whole)
        if not reads_left and not reads_right:
            symbol = SYMBOLS.get(type(operator)) or WORDS[type(operator)]
            return self._atom(span, partial(number_terms.compared, symbol), left, right)
        match operator, left:
            case ast.Is() | ast.IsNot(), ast.Call(ast.Attribute(_, name)) if name in WAYS and _is_none(right):
                found = self.condition(left)
                return negated(found) if isinstance(operator, ast.Is) else found
            case ast.Is() | ast.IsNot(), _:
                raise self._unguided(whole)
            case ast.In() | ast.NotIn(), _:
                around = tidied_text(right, self.hole)
                if around and not (around.left or around.right):
                    inside: Condition = self._atom(span, partial(text_terms.has, around.case), left)
                else:
                    inside = self._inside(whole, left, right)
                return negated(inside) if isinstance(operator, ast.NotIn) else inside
        if reads_left:
            return self._compared(whole, left, SYMBOLS[type(operator)], right)
        return self._compared(whole, right, FLIPPED[SYMBOLS[type(operator)]], left)

    def _compared(self, whole: ast.expr, asked: ast.expr, symbol: Comparison, value: ast.expr) -> Condition:
        """Condition of a comparison, by the subject that it compares."""
        span = span_of(whole, self.span)
        about = subject(asked, self.hole, self.bare)
        if symbol == "!=" and isinstance(about, WholeText | TextPart):
            return negated(self._compared(whole, asked, "==", value))
        if isinstance(about, WholeText) and about.kind and symbol != "==":
            about = ParsedNumber(about.kind)
        match about:
            case WholeText(tidied, kind) if symbol == "==":
                return self._atom(span, partial(text_terms.text_is, tidied, kind), value)
            case TextPart() if symbol == "==":
                return self._inside(whole, asked, ast.copy_location(ast.Tuple([value], ast.Load()), value))
            case TextLength(unit):
                bound = self._atom(span, partial(number_terms.length_is, unit, symbol), value)
                return replace(bound, bounds_length=unit == "characters" and symbol != "!=")
            case TextCount(phrase):
                self._atom(span, number_terms.counted, phrase)  # an unsuitable text is an error at its own place
                return self._atom(span, partial(number_terms.count_is, symbol), phrase, value)
            case ParsedNumber(kind):
                is_, is_not = (partial(number_terms.number_is, kind, each) for each in (symbol, OPPOSITE[symbol]))
                low, high = (partial(number_terms.number_reach, kind, each) for each in (symbol, OPPOSITE[symbol]))
                judgeable = partial(number_terms.is_number, kind)
                return replace(self._atom(span, is_, value), opposite=is_not, judgeable=judgeable, reaches=(low, high))
            case TypedValue("date"):
                return self._atom(span, partial(number_terms.date_is, symbol), value)
            case TypedValue("datetime" | "time" as kind) if symbol in ORDER:
                is_, is_not = (partial(number_terms.moment_is, kind, each) for each in (symbol, OPPOSITE[symbol]))
                judgeable = partial(number_terms.is_moment, kind)
                return replace(self._atom(span, is_, value), opposite=is_not, judgeable=judgeable)
            case TypedValue("datetime" | "time" as kind):
                equal = self._atom(span, partial(number_terms.moment_is, kind, "=="), value)
                return equal if symbol == "==" else negated(equal)
            case DatePart(part, kind):
                return self._atom(span, partial(number_terms.date_part_is, kind, part, symbol), value)
            case TypedValue(tuple() as listed):
                return self._atom(span, partial(number_terms.listed_is, listed, symbol), value)
        raise self._unguided(whole)

    def _inside(self, whole: ast.expr, asked: ast.expr, several: ast.expr) -> Condition:
        """Condition of `in`, by the subject that is looked for."""
        span = span_of(whole, self.span)
        match subject(asked, self.hole, self.bare):
            case WholeText(tidied, kind):
                return self._atom(span, partial(text_terms.text_in, tidied, kind), several)
            case TextPart(bounds) if not any(map(self._reads_hole, bounds)):
                if len(bounds) == 2:
                    return self._atom(span, text_terms.part_in, *bounds, several)
                atom = self._atom(span, text_terms.character_in, *bounds, several)
                return replace(atom, opposite=text_terms.character_not_in, judgeable=text_terms.has_character)
            case TextLength(unit):
                return self._atom(span, partial(number_terms.length_in, unit), several)
            case TextCount(phrase):
                self._atom(span, number_terms.counted, phrase)
                return self._atom(span, number_terms.count_in, phrase, several)
            case ParsedNumber(kind):
                atom = self._atom(span, partial(number_terms.number_in, kind), several)
                judgeable = partial(number_terms.is_number, kind)
                return replace(atom, opposite=partial(number_terms.number_not_in, kind), judgeable=judgeable)
            case TypedValue("date"):
                return self._atom(span, number_terms.date_in, several)
            case TypedValue("datetime" | "time" as kind):
                return self._atom(span, partial(number_terms.moment_in, kind), several)
            case DatePart(part, kind):
                return self._atom(span, partial(number_terms.date_part_in, kind, part), several)
            case TypedValue(tuple() as listed):
                return self._atom(span, partial(number_terms.listed_in, listed), several)
        raise self._unguided(whole)

    def _atom(self, span: Span, term: Callable[..., Term], *parts: ast.expr) -> Atom:
        """A condition with these parts as values. Errors are placed at the last part.

        It is evaluated at once if all values are written out (S22).
        """
        atom = Atom(span, term, tuple([self._code(part) for part in parts]))
        try:
            known = tuple([written(part, KNOWN) for part in parts])
            found = term(span, *known)
        except Inexact as error:
            raise Unguided(error.message, span=error.span, hint=error.hint) from None
        except ConstraintError as error:
            raise QueryError(error.message, span=span_of(parts[-1], self.span), hint=error.hint) from None
        except re.error as error:
            sentence = f"this is not a regular expression: {error}"
            raise QueryError(sentence, span=span_of(parts[-1], self.span), hint=NO_PATTERN) from None
        except Exception:  # not written out; or an error of Python, which is raised again when the clause runs
            return atom
        is_fixed = not any(isinstance(each, ast.Name) for part in parts for each in every_node(part))
        return replace(atom, written=known, known=found if is_fixed else None)

    def _code(self, node: ast.expr) -> CodeType:
        """Code of a part of a clause, shared by all conditions that contain it."""
        if node not in self.codes:
            if not isinstance(node, ast.Constant):
                self._refuse_foreign(node)
            self.codes[node] = compiled(node, span_of(node, self.span))
        return self.codes[node]

    def _reads_hole(self, node: ast.AST) -> bool:
        return any(name.id == self.hole for name in values(node))

    def _refuse_foreign(self, node: ast.expr) -> None:
        for name, span in self._stops(node):
            raise QueryError(
                f"{name} says where its own hole ends and cannot be part of a condition on [{self.hole}]",
                span=span,
                hint="give it a clause of its own, joined by `and`",
            )
        for part in every_node(node):
            match part:
                case ast.Call(ast.Name(name), [ast.Name(other), *_]) if name in EXAMPLES or name in UNITS:
                    raise QueryError(
                        f"{name} guides the hole it is asked of and cannot be part of a condition on [{self.hole}]",
                        span=span_of(part, self.span),
                        hint=f"give it a clause of its own, joined by `and`, or ask in Python what {other} is",
                    )

    def _stops(self, node: ast.expr) -> Iterator[tuple[str, Span]]:
        for part in every_node(node):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in STOPS:
                yield part.func.id, span_of(part, self.span)

    def _unguided(self, node: ast.expr) -> QueryError:
        for part in every_node(node):
            match part:
                case ast.Call(ast.Name(name)) if name in UNITS:
                    return QueryError(
                        f"{name} only says how long a value is: len({name}({self.hole})) is compared with a number",
                        span=span_of(part, self.span),
                        hint=f"len({name}({self.hole})) < 20"
                        + (f"; in Python the words are {self.hole}.split()" if name == "WORDS" else ""),
                    )
        sentence, hint = "only Python can judge this", "give it a clause of its own, joined by `and`"
        for word in words(node):
            sentence = f"{word.id} cannot be part of a condition that only Python can judge"
            return Unguided(sentence, span=span_of(node, self.span), hint=hint)
        return Unguided(sentence, span=span_of(node, self.span), hint=f"{hint}; conditions that guide: {SUPPORTED}")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
