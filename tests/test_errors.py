"""Errors as a person sees them, and which class they have."""

from __future__ import annotations

import asyncio
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lmql_lite as lq
from lmql_lite.errors import MAX_EXCERPT_COLUMNS, Span

UNMET = '"[X]" where len(X) > 5 and len(X) < 3'


def test_a_condition_that_nothing_meets_is_a_constraint_error_before_the_run_and_in_it() -> None:
    with pytest.raises(lq.ConstraintError, match="cannot hold together"):
        lq.compile(UNMET)
    with pytest.raises(lq.ConstraintError, match="cannot hold together"):
        lq.compile('"[X]" where len(X) > n and len(X) < 3').run_sync({"n": 5}, model=lq.ScriptedModel("abc"))


def test_conditions_that_nothing_meets_are_all_reported_at_once() -> None:
    with pytest.raises(lq.ConstraintError) as caught:
        lq.compile(f'{UNMET}\n"a"\n"[Y]" where Y in []')
    assert [(type(each), each.span.line) for each in caught.value.problems if each.span] == [
        (lq.ConstraintError, 1),
        (lq.ConstraintError, 3),
    ]
    assert caught.value.report().count("nothing can fill") == 2


def test_a_query_with_a_mistake_and_a_condition_that_nothing_meets_is_a_query_error_with_both() -> None:
    with pytest.raises(lq.QueryError) as caught:
        lq.compile(f'"[Y]" where not STOPS_AT(Y, "a")\n{UNMET}')
    first, second = caught.value.problems
    assert "STOPS_AT" in first.message and isinstance(second, lq.ConstraintError)


def test_a_condition_that_nothing_meets_in_a_query_inside_the_query_is_a_constraint_error() -> None:
    inner = "@query\ndef f():\n    '''lq\n    {}\n    '''\n\"[Y: f()]\"".replace("{}", UNMET)
    with pytest.raises(lq.ConstraintError) as caught:
        lq.compile(inner)
    assert caught.value.span is not None and caught.value.span.line == 4


def test_a_line_of_thousands_of_columns_is_cut_around_the_caret() -> None:
    text = '"' + "a" * 2000 + "{x y}" + "b" * 2000 + '"'
    with pytest.raises(lq.QueryError) as caught:
        lq.compile(text)
    assert caught.value.span is not None
    line, carets = caught.value.span.excerpt().splitlines()
    assert len(line) < MAX_EXCERPT_COLUMNS + 20 and line.startswith("    ...aaa") and line.endswith("bbb...")
    assert line[carets.index("^") : carets.rindex("^") + 1] == caught.value.span.source


def test_a_long_span_is_cut_too_and_a_short_line_is_not() -> None:
    long = Span("q", "x" * 3000, 0, 3000)
    line, carets = long.excerpt().splitlines()
    assert len(line) < MAX_EXCERPT_COLUMNS and line.endswith("...") and len(carets) == len(line)
    assert Span("q", "a" * 100, 90, 100).excerpt().splitlines()[0] == "    " + "a" * 100


@pytest.mark.parametrize("text", ["a" * 90 + "{x}" + "b" * 90, "語" * 90 + "{x}" + "語" * 90])
def test_a_line_is_cut_for_a_narrow_terminal(text: str) -> None:
    line, carets = Span("q", text, 90, 93).excerpt(60).splitlines()
    wide = sum(1 + (character == "語") for character in line)
    assert 40 < wide <= 64 and "{x}" in line
    assert len(carets) == sum(1 + (character == "語") for character in line[: line.index("}") + 1])


@pytest.mark.parametrize("source", [None, 3, b'"[X]"', ["a"]])
def test_what_is_no_text_is_no_query(source: object) -> None:
    with pytest.raises(lq.InputError, match="a query is a text or the path of a file") as caught:
        lq.compile(source)  # type: ignore[arg-type]
    assert caught.value.hint


@pytest.mark.parametrize("model", [object(), 3, lq.ScriptedModel])
def test_what_is_no_model_is_a_model_error_that_names_it(model: object) -> None:
    with pytest.raises(lq.ModelError, match="is not a model") as caught:
        lq.compile('"[X]"').run_sync(model=model)  # type: ignore[call-overload]
    assert caught.value.hint


def test_half_of_a_character_in_a_value_is_an_input_error_at_the_value() -> None:
    model = lq.ScriptedModel("abc")
    with pytest.raises(lq.InputError, match="half of a character") as caught:
        lq.compile('"text {a} and [X]"').run_sync({"a": "x\ud800"}, model=model)
    assert caught.value.span is not None and caught.value.span.source == "{a}"
    assert model.calls == 0


def test_half_of_a_character_from_a_query_in_a_hole_is_an_input_error_too() -> None:
    query = lq.compile("@query\ndef f():\n    '''lq\n    \"b\"\n    return chr(0xd800)\n    '''\n\"a [X: f()] [Y]\"")
    with pytest.raises(lq.InputError, match="half of a character"):
        query.run_sync(model=lq.ScriptedModel("abc"))


