"""State of a branch: an immutable value, so that a fork is an assignment. Variables are in the branch's frames.

This module also has the pieces of text that are not on the path yet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from lmql_lite.cache.tokens.nodes import Node
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.engine.record import Step
from lmql_lite.media import Media
from lmql_lite.tokens import Role, Source

TEMPLATE = ""
"""Hole name of template text: the model reads it, and it is not part of the prompt."""
NO_ID = -1
"""Token id of a stretch of text that has none."""
UNREAD = " "
"""Hole name of unread text: it is part of the prompt, and the model does not read it."""
MIN_BLOCK = 16
"""Minimum tokens of a block that is worth moving."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is not yet on the path, with its hole and source."""

    data: bytes
    hole: str | None
    source: Source
    is_ended: bool = False
    """True once the hole has its value. A later hole of the same name does not count these tokens."""

    block: int | None = None
    """Place in the prompt where the block of this text begins; None outside blocks."""
    is_value: bool = False
    """True for a value in the prompt that is no block: other prompts of the query have another one."""

    @property
    def whose(self) -> tuple[str | None, Source, bool, int | None, bool]:
        return self.hole, self.source, self.is_ended, self.block, self.is_value

    def is_of(self, hole: str | None) -> bool:
        """True if the piece is text of the open hole, which has this name."""
        return hole is not None and self.hole == hole and not self.is_ended


class TokenChoice(NamedTuple):
    """A token that may come next: its id, its bytes (b"" at the end of the text), its raw log-probability if that is
    known, and its source.

    `is_close` is True if the model's noise might have changed the choice; None if no scores were read, or the model
    states no noise. `node` is the one to which a token of a server leads, if it is known.
    """

    token: int
    data: bytes
    logprob: float | None
    source: Source
    is_close: bool | None = None
    node: Node | None = None


@dataclass(frozen=True, slots=True)
class Overhang:
    """The last tokens of a hole that run past its end by `surplus` bytes, which the following text may claim (S14).

    `steps` are those tokens, oldest first. The first may straddle the end; `before` are its bytes up to the end.
    """

    steps: tuple[Step, ...]
    before: tuple[Piece, ...]
    surplus: bytes

    def reach(self, many: int) -> int:
        """Number of surplus bytes that the first `many` tokens cover."""
        return sum(len(step.token.data) for step in self.steps[:many]) - len(data_of(self.before))


class State(NamedTuple):
    """State of a branch. `part` is the number of the part that its Python asked for last, -1 before the first.
    `pending` is text after the path's last token; `held` is text taken back for healing (S10)."""

    part: int
    node: Node
    pending: tuple[Piece, ...] = ()
    held: tuple[Piece, ...] = ()
    overhang: Overhang | None = None
    hole: str | None = None
    """The open hole."""
    matcher: Matcher | None = None
    newest: Step | None = None
    """The last token on the path."""
    depth: int = 0
    """Number of tokens on the path."""
    used: int = 0
    """Number of tokens of the open hole."""
    entry: tuple[Piece, ...] = ()
    """Text before the open hole that is in the same token as the hole's beginning (S15)."""
    score: float = 0.0
    """Sum of the raw log-probabilities of the chosen tokens."""
    text: str = ""
    """The whole prompt so far."""
    turn: Role | None = None
    """Speaker of the current turn of a chat."""
    media: tuple[Media, ...] = ()
    """Pictures, videos and clips on the path; models hold them as long as a state does."""

    def say(self, text: str, *, is_block: bool = False, is_value: bool = False) -> State:
        """The state after the program's own text; a block of it may be known from another place."""
        block = len(self.text) if is_block else None
        piece = Piece(text.encode(), None, "prompt", block=block, is_value=is_value and not is_block)
        return self._replace(text=self.text + text, pending=join(self.pending, piece))

    def shown(self, item: Media, step: Step, added: int) -> State:
        """The state after an item, which takes `added` places on the path."""
        media, text = (*self.media, item), self.text + str(item)
        return self._replace(node=step.node, newest=step, depth=self.depth + added, media=media, text=text)


