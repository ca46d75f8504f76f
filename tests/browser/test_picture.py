"""The README's picture is one of today's page: the tree of a second run, with tokens of three kinds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PICTURE = ROOT / "docs" / "playground.png"
KINDS = ("cache", "model", "forced")


def fills(picture: Path) -> tuple[tuple[int, int], set[str]]:
    """The size of a picture, and the kinds of tokens whose fill covers at least a box of 20 by 40 pixels of it."""
    image = pytest.importorskip("PIL.Image", reason="needs pillow: pip install 'lmql-lite[media]'")
    style = (ROOT / "playground" / "view.css").read_text("utf-8")
    with image.open(picture) as opened:
        colours = {colour: count for count, colour in opened.convert("RGB").getcolors(1 << 24) or ()}
        size = opened.size
    fill = {kind: bytes.fromhex(re.findall(rf"--{kind}-fill: light-dark\(#(\w+)", style)[0]) for kind in KINDS}
    return size, {kind for kind in KINDS if colours.get(tuple(fill[kind]), 0) >= 800}


def test_the_picture_shows_tokens_of_the_cache_of_the_model_and_forced_ones() -> None:
    assert fills(PICTURE)[1] == set(KINDS)


def test_the_picture_is_taken_of_todays_page_and_shows_the_same(running_chromium: object, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "playground" / "picture.py"), str(tmp_path / "page.png")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert fills(tmp_path / "page.png") == fills(PICTURE)
