"""Conditions on the text of a hole: which texts it can be, what it has in it, what its characters are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from types import CodeType

from lmql_lite.constraints import shapes
from lmql_lite.constraints.spellings import ANYTHING, Case, Inexact, containing, ending, spellings, starting
from lmql_lite.constraints.terms import And, Begins, Constant, Contains, Ends, Length, Matches, Not, Or, Term
from lmql_lite.errors import ConstraintError, Span
from lmql_lite.program.numbers import Kind, NumberIn
from lmql_lite.program.values import Evaluate, encode, followed, wrong

WHOLE_TEXT = 200
"""Characters of a text of which a hole can be a part: all its parts are options."""


@dataclass(frozen=True, slots=True)
class Tidied:
    """What is done to the text before it is compared: `X.strip().lower()`."""

    case: Case | None = None
    left: bool = False
    right: bool = False


@dataclass(frozen=True, slots=True)
class OneOf:
    """`X in value`, `X == value`, `X.lower() in value`. In a text is, as in Python, what is a part of it.

    Of a hole that is a number of some kind, options may be texts and numbers.
    """

    span: Span
    code: CodeType
    single: bool
    tidied: Tidied = Tidied()
    kind: Kind | None = None

    def bind(self, evaluate: Evaluate) -> Term:
        value = evaluate(self.code)
        options: list[str] = []
        numbers: list[object] = []
        for option in [value] if self.single else _several(self.span, value):
            if self.kind and isinstance(option, Real):
                numbers.append(option)
                continue
            if not isinstance(option, str):
                hint = "a text has quotes; numbers are compared with int(X) or float(X)"
                raise wrong(self.span, "a hole is text and can only be one of several texts", option, hint)
            encode(self.span, option)
            options.append(option)
        tidied = self.tidied
        options = list(dict.fromkeys(options))
        term = spellings(tuple(options), self.span, case=tidied.case, left=tidied.left, right=tidied.right)
        texts = followed(term)
        if self.kind is None or not numbers:
            return texts
        return Or((texts, NumberIn(self.span, self.code, inside=True, kind=self.kind).among(numbers)), self.span)


def _several(span: Span, value: object) -> Iterable[object]:
    """What may be found `in` a value: what it lists, or the parts of a text."""
    if not isinstance(value, str):
        if isinstance(value, Iterable):
            return value
        sentence = "the options of a hole are a list, set or other collection of texts"
        raise wrong(span, sentence, value, 'X in ["yes", "no"]')
    if len(value) > WHOLE_TEXT:
        sentence = f"a hole can be a part of a text of up to {WHOLE_TEXT} characters; this one has {len(value):,}"
        raise ConstraintError(sentence, span=span, hint="to choose among texts, put them into a list")
    ends = range(len(value) + 1)
    return [value[start:end] for start in ends for end in ends[start:]]


@dataclass(frozen=True, slots=True)
class Has:
    """`value in X`, `value in X.lower()`."""

    span: Span
    code: CodeType
    case: Case | None = None

    def bind(self, evaluate: Evaluate) -> Term:
        value = evaluate(self.code)
        if not isinstance(value, str):
            raise wrong(self.span, "a hole is text and can only contain text", value, "a text has quotes")
        phrase = encode(self.span, value)
        if self.case is None:
            return Contains(phrase, self.span)
        return _matching([containing(value, self.span, self.case)], self.span)


@dataclass(frozen=True, slots=True)
class Shaped:
    """`INT(X)`, `X.isdigit()`: a kind of text that has a name."""

    span: Span
    name: str

    def bind(self, evaluate: Evaluate) -> Term:
        return (shapes.shape if self.name in shapes.SHAPES else shapes.method)(self.name, self.span)


@dataclass(frozen=True, slots=True)
class Edge:
    """`X.startswith(value)`, `ENDS_WITH(X, value)`, `X.lower().endswith(value)`: a text, or any of several.

    As in Python the methods take a tuple only; the functions take any collection.
    """

    span: Span
    code: CodeType
    at_start: bool
    tuple_only: bool
    tidied: Tidied = Tidied()

    def bind(self, evaluate: Evaluate) -> Term:
        value = evaluate(self.code)
        several = isinstance(value, tuple) if self.tuple_only else isinstance(value, Iterable)
        options = (
            [value] if isinstance(value, str) else list(value) if several and isinstance(value, Iterable) else [value]
        )
        for option in options:
            if not isinstance(option, str):
                kind = "a tuple of texts" if self.tuple_only else "a collection of texts"
                sentence = f"a hole begins and ends with a text, or with one of {kind}"
                raise wrong(self.span, sentence, option, 'X.startswith(("a", "b")), STARTS_WITH(X, ["a", "b"])')
            encode(self.span, option)
        texts, tidied = tuple(sorted(set(options))), self.tidied
        if tidied == Tidied():
            return (Begins if self.at_start else Ends)(tuple(text.encode() for text in texts), self.span)
        found = starting if self.at_start else ending
        patterns = [found(text, self.span, case=tidied.case, left=tidied.left, right=tidied.right) for text in texts]
        return _matching(patterns, self.span)


@dataclass(frozen=True, slots=True)
class PartOf:
    """`X[0] == value`, `X[:2] in value`: a character, or some at the beginning or the end.

    A text that is too short for `X[0]` meets neither that nor its opposite: Python raises an error.
    """

    span: Span
    code: CodeType
    first: CodeType | None
    last: CodeType | None = None
    is_single: bool = False
    """One character, the `first`."""
    inside: bool = True

    def bind(self, evaluate: Evaluate) -> Term:
        value = evaluate(self.code)
        texts: dict[str, None] = {}
        for text in _several(self.span, value):
            if not isinstance(text, str):
                raise wrong(self.span, "a part of a hole is a text", text, "a text has quotes")
            encode(self.span, text)
            texts[text] = None
        first, last = self._bound(self.first, evaluate), self._bound(self.last, evaluate)
        if not self.is_single:
            found = Or(tuple(_part(text, first or 0, last, self.span) for text in texts), self.span)
            return found if self.inside else Not(found, self.span)
        assert first is not None, "a character has a place"
        characters = [text for text in texts if len(text) == 1]
        any_of = f"[{shapes.literally(''.join(characters))}]"
        before, after = (_many(first), ANYTHING) if first >= 0 else (ANYTHING, _many(-first - 1))
        term: Term = Constant(False, self.span)
        if characters:
            term = followed(Matches(f"{before}{any_of}{after}", delimits=False, span=self.span))
        return term if self.inside else And((self.judgeable(evaluate), Not(term, self.span)), self.span)

    def judgeable(self, evaluate: Evaluate) -> Term:
        """The texts that have such a part."""
        first = self._bound(self.first, evaluate)
        if not self.is_single or first is None:
            return Constant(True, self.span)
        return Length(first + 1 if first >= 0 else -first, None, span=self.span)

    def _bound(self, code: CodeType | None, evaluate: Evaluate) -> int | None:
        if code is None:
            return None
        place = evaluate(code)
        if isinstance(place, int) or (place is None and not self.is_single):
            return place
        raise wrong(self.span, "a place in a text is a whole number", place)


def _part(text: str, first: int, last: int | None, span: Span) -> Term:
    """The texts of which `X[first:last]` is this one."""
    size, exactly = len(text), shapes.literally(text)
    if last is not None and (first < 0) == (last < 0) and last <= first:
        return Constant(not text, span)
    if first < 0 <= (last or 0) and last is not None:
        sentence = "a part that begins from the end and ends from the beginning cannot be enforced"
        raise Inexact(sentence, span=span, hint="ask for one end at a time: X[:2], X[-2:]")
    width = None if last is None or (last < 0 <= first) else last - first
    if first < 0:
        width = (last or 0) - first
    before = _many(first) if first >= 0 else ""
    after = _many(-last) if last is not None and last < 0 else ""
    if not text:
        return Length(0, max(first, 0) + max(-(last or 0), 0), span=span)
    if width is None or size < width:
        return followed(Matches(f"{before}{exactly}{after}", span=span))
    if size > width:
        return Constant(False, span)
    more = ANYTHING if first >= 0 and last is not None and last >= 0 else ""
    return followed(Matches(f"{before if first >= 0 else ANYTHING}{exactly}{after}{more}", delimits=False, span=span))


def _many(characters: int) -> str:
    return f"(?s:.{{{characters}}})" if characters else ""


def _matching(patterns: Iterable[str | None], span: Span) -> Term:
    """The texts that one of these patterns matches."""
    either = [pattern for pattern in patterns if pattern is not None]
    return followed(Matches("|".join(either), delimits=False, span=span)) if either else Constant(False, span)
