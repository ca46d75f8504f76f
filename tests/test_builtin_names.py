"""Inputs that are called like Python's built-in names, as columns and parameters often are (S27)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import lmql_lite as lq
from lmql_lite.apps.cli import lq as command

NAMES = [
    "id",
    "type",
    "input",
    "format",
    "list",
    "max",
    "filter",
    "object",
    "range",
    "next",
    "hash",
    "len",
    "str",
    "all",
]
MODEL = lq.ScriptedModel("7 yes")


def function(name: str, folder: Path) -> Any:
    code = f'''
import lmql_lite as lq

@lq.query(model=lq.ScriptedModel("7 yes"))
def f({name}, other=1):
    """lq
    "{{{name}}}[X]" where len(X) < 9
    return {name}
    """
'''
    file = folder / "named.py"
    file.write_text(code, "utf-8")
    names: dict[str, Any] = {}
    exec(compile(code, str(file), "exec"), names)
    return names["f"]


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_called_like_a_builtin_is_the_value_that_is_given(name: str, tmp_path: Path) -> None:
    named = function(name, tmp_path)
    assert named(7) == named(**{name: 7}) == 7
    for result in (named.run_sync(7), asyncio.run(named.run(7)), *named.map_sync([7, {name: 7}, {name: 7, "z": 1}])):
        assert result.prompt == "7 yes" and result.value == 7


@pytest.mark.parametrize("name", NAMES)
def test_an_input_and_a_column_called_like_a_builtin_is_the_value_that_is_given(name: str) -> None:
    query = lq.compile(f'"{{{name}}}[X]"\nreturn {name}')
    results = [query.run_sync({name: 7}, model=MODEL), *query.map_sync([{name: 7, "z": 2}], model=MODEL)]
    assert [(result.prompt, result.value) for result in results] == [("7 yes", 7)] * 2
    assert query(model=MODEL, **{name: 7}) == 7


def test_a_column_of_that_name_leaves_a_builtin_alone_that_the_query_only_calls() -> None:
    query = lq.compile('"{x}[X]" where len(X) < 9\nreturn len(X), type(X)')
    [result] = query.map_sync([{"x": 7, "len": 1, "type": "row", "id": 3}], model=MODEL)
    assert result.value == (4, str)


def test_without_such_an_input_a_builtin_is_pythons() -> None:
    query = lq.compile('"{x}[X]"\nreturn list(map(str, [x]))')
    assert query.inputs == ("x",) and query(7, model=MODEL) == ["7"]


def test_an_unknown_input_is_refused_though_it_is_called_like_a_builtin() -> None:
    with pytest.raises(lq.InputError, match="the query has no input 'id'"):
        lq.compile('"{x}[X]"').run_sync({"x": 1, "id": 2}, model=MODEL)


def test_the_column_id_of_a_data_set_is_in_the_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("q.lq").write_text('"{id}"\nreturn id', "utf-8")
    Path("rows.csv").write_text("id,target\na1,a1\nb2,b2\n", "utf-8")
    ended = CliRunner().invoke(command, ["eval", "q.lq", "rows.csv", "-m", "exact"])
    assert ended.exit_code == 0 and "1.0000" in ended.stdout, ended.output
    ended = CliRunner().invoke(command, ["run", "q.lq", "--var", "id=c3"])
    assert ended.stdout == "c3\n", ended.output
