"""Where each op of a program may lead."""

from __future__ import annotations

from collections.abc import Sequence

from lmql_lite.program.ops import (
    EndExcept,
    EndFinally,
    EnterWith,
    Except,
    Hole,
    Jump,
    JumpIf,
    Leave,
    Next,
    Op,
    Reraise,
    Return,
    Try,
)

Ways = tuple[tuple[int, ...], ...]


def ways(ops: Sequence[Op]) -> Ways:
    """The places behind each op. Where a hole fails, what guards it goes on; any other exception counts as raised where
    the block begins."""
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
