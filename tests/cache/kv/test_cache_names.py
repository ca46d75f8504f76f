"""transformers renamed the cache of its networks; old and new networks take and return theirs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lmql_lite.cache.kv.cache_names import cache_of, cache_parameter


def before(input_ids: Any, past_key_values: Any = None) -> None: ...
def states(input_ids: Any, cache_params: Any = None) -> None: ...
def renamed(input_ids: Any, cache: Any = None) -> None: ...
def wrapped(*inputs: Any, **named: Any) -> None: ...


@pytest.mark.parametrize(
    ("forward", "name"),
    [(before, "past_key_values"), (states, "cache_params"), (renamed, "cache"), (wrapped, "past_key_values")],
)
def test_the_parameter_is_that_of_the_network(forward: Any, name: str) -> None:
    assert cache_parameter(SimpleNamespace(forward=forward)) == name


class Renamed:
    """Output of transformers 5.24, which warns of the old names."""

    cache = None

    @property
    def past_key_values(self) -> None:
        raise AssertionError("a warning of the library")


def test_the_cache_of_an_output_is_found_under_its_name() -> None:
    assert cache_of(SimpleNamespace(past_key_values=1)) == 1
    assert cache_of(SimpleNamespace(cache_params=2, past_key_values=None)) == 2
    assert cache_of(SimpleNamespace(cache=3)) == 3
    assert cache_of(Renamed()) is None and cache_of(SimpleNamespace()) is None
