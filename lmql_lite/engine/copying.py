"""Copies of the objects that a query has made: data, instances, and functions and classes that see its variables (S23).

`copy.deepcopy` is not enough here. It does not copy functions, which would still see the variables of another branch,
and it fails on a whole dict if one item cannot be copied. The copy of a function with a cache (`functools.cache`)
begins with an empty cache.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import inspect
from abc import ABCMeta
from collections import ChainMap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    EllipsisType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    NoneType,
)
from typing import Any, Protocol
from weakref import ref

from lmql_lite.engine.environment import Environment, Home, home_of
from lmql_lite.program.ops import is_slot

_ATOMS: frozenset[type] = frozenset(
    {NoneType, bool, int, float, complex, str, bytes, range, EllipsisType} | {CodeType, ModuleType}
)
_CACHED = type(functools.cache(str))
_NEW = object()


class UnderWay(Exception):
    """An unfinished generator cannot be copied, and two branches that shared it would take turns with its items."""


class Wrapping(Protocol):
    """A function of the query that is itself a query."""

    __wrapped__: Any

    def rebound(self, function: FunctionType) -> Any:
        """The same query with another function inside."""
        ...


class Copying:
    """One pass of copying. Copied functions see the environments `after` in place of `before`; `shared` is not copied.

    One object in two places remains one object in the copy. An object that cannot be copied (a file, a lock) is shared,
    and its container is still copied.
    """

    def __init__(self, before: Sequence[Environment], after: Sequence[Environment], shared: Iterable[Any]) -> None:
        self._before = before
        self._homes: dict[Home | None, Environment] = {
            home_of(environment): fresh for environment, fresh in zip(before, after, strict=True)
        }
        self._memo: dict[int, Any] = {id(value): value for value in shared}
        self._kept: list[Any] = []
        """Intermediate objects, kept so that no other object gets their id."""
        self._kept_as_is = 0
        """Number of shared objects: they cannot be copied, or are iterators that the query did not make."""

    def iterator(self, value: Any) -> Any:
        """A copy of a loop's iterator; None if the iterator could only be shared."""
        before = self._kept_as_is
        self._memo.pop(id(value), None)  # even if the caller gave it
        try:
            again = self.copy(value)
        except UnderWay:
            return None
        return again if self._kept_as_is == before else None

    def copy(self, value: Any) -> Any:
        """A copy of the value. Raises RecursionError for deep nesting, and UnderWay for an unfinished generator."""
        kind = type(value)
        if kind in _ATOMS:
            return value
        known = self._memo.get(id(value), _NEW)
        if known is not _NEW:
            self._kept_as_is += known is value and hasattr(kind, "__next__")
            return known
        if kind is list or kind is dict:
            return self._container(value)
        if kind is tuple:
            items = tuple(map(self.copy, value))
            is_same = all(one is other for one, other in zip(items, value, strict=True))
            return self._made(value, value if is_same else items)
        if kind is FunctionType:
            return self._function(value)
        if kind is MethodType:
            return self._made(value, MethodType(self.copy(value.__func__), self.copy(value.__self__)))
        if kind in (BuiltinFunctionType, MethodWrapperType):  # such as `items.append`, bound to `items`
            owner = self.copy(value.__self__)
            return self._made(value, value if owner is value.__self__ else getattr(owner, value.__name__))
        if kind is ref:
            target = self.copy(value())
            return self._made(value, value if target is value() else ref(target, self.copy(value.__callback__)))
        if kind is memoryview and value.nbytes == memoryview(value.obj).nbytes:
            viewed = memoryview(self.copy(value.obj)).cast("B")
            return self._made(value, viewed.cast(value.format, value.shape))
        if isinstance(value, type):
            return self._class(value)
        try:
            return self._instance(value)
        except (RecursionError, UnderWay):
            raise
        except Exception:  # a __deepcopy__ or a __reduce__ may raise anything
            if any(getattr(value, frame, None) is not None for frame in ("gi_frame", "ag_frame", "cr_frame")):
                raise UnderWay from None
            self._kept_as_is += 1
            return self._made(value, value)

    def _made(self, value: Any, again: Any) -> Any:
        """The copy of a value; in a cycle that makes two copies, the first one."""
        self._kept.append(value)
        return self._memo.setdefault(id(value), again)

    # Data --------------------------------------------------------------------------------------------------------

    def _container(self, value: Any) -> Any:
        if isinstance(value, list):
            items: list[Any] = self._made(value, [])
            items += map(self.copy, value)
            return items
        table: dict[Any, Any] = self._made(value, {})
        table.update((self.copy(key), self.copy(each)) for key, each in value.items())
        return table

    def _instance(self, value: Any) -> Any:
        """A copy by the value's own `__deepcopy__` or `__reduce_ex__`, as in `copy.deepcopy`."""
        kind = type(value)
        if hasattr(kind, "rebound"):
            return self._made(value, value.rebound(self.copy(value.__wrapped__)))
        if kind is _CACHED:
            return self._made(value, functools.lru_cache(**value.cache_parameters())(self.copy(value.__wrapped__)))
        if hasattr(kind, "__deepcopy__"):
            memo = ChainMap[int, Any]({}, self._memo)  # discarded if __deepcopy__ raises
            again = value.__deepcopy__(memo)
            self._memo.update(memo.maps[0])
            return self._made(value, again)
        reduce = copyreg.dispatch_table.get(kind)
        reduced = reduce(value) if reduce else value.__reduce_ex__(4)
        if isinstance(reduced, str):  # the name of a global, which is not copied
            return self._made(value, value)
        self._kept.append(reduced)
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        again = self._made(value, make(*map(self.copy, arguments)))
        if state is not None:
            _set_state(again, self.copy(state))
        for item in items or ():
            again.append(self.copy(item))
        for key, item in pairs or ():
            again[self.copy(key)] = self.copy(item)
        return again

    # Functions and classes -----------------------------------------------------------------------------------------

    def _home(self, function: Any) -> Environment | None:
        """The fresh environment of a function; None for a function that the query did not make."""
        names = getattr(function, "__globals__", None)
        return None if names is None else self._homes.get(home_of(names))

    def _function(self, made: FunctionType) -> Any:
        """A copy of a function that the query made, or of a wrapper around one (`functools.wraps`)."""
        if self._home(made) is None and self._home(inspect.unwrap(made)) is None:
            return self._made(made, made)
        cells = tuple(map(self._cell, made.__closure__ or ())) or None
        again = FunctionType(made.__code__, self._home(made) or made.__globals__, made.__name__, None, cells)
        self._made(made, again)
        again.__qualname__, again.__doc__, again.__module__ = made.__qualname__, made.__doc__, made.__module__
        again.__annotations__ = made.__annotations__
        again.__defaults__, again.__kwdefaults__ = self.copy(made.__defaults__), self.copy(made.__kwdefaults__)
        again.__dict__.update(self.copy(made.__dict__))
        for cell, fresh in zip(made.__closure__ or (), cells or (), strict=True):
            with suppress(ValueError):  # the cell is still empty
                fresh.cell_contents = self.copy(cell.cell_contents)
        return again

    def _cell(self, cell: CellType) -> CellType:
        """A copy of a closure cell; functions that share the cell share the copy."""
        again: CellType = self._made(cell, CellType())
        return again

    def _class(self, made: type) -> Any:
        if type(made) not in (type, ABCMeta) or not self._is_own(made):
            return self._made(made, made)
        left_out = {"__dict__", "__weakref__", "_abc_impl", *_slots(made)}
        bases = tuple(map(self.copy, made.__bases__))
        names = {name: each for name, each in vars(made).items() if name not in left_out}
        again = self._made(made, type(made)(made.__name__, bases, names))
        for name, each in names.items():
            # dunder names belong to Python, unless they are functions
            if (copied := self._member(each, is_data=not name.startswith("__"))) is not each:
                setattr(again, name, copied)
        return again

    def _member(self, value: Any, *, is_data: bool) -> Any:
        match value:
            case staticmethod() | classmethod():
                return type(value)(self.copy(value.__func__))
            case property():
                return property(self.copy(value.fget), self.copy(value.fset), self.copy(value.fdel), value.__doc__)
        return self.copy(value) if is_data or isinstance(value, FunctionType) else value

    def _is_own(self, made: type) -> bool:
        """True if the query made the class: a `class` statement of the query did, or the class or a base of it has
        functions that see the query's variables."""
        if any(self._sees(member) for each in made.__mro__ for member in vars(each).values()):
            return True
        own_name = made.__name__
        return made.__module__ == "__main__" and any(names.get(own_name) is made for names in self._before)

    def _sees(self, member: Any) -> bool:
        match member:
            case staticmethod() | classmethod():
                return self._sees(member.__func__)
            case property():
                return any(map(self._sees, (member.fget, member.fset, member.fdel)))
        return self._home(getattr(member, "__wrapped__", member)) is not None


