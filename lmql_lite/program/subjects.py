"""What a comparison asks of a hole: its text, a length of it, a number in it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from lmql_lite.constraints.terms import Unit
from lmql_lite.program.numbers import Kind
from lmql_lite.program.texts import Tidied
from lmql_lite.program.typed_values import Listed

UNITS: dict[str, Unit] = {"CHARS": "characters", "WORDS": "words", "SENTENCES": "sentences", "TOKENS": "tokens"}
"""The functions of a `where` clause that are asked for their length."""


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
    """`X.count(phrase)`."""

    phrase: ast.expr


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


Subject = Text | Size | Number | Count | OneListed | Day | Value
PLAIN = Text(Tidied())
"""What a hole without a type is compared as."""


def subject(node: ast.expr, hole: str, bare: Subject) -> Subject | None:
    """None for what only Python can tell about the hole; `bare` is what its name alone stands for."""
    match node:
        case ast.Name(name) if name == hole:
            return bare
        case ast.Call(ast.Name("len"), [measured], []):
            unit = _unit(measured, hole)
            return Size(unit) if unit else None
        case ast.Call(ast.Name("int" | "float" as kind), [ast.Name(name)], []) if name == hole:
            return Number("int" if kind == "int" else "float")
        case ast.Call(ast.Attribute(ast.Name(name), "count"), [phrase], []) if name == hole:
            return Count(phrase)
    tidied = _tidied(node, hole)
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


def _tidied(node: ast.expr, hole: str) -> Tidied | None:
    match node:
        case ast.Name(name) if name == hole:
            return Tidied()
        case ast.Call(ast.Attribute(owner, "lower" | "strip" | "lstrip" | "rstrip" as method), [], []):
            tidied = _tidied(owner, hole)
            if tidied is None:
                return None
            if method == "lower":
                return replace(tidied, lowered=True)
            return replace(tidied, left=tidied.left or method != "rstrip", right=tidied.right or method != "lstrip")
    return None
