"""`input()` where no host of the run has another one."""

from __future__ import annotations

import asyncio
import io
import sys

import pytest

from lmql_lite.engine.user_input import InputLine, NoMoreInput, checked, read_line
from lmql_lite.errors import InputError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_of_a_pipe_are_read_and_the_prompt_is_no_part_of_the_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Zwölf 😀\n\n" + "x" * 100_000))
    assert [read_line("> "), read_line(), read_line()] == ["Zwölf 😀", "", "x" * 100_000]
    assert capsys.readouterr() == ("", "> ")


def test_a_terminal_is_asked_as_python_asks_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("Rome\n"))
    assert read_line("Where? ") == "Rome"
    assert capsys.readouterr().out == "Where? "


def test_a_line_may_be_awaited() -> None:
    async def awaited() -> str:
        return await InputLine("Rome")

    assert asyncio.run(awaited()) == "Rome"


@pytest.mark.parametrize("stdin", [None, io.StringIO("")], ids=["none", "empty"])
def test_at_the_end_of_stdin_a_sentence_says_so(stdin: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(EOFError) as caught:
        read_line()
    assert isinstance(caught.value, NoMoreInput)
    assert "input() needs a line" in caught.value.message
    assert "lq chat" in (caught.value.hint or "")


def test_a_line_that_is_no_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), "utf-8"))
    with pytest.raises(InputError, match="not UTF-8 text"):
        read_line()
    with pytest.raises(InputError, match="not UTF-8 text"):
        checked("caf\udce9")
