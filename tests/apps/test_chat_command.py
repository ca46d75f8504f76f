"""`lq chat`: a conversation with what is typed into it, and what becomes of answers that are stopped or fail."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from collections.abc import Callable

import pytest

import lmql_lite as lq
from lmql_lite.apps.chat_command import Conversation
from lmql_lite.models.scripted import ScriptedModel
from tests.engine.test_path_turns import Chatty, says

ECHO = """
while message := await input():
    "Q: {message}\\nA:[_NOTE];[ANSWER]\\n" where STOPS_BEFORE(_NOTE, ";") and STOPS_BEFORE(ANSWER, "\\n")
return "goodbye"
"""


class Typed(io.StringIO):
    """Lines as somebody types them; at their end Ctrl-D."""

    def isatty(self) -> bool:
        return True


def echoing(said: bytes) -> bytes:
    """A note, and the question once more."""
    question, _, answer = said.rpartition(b"Q: ")[2].partition(b"\nA:")
    whole = b" note; " + question + b"\n"
    return whole.removeprefix(answer) if whole.startswith(answer) else b""


def hold(source: str, model: ScriptedModel, *lines: str, typed: bool = True) -> int:
    """A conversation in which these lines are typed. Its exit code."""
    stdin = (Typed if typed else io.StringIO)("".join(f"{line}\n" for line in lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", stdin)
        try:
            asyncio.run(Conversation(lq.compile(source), {}, {"model": model, "speculate": False}).hold())
        except SystemExit as left:
            return int(left.code or 0)
    return 0


def answers(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    """What stands on stdout, without the prompts for input, and stderr."""
    out, err = capsys.readouterr()
    return out.replace("> ", "").splitlines(), err


def test_the_answers_are_shown_and_no_notes_or_texts_of_the_query(capsys: pytest.CaptureFixture[str]) -> None:
    assert hold(ECHO, ScriptedModel(echoing), "One?", "Zwölf 😀?", "") == 0
    out, err = answers(capsys)
    assert out == ["One?", "Zwölf 😀?", "goodbye"]
    assert err.startswith("2 answers · kept ")


class Once(ScriptedModel):
    """Does something, once, in the middle of the answer to `Stop?`."""

    def __init__(self, deed: Callable[[], None]) -> None:
        super().__init__(echoing)
        self._deed: Callable[[], None] | None = deed

    async def score(self, requests):  # type: ignore[no-untyped-def]
        rows = await super().score(requests)
        read = self.tokenizer.decode(requests[0].prefix + requests[0].new_ids)
        if self._deed and read.endswith(b"note; Sto"):
            deed, self._deed = self._deed, None
            deed()
        return rows


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def fail() -> None:
    raise lq.ModelError("the model is out of order", hint="wait")


TAKEN_BACK = "note: the answer and your message before it are taken back"


def test_ctrl_c_stops_an_answer_and_takes_it_back_with_its_message(capsys: pytest.CaptureFixture[str]) -> None:
    handler = signal.getsignal(signal.SIGINT)
    assert hold(ECHO, Once(interrupt), "One?", "Stop?", "Three?", "") == 0
    out, err = answers(capsys)
    assert out[0] == "One?"
    assert "Stop?".startswith(out[1])
    assert out[2:] == ["Three?", "goodbye"], "what was said before is not shown again"
    assert TAKEN_BACK in err
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_where_the_user_types_ends_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", pressed)
    assert hold(ECHO, ScriptedModel(echoing)) == 130
    assert answers(capsys)[1].lstrip().startswith("0 answers")


def test_ctrl_c_before_the_first_message_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    source = '"Q: Stop?\\nA: note;[GREETING]\\n" where STOPS_BEFORE(GREETING, "\\n")\nname = input()\n'
    assert hold(source, Once(interrupt), "never read") == 130
    assert "1 answer" in answers(capsys)[1], "what was shown of it"


def test_what_was_said_before_is_not_asked_for_again(capsys: pytest.CaptureFixture[str]) -> None:
    interrupted, straight = Once(interrupt), ScriptedModel(echoing)
    hold(ECHO, interrupted, "One?", "Stop?", "Three?", "")
    hold(ECHO, straight, "One?", "Three?", "")
    _, err = answers(capsys)
    assert interrupted.calls <= straight.calls + len(" note; Stop?\n")
    assert "otherwise" not in err


def test_a_model_that_fails_in_a_conversation_does_not_end_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert hold(ECHO, Once(fail), "One?", "Stop?", "Stop?", "") == 0
    out, err = answers(capsys)
    assert out[0] == "One?"
    assert out[-2:] == ["Stop?", "goodbye"]
    assert "[ANSWER] could not be filled: the model is out of order" in err
    assert TAKEN_BACK in err


def test_a_model_that_fails_where_nobody_types_is_an_error() -> None:
    with pytest.raises(lq.ModelError, match="out of order"):
        hold(ECHO, Once(fail), "One?", "Stop?", "Three?", typed=False)


def test_a_conversation_that_goes_otherwise_when_it_is_taken_up_again_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = "import builtins\ntold = builtins.told\n" + ECHO.replace("{message}", "{message}{next(told)}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.told", iter("abcdefgh"), raising=False)
        hold(source, Once(interrupt), "One?", "Stop?", "Three?", "")
    assert "the repeated conversation differs from the first one" in answers(capsys)[1]


def test_a_very_long_message_does_not_fit_and_may_be_said_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    assert hold(ECHO, ScriptedModel(echoing), "x" * 100_000, "One?", "") == 0
    out, err = answers(capsys)
    assert out[-2:] == ["One?", "goodbye"]
    assert "exceeds the context" in err
    assert TAKEN_BACK in err


def test_what_the_query_says_for_the_assistant_is_shown_and_what_it_says_for_others_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = '"{:system}Be brief.{:user}{await input()}{:assistant}It is [A]" where STOPS_AT(A, ".")'
    assert hold(source, Chatty(says("It is 4.")), "2+2?") == 0
    assert answers(capsys)[0] == ["It is 4."]
