"""`lq check` in its formats, and of Python files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lmql_lite.apps.cli import lq

PYTHON = '''
import lmql_lite as lq

class Trips:
    @lq.query
    def packing(self, place: str) -> str:
        """lq
        "{place}: [THING]" where STOPS_AT(THNG, "\\n")
        return shorter(THING)
        """
        raise NotImplementedError

def shorter(text): return text[:3]
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("good.lq").write_text('"[X]"', "utf-8")
    Path("never.lq").write_text('"🏖 [X]" where X in []\n', "utf-8")
    Path("warned.lq").write_text('"[X]" where X == "a" or "b"\n', "utf-8")
    return tmp_path


def check(*arguments: str) -> Result:
    return CliRunner().invoke(lq, ["check", *arguments])


def test_json_has_every_finding_with_its_place_and_the_exit_code_says_the_same() -> None:
    ended = check("--format", "json", "good.lq", "never.lq", "warned.lq", "nowhere.lq")
    found = json.loads(ended.stdout)
    assert ended.exit_code == 4 and not found["ok"] and len(found["files"]) == 4
    never, warned, nowhere = found["findings"]
    assert (never["file"], never["severity"], never["code"]) == ("never.lq", "error", "ConstraintError")
    assert (never["line"], never["column"], never["end_line"], never["end_column"]) == (1, 15, 1, 22)
    assert (warned["file"], warned["severity"]) == ("warned.lq", "warning") and "always true" in warned["message"]
    assert (nowhere["code"], nowhere["line"]) == ("InputError", 1)
    fine = check("--format", "json", "good.lq", "warned.lq")
    assert fine.exit_code == 0 and json.loads(fine.stdout)["ok"]


def test_github_gets_one_escaped_line_for_each_finding() -> None:
    Path("50%,a:b.lq").write_text('"[X]" where X in []', "utf-8")
    ended = check("--format", "github", "50%,a:b.lq", "warned.lq", "good.lq")
    error, warning = ended.stdout.splitlines()
    assert error.startswith(
        "::error file=50%25%2Ca%3Ab.lq,line=1,endLine=1,title=lq check,col=13,endColumn=20::nothing"
    )
    assert "%0Ahint: the list of options is empty" in error
    assert warning.startswith("::warning file=warned.lq,line=1,")


def test_docstrings_of_a_python_file_are_checked_at_their_places() -> None:
    Path("app.py").write_text(PYTHON, "utf-8")
    ended = check("app.py")
    assert ended.exit_code == 3
    assert ended.stdout.startswith("app.py:8:43: no hole is called 'THNG'\n            \"{place}: [THING]\" where")
    Path("app.py").write_text(PYTHON.replace("THNG", "THING"), "utf-8")
    assert check("app.py").stdout == "app.py: ok\n", "shorter is defined around the docstring"
    Path("other.py").write_text("def f(: this is not Python", "utf-8")
    assert check("other.py").stdout == "other.py: ok\n"
