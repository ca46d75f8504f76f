"""A program: a flat tuple of ops. Data, not Python text: a state is a place in it, a jump is a number.

Python inside a query stands here as code objects, compiled with the source's own name and line numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType
from typing import Any, Literal

from lmql_lite.constraints.terms import Term
from lmql_lite.errors import Span
from lmql_lite.lang import nodes
from lmql_lite.lang.names import Form
from lmql_lite.program.conditions import All, Atom, Condition, Joint, OtherHoles
from lmql_lite.program.number_terms import Kind
from lmql_lite.program.types import TextType, TypeSpec
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
    """A turn of a chat begins: what follows is said by `role`."""

    role: Role


@dataclass(frozen=True, slots=True)
class FinalCall:
    """A predicate that calls `function` with so many arguments by place, and with `final=FINAL` beside its own: for
    functions that want to judge text that is not complete."""

    code: CodeType
    function: CodeType
    by_place: int


@dataclass(frozen=True, slots=True)
class Predicate(Placed):
    """A condition that only Python can judge (S21).

    `call` is set where it is a call of something that has a name. `guided` are parts that are no Python: whether they
    hold stands under GUIDED. `len(X)` reads the text of a typed hole, `str(X)` the number of one that `INT` or `FLOAT`
    makes a number: with them the same is true of the value that the hole has in the end.
    """

    code: CodeType
    call: FinalCall | None = None
    guided: tuple[Condition, ...] = ()
    others: OtherHoles | None = None


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause of a `where`, as one hole bears it."""

    expression: nodes.Expression
    others: OtherHoles | None = None

    def bearing(self, condition: Condition) -> Condition:
        """The clause's condition, waiting for other holes if the clause reads them."""
        return Joint(self.expression.span, self.others, condition) if self.others else condition


@dataclass(frozen=True, slots=True)
class HoleType(Placed):
    """The type of a hole. Where `spec` is None the run finds it out, and only then what `clauses` mean.

    `offered` are names that the annotation may use without an import.
    """

    code: CodeType
    offered: tuple[str, ...]
    clauses: tuple[Clause, ...]
    spec: TypeSpec | None


@dataclass(frozen=True, slots=True)
class Distribution(Placed):
    """The texts that a hole may be, each of them weighed as a whole (S25)."""

    options: CodeType


@dataclass(frozen=True, slots=True)
class HoleDecoder(Placed):
    """`[sample(temperature=0.8) X]`: how the tokens of this hole are chosen. Its options are read when it opens."""

    name: str
    options: tuple[OptionCode, ...] = ()


@dataclass(frozen=True, slots=True)
class HoleDecorator(Placed):
    """`@tidy(1)` before a hole's name: its value is what the hole is decorated with. `here` awaits CALL."""

    code: CodeType
    here: CodeType


@dataclass(frozen=True, slots=True)
class Callee(Placed):
    """Something that a hole calls, which may be a query: that only the run can tell (S26, engine/subquery.py).

    `function` gives what is called, `arguments` the pair (by place, by name) that it gets without the hole's own name,
    None where it is not called but only named. `form` says what it is where it is no query: the hole's type in
    `[X: kind(3)]`, a predicate of its in `where fits(X)`, and a mistake in `[ask(X)]`.
    """

    form: Literal["type", "where", "hole"]
    function: CodeType
    arguments: CodeType | None


@dataclass(frozen=True)
class Hole(Placed):
    """Asks the model for the value of `name`: `condition` guides it, `predicates` may reject what it says.

    Where it has a `distribution` its value is one of those options, if condition and predicates let it be. `callees`
    are the nested queries that may fill it instead. `decoder` is its own, None for that of the query.
    `number`: its text becomes such a number once it has met all that is asked of it.
    `following` is the text that comes after the hole in every case, b"" where that is not known (S18).
    `continues_segment` lets a token of the hole before it reach into this one (S14, S16).
    `is_judged`: its query returns it to a hole whose own Python may refuse it (S26).
    """

    name: str
    condition: Condition
    predicates: tuple[Predicate, ...] = ()
    following: bytes = b""
    continues_segment: bool = False
    type: HoleType | None = None
    number: Kind | None = None
    distribution: Distribution | None = None
    decoder: HoleDecoder | None = None
    decorators: tuple[HoleDecorator, ...] = ()
    callees: tuple[Callee, ...] = ()
    is_judged: bool = False

    @cached_property
    def term(self) -> Term | None:
        """The condition, where it is the same in every run."""
        return self.condition.known if isinstance(self.condition, Atom | All) else None

    @cached_property
    def may_reject(self) -> bool:
        """True if Python, or the type, may refuse a value that the model was let say."""
        return self.is_judged or bool(self.predicates) or bool(self.type and self.type.spec and self.type.spec.judges)

    @property
    def stands_alone(self) -> bool:
        """True if what may be said in it is not known when its segment starts, or may not be passed (S16)."""
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


# `Enter`, `EnterWith` and `Try` open a block, and the ops named with them close it. How a block is left otherwise, by
# `Leave`, by `Return` or by an exception, is settled when that happens (engine/blocks.py).


@dataclass(frozen=True, slots=True)
class EnterWith(Placed):
    """Opens a `with`: `manager` is entered, and what that gives lies under ITEM. Its exit is kept under `slot`.

    An exception that the exit swallows goes on at `target`.
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
    """Opens a `try`: its handlers begin at `target`, or its `finally` where that is what `always` runs."""

    target: int
    always: bool = False


@dataclass(frozen=True, slots=True)
class EndTry(Placed):
    """The end of what a `Try` guards. Behind it stands the `finally`, or what comes if nothing was raised."""


@dataclass(frozen=True, slots=True)
class Except(Placed):
    """Jumps to `target`, the next handler, unless the exception at hand is of its types, which `here` gives to CALL."""

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
    """The end of a `finally`: goes on with what led into it. `onward` are the places that leads to."""

    onward: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Leave(Placed):
    """`break` and `continue` out of blocks: leaves the open ones but the first `depth`, then jumps.

    `via` is the `finally` that this comes by first, None for none.
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
"""The exception that is being handled, if one is."""
CALL = "#call"
"""Name of the function that the `here` of an op calls."""
CASE = "#case"
"""Number of the case of a `match` that holds, -1 for none."""
STEP = "#step"
"""Name of the function that a `while` in plain Python calls each time around."""
QUERIES = "#queries"
"""The programs of the functions in a query that are queries themselves, by the line of their first decorator."""
GUIDED = "#guided"
"""Name of the list in which a predicate finds the truth of its parts that are not Python."""
FINAL = "#final"
"""Name of the flag that tells a predicate that its text is complete."""
TEXT = "#text"
"""Name under which a predicate finds the text of a hole whose name stands for its value."""
VALUE = "#value"
"""Name under which a predicate finds the value of a hole whose name stands for its text."""


def is_slot(name: str) -> bool:
    """True if a loop keeps its iterator under this name, or a `with` its exit."""
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
    queries: Mapping[int, Program] = field(default_factory=dict)
    """Of the functions in it that are queries, by the line of their first decorator."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        return self  # nothing in it changes

    @cached_property
    def returns(self) -> bool:
        """True if the query returns a value of its own somewhere."""
        return any(isinstance(op, Return) and op.value is not None for op in self.ops)
