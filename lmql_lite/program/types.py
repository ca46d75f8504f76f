"""The type of a hole: the spelling of its values, their conversion, and their meaning in comparisons.

Numbers, dates and listed values are plain text, spelled as by `str`: `42`, `True`, `2026-11-21`; a member of an Enum as
its value. An automaton of our own guides them, together with every condition. All other types, which are containers,
classes, unions and JSON Schemas, are JSON.
"""

from __future__ import annotations

import ast
import builtins
import datetime
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lmql_lite.constraints import formats
from lmql_lite.constraints.pattern import UnsupportedPattern, program
from lmql_lite.constraints.terms import ANYTHING, Choice, Length, Matches, Term, conjunction
from lmql_lite.errors import ConstraintError, Span
from lmql_lite.program.bytecode import NotWritten, written
from lmql_lite.program.json_types import (
    Convert,
    JsonType,
    adapted,
    of_python,
    of_schema,
    says_all,
    schema_of,
    validating,
)
from lmql_lite.program.narrowing import MARK
from lmql_lite.program.symbols import MEANINGFUL, PLAIN, ListedSymbol, MomentSymbol, NumberSymbol, TextSymbol
from lmql_lite.program.values import encode, finite

NAMES: Mapping[str, object] = {
    "Literal": typing.Literal,
    "Optional": typing.Optional,
    "Union": typing.Union,
    "Annotated": typing.Annotated,
    "Any": typing.Any,
    "Enum": Enum,
    "date": datetime.date,
    "datetime": datetime,
}
"""Names that an annotation may use without an import (`lang.keywords.TYPES`)."""
IN_ANNOTATIONS: Mapping[str, object] = {**vars(builtins), "re": re, **NAMES}
"""Names whose value is known at compile time."""
TIME = f"{formats.CLOCK}{formats.OFFSET}?"
DATETIME = f"(?:{formats.DATE})(?:[T ]{TIME})?"


@dataclass(frozen=True, slots=True)
class TextType:
    """A type spelled as plain text. In a comparison the hole's name alone stands for `bare`."""

    term: Term
    convert: Convert = str
    bare: TextSymbol = PLAIN
    judges: bool = False
    """True if `convert` may refuse a text that the term allows."""

    def spelled(self, value: Any) -> str:
        """Text of a value that no model generated."""
        return str(value.value if isinstance(value, Enum) else value)


TypeSpec = TextType | JsonType


def written_type(annotation: ast.expr, own: frozenset[str]) -> Any:
    """Value of an annotation whose names are Python's or `NAMES`. Raises NotWritten for all other annotations.

    `own` are the names that the query binds or is given.
    """
    names = dict(IN_ANNOTATIONS)
    for each in own:
        names.pop(each, None)
    try:
        return written(annotation, names)
    except (TypeError, ValueError, LookupError, AttributeError, re.error) as error:
        raise NotWritten from error  # Python raises it again when the query runs


def typed(annotation: Any, name: str, span: Span) -> TypeSpec:
    """Type of the hole called `name`. Raises ConstraintError for an annotation that no hole can have."""
    if annotation is str:
        return TextType(ANYTHING)
    if annotation is int:
        return TextType(formats.shape("INT", span), int, TextSymbol(NumberSymbol("int")))
    if annotation is float:
        return TextType(formats.shape("FLOAT", span), finite, TextSymbol(NumberSymbol("float")))
    if annotation is bool:
        return _listed((False, True), name, span)
    if annotation is datetime.date:
        return TextType(formats.shape("DATE", span), datetime.date.fromisoformat, TextSymbol(MomentSymbol("date")))
    if annotation in (datetime.datetime, datetime):  # the name stands for the module: datetime.date is one of it
        return TextType(
            Matches(DATETIME, span=span), datetime.datetime.fromisoformat, TextSymbol(MomentSymbol("datetime"))
        )
    if annotation is datetime.time:
        return TextType(Matches(TIME, span=span), datetime.time.fromisoformat, TextSymbol(MomentSymbol("time")))
    if isinstance(annotation, str):
        return _pattern(annotation, 0, span)
    if isinstance(annotation, re.Pattern) and isinstance(annotation.pattern, str):
        return _pattern(annotation.pattern, annotation.flags & MEANINGFUL, span)
    if isinstance(annotation, dict):
        return of_schema(annotation, name, span)
    if isinstance(annotation, typing.NewType):
        return typed(annotation.__supertype__, name, span)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _listed(tuple(annotation), name, span)
    if typing.get_origin(annotation) is typing.Literal:
        return _listed(typing.get_args(annotation), name, span)
    if typing.get_origin(annotation) is typing.Annotated:
        plain = typed(annotation.__origin__, name, span)
        if isinstance(plain, TextType):
            return _narrowed(plain, annotation, name, span)
    return of_python(annotation, name, span)


