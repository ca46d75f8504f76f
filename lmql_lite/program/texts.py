"""Conditions on the text of a hole: which texts it can be, what it has in it, what its characters are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType

from lmql_lite.constraints import shapes
from lmql_lite.constraints.spellings import SIGMAS, spellings
from lmql_lite.constraints.terms import Begins, Contains, Ends, Term
from lmql_lite.errors import ConstraintError, Span
from lmql_lite.program.values import Evaluate, encode, followed, wrong

WHOLE_TEXT = 200
"""Characters of a text of which a hole can be a part: all its parts are options."""


@dataclass(frozen=True, slots=True)
class Tidied:
    """What is done to the text before it is compared: `X.strip().lower()`."""

    lowered: bool = False
    left: bool = False
    right: bool = False


@dataclass(frozen=True, slots=True)
class OneOf:
    """`X in value`, `X == value`, `X.lower() in value`. In a text is, as in Python, what is a part of it."""

    span: Span
    code: CodeType
    single: bool
    tidied: Tidied = Tidied()

    def bind(self, evaluate: Evaluate) -> Term:
        value = evaluate(self.code)
        options: list[str] = []
        for option in [value] if self.single else self._several(value):
            if not isinstance(option, str):
                hint = "a text has quotes; numbers are compared with int(X) or float(X)"
                raise wrong(self.span, "a hole is text and can only be one of several texts", option, hint)
            encode(self.span, option)
            options.append(option)
        lowered, left, right = self.tidied.lowered, self.tidied.left, self.tidied.right
        if lowered and any(SIGMAS & set(option) for option in options):
            sentence = "lower() of a Greek sigma depends on the letters around it, which cannot be enforced"
            raise ConstraintError(sentence, span=self.span, hint="list the spellings: X in [..]")
        options = list(dict.fromkeys(options))
        return followed(spellings(tuple(options), self.span, lowered=lowered, left=left, right=right))

    def _several(self, value: object) -> Iterable[object]:
        if not isinstance(value, str):
            if isinstance(value, Iterable):
                return value
            sentence = "the options of a hole are a list, set or other collection of texts"
            raise wrong(self.span, sentence, value, 'X in ["yes", "no"]')
        if len(value) > WHOLE_TEXT:
            sentence = f"a hole can be a part of a text of up to {WHOLE_TEXT} characters; this one has {len(value):,}"
            raise ConstraintError(sentence, span=self.span, hint="to choose among texts, put them into a list")
        ends = range(len(value) + 1)
        return [value[start:end] for start in ends for end in ends[start:]]


@dataclass(frozen=True, slots=True)
class Has:
    """`value in X`."""

    span: Span
    code: CodeType

    def bind(self, evaluate: Evaluate) -> Term:
        value = evaluate(self.code)
        if not isinstance(value, str):
            raise wrong(self.span, "a hole is text and can only contain text", value, "a text has quotes")
        return Contains(encode(self.span, value), self.span)


@dataclass(frozen=True, slots=True)
class Shaped:
    """`INT(X)`, `X.isdigit()`: a kind of text that has a name."""

    span: Span
    name: str

    def bind(self, evaluate: Evaluate) -> Term:
        return (shapes.shape if self.name in shapes.SHAPES else shapes.method)(self.name, self.span)


@dataclass(frozen=True, slots=True)
class Edge:
    """`X.startswith(value)`, `ENDS_WITH(X, value)`: a text, or several, any of which will do.

    As in Python the methods take a tuple only; the functions take any collection.
    """

    span: Span
    code: CodeType
    at_start: bool
    tuple_only: bool

    def bind(self, evaluate: Evaluate) -> Term:
        value = evaluate(self.code)
        several = isinstance(value, tuple) if self.tuple_only else isinstance(value, Iterable)
        options = (
            [value] if isinstance(value, str) else list(value) if several and isinstance(value, Iterable) else [value]
        )
        texts: set[bytes] = set()
        for option in options:
            if not isinstance(option, str):
                kind = "a tuple of texts" if self.tuple_only else "a collection of texts"
                sentence = f"a hole begins and ends with a text, or with one of {kind}"
                raise wrong(self.span, sentence, option, 'X.startswith(("a", "b")), STARTS_WITH(X, ["a", "b"])')
            texts.add(encode(self.span, option))
        return (Begins if self.at_start else Ends)(tuple(sorted(texts)), self.span)