def _set_state(again: Any, state: Any) -> None:
    if hasattr(again, "__setstate__"):
        again.__setstate__(state)
        return
    names, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if names:
        again.__dict__.update(names)
    for name, value in (slots or {}).items():
        setattr(again, name, value)


def _slots(made: type) -> tuple[str, ...]:
    slots = vars(made).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


_READING = frozenset(
    {"RESUME", "LOAD_NAME", "LOAD_CONST", "LOAD_SMALL_INT", "RETURN_VALUE", "RETURN_CONST", "POP_TOP", "NOP"}
    | {"COMPARE_OP", "CONTAINS_OP", "IS_OP", "UNARY_NOT", "TO_BOOL", "CACHE", "COPY_FREE_VARS", "NOT_TAKEN"}
)


class NotCopied(Exception):
    """The value of `name` in the environment at `place` can neither be copied nor shared."""

    def __init__(self, place: int, name: str, *, is_under_way: bool = False) -> None:
        super().__init__(name)
        self.place = place
        self.name = name
        self.is_under_way = is_under_way
        """True if the value is a generator, or holds one."""


@cache
def only_reads(code: CodeType) -> bool:
    """True if the code only reads variables and compares them."""
    return all(instruction.opname in _READING for instruction in dis.get_instructions(code))


