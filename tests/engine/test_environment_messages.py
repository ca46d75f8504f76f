"""Which values are conversations."""

from __future__ import annotations

from typing import Any

import pytest

from lmql_lite.engine.environment import interpolated, turns_of
from lmql_lite.errors import InputError, Span
from lmql_lite.program.ops import Interpolated

HERE = Span("<query>", "{messages}", 0, 10, 1)


CODE = compile("value", "<query>", "eval")


@pytest.mark.parametrize(
    ("conversion", "form", "expected"),
    [
        ("", "", (("user", "é"),)),
        ("s", "", "[{'role': 'user', 'content': 'é'}]"),
        ("r", "", "[{'role': 'user', 'content': 'é'}]"),
        ("a", ">40", "   [{'role': 'user', 'content': '\\xe9'}]"),
    ],
)
def test_messages_with_a_format_are_a_text(conversion: str, form: str, expected: Any) -> None:
    part = Interpolated(HERE, conversion, form)
    assert interpolated([{"role": "user", "content": "é"}], part) == expected


@pytest.mark.parametrize(("value", "form", "expected"), [(3, "03", "003"), ([], "", "[]"), ("a[b]", "", "a[b]")])
def test_other_values_are_formatted_as_python_does(value: Any, form: str, expected: str) -> None:
    assert interpolated(value, Interpolated(HERE, "", form)) == expected


def test_a_list_of_messages_is_turns() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi", "name": "Ada"}]
    assert turns_of(messages, HERE) == (("system", "Be brief."), ("user", "Hi"))
    assert turns_of(tuple(messages), HERE) == turns_of(messages, HERE)


@pytest.mark.parametrize("value", [[], "text", {"role": "user", "content": "Hi"}, [{"role": "user"}], ["Hi"], None, 3])
def test_other_values_are_none(value: Any) -> None:
    assert turns_of(value, HERE) is None


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({"role": "tool", "content": "x"}, "the role 'tool', which does not exist"),
        ({"role": ["user"], "content": "x"}, "which does not exist"),
        ({"role": "user", "content": None}, "the content of a message is NoneType, not text"),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, "is list, not text"),
    ],
)
def test_messages_that_cannot_be_said_are_refused_where_they_stand(message: Any, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        turns_of([message], HERE)
    assert sentence in caught.value.message
    assert caught.value.span == HERE
