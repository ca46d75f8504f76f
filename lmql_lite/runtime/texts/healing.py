"""The end of a prompt may be no more than the beginning of a token: `"A: "` where the model would have said ` Paris`,
`>>` where it knows `>>>`. What the query or a condition gave of it is not sent then, and the model says it again (S10).

How far back that token begins only the server's tokenizer knows. Here it is taken for the last blanks, word or signs.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace

from lmql_lite.constraints.language import Language
from lmql_lite.errors import ModelError
from lmql_lite.models.base import Endpoint, JsonSchema, Piece, Wish
from lmql_lite.runtime.state import Step

_MOST = 16
_TAIL = re.compile(
    r"""(?:
      [ \t]{1,16}                         # blanks, also the last ones of a long indentation
    | [^\S \t]{1,8}                       # line breaks
    | (?:[ ]|(?<!\w))[A-Za-z0-9_]{1,12}   # a word: of a longer one it is not known where its last token begins
    | (?:[ ]|(?<![^\w\s]))[^\w\s]{1,8}    # signs
    | [^\W\x00-\x7F]                      # of scripts that may do without blanks the last character
    )\Z""",
    re.VERBOSE,
)


class Strayed(ModelError):
    """The model did not say the end of the prompt again. Another form of the question follows; no user sees this."""


def given(newest: Step | None) -> int:
    """How many of the last bytes of a path the model has not said itself, as far as that matters.

    What it said is never reopened: it ends where a token ends.
    """
    size, step = 0, newest
    while step is not None and size < 4 * _MOST and step.token.source in ("prompt", "forced"):
        size += len(step.token.data) if step.token.fate == "kept" else 0
        step = step.before
    return size


def tail(text: str) -> str:
    """The part of a prompt that may be the beginning of a token."""
    found = _TAIL.search(text[-_MOST - 1 :])
    return found[0] if found else ""


def forms(again: str, wish: Wish, endpoint: Endpoint) -> Iterator[tuple[str, Wish]]:
    """What is to be said again, and the wish, in the order in which they are tried until the answer begins so.

    Rules hold the model to it. A blank before its answer it mostly says of itself, which costs no rules; all else that
    no rules hold it to is sent as it stands. So is what a stop might be found in.
    """
    more = replace(wish, max_tokens=wish.max_tokens + 1)
    if again and not (wish.banned or isinstance(wish.pushed, JsonSchema) or set(again) & set("".join(wish.stops))):
        if not again.strip(" \t") and not isinstance(wish.pushed, Language):
            yield again, more
        if endpoint.takes_languages:
            yield again, replace(more, begin=again)
    yield "", wish


async def said_again(pieces: AsyncGenerator[Piece, None], again: bytes) -> AsyncGenerator[Piece, None]:
    """What comes after it. Raises Strayed where an answer does not begin so."""
    left = again
    async with aclosing(pieces):
        async for piece in pieces:
            if left:
                said = piece.data[: len(left)]
                if not left.startswith(said) or (piece.finish is not None and said != left):
                    raise Strayed("the model does not go on with the end of the prompt")
                left = left[len(said) :]
                piece = _past(piece, said)
                if not piece.data and piece.finish is None and piece.spent is None:
                    continue
            yield piece


def _past(piece: Piece, said: bytes) -> Piece:
    """What is left of a token behind its first bytes; only what begins alike could have come instead."""
    size = len(said)
    others = tuple(
        (data[size:], logprob) for data, logprob in piece.alternatives if data.startswith(said) and data != said
    )
    return replace(piece, data=piece.data[size:], alternatives=others)
