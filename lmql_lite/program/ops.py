"""A program: the code of a coroutine, and the parts of the prompts that it awaits.

All Python of a query is compiled with the source's own name and line numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType
from typing import Literal

from lmql_lite.constraints.terms import Constant, Term, conjunction
from lmql_lite.errors import Span
from lmql_lite.lang.names import Form
from lmql_lite.program.bytecode import compiled
from lmql_lite.program.symbols import Kind
from lmql_lite.program.types import TextType, TypeSpec
from lmql_lite.program.where import Clause, Condition, Evaluate
from lmql_lite.tokens import Role


@dataclass(frozen=True, slots=True)
class Placed:
    """Part of a program, with its place in the source."""

    span: Span


@dataclass(frozen=True, slots=True)
class Interpolated(Placed):
    """A value to be formatted into the text, as an f-string does."""

    conversion: str
    format: str


@dataclass(frozen=True, slots=True)
class PromptText(Placed):
    """Adds text to the prompt: literals and values."""

    parts: tuple[str | Interpolated, ...]


@dataclass(frozen=True, slots=True)
class Turn(Placed):
    """Begins a turn of a chat: the following text belongs to `role`."""

    role: Role


@dataclass(frozen=True, slots=True)
class HoleType(Placed):
    """The type of a hole. If `spec` is None, the run computes it, and reads `clauses` then.

    `offered` are names that the annotation may use without an import.
    """

    code: CodeType
    offered: tuple[str, ...]
    clauses: tuple[Clause, ...]
    spec: TypeSpec | None


@dataclass(frozen=True, slots=True)
class Distribution(Placed):
    """The texts that a hole may have, each scored as a whole (S25)."""

    options: CodeType


@dataclass(frozen=True, slots=True)
class HoleDecoder(Placed):
    """`[sample(temperature=0.8) X]`: decoder of this hole. Its options are read when the hole opens."""

    name: str
    options: tuple[OptionCode, ...] = ()


@dataclass(frozen=True, slots=True)
class HoleDecorator(Placed):
    """`@tidy(1)` before a hole's name: its value decorates the hole. `here` awaits CALL."""

    code: CodeType
    here: CodeType


@dataclass(frozen=True, slots=True)
class Callee(Placed):
    """A callable of a hole that may be a query, which is known only at run time (S26, engine/subquery.py).

    `function` evaluates to the callable, `arguments` to its arguments (by place, by name) without the hole's own name;
    None if it is not called. `form` is its meaning if it is not a query: the hole's type in `[X: kind(3)]`, a predicate
    in `where fits(X)`, and a mistake in `[ask(X)]`.
    """

    form: Literal["type", "where", "hole"]
    function: CodeType
    arguments: CodeType | None


@dataclass(frozen=True)
class Hole(Placed):
    """Asks the model for the value of `name`: the `conditions` guide it, or judge its value.

    With a `distribution` its value is one of those options that the conditions allow. `callees` are the
    nested queries that may fill it instead. `decoder` is its own, None for the query's. `number` is the kind of number
    that its text becomes once it has met all conditions. `following` is the text that always comes after the hole, b""
    if that is unknown (S18). `continues_segment` lets a token of the hole before it reach into this one (S14, S16).
    """

    name: str
    conditions: tuple[Condition, ...] = ()
    following: bytes = b""
    continues_segment: bool = False
    type: HoleType | None = None
    number: Kind | None = None
    distribution: Distribution | None = None
    decoder: HoleDecoder | None = None
    decorators: tuple[HoleDecorator, ...] = ()
    callees: tuple[Callee, ...] = ()
    is_guarded: bool = False
    """True inside a `with` or a `try` with handlers, which may discard its text."""
    has_last_words: bool = False
    """True inside a `with` or a `try` with a `finally`, which run however the query ends."""

    def bind(self, evaluate: Evaluate) -> Term:
        """The term of all conditions in a run. As in Python, those after a false one are not evaluated."""
        terms: list[Term] = []
        for condition in self.conditions:
            terms.append(condition.bind(evaluate))
            if terms[-1] == Constant(False):
                break
        return conjunction(tuple(terms))

    @cached_property
    def judges(self) -> tuple[Condition, ...]:
        """The conditions that Python judges."""
        return tuple(condition for condition in self.conditions if condition.judgement)

    @cached_property
    def may_reject(self) -> bool:
        """True if Python, or the type, may refuse a value that the mask allowed."""
        return bool(self.judges) or bool(self.type and self.type.spec and self.type.spec.judges)

    @property
    def stands_alone(self) -> bool:
        """True if its term is unknown when its segment starts, or if no token may pass its end (S16)."""
        return bool(
            self.may_reject
            or self.distribution
            or self.decoder
            or self.decorators
            or self.callees
            or (self.type and not isinstance(self.type.spec, TextType))
        )


