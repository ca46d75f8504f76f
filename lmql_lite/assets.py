"""Data files that stand at the top of a checkout and inside the package of a wheel."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def asset(folder: str, name: str) -> Path:
    """A data file such as `asset("grammar", "lq.lark")`.

    The packed home comes first: in an installed wheel the folder above the package is site-packages, where a
    stranger's `grammar/` could stand.
    """
    packed, checkout = PACKAGE / folder / name, PACKAGE.parent / folder / name
    return packed if packed.is_file() else checkout


def folder(name: str) -> Path:
    """A folder of data files such as `folder("examples")`, in the first of its two homes that is there."""
    packed, checkout = PACKAGE / name, PACKAGE.parent / name
    return packed if packed.is_dir() else checkout
