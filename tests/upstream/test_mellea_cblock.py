"""Mellea's promises about its CBlock, in our words. Ours is a str, so its value cannot be set: on purpose."""

from __future__ import annotations

import pytest

import lmql_lite as lq


def test_a_block_has_the_text_that_it_is_given() -> None:
    for block in (lq.CBlock("some text"), lq.CBlock(value="some text")):
        assert block == str(block) == block.value == "some text" and repr(block) == repr("some text")


def test_a_block_without_a_value_is_empty() -> None:
    assert lq.CBlock(None) == lq.CBlock(None).value == lq.CBlock("") == ""


def test_a_block_has_its_callers_facts_and_shares_none_of_them() -> None:
    facts = {"source": "page 3"}
    block = lq.CBlock("some text", meta=facts)
    assert block.meta == facts and block.meta is not facts
    assert lq.CBlock("some text").meta == {} and lq.CBlock("some text").meta is not lq.CBlock("some text").meta


@pytest.mark.parametrize("value", [42, 3.5, True, b"bytes", ["text"], object()])
def test_a_block_is_made_of_text_alone(value: object) -> None:
    with pytest.raises(TypeError, match="a CBlock is made of a str or None"):
        lq.CBlock(value)  # type: ignore[arg-type]


def test_a_block_is_marked_for_the_cache_or_not() -> None:
    assert lq.CBlock("a").cache and not lq.CBlock("a", cache=False).cache and not lq.CBlock("a", False).cache


def test_the_value_of_a_block_cannot_be_set() -> None:
    with pytest.raises(AttributeError):
        lq.CBlock("a").value = "b"  # type: ignore[misc]


def test_a_block_in_a_query_takes_any_value_as_its_text() -> None:
    model = lq.ScriptedModel("42: hi")
    assert lq.run_sync('"{block(n)}:[X]"', {"n": 42}, model=model).prompt == "42: hi"
