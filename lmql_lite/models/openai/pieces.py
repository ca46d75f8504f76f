"""Pieces from the events of an answer: the bytes of each token, and the stop string that ends the text.

Servers report text and tokens separately, and some spell tokens badly: text is withheld until a character is complete,
the bytes of half a character arrive as U+FFFD, spaces are missing. The text counts. A token is reported only if it is
certain which bytes of the text it stands for.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from lmql_lite.errors import ModelError
from lmql_lite.models.base import Piece, Spent

_BYTES = re.compile(r"bytes:((?:\\x[0-9a-fA-F]{2})+)")
_ID = re.compile(r"token_id:(\d+)")
_LOST = "\ufffd"
_IMPOSSIBLE = -9999.0
"""Log-probability that servers write for minus infinity, which JSON has no number for."""

_NUMBERS = (int, float)

Vocabulary = Sequence[bytes | None]


class Token(NamedTuple):
    """Token as the server reports it. `data` is None if its bytes are unknown."""

    data: bytes | None
    id: int | None = None
    logprob: float | None = None
    alternatives: tuple[tuple[bytes, float], ...] = ()


class Delta(NamedTuple):
    """Content of one event. `finish` and `stop` are the server's words for why and where the text ends."""

    text: str = ""
    tokens: Sequence[Token] = ()
    finish: str | None = None
    stop: str | None = None
    spent: Spent | None = None
    thought: bool = False
    """The event holds thoughts of a reasoning model, which are no part of the text."""
    refused: str | None = None
    """Reason why there will be no text."""
    done: bool = False


def read(event: Mapping[str, Any], vocabulary: Vocabulary) -> Delta:
    """Content of an event of `/v1/completions`, `/v1/chat/completions`, or llama.cpp's own `/completion`.

    `vocabulary` holds the bytes of known tokens by id. Raises ModelError for any other object.
    """
    if event.get("done") is True:
        return Delta(done=True)
    try:
        if "choices" not in event and "content" in event:
            return _native(event, vocabulary)
        return _choice(event, vocabulary)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError):
        raise ModelError(f"the server sends an answer that cannot be read: {str(dict(event))[:200]}") from None


def _choice(event: Mapping[str, Any], vocabulary: Vocabulary) -> Delta:
    spent = spent_of(event.get("usage"))
    for choice in event.get("choices") or ():
        if choice.get("index", 0) == 0:
            break
    else:
        return Delta(spent=spent)
    said = choice.get("delta") or choice.get("message") or {}
    text = choice.get("text") if "text" in choice else said.get("content")
    thought = bool(said.get("reasoning_content") or said.get("reasoning"))
    refused = _refused(said, choice.get("finish_reason"))
    tokens = () if thought and not text else _tokens(choice, vocabulary)
    stop = choice.get("stop_reason") if "stop_reason" in choice else choice.get("matched_stop")
    return Delta(
        _text(text),
        tokens,
        choice.get("finish_reason"),
        stop if isinstance(stop, str) else None,
        spent,
        thought,
        refused,
    )


def _text(text: object) -> str:
    if text is None:
        return ""
    if not isinstance(text, str):
        raise TypeError
    return text


def _refused(said: Mapping[str, Any], finish: object) -> str | None:
    if said.get("tool_calls") or said.get("function_call") or finish in ("tool_calls", "function_call"):
        return "answers with the call of a tool, and none was offered"
    if said.get("refusal"):
        return f"refuses to answer: {str(said['refusal'])[:200]}"
    if finish == "content_filter":
        return "has stopped the answer with its content filter"
    return None


def _tokens(choice: Mapping[str, Any], vocabulary: Vocabulary) -> Sequence[Token]:
    """Tokens from the log-probabilities, with ids if the server sends them; from the ids alone otherwise."""
    ids: Sequence[int] = choice.get("token_ids") or ()
    told = choice.get("logprobs") or {}
    if told.get("content"):
        found = [_entry(entry, vocabulary) for entry in told["content"]]
    elif told.get("tokens"):
        found = _spelled(told, vocabulary)
    else:
        return [Token(_known(number, vocabulary), number) for number in ids]
    if len(ids) != len(found):
        return found
    return [
        Token(_known(number, vocabulary) or token.data, number, token.logprob, token.alternatives)
        if token.id is None
        else token
        for token, number in zip(found, ids, strict=True)
    ]


