"""The tree of a query: one frozen class per rule of the grammar, each with its place in the source.

Python inside a query stays Python: an `Expression` or `Code` holds an `ast` tree whose line and column numbers
already count from the start of the file, so that a traceback points into the query.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from lmql_lite.errors import Span
from lmql_lite.tokens import Role

BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)
"""Nodes that are statements, or have statements in them."""


@dataclass(frozen=True, slots=True)
class SyntaxNode:
    span: Span


@dataclass(frozen=True, slots=True)
class Expression(SyntaxNode):
    """A Python expression; `tree.body` is the `ast.expr`."""

    tree: ast.Expression


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


# Prompts and clauses -----------------------------------------------------------------------------------------------


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


Place = tuple[int, int]
"""Line and column of a statement, as Python counts them."""


@dataclass(frozen=True, slots=True)
class QueryNode(SyntaxNode):
    """A whole query, in clause form (with a decoder header) or body form (without).

    Its statements are Python's own. A prompt among them is an expression without meaning, at a place of `prompts`.
    """

    body: tuple[ast.stmt, ...]
    prompts: Mapping[Place, PromptNode]
    """In source order."""
    decoder: DecoderNode | None = None
    prologue: tuple[ast.stmt, ...] = ()
    model: Expression | None = None
    where: Expression | None = None
    distribution: DistributionNode | None = None

    @property
    def holes(self) -> list[HoleNode]:
        """In source order."""
        return [part for each in self.prompts.values() for part in each.parts if isinstance(part, HoleNode)]

    def prompt(self, statement: ast.stmt) -> PromptNode | None:
        """The prompt that this statement is; None for all other statements."""
        return self.prompts.get((statement.lineno, statement.col_offset)) if isinstance(statement, ast.Expr) else None

    def speaks(self, statement: ast.stmt) -> bool:
        """True if a statement prompts, returns from the query, or leaves a loop that stands around it."""
        stack: list[tuple[ast.AST, bool]] = [(statement, False)]
        while stack:
            node, looped = stack.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if isinstance(node, ast.Return) or (isinstance(node, ast.stmt) and self.prompt(node)):
                return True
            if isinstance(node, ast.Break | ast.Continue) and not looped:
                return True
            is_loop = isinstance(node, ast.For | ast.AsyncFor | ast.While)
            for name, value in ast.iter_fields(node):
                inside = looped or (is_loop and name == "body")
                if isinstance(value, list):
                    stack += [(each, inside) for each in value if isinstance(each, BLOCKS)]
        return False
