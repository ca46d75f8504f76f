"""Answers that break off: no text is doubled, whatever is cut and wherever, and the third one in a row is an error."""

from __future__ import annotations

import time

import pytest

import lmql_lite as lq
from tests.servers.cutting import Cut, cutting, events, whole

pytestmark = pytest.mark.usefixtures("quick_and_alone")
SAID = ("Paris is ", "the ", "capital.")
TEXT = "".join(SAID)
ROUTES = pytest.mark.parametrize("chat", [True, False], ids=["chat", "text"])


def asking(chat: bool) -> str:
    tags = ("{:user}", "{:assistant}") if chat else ("", "")
    return f'"{tags[0]}The capital of France:{tags[1]}[A]" where len(TOKENS(A)) < 40'


# Ends -----------------------------------------------------------------------------------------------------------------


@ROUTES
@pytest.mark.parametrize("is_whole", [False, True], ids=["stream", "whole"])
def test_an_answer_without_a_finish_reason_was_said_again_and_again(chat: bool, is_whole: bool) -> None:
    """`[DONE]` is an end, and so is the end of a JSON text."""
    body = whole(TEXT, chat=chat, end=None) if is_whole else events(*SAID, chat=chat, end=None)
    with cutting([Cut(body, is_whole=is_whole)], chat=chat) as server:
        result = lq.run_sync(asking(chat), model=lq.model("openai/m", base_url=server.base_url), session=lq.Session())
    assert (result["A"], len(server.posts), result.notices) == (TEXT, 1, ())


def test_an_answer_without_a_finish_reason_that_has_all_its_tokens_has_run_out() -> None:
    """It is gone on with, where the server continues a text."""
    answers = [events(*"abcdefghij" * 3, chat=False, end=None), events("the end", chat=False, end=None)]
    with cutting(lambda path, body: Cut(answers[bool(server.posts[1:])][:None]), chat=False) as server:
        model = lq.model("openai/m", base_url=server.base_url)
        result = lq.run_sync('"Say:[A]" where len(A) < 60', model=model, session=lq.Session())
    most = server.bodies[0]["max_tokens"]
    assert result["A"] == ("abcdefghij" * 3 + "the end" if most <= 30 else "abcdefghij" * 3)


# Silence --------------------------------------------------------------------------------------------------------------


@ROUTES
@pytest.mark.parametrize("probed", [True, False], ids=["answer", "first contact"])
@pytest.mark.parametrize("begun", [(), ("Paris",)], ids=["at once", "after text"])
@pytest.mark.parametrize(
    "endless",
    [b'data: {"choices": []}\n\n', b'data: {"choices": [{"index": 0, "delta": {}}]}\n\n', b": still here\n\n"],
    ids=["no choice", "no text", "comments"],
)
def test_empty_events_without_end_outlived_the_timeout(
    chat: bool, probed: bool, begun: tuple[str, ...], endless: bytes
) -> None:
    body = events(*begun, chat=chat, end=None, done=False) or b": hello\n\n"
    before = time.monotonic()
    with cutting([Cut(body, endless=endless)], chat=chat, probed=probed) as server:
        model = lq.model("openai/m", base_url=server.base_url, timeout=0.5)
        with pytest.raises(lq.ModelError, match=r"for 0\.5 s") as caught:
            lq.run_sync(asking(chat), model=model, session=lq.Session())
    assert time.monotonic() - before < 8 and caught.value.hint and len(server.posts) == 1


# The first contact ----------------------------------------------------------------------------------------------------


@ROUTES
@pytest.mark.parametrize("cuts", [1, 2])
def test_a_first_contact_that_is_cut_ended_the_run(chat: bool, cuts: int) -> None:
    body = events(*SAID, chat=chat)
    answers = [*[Cut(body, at=30)] * cuts, Cut(body)]
    with cutting(answers, chat=chat, probed=False) as server:
        result = lq.run_sync(asking(chat), model=lq.model("openai/m", base_url=server.base_url), session=lq.Session())
    assert result["A"] == TEXT and len(server.posts) == cuts + 2
    assert result.usage.requests == cuts + 2 + chat, "a server of chats also refuses plain text"


@ROUTES
def test_a_first_contact_that_is_always_cut_is_a_sentence(chat: bool) -> None:
    cut = Cut(events(*SAID, chat=chat), at=30)
    with cutting([cut], chat=chat, probed=False) as server, pytest.raises(lq.ModelError, match="3 times in") as caught:
        lq.run_sync(asking(chat), model=lq.model("openai/m", base_url=server.base_url), session=lq.Session())
    assert len(server.posts) == 3 and caught.value.hint