def _spelled(told: Mapping[str, Any], vocabulary: Vocabulary) -> list[Token]:
    """Tokens from the log-probabilities of `/v1/completions`, which identify them by their text."""
    scores, others = told.get("token_logprobs") or (), told.get("top_logprobs") or ()
    found = []
    for place, spelling in enumerate(told["tokens"]):
        data, number = _spelling(spelling, vocabulary)
        top = others[place] if place < len(others) else None
        named = [(_spelling(other, vocabulary)[0], score) for other, score in (top or {}).items() if other != spelling]
        score = scores[place] if place < len(scores) else None
        found.append(Token(data, number, _score(score), _best(named, data)))
    return found


def _entry(entry: Mapping[str, Any], vocabulary: Vocabulary) -> Token:
    """Token from one of the log-probabilities of a chat: with its bytes, and from llama.cpp also with its id."""
    number = entry.get("id")
    known = _known(number, vocabulary)
    data = known or _entry_bytes(entry)
    top = entry.get("top_logprobs") or ()
    twin = next((other for other in top if number is not None and other.get("id") == number), None)
    # llama.cpp gives the last token of a character the bytes of all its tokens
    is_told_apart = known or number is None or (data or b"").isascii()
    if not is_told_apart if twin is None else _entry_bytes(twin) != data:
        return Token(None)
    named = [(_known(other.get("id"), vocabulary) or _entry_bytes(other), other.get("logprob")) for other in top]
    return Token(data, number, _score(entry.get("logprob")), _best(named, data))


def _entry_bytes(entry: Mapping[str, Any]) -> bytes | None:
    spelling = entry["token"]
    if entry.get("bytes") is not None:
        data = bytes(entry["bytes"])
        return None if _LOST.encode() in data else data
    return None if "bytes" in entry else _spelling(spelling, ())[0]


def _native(event: Mapping[str, Any], vocabulary: Vocabulary) -> Delta:
    """Content of an event in llama.cpp's own form: an id with each text; the last event names the stop string."""
    listed = event.get("completion_probabilities") or ()
    ids: list[int] = event.get("tokens") or []
    tokens = tuple(_entry(entry, vocabulary) for entry in listed)
    text = _text(event["content"])
    if not tokens and len(ids) == 1:
        # a non-ASCII text with one id may be a character of several tokens, of which this is the last
        number = ids[0]
        data = _known(number, vocabulary) or (text.encode() if text.isascii() else None)
        tokens = (Token(data, number),) if data is not None else ()
    if not event.get("stop"):
        return Delta(text, tokens)
    prompt, timings = event.get("tokens_evaluated"), event.get("timings") or {}
    fresh = timings.get("prompt_n")
    cached = prompt - fresh if isinstance(prompt, int) and isinstance(fresh, int) and prompt >= fresh else None
    kind, word = event.get("stop_type"), event.get("stopping_word")
    finish = {"eos": "stop", "word": "stop", "limit": "length"}.get(str(kind), str(kind))
    spent = Spent(_count(prompt), cached, _count(event.get("tokens_predicted")))
    return Delta(text, tokens, finish, word if kind == "word" and word else None, spent)


def _known(number: object, vocabulary: Vocabulary) -> bytes | None:
    return vocabulary[number] if isinstance(number, int) and 0 <= number < len(vocabulary) else None


def _spelling(spelling: str, vocabulary: Vocabulary) -> tuple[bytes | None, int | None]:
    """Bytes and id of a token from its text. Some servers write `bytes:\\xe2\\x80` or `token_id:123`."""
    if ":" in spelling:
        if match := _BYTES.fullmatch(spelling):
            return bytes.fromhex(match[1].replace("\\x", "")), None
        if match := _ID.fullmatch(spelling):
            return _known(int(match[1]), vocabulary), int(match[1])
    return None if _LOST in spelling else spelling.encode(), None


