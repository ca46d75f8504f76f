"""Open blocks of a query: `for`, `with` and `try`. They are left (S23) at their end, by `break`, `continue` or
`return`, or by an exception, in Python's own order.

Blocks are frozen values that forks share. Their state, such as the iterator of a loop, is in the environment under the
block's slot, and is copied with it. A `with` is left exactly once, so there is no fork while one is open.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from inspect import isawaitable
from types import CodeType
from typing import Any

from lmql_lite.engine.environment import Environment, as_it_is, called_at
from lmql_lite.errors import Span
from lmql_lite.program.ops import (
    ERROR,
    ITEM,
    Blocked,
    EndExcept,
    EndFinally,
    EndTry,
    Enter,
    EnterWith,
    Except,
    ExitWith,
    Leave,
    Next,
    Reraise,
    Return,
    Try,
)

Evaluate = Callable[[CodeType, Span], Awaitable[Any]]
"""Evaluates the query's own Python."""
CANCELLATIONS = (CancelledError, KeyboardInterrupt, GeneratorExit)
"""Exceptions that end the run from outside: no handler of the query catches them."""
DONE = object()


@dataclass(frozen=True, slots=True)
class Loop:
    slot: str


@dataclass(frozen=True, slots=True)
class With:
    """A `with`: execution continues at `target` after its exit swallows an exception."""

    slot: str
    target: int
    here: CodeType


@dataclass(frozen=True, slots=True)
class TryBlock:
    """A `try`: `target` is the place of its handlers, or if `always`, of its `finally`."""

    target: int
    always: bool


@dataclass(frozen=True, slots=True)
class Handled:
    """The handler of an exception."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class LeavingLoop:
    """A `break` or `continue` that is leaving blocks."""

    depth: int
    target: int


@dataclass(frozen=True, slots=True)
class LeavingReturn:
    """A `return` that is leaving blocks."""

    op: Return
    value: Any


@dataclass(frozen=True, slots=True)
class Final:
    """A `finally`, and the exception or jump that continues after it; None for the next op of the program."""

    onward: LeavingLoop | BaseException | None


@dataclass(frozen=True, slots=True)
class Returning:
    """A `finally` after which the query returns."""

    onward: LeavingReturn


Block = Loop | With | TryBlock | Handled | Final | Returning


@dataclass(slots=True)
class Blocks:
    """Open blocks of one query that is executed, outermost first. They matter only while the `stack` is not empty."""

    stack: tuple[Block, ...] = ()

    def fork(self) -> Blocks:
        return Blocks(self.stack)

    @property
    def entered(self) -> str | None:
        """Slot of the innermost open `with`; None if there is none."""
        return next((block.slot for block in reversed(self.stack) if isinstance(block, With)), None)

    @property
    def has_last_words(self) -> bool:
        """True if a `with` or `finally` must run however the query ends."""
        return any(isinstance(block, With) or (isinstance(block, TryBlock) and block.always) for block in self.stack)

    def are_those_of(self, other: Blocks) -> bool:
        """True if the same blocks are open at the same places."""
        return self.stack == other.stack

    @property
    def errors(self) -> tuple[BaseException, ...]:
        """Exceptions that are being handled or raised, outermost first."""
        return tuple(error for block in self.stack if (error := _error_of(block)) is not None)

    @property
    def returned(self) -> tuple[Any, ...]:
        """Values of the `return`s that wait for `finally` blocks, outermost first."""
        return tuple(block.onward.value for block in self.stack if isinstance(block, Returning))

    def replace_returned(self, values: Sequence[Any]) -> None:
        """Replaces the `returned` values."""
        left = iter(values)
        self.stack = tuple(
            Returning(replace(block.onward, value=next(left))) if isinstance(block, Returning) else block
            for block in self.stack
        )

    @property
    def is_guarded(self) -> bool:
        """True if an open block may handle an exception."""
        return any(
            isinstance(block, With) or (isinstance(block, TryBlock) and not block.always) for block in self.stack
        )

    def refuse_cancelled(self) -> None:
        """Raises a pending cancellation: `finally` blocks of a cancelled run ask no model."""
        for error in self.errors:
            if isinstance(error, CANCELLATIONS):
                raise error

    async def do(self, op: Blocked, pc: int, environment: Environment, evaluate: Evaluate) -> int | LeavingReturn:
        """The next place in the program, or the query's `return`. Exceptions of the query's own Python pass through."""
        match op:
            case Enter():
                await self._enter_loop(op, environment, evaluate)
            case Next():
                return await self._next(op, pc, environment, evaluate)
            case EnterWith():
                await self._enter_with(op, environment)
            case ExitWith():
                await self._exit(self._pop(environment), None, environment)
            case Try(_, target, always):
                self._push(TryBlock(target, always), environment)
            case EndTry():
                if self._pop(environment) == TryBlock(pc + 1, always=True):
                    self._push(Final(None), environment)
            case Except(_, here, target):
                error = environment[ERROR]
                is_one = await called_at(here, lambda types: _is_one_of(error, types), environment)
                return pc + 1 if is_one else target
            case EndExcept(_, target):
                self._pop(environment)
                return target
            case Reraise():
                raise environment[ERROR]
            case EndFinally():
                final = self._pop(environment)
                assert isinstance(final, Final | Returning), "a `finally` ends where it began"
                if isinstance(final.onward, BaseException):
                    raise final.onward
                return await self.leave(final.onward, environment) if final.onward else pc + 1
            case Leave(_, depth, target):
                return await self.leave(LeavingLoop(depth, target), environment)
        return pc + 1

    async def leave(self, onward: LeavingLoop | LeavingReturn, environment: Environment) -> int | LeavingReturn:
        """Leaves blocks up to the first `finally`. Returns the next place in the program, or the query's `return`."""
        depth = onward.depth if isinstance(onward, LeavingLoop) else 0
        while len(self.stack) > depth:
            match self._pop(environment):
                case With() as block:
                    await self._exit(block, None, environment)
                case TryBlock(target, always=True):
                    self._push(Returning(onward) if isinstance(onward, LeavingReturn) else Final(onward), environment)
                    return target
        return onward.target if isinstance(onward, LeavingLoop) else onward

    async def catch(self, error: BaseException, environment: Environment, *, by_handlers: bool = True) -> int:
        """The place in the program that handles an exception. Raises it, or one that replaced it, if there is none.

        `by_handlers=False` skips handlers, and runs only `finally` blocks and the exits of `with`.
        """
        by_handlers = by_handlers and not isinstance(error, CANCELLATIONS)
        _chain(error, environment.get(ERROR))
        while self.stack:
            match self._pop(environment):
                case With(target=target) as block:
                    try:
                        is_swallowed = await self._exit(block, error, environment)
                    except BaseException as other:
                        by_handlers = not isinstance(other, CANCELLATIONS)
                        error = other
                    else:
                        if is_swallowed and by_handlers:
                            return target
                case TryBlock(target, always=True):
                    self._push(Final(error), environment)
                    return target
                case TryBlock(target) if by_handlers:
                    self._push(Handled(error), environment)
                    return target
        raise error

    def _push(self, block: Block, environment: Environment) -> None:
        self.stack = (*self.stack, block)
        self._note(environment)

    def _pop(self, environment: Environment) -> Block:
        *rest, block = self.stack
        self.stack = tuple(rest)
        if isinstance(block, Loop):
            del environment[block.slot]
        self._note(environment)
        return block

    def _note(self, environment: Environment) -> None:
        """Records the current exception for Python's own `raise`, `sys.exc_info` and chaining."""
        _put(environment, next(reversed(self.errors), None))

    # Loops and managers ------------------------------------------------------------------------------------------

    async def _enter_loop(self, op: Enter, environment: Environment, evaluate: Evaluate) -> None:
        items = await evaluate(op.iterable, op.span)
        environment[op.slot] = await called_at(
            op.here, lambda: aiter(items) if op.is_async else iter(items), environment
        )
        self._push(Loop(op.slot), environment)

    async def _next(self, op: Next, pc: int, environment: Environment, evaluate: Evaluate) -> int:
        slot, is_async = op.slot, op.is_async

        def step() -> Any:
            return anext(environment[slot], DONE) if is_async else next(environment[slot], DONE)

        item = await called_at(op.here, step, environment)
        if item is DONE:
            self._pop(environment)
            return op.target
        environment[ITEM] = item
        await evaluate(op.assign, op.span)
        return pc + 1

    async def _enter_with(self, op: EnterWith, environment: Environment) -> None:
        manager = await as_it_is(op.manager, environment)
        if not op.is_async and isawaitable(manager) and not hasattr(type(manager), "__enter__"):
            manager = await manager  # an awaitable is awaited without `await`, as everywhere
        leave = None

        def enter() -> Any:
            nonlocal leave
            begin, leave = _protocol(manager, is_async=op.is_async)
            return begin()

        environment[ITEM] = await called_at(op.here, enter, environment)
        assert leave is not None
        environment[op.slot] = leave
        self._push(With(op.slot, op.target, op.here), environment)

    async def _exit(self, block: Block, error: BaseException | None, environment: Environment) -> bool:
        """Runs the exit of a `with` while the exception is handled; True if the exit swallows it."""
        assert isinstance(block, With), "a `with` ends where it began"
        call, before = environment.pop(block.slot), environment.get(ERROR)
        kind, trace = (type(error), error.__traceback__) if error else (None, None)
        try:
            _put(environment, error or before)
            return bool(await called_at(block.here, lambda: call(kind, error, trace), environment))
        finally:
            _put(environment, before)


