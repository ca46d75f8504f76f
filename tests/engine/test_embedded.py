"""Queries that are defined in a query: functions under `@query`, whose docstring is one (S26, S27)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq

SOURCE = '''
factor = 2

@query
def twice(word):
    """lq
    "\\n<{word}> {place}[X]" where len(X) == factor
    return X * factor
    """

class Box:
    def __init__(self, size):
        self.size = size

    @query(max_tokens=5)
    async def get(self, n):
        \'\'\'lq
        "get {n}"
        return n + self.size
        \'\'\'

argmax
    "Say [A: twice('w')]|[twice(B, 'v')]|{await Box(3).get(4)}"
'''


def run(source: str, says: str = "", inputs: dict[str, Any] | None = None) -> lq.Result:
    return lq.run_sync(source, inputs, model=lq.ScriptedModel(says), session=lq.Session())


def test_functions_of_a_query_are_queries() -> None:
    query = lq.compile(SOURCE)
    assert query.inputs == ("place",)  # what an inner query reads and nobody binds comes from the caller
    result = query.run_sync({"place": "x"}, model=lq.ScriptedModel("Say \n<w> xab"), session=lq.Session())
    assert result["A"] == "abab" and result.prompt.startswith("Say abab|") and result.prompt.endswith("|7")


def test_an_input_called_query_stays_an_input() -> None:
    source = '@query\ndef f():\n    """lq\n    "f"\n    """\n"Search: {query} [X: f()]"'
    assert lq.compile(source).inputs == ("query",)
    assert run(source, "", {"query": "cats"}).prompt == "Search: cats f"


def test_a_decorator_that_the_query_imports_is_the_same() -> None:
    source = 'import lmql_lite as lq\n@lq.query\ndef f(n):\n    """lq\n    "a\\n{n}"\n    """\n"[X: f(1)]"'
    assert run(source).prompt == "a\n1"


def test_mistakes_in_it_are_found_when_the_query_is_compiled(tmp_path: Path) -> None:
    file = tmp_path / "outer.lq"
    file.write_text(
        '"é[A]"\n@query\ndef f(x):\n    """lq\n    "é[B]" where len(C) < 3\n    """\n"[D]" where len(E) < 3\n'
    )
    with pytest.raises(lq.QueryError) as caught:
        lq.compile(file)
    places = {(each.span.line, each.span.column, each.span.source) for each in caught.value.problems if each.span}
    assert places == {(5, 18, "len(C) < 3"), (7, 13, "len(E) < 3")}


def test_what_it_raises_points_into_the_file(tmp_path: Path) -> None:
    file = tmp_path / "outer.lq"
    file.write_text('@query\ndef f(x):\n    """lq\n    "a"\n    return {}[x]\n    """\n"[X: f(3)]"\n')
    with pytest.raises(KeyError) as caught:
        lq.compile(file).run_sync(model=lq.ScriptedModel(""), session=lq.Session())
    last = caught.traceback[-1]
    assert (Path(str(last.path)), last.lineno + 1) == (file, 5)


def test_a_plain_docstring_under_another_decorator_is_no_query() -> None:
    source = (
        'def query_of(f): return f\n@query_of\ndef f():\n    """lq\n    nonsense here\n    """\n    return 1\n"{f()}"'
    )
    assert run(source).prompt == "1"


def test_it_sees_the_variables_as_they_are_when_it_is_called() -> None:
    source = '@query\ndef f():\n    """lq\n    "{n}"\n    """\nfor n in range(3):\n    "[X: f()]"'
    assert run(source).prompt == "012"


def test_a_prompt_with_a_condition_inside_a_function_says_what_to_do_instead() -> None:
    with pytest.raises(lq.QueryError, match="'where' is not expected here") as caught:
        lq.compile('def ask():\n    y = 1\n    "say [X]" where len(X) < 3\nask()')
    assert caught.value.span is not None and caught.value.span.line == 3
    assert "@query" in (caught.value.hint or "")
