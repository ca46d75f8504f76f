"""Deliver 11: an exception of a query's own Python is the user's own, and its traceback points at the query's line."""

from __future__ import annotations

import asyncio
import traceback
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from tests.tables import cases

QUERY = """"Say[X]" where len(X) == 1
def half(text):
    return text[:5] / 2
for word in [X]:
    "{half(word)}"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "half.lq"
    file.write_text(QUERY)
    return file


def lines(error: BaseException) -> list[str]:
    """The lines of the traceback that name a place, without carets."""
    text = "".join(traceback.format_exception(error))
    return [line.strip() for line in text.splitlines() if not set(line.strip()) <= set("^~")]


def options() -> dict[str, Any]:
    return {"model": lq.ScriptedModel("Say!"), "session": lq.Session()}


def test_the_traceback_shows_the_callers_line_and_then_the_querys(file: Path) -> None:
    with pytest.raises(TypeError) as caught:
        lq.run_sync(file, **options())
    found = lines(caught.value)
    assert found[0] == "Traceback (most recent call last):"
    assert "lq.run_sync(file, **options())" in found[2]
    assert found[-5:] == [
        f'File "{file}", line 5, in <module>',
        '"{half(word)}"',
        f'File "{file}", line 3, in half',
        "return text[:5] / 2",
        "TypeError: unsupported operand type(s) for /: 'str' and 'int'",
    ]
    between = [line for line in found if line.startswith("File") and "half.lq" not in line and __file__ not in line]
    assert len(between) <= 2, between


def test_so_does_that_of_an_async_caller(file: Path) -> None:
    async def caller() -> None:
        await lq.run(file, **options())

    with pytest.raises(TypeError) as caught:
        asyncio.run(caller())
    ours = [line for line in lines(caught.value) if "lmql_lite" in line and "half.lq" not in line]
    assert len(ours) <= 3, ours


@cases("engine/tracebacks", "every piece of python points at its line", globals())
def test_every_piece_of_python_points_at_its_line(statement: str, line: int, tmp_path: Path) -> None:
    def broken(*_: Any) -> Any:
        raise LookupError("mine")

    class Unspoken:
        __str__ = __repr__ = broken

    file = tmp_path / "query.lq"
    file.write_text(statement)
    query = lq.compile(file)
    given = {name: {"broken": broken, "value": Unspoken()}[name] for name in query.inputs}
    with pytest.raises((LookupError, ValueError), match=r"mine|format code") as caught:
        query.run_sync(given, model=lq.ScriptedModel("abc"), session=lq.Session())
    places = [
        frame.lineno for frame in traceback.extract_tb(caught.value.__traceback__) if "query.lq" in frame.filename
    ]
    assert places == [line]


def test_nothing_stands_between_the_querys_line_and_what_it_calls(tmp_path: Path) -> None:
    file = tmp_path / "query.lq"
    file.write_text("def loud(value):\n    return value + 1\n'a[@loud X]' where len(X) == 1\n")
    with pytest.raises(TypeError) as caught:
        lq.run_sync(file, model=lq.ScriptedModel("abc"), session=lq.Session())
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [(frame.filename, frame.lineno) for frame in frames[-2:]] == [(str(file), 3), (str(file), 2)]
