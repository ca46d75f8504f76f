"""Equality of branches: two are equal if their places, texts and variables are (S24).

Values that cannot be compared count as different, so both branches go on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from types import FunctionType
from typing import Any

from lmql_lite.engine.branch import Branch
from lmql_lite.engine.environment import Context
from lmql_lite.engine.generate.generator import matcher_of

_MADE: tuple[Iterable[Any], ...] = ((), [], "", b"", range(0), {}, {}.values(), {}.items())
ITERATORS = tuple(type(iter(made)) for made in _MADE)
"""Types of iterators that a comparison does not advance: two are equal if they yield the same items."""


def place_of(branch: Branch) -> Hashable:
    """A value that is equal for branches at the same place of the program with the same text."""
    state, hole = branch.state, branch.hole
    callers = tuple(frame.caller.before.pc for frame in branch.frames if frame.caller is not None)
    programs = tuple(id(frame.program) for frame in branch.frames)
    said = state.text.encode() + (matcher_of(state).text if hole else b"")
    return programs, callers, state.pc, said, branch.is_over, hole is not None, state.turn


def are_equal(one: Branch, other: Branch) -> bool:
    """True if two branches at the same place differ only in their tokens."""
    return equal(one.value, other.value) and all(
        mine.blocks.are_those_of(its.blocks)
        and _equal(mine.environment, its.environment)
        and _equal(mine.variables, its.variables)
        for mine, its in zip(one.frames, other.frames, strict=True)
    )


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(equal(value, other[name]) for name, value in one.items())


def equal(one: Any, other: Any) -> bool:
    if one is other or isinstance(one, Context):
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, FunctionType):
        plain = one.__closure__ is None and other.__closure__ is None
        return plain and one.__code__ is other.__code__ and equal(one.__defaults__, other.__defaults__)
    if isinstance(one, ITERATORS):
        return equal(one.__reduce__(), other.__reduce__())
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(equal(*pair) for pair in zip(one, other, strict=True))
    if isinstance(one, dict):
        return list(one) == list(other) and _equal(one, other)
    try:
        return bool(one == other)
    except Exception:  # an __eq__ may raise anything
        return False
