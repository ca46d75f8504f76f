"""State of a branch: a frozen value, so that a fork is an assignment. Its variables are in its frames.

Also the pieces of text that are not on its path yet, and the counts of the tokens that are.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from lmql_lite.cache.entry import Node
from lmql_lite.cache.sampling import Penalties
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.media import Media
from lmql_lite.options import Sampling
from lmql_lite.tokens import Role, Source, Token

TEMPLATE = ""
"""In the place of a hole: the model reads this, and it is no part of the prompt."""
UNREAD = " "
"""In the place of a hole: this is part of the prompt, and the model does not read it."""
LEAST_BLOCK = 16
"""Fewest tokens of a block that is worth moving."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is not yet on the path, with its hole and source."""

    data: bytes
    hole: str | None
    source: Source
    is_ended: bool = False
    """True once its hole has its value; one of the same name that opens later does not count its tokens."""

    block: int | None = None
    """Place in the prompt at which its block begins; None for text that belongs to none."""

    @property
    def whose(self) -> tuple[str | None, Source, bool, int | None]:
        return self.hole, self.source, self.is_ended, self.block

    def is_of(self, hole: str | None) -> bool:
        """True if it is text of the open hole, which has that name."""
        return hole is not None and self.hole == hole and not self.is_ended


@dataclass(frozen=True, slots=True)
class Step:
    """One token of the history, newest first. Dropped tokens stand in it too, with their fate."""

    token: Token
    parent: Node
    node: Node
    before: Step | None

    def is_of(self, hole: str | None) -> bool:
        """True if the token is one of that hole's."""
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
        """Number of bytes of the surplus that the first `many` tokens cover."""
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
    """Text before the open hole in tokens that reach into it from an earlier one (S15)."""
    score: float = 0.0
    """Sum of the raw log-probabilities of the tokens that were chosen."""
    text: str = ""
    """The whole prompt so far."""
    turn: Role | None = None
    """Of a chat, whose turn it is."""
    media: tuple[Media, ...] = ()
    """Pictures, videos and clips on the path: models know them as long as a state has them."""

    def say(self, text: str, *, is_block: bool = False) -> State:
        """The program's own text; a block of it may be known from another place."""
        piece = Piece(text.encode(), None, "prompt", block=len(self.text) if is_block else None)
        return self._replace(text=self.text + text, pending=join(self.pending, piece))

    def shown(self, item: Media, step: Step, added: int) -> State:
        """Behind an item, which takes `added` places on the path."""
        media, text = (*self.media, item), self.text + str(item)
        return self._replace(node=step.node, history=step, depth=self.depth + added, media=media, text=text)

    def chosen(self, step: Step, logprob: float, matcher: Matcher | None) -> State:
        """Behind a token that was chosen; the open hole then stands at `matcher`."""
        return self._replace(
            node=step.node,
            held=(),
            matcher=matcher,
            history=step,
            depth=self.depth + 1,
            used=self.used + (step.token.hole == self.hole),
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
    """Steps in the history of `after` since `before`, from which it came; oldest first."""
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
    if pieces and pieces[-1].whose == piece.whose:
        return (*pieces[:-1], replace(piece, data=pieces[-1].data + piece.data))
    return (*pieces, piece)


def ended(pieces: tuple[Piece, ...], hole: str | None, *, is_ended: bool = True) -> tuple[Piece, ...]:
    """The pieces, once the hole of that name has its value."""
    return tuple(replace(piece, is_ended=is_ended) if hole and piece.hole == hole else piece for piece in pieces)


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
    """The pieces without their first `length` bytes."""
    while pieces and length >= len(pieces[0].data):
        length -= len(pieces[0].data)
        pieces = pieces[1:]
    if pieces and length:
        pieces = (replace(pieces[0], data=pieces[0].data[length:]), *pieces[1:])
    return pieces


# Text that is not on a path yet: a template's, the prompt's, a block's, and text that the model does not read


def block_marks(sizes: Sequence[int], pieces: tuple[Piece, ...]) -> dict[int, int]:
    """Number of tokens of each block, by the number of its first token. `sizes` are the bytes of each token.

    A block is the tokens that hold text of nothing else.
    """
    if all(piece.block is None for piece in pieces):
        return {}
    borders = list(accumulate(sizes, initial=0))
    ranges: dict[int, tuple[int, int]] = {}
    end = 0
    for piece in pieces:
        begin, end = end, end + (0 if piece.hole == UNREAD else len(piece.data))
        if piece.block is not None:
            ranges[piece.block] = (ranges.get(piece.block, (begin, 0))[0], end)
    marks = {}
    for begin, end in ranges.values():
        first, last = bisect_left(borders, begin), bisect_right(borders, end) - 1
        if last - first >= LEAST_BLOCK:
            marks[first] = last - first
    return marks


def of_template(text: bytes) -> Piece:
    return Piece(text, TEMPLATE, "prompt")


def unread(text: bytes) -> Piece:
    return Piece(text, UNREAD, "prompt")


def read(pieces: tuple[Piece, ...]) -> bytes:
    """The part that the model reads."""
    return b"".join(piece.data for piece in pieces if piece.hole != UNREAD)


def shown(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """The part that is in the prompt."""
    return tuple(piece for piece in pieces if piece.hole != TEMPLATE)


def behind_template(pieces: tuple[Piece, ...]) -> int:
    """The number of pieces up to the last one of the template."""
    return max((at for at, piece in enumerate(pieces, start=1) if piece.hole == TEMPLATE), default=0)


def first_answer(pieces: tuple[Piece, ...]) -> int | None:
    """The number of the first piece that is text of a hole."""
    return next((at for at, piece in enumerate(pieces) if piece.hole not in (None, TEMPLATE, UNREAD)), None)


def begun(pieces: tuple[Piece, ...], length: int) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """The first `length` bytes that the model reads, with the unread ones around them, and what is left."""
    first: tuple[Piece, ...] = ()
    while pieces and (length or pieces[0].hole == UNREAD):
        piece, *others = pieces
        size = len(piece.data) if piece.hole == UNREAD else min(length, len(piece.data))
        length -= 0 if piece.hole == UNREAD else size
        first = join(first, replace(piece, data=piece.data[:size]))
        rest = replace(piece, data=piece.data[size:])
        pieces = (rest, *others) if rest.data else tuple(others)
    return first, pieces


def stripped_left(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """White space that the query's text begins with is not read."""
    if not pieces or pieces[0].hole is not None:
        return pieces
    text = pieces[0].data.decode()
    left = text.lstrip()
    return _filled(unread(text[: len(text) - len(left)].encode()), replace(pieces[0], data=left.encode()), *pieces[1:])


def stripped_right(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """White space that the query's text ends with is not read."""
    if not pieces or pieces[-1].hole is not None:
        return pieces
    text = pieces[-1].data.decode()
    left = text.rstrip()
    return _filled(*pieces[:-1], replace(pieces[-1], data=left.encode()), unread(text[len(left) :].encode()))


def _filled(*pieces: Piece) -> tuple[Piece, ...]:
    return tuple(piece for piece in pieces if piece.data)


@dataclass(slots=True)
class PathCounts:
    """Counts of the tokens on one path, for penalties.

    Only tokens that joined or left the path since the last question are counted, so that a token costs as much at the
    end of a long text as at its beginning.
    """

    _slots: dict[int, int] = field(default_factory=dict)
    """Of a token in the columns."""
    _ids: array[int] = field(default_factory=partial(array, "i"))
    _in_text: array[int] = field(default_factory=partial(array, "i"))
    _said: array[int] = field(default_factory=partial(array, "i"))
    _counted: list[Step] = field(default_factory=list)
    """Oldest first."""
    _places: dict[int, int] = field(default_factory=dict)
    """Of a step, by its identity, among those that were counted."""

    def fork(self) -> PathCounts:
        fork = PathCounts()
        fork._slots, fork._places, fork._counted = dict(self._slots), dict(self._places), list(self._counted)
        fork._ids, fork._in_text, fork._said = self._ids[:], self._in_text[:], self._said[:]
        return fork

    def penalties(self, history: Step | None, sampling: Sampling) -> Penalties:
        """Penalties of the tokens on the path with this history."""
        self._go_to(history)
        ids, in_text, said = (np.array(column, np.int32) for column in (self._ids, self._in_text, self._said))
        return Penalties.of(sampling, ids, in_text, said)

    def _go_to(self, history: Step | None) -> None:
        joined: list[Step] = []
        while history is not None and id(history) not in self._places:
            joined.append(history)
            history = history.before
        stays = self._places[id(history)] + 1 if history is not None else 0
        while len(self._counted) > stays:
            step = self._counted.pop()
            del self._places[id(step)]
            self._count(step, -1)
        for step in reversed(joined):
            self._places[id(step)] = len(self._counted)
            self._counted.append(step)
            self._count(step, 1)

    def _count(self, step: Step, change: int) -> None:
        token = step.token
        if token.fate != "kept" or step.node == step.parent or token.id < 0:
            return
        slot = self._slots.setdefault(token.id, len(self._ids))
        if slot == len(self._ids):
            self._ids.append(token.id)
            self._in_text.append(0)
            self._said.append(0)
        self._in_text[slot] += change
        self._said[slot] += change if token.hole is not None else 0
