"""Frame: a query that is executed, either the outermost one of a run or one that a hole calls (S26)."""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Protocol, runtime_checkable

from lmql_lite.constraints.simplify import satisfies
from lmql_lite.constraints.terms import And, Ending, Term
from lmql_lite.engine import events
from lmql_lite.engine.blocks import Blocks
from lmql_lite.engine.copying import NotCopied, assigns, copied, names_only
from lmql_lite.engine.decorated import Decoration
from lmql_lite.engine.environment import Environment
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.predicates import Objection
from lmql_lite.engine.result import Result
from lmql_lite.engine.settings import Settings
from lmql_lite.engine.state import Piece, State, Step, cut_off, data_of, join, steps_since
from lmql_lite.errors import ConstraintError, LmqlLiteError, ModelError, QueryError, Span
from lmql_lite.models.base import Model
from lmql_lite.options import Sampling
from lmql_lite.program.ops import Enter, EnterWith, Hole, Let, Op, Program, PromptText, Return, is_slot
from lmql_lite.program.types import TextType

MOST_DEEP = 100
"""Maximum depth of nested queries, so that endless recursion ends with an error."""


@dataclass(frozen=True, slots=True)
class NestedCall:
    """A query and its inputs: `arguments` from the calling query, `scope` from the place of the query's definition.
    `model` is the query's own model, if any. `typed` converts its value to the type of its annotation."""

    name: str
    program: Program
    arguments: Mapping[str, Any]
    scope: Mapping[str, Any]
    model: str | Model | None = None
    typed: typing.Callable[[Any], Any] | None = None

    @property
    def inputs(self) -> dict[str, Any]:
        return {**self.scope, **self.arguments}

    @property
    def returns(self) -> bool:
        """True if the query has a `return` with a value. Its text does not remain in the prompt then."""
        return self.program.returns


Elsewhere = typing.Callable[[NestedCall, Settings, str], Awaitable[Result | None]]
"""Function that runs a query with a model of its own after a text; returns None if its model is that of the run."""


