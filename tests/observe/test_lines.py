"""Events as lines, and back: one format, open to what comes later."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmql_lite as lq
from lmql_lite.engine import events
from lmql_lite.errors import InputError, Span
from lmql_lite.observe.lines import Line, Lines, as_object, ended, read, written
from tests.engine.watched import watched
from tests.tables import cases

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SPANS = st.builds(
    lambda lines, start, length, first: Span("q.lq", "\n".join(lines), start, start + length, first),
    st.lists(TEXTS, min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(0, 6),
    st.integers(1, 50),
).filter(lambda span: span.end <= len(span.text))
STARTED = events.Started("demo", "argmax", 7, False, "r1")


def line_of(record: events.Record) -> Line:
    """A line as it is read after it was written."""
    text = written(Lines().line(record))
    assert text.endswith("\n") and len(text.splitlines()) == 1
    return next(read(io.BytesIO(text.encode("ascii")), "x.lqrun"))


@given(SPANS)
def test_a_place_is_read_with_the_lines_that_it_covers(span: Span) -> None:
    failed = events.Failed("QueryError", "m", "h", span, (events.Failed("QueryError", "other"),))
    again = ended(line_of(failed))
    assert isinstance(again, events.Failed) and again.span is not None
    assert (again.span.line, again.span.column, again.span.source) == (span.line, span.column, span.source)
    assert again.span.excerpt() == span.excerpt()
    assert replace(again, span=span) == failed


@cases("observe/lines", "where a file is on a disk is not told", globals())
def test_where_a_file_is_on_a_disk_is_not_told(name: str, told: str) -> None:
    assert as_object(events.HoleOpened("X", Span(name, "[X]", 0, 3)))["span"]["file"] == told


def test_the_lines_of_a_run_come_back_with_its_result(session: lq.Session) -> None:
    source, model = '"Say é:[X]\\n[N: int]" where STOPS_AT(X, "\\n")', lq.ScriptedModel("Say é: 😀\n42\n")
    told = watched(source, model=model)
    maker = Lines()
    lines = [maker.line(event) for event in told]
    back = list(read(io.BytesIO("".join(map(written, lines)).encode()), "x.lqrun"))
    assert back == lines and [line["seq"] for line in back] == list(range(len(told)))
    end, last = ended(back[-1]), told[-1]
    assert isinstance(end, events.Finished) and isinstance(last, events.Finished)
    assert (end.result.prompt, end.result.variables) == (last.result.prompt, last.result.variables)
    assert [ended(line) for line in back[:-1]] == [None] * (len(back) - 1)


def test_runs_that_differ_in_name_query_inputs_and_date_begin_alike() -> None:
    assert replace(STARTED, run="r2", name="q.lq", query='"a"', inputs={"a": 1}, date="2026-01-01") == STARTED


def test_a_line_has_no_character_that_ends_a_line_for_anybody() -> None:
    text = "a\nb\rc\u2028d\u2029e\x85f\x0b\x0c\x1cg"
    assert line_of(events.Text(text))["text"] == text


def test_half_a_character_in_a_value_is_told() -> None:
    assert line_of(events.Bound("X", "a\ud800b"))["value"] == "a\ud800b"


# What is read ----------------------------------------------------------------------------------------------------


def line(**changes: Any) -> bytes:
    found = {"schema": 1, "run": "r1", "seq": 0, "ms": 0, "type": "text", "text": "a", "hole": None, "state": 0}
    found |= changes
    return json.dumps({name: value for name, value in found.items() if value is not ...}).encode() + b"\n"


def reading(*lines: bytes) -> list[Line]:
    return list(read(io.BytesIO(b"".join(lines)), "x.lqrun"))


def test_fields_and_types_that_come_later_are_passed_over() -> None:
    told = reading(line(mood="good"), line(seq=1, type="weather", text=...), line(seq=2, text="b"))
    assert [each["type"] for each in told] == ["text", "weather", "text"]


def test_a_newer_schema_is_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match="has schema 2, and this version reads up to 1") as refused:
        reading(line(schema=2))
    assert refused.value.hint == "install a newer lmql-lite"


@cases("observe/lines", "what is no recording is refused", globals())
def test_what_is_no_recording_is_refused(name: str, data: bytes) -> None:
    with pytest.raises(
        InputError, match=r"^'x\.lqrun' is not a recording of a run: (line 1 is not its first|it is empty)"
    ):
        reading(data)


@cases("observe/lines", "a recording with a hole in it is refused", globals())
def test_a_recording_with_a_hole_in_it_is_refused(lines: tuple[bytes, ...]) -> None:
    with pytest.raises(InputError, match="line 2 is not of it, or lines before it are missing"):
        reading(*lines)


@cases("observe/lines", "a damaged end is refused", globals())
def test_a_damaged_end_is_refused(name: str, damaged: bytes) -> None:
    (read_again,) = reading(damaged)
    with pytest.raises(InputError, match="the end of the recorded run is damaged"):
        ended(read_again)


def test_a_recording_that_a_crash_cut_off_is_read_as_far_as_it_goes() -> None:
    whole = line() + line(seq=1, text="b")
    for length in range(len(line()), len(whole)):
        assert [each["text"] for each in reading(whole[:length])][:1] == ["a"]
    assert len(reading(whole[:-5])) == 1 and len(reading(whole[:-1])) == 2


@given(st.binary(max_size=60))
def test_whatever_a_file_holds_reading_ends_with_lines_or_one_sentence(data: bytes) -> None:
    for begin in (b"", line()):
        with suppress(InputError):
            reading(begin + data)


def test_large_numbers_are_texts_that_no_reader_rounds() -> None:
    found = as_object(replace(STARTED, seed=2**64 - 1))
    assert found["seed"] == "18446744073709551615"
    assert as_object(events.Bound("X", 2**53))["value"] == "9007199254740992"
