"""Messages as data, the roles of what is said, and `input()`: what a conversation needs of the language."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from tests.engine.test_path_turns import Chatty, says
from tests.engine.watched import watched
from tests.tables import cases

HISTORY = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "{2+2}?"}]


def test_a_list_of_messages_is_turns_of_the_chat(session: lq.Session) -> None:
    tagged, listed = Chatty(says("4.", "6.")), Chatty(says("4.", "6."))
    rest = '{:assistant}[A]{:user}3+3?[B]" where STOPS_AT(A, ".") and STOPS_AT(B, ".")'
    one = lq.run_sync('"{:system}Be brief.{:user}{{2+2}}?' + rest, model=tagged, session=session)
    other = lq.run_sync('"{messages}' + rest, {"messages": HISTORY}, model=listed, session=lq.Session())
    assert one.prompt == other.prompt == "Be brief.{2+2}?4.3+3?6."
    assert tagged.read == listed.read
    other.check_ledger()


@cases("engine/chat_language", "other values and messages with a format are text", globals())
def test_other_values_and_messages_with_a_format_are_text(place: str, value: Any, text: str) -> None:
    assert lq.run_sync(f'"{place}"', {"v": value}, session=lq.Session()).prompt == text


@cases("engine/chat_language", "messages that cannot be said are refused where they stand", globals())
def test_messages_that_cannot_be_said_are_refused_where_they_stand(message: Any, sentence: str) -> None:
    with pytest.raises(lq.InputError, match=sentence) as caught:
        lq.run_sync('"{messages}[X]"', {"messages": [message]}, model=Chatty(says("4.")), session=lq.Session())
    assert caught.value.span is not None and caught.value.span.source == "{messages}"


def test_what_is_said_tells_in_whose_turn(session: lq.Session) -> None:
    source = '"{messages}{:assistant}It is [A]" where STOPS_AT(A, ".")'
    seen = watched(source, {"messages": HISTORY}, model=Chatty(says("It is 4.")))
    found = [(event.role, event.hole, event.text) for event in seen if isinstance(event, events.Text)]
    assert found[:3] == [("system", None, "Be brief."), ("user", None, "{2+2}?"), ("assistant", None, "It is ")]
    assert "".join(text for _, hole, text in found if hole == "A") == "4."


def test_input_may_be_awaited_or_not_under_every_host(session: lq.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    source = 'first = input("a")\n"{first} {await input()} {input()}"\nreturn first.upper()'
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\nthree\n"))
    result = lq.run_sync(source, session=session)
    assert (result.prompt, result.value) == ("one two three", "ONE")


def test_a_host_may_ask_the_user_in_its_own_way(session: lq.Session) -> None:
    lines: Iterator[str] = iter(["one", "two"])

    async def ask(prompt: str = "") -> str:
        return next(lines)

    result = lq.run_sync('"{await input()} {input()}"', {"input": ask}, session=session)
    assert result.prompt == "one two"


@pytest.mark.parametrize(
    ("stdin", "sentence"),
    [
        (None, "input\\(\\) needs a line"),
        (io.StringIO(""), "input\\(\\) needs a line, but stdin is at its end"),
        (io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), "utf-8"), "not UTF-8 text"),
    ],
    ids=["none", "empty", "bytes"],
)
def test_a_line_that_cannot_be_read_is_a_sentence(
    stdin: io.TextIOBase | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(lq.InputError, match=sentence):
        lq.run_sync('"{input()}"', session=lq.Session())


def test_a_question_to_the_user_is_no_part_of_what_is_printed_to_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Zwölf 😀\n"))
    assert lq.run_sync("\"{input('> ')}\"", session=lq.Session()).prompt == "Zwölf 😀"
    assert capsys.readouterr() == ("", "> ")
