"""Content of the events of a response: text, tokens, thoughts, usage, and the reason for the end.

Servers report text and tokens separately, and some spell tokens badly: text is withheld until a character is complete,
the bytes of half a character arrive as U+FFFD, spaces are missing. The text counts. A token is reported only if it is
certain which bytes of the text it stands for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from lmql_lite.errors import ModelError
from lmql_lite.models.base import ServerUsage
from lmql_lite.models.openai.address import SHOWN

_BYTES = re.compile(r"bytes:((?:\\x[0-9a-fA-F]{2})+)")
_ID = re.compile(r"token_id:(\d+)")
_LOST = "\ufffd"
_IMPOSSIBLE = -9999.0
"""Log-probability that servers write for minus infinity, which JSON has no number for."""

_NUMBERS = (int, float)
_RAN_OUT = ("max_tokens", "max_length", "max_output_tokens", "model_length")
"""Words of gateways for `length`: a text that was cut counts as whole otherwise."""

Vocabulary = Sequence[bytes | None]


class ServerToken(NamedTuple):
    """Token as the server reports it. `data` is None if its bytes are unknown."""

    data: bytes | None
    id: int | None = None
    logprob: float | None = None
    alternatives: tuple[tuple[bytes, float], ...] = ()


class Delta(NamedTuple):
    """Content of one event. `finish` and `stop` are the server's words for why and where the text ends."""

    text: str = ""
    tokens: Sequence[ServerToken] = ()
    finish: str | None = None
    stop: str | None = None
    spent: ServerUsage | None = None
    thought: str = ""
    """Thoughts of a reasoning model, which are not part of the text."""
    refused: str | None = None
    """Reason why there will be no text."""
    served: str | None = None
    """Name of the model that answers."""
    done: bool = False


def read(event: Mapping[str, Any], vocabulary: Vocabulary) -> Delta:
    """Content of an event of `/v1/completions`, `/v1/chat/completions`, or llama.cpp's `/completion`.

    `vocabulary` holds the bytes of known tokens by id. Raises ModelError for any other object.
    """
    if event.get("done") is True:
        return Delta(done=True)
    try:
        if "choices" not in event and "content" in event:
            return _native(event, vocabulary)
        return _choice(event, vocabulary)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError):
        raise ModelError(f"the server sends an event that cannot be read: {str(dict(event))[:SHOWN]}") from None


def _choice(event: Mapping[str, Any], vocabulary: Vocabulary) -> Delta:
    spent, served = usage_of(event.get("usage")), event.get("model")
    for choice in event.get("choices") or ():
        if choice.get("index", 0) == 0:
            break
    else:
        return Delta(spent=spent, served=served)
    message = choice.get("delta") or choice.get("message") or {}
    text = _text(choice.get("text") if "text" in choice else message.get("content"))
    thought, finish = _text(message.get("reasoning_content") or message.get("reasoning")), choice.get("finish_reason")
    stop = choice.get("stop_reason") if "stop_reason" in choice else choice.get("matched_stop")
    return Delta(
        text,
        () if thought and not text else _tokens(choice, vocabulary),
        ("length" if finish in _RAN_OUT else finish) if isinstance(finish, str) and finish else None,
        stop if isinstance(stop, str) else None,
        spent,
        thought=thought,
        refused=_refused(message, finish),
        served=served,
    )


def _text(text: object) -> str:
    """Text of an event. Raises TypeError for what is none, and ValueError for half a character."""
    if text is not None and not isinstance(text, str):
        raise TypeError
    (text or "").encode()
    return text or ""


def _refused(message: Mapping[str, Any], finish: object) -> str | None:
    if message.get("tool_calls") or message.get("function_call") or finish in ("tool_calls", "function_call"):
        return "answers with a tool call, but no tool was offered"
    if message.get("refusal"):
        return f"refuses to answer: {str(message['refusal'])[:200]}"
    if finish == "content_filter":
        return "stopped the answer with its content filter"
    return None


