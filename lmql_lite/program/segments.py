"""Which holes are matched as one run with the hole before them. Fixed by the program alone (S16)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from types import CodeType

from lmql_lite.program.ops import CALL, Hole, Jumping, Let, Op, Text

REFLECTION = frozenset({"context", "eval", "exec", "globals", "locals", "vars"})
"""Through these Python reads any hole without naming it."""


def segmented(ops: Sequence[Op], prologue: Sequence[Let]) -> tuple[Op, ...]:
    """The ops, with the holes marked that stand in one segment with the hole before them.

    Between the two is nothing but text that could be known when the segment starts: no statement, no place that is
    jumped to, no value of one of its holes. What Python judges, before or after, begins anew.
    """
    targets = {op.target for op in ops if isinstance(op, Jumping)}
    later = {name for let in (*prologue, *ops) if isinstance(let, Let) for name in _read_later(let.code)}
    marked: list[Op] = []
    segment: set[str] = set()
    """The holes so far of the segment that may go on here."""
    for at, op in enumerate(ops):
        if at in targets or not isinstance(op, Text | Hole):
            segment = set()
        read = {name for code in _codes(op) for name in _names(code)} - {CALL}
        if read:  # what is called may be a function of the query and read what that reads
            read |= later
        if read & (segment | REFLECTION):
            segment = set()
        if isinstance(op, Hole):
            joins = bool(segment) and not op.stands_alone
            op = replace(op, continues_segment=joins)
            segment = set() if op.stands_alone else {*segment, op.name} if joins else {op.name}
        marked.append(op)
    return tuple(marked)


def _codes(part: object) -> Iterator[CodeType]:
    """All Python that an op evaluates."""
    if isinstance(part, CodeType):
        yield part
    elif isinstance(part, tuple):
        for each in part:
            yield from _codes(each)
    elif is_dataclass(part) and not isinstance(part, type):  # the type of a hole may be a class of the user's
        for field in fields(part):
            yield from _codes(getattr(part, field.name))


def _names(code: CodeType) -> set[str]:
    """Every name that is read from the environment, and every attribute."""
    return {*code.co_names, *_read_later(code)}


def _read_later(code: CodeType) -> set[str]:
    """What the functions and classes inside it read."""
    return {name for inner in code.co_consts if isinstance(inner, CodeType) for name in _names(inner)}
