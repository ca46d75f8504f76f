"""The variables of a hypothesis that came from another one: its own, as soon as Python might change them (S23).

A fork copies names and nothing else: sixteen hypotheses share one list of a thousand items. Before a hypothesis runs
Python that may write, containers and instances are copied, and the functions and classes of the query are bound to the
copy, so that they see the variables of the hypothesis that calls them. What the caller gave is never copied, and what
cannot be copied (a file, a lock) is shared.
"""

from __future__ import annotations

import copy
import dis
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, Protocol, runtime_checkable

from lmql_lite.runtime.environment import Environment, is_home

_READING = frozenset(
    {"RESUME", "LOAD_NAME", "LOAD_CONST", "LOAD_SMALL_INT", "RETURN_VALUE", "RETURN_CONST", "POP_TOP", "NOP"}
    | {"COMPARE_OP", "CONTAINS_OP", "IS_OP", "UNARY_NOT", "TO_BOOL", "CACHE", "COPY_FREE_VARS", "NOT_TAKEN"}
)


class NotCopied(Exception):
    """What stands under `name` cannot be copied, and may not be shared."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@runtime_checkable
class Wrapping(Protocol):
    """A function of the query in another guise: one that is a query itself."""

    __wrapped__: Any

    def rebound(self, function: FunctionType) -> Any:
        """The same with another function inside."""
        ...


@cache
def only_reads(code: CodeType) -> bool:
    """Whether it does nothing but look at variables and compare them."""
    return all(instruction.opname in _READING for instruction in dis.get_instructions(code))


def names_only(code: CodeType, name: str) -> bool:
    """Whether it is this variable and nothing else."""
    looked_up = [instruction.argval for instruction in dis.get_instructions(code) if instruction.opname == "LOAD_NAME"]
    return looked_up == [name] and not _constants(code) and only_reads(code)


def _constants(code: CodeType) -> bool:
    return any(instruction.opname in ("LOAD_CONST", "UNARY_NOT") for instruction in dis.get_instructions(code))


def copied(
    environments: Sequence[Environment], shared: Iterable[Any], is_own: Callable[[str], bool]
) -> list[Environment]:
    """The environments with copies of all that the query has made in them; what is one object in two places stays one.

    `shared` are values that are not copied. Raises NotCopied for a name that `is_own` and cannot be copied.
    """
    memo: dict[int, Any] = {id(value): value for value in shared}
    fresh: list[Environment] = [{} for _ in environments]
    for before, after in zip(environments, fresh, strict=True):
        _rebind(before, after, memo)
    for before, after in zip(environments, fresh, strict=True):
        for name, value in before.items():
            after[name] = _copy(value, memo, name, is_own)
    return fresh


def _copy(value: Any, memo: dict[int, Any], name: str, is_own: Callable[[str], bool]) -> Any:
    if isinstance(value, ModuleType) or name == "__builtins__":
        return value
    try:
        return copy.deepcopy(value, memo)
    except Exception as error:  # whatever a __deepcopy__ raises
        if is_own(name):
            raise NotCopied(name) from error
        memo[id(value)] = value
        return value


def _rebind(before: Environment, after: Environment, memo: dict[int, Any]) -> None:
    """Puts into `memo` what the functions and classes of an environment are in its copy."""
    cells: list[tuple[CellType, CellType]] = []

    def function(made: FunctionType) -> FunctionType:
        if id(made) not in memo:
            closure = tuple(CellType() for _ in made.__closure__ or ())
            cells.extend(zip(made.__closure__ or (), closure, strict=True))
            again = FunctionType(made.__code__, after, made.__name__, made.__defaults__, closure or None)
            again.__kwdefaults__ = made.__kwdefaults__
            again.__qualname__, again.__doc__, again.__module__ = made.__qualname__, made.__doc__, made.__module__
            again.__annotations__ = made.__annotations__
            again.__dict__.update(made.__dict__)
            memo[id(made)] = again
            memo[id(again)] = again
        rebound: FunctionType = memo[id(made)]
        return rebound

    def wrapped(value: Wrapping) -> Any:
        if id(value) not in memo:
            again = value.rebound(function(value.__wrapped__))
            memo[id(value)] = again
            memo[id(again)] = again
        return memo[id(value)]

    def member(value: Any) -> Any:
        match value:
            case Wrapping() if _sees(value, before):
                return wrapped(value)
            case FunctionType() if is_home(before, value):
                return function(value)
            case staticmethod():
                return staticmethod(member(value.__func__))
            case classmethod():
                return classmethod(member(value.__func__))
            case property():
                return property(member(value.fget), member(value.fset), member(value.fdel), value.__doc__)
        return value

    for value in list(before.values()):
        if isinstance(value, FunctionType) and is_home(before, value):
            function(value)
        elif isinstance(value, Wrapping) and _sees(value, before):
            wrapped(value)
    for made in sorted(set(_classes(before)), key=lambda each: len(each.__mro__)):  # a base before what derives from it
        bases = tuple(memo.get(id(base), base) for base in made.__bases__)
        slots = {"__dict__", "__weakref__", *_slots(made)}
        names = {name: member(value) for name, value in vars(made).items() if name not in slots}
        again = type(made.__name__, bases, names)
        memo[id(made)] = again
        memo[id(again)] = again
    for cell, fresh in cells:
        try:
            content = cell.cell_contents
        except ValueError:  # nothing stands in it yet
            continue
        fresh.cell_contents = _copy(content, memo, "", lambda name: False)


def _classes(environment: Environment) -> Iterator[type]:
    """Those that the query has made, with functions that see its variables."""
    made = [value for value in environment.values() if type(value) is type]
    own = {value for value in made if any(_sees(member, environment) for member in vars(value).values())}
    yield from (value for value in made if own.intersection(value.__mro__))


def _sees(member: Any, environment: Environment) -> bool:
    match member:
        case staticmethod() | classmethod():
            return _sees(member.__func__, environment)
        case property():
            return any(_sees(each, environment) for each in (member.fget, member.fset, member.fdel))
        case FunctionType():
            return is_home(environment, member)
        case Wrapping():
            return _sees(member.__wrapped__, environment)
    return False


def _slots(made: type) -> tuple[str, ...]:
    slots = vars(made).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
