"""Predicates: judgements of Python on the value of a hole, and on its unfinished text where a function asks (S21)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import partial
from typing import Any, NamedTuple

from lmql_lite.constraints.matcher import Matcher
from lmql_lite.constraints.simplify import satisfies
from lmql_lite.engine.environment import Environment, evaluate, value_of
from lmql_lite.errors import Span
from lmql_lite.program.number_terms import MADE
from lmql_lite.program.ops import FINAL, GUIDED, TEXT, VALUE, Hole, Predicate


class Objection(NamedTuple):
    """The part of the query that a value does not meet, and why, where it is a type and says so."""

    span: Span
    reason: str | None = None


class Judge:
    """The type and the predicates of one hole. While Python is asked, the value stands under the hole's name; of a
    hole that `INT(X)` makes a number, its text.

    A function with a parameter `final` is also asked about text that is not complete: what it then finds False no
    continuation can make right, and None says that it cannot tell yet. All others are asked at the end alone, as are
    those about a hole whose value is more than its text.

    `outer` judges the hole of another query to which this one's value is returned as it stands (S26), once it is
    complete; `typed` makes the value that which `outer` has to judge.
    """

    def __init__(self, op: Hole, outer: Judge | None = None, typed: Callable[[Any], Any] | None = None) -> None:
        self.value: Any = None
        """The value of the hole's text, once it is complete."""
        self.op = op
        self._outer = outer
        self._typed = typed
        self._type = op.type.spec if op.type else None
        self._is_text = self._type is None or self._type.convert is str
        self._told: dict[Predicate, bool] = {}
        self._heard = ""

    def fork(self) -> Judge:
        fork = copy(self)
        fork._told = dict(self._told)
        return fork

    async def objects(self, matcher: Matcher, environment: Environment, *outer: Environment) -> Objection | None:
        """The first condition that the value does not meet, or that what is certain of it cannot meet any more.
        `outer` are the variables of the queries that wait for this one, the innermost first."""
        final = matcher.ending is not None
        told = [predicate for predicate in self.op.predicates if self._is_told(predicate, environment)]
        text = matcher.value[: matcher.certain].decode("utf-8", "strict" if final else "ignore")
        if not final and (not told or not self._is_text or text in ("", self._heard)):
            return None
        self._heard = text
        try:
            self.value = self._valued(text) if final else text
        except (ValueError, RecursionError) as error:  # the latter where JSON is nested too deeply
            return Objection(self.op.type.span if self.op.type else self.op.span, str(error))
        broken = await self.judged(self.value, text, environment, None if final else told)
        if broken is not None or not final or self._outer is None:
            return broken
        return await self._outer.refuses(self.value, *outer)

    async def refuses(self, value: Any, environment: Environment, *outer: Environment) -> Objection | None:
        """The first predicate that refuses what a query is about to return, here or further out."""
        value = value if self._typed is None else self._typed(value)
        broken = await self.judged(value, str(value), environment)
        if broken is not None or self._outer is None:
            return broken
        return await self._outer.refuses(value, *outer)

    def _valued(self, text: str) -> Any:
        """The value of a complete text. Raises ValueError and RecursionError where its type refuses it."""
        if self._type:
            return self._type.convert(text)
        return MADE[self.op.number](text) if self.op.number else text

    async def judged(
        self, value: Any, text: str, environment: Environment, told: Sequence[Predicate] | None = None
    ) -> Objection | None:
        """The first predicate that a value is refused by, or the beginning of one by those that are `told`."""
        if not self.op.predicates:
            return None
        evaluate_now = partial(value_of, environment=environment)
        named = text if self.op.number else value
        with assigned(environment, {self.op.name: named, VALUE: value, TEXT: text, FINAL: told is None, GUIDED: []}):
            for predicate in self.op.predicates if told is None else told:
                if predicate.others and not predicate.others.have_values(evaluate_now, predicate.span):
                    continue
                terms = [part.bind(evaluate_now) for part in predicate.guided]
                environment[GUIDED] = [satisfies(term, text.encode()) for term in terms]
                code = (
                    predicate.call.code if predicate.call and self._is_told(predicate, environment) else predicate.code
                )
                others = predicate.others
                with others.read_as_values(evaluate_now, predicate.span) if others else nullcontext():
                    verdict = await evaluate(code, environment)
                if not verdict and (told is None or verdict is not None):
                    return Objection(predicate.span)
        return None

    def _is_told(self, predicate: Predicate, environment: Environment) -> bool:
        """True if the function takes `final`, and so judges unfinished text."""
        if predicate.call is None:
            return False
        if predicate not in self._told:
            function = value_of(predicate.call.function, environment)
            self._told[predicate] = _takes_final(function, predicate.call.by_place)
        return self._told[predicate]


@contextmanager
def assigned(environment: Environment, values: Mapping[str, Any]) -> Iterator[None]:
    """Gives variables these values for a while: one that is refused must not stay."""
    before = {name: environment[name] for name in values if name in environment}
    environment.update(values)
    try:
        yield
    finally:
        for name in values.keys() - before.keys():
            environment.pop(name, None)
        environment.update(before)


def _takes_final(function: Any, by_place: int) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # no function, or a builtin that does not say what it takes
        return False
    final = parameters.get("final")
    if final is None or final.kind is final.KEYWORD_ONLY:
        return final is not None
    return final.kind is final.POSITIONAL_OR_KEYWORD and list(parameters).index("final") >= by_place
