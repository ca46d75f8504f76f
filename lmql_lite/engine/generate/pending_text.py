"""Text that is not on a path yet: a template's, the prompt's, a block's, and what the model does not read."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from lmql_lite.engine.state import Piece, join

TEMPLATE = ""
"""In the place of a hole: the model reads this, and it is no part of the prompt."""
UNREAD = " "
"""In the place of a hole: this is part of the prompt, and the model does not read it."""
LEAST_BLOCK = 16
"""Fewest tokens of a block that is worth moving."""


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
