"""Conditions with a regular expression in them, and stops, which may be one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from dataclasses import dataclass
from types import CodeType
from typing import Literal

from lmql_lite.constraints.pattern import UnsupportedPattern, found, phrase, program
from lmql_lite.constraints.terms import And, Matches, Stop, StopPattern, Term
from lmql_lite.errors import ConstraintError, Span
from lmql_lite.program.values import Evaluate, encode, wrong

Way = Literal["fullmatch", "match", "search"]
"""How Python's `re` asks."""
MEANINGFUL = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE | re.ASCII
"""The flags of a pattern that say what it matches."""
LONGEST = 64
"""Characters of what STOPS_BEFORE can hold back while it may still be cut."""


@dataclass(frozen=True, slots=True)
class Fits:
    """`REGEX(X, value)`, `re.search(value, X)`: a pattern as text, or a compiled one with its flags."""

    span: Span
    code: CodeType
    way: Way = "fullmatch"
    module: CodeType | None = None
    """What is called `re` there."""

    def bind(self, evaluate: Evaluate) -> Term:
        if self.module is not None and (module := evaluate(self.module)) is not re:
            sentence = "what guides the model is Python's own re, and here the name means something else"
            raise wrong(self.span, sentence, module, "ask it inside a function")
        value = evaluate(self.code)
        pattern, flags = (value.pattern, value.flags) if isinstance(value, re.Pattern) else (value, 0)
        if not isinstance(pattern, str):
            sentence = "a regular expression is a text, or what re.compile makes of one"
            own = f"what has its own {self.way}() can be asked inside a function"
            raise wrong(self.span, sentence, value, 'REGEX(X, r"[a-z]+")' if self.way == "fullmatch" else own)
        flags, whole = flags & MEANINGFUL, True
        try:
            if self.way != "fullmatch":
                pattern, flags, whole = found(pattern, flags, from_start=self.way == "match")
            program(pattern, flags & MEANINGFUL)
        except UnsupportedPattern as error:
            raise ConstraintError(error.sentence, span=self.span, hint=error.hint) from None
        return Matches(pattern, flags & MEANINGFUL, delimits=whole, span=self.span)


@dataclass(frozen=True, slots=True)
class StopsAt:
    """`STOPS_AT(X, value)`, `STOPS_BEFORE(X, value)`: phrases and patterns, one or several, any of which stops."""

    span: Span
    code: CodeType
    inclusive: bool

    def bind(self, evaluate: Evaluate) -> Term:
        value = evaluate(self.code)
        several = isinstance(value, Iterable) and not isinstance(value, str)
        phrases: list[object] = list(value) if several and isinstance(value, Iterable) else [value]
        if not phrases:
            sentence = "a stop is a text or a pattern, or a list of them that is not empty"
            raise wrong(self.span, sentence, value, "a hole needs no stop: leave the clause out")
        stops = tuple(self._stop(each) for each in phrases)
        if isinstance(value, Set):  # the order of a set differs from process to process
            stops = tuple(
                sorted(stops, key=lambda stop: stop.phrase if isinstance(stop, Stop) else stop.pattern.encode())
            )
        return stops[0] if len(stops) == 1 else And(stops, self.span)

    def _stop(self, value: object) -> Stop | StopPattern:
        if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
            try:
                pattern, flags = phrase(value.pattern, value.flags & MEANINGFUL, None if self.inclusive else LONGEST)
            except UnsupportedPattern as error:
                raise ConstraintError(error.sentence, span=self.span, hint=error.hint) from None
            return StopPattern(pattern, flags & MEANINGFUL, self.inclusive, self.span)
        if not isinstance(value, str) or not value:
            sentence = "a stop is a text that is not empty, or what re.compile makes of one"
            raise wrong(self.span, sentence, value, 'STOPS_AT(X, [".", re.compile(r"\\s+")])')
        return Stop(encode(self.span, value), self.inclusive, self.span)
