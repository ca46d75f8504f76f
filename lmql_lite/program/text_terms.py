"""Terms of conditions on the text of a hole: one function per form, from its values to its term.

Every function takes the span of the condition before its values, and raises ConstraintError for an unsuitable value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from dataclasses import dataclass
from enum import Enum
from numbers import Real
from typing import Literal

from lmql_lite.constraints import formats
from lmql_lite.constraints.letter_case import ANYTHING, Case, Inexact, containing, ending, spellings, starting
from lmql_lite.constraints.pattern import UnsupportedPattern, found, phrase, program
from lmql_lite.constraints.terms import (
    And,
    Begins,
    Constant,
    Contains,
    Ends,
    Length,
    Matches,
    Not,
    Or,
    Stop,
    StopPattern,
    Term,
)
from lmql_lite.errors import ConstraintError, Span
from lmql_lite.program.number_terms import Kind, number_in
from lmql_lite.program.values import encode, wrong

WHOLE_TEXT = 200
"""Most characters of `text` in `X in text`, because every part of it is an option."""
Way = Literal["fullmatch", "match", "search"]
"""Functions of Python's `re`."""
MEANINGFUL = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE | re.ASCII
"""Flags that affect the matches of a pattern."""
LONGEST = 64
"""Most characters that STOPS_BEFORE can hold back because they may still be cut."""


@dataclass(frozen=True, slots=True)
class Tidied:
    """Methods applied to the text before it is compared: `X.strip().lower()`."""

    case: Case | None = None
    left: bool = False
    right: bool = False


AS_IT_IS = Tidied()


def text_is(tidied: Tidied, kind: Kind | None, span: Span, value: object) -> Term:
    """`X == value`."""
    return _one_of([value], tidied, kind, span)


def text_in(tidied: Tidied, kind: Kind | None, span: Span, value: object) -> Term:
    """`X in value`, `X.lower() in value`. As in Python, a part of a text is in it."""
    return _one_of(_several(span, value), tidied, kind, span)


def _one_of(values: Iterable[object], tidied: Tidied, kind: Kind | None, span: Span) -> Term:
    """Term of several options, which may also be numbers if the hole has a `kind` of number."""
    options: dict[str, None] = {}
    numbers: list[object] = []
    for option in values:
        if kind and isinstance(option, Real):
            numbers.append(option)
            continue
        if not isinstance(option, str):
            hint = "a text has quotes; numbers are compared with int(X) or float(X)"
            if isinstance(option, Enum):
                hint = f"write the type in the prompt: [X: {type(option).__name__}]"
            raise wrong(span, "a hole is text and can only be one of several texts", option, hint)
        encode(span, option)
        options[option] = None
    term = spellings(tuple(options), span, case=tidied.case, left=tidied.left, right=tidied.right)
    texts = followed(term)
    return Or((texts, number_in(kind, span, numbers)), span) if kind and numbers else texts


def _several(span: Span, value: object) -> Iterable[object]:
    """Items that may be found `in` a value: those of a collection, or the parts of a text."""
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


def has(case: Case | None, span: Span, value: object) -> Term:
    """`value in X`, `value in X.lower()`."""
    if not isinstance(value, str):
        raise wrong(span, "a hole is text and can only contain text", value, "a text has quotes")
    phrase = encode(span, value)
    return Contains(phrase, span) if case is None else _matching([containing(value, span, case)], span)


def shaped(name: str, span: Span) -> Term:
    """`INT(X)`, `X.isdigit()`: a named kind of text."""
    return (formats.shape if name in formats.SHAPES else formats.method)(name, span)


def edge(at_start: bool, tuple_only: bool, tidied: Tidied, span: Span, value: object) -> Term:
    """`X.startswith(value)`, `ENDS_WITH(X, value)`, `X.lower().endswith(value)`: a text, or any of several.

    As in Python the methods take a tuple only; the functions take any collection.
    """
    several = isinstance(value, tuple) or (
        not tuple_only and isinstance(value, Iterable) and not isinstance(value, str)
    )
    texts: set[str] = set()
    for option in list(value) if several and isinstance(value, Iterable) else [value]:
        if not isinstance(option, str):
            kind = "a tuple of texts" if tuple_only else "a collection of texts"
            sentence = f"a hole begins and ends with a text, or with one of {kind}"
            raise wrong(span, sentence, option, 'X.startswith(("a", "b")), STARTS_WITH(X, ["a", "b"])')
        encode(span, option)
        texts.add(option)
    if tidied == AS_IT_IS:
        return (Begins if at_start else Ends)(tuple(text.encode() for text in sorted(texts)), span)
    make = starting if at_start else ending
    case, left, right = tidied.case, tidied.left, tidied.right
    return _matching([make(text, span, case=case, left=left, right=right) for text in sorted(texts)], span)


# Parts ---------------------------------------------------------------------------------------------------------------


def character_in(span: Span, place: object, value: object) -> Term:
    """`X[place] in value`. A text that is too short meets neither this nor its opposite: Python raises an error."""
    at = _place(span, place)
    characters = [text for text in _part_texts(span, value) if len(text) == 1]
    if not characters:
        return Constant(False, span)
    any_of = f"[{formats.literally(''.join(characters))}]"
    before, after = (_many(at), ANYTHING) if at >= 0 else (ANYTHING, _many(-at - 1))
    return followed(Matches(f"{before}{any_of}{after}", delimits=False, span=span))


