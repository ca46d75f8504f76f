"""Server-sent events as the standard has them."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmql_lite.errors import BrokenOff, ModelError
from lmql_lite.models.openai.address import Address
from lmql_lite.models.openai.event_stream import EventDecoder

ADDRESS = Address.of("http://localhost:1/v1", None)


def decoded(data: bytes, *cuts: int, kind: str = "text/event-stream") -> list[dict[str, Any]]:
    decoder, found = EventDecoder(kind, ADDRESS), list[dict[str, Any]]()
    borders = [0, *sorted(cuts), len(data)]
    for begin, end in pairwise(borders):
        found += decoder.feed(data[begin:end])
    return [*found, *decoder.finish()]


@pytest.mark.parametrize(
    "text",
    [
        'foo: bar\ndata: {"a": 1}\n\n',
        'data:\n\ndata: {"a": 1}\n\n',
        'data\n\ndata:{"a": 1}\n\n',
        '\ufeffdata: {"a": 1}\n\n',
        'data: {"a": 1}\r\r',
        'event: x\r\nid: 1\r\ndata: {"a": 1}\r\n\r\n',
        ': ping\n\ndata: {"a":\ndata: 1}\n\n',
        'data: {"a": 1}\n',
        'data: {"a": 1}\n\ndata: {"b',
    ],
    ids=["unknown field", "empty data", "no colon", "mark", "CR", "CRLF", "two lines", "no blank line", "cut"],
)
def test_streams_of_the_standard_were_refused(text: str) -> None:
    """R15."""
    data = text.encode()
    assert decoded(data) == [{"a": 1}]
    assert decoded(data, *range(1, len(data))) == [{"a": 1}]


@settings(deadline=None)
@given(
    st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=5), max_size=3), min_size=1, max_size=5), st.data()
)
def test_events_do_not_depend_on_how_the_bytes_arrive(events: list[dict[str, str]], draw: st.DataObject) -> None:
    end = draw.draw(st.sampled_from(["\n", "\r", "\r\n"]))
    data = "".join(f"data: {json.dumps(event)}{end}{end}" for event in events).encode()
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=6))
    assert decoded(data, *cuts) == events


def test_nothing_is_read_after_the_end() -> None:
    assert decoded(b'data: {"a": 1}\n\ndata: [DONE]\n\ndata: {"b": 1}\n\n') == [{"a": 1}, {"done": True}]


def test_an_event_that_is_none_in_the_middle_may_be_asked_for_again() -> None:
    """R15: one invalid event ended the run."""
    with pytest.raises(BrokenOff, match="which is not JSON"):
        decoded(b'data: {"a": 1}\n\ndata: {oops\n\n')
    with pytest.raises(ModelError, match="is not an OpenAI-compatible API") as caught:
        decoded(b"data: {oops\n\n")
    assert not isinstance(caught.value, BrokenOff)


def test_a_body_without_an_end_is_left() -> None:
    for kind in ("application/json", "text/event-stream"):
        decoder = EventDecoder(kind, ADDRESS)
        with pytest.raises(ModelError, match="without an end"):
            for _ in range(80):
                assert not list(decoder.feed(b"x" * (1 << 20)))


def test_a_large_event_took_time_with_the_square_of_its_size() -> None:
    """R20: 16 MB in 11.5 s. Four times the size would take sixteen times as long; nine was noise."""

    def seconds(size: int) -> float:
        data = b'data: {"a": "' + b"x" * size + b'"}\n\n'
        began = time.process_time()
        assert len(decoded(data, *range(0, len(data), 4096))) == 1
        return time.process_time() - began

    seconds(1 << 20)
    small, large = min(seconds(4 << 20) for _ in range(3)), min(seconds(16 << 20) for _ in range(3))
    assert large < 12 * small