def names_only(code: CodeType, name: str) -> bool:
    """True if the code is this variable and nothing else."""
    looked_up = [instruction.argval for instruction in dis.get_instructions(code) if instruction.opname == "LOAD_NAME"]
    return looked_up == [name] and not _constants(code) and only_reads(code)


def assigns(code: CodeType, name: str) -> bool:
    """True if the code assigns the variable."""
    return any(step.opname == "STORE_NAME" and step.argval == name for step in dis.get_instructions(code))


def _constants(code: CodeType) -> bool:
    return any(instruction.opname in ("LOAD_CONST", "UNARY_NOT") for instruction in dis.get_instructions(code))


def copied(environments: Sequence[Environment], shared: Iterable[Any]) -> list[Environment]:
    """Copies of environments and of the objects in them that the query made. One object in two places remains one.

    `shared` values are not copied, and neither are objects that cannot be. Raises NotCopied for a loop's iterator that
    cannot be copied, and for an unfinished generator: two branches cannot share them.
    """
    fresh: list[Environment] = [{} for _ in environments]
    copying = Copying(environments, fresh, shared)
    for place, (before, after) in enumerate(zip(environments, fresh, strict=True)):
        for name in filter(is_slot, before):
            after[name] = copying.iterator(before[name])
            if after[name] is None:
                raise NotCopied(place, name)
    for place, (before, after) in enumerate(zip(environments, fresh, strict=True)):
        for name, value in before.items():
            if name not in after:
                try:
                    after[name] = copying.copy(value)
                except RecursionError:
                    raise NotCopied(place, name) from None
                except UnderWay:
                    raise NotCopied(place, name, is_under_way=True) from None
    return fresh