def character_not_in(span: Span, place: object, value: object) -> Term:
    """`X[place] not in value`."""
    return And((has_character(span, place, value), Not(character_in(span, place, value), span)), span)


def has_character(span: Span, place: object, value: object) -> Term:
    """The texts that have a character at this place."""
    at = _place(span, place)
    return Length(at + 1 if at >= 0 else -at, None, span=span)


def part_in(span: Span, first: object, last: object, value: object) -> Term:
    """`X[first:last] in value`."""
    start, end = (None if bound is None else _place(span, bound) for bound in (first, last))
    return Or(tuple(_part(text, start or 0, end, span) for text in _part_texts(span, value)), span)


def _part_texts(span: Span, value: object) -> list[str]:
    texts: dict[str, None] = {}
    for text in _several(span, value):
        if not isinstance(text, str):
            raise wrong(span, "a part of a hole is a text", text, "a text has quotes")
        encode(span, text)
        texts[text] = None
    return list(texts)


def _place(span: Span, place: object) -> int:
    if isinstance(place, int):
        return place
    raise wrong(span, "a place in a text is a whole number", place)


def _part(text: str, first: int, last: int | None, span: Span) -> Term:
    """The texts whose slice `X[first:last]` is `text`."""
    size, exactly = len(text), formats.literally(text)
    if last is not None and (first < 0) == (last < 0) and last <= first:
        return Constant(not text, span)
    if first < 0 <= (last or 0) and last is not None:
        sentence = "a part that begins at the end and ends at the beginning cannot be enforced"
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


# Patterns and stops --------------------------------------------------------------------------------------------------


def followed(term: Term) -> Term:
    """The same term. Raises ConstraintError if its pattern cannot be followed."""
    if isinstance(term, Matches):
        _program(term.pattern, term.flags, term.span)
    return term


def _program(pattern: str, flags: int, span: Span | None) -> None:
    try:
        program(pattern, flags)
    except UnsupportedPattern as error:
        raise ConstraintError(error.sentence, span=span, hint=error.hint) from None


def _matching(patterns: Iterable[str | None], span: Span) -> Term:
    """The texts that one of these patterns matches."""
    either = [pattern for pattern in patterns if pattern is not None]
    return followed(Matches("|".join(either), delimits=False, span=span)) if either else Constant(False, span)


def fits(way: Way, span: Span, value: object) -> Term:
    """`REGEX(X, value)`, `value.search(X)`: a pattern as text, or a compiled one with its flags."""
    pattern, flags = (value.pattern, value.flags) if isinstance(value, re.Pattern) else (value, 0)
    if not isinstance(pattern, str):
        sentence = "a regular expression is a text, or what re.compile makes of one"
        own = f"an object with its own {way}() can be used inside a function"
        raise wrong(span, sentence, value, 'REGEX(X, r"[a-z]+")' if way == "fullmatch" else own)
    flags, whole = flags & MEANINGFUL, True
    try:
        if way != "fullmatch":
            pattern, flags, whole = found(pattern, flags, from_start=way == "match")
    except UnsupportedPattern as error:
        raise ConstraintError(error.sentence, span=span, hint=error.hint) from None
    _program(pattern, flags & MEANINGFUL, span)
    return Matches(pattern, flags & MEANINGFUL, delimits=whole, span=span)


def fits_by(way: Way, span: Span, module: object, value: object) -> Term:
    """`re.search(value, X)`, where `module` is the value of the name `re`."""
    if module is not re:
        sentence = "only Python's own re can guide the model, and this is another object"
        raise wrong(span, sentence, module, "use it inside a function")
    return fits(way, span, value)


def stops(inclusive: bool, span: Span, value: object) -> Term:
    """`STOPS_AT(X, value)`, `STOPS_BEFORE(X, value)`: one or several phrases or patterns, each of them a stop."""
    several = isinstance(value, Iterable) and not isinstance(value, str)
    phrases: list[object] = list(value) if several and isinstance(value, Iterable) else [value]
    if not phrases:
        sentence = "a stop is a text or a pattern, or a list of them that is not empty"
        raise wrong(span, sentence, value, "a hole needs no stop: leave the clause out")
    found = [_stop(inclusive, span, each) for each in phrases]
    if isinstance(value, Set):  # the order of a set differs from process to process
        found.sort(key=lambda stop: stop.phrase if isinstance(stop, Stop) else stop.pattern.encode())
    return found[0] if len(found) == 1 else And(tuple(found), span)


def _stop(inclusive: bool, span: Span, value: object) -> Stop | StopPattern:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        try:
            pattern, flags = phrase(value.pattern, value.flags & MEANINGFUL, None if inclusive else LONGEST)
        except UnsupportedPattern as error:
            raise ConstraintError(error.sentence, span=span, hint=error.hint) from None
        return StopPattern(pattern, flags & MEANINGFUL, inclusive, span)
    if not isinstance(value, str) or not value:
        sentence = "a stop is a text that is not empty, or what re.compile makes of one"
        raise wrong(span, sentence, value, 'STOPS_AT(X, [".", re.compile(r"\\s+")])')
    return Stop(encode(span, value), inclusive, span)
