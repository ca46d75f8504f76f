"""What a comparison asks of a hole: its text, a length of it, a number in it."""

from __future__ import annotations

import ast
import typing
from dataclasses import dataclass, replace

from lmql_lite.constraints.spellings import Case
from lmql_lite.constraints.terms import Unit
from lmql_lite.program.numbers import Kind
from lmql_lite.program.texts import Tidied
from lmql_lite.program.typed_values import Listed

UNITS: dict[str, Unit] = {"CHARS": "characters", "WORDS": "words", "SENTENCES": "sentences", "TOKENS": "tokens"}
"""The functions of a `where` clause that are asked for their length."""
CASES: dict[str, Case] = {case: case for case in typing.get_args(Case)}
STRIPS = ("strip", "lstrip", "rstrip")


@dataclass(frozen=True, slots=True)
class Text:
    """`X`, `X.strip()`, `X.lower()`. A text that is sure to be a number may be compared as one, too."""

    tidied: Tidied
    kind: Kind | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """`len(X)`, `len(WORDS(X))`."""

    unit: Unit


@dataclass(frozen=True, slots=True)
class Number:
    """`int(X)`, `float(X)`."""

    kind: Kind


@dataclass(frozen=True, slots=True)
class Count:
    """`X.count(phrase)`, `len(X.split(phrase))`: that is one `more`."""

    phrase: ast.expr
    more: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """`X[first]`, `X[first:last]`."""

    first: ast.expr | None
    last: ast.expr | None = None
    is_single: bool = False


@dataclass(frozen=True, slots=True)
class OneListed:
    """`X` of a type whose values are known one by one."""

    listed: Listed


@dataclass(frozen=True, slots=True)
class Day:
    """`X` that is a date."""


@dataclass(frozen=True, slots=True)
class Value:
    """`X` of any other type: only Python can compare it."""


Subject = Text | Size | Number | Count | Part | OneListed | Day | Value
PLAIN = Text(Tidied())
"""What a hole without a type is compared as."""


def subject(node: ast.expr, hole: str, bare: Subject) -> Subject | None:
    """None for what only Python can tell about the hole; `bare` is what its name alone stands for."""
    match node:
        case ast.Name(name) if name == hole:
            return bare
        case ast.Call(ast.Name("len"), [measured], []):
            match measured:
                case ast.Call(ast.Attribute(ast.Name(name), "split"), [phrase], []) if name == hole:
                    return Count(phrase, more=1)
            unit = _unit(measured, hole)
            return Size(unit) if unit else None
        case ast.Call(ast.Name("int" | "float" as kind), [ast.Name(name)], []) if name == hole:
            return Number("int" if kind == "int" else "float")
        case ast.Call(ast.Attribute(ast.Name(name), "count"), [phrase], []) if name == hole:
            return Count(phrase)
        case ast.Subscript(ast.Name(name), place) if name == hole and isinstance(bare, Text):
            if not isinstance(place, ast.Slice):
                return Part(place, is_single=True)
            return Part(place.lower, place.upper) if place.step is None else None
    tidied = tidied_text(node, hole)
    return Text(tidied) if tidied else None


def _unit(node: ast.expr, hole: str) -> Unit | None:
    match node:
        case ast.Name(name) if name == hole:
            return "characters"
        case ast.Call(ast.Name(function), [ast.Name(name)], []) if name == hole and function in UNITS:
            return UNITS[function]
        case ast.Call(ast.Attribute(ast.Name(name), "split"), [], []) if name == hole:
            return "words"
    return None


def tidied_text(node: ast.expr, hole: str) -> Tidied | None:
    """What is done to the text of the hole; None where it is something else, or is known to Python alone."""
    match node:
        case ast.Name(name) if name == hole:
            return Tidied()
        case ast.Call(ast.Attribute(owner, method), [], []) if method in CASES or method in STRIPS:
            tidied = tidied_text(owner, hole)
            if tidied is None:
                return None
            if method in CASES:
                return replace(tidied, case=CASES[method]) if tidied.case in (None, method) else None
            if tidied.case == "capitalize":  # white space may have been its first character
                return None
            return replace(tidied, left=tidied.left or method != "rstrip", right=tidied.right or method != "lstrip")
    return None