@pytest.mark.parametrize("name", ["num_calls", "interpreter"])
def test_what_the_context_of_lmql_had_is_refused_when_compiled(name: str) -> None:
    with pytest.raises(lq.QueryError, match=f"context has no '{name}'") as caught:
        lq.compile(f'"[X]"\nreturn context.{name}')
    assert caught.value.span is not None and caught.value.span.source == f"context.{name}"
    assert caught.value.hint


def test_a_context_of_the_query_itself_may_have_anything() -> None:
    query = lq.compile('context = Thing()\n"[X]" where len(X) < 2\nreturn context.num_calls')

    class Thing:
        num_calls = 3

    result = query.run_sync({"Thing": Thing}, model=lq.ScriptedModel("abc"))
    assert isinstance(result, lq.Result) and result.value == 3


def test_several_programs_run_at_once_after_an_error() -> None:
    """An error of one run leaves nothing behind that another one meets."""
    query, model = lq.compile('"{a}[X]" where len(X) < 3'), lq.ScriptedModel("abc")

    async def both() -> list[object]:
        runs = (query.run({"a": text}, model=model) for text in ("\ud800", "b"))
        return list(await asyncio.gather(*runs, return_exceptions=True))

    first, second = asyncio.run(both())
    assert isinstance(first, lq.InputError) and isinstance(second, lq.Result)


@pytest.mark.parametrize(
    ("where", "quoted"),
    [
        ('not "e" in X and X in v', '`not "e" in X` and `X in v`'),
        ('not X.startswith("a") and X in v', '`not X.startswith("a")` and `X in v`'),
        ("X.isdigit() and not X.isdigit()", "`X.isdigit()` and `not X.isdigit()`"),
    ],
)
def test_a_conflict_quotes_a_clause_with_its_not(where: str, quoted: str) -> None:
    with pytest.raises(lq.ConstraintError) as caught:
        inputs = {"v": ["ae"]} if "v" in where else {}
        lq.compile(f'"[X]" where {where}').run_sync(inputs, model=lq.ScriptedModel("abc"))
    assert quoted in caught.value.message


def test_many_texts_to_begin_with_were_refused_as_a_regular_expression() -> None:
    query = lq.compile('"[X]" where STARTS_WITH(X, v)')
    texts = [f"{number:05}x" for number in range(4_000)]
    result = query.run_sync({"v": texts}, model=lq.ScriptedModel("00007x", certainty=9), session=lq.Session())
    assert isinstance(result, lq.Result) and result["X"].startswith(tuple(texts))


SCRIPT = """import lmql_lite as lq

def ask():
    return lq.run_sync('"[X]" where lenn(Y) > 3')

{call}
"""


def test_an_uncaught_error_shows_caret_and_hint_and_the_callers_frames_alone(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    for call in ("ask()", "import asyncio\nasyncio.run(lq.run('\"[X] {Y}\"'))"):
        file.write_text(SCRIPT.replace("{call}", call), "utf-8")
        done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=60, check=False)
        assert "hint: " in done.stderr
        assert done.stderr.count("engine/session.py") + done.stderr.count("engine/run.py") == 0, done.stderr
    assert len(re.findall("^  File", done.stderr, re.MULTILINE)) < 12
    file.write_text(SCRIPT.replace("{call}", "lq.compile('\"[X] {X!y}\" where lenn(X) > 3')"), "utf-8")
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=60, check=False)
    assert '{X!y}" where lenn(X) > 3\n           ^^\n    hint: write' in done.stderr
    assert len(re.findall("^  File", done.stderr, re.MULTILINE)) == 1, "the script alone"


def test_notes_are_kept_beside_what_the_error_says_itself() -> None:
    with pytest.raises(lq.QueryError) as caught:
        lq.compile('"[X]" where ANSWR in ["a"]\n"{ANSWER}"')
    caught.value.add_note("in rows[3] of a map")
    first, last = caught.value.__notes__
    assert first == caught.value.report().partition("\n")[2] and last == "in rows[3] of a map"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.__notes__, again.report()) == (caught.value.__notes__, caught.value.report())


@pytest.mark.parametrize("cell", ["lq.run_sync('\"{name}\"', {'nam': 1})", "lq.compile('\"[X]\" where len(Y) > 3')"])
def test_an_error_in_a_notebook_is_shorter_than_ten_lines(cell: str, capsys: pytest.CaptureFixture[str]) -> None:
    shells = pytest.importorskip("IPython.core.interactiveshell")
    shell = shells.InteractiveShell()
    shell.run_cell("import lmql_lite as lq")
    capsys.readouterr()
    shell.run_cell(cell)
    said = capsys.readouterr()
    lines = (said.out + said.err).strip().splitlines()
    assert 2 < len(lines) < 10 and any("hint: " in line for line in lines), lines
    assert not [line for line in lines if "lmql_lite/" in line]
