"""Segments of a program, which are holes matched as one run (S16), and the possible successors of each op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from types import CodeType

from lmql_lite.errors import Span
from lmql_lite.program.ops import (
    CALL,
    EndExcept,
    EndFinally,
    EnterWith,
    Except,
    Hole,
    Jump,
    JumpIf,
    Jumping,
    Leave,
    Let,
    Next,
    Op,
    PromptText,
    Reraise,
    Return,
    Try,
)

REFLECTION = frozenset({"context", "eval", "exec", "globals", "locals", "vars"})
"""Names by which Python can read any hole without naming it."""


def segmented(ops: Sequence[Op], prologue: Sequence[Let]) -> tuple[Op, ...]:
    """The ops, each hole with the text that always follows it, and marked if it continues the segment of the hole
    before it.

    Between the two is only text that is known when the segment starts: no statement, no target of a jump, no value of a
    hole of the segment. A hole that Python judges begins a new segment, and so does the hole after it.
    """
    targets = {op.target for op in ops if isinstance(op, Jumping)}
    later = {name for let in (*prologue, *ops) if isinstance(let, Let) for name in _read_later(let.code)}
    marked: list[Op] = []
    segment: set[str] = set()
    """Holes so far of the segment that may continue here."""
    for at, op in enumerate(ops):
        if at in targets or not isinstance(op, PromptText | Hole):
            segment = set()
        read = {name for code in codes_of(op) for name in _names(code)} - {CALL}
        if read:  # a called function of the query may read the same names
            read |= later
        if read & (segment | REFLECTION):
            segment = set()
        if isinstance(op, Hole):
            joins = bool(segment) and not op.stands_alone
            op = replace(op, continues_segment=joins, following=_following(ops, at + 1))
            segment = set() if op.stands_alone else {*segment, op.name} if joins else {op.name}
        marked.append(op)
    return tuple(marked)


def codes_of(part: object) -> list[CodeType]:
    """All Python in a part of a program."""
    found: list[CodeType] = []
    stack = [part]
    while stack:
        each = stack.pop()
        if isinstance(each, CodeType):
            found.append(each)
        elif isinstance(each, tuple):
            stack += each
        elif is_dataclass(each) and not isinstance(
            each, type | Span
        ):  # the type of a hole may be a class of the user's
            stack += [getattr(each, field.name) for field in fields(each)]
    return found


def _names(code: CodeType) -> set[str]:
    """Every name that is read from the environment, and every attribute."""
    return {*code.co_names, *_read_later(code)}


def _read_later(code: CodeType) -> set[str]:
    """Names that the functions and classes inside it read."""
    return {name for inner in code.co_consts if isinstance(inner, CodeType) for name in _names(inner)}


def _following(ops: Sequence[Op], at: int) -> bytes:
    """The literal text that always comes from op `at` on."""
    said: list[str] = []
    seen: set[int] = set()
    while at not in seen:
        seen.add(at)
        op = ops[at]
        if isinstance(op, Jump):
            at = op.target
            continue
        if not isinstance(op, PromptText):
            break
        for part in op.parts:
            if not isinstance(part, str):
                return "".join(said).encode("utf-8", "replace")
            said.append(part)
        at += 1
    return "".join(said).encode("utf-8", "replace")


# Ways --------------------------------------------------------------------------------------------------------------

Ways = tuple[tuple[int, ...], ...]


def ways(ops: Sequence[Op]) -> Ways:
    """Possible successors of each op. A hole that fails goes to the `target` of each block around it; any other
    exception counts as raised where the block begins."""
    found = [_onward(op, at) for at, op in enumerate(ops)]
    for at, op in enumerate(ops):
        if isinstance(op, Try | EnterWith):
            for inside in range(at + 1, op.target):
                if isinstance(ops[inside], Hole):
                    found[inside] = (*found[inside], op.target)
    return tuple(tuple(dict.fromkeys(each)) for each in found)


def _onward(op: Op, at: int) -> tuple[int, ...]:
    match op:
        case Return(via=via):
            return () if via is None else (via,)
        case Reraise():
            return ()
        case Jump(target=target) | EndExcept(target=target) | Leave(target=target, via=None):
            return (target,)
        case Leave(via=int() as via):
            return (via,)
        case JumpIf(target=target) | Next(target=target) | Try(target=target) | Except(target=target):
            return (at + 1, target)
        case EnterWith(target=target):
            return (at + 1, target)
        case EndFinally(_, onward):
            return (at + 1, *onward)
    return (at + 1,)
