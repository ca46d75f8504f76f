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
class SyntaxNode:
    span: Span


@dataclass(frozen=True, slots=True)
class Expression(SyntaxNode):
    """A Python expression; `tree.body` is the `ast.expr`."""

    tree: ast.Expression


@dataclass(frozen=True, slots=True)
class Code(SyntaxNode):
    """One plain Python statement, simple or compound, without prompts inside. Functions and classes stand here too."""

    tree: ast.Module


# Inside a prompt string ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LiteralNode(SyntaxNode):
    """Text of the prompt, escapes decoded."""

    text: str


@dataclass(frozen=True, slots=True)
class InterpolationNode(SyntaxNode):
    """`{expr}`, `{expr!r}`, `{expr:>8}`: formatted as in an f-string."""

    value: Expression
    conversion: str = ""
    format: str = ""


@dataclass(frozen=True, slots=True)
class TagNode(SyntaxNode):
    """`{:user}`: the following text belongs to that role."""

    role: Role


@dataclass(frozen=True, slots=True)
class HoleNode(SyntaxNode):
    """`[@decorators call NAME: annotation]`. `call` is the decoder or function written around or before the name."""

    name: str
    annotation: Expression | None = None
    decorators: tuple[Expression, ...] = ()
    call: Expression | None = None


Part = LiteralNode | InterpolationNode | TagNode | HoleNode


# Statements ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DistributionNode(SyntaxNode):
    """`distribution NAME in OPTIONS`."""

    name: str
    options: Expression


@dataclass(frozen=True, slots=True)
class PromptNode(SyntaxNode):
    """A string statement: it is added to the prompt. `where` and `distribution` are the inline ones."""

    parts: tuple[Part, ...]
    where: Expression | None = None
    distribution: DistributionNode | None = None


@dataclass(frozen=True, slots=True)
class IfNode(SyntaxNode):
    test: Expression
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class WhileNode(SyntaxNode):
    test: Expression
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class ForNode(SyntaxNode):
    """`target` is the expression between `for` and `in`, in store context."""

    target: ast.expr
    iterable: Expression
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...] = ()
    is_async: bool = False


@dataclass(frozen=True, slots=True)
class ItemNode(SyntaxNode):
    """One manager of a `with`, and the target of its value, in store context."""

    manager: Expression
    target: ast.expr | None = None


@dataclass(frozen=True, slots=True)
class WithNode(SyntaxNode):
    items: tuple[ItemNode, ...]
    body: tuple[Statement, ...]
    is_async: bool = False


@dataclass(frozen=True, slots=True)
class HandlerNode(SyntaxNode):
    """`except TYPE as NAME`. Without a type it takes all other exceptions."""

    type: Expression | None
    name: str | None
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class TryNode(SyntaxNode):
    """A `try`. With `of_groups` its handlers are `except*`, each of which takes its part of a group of exceptions."""

    body: tuple[Statement, ...]
    handlers: tuple[HandlerNode, ...]
    orelse: tuple[Statement, ...] = ()
    final: tuple[Statement, ...] = ()
    of_groups: bool = False


@dataclass(frozen=True, slots=True)
class CaseNode(SyntaxNode):
    pattern: ast.pattern
    guard: Expression | None
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class MatchNode(SyntaxNode):
    subject: Expression
    cases: tuple[CaseNode, ...]


@dataclass(frozen=True, slots=True)
class BreakNode(SyntaxNode):
    pass


@dataclass(frozen=True, slots=True)
class ContinueNode(SyntaxNode):
    pass


@dataclass(frozen=True, slots=True)
class ReturnNode(SyntaxNode):
    value: Expression | None = None


Compound = IfNode | WhileNode | ForNode | WithNode | TryNode | MatchNode
Statement = PromptNode | Code | Compound | BreakNode | ContinueNode | ReturnNode


def suites(statement: Compound) -> tuple[tuple[Statement, ...], ...]:
    """The blocks of statements inside a compound statement, in the order of the source."""
    match statement:
        case IfNode() | WhileNode() | ForNode():
            return statement.body, statement.orelse
        case WithNode():
            return (statement.body,)
        case TryNode():
            return (statement.body, *(each.body for each in statement.handlers), statement.orelse, statement.final)
        case MatchNode():
            return tuple(case.body for case in statement.cases)


# The whole -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ArgumentNode(SyntaxNode):
    """One `name=value` of a decoder header."""

    name: str
    value: Expression


@dataclass(frozen=True, slots=True)
class DecoderNode(SyntaxNode):
    """`argmax(cache="joke.tokens")`."""

    name: str
    arguments: tuple[ArgumentNode, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryNode(SyntaxNode):
    """A whole query, in clause form (with a decoder header) or body form (without)."""

    body: tuple[Statement, ...]
    decoder: DecoderNode | None = None
    prologue: tuple[Code, ...] = ()
    model: Expression | None = None
    where: Expression | None = None
    distribution: DistributionNode | None = None
