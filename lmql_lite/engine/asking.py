"""`input()` in a query: a line that the user types, as Python's own function asks for it. Hosts of a run may have
another one, and give it as an input of that name."""

from __future__ import annotations

import sys
from collections.abc import Generator

from lmql_lite.errors import InputError


class InputLine(str):
    """Line of input that may be awaited or not, so that a query runs under every host."""

    def __await__(self) -> Generator[None, None, str]:
        return str(self)
        yield


class NoMoreInput(InputError, EOFError):
    """There is no line to read. A query may catch it as the EOFError that Python's own `input` raises."""


def read_line(prompt: object = "") -> InputLine:
    """The next line of stdin; everything else waits for it. A prompt is shown where somebody can see it: on stderr
    where lines come from a file. Raises NoMoreInput at the end, InputError for a line that is no text.
    """
    if sys.stdin is None or sys.stdin.closed:
        raise NoMoreInput("input() asks for a line, and this process has no stdin", hint="use `lq chat FILE`")
    if sys.stdin.isatty():
        return checked(input(prompt))
    sys.stderr.write(str(prompt))
    sys.stderr.flush()
    try:
        line = sys.stdin.readline()
    except UnicodeDecodeError:
        raise _no_text() from None
    if not line:
        raise NoMoreInput(
            "input() asks for a line, and stdin is at its end",
            hint="pipe in a line for each question, or use `lq chat FILE` in a terminal",
        )
    return checked(line.removesuffix("\n"))


def checked(line: str) -> InputLine:
    """Raises InputError for bytes that are no UTF-8 text, which Python may hide in a line."""
    try:
        line.encode()
    except UnicodeEncodeError:
        raise _no_text() from None
    return InputLine(line)


def _no_text() -> InputError:
    return InputError("the line that input() read is not UTF-8 text", hint="check the encoding of the terminal or file")
