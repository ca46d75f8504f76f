"""Reading a query from a file, and what is wrong with the files that cannot be read."""

from __future__ import annotations

import os

import pytest

from lmql_lite.errors import InputError
from lmql_lite.lang.query import parse
from lmql_lite.lang.source import Source
from tests.tables import cases


def test_a_span_is_a_piece_of_the_text():
    span = Source("q.lq", "a\nbcd\n", first_line=7).span(2, 4)
    assert (span.name, span.source, span.line, span.column) == ("q.lq", "bc", 8, 1)


def test_line_ends_stay_and_a_byte_order_mark_goes(tmp_path):
    path = tmp_path / "q.lq"
    path.write_bytes(b"\xef\xbb\xbf" + '"é [X]"\r\n'.encode())
    source = Source.from_file(path)
    assert source == Source(str(path), '"é [X]"\r\n')
    assert [each.span.column for each in parse(source).prompts.values()] == [1]


def test_the_path_may_be_a_string(tmp_path):
    (tmp_path / "q.lq").write_text("x")
    assert Source.from_file(str(tmp_path / "q.lq")).text == "x"


@cases("lang/source", "what is no text", globals())
def test_what_is_no_text(tmp_path, content, sentence):
    path = tmp_path / "q.lq"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        Source.from_file(path)
    assert caught.value.message == sentence.format(path=path)
    assert caught.value.hint


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match="there is no file") as caught:
        Source.from_file(tmp_path / "none.lq")
    assert caught.value.hint


def test_a_folder(tmp_path):
    with pytest.raises(InputError, match="is a directory") as caught:
        Source.from_file(tmp_path)
    assert caught.value.hint


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the owner of everything may read it")
def test_a_file_that_may_not_be_read(tmp_path):
    path = tmp_path / "q.lq"
    path.write_text("x")
    path.chmod(0)
    with pytest.raises(InputError, match="permission denied"):
        Source.from_file(path)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_a_name_that_is_none(name):
    with pytest.raises(InputError) as caught:
        Source.from_file(name)
    assert "\n" not in caught.value.message and caught.value.hint
