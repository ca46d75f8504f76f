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
class Block(Node):
    """`with`, `try`, `match` and their clauses, with a prompt inside; `keyword` is the first word of the head."""

    keyword: str
    head: str
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Break(Node):
    pass


@dataclass(frozen=True, slots=True)
class Continue(Node):
    pass


@dataclass(frozen=True, slots=True)
class Return(Node):
    value: Expression | None = None


Statement = Prompt | Code | If | While | For | Block | Break | Continue | Return


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