@runtime_checkable
class Callable(Protocol):
    """A query as a value."""

    def nested(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> NestedCall:
        """The call of the query. Raises TypeError for arguments that do not fit, as for a function."""
        ...


@dataclass(frozen=True, slots=True)
class Caller:
    """The hole that waits for a query, its condition, and the state before the call."""

    op: Hole
    nested: NestedCall
    term: Term
    before: State

    def objects(self, value: str, count: typing.Callable[[str], int]) -> Objection | None:
        """The part of the condition that the query's value breaks."""
        return unmet(self.op, self.term, value, count)


def unmet(op: Hole, term: Term, value: str, count: typing.Callable[[str], int]) -> Objection | None:
    """The part of a hole's condition that a text breaks, None if it meets all. `count` returns the number of tokens of
    a text."""
    parts = term.terms if isinstance(term, And) else (term,)
    broken = next((part for part in parts if not satisfies(part, value.encode(), count)), None)
    return None if broken is None else Objection(getattr(broken, "span", None) or op.span)


def answered(before: State, after: State, answer: str, hole: str, ledger: Ledger) -> State:
    """The state in which an answer replaces everything that joined the path between the two states.

    Text that was pending in `before` joins again. Tokens that ran past the end of the hole before it are cut there, if
    their fate was decided meanwhile (S14).
    """
    hanging: tuple[Step, ...] = ()
    if before.overhang is not None and after.overhang is not before.overhang:
        hanging, before = before.overhang.steps, cut_off(before)
    steps = steps_since(before, after)
    not_cut = {id(step) for step in steps}.intersection(map(id, hanging))
    history = before.history
    waiting = 0 if not_cut else len(data_of(before.held)) + len(data_of(before.pending))
    for step in steps:
        if id(step) in not_cut:
            ledger.drop(step, "cut")
            step = replace(step, token=replace(step.token, fate="cut"))
        elif step.token.fate == "kept":
            text_stays = waiting >= len(step.token.data)
            waiting -= len(step.token.data)
            ledger.drop(step, "removed")
            if text_stays:
                continue
            step = replace(step, token=replace(step.token, fate="removed"))
        history = replace(step, before=history)
    pending = join(before.pending, Piece(answer.encode(), hole, "forced"))
    return before._replace(history=history, pending=pending, text=before.text + answer)


@dataclass(slots=True)
class Frame:
    """One query that is executed. `shared` are the values that all branches share: the caller's."""

    program: Program
    environment: Environment
    settings: Settings
    sampling: Sampling
    shared: tuple[Any, ...] = ()
    caller: Caller | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    """Values of the query's holes."""
    endings: dict[str, Ending] = field(default_factory=dict)
    opened: State | None = None
    """The state at the beginning of the open hole."""
    decoration: Decoration | None = None
    """The decorators of the open hole."""
    blocks: Blocks = field(default_factory=Blocks)
    """Open loops, `with` and `try`."""
    held_back: list[events.Text | events.MediaShown] | None = None
    """Text of a query that may return a value: it is emitted once it is known to stay (S33)."""
    bound: dict[int, Term] = field(default_factory=dict)
    """Conditions evaluated at the beginning of a segment, by the place of their hole in the program."""

    def fork(self) -> Frame:
        """A copy for another branch. Raises QueryError inside a `with`."""
        slot = self.blocks.entered
        if slot is not None:
            raise QueryError(
                "the branches of the run fork inside a `with`, which can be left only once",
                span=self.span_of(slot),
                hint="close it before the next hole, or use argmax or sample",
            )
        return replace(
            self,
            environment=dict(self.environment),
            variables=dict(self.variables),
            endings=dict(self.endings),
            blocks=self.blocks.fork(),
            held_back=None if self.held_back is None else list(self.held_back),
            bound=dict(self.bound),
        )

    def holders(self) -> tuple[Environment, ...]:
        """Variables that Python may change and that must not be shared with other branches."""
        kept = {"decorators": self.decoration and self.decoration.decorators, "returned": self.blocks.returned}
        return self.environment, self.variables, kept

    def hold(self, fresh: Sequence[Environment]) -> None:
        """Replaces the `holders` by copies."""
        self.environment, self.variables, kept = fresh
        if self.decoration is not None:
            self.decoration.decorators = kept["decorators"]
        self.blocks.replace_returned(kept["returned"])

    def span_of(self, slot: str) -> Span | None:
        """Place of the loop or `with` with this slot, or of the statement that assigns this name."""
        for op in (*self.program.prologue, *self.program.ops):
            keeps = isinstance(op, Enter | EnterWith) and op.slot == slot
            if keeps or (isinstance(op, Let) and assigns(op.code, slot)):
                return op.span
        return None

    def may_catch(self, error: BaseException, op: Op) -> bool:
        """True if a handler of the query may catch an exception raised at an op. Errors of the run itself and of its
        budget cannot be caught."""
        if not isinstance(error, LmqlLiteError) or isinstance(error, ConstraintError | ModelError):
            return True
        is_about_it = error.span is not None and error.span.text == self.program.span.text
        return not is_about_it and not isinstance(op, Hole)

    def bind(self, at: int, now: typing.Callable[[CodeType], Any]) -> Term:
        """The condition of a later hole of the segment, evaluated now."""
        op = self.program.ops[at]
        assert isinstance(op, Hole), "only holes have conditions"
        self.bound[at] = op.bind(now)
        return self.bound[at]

    def returns(self, op: Hole, at: int) -> bool:
        """True if the query returns the hole at this place unchanged, and the hole is text."""
        if op.decorators or (op.type and not isinstance(op.type.spec, TextType)):
            return False
        ops, at = self.program.ops, at + 1
        while isinstance(ops[at], PromptText):
            at += 1
        end = ops[at]
        return isinstance(end, Return) and end.value is not None and names_only(end.value, op.name)


def own(frames: Sequence[Frame], shared: Iterable[Any]) -> None:
    """Copies the variables of frames. Raises QueryError for a value that can be neither copied nor shared."""
    holders = [holder for frame in frames for holder in frame.holders()]
    given = (*shared, *(value for frame in frames for value in (*frame.shared, *frame.blocks.errors)))
    each = len(holders) // len(frames)
    try:
        fresh = copied(holders, given)
    except NotCopied as error:
        frame, name = frames[error.place // each], error.name
        if is_slot(name):
            what, hint = "inside a loop over an iterator that cannot be copied", "loop over list(...)"
        elif error.is_under_way:
            what, hint = (
                f"while {name!r} is or holds an unfinished generator",
                "make a list of it, or an iter() of a list",
            )
        else:
            what, hint = f"while {name!r} is nested too deeply to be copied", "nest it less deeply"
        span = frame.span_of(name)
        sentence = f"the branches of the run fork {what}"
        raise QueryError(sentence, span=span, hint=f"{hint}, or use argmax or sample") from error
    for at, frame in enumerate(frames):
        frame.hold(fresh[each * at : each * (at + 1)])
