"""The variables of a hypothesis that came from another one: its own, as soon as Python might change them (S23).

A fork copies names and nothing else: sixteen hypotheses share one list of a thousand items. Before a hypothesis runs
Python that may write, all that the query has made is copied (copying.py). What the caller gave never is.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Sequence
from functools import cache
from types import CodeType
from typing import Any

from lmql_lite.program.ops import is_slot
from lmql_lite.runtime.copying import Copying, UnderWay
from lmql_lite.runtime.environment import Environment

_READING = frozenset(
    {"RESUME", "LOAD_NAME", "LOAD_CONST", "LOAD_SMALL_INT", "RETURN_VALUE", "RETURN_CONST", "POP_TOP", "NOP"}
    | {"COMPARE_OP", "CONTAINS_OP", "IS_OP", "UNARY_NOT", "TO_BOOL", "CACHE", "COPY_FREE_VARS", "NOT_TAKEN"}
)


class NotCopied(Exception):
    """What stands under `name` in the environment at `place` cannot be copied, and may not be shared."""

    def __init__(self, place: int, name: str, *, is_under_way: bool = False) -> None:
        super().__init__(name)
        self.place = place
        self.name = name
        self.is_under_way = is_under_way
        """It is a generator, or holds one."""


@cache
def only_reads(code: CodeType) -> bool:
    """Whether it does nothing but look at variables and compare them."""
    return all(instruction.opname in _READING for instruction in dis.get_instructions(code))


def names_only(code: CodeType, name: str) -> bool:
    """Whether it is this variable and nothing else."""
    looked_up = [instruction.argval for instruction in dis.get_instructions(code) if instruction.opname == "LOAD_NAME"]
    return looked_up == [name] and not _constants(code) and only_reads(code)


def assigns(code: CodeType, name: str) -> bool:
    """Whether it gives the variable a value."""
    return any(step.opname == "STORE_NAME" and step.argval == name for step in dis.get_instructions(code))


def _constants(code: CodeType) -> bool:
    return any(instruction.opname in ("LOAD_CONST", "UNARY_NOT") for instruction in dis.get_instructions(code))


def copied(environments: Sequence[Environment], shared: Iterable[Any]) -> list[Environment]:
    """The environments with copies of all that the query has made in them; what is one object in two places stays one.

    `shared` are values that are not copied, and what cannot be copied is shared, too. Raises NotCopied for the iterator
    of a loop that cannot be copied, and for a generator under way: they cannot be in two places.
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
