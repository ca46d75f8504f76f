"""Token healing (S10): the end of a prompt may be the beginning of a token, as in `"A: "` before ` Paris`, or `>>`
before `>>>`. That end is not sent, and the answer must begin with it.

Only the server's tokenizer knows where the token begins. The last blanks, word or punctuation is taken as a guess.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace

from lmql_lite.constraints.language import Language
from lmql_lite.engine.record import Step, back
from lmql_lite.errors import BrokenOff, ModelError
from lmql_lite.models.base import (
    MAX_BROKEN,
    Capabilities,
    CompletionRequest,
    JsonSchema,
    RanOutEarly,
    ServerUsage,
    StreamPiece,
    broken_again,
)

_MAX_TAIL = 16
_TAIL = re.compile(
    r"""(?:
      [ \t]{1,16}                         # blanks, such as the end of a long indentation
    | [^\S \t]{1,8}                       # line breaks
    | (?:[ ]|(?<!\w))[A-Za-z0-9_]{1,12}   # a short word: the last token of a longer one is not known
    | (?:[ ]|(?<![^\w\s]))[^\w\s]{1,8}    # punctuation
    | [^\W\x00-\x7F]                      # the last character, for scripts without blanks
    )\Z""",
    re.VERBOSE,
)


class Strayed(ModelError):
    """The answer did not begin with the end of the prompt. Another request follows, and no user sees this error."""


def given(newest: Step | None) -> int:
    """Number of bytes at the end of a path that the model did not generate, up to the length that healing can reopen.

    Generated tokens are never reopened.
    """
    size = 0
    for token in (step.token for step in back(newest)):
        if size >= 4 * _MAX_TAIL or token.source not in ("prompt", "forced"):
            break
        size += len(token.data)
    return size


def tail(text: str) -> str:
    """The part of a prompt that may be the beginning of a token."""
    found = _TAIL.search(text[-_MAX_TAIL - 1 :])
    return found[0] if found else ""


def reopened(text: str, size: int) -> str:
    """The tail of a prompt within its last `size` bytes; "" if it is the whole prompt."""
    again = tail(text).encode()[-size:].decode("utf-8", "ignore") if size else ""
    return again if text.strip() != again.strip() else ""


def incomplete(text: bytes) -> int:
    """Number of bytes of an incomplete character at the end of a text. A prompt cannot end inside a character."""
    decoder = getincrementaldecoder("utf-8")("ignore")
    decoder.decode(text)
    return len(decoder.getstate()[0])


def forms(
    again: str, request: CompletionRequest, capabilities: Capabilities
) -> Iterator[tuple[str, CompletionRequest]]:
    """Requests in the order in which they are tried, each with the text that its answer must begin with.

    A grammar enforces that text. Blanks are first tried without a grammar, since models mostly write them and no rules
    are spent. Without a grammar all other text is sent as it is, and so is text that may contain a stop string.
    """
    more = replace(request, max_tokens=request.max_tokens + 1)
    in_stop = set(again) & set("".join(request.stops))
    if again and not (isinstance(request.pushed, JsonSchema) or in_stop):
        if not again.strip(" \t") and not isinstance(request.pushed, Language):
            yield again, more
        if capabilities.takes_languages:
            yield again, replace(more, begin=again)
    yield "", request


class Diverged(ModelError):
    """A request that was sent again has another answer than the text that is known of it."""


async def answered(
    ask: Callable[[], AsyncGenerator[StreamPiece, None]],
    again: bytes,
    known: bytes,
    paid: Callable[[ServerUsage | None], None],
) -> AsyncGenerator[StreamPiece, None]:
    """Pieces of the answer to a request, after the end of the prompt that it says `again`, and the text that is `known`
    of it.

    If the answer breaks off, the same request is sent again after `paid` was called with its usage, and only what is
    new is taken from the next answer: text is never doubled. Raises Strayed if the answer does not begin with the end
    of the prompt, Diverged if it does not go on with what is known, and ModelError if a second answer differs from the
    first or if `MAX_BROKEN` answers in a row break off.
    """
    thoughts, known = 0, again + known
    for tries in range(1, MAX_BROKEN + 1):
        spent, left, unheard = None, known, thoughts
        try:
            async with aclosing(ask()) as pieces:
                async for piece in pieces:
                    spent = piece.spent or spent
                    begun, said = piece.data[: len(left)], again[len(known) - len(left) :]
                    is_short = piece.finish is not None and len(begun) < len(said)
                    if is_short or not said.startswith(begun[: len(said)]):
                        raise Strayed("the answer does not begin with the end of the prompt")
                    if not left.startswith(begun) or (piece.finish == "stop" and begun != left):
                        raise Diverged("the answer to the same request is another one than before")
                    left, known = left[len(begun) :], known + piece.data[len(begun) :]
                    thought, unheard = piece.thought[unheard:], max(unheard - len(piece.thought), 0)
                    thoughts += len(thought)
                    piece = _past(piece, begun) if begun else piece
                    piece = piece if thought == piece.thought else replace(piece, thought=thought)
                    if piece.data or piece.thought or piece.spent or piece.finish:
                        yield piece
            return
        except Diverged:
            if tries == 1:
                raise
            raise ModelError(
                "the server broke off an answer, and its answer to the same request is another one",
                hint="run it again",
            ) from None
        except BrokenOff as error:
            if isinstance(error, RanOutEarly):
                raise
            if tries == MAX_BROKEN:
                raise broken_again(error) from None
        paid(spent)


def _past(piece: StreamPiece, begun: bytes) -> StreamPiece:
    """The rest of a token after its first bytes, with the rests of alternatives that begin with the same bytes."""
    size = len(begun)
    others = tuple(
        (data[size:], logprob) for data, logprob in piece.alternatives if data.startswith(begun) and data != begun
    )
    return replace(piece, data=piece.data[size:], alternatives=others)


async def without_blanks(pieces: AsyncGenerator[StreamPiece, None]) -> AsyncGenerator[StreamPiece, None]:
    """Pieces without white space at the beginning of the answer, which the prompt already has."""
    begun = False
    async with aclosing(pieces):
        async for piece in pieces:
            if not begun:
                piece = replace(piece, data=piece.data.lstrip())
                begun = bool(piece.data)
            yield piece
