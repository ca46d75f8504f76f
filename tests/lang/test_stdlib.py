"""Python's own library as queries: whatever is Python stays Python, in its place."""

from __future__ import annotations

import ast
import random
import sysconfig
from pathlib import Path

import pytest

from lmql_lite.lang.query import parse
from lmql_lite.lang.source import Source

STDLIB = Path(sysconfig.get_paths()["stdlib"])


def _modules() -> list[Path]:
    files = sorted(path for path in STDLIB.glob("*.py") if 0 < path.stat().st_size < 100_000)
    files += sorted(path for name in ("json", "email", "asyncio", "unittest") for path in (STDLIB / name).glob("*.py"))
    return random.Random(7).sample(files, min(60, len(files)))


def _says_something(statements: list[ast.stmt]) -> bool:
    """Whether a string stands alone outside of functions and classes."""
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str):
            return True
        if _says_something([part for part in ast.iter_child_nodes(statement) if isinstance(part, ast.stmt)]):
            return True
    return False


@pytest.mark.parametrize("path", _modules(), ids=lambda path: path.stem)
def test_a_module_is_a_query_without_prompts(path):
    text = path.read_text("utf-8")
    whole = ast.parse(text)
    if not whole.body or "\r" in text:
        pytest.skip("nothing in it")
    if _says_something(whole.body[1:]):
        pytest.skip("a string that stands alone is a prompt")
    text = "# before\n" + text + "\nargmax\n'x'\n"
    expected = ast.parse(text.removesuffix("\nargmax\n'x'\n"))
    # `include_attributes`: every line and column is the one that Python itself finds.
    assert [ast.dump(node, include_attributes=True) for node in parse(Source(path.name, text)).prologue] == [
        ast.dump(node, include_attributes=True) for node in expected.body
    ]
