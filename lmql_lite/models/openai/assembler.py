"""Assembly of an answer's pieces from what arrives: the bytes of each token, up to a stop string, without thoughts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from lmql_lite.models.base import ServerUsage, StreamPiece
from lmql_lite.models.openai.decoder import Delta, ServerToken

_OPEN, _CLOSE = "<think>", "</think>"
_BEGUN = tuple(_CLOSE[:size] for size in reversed(range(len(_CLOSE))))
"""Beginnings of the second mark, the longest first."""


class ThoughtFilter:
    """Splits off thoughts that a server leaves at the beginning of an answer, between `<think>` and `</think>`."""

    def __init__(self) -> None:
        self._held = Delta()
        """The end of the text that may begin a mark."""
        self._stage: Literal["begin", "thoughts", "blanks", "answer"] = "begin"

    def split(self, delta: Delta) -> Delta:
        """The delta with the thoughts as such, with what was held before, and without what has to be held."""
        is_last = delta.finish is not None or delta.done
        if self._stage == "begin":
            delta = delta._replace(
                text=self._held.text + delta.text,
                tokens=(*self._held.tokens, *delta.tokens),
                thought=self._held.thought + delta.thought,
            )
            begun = delta.text.lstrip()
            if len(begun) < len(_OPEN) and _OPEN.startswith(begun) and not is_last:
                self._held = delta
                return delta._replace(text="", tokens=(), thought="")
            self._held, self._stage = Delta(), "answer"
            if begun.startswith(_OPEN):
                self._stage, delta = "thoughts", delta._replace(text=begun.removeprefix(_OPEN))
        if self._stage == "thoughts":
            thought, closed, text = (self._held.text + delta.text).partition(_CLOSE)
            begun = "" if closed or is_last else next(mark for mark in _BEGUN if thought.endswith(mark))
            self._held, self._stage = Delta(begun), "blanks" if closed else "thoughts"
            delta = delta._replace(text=text, tokens=(), thought=thought.removesuffix(begun) + delta.thought)
        if self._stage == "blanks" and delta.text:
            text = delta.text.lstrip()
            self._stage = "answer" if text else "blanks"
            delta = delta if text == delta.text else delta._replace(text=text, tokens=())
        return delta


class Assembler:
    """Builder of pieces from deltas. `raw`: the log-probabilities are the model's own, so pieces may carry them.

    Each piece has the usage so far, in case the caller leaves the answer; `requests` is the number of requests in it.
    """

    def __init__(self, stops: Sequence[str], *, raw: bool, requests: int = 1) -> None:
        self.is_stopped = False
        """True after a stop string: text after it is not part of the answer."""
        self.ended_by: str | None = None
        self.size = 0
        """Number of bytes so far."""
        self.finish: str | None = None
        self.spent = ServerUsage(requests=requests) if requests > 1 else None
        self.has_thoughts = False
        self.is_done = False
        self._stop: str | None = None
        self._stops = [(stop.encode(), stop) for stop in stops]
        self._raw, self._requests = raw, requests
        self._text = bytearray()
        """Received bytes that are in no piece yet."""
        self._tokens: deque[ServerToken] = deque()
        self._keep = max((len(data) for data, _ in self._stops), default=1) - 1
        self._tail = b""
        """Last bytes of the pieces, in which a stop string may have begun."""

    def take(self, delta: Delta) -> list[StreamPiece]:
        """Pieces that are certain now."""
        self.finish = delta.finish or self.finish
        self._stop = delta.stop or self._stop
        if delta.spent is not None:
            self.spent = delta.spent if self._requests == 1 else replace(delta.spent, requests=self._requests)
        self.has_thoughts |= bool(delta.thought)
        self.is_done |= delta.done
        self._text += delta.text.encode()
        self._tokens += delta.tokens
        thoughts = [StreamPiece(b"", spent=self.spent, thought=delta.thought)] if delta.thought else []
        return thoughts + self._until_stop(self._matched())

    def rest(self) -> list[StreamPiece]:
        """Remaining pieces at the end. Servers may leave out the text of the stop string that ended the answer."""
        first = self._tokens[0] if self._tokens else ServerToken(None)
        pieces = self._until_stop([self._piece(bytes(self._text), first)] if self._text else [])
        if self._stop is not None and not self.is_stopped:
            pieces += self._until_stop([StreamPiece(self._stop.encode())])
        return pieces

    def last(self, finish: Literal["stop", "length"]) -> StreamPiece:
        ending = "stop" if self.is_stopped else finish
        return StreamPiece(b"", finish=ending, ended_by=self.ended_by, spent=self.spent or ServerUsage())

    def _matched(self) -> list[StreamPiece]:
        text, tokens, found = self._text, self._tokens, list[StreamPiece]()
        while tokens and text:
            token = tokens[0]
            if token.data == b"":
                # its bytes are withheld, or it has none: the bytes of the next token are not certain
                tokens.popleft()
                if tokens and tokens[0].data:
                    tokens[0] = ServerToken(tokens[0].data)
            elif token.data is not None and text.startswith(token.data):
                tokens.popleft()
                del text[: len(token.data)]
                found.append(self._piece(token.data, token))
            elif token.data is not None and token.data.startswith(text):
                return found  # the rest of the token is withheld
            else:
                only = token if len(tokens) == 1 else ServerToken(None)
                tokens.clear()
                found.append(self._piece(bytes(text), only._replace(alternatives=())))
                text.clear()
        if text and not tokens:
            found.append(self._piece(bytes(text), ServerToken(None)))
            text.clear()
        return found

    def _piece(self, data: bytes, token: ServerToken) -> StreamPiece:
        if not self._raw:
            return StreamPiece(data, token.id, spent=self.spent)
        return StreamPiece(data, token.id, token.logprob, token.alternatives, spent=self.spent)

    def _until_stop(self, pieces: Sequence[StreamPiece]) -> list[StreamPiece]:
        """Pieces up to the end of a stop string; nothing after one."""
        kept: list[StreamPiece] = []
        for piece in pieces:
            if self.is_stopped:
                break
            seen = self._tail + piece.data
            found = [(at + len(data), at, stop) for data, stop in self._stops if (at := seen.find(data)) >= 0]
            if found:
                end, _, self.ended_by = min(found)
                self.is_stopped = True
                piece = replace(piece, data=piece.data[: end - len(self._tail)])
            self._tail = seen[-self._keep :] if self._keep else b""
            self.size += len(piece.data)
            if piece.data:
                kept.append(piece)
        return kept
