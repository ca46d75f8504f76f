"""The two grammars: without conflicts, loaded late and once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lmql_lite.assets import asset
from lmql_lite.lang.grammars import grammar
from lmql_lite.lang.keywords import CLAUSES, CONSTRAINTS, DECODERS, DECODERS_NOT_YET, INLINE_CLAUSES


@pytest.mark.parametrize("name", ["lq", "prompt"])
def test_there_are_no_conflicts(name):
    pytest.importorskip("interegular")
    grammar(name, strict=True)


@pytest.mark.parametrize("name", ["lq", "prompt"])
def test_it_is_built_once(name):
    assert grammar(name) is grammar(name)


@pytest.mark.parametrize("name", ["lq.lark", "prompt.lark"])
def test_every_terminal_is_declared_and_used(name):
    text = asset("grammar", name).read_text("utf-8")
    rules = "\n".join(line.split("//")[0] for line in text.splitlines() if not line.startswith("%declare"))
    declared = {word for line in text.splitlines() if line.startswith("%declare") for word in line.split()[1:]}
    used = {word.strip("[]()*+?") for word in rules.split()}
    used = {word for word in used if word.isupper()}
    assert declared == used


def test_importing_the_parser_loads_nothing_heavy():
    program = "import sys, lmql_lite.lang.parser, lmql_lite.lang.scope; print('lark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_tables_do_not_contradict_each_other():
    assert not set(DECODERS) & set(DECODERS_NOT_YET)
    assert set(INLINE_CLAUSES) < set(CLAUSES)
    assert all(name.isupper() for name in CONSTRAINTS)
