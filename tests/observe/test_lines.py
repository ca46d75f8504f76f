"""Events as lines, and back: one format, strict in what it reads, open to what comes later."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmql_lite as lq
from lmql_lite.constraints.terms import Ending
from lmql_lite.engine import events
from lmql_lite.engine.budget import Cost
from lmql_lite.engine.result import Result, Usage
from lmql_lite.errors import InputError, Span
from lmql_lite.observe.codecs import Wrong
from lmql_lite.observe.lines import Line, Lines, as_object, read, read_line, record_of
from lmql_lite.tokens import Fate, Source, Token
from tests.engine.watched import watched
from tests.tables import cases

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.sampled_from(["X", "P(X)", "é"])
COUNTS = st.integers(0, 2**70)
STATES = st.integers(0, 9)
SPANS = st.builds(
    lambda lines, start, length, first: Span("q.lq", "\n".join(lines), start, start + length, first),
    st.lists(TEXTS, min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(0, 6),
    st.integers(1, 50),
).filter(lambda span: span.end <= len(span.text))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**52), 2**52) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(TEXTS, each, max_size=3),
    max_leaves=6,
)
ENDINGS = st.sampled_from(get_args(Ending))
TOKENS = st.builds(
    Token,
    st.integers(-1, 2**20),
    st.binary(max_size=6),
    st.none() | NAMES,
    st.sampled_from(get_args(Source)),
    st.sampled_from(get_args(Fate)),
    st.none() | st.floats(allow_nan=False),
)
USAGES = st.builds(
    lambda counts, cost: Usage(**dict(zip(Usage().as_dict(), counts, strict=True)), cost=cost),
    st.lists(st.none() | COUNTS, min_size=len(Usage().as_dict()), max_size=len(Usage().as_dict())),
    st.none() | st.builds(Cost, st.floats(0, 1e9), st.booleans()),
)
RESULTS = st.builds(
    Result,
    prompt=TEXTS,
    variables=st.dictionaries(NAMES, PLAIN, max_size=2),
    value=PLAIN,
    tokens=st.just(()),
    usage=USAGES,
    endings=st.dictionaries(NAMES, ENDINGS, max_size=2),
    seed=st.integers(0, 2**64 - 1),
    model=TEXTS,
    notices=st.lists(TEXTS, max_size=2).map(tuple),
    score=st.floats(allow_nan=False),
)
FAILURES = st.recursive(
    st.builds(events.Failed, st.just("QueryError"), TEXTS, st.none() | TEXTS),
    lambda each: st.builds(
        events.Failed, st.just("QueryError"), TEXTS, st.none() | TEXTS, st.none(), st.lists(each, max_size=2).map(tuple)
    ),
    max_leaves=4,
)
RECORDS = st.one_of(
    st.builds(events.Started, TEXTS, TEXTS, st.integers(0, 2**64 - 1), st.booleans(), TEXTS),
    st.builds(events.Notice, TEXTS),
    st.builds(events.Text, TEXTS, st.none() | NAMES, STATES),
    st.builds(events.MediaShown, TEXTS, st.sampled_from(["", "data:image/jpeg;base64,/9j/4AAQ"]), STATES),
    st.builds(events.Thought, TEXTS, NAMES, STATES),
    st.builds(events.TokenMoved, TOKENS, COUNTS, COUNTS, STATES),
    st.builds(events.Guessed, TOKENS, COUNTS, COUNTS, STATES),
    st.builds(events.HoleClosed, NAMES, TEXTS, ENDINGS, STATES),
    st.builds(events.Forked, STATES, st.lists(STATES, max_size=4).map(tuple)),
    st.builds(events.Pruned, STATES),
    st.builds(events.ToolCalled, TEXTS, TEXTS, TEXTS, STATES),
    st.builds(events.Bound, NAMES, PLAIN, STATES),
    st.builds(events.Finished, RESULTS, st.lists(RESULTS, max_size=2).map(tuple)),
    FAILURES,
)
STARTED = events.Started("demo", "argmax", 7, False, "r1")


@given(RECORDS)
def test_what_is_written_is_read_again(record: events.Record) -> None:
    line = Lines().line(record).text()
    told = read_line(line.encode("ascii"))
    assert (told.seq, told.record) == (0, record)
    assert line.endswith("\n") and len(line.splitlines()) == 1


@given(SPANS)
def test_a_place_is_read_with_the_lines_that_it_covers(span: Span) -> None:
    found = as_object(events.HoleOpened("X", span))
    told = record_of(found)
    assert isinstance(told, events.HoleOpened)
    again = told.span
    assert (again.line, again.column, again.source) == (span.line, span.column, span.source)
    assert again.excerpt() == span.excerpt()
    assert as_object(told) == found


@cases("observe/lines", "where a file is on a disk is not told", globals())
def test_where_a_file_is_on_a_disk_is_not_told(name: str, told: str) -> None:
    assert as_object(events.HoleOpened("X", Span(name, "[X]", 0, 3)))["span"]["file"] == told


def test_all_events_of_a_run_come_back(session: lq.Session) -> None:
    source, model = '"Say é:[X]\\n[N: int]" where STOPS_AT(X, "\\n")', lq.ScriptedModel("Say é: 😀\n42\n")
    told = watched(source, model=model)
    lines = Lines()
    file = io.BytesIO("".join(lines.line(event).text() for event in told).encode())
    back = list(read(file, "x.lqrun"))
    assert [each.seq for each in back] == list(range(len(told)))
    assert len({each.run for each in back}) == 1
    for event, each in zip(told, back, strict=True):
        if isinstance(event, events.Finished):
            event = replace(event, result=replace(event.result, tokens=()))
        if isinstance(event, events.HoleOpened):
            assert isinstance(each.record, events.HoleOpened) and each.record.span.source == event.span.source
        else:
            assert each.record == event


def test_a_line_has_no_character_that_ends_a_line_for_anybody() -> None:
    text = "a\nb\rc\u2028d\u2029e\x85f\x0b\x0c\x1cg"
    line = Lines().line(events.Text(text)).text()
    assert len(line.splitlines()) == 1
    assert record_of(json.loads(line)) == events.Text(text)


def test_half_a_character_in_a_value_is_told() -> None:
    line = Lines().line(events.Bound("X", "a\ud800b")).text()
    assert read_line(line.encode("ascii")).record == events.Bound("X", "a\ud800b")


# What is read ----------------------------------------------------------------------------------------------------


def line(**changes: Any) -> bytes:
    found = {"schema": 1, "run": "r1", "seq": 0, "ms": 0, "type": "text", "text": "a", "hole": None, "state": 0}
    found |= changes
    return json.dumps({name: value for name, value in found.items() if value is not ...}).encode() + b"\n"


def reading(*lines: bytes) -> list[Line]:
    return list(read(io.BytesIO(b"".join(lines)), "x.lqrun"))


def test_fields_and_types_that_come_later_are_passed_over() -> None:
    told = reading(line(mood="good"), line(seq=1, type="weather", text=...), line(seq=2, text="b"))
    assert [each.record for each in told] == [events.Text("a"), None, events.Text("b")]


def test_a_field_with_a_default_may_be_missing() -> None:
    assert reading(line(hole=..., state=...))[0].record == events.Text("a")


def test_a_newer_schema_is_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match="has schema 2, and this version reads up to 1") as refused:
        reading(line(schema=2))
    assert refused.value.hint == "install a newer lmql-lite"


@cases("observe/lines", "what is no recording is refused with the reason", globals())
def test_what_is_no_recording_is_refused_with_the_reason(name: str, data: bytes, sentence: str) -> None:
    with pytest.raises(InputError, match=rf"^'x.lqrun' is not a recording of a run: .*({sentence})"):
        reading(data)


@cases("observe/lines", "a recording with a hole in it is refused", globals())
def test_a_recording_with_a_hole_in_it_is_refused(lines: tuple[bytes, ...], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        reading(*lines)


def test_a_recording_that_a_crash_cut_off_is_read_as_far_as_it_goes() -> None:
    whole = line() + line(seq=1, text="b")
    for length in range(len(line()), len(whole)):
        assert [each.record for each in reading(whole[:length])][:1] == [events.Text("a")]
    assert len(reading(whole[:-5])) == 1 and len(reading(whole[:-1])) == 2


@given(st.binary(max_size=60))
def test_whatever_a_file_holds_reading_ends_with_lines_or_one_sentence(data: bytes) -> None:
    for begin in (b"", line()):
        with suppress(InputError):
            reading(begin + data)


def test_large_numbers_are_texts_that_no_reader_rounds() -> None:
    found = as_object(replace(STARTED, seed=2**64 - 1))
    assert found["seed"] == "18446744073709551615"
    assert record_of(found) == replace(STARTED, seed=2**64 - 1)
    assert as_object(events.Bound("X", 2**53))["value"] == "9007199254740992"


@pytest.mark.parametrize(
    "wrong",
    ["https://example.org/a.jpg", "data:text/html;base64,AAAA", "data:image/jpeg;base64,", "data:image/svg+xml,<svg/>"],
)
def test_a_thumbnail_is_a_small_jpeg_and_nothing_that_a_page_would_ask_for(wrong: str) -> None:
    found = as_object(events.MediaShown("<image 0>", "data:image/jpeg;base64,AAAA"))
    assert record_of(found) == events.MediaShown("<image 0>", "data:image/jpeg;base64,AAAA")
    for text in (wrong, "data:image/jpeg;base64," + "A" * (1 << 17)):
        with pytest.raises(Wrong, match="thumbnail"):
            record_of({**found, "thumbnail": text})
