"""Where one hypothesis stands: a frozen value, so that a fork is an assignment. Its variables live beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from lmql_lite.cache.tree import Node
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.tokens import Role, Source, Token


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is settled but not yet on the path, and whose it is."""

    data: bytes
    hole: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class Step:
    """One token of the history, newest first. Dropped tokens stand in it too, with their fate."""

    token: Token
    parent: Node
    node: Node
    before: Step | None

    def is_of(self, hole: str | None) -> bool:
        """Whether the token is one of that hole's."""
        return hole is not None and self.token.hole == hole


@dataclass(frozen=True, slots=True)
class Overhang:
    """The last tokens of a hole run past its end: by `surplus` bytes, which what follows may claim (S14).

    `steps` are those tokens, oldest first; the first may lie across the end, with `before` as its bytes up to there.
    """

    steps: tuple[Step, ...]
    before: tuple[Piece, ...]
    surplus: bytes

    def reach(self, many: int) -> int:
        """How far into the surplus the first `many` tokens go."""
        return sum(len(step.token.data) for step in self.steps[:many]) - len(data_of(self.before))


class State(NamedTuple):
    """`pending` is text said since the path's last token; `held` its end that was taken back for healing (S10)."""

    pc: int
    node: Node
    pending: tuple[Piece, ...] = ()
    held: tuple[Piece, ...] = ()
    overhang: Overhang | None = None
    hole: str | None = None
    """The open hole."""
    matcher: Matcher | None = None
    history: Step | None = None
    depth: int = 0
    """Tokens on the path."""
    used: int = 0
    """Tokens of the open hole."""
    entry: tuple[Piece, ...] = ()
    """What stands before the open hole in the tokens that reach into it from an earlier one (S15)."""
    score: float = 0.0
    """Sum of the raw log-probabilities of the tokens that were chosen."""
    text: str = ""
    """The whole prompt so far."""
    turn: Role | None = None
    """Of a chat, whose turn it is."""

    def say(self, text: str) -> State:
        """The program's own text."""
        return self._replace(text=self.text + text, pending=join(self.pending, Piece(text.encode(), None, "prompt")))

    def chosen(self, step: Step, logprob: float, matcher: Matcher | None) -> State:
        """Behind a token that was chosen; the open hole then stands at `matcher`."""
        return self._replace(
            node=step.node,
            held=(),
            matcher=matcher,
            history=step,
            depth=self.depth + 1,
            used=self.used + step.is_of(self.hole),
            score=self.score + logprob,
        )

    def tokens(self) -> tuple[Token, ...]:
        tokens = []
        step = self.history
        while step is not None:
            tokens.append(step.token)
            step = step.before
        return tuple(reversed(tokens))


def steps_since(before: State, after: State) -> list[Step]:
    """What `after` has in its history beyond `before`, from which it came; oldest first."""
    steps = []
    step = after.history
    while step is not before.history:
        assert step is not None, "one state came from the other"
        steps.append(step)
        step = step.before
    return steps[::-1]


def cut_off(state: State) -> State:
    """Before the tokens that run past the end of a hole: what they have of it is pending again."""
    overhang = state.overhang
    if overhang is None:
        return state
    first, *_ = overhang.steps
    pending, depth = joined(overhang.before, state.pending), state.depth - len(overhang.steps)
    return state._replace(overhang=None, pending=pending, node=first.parent, depth=depth, history=first.before)


def noted(state: State, rejected: Iterable[Step]) -> State:
    """With rejected tokens in the history, behind the value that took their place."""
    for step in rejected:
        state = state._replace(history=replace(step, before=state.history))
    return state


def join(pieces: tuple[Piece, ...], piece: Piece) -> tuple[Piece, ...]:
    if not piece.data:
        return pieces
    if pieces and (pieces[-1].hole, pieces[-1].source) == (piece.hole, piece.source):
        return (*pieces[:-1], replace(piece, data=pieces[-1].data + piece.data))
    return (*pieces, piece)


def joined(first: tuple[Piece, ...], second: tuple[Piece, ...]) -> tuple[Piece, ...]:
    for piece in second:
        first = join(first, piece)
    return first


def data_of(pieces: tuple[Piece, ...]) -> bytes:
    return b"".join(piece.data for piece in pieces)


def until(pieces: tuple[Piece, ...], length: int) -> tuple[Piece, ...]:
    """The first `length` bytes of the pieces."""
    first: tuple[Piece, ...] = ()
    for piece in pieces:
        first = join(first, replace(piece, data=piece.data[: max(length, 0)]))
        length -= len(piece.data)
    return first


def without(pieces: tuple[Piece, ...], length: int) -> tuple[Piece, ...]:
    """What is left of the pieces after their first `length` bytes."""
    while pieces and length >= len(pieces[0].data):
        length -= len(pieces[0].data)
        pieces = pieces[1:]
    if pieces and length:
        pieces = (replace(pieces[0], data=pieces[0].data[length:]), *pieces[1:])
    return pieces
