"""The tests' own browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_a_browser_that_died_is_started_again(running_chromium: Callable[[], Browser]) -> None:
    first = running_chromium()
    first.close()
    assert running_chromium().is_connected()
    assert running_chromium() is running_chromium() is not first