def _protocol(manager: Any, *, is_async: bool) -> tuple[Callable[[], Any], Callable[..., Any]]:
    """The functions that enter and leave a `with`. Raises TypeError for an object that is not a context manager."""
    kind = type(manager)
    word, prefix = ("asynchronous ", "__a") if is_async else ("", "__")
    sentence = f"{kind.__name__!r} object does not support the {word}context manager protocol"
    begin = getattr(kind, f"{prefix}enter__", None)
    end = getattr(kind, f"{prefix}exit__", None)
    if begin is None:
        raise TypeError(sentence)
    if end is None:
        raise TypeError(f"{sentence} (missed {prefix}exit__ method)")
    return lambda: begin(manager), lambda *what: end(manager, *what)


def _error_of(block: Block) -> BaseException | None:
    match block:
        case Handled(error) | Final(BaseException() as error):
            return error
    return None


def _put(environment: Environment, error: BaseException | None) -> None:
    if error is None:
        environment.pop(ERROR, None)
    else:
        environment[ERROR] = error


def _chain(error: BaseException, handled: BaseException | None) -> None:
    """Sets the context of an exception that the run itself raised. Python sets it only where it raises."""
    if handled is None or error.__context__ is not None:
        return
    before: BaseException | None = handled
    while before is not None:
        if before is error:
            return
        before = before.__context__
    error.__context__ = handled


def _is_one_of(error: BaseException, types: Any) -> bool:
    """The test of an `except`. Raises TypeError for a type that is not an exception."""
    for each in types if isinstance(types, tuple) else (types,):
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise TypeError("catching classes that do not inherit from BaseException is not allowed")
    return any(each in type(error).__mro__ for each in (types if isinstance(types, tuple) else (types,)))