@dataclass(frozen=True)
class Snippet(Placed):
    """A statement of the query's own Python, or an expression beside its prompts."""

    tree: ast.Module | ast.expr

    @cached_property
    def code(self) -> CodeType:
        """Its code, compiled by itself. Raises QueryError at the place of what cannot be compiled."""
        return compiled(self.tree, self.span)


Part = PromptText | Turn | Hole
"""A part of a prompt, which the query's Python awaits."""

FRAME = "#frame"
"""Name of the object that the query's code talks to (engine/branch.py); not a name of a query."""
CALL = "#call"
"""Name of the function that the `here` of a decorator calls."""
STEP = "#step"
"""Name of the function that a `while` calls in each turn."""
REFLECTION = frozenset({"context", "eval", "exec", "globals", "locals", "vars"})
"""Names by which Python can read any hole without naming it."""
QUERIES = "#queries"
"""Name of the programs of functions in a query that are queries, by the line of their first decorator."""


@dataclass(frozen=True, slots=True)
class OptionCode(Placed):
    """One argument of the decoder header, evaluated when a run begins."""

    name: str
    value: CodeType


@dataclass(frozen=True, slots=True)
class Input:
    """A name that the query reads and never binds: the caller gives it. `span` is its first use."""

    name: str
    span: Span
    form: Form = "value"


@dataclass(frozen=True)
class Program:
    """A compiled query.

    `prologue` runs first, then `options` and `model` are evaluated, then `code`, a coroutine that awaits the `parts` of
    its prompts. `onward` is for each part the one that always comes next with no Python between, if there is one.
    `asks_later` is true for the parts after which the run may come to a hole.
    """

    span: Span
    code: CodeType
    parts: tuple[Part, ...]
    onward: tuple[int | None, ...]
    asks_later: tuple[bool, ...]
    python: tuple[Snippet, ...] = ()
    """The query's own Python, in the pieces of its statements."""
    returns: bool = False
    """True if the query returns a value of its own somewhere."""
    return_spans: tuple[Span, ...] = ()
    prologue: tuple[Snippet, ...] = ()
    decoder: str | None = None
    options: tuple[OptionCode, ...] = ()
    model: OptionCode | None = None
    holes: tuple[str, ...] = ()
    inputs: tuple[Input, ...] = ()
    bound: frozenset[str] = frozenset()
    """Names that its holes and its Python bind. The caller may give each a first value."""
    builtins: frozenset[str] = frozenset()
    """Python's built-in names that it reads as values. The caller may give each another value."""
    queries: Mapping[int, Program] = field(default_factory=dict)
    """Programs of its functions that are queries, by the line of their first decorator."""

    def place(self, line: int) -> Span | None:
        """Place of the Python in this line of the source, the innermost piece."""
        found = [each.span for each in self.python if 0 <= line - each.span.line <= each.span.source.count("\n")]
        return min(found, key=lambda span: span.end - span.start, default=None)
