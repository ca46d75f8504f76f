"""Docstrings of the public names: each has an example, and it works."""

from __future__ import annotations

import asyncio
import doctest

import pytest

import lmql_lite as lq

FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


@pytest.mark.parametrize("name", lq.__all__)
def test_every_public_name_has_an_example_that_works(
    name: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("examples"))
    text = getattr(lq, name).__doc__ or ""
    examples = doctest.DocTestParser().get_doctest(text, {"lq": lq, "asyncio": asyncio}, name, None, None)
    assert examples.examples, f"lq.{name} has no example"
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(examples, out=said.append)
    assert not said, "".join(said)
