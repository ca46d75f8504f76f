"""Decorators of a hole: `[@a @b(1) X]`, as in LMQL: `pre` in order, `stream` and `post` in reverse."""

from __future__ import annotations

from typing import Any

import pytest

import lmql_lite as lq
from tests.tables import cases


def run(source: str, says: str = "", inputs: dict[str, Any] | None = None, **options: Any) -> lq.Result:
    result = lq.run_sync(source, inputs, model=lq.ScriptedModel(says), session=lq.Session(), **options)
    result.check_ledger()
    return result


class Logged:
    """Tells when its stages run."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def pre(self, hole: str) -> None:
        self.log.append(f"{self.name} before {hole}")

    def stream(self, text: str) -> None:
        self.log.append(f"{self.name} sees {text}")

    def post(self, value: str) -> str:
        self.log.append(f"{self.name} after {value}")
        return f"{self.name}({value})"


def test_pre_goes_from_left_to_right_and_all_else_from_right_to_left() -> None:
    log: list[str] = []
    result = run('"[@a @b X]" where len(X) == 2', "hi", {"a": Logged("a", log), "b": Logged("b", log)})
    assert [line for line in log if "sees" not in line] == ["a before X", "b before X", "b after hi", "a after b(hi)"]
    assert [line for line in log if "sees" in line] == ["b sees h", "a sees h", "b sees hi", "a sees hi"]
    assert (result["X"], result.prompt) == ("a(b(hi))", "a(b(hi))")


GIVING = """
from enum import Enum
class Colour(Enum):
    red = "r"
d = lq.Decorator(pre=lambda name: given)
"""


def given(hole: str, value: object, where: str = "") -> object:
    source = f'{GIVING}"[@d A: {hole}]!"{where}'
    return lq.run_sync(source, model=lq.ScriptedModel(""), session=lq.Session(), inputs={"given": value})["A"]


@cases("engine/hole_decorators", "a value of pre was not held to the type of its hole", globals())
def test_a_value_of_pre_was_not_held_to_the_type_of_its_hole(hole: str, value: object, where: str, broken: str) -> None:
    with pytest.raises(lq.ConstraintError) as error:
        given(hole, value, where)
    assert error.value.span and error.value.span.source == broken


def test_a_value_of_pre_has_the_type_of_its_hole() -> None:
    assert given("int", "5") == given("int", 5) == 5
    assert str(given("Colour", "r")) == "Colour.red"
    assert given("list[int]", [1, 2], " where len(A) < 3") == [1, 2]
    assert str(given("date", "2024-02-28")) == "2024-02-28"
