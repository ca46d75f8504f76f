"""Answers that break off: no text is doubled, whatever is cut and wherever, and the third one in a row is an error."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine.events import Notice, Text, Thought
from tests.models.api import choice, sse
from tests.servers.answering import NOT_FOUND, Reply, Request, answering

pytestmark = pytest.mark.usefixtures("quick_and_alone")
SAID = ("Paris is ", "the ", "capital.")
TEXT = "".join(SAID)
WHOLE = {"Content-Type": "application/json"}
ROUTES = pytest.mark.parametrize("chat", [True, False], ids=["chat", "text"])


@dataclass(frozen=True, slots=True)
class Cutting:
    """A server while it runs: its address, and the bodies of the POSTs so far, without those of a probe."""

    base_url: str
    posts: list[Mapping[str, Any]]


@contextmanager
def cutting(
    answers: list[Reply] | Callable[[str, Mapping[str, Any]], Reply], *, chat: bool = True, probed: bool = True
) -> Iterator[Cutting]:
    """POSTs get these answers in order, the last one again and again, or those of a function of path and body.

    `probed`: requests for so few tokens that only a probe sends them get an answer of their own. A server of a `chat`
    has no `/completions`.
    """
    posts: list[Mapping[str, Any]] = []

    def answer(request: Request) -> Reply:
        body = request.body
        if request.method != "POST" or (chat and request.path.endswith("/v1/completions")):
            return NOT_FOUND
        if probed and min(body.get("max_tokens", 99), body.get("max_completion_tokens", 99)) == 1:
            return Reply(200, events("a", chat=chat, end="length"))
        posts.append(body)
        return answers(request.path, body) if callable(answers) else answers[min(len(posts), len(answers)) - 1]

    with answering(answer) as server:
        yield Cutting(server.base_url, posts)


def events(*texts: str, chat: bool, end: str | None = "stop", done: bool = True) -> bytes:
    """The body of a stream: an event for each text, one with the word for its end unless that is None, `[DONE]`."""
    parts = [({"delta": {"content": text}} if chat else {"text": text}) | {"finish_reason": None} for text in texts]
    parts += [] if end is None else [({"delta": {}} if chat else {"text": ""}) | {"finish_reason": end}]
    lines = [json.dumps({"model": "m"} | choice(**part), ensure_ascii=False) for part in parts]
    return sse(*lines, *(["[DONE]"] if done else [])).encode()


def whole(text: str, *, chat: bool, end: str | None = "stop") -> bytes:
    """The body of an answer in one piece."""
    part = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return json.dumps({"model": "m"} | choice(**part, finish_reason=end)).encode()


def asking(chat: bool) -> str:
    tags = ("{:user}", "{:assistant}") if chat else ("", "")
    return f'"{tags[0]}The capital of France:{tags[1]}[A]" where len(TOKENS(A)) < 40'


def ran(server: Cutting, chat: bool = True, source: str = "", **options: Any) -> lq.Result:
    """A run in a process of its own: it knows what its cache file has."""
    settings = {name: options.pop(name) for name in ("timeout", "revision") if name in options}
    model = lq.model("openai/m", base_url=server.base_url, **settings)
    return lq.run_sync(source or asking(chat), model=model, session=lq.Session(), **options)


# Ends -----------------------------------------------------------------------------------------------------------------


@ROUTES
@pytest.mark.parametrize("end", ["", "data: [DONE]\n\n", "data: [DONE]", "data:[DONE]\r"], ids=repr)
def test_an_answer_without_a_finish_reason_was_said_again_and_again(chat: bool, end: str) -> None:
    """`[DONE]` is an end, also without a blank line after it, and so is the end of a JSON text."""
    body = events(*SAID, chat=chat, end=None, done=False) + end.encode() if end else whole(TEXT, chat=chat, end=None)
    with cutting([Reply(200, body, {} if end else WHOLE)], chat=chat) as server:
        result = ran(server, chat)
    assert (result["A"], len(server.posts), result.notices) == (TEXT, 1, ())


def test_an_answer_without_a_finish_reason_that_has_all_its_tokens_has_run_out() -> None:
    """It is gone on with, where the server continues a text."""
    answers = [events(*"abcdefghij" * 3, chat=False, end=None), events("the end", chat=False, end=None)]
    with cutting(lambda path, body: Reply(200, answers[bool(server.posts[1:])]), chat=False) as server:
        result = ran(server, source='"Say:[A]" where len(A) < 60')
    most = server.posts[0]["max_tokens"]
    assert result["A"] == ("abcdefghij" * 3 + "the end" if most <= 30 else "abcdefghij" * 3)


# Silence --------------------------------------------------------------------------------------------------------------


NO_CHOICE = b'data: {"choices": []}\n\n'
NO_TEXT = b'data: {"choices": [{"index": 0, "delta": {}}]}\n\n'
COMMENT = b": still here\n\n"


@pytest.mark.parametrize(
    ("chat", "probed", "begun", "endless"),
    [
        (True, True, (), NO_CHOICE),
        (True, False, ("Paris",), NO_TEXT),
        (True, True, ("Paris",), COMMENT),
        (False, True, ("Paris",), NO_CHOICE),
        (False, False, (), COMMENT),
        (False, True, (), NO_TEXT),
    ],
)
def test_empty_events_without_end_outlived_the_timeout(
    chat: bool, probed: bool, begun: tuple[str, ...], endless: bytes
) -> None:
    """Of an answer, or of the first contact; at once, or after text."""
    body = events(*begun, chat=chat, end=None, done=False) or b": hello\n\n"
    before = time.monotonic()
    silent = pytest.raises(lq.ModelError, match=r"for 0\.25 s")
    with cutting([Reply(200, body, endless=endless)], chat=chat, probed=probed) as server, silent as caught:
        ran(server, chat, timeout=0.25)
    assert time.monotonic() - before < 8 and caught.value.hint and len(server.posts) == 1


# The first contact ----------------------------------------------------------------------------------------------------


@ROUTES
@pytest.mark.parametrize("cuts", [1, 2, 3])
def test_a_first_contact_that_is_cut_ended_the_run(chat: bool, cuts: int) -> None:
    """Three times in a row are a sentence."""
    body = events(*SAID, chat=chat)
    with cutting([*[Reply(200, body, at=30)] * cuts, Reply(200, body)], chat=chat, probed=False) as server:
        if cuts == 3:
            with pytest.raises(lq.ModelError, match="3 times in") as caught:
                ran(server, chat)
            assert len(server.posts) == 3 and caught.value.hint
            return
        result = ran(server, chat)
    assert result["A"] == TEXT and len(server.posts) == cuts + 2
    assert result.usage.requests == cuts + 2 + chat, "a server of chats also refuses plain text"


# Answers that are cut -------------------------------------------------------------------------------------------------


LETTERS = ("Pa", "ris is ", "schön, ", "日本 ", "too.")
SENTENCE = "".join(LETTERS)
BROKE = "broke off an answer in the middle, and the same request was sent again"


def places(body: bytes) -> dict[str, int]:
    """Places at which a stream is cut, in bytes."""
    return {
        "before the first byte": 0,
        "in the first event": 20,
        "after an event": body.index(b"\n\n") + 2,
        "between two line feeds": body.index(b"\n\n") + 1,
        "in a character": body.index("ö".encode()) + 1,
        "after a character": body.index("ö".encode()) + 2,
        "in a later event": body.index("日".encode()) + 9,
        "before the word for the end": body.index(b'"finish_reason": "stop"'),
    }


PLACES = tuple(places(events(*LETTERS, chat=True)))
CHAT, PLAIN = events(*LETTERS, chat=True), events(*LETTERS, chat=False)


@ROUTES
@pytest.mark.parametrize("place", PLACES)
def test_a_stream_that_was_cut_doubled_its_text(chat: bool, place: str, tmp_path: Path) -> None:
    body = CHAT if chat else PLAIN
    closed, reset = (Reply(200, body, at=places(body)[place], is_reset=is_reset) for is_reset in (False, True))
    with cutting([closed, reset, Reply(200, body)], chat=chat) as server:
        result, again = (ran(server, chat, cache=str(tmp_path / "x.tokens")) for _ in range(2))
    assert result["A"] == again["A"] == SENTENCE and result.usage.completion_tokens is None
    assert len(server.posts) == 3 and server.posts[0] == server.posts[1] == server.posts[2]
    assert [BROKE in notice for notice in result.notices] == [True] and not again.notices
    result.check_ledger()


@ROUTES
@pytest.mark.parametrize(
    "at", ['"finish_reason": "stop"}]}\n\n', '"finish_reason": "stop"}]}\n\ndata: [DO'], ids=["end", "in"]
)
def test_a_stream_that_is_cut_after_its_end_is_whole(chat: bool, at: str) -> None:
    body = CHAT if chat else PLAIN
    with cutting([Reply(200, body, at=body.index(at.encode()) + len(at), is_reset=True)], chat=chat) as server:
        result = ran(server, chat)
    assert (result["A"], result.notices, len(server.posts)) == (SENTENCE, (), 1)


@ROUTES
@pytest.mark.parametrize("at", [0, 1, 30, -1])
@pytest.mark.parametrize("by", ["server", "gateway"])
def test_an_answer_in_one_piece_that_was_cut_is_asked_for_again(chat: bool, at: int, by: str) -> None:
    """The length of the whole is announced, or that of the part that a gateway has received."""
    body = whole(SENTENCE, chat=chat)
    at %= len(body)
    cut = Reply(200, body, WHOLE, at=at) if by == "server" else Reply(200, body[:at], WHOLE)
    with cutting([cut, Reply(200, body, WHOLE)], chat=chat) as server:
        result = ran(server, chat)
    assert (result["A"], len(server.posts), len(result.notices)) == (SENTENCE, 2, 1)


@ROUTES
@pytest.mark.parametrize("options", [{}, {"seed": 7}, {"seed": 7, "n": 2}, {"n": 2}], ids=str)
def test_a_draw_that_was_cut_is_the_one_of_a_stream_that_was_not(chat: bool, options: dict[str, int]) -> None:
    def answer(path: str, body: Mapping[str, Any]) -> Reply:
        said = events("It ", "is ", f"number {body.get('seed')}.", chat=chat)
        seen = [one.get("seed") for one in server.posts].count(body.get("seed"))
        return Reply(200, said, at=said.index(b"is ") + 30 if seen == 1 else None)

    source = "sample\n    " + asking(chat).replace(" where", "\nwhere")
    with cutting(answer, chat=chat) as server:
        found: Any = ran(server, source=source, **options)
    results = found if isinstance(found, list) else [found]
    assert {one["A"] for one in results} == {f"It is number {body['seed']}." for body in server.posts}
    assert len(server.posts) == 2 * len(results)


@ROUTES
def test_a_third_answer_in_a_row_that_breaks_off_gives_up_and_its_part_is_not_doubled_later(
    chat: bool, tmp_path: Path
) -> None:
    body, cache = CHAT if chat else PLAIN, str(tmp_path / "x.tokens")
    cuts = [Reply(200, body, at=places(body)[at]) for at in ("after an event", "in a character", "in a later event")]
    with cutting(cuts, chat=chat) as server, pytest.raises(lq.ModelError, match="3 times in a row") as caught:
        ran(server, chat, cache=cache, revision="r")
    assert caught.value.hint and len(server.posts) == 3
    with cutting(continuing(chat), chat=chat) as server:
        assert ran(server, chat, cache=cache, revision="r")["A"] == SENTENCE


def continuing(chat: bool) -> Callable[[str, Mapping[str, Any]], Reply]:
    """A server that says the sentence; plain text it continues, as a model does."""

    def answer(path: str, body: Mapping[str, Any]) -> Reply:
        if chat:
            return Reply(200, CHAT)
        said = str(body["prompt"]).partition("France:")[2]
        assert SENTENCE.startswith(said)
        return Reply(200, events(SENTENCE[len(said) :], chat=False))

    return answer


@ROUTES
def test_a_cut_answer_that_is_another_one_the_next_time_is_an_error_and_not_glued_together(chat: bool) -> None:
    first, second = events("Paris is ", "it.", chat=chat), events("The capital is Paris.", chat=chat)
    answers = [Reply(200, first, at=first.index(b"it.")), Reply(200, second)]
    error = pytest.raises(lq.ModelError, match="broke off an answer, and its answer to the same request")
    with cutting(answers, chat=chat) as server, error as caught:
        ran(server, chat)
    assert caught.value.hint == "run it again" and len(server.posts) == 2


def test_what_a_cut_answer_costs_is_in_the_budget() -> None:
    with cutting([Reply(200, CHAT, at=len(CHAT) // 2), Reply(200, CHAT)]) as server:
        model = lq.model("openai/m", base_url=server.base_url)
        asyncio.run(model.probe())
        with pytest.raises(lq.BudgetError):
            lq.run_sync(asking(True), model=model, session=lq.Session(), max_requests=1)
        assert len(server.posts) == 1


def test_readers_of_events_see_each_text_of_a_cut_answer_once() -> None:
    thought = {"choices": [{"index": 0, "delta": {"reasoning_content": "Let me see."}}], "model": "m"}
    body = f"data: {json.dumps(thought)}\n\n".encode() + CHAT

    async def seen(url: str) -> list[Any]:
        model = lq.model("openai/m", base_url=url)
        return [event async for event in lq.compile(asking(True)).stream(model=model, session=lq.Session())]

    with cutting([Reply(200, body, at=body.index("日".encode())), Reply(200, body)]) as server:
        found = asyncio.run(seen(server.base_url))
    shown = "".join(event.text for event in found if isinstance(event, Text))
    assert shown == f"The capital of France:{SENTENCE}"
    assert "".join(event.text for event in found if isinstance(event, Thought)) == "Let me see."
    assert sum(isinstance(event, Notice) and BROKE in event.message for event in found) == 1


LONG, SHORT = "len(TOKENS(A)) < 40", "len(A) < 6"


@ROUTES
def test_text_of_a_run_that_was_left_in_the_middle_is_not_doubled_by_the_next(chat: bool, tmp_path: Path) -> None:
    """A shorter query before, or Ctrl-C: what is known is a part of the answer."""
    cache = str(tmp_path / "x.tokens")
    with cutting(continuing(chat), chat=chat) as server:
        assert ran(server, source=asking(chat).replace(LONG, SHORT), cache=cache)["A"] == SENTENCE[:5]
        assert ran(server, chat, cache=cache)["A"] == SENTENCE
    assert not any("Go on exactly" in str(body) for body in server.posts)


def test_an_answer_of_a_chat_that_is_another_one_than_its_known_part_says_how_to_ask_anew(tmp_path: Path) -> None:
    cache = str(tmp_path / "x.tokens")
    with cutting([Reply(200, CHAT), Reply(200, events("The capital is Paris.", chat=True))]) as server:
        ran(server, source=asking(True).replace(LONG, SHORT), cache=cache)
        with pytest.raises(lq.ModelError, match="answers otherwise than before") as caught:
            ran(server, cache=cache)
        assert "refresh" in (caught.value.hint or "")
        assert ran(server, cache=cache, cache_mode="refresh")["A"] == "The capital is Paris."