def cut_off(state: State) -> State:
    """The state without the tokens that run past the end of a hole; their part of the hole is pending again."""
    overhang = state.overhang
    if overhang is None:
        return state
    first, *_ = overhang.steps
    pending, depth = joined(overhang.before, state.pending), state.depth - len(overhang.steps)
    return state._replace(overhang=None, pending=pending, node=first.parent, depth=depth, newest=first.before)


def join(pieces: tuple[Piece, ...], piece: Piece) -> tuple[Piece, ...]:
    if not piece.data:
        return pieces
    if pieces and pieces[-1].whose == piece.whose:
        return (*pieces[:-1], replace(piece, data=pieces[-1].data + piece.data))
    return (*pieces, piece)


def ended(pieces: tuple[Piece, ...], hole: str | None, *, is_ended: bool = True) -> tuple[Piece, ...]:
    """The pieces, with those of this hole marked as ended."""
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


# Text that is not on a path yet: of a template, of the prompt, of a block, and unread by the model


def read_bytes(piece: Piece) -> int:
    """Number of bytes of a piece that the model reads."""
    return 0 if piece.hole == UNREAD else len(piece.data)


def block_marks(sizes: Sequence[int], pieces: tuple[Piece, ...]) -> dict[int, int]:
    """Number of tokens of each block, by the index of its first token. `sizes` are the bytes of each token.

    Tokens that also hold other text do not count for the block. A block of no tokens stands before the first token of
    the first value: what precedes it is the same in all prompts of a query.
    """
    if all(piece.block is None and not piece.is_value for piece in pieces):
        return {}
    borders = list(accumulate(sizes, initial=0))
    ranges: dict[int, tuple[int, int]] = {}
    end = 0
    for piece in pieces:
        begin, end = end, end + read_bytes(piece)
        if piece.block is not None:
            ranges[piece.block] = (ranges.get(piece.block, (begin, 0))[0], end)
    marks = dict[int, int]()
    for begin, piece in zip(accumulate((read_bytes(each) for each in pieces), initial=0), pieces, strict=False):
        if piece.is_value and piece.data:
            marks[bisect_right(borders, begin) - 1] = 0
            break
    for begin, end in ranges.values():
        first, last = bisect_left(borders, begin), bisect_right(borders, end) - 1
        if last - first >= MIN_BLOCK:
            marks[first] = last - first
    return marks


def of_template(text: bytes) -> Piece:
    return Piece(text, TEMPLATE, "prompt")


def unread(text: bytes) -> Piece:
    return Piece(text, UNREAD, "prompt")


def read(pieces: tuple[Piece, ...]) -> bytes:
    """The text that the model reads."""
    return b"".join(piece.data for piece in pieces if piece.hole != UNREAD)


def shown(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """The pieces that are in the prompt."""
    return tuple(piece for piece in pieces if piece.hole != TEMPLATE)


def behind_template(pieces: tuple[Piece, ...]) -> int:
    """Number of pieces up to and including the last one of the template."""
    return max((at for at, piece in enumerate(pieces, start=1) if piece.hole == TEMPLATE), default=0)


def first_answer(pieces: tuple[Piece, ...]) -> int | None:
    """Index of the first piece that is text of a hole; None if there is none."""
    return next((at for at, piece in enumerate(pieces) if piece.hole not in (None, TEMPLATE, UNREAD)), None)


def begun(pieces: tuple[Piece, ...], length: int) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """The first `length` bytes that the model reads, with unread text around them, and the rest."""
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
    """The pieces with leading white space of the query's text marked as unread."""
    if not pieces or pieces[0].hole is not None:
        return pieces
    text = pieces[0].data.decode()
    left = text.lstrip()
    return _filled(unread(text[: len(text) - len(left)].encode()), replace(pieces[0], data=left.encode()), *pieces[1:])


def stripped_right(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """The pieces with trailing white space of the query's text marked as unread."""
    if not pieces or pieces[-1].hole is not None:
        return pieces
    text = pieces[-1].data.decode()
    left = text.rstrip()
    return _filled(*pieces[:-1], replace(pieces[-1], data=left.encode()), unread(text[len(left) :].encode()))


def _filled(*pieces: Piece) -> tuple[Piece, ...]:
    return tuple(piece for piece in pieces if piece.data)
