"""Queries under way: the outermost, and those that a hole of the one before has called (S26)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

from lmql_lite.constraints.matcher import Ending
from lmql_lite.constraints.terms import Term, conjunction
from lmql_lite.errors import ConstraintError, LmqlLiteError, ModelError, QueryError, Span
from lmql_lite.program.ops import Enter, EnterWith, Hole, Let, Op, Program, Return, Text, is_slot
from lmql_lite.program.types import TextType
from lmql_lite.runtime import events
from lmql_lite.runtime.blocks import Blocks
from lmql_lite.runtime.decorated import Decoration
from lmql_lite.runtime.environment import Environment
from lmql_lite.runtime.nested import Caller
from lmql_lite.runtime.settings import Settings
from lmql_lite.runtime.state import State
from lmql_lite.runtime.variables import NotCopied, assigns, copied, names_only
from lmql_lite.tokens import Sampling


@dataclass(slots=True)
class Frame:
    """One query under way. `shared` are values that every hypothesis has in common: what the caller gave."""

    program: Program
    environment: Environment
    settings: Settings
    sampling: Sampling
    shared: tuple[Any, ...] = ()
    caller: Caller | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    """The values of its holes."""
    endings: dict[str, Ending] = field(default_factory=dict)
    opened: State | None = None
    """Where the hole that is being filled began."""
    decoration: Decoration | None = None
    """Of that hole."""
    blocks: Blocks = field(default_factory=Blocks)
    """Loops, `with` and `try` that it is in."""
    unsaid: list[events.Text] | None = None
    """Text of a query that may return a value: it is told when it is known to stay (S33)."""
    _bound: dict[int, Term] = field(default_factory=dict)
    """Conditions of holes that were evaluated when their segment began, by place in the program."""

    def fork(self) -> Frame:
        """Raises QueryError inside a `with`."""
        slot = self.blocks.entered
        if slot is not None:
            raise QueryError(
                "hypotheses part ways inside a `with`, which is left once",
                span=self.span_of(slot),
                hint="close it before the next hole, or use argmax or sample",
            )
        return replace(
            self,
            environment=dict(self.environment),
            variables=dict(self.variables),
            endings=dict(self.endings),
            blocks=self.blocks.fork(),
            unsaid=None if self.unsaid is None else list(self.unsaid),
            _bound=dict(self._bound),
        )

    def holders(self) -> tuple[Environment, ...]:
        """All that Python may change and other hypotheses must not see."""
        kept = {"decorators": self.decoration and self.decoration.decorators, "returned": self.blocks.returned}
        return self.environment, self.variables, kept

    def hold(self, fresh: Sequence[Environment]) -> None:
        """Copies take the place of its `holders`."""
        self.environment, self.variables, kept = fresh
        if self.decoration is not None:
            self.decoration.decorators = kept["decorators"]
        self.blocks.give_back(kept["returned"])

    def span_of(self, slot: str) -> Span | None:
        """Where the loop or the `with` stands that keeps something there, or the statement that assigns the name."""
        for op in (*self.program.prologue, *self.program.ops):
            keeps = isinstance(op, Enter | EnterWith) and op.slot == slot
            if keeps or (isinstance(op, Let) and assigns(op.code, slot)):
                return op.span
        return None

    def may_catch(self, error: BaseException, op: Op) -> bool:
        """Whether a handler of the query may take what was raised at an op: not what is wrong with the run itself, or
        with how much it spends."""
        if not isinstance(error, LmqlLiteError) or isinstance(error, ConstraintError | ModelError):
            return True
        is_about_it = error.span is not None and error.span.text == self.program.span.text
        return not is_about_it and not isinstance(op, Hole)

    def bind(self, at: int, now: Callable[[CodeType], Any]) -> Term:
        """The condition of a later hole of the segment that begins: its values are those of now."""
        op = self.program.ops[at]
        assert isinstance(op, Hole), "only holes have conditions"
        self._bound[at] = op.condition.bind(now)
        return self._bound[at]

    def term(self, op: Hole, at: int, now: Callable[[CodeType], Any]) -> Term:
        """The condition of the hole at this place. One that the query returns as it stands has to meet what is asked
        of the query's value, too (S26)."""
        term = self._bound.pop(at, None) or op.condition.bind(now)
        if self.caller is not None and self._returns(op, at + 1):
            return conjunction((term, self.caller.term))
        return term

    def _returns(self, op: Hole, at: int) -> bool:
        """Whether the op at this place, or behind the text there, is `return` of the hole, which is text."""
        if op.type and not isinstance(op.type.spec, TextType):
            return False
        ops = self.program.ops
        while isinstance(ops[at], Text):
            at += 1
        end = ops[at]
        return isinstance(end, Return) and end.value is not None and names_only(end.value, op.name)


def own(frames: Sequence[Frame], shared: Iterable[Any]) -> None:
    """Gives the frames variables of their own. Raises QueryError for what can neither be copied nor be shared."""
    holders = [holder for frame in frames for holder in frame.holders()]
    given = (*shared, *(value for frame in frames for value in (*frame.shared, *frame.blocks.errors)))
    each = len(holders) // len(frames)
    try:
        fresh = copied(holders, given)
    except NotCopied as error:
        frame, name = frames[error.place // each], error.name
        if is_slot(name):
            what, hint = "inside a loop over something that cannot be copied", "loop over list(...)"
        elif error.is_under_way:
            what, hint = (
                f"while {name!r} is or holds a generator under way",
                "make a list of it, or an iter() of a list",
            )
        else:
            what, hint = f"and {name!r} is nested too deeply to be copied", "keep it flatter"
        span = frame.span_of(name)
        raise QueryError(f"hypotheses part ways {what}", span=span, hint=f"{hint}, or use argmax or sample") from error
    for at, frame in enumerate(frames):
        frame.hold(fresh[each * at : each * (at + 1)])
