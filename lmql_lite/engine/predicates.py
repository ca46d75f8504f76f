"""Predicates: Python that judges the value of a hole, and for functions that want it, its unfinished text (S21)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from lmql_lite.constraints.matcher import Matcher
from lmql_lite.engine.environment import Environment, evaluate, value_of
from lmql_lite.engine.tools.fill import ToolText
from lmql_lite.errors import Span
from lmql_lite.program.ops import Hole, HoleType
from lmql_lite.program.symbols import MADE
from lmql_lite.program.where import FINAL, TEXT, Condition


class Objection(NamedTuple):
    """The part of the query that a value breaks, and the reason, if a type gives one."""

    span: Span
    reason: str | None = None


class Judge:
    """The type of one hole, and the conditions that Python judges. These read the value under the hole's name; if
    `INT(X)` makes the hole a number, that is the value.

    A function with a parameter `final` also judges incomplete text: False means that no continuation can be valid, None
    that it cannot tell yet. Other functions judge only the complete value. So do all functions if the value is not
    text.
    """

    def __init__(self, op: Hole) -> None:
        self.value: Any = None
        """The value of the hole, once its text is complete."""
        self.op = op
        self._type = op.type.spec if op.type else None
        self._is_text = self._type is None or self._type.convert is str
        self._take_final: dict[Condition, bool] = {}
        self._heard = ""

    def fork(self) -> Judge:
        fork = copy(self)
        fork._take_final = dict(self._take_final)
        return fork

    def retype(self, type: HoleType | None) -> None:
        self.op = replace(self.op, type=type)
        self._type = type.spec if type else None

    async def objects(self, matcher: Matcher | ToolText, environment: Environment) -> Objection | None:
        """The first condition that the value breaks, or that its certain part can no longer meet."""
        final = matcher.ending is not None
        told = [each for each in self.op.judges if self._judges_unfinished(each, environment)]
        text = matcher.value[: matcher.certain].decode("utf-8", "strict" if final else "ignore")
        if not final and (not told or not self._is_text or text in ("", self._heard)):
            return None
        self._heard = text
        try:
            self.value = self._valued(text) if final else text
        except (ValueError, RecursionError) as error:  # RecursionError for JSON nested too deeply
            return Objection(self.op.type.span if self.op.type else self.op.span, str(error))
        return await self.judged(self.value, text, environment, None if final else told)

    def _valued(self, text: str) -> Any:
        """The value of a complete text. Raises ValueError or RecursionError if the type rejects the text."""
        if self._type:
            return self._type.convert(text)
        return MADE[self.op.number](text) if self.op.number else text

    async def judged(
        self, value: Any, text: str, environment: Environment, told: Sequence[Condition] | None = None
    ) -> Objection | None:
        """The first condition that rejects a complete value, or with `told`, the first of those that rejects unfinished
        text."""
        if not self.op.judges:
            return None
        evaluate_now = partial(value_of, environment=environment)
        run = partial(evaluate, environment=environment)
        number = {self.op.name: value} if self.op.number else None
        with assigned(environment, {self.op.name: value, TEXT: text, FINAL: told is None}):
            for condition in self.op.judges if told is None else told:
                if not condition.clause.has_values(evaluate_now):
                    continue
                call = condition.judgement and condition.judgement.call
                with condition.clause.reading_values(evaluate_now, number):
                    if call and self._judges_unfinished(condition, environment):
                        verdict = await run(call.code)
                    else:
                        verdict = await condition.accepts(text, evaluate_now, run)
                if not verdict and (told is None or verdict is not None):
                    return Objection(condition.span)
        return None

    def _judges_unfinished(self, condition: Condition, environment: Environment) -> bool:
        """True if the function takes `final`, and so judges unfinished text."""
        if condition.judgement is None or condition.judgement.call is None:
            return False
        if condition not in self._take_final:
            call = condition.judgement.call
            function = value_of(call.function, environment)
            self._take_final[condition] = _takes_final(function, call.by_place)
        return self._take_final[condition]


@contextmanager
def assigned(environment: Environment, values: Mapping[str, Any]) -> Iterator[None]:
    """Gives variables these values for a while, so that a rejected value does not stay."""
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
    except (TypeError, ValueError):  # not a function, or a builtin without a signature
        return False
    final = parameters.get("final")
    if final is None or final.kind is final.KEYWORD_ONLY:
        return final is not None
    return final.kind is final.POSITIONAL_OR_KEYWORD and list(parameters).index("final") >= by_place
