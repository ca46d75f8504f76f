"""A `where` holds for a whole program: clauses without a hole, over several holes, and of holes filled again."""

from __future__ import annotations

from typing import Any

import pytest

import lmql_lite as lq
from tests.tables import cases


def run(source: str, text: str = "", **inputs: Any) -> lq.Result:
    """The query with a model that means to say this text, prompt included."""
    model = lq.ScriptedModel(text, certainty=9)
    return lq.run_sync(source, model=model, session=lq.Session(), inputs=inputs)


GUARDED = [
    "(INT(X) and int(X) < 10)",
    "(INT(X) and int(X) > 99999 and len(X) < 3)",
    "(X.isdigit() and int(X) < 5)",
    '(X in ["1", "no"] and int(X) == 1)',
    "(FLOAT(X) and float(X) < 1.5)",
]


@pytest.mark.parametrize("guarded", GUARDED)
def test_a_guarded_number_under_or_forbade_what_the_other_part_allows(guarded: str) -> None:
    for clause in (f'{guarded} or X == "none"', f'X == "none" or {guarded}'):
        if "no" in guarded.split() and clause.startswith("("):
            continue
        assert run(f'"Age: [X]" where {clause}', "Age: none").variables["X"] == "none", clause


@pytest.mark.parametrize(
    "where", ['int(X) < 10 or X == "none"', 'X == "none" or int(X) < 10', 'float(X) < 1 or X == "none"']
)
def test_a_number_that_is_read_before_its_guard_forbids_nothing_else(where: str) -> None:
    """S20."""
    assert run(f'"Age: [X]" where {where}', "Age: none").variables["X"] == "none"
    assert float(run(f'"Age: [X]" where ({where}) and X != "none"', "Age: none").variables["X"]) < 10


@cases("engine/where_of_programs", "a greek sigma in small letters guides the model", globals())
def test_a_greek_sigma_in_small_letters_guides_the_model(where: str, script: str) -> None:
    """Of the few texts that are the same but for the form of a sigma Python takes the right one."""
    result = lq.run_sync(f'argmax\n"[X]"\nwhere {where}', model=lq.ScriptedModel(script))
    assert eval(where, {"X": result["X"]})


def test_texts_that_are_equal_in_small_letters_are_equal_in_casefold() -> None:
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assert all(character.lower().casefold() == character.casefold() for character in every)


@cases("engine/where_of_programs", "str of a number was judged on its text", globals())
def test_str_of_a_number_was_judged_on_its_text(source: str, says: str, value: object) -> None:
    given = {"given": lq.Decorator(pre=lambda name: "2.50")} if "@given" in source else {}
    assert run(source, says, **given).variables["X"] == value


@pytest.mark.parametrize("kind", ["int", "float", "bool", "date", "datetime", "Literal['12', 345]"])
def test_a_length_beside_python_failed_on_the_value_of_a_typed_hole(kind: str) -> None:
    source = f'"[X: {kind}]." where (len(X) < 12 or yes(X)) and len(X) % 2 < 3 and not any(len(X) > 5 for X in "ab")'
    result = lq.run_sync(source, {"yes": lambda value: True}, model=lq.ScriptedModel("12."), session=lq.Session())
    assert not isinstance(result["X"], str) or result["X"] == "12"