def _tokens(choice: Mapping[str, Any], vocabulary: Vocabulary) -> Sequence[ServerToken]:
    """Tokens from the log-probabilities, with ids if the server sends them; from the ids alone otherwise."""
    ids: Sequence[int] = choice.get("token_ids") or ()
    logprobs = choice.get("logprobs") or {}
    if logprobs.get("content"):
        found = [_entry(entry, vocabulary) for entry in logprobs["content"]]
    elif logprobs.get("tokens"):
        found = _spelled(logprobs, vocabulary)
    else:
        return [ServerToken(_known(number, vocabulary), number) for number in ids]
    if len(ids) != len(found):
        return found
    return [
        ServerToken(_known(number, vocabulary) or token.data, number, token.logprob, token.alternatives)
        if token.id is None
        else token
        for token, number in zip(found, ids, strict=True)
    ]


def _spelled(logprobs: Mapping[str, Any], vocabulary: Vocabulary) -> list[ServerToken]:
    """Tokens from the log-probabilities of `/v1/completions`, which identify them by their text."""
    scores, others = logprobs.get("token_logprobs") or (), logprobs.get("top_logprobs") or ()
    found = []
    for place, spelling in enumerate(logprobs["tokens"]):
        data, number = _spelling(spelling, vocabulary)
        top = others[place] if place < len(others) else None
        named = [(_spelling(other, vocabulary)[0], score) for other, score in (top or {}).items() if other != spelling]
        score = scores[place] if place < len(scores) else None
        found.append(ServerToken(data, number, _score(score), _best(named, data)))
    return found


def _entry(entry: Mapping[str, Any], vocabulary: Vocabulary) -> ServerToken:
    """Token from one of the log-probabilities of a chat: with its bytes, and from llama.cpp also with its id."""
    number = entry.get("id")
    known = _known(number, vocabulary)
    data = known or _entry_bytes(entry)
    top = entry.get("top_logprobs") or ()
    twin = next((other for other in top if number is not None and other.get("id") == number), None)
    # llama.cpp gives the last token of a character the bytes of all its tokens
    is_unambiguous = known or number is None or (data or b"").isascii()
    if not is_unambiguous if twin is None else _entry_bytes(twin) != data:
        return ServerToken(None)
    named = [(_known(other.get("id"), vocabulary) or _entry_bytes(other), other.get("logprob")) for other in top]
    return ServerToken(data, number, _score(entry.get("logprob")), _best(named, data))


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
        tokens = (ServerToken(data, number),) if data is not None else ()
    prompt, timings = event.get("tokens_evaluated"), event.get("timings") or {}
    fresh = timings.get("prompt_n")
    cached = prompt - fresh if isinstance(prompt, int) and isinstance(fresh, int) and prompt >= fresh else None
    spent = ServerUsage(_count(prompt), cached, _count(event.get("tokens_predicted"))) if prompt is not None else None
    if not event.get("stop"):
        return Delta(text, tokens, spent=spent)
    kind, word = event.get("stop_type"), event.get("stopping_word")
    finish = {"eos": "stop", "word": "stop", "limit": "length"}.get(str(kind), str(kind))
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


def usage_of(usage: object) -> ServerUsage | None:
    """Usage that a server reports for a request. A value that is not a count becomes None."""
    if not isinstance(usage, dict):
        return None
    cached, thoughts = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    return ServerUsage(
        _count(usage.get("prompt_tokens")),
        _count(cached.get("cached_tokens")) if isinstance(cached, dict) else None,
        _count(usage.get("completion_tokens")),
        reasoning_tokens=_count(thoughts.get("reasoning_tokens")) if isinstance(thoughts, dict) else None,
    )


def _count(number: object) -> int | None:
    return number if isinstance(number, int) and not isinstance(number, bool) and number >= 0 else None
