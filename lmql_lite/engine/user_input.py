"""`input()` in a query: a line that the user types, as with Python's own function. A host may replace the function: it
passes its own as an input named `input`."""

from __future__ import annotations

import sys
from collections.abc import Generator

from lmql_lite.errors import InputError


class InputLine(str):
    """Line of input that may be awaited or used at once, so that a query runs under every host."""

    def __await__(self) -> Generator[None, None, str]:
        return str(self)
        yield


class NoMoreInput(InputError, EOFError):
    """There is no line to read. A query may catch it as the EOFError that Python's own `input` raises."""


def read_line(prompt: object = "") -> InputLine:
    """The next line of stdin; all runs wait for it. The prompt is written to stderr if stdin is not a terminal. Raises
    NoMoreInput at the end of stdin, InputError for a line that is not UTF-8 text.
    """
    if sys.stdin is None or sys.stdin.closed:
        raise NoMoreInput("input() needs a line, but this process has no stdin", hint="use `lq chat FILE`")
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
            "input() needs a line, but stdin is at its end",
            hint="pipe in one line per call of input(), or use `lq chat FILE` in a terminal",
        )
    return checked(line.removesuffix("\n"))


def checked(line: str) -> InputLine:
    """The line. Raises InputError for bytes that are not UTF-8, which Python reads as surrogates."""
    try:
        line.encode()
    except UnicodeEncodeError:
        raise _no_text() from None
    return InputLine(line)


def _no_text() -> InputError:
    return InputError("the line that input() read is not UTF-8 text", hint="check the encoding of the terminal or file")
