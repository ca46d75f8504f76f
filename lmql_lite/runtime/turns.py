"""Turns of a chat among what is pending: what the template says there, and white space that it leaves out."""

from __future__ import annotations

from dataclasses import replace

from lmql_lite.runtime.state import Piece, join

TEMPLATE = ""
"""In the place of a hole: the model reads this, and it is no part of the prompt."""
UNREAD = " "
"""In the place of a hole: this is part of the prompt, and the model does not read it."""


def of_template(text: bytes) -> Piece:
    return Piece(text, TEMPLATE, "prompt")


def unread(text: bytes) -> Piece:
    return Piece(text, UNREAD, "prompt")


def read(pieces: tuple[Piece, ...]) -> bytes:
    """What the model reads of them."""
    return b"".join(piece.data for piece in pieces if piece.hole != UNREAD)


def shown(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """What the prompt holds of them."""
    return tuple(piece for piece in pieces if piece.hole != TEMPLATE)


def behind_template(pieces: tuple[Piece, ...]) -> int:
    """Where the template said its last word: at the beginning, if it says nothing."""
    return max((at for at, piece in enumerate(pieces, start=1) if piece.hole == TEMPLATE), default=0)


def first_answer(pieces: tuple[Piece, ...]) -> int | None:
    """Where the first text of a hole stands."""
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