def _pattern(pattern: str, flags: int, span: Span) -> TextType:
    try:
        program(pattern, flags)
    except UnsupportedPattern as error:
        hint = error.hint or "a text as a type is a regular expression"
        raise ConstraintError(error.sentence, span=span, hint=hint) from None
    return TextType(Matches(pattern, flags, span=span))


def _listed(values: tuple[object, ...], name: str, span: Span) -> TextType:
    """A type whose values are known one by one."""
    texts: dict[str, object] = {}
    for value in values:
        spelled = value.value if isinstance(value, Enum) else value
        if not isinstance(spelled, str | int | float | None):
            raise ConstraintError(
                f"the type of [{name}] lists {value!r}, which has no plain spelling",
                span=span,
                hint="list texts and numbers, or an Enum whose members have such values",
            )
        text = str(spelled)
        if text in texts:
            raise ConstraintError(f"two values of the type of [{name}] are spelled {text!r}", span=span)
        texts[text] = value
    if not texts:
        raise ConstraintError(f"nothing can fill [{name}]: its type lists no value", span=span)
    listed = tuple((encode(text, span), value) for text, value in texts.items())
    return TextType(
        Choice(tuple(text for text, _ in listed), span), texts.__getitem__, TextSymbol(ListedSymbol(listed))
    )


# Annotated -----------------------------------------------------------------------------------------------------------

WORDLESS = {"type", "title", "description", "examples", "default", MARK}
"""Keys of a JSON Schema that narrow nothing."""
BOUNDS: Mapping[str, str] = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def _narrowed(plain: TextType, annotation: Any, name: str, span: Span) -> TextType:
    """`Annotated[int, Field(gt=0)]`: bounds guide the model, and pydantic judges the rest."""
    adapter = adapted(annotation, name, span)
    schema = {
        key: value for key, value in schema_of(adapter, annotation, name, span, []).items() if key not in WORDLESS
    }
    terms = [plain.term]
    if plain.bare == TextSymbol(NumberSymbol("int")):
        least = [schema.pop("minimum", None), _next(schema.pop("exclusiveMinimum", None), 1)]
        most = [schema.pop("maximum", None), _next(schema.pop("exclusiveMaximum", None), -1)]
        low = max((bound for bound in least if bound is not None), default=None)
        high = min((bound for bound in most if bound is not None), default=None)
        terms.append(formats.integers(low, high, span))
    elif plain.bare == TextSymbol(NumberSymbol("float")):  # pydantic compares the digits after the point
        bounds = {relation: schema.get(key) for key, relation in BOUNDS.items()}
        terms += [NumberSymbol("float").term(each, bound) for each, bound in bounds.items() if bound is not None]
    elif plain.bare == PLAIN:
        terms.append(Length(schema.pop("minLength", 0), schema.pop("maxLength", None), span=span))
        if "pattern" in schema:  # pydantic stays the judge: its expressions are nearly those of Python
            terms += _searched(schema["pattern"], span)
    validate = validating(adapter.validate_python)

    def convert(text: str) -> Any:
        return validate(plain.convert(text))

    judges = bool(schema) or not says_all(adapter.core_schema)
    return TextType(conjunction(tuple(terms)), convert, plain.bare, judges)


def _searched(pattern: str, span: Span) -> list[Term]:
    """Terms of a pattern that pydantic searches for; empty if Python cannot follow it."""
    try:
        return [Matches(pattern, 0, program(pattern, 0, "search").anchored, "search", span)]
    except UnsupportedPattern:
        return []


def _next(bound: int | None, step: int) -> int | None:
    return None if bound is None else bound + step
