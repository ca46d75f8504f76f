"""`%load_ext lmql_lite` and `%%lq` in a real IPython shell."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

pytest.importorskip("IPython", reason="needs IPython: pip install ipython")
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import lmql_lite as lq

CELL = '%%lq {}\n"Things to pack for {{place}}:\\n-[THING]" where STOPS_AT(THING, "\\n")'
TEXT = "Things to pack for Rome:\n-"


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    assert shell.run_cell("%load_ext lmql_lite").success
    shell.user_ns["place"] = "Rome"
    yield shell
    InteractiveShell.clear_instance()


def test_a_cell_runs_with_the_variables_of_the_notebook_and_binds_its_result(shell: InteractiveShell) -> None:
    with capture_output() as shown:
        assert shell.run_cell(CELL.format("-o trip --model demo")).success
    result = shell.user_ns["trip"]
    assert isinstance(result, lq.Result) and result.prompt.startswith(TEXT)
    assert shown.stdout == f"{result.prompt}\n"


def test_a_cell_without_a_name_is_worth_its_result(shell: InteractiveShell) -> None:
    with capture_output():
        ran = shell.run_cell(CELL.format("--var place=Oslo --set seed=3 --set n=2 --set decoder=sample --model demo"))
    assert [result.prompt.startswith("Things to pack for Oslo") for result in ran.result] == [True, True]
    assert ran.result[0].seed == 3


def test_a_cell_runs_inside_a_running_loop(shell: InteractiveShell) -> None:
    async def kernel() -> None:
        assert shell.run_cell(CELL.format("-o trip --model demo")).success

    with capture_output():
        asyncio.run(kernel())
    assert shell.user_ns["trip"].prompt.startswith(TEXT)


def test_text_appears_below_a_cell_while_it_is_generated_and_makes_room_for_the_result(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmql_lite.apps.editors.notebook.REDRAWN_AFTER_S", 0.0)
    shell.kernel = object()  # a notebook, not a terminal
    with capture_output() as shown:
        shell.run_cell(CELL.format("-o trip --model demo"))
    drawn = [each.data["text/html"] for each in shown.outputs]
    assert len(drawn) > 3 and f"<pre>{shell.user_ns['trip'].prompt}</pre>" in drawn[-1]
    assert shown.stdout == ""
    with capture_output() as shown:
        shell.run_cell(CELL.format("--model demo"))
    assert shown.outputs[-1].data["text/html"] == "" and "Result(" in shown.stdout


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ("%%lq\n'[X'", "<cell>:1:"),
        ('%%lq\n"[X]" where len(Y) < "a"', "<cell>"),
        ("%%lq --nonsense\n'[X]'", "unrecognized arguments"),
        ("%%lq --set tempratur=1\n'[X]'", "tempratur"),
        ("%%lq --model demo\n'{nowhere} [X]'", "nowhere"),
    ],
)
def test_a_mistake_is_a_short_report(shell: InteractiveShell, cell: str, sentence: str) -> None:
    with capture_output() as shown:
        ran = shell.run_cell(cell)
    assert not ran.success
    report = (shown.stdout + shown.stderr).splitlines()
    assert any(sentence in line for line in report) and len(report) < 10
