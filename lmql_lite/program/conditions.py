"""A `where` clause between compile time and run time: its shape is known, its values are Python code.

`bind` evaluates the values and returns the term. Raises ConstraintError at the clause for a value of a wrong type.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from enum import Enum
from functools import cached_property
from types import CodeType
from typing import TypeVar

from lmql_lite.constraints.terms import And, Constant, Not, Or, Term, conjunction
from lmql_lite.errors import ConstraintError, Span
from lmql_lite.program.bytecode import NotWritten

Evaluate = Callable[[CodeType], object]
Reach = Callable[..., tuple[float, float]]
Made = TypeVar("Made")
NO_VALUE = object()


def at_compile_time(code: CodeType) -> object:
    """Evaluates nothing: a condition that is bound with it returns its term if all its values are written out."""
    raise NotWritten


def once(evaluate: Evaluate) -> Evaluate:
    """Evaluates each code object once: the middle of `a < b < c` is a part of two comparisons."""
    if evaluate is at_compile_time:
        return evaluate
    known: dict[int, object] = {}

    def remembered(code: CodeType) -> object:
        if id(code) not in known:
            known[id(code)] = evaluate(code)
        return known[id(code)]

    return remembered


@dataclass(frozen=True, slots=True)
class OtherHoles:
    """The other holes that a clause reads. While one has no value, a clause that `waits` counts as true."""

    names: tuple[str, ...]
    codes: tuple[CodeType, ...]
    """Each name as an expression."""
    waits: bool

    def have_values(self, evaluate: Evaluate, clause: Span) -> bool:
        """True if all holes have values. Raises ConstraintError if one has none and the clause cannot wait for it."""
        for name, code in zip(self.names, self.codes, strict=True):
            try:
                value = evaluate(code)
            except NameError:
                value = NO_VALUE
            if value is not vars(builtins).get(name, NO_VALUE):
                continue
            if self.waits:
                return False
            raise ConstraintError(
                f"`{clause.source}` reads [{name}], which has no value yet",
                span=clause,
                hint=f"fill [{name}] first, or put the condition into the `where` at the end of the query",
            )
        return True

    @contextmanager
    def read_as_values(self, evaluate: Evaluate, clause: Span) -> Iterator[None]:
        """Raises ConstraintError if Python fails because a hole has a number or a date instead of text."""
        try:
            yield
        except (TypeError, AttributeError) as error:
            for name, code in zip(self.names, self.codes, strict=True):
                value = evaluate(code)
                if isinstance(value, int | float | date | Enum):
                    kind = "number" if type(value) in (int, float) else type(value).__name__
                    sentence = f"`{clause.source}` reads [{name}], which is then the {kind} {value}: {error}"
                    hint = f"write str({name}) for its text"
                    raise ConstraintError(sentence, span=clause, hint=hint) from error
            raise


@dataclass(frozen=True, slots=True)
class Atom:
    """One condition without `and`, `or` and `not`: `term` makes its term from its span and its values.

    For some texts `int(X) < 3` and `X[0] == "a"` raise an error: these meet neither the condition nor its opposite.
    Such an atom has both terms, and the term of the texts that Python can judge.
    """

    span: Span
    term: Callable[..., Term]
    codes: tuple[CodeType, ...]
    opposite: Callable[..., Term] | None = None
    judgeable: Callable[..., Term] | None = None
    reaches: tuple[Reach, Reach] | None = None
    """For `int(X)` and `float(X)`: functions to the number range in which it, and its opposite, may be true."""
    is_stop: bool = False
    bounds_length: bool = False
    """True if it is a bound on `len(X)`."""
    written: tuple[object, ...] | None = None
    """Its values, if they are written out."""
    known: Term | None = None
    """Its term, if it is the same in every run."""

    def bind(self, evaluate: Evaluate) -> Term:
        return self.known if self.known is not None else self.made(self.term, evaluate)

    def made(self, make: Callable[..., Made], evaluate: Evaluate) -> Made:
        """Result of `make`, one of its functions, for its values."""
        if evaluate is at_compile_time and self.written is not None:
            return make(self.span, *self.written)
        return make(self.span, *map(evaluate, self.codes))


@dataclass(frozen=True, slots=True)
class No:
    span: Span
    condition: Condition

    def bind(self, evaluate: Evaluate) -> Term:
        return Not(self.condition.bind(evaluate), self.span)


@dataclass(frozen=True)
class All:
    span: Span
    conditions: tuple[Condition, ...]

    @cached_property
    def known(self) -> Term | None:
        """Its term if it is the same in every run, else None."""
        terms = [each.known for each in self.conditions if isinstance(each, Atom | All) and each.known is not None]
        return conjunction(tuple(terms)) if len(terms) == len(self.conditions) else None

    def bind(self, evaluate: Evaluate) -> Term:
        if self.known is not None:
            return self.known
        evaluate = once(evaluate)
        terms: list[Term] = []
        for condition in self.conditions:
            terms.append(condition.bind(evaluate))
            if isinstance(terms[-1], Constant) and not terms[-1].holds:
                break  # as in Python, parts after a false one are not evaluated
        return conjunction(tuple(terms))


@dataclass(frozen=True, slots=True)
class Any:
    span: Span
    conditions: tuple[Condition, ...]

    def bind(self, evaluate: Evaluate) -> Term:
        evaluate = once(evaluate)
        terms: list[Term] = []
        reached: list[Term] = []
        """Terms that a text must meet before Python evaluates the next part."""
        for condition in self.conditions:
            # as in Python, parts after a true one are not evaluated; but a stop always stops
            if not any(isinstance(term, Constant) and term.holds for term in terms) or _has_stops(condition):
                term = condition.bind(evaluate)
                terms.append(And((*reached, term), self.span) if reached else term)
                judgeable = _judgeable(condition, evaluate)
                if judgeable is not None:
                    reached.append(judgeable)
        return Or(tuple(terms), self.span)


@dataclass(frozen=True, slots=True)
class Joint:
    """A clause that also reads other holes."""

    span: Span
    others: OtherHoles
    condition: Condition

    def bind(self, evaluate: Evaluate) -> Term:
        if not self.others.have_values(evaluate, self.span):
            return Constant(True, self.span)
        with self.others.read_as_values(evaluate, self.span):
            return self.condition.bind(evaluate)


@dataclass(frozen=True, slots=True)
class Narrowing:
    """A clause about places inside a value, which Python judges in any case (`places`)."""

    span: Span
    term: Callable[[Evaluate], Term]

    def bind(self, evaluate: Evaluate) -> Term:
        return self.term(evaluate)


Condition = Atom | No | All | Any | Joint | Narrowing


def truth(span: Span, value: object) -> Term:
    """The term of a condition that does not mention the hole."""
    return Constant(bool(value), span)


def negated(condition: Condition) -> Condition:
    """`not` of a condition. Around `int(X)` or `X[0]`, it moves inwards: a text that is not a number meets neither
    side."""
    if not _is_partial(condition):
        return No(condition.span, condition)
    match condition:
        case Atom(_, term, opposite=opposite) if opposite is not None:
            reaches = condition.reaches and condition.reaches[::-1]
            return replace(condition, term=opposite, opposite=term, reaches=reaches, known=None)
        case All(span, conditions):
            return Any(span, tuple(map(negated, conditions)))
        case Any(span, conditions):
            return All(span, tuple(map(negated, conditions)))
    return No(condition.span, condition)


def _judgeable(condition: Condition, evaluate: Evaluate) -> Term | None:
    """Term of the texts that Python can judge: for all others `int` raises an error. None if it can judge every
    text."""
    match condition:
        case Atom(span=span, judgeable=judge) if judge is not None:
            return condition.made(judge, evaluate)
        case All(span, parts) | Any(span, parts) if _is_partial(condition):
            judgeable: list[Term] = []
            ends: list[Term] = []
            """For each part so far, the texts after which Python evaluates no further part."""
            for part in parts:
                reads = _judgeable(part, evaluate)
                if reads is not None and Not(reads) not in ends:
                    judgeable.append(Or((*ends, reads), span))
                if _has_stops(part):  # true of every text
                    continue
                term = part.bind(evaluate)
                if term == Constant(isinstance(condition, Any)):
                    break
                ends.append(Not(term, span) if isinstance(condition, All) else term)
            return conjunction(tuple(judgeable)) if judgeable else None
    return None


def _is_partial(condition: Condition) -> bool:
    """True if judging the condition raises an error for some texts, such as those that are not numbers."""
    if isinstance(condition, All | Any):
        return any(map(_is_partial, condition.conditions))
    return isinstance(condition, Atom) and condition.judgeable is not None


def _has_stops(condition: Condition) -> bool:
    if isinstance(condition, All | Any):
        return any(map(_has_stops, condition.conditions))
    return isinstance(condition, Atom) and condition.is_stop


def bounds_length(condition: Condition) -> bool:
    """True if the condition only bounds the length of a value."""
    if isinstance(condition, All):
        return all(map(bounds_length, condition.conditions))
    return isinstance(condition, Atom) and condition.bounds_length


def reach(condition: Condition, evaluate: Evaluate) -> tuple[float, float]:
    """Least and greatest number for which the conditions on `int(X)` or `float(X)` may be true."""
    match condition:
        case All(_, conditions):
            lows, highs = zip(*(reach(part, evaluate) for part in conditions), strict=True)
            return max(lows), min(highs)
        case Atom(reaches=(own, _)):
            return condition.made(own, evaluate)
    return -math.inf, math.inf
