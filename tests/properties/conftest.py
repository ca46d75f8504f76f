"""Fixture for all property tests: every `where` of every program that a test runs holds (law 3)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.properties.watching import Watch, watched


@pytest.fixture(autouse=True)
def every_where_holds() -> Iterator[Watch]:
    with watched() as watch:
        yield watch
