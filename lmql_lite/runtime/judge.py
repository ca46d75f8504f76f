"""What only Python can judge of a hole: its value at the end, and its text on the way where a function asks (S21)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any, NamedTuple

from lmql_lite.constraints.matcher import Matcher
from lmql_lite.constraints.membership import meets
from lmql_lite.errors import Span
from lmql_lite.program.numbers import MADE
from lmql_lite.program.ops import FINAL, GUIDED, Hole, Predicate
from lmql_lite.runtime.environment import Environment, evaluate, value_of


class Objection(NamedTuple):
    """The part of the query that a value does not meet, and why, where it is a type and says so."""

    span: Span
    reason: str | None = None


class Judge:
    """The type and the predicates of one hole. While Python is asked, the value stands under the hole's name.

    A function with a parameter `final` is also asked about text that is not complete: what it then finds False no
    continuation can make right, and None says that it cannot tell yet. All others are asked at the end alone, as are
    those about a hole whose value is more than its text.
    """

    def __init__(self, op: Hole) -> None:
        self.value: Any = None
        """What the hole's text means, once it is complete."""
        self._op = op
        self._type = op.type.spec if op.type else None
        self._is_text = self._type is None or self._type.convert is str
        self._told: dict[Predicate, bool] = {}
        self._heard = ""

    def fork(self) -> Judge:
        fork = copy(self)
        fork._told = dict(self._told)
        return fork

    async def objects(self, matcher: Matcher, environment: Environment) -> Objection | None:
        """The first condition that the value does not meet, or that what is certain of it cannot meet any more."""
        final = matcher.ending is not None
        told = [predicate for predicate in self._op.predicates if self._is_told(predicate, environment)]
        text = matcher.value[: matcher.certain].decode("utf-8", "strict" if final else "ignore")
        if not final and (not told or not self._is_text or text in ("", self._heard)):
            return None
        self._heard = text
        try:
            self.value = self._type.convert(text) if final and self._type else text
            number = MADE[self._op.number](text) if final and self._op.number else None
        except (ValueError, RecursionError) as error:  # the latter where JSON is nested too deeply
            return Objection(self._op.type.span if self._op.type else self._op.span, str(error))
        broken = await self.judged(self.value, text, environment, None if final else told)
        if broken is None and number is not None:
            self.value = number
        return broken

    async def judged(
        self, value: Any, text: str, environment: Environment, told: Sequence[Predicate] | None = None
    ) -> Objection | None:
        """The first predicate that a value is refused by, or the beginning of one by those that are `told`."""
        evaluate_now = partial(value_of, environment=environment)
        with assigned(environment, {self._op.name: value, FINAL: told is None, GUIDED: []}):
            for predicate in self._op.predicates if told is None else told:
                if predicate.others and not predicate.others.have_values(evaluate_now, predicate.span):
                    continue
                terms = [part.bind(evaluate_now) for part in predicate.guided]
                environment[GUIDED] = [meets(term, text.encode()) for term in terms]
                code = (
                    predicate.call.code if predicate.call and self._is_told(predicate, environment) else predicate.code
                )
                verdict = await evaluate(code, environment)
                if not verdict and (told is None or verdict is not None):
                    return Objection(predicate.span)
        return None

    def _is_told(self, predicate: Predicate, environment: Environment) -> bool:
        """Whether the function wants to know if the text is complete."""
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