def _score(score: object) -> float | None:
    return float(score) if isinstance(score, _NUMBERS) and score > _IMPOSSIBLE else None


def _best(named: Sequence[tuple[bytes | None, object]], but: bytes | None) -> tuple[tuple[bytes, float], ...]:
    """Candidates other than the generated token, best first. Those without bytes are special tokens or unknown."""
    found: dict[bytes, float] = {}
    for data, score in named:
        number = _score(score)
        if data and data != but and number is not None:
            found[data] = max(number, found.get(data, number))
    return tuple(sorted(found.items(), key=itemgetter(1), reverse=True))


def spent_of(usage: object) -> Spent | None:
    """Usage that a server reports for a request. A value that is not a count becomes None."""
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Spent(_count(usage.get("prompt_tokens")), _count(cached), _count(usage.get("completion_tokens")))


def _count(number: object) -> int | None:
    return number if isinstance(number, int) and not isinstance(number, bool) and number >= 0 else None


class Assembler:
    """Builder of pieces from deltas. `raw`: the log-probabilities are the model's own, so pieces may carry them."""

    def __init__(self, stops: Sequence[str], *, raw: bool, before: bytes = b"") -> None:
        """Empty state. `before` is earlier output of the same answer, in which a stop string may have begun."""
        self.is_stopped = False
        """True after a stop string: text after it is no part of the answer."""
        self.ended_by: str | None = None
        self.said = 0
        """Number of bytes so far."""
        self._stops = [(stop.encode(), stop) for stop in stops]
        self._raw = raw
        self._text = bytearray()
        """Received bytes that are in no piece yet."""
        self._tokens: deque[Token] = deque()
        self._keep = max((len(data) for data, _ in self._stops), default=1) - 1
        self._tail = before[-self._keep :] if self._keep else b""
        """Last bytes of the pieces, in which a stop string may have begun."""

    def take(self, delta: Delta) -> list[Piece]:
        """Pieces that are certain now."""
        self._text += delta.text.encode("utf-8", "replace")
        self._tokens += delta.tokens
        return self._until_stop(self._matched())

    def rest(self, stop: str | None) -> list[Piece]:
        """Remaining pieces at the end. `stop` is the stop string that ended the answer; servers may omit its text."""
        left = [self._piece(bytes(self._text), self._tokens[0] if self._tokens else Token(None))] if self._text else []
        pieces = self._until_stop(left)
        if stop is not None and not self.is_stopped:
            pieces += self._until_stop([Piece(stop.encode())])
        return pieces

    def last(self, finish: Literal["stop", "length"], spent: Spent | None) -> Piece:
        return Piece(b"", finish="stop" if self.is_stopped else finish, ended_by=self.ended_by, spent=spent)

    def _matched(self) -> list[Piece]:
        text, tokens, found = self._text, self._tokens, list[Piece]()
        while tokens and text:
            token = tokens[0]
            if token.data == b"":
                # its bytes are withheld, or it has none: the bytes of the next token are not certain
                tokens.popleft()
                if tokens and tokens[0].data:
                    tokens[0] = Token(tokens[0].data)
            elif token.data is not None and text.startswith(token.data):
                tokens.popleft()
                del text[: len(token.data)]
                found.append(self._piece(token.data, token))
            elif token.data is not None and token.data.startswith(text):
                return found  # the rest of the token is withheld
            else:
                only = token if len(tokens) == 1 else Token(None)
                tokens.clear()
                found.append(self._piece(bytes(text), only._replace(alternatives=())))
                text.clear()
        if text and not tokens:
            found.append(self._piece(bytes(text), Token(None)))
            text.clear()
        return found

    def _piece(self, data: bytes, token: Token) -> Piece:
        if not self._raw:
            return Piece(data, token.id)
        return Piece(data, token.id, token.logprob, token.alternatives)

    def _until_stop(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Pieces up to the end of a stop string; nothing after one."""
        kept: list[Piece] = []
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
            self.said += len(piece.data)
            if piece.data:
                kept.append(piece)
        return kept
