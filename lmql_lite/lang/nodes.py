"""The tree of a query: one frozen class per rule of the grammar, each with its place in the source.

Python inside a query stays Python: an `Expression` or `Code` holds an `ast` tree whose line and column numbers
already count from the start of the file, so that a traceback points into the query.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from lmql_lite.errors import Span
from lmql_lite.tokens import Role


@dataclass(frozen=True, slots=True)
class Node:
    span: Span


@dataclass(frozen=True, slots=True)
class Expression(Node):
    """A Python expression; `tree.body` is the `ast.expr`."""

    tree: ast.Expression


@dataclass(frozen=True, slots=True)
class Code(Node):
    """One plain Python statement, simple or compound, without prompts inside. Functions and classes stand here too."""

    tree: ast.Module


# Inside a prompt string ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """Text of the prompt, escapes decoded."""

    text: str


@dataclass(frozen=True, slots=True)
class Interpolation(Node):
    """`{expr}`, `{expr!r}`, `{expr:>8}`: formatted as in an f-string."""

    value: Expression
    conversion: str = ""
    format: str = ""


@dataclass(frozen=True, slots=True)
class Tag(Node):
    """`{:user}`: the following text belongs to that role."""

    role: Role


@dataclass(frozen=True, slots=True)
class Hole(Node):
    """`[@decorators call NAME: annotation]`. `call` is the decoder or function written around or before the name."""

    name: str
    annotation: Expression | None = None
    decorators: tuple[Expression, ...] = ()
    call: Expression | None = None


Part = Literal | Interpolation | Tag | Hole


# Statements ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Distribution(Node):
    """`distribution NAME in OPTIONS`."""

    name: str
    options: Expression


@dataclass(frozen=True, slots=True)
class Prompt(Node):
    """A string statement: it is added to the prompt. `where` and `distribution` are the inline ones."""

    parts: tuple[Part, ...]
    where: Expression | None = None
    distribution: Distribution | None = None


@dataclass(frozen=True, slots=True)
class If(Node):
    test: Expression
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class While(Node):
    test: Expression
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class For(Node):
    """`target` is whatever may stand between `for` and `in`, in store context."""

    target: ast.expr
    iterable: Expression
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...] = ()
    is_async: bool = False


@dataclass(frozen=True, slots=True)
class Item(Node):
    """One manager of a `with`, and what is bound to what it gives, in store context."""

    manager: Expression
    target: ast.expr | None = None


@dataclass(frozen=True, slots=True)
class With(Node):
    items: tuple[Item, ...]
    body: tuple[Statement, ...]
    is_async: bool = False


@dataclass(frozen=True, slots=True)
class Handler(Node):
    """`except TYPE as NAME`. Without a type it takes what is left."""

    type: Expression | None
    name: str | None
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Try(Node):
    """`of_groups`: its handlers are `except*`, each of which takes its part of a group of exceptions."""

    body: tuple[Statement, ...]
    handlers: tuple[Handler, ...]
    orelse: tuple[Statement, ...] = ()
    final: tuple[Statement, ...] = ()
    of_groups: bool = False


@dataclass(frozen=True, slots=True)
class Case(Node):
    pattern: ast.pattern
    guard: Expression | None
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Match(Node):
    subject: Expression
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class Break(Node):
    pass


@dataclass(frozen=True, slots=True)
class Continue(Node):
    pass


@dataclass(frozen=True, slots=True)
class Return(Node):
    value: Expression | None = None


Compound = If | While | For | With | Try | Match
Statement = Prompt | Code | Compound | Break | Continue | Return


def suites(statement: Statement) -> tuple[tuple[Statement, ...], ...]:
    """The blocks of statements inside a compound statement, in the order of the source."""
    match statement:
        case If() | While() | For():
            return statement.body, statement.orelse
        case With():
            return (statement.body,)
        case Try():
            return (statement.body, *(each.body for each in statement.handlers), statement.orelse, statement.final)
        case Match():
            return tuple(case.body for case in statement.cases)
    return ()


# The whole -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Argument(Node):
    """One `name=value` of a decoder header."""

    name: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Decoder(Node):
    """`argmax(cache="joke.tokens")`."""

    name: str
    arguments: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True)
class Query(Node):
    """A whole query, in clause form (with a decoder header) or body form (without)."""

    body: tuple[Statement, ...]
    decoder: Decoder | None = None
    prologue: tuple[Code, ...] = ()
    model: Expression | None = None
    where: Expression | None = None
    distribution: Distribution | None = None
