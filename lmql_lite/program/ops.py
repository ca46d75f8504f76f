"""A program: a flat tuple of ops. Data, not Python text: a state is a place in it, a jump is a number.

Python inside a query stands here as code objects, compiled with the source's own name and line numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType
from typing import Any, Literal

from lmql_lite.constraints.terms import Constant, Term, conjunction
from lmql_lite.errors import Span
from lmql_lite.lang.names import Form
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

    code: CodeType
    here: CodeType
    """Calls CALL, so that a traceback shows this place."""
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
    `is_judged`: its query returns it to a hole whose own Python may refuse it (S26).
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
    is_judged: bool = False

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
        return self.is_judged or bool(self.judges) or bool(self.type and self.type.spec and self.type.spec.judges)

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


@dataclass(frozen=True, slots=True)
class Let(Placed):
    """Runs Python statements in the environment."""

    code: CodeType


@dataclass(frozen=True, slots=True)
class Jump:
    span: Span
    target: int


@dataclass(frozen=True, slots=True)
class JumpIf(Placed):
    """Jumps when the test's truth is `when`."""

    test: CodeType
    when: bool
    target: int


@dataclass(frozen=True, slots=True)
class Enter(Placed):
    """Begins a loop: keeps the iterator of a value under `slot`, a name that no query can spell."""

    slot: str
    iterable: CodeType
    here: CodeType
    """Calls CALL, so that a traceback shows this place; `await` stands before it where something is async."""
    is_async: bool = False


@dataclass(frozen=True, slots=True)
class Next(Placed):
    """Takes the next item of `slot` and assigns it (`assign` reads ITEM); jumps to `target` when there is none."""

    slot: str
    assign: CodeType
    target: int
    here: CodeType
    is_async: bool = False


# `Enter`, `EnterWith` and `Try` open a block, and the ops named with them close it. Other exits, by `Leave`, `Return`
# or an exception, are handled at run time (engine/blocks.py).


@dataclass(frozen=True, slots=True)
class EnterWith(Placed):
    """Opens a `with`: enters `manager`, keeps the result under ITEM and the exit under `slot`.

    After an exception that the exit swallows, the run goes on at `target`.
    """

    slot: str
    manager: CodeType
    target: int
    here: CodeType
    is_async: bool = False


@dataclass(frozen=True, slots=True)
class ExitWith(Placed):
    """The end of its body."""


@dataclass(frozen=True, slots=True)
class Try(Placed):
    """Opens a `try`: its handlers begin at `target`, or with `always` its `finally`."""

    target: int
    always: bool = False


@dataclass(frozen=True, slots=True)
class EndTry(Placed):
    """The end of the guarded ops of a `Try`. After it stands the `finally`, or the ops that run if nothing was
    raised."""


@dataclass(frozen=True, slots=True)
class Except(Placed):
    """Jumps to `target`, the next handler, unless the current exception is of its types, which `here` passes to
    CALL."""

    here: CodeType
    target: int


@dataclass(frozen=True, slots=True)
class EndExcept(Placed):
    """The end of a handler: the exception is dealt with."""

    target: int


@dataclass(frozen=True, slots=True)
class Reraise(Placed):
    """No handler took the exception."""


@dataclass(frozen=True, slots=True)
class EndFinally(Placed):
    """The end of a `finally`: resumes the jump, return or exception that led into it. `onward` are its possible
    targets."""

    onward: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Leave(Placed):
    """`break` and `continue` out of blocks: leaves all open blocks but the first `depth`, then jumps.

    `via` is the first `finally` on the way, None for none.
    """

    depth: int
    target: int
    via: int | None = None


@dataclass(frozen=True, slots=True)
class Return(Placed):
    """Ends the query. `value` is None for a bare return and for the end of the body. `via` as in `Leave`."""

    value: CodeType | None
    via: int | None = None


Jumping = Jump | JumpIf | Next | EnterWith | Try | Except | EndExcept | Leave
Blocked = Enter | Next | EnterWith | ExitWith | Try | EndTry | Except | EndExcept | Reraise | EndFinally | Leave
Op = PromptText | Turn | Hole | Let | Jump | JumpIf | Blocked | Return

ITEM = "#item"
"""Name under which `Next` leaves the item and `EnterWith` the value that it was given; not a name of a query."""
ERROR = "#error"
"""Name of the exception that is being handled."""
CALL = "#call"
"""Name of the function that the `here` of an op calls."""
CASE = "#case"
"""Name of the number of the case of a `match` that holds; -1 for none."""
STEP = "#step"
"""Name of the function that a `while` in plain Python calls in each turn."""
QUERIES = "#queries"
"""Name of the programs of functions in a query that are queries, by the line of their first decorator."""


def is_slot(name: str) -> bool:
    """True for the name of a loop's iterator or of the exit of a `with`."""
    return name.startswith("#") and name[1:].isdecimal()


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

    `prologue` runs first, then `options` and `model` are evaluated, then `ops` from 0. The last op is a Return.
    """

    span: Span
    ops: tuple[Op, ...]
    prologue: tuple[Let, ...] = ()
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

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        return self  # nothing in it changes

    @cached_property
    def returns(self) -> bool:
        """True if the query returns a value of its own somewhere."""
        return any(isinstance(op, Return) and op.value is not None for op in self.ops)
