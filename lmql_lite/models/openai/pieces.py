"""From the events of an answer to pieces: which bytes each token stands for, where a stop string ends the text.

Servers tell text and tokens apart from each other, and some spell tokens badly: text is held back until a character is
whole, the bytes of half a character arrive as U+FFFD, spaces are missing. The text is what counts: a token is given
only where it is certain which bytes of the text it stands for.
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
"""What servers write for a log-probability that JSON has no number for."""

_NUMBERS = (int, float)

Vocabulary = Sequence[bytes | None]


class Token(NamedTuple):
    """One token as the server tells it. `data` is None where its bytes are not known."""

    data: bytes | None
    id: int | None = None
    logprob: float | None = None
    alternatives: tuple[tuple[bytes, float], ...] = ()


class Delta(NamedTuple):
    """What one event adds. `finish` and `stop` are the server's words for why and where the text ends."""

    text: str = ""
    tokens: Sequence[Token] = ()
    finish: str | None = None
    stop: str | None = None
    spent: Spent | None = None
    thought: bool = False
    """It holds thoughts of a reasoning model, which are no part of the text."""
    refused: str | None = None
    """Why there will be no text."""
    done: bool = False


def read(event: Mapping[str, Any], vocabulary: Vocabulary) -> Delta:
    """An event of `/v1/completions`, of `/v1/chat/completions`, or of llama.cpp's own `/completion`.

    `vocabulary` are the bytes of tokens by id, where they are known. Raises ModelError for what is none of these.
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
    """From the log-probabilities, with the ids that may stand beside them; from the ids alone where there are none."""
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
    """The log-probabilities of `/v1/completions`: tokens by their text."""
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
    """One of the log-probabilities of a chat: tokens with their bytes, and with llama.cpp their ids."""
    number = entry.get("id")
    known = _known(number, vocabulary)
    data = known or _entry_bytes(entry)
    top = entry.get("top_logprobs") or ()
    twin = next((other for other in top if number is not None and other.get("id") == number), None)
    # llama.cpp gives the last token of a character the bytes of all of them
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
    """llama.cpp's own form: an id with each text, and in the last event the stop string by its name."""
    listed = event.get("completion_probabilities") or ()
    ids: list[int] = event.get("tokens") or []
    tokens = tuple(_entry(entry, vocabulary) for entry in listed)
    text = _text(event["content"])
    if not tokens and len(ids) == 1:
        # a longer text with one id is a character of several tokens, of which this is the last
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
    """The bytes and the id of a token from its text. Some servers write `bytes:\\xe2\\x80` or `token_id:123`."""
    if ":" in spelling:
        if match := _BYTES.fullmatch(spelling):
            return bytes.fromhex(match[1].replace("\\x", "")), None
        if match := _ID.fullmatch(spelling):
            return _known(int(match[1]), vocabulary), int(match[1])
    return None if _LOST in spelling else spelling.encode(), None


def _score(score: object) -> float | None:
    return float(score) if isinstance(score, _NUMBERS) and score > _IMPOSSIBLE else None


def _best(named: Sequence[tuple[bytes | None, object]], but: bytes | None) -> tuple[tuple[bytes, float], ...]:
    """Tokens other than the one that was said, best first. Those without bytes are special ones, or not known."""
    found: dict[bytes, float] = {}
    for data, score in named:
        number = _score(score)
        if data and data != but and number is not None:
            found[data] = max(number, found.get(data, number))
    return tuple(sorted(found.items(), key=itemgetter(1), reverse=True))


def spent_of(usage: object) -> Spent | None:
    """What a server says that a request cost. What is no count is not told."""
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Spent(_count(usage.get("prompt_tokens")), _count(cached), _count(usage.get("completion_tokens")))


def _count(number: object) -> int | None:
    return number if isinstance(number, int) and not isinstance(number, bool) and number >= 0 else None


class Assembler:
    """Pieces from deltas. `raw`: whether the log-probabilities are those of the model itself, and may be given."""

    def __init__(self, stops: Sequence[str], *, raw: bool, before: bytes = b"") -> None:
        """`before`: what stands before in the same text: a stop string may have begun in it."""
        self.is_stopped = False
        """A stop string has come: what follows is no part of the answer."""
        self.ended_by: str | None = None
        self.said = 0
        """Bytes so far."""
        self._stops = [(stop.encode(), stop) for stop in stops]
        self._raw = raw
        self._text = bytearray()
        """Bytes that have come and are in no piece yet."""
        self._tokens: deque[Token] = deque()
        self._keep = max((len(data) for data, _ in self._stops), default=1) - 1
        self._tail = before[-self._keep :] if self._keep else b""
        """The last bytes of the pieces: a stop string may have begun in them."""

    def take(self, delta: Delta) -> list[Piece]:
        """The pieces that are certain now."""
        self._text += delta.text.encode("utf-8", "replace")
        self._tokens += delta.tokens
        return self._until_stop(self._matched())

    def rest(self, stop: str | None) -> list[Piece]:
        """What is left at the end. `stop`: the stop string that the server ended at, which it may have left out."""
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
                # its bytes are held back, or it has none: it is not certain what the next one holds
                tokens.popleft()
                if tokens and tokens[0].data:
                    tokens[0] = Token(tokens[0].data)
            elif token.data is not None and text.startswith(token.data):
                tokens.popleft()
                del text[: len(token.data)]
                found.append(self._piece(token.data, token))
            elif token.data is not None and token.data.startswith(text):
                return found  # the rest of it is held back
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
        """The pieces up to where a stop string ends; nothing after one."""
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
