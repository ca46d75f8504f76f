"""A `where` holds for a whole program: clauses without a hole, over several holes, and of holes filled again."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

import lmql_lite as lq


def run(source: str, text: str = "", **inputs: Any) -> lq.Result:
    """The query with a model that means to say this text, prompt included."""
    model = lq.ScriptedModel(text, certainty=9)
    return lq.run_sync(source, model=model, session=lq.Session(), inputs=inputs)


XY = 'A in ["x", "y"] and B in ["x", "y"]'


@pytest.mark.parametrize(
    ("source", "clause", "inputs"),
    [
        ('"[X]" where flag and len(X) < 3', "flag", {"flag": False}),
        ('"[A]" where A in ["a"]\n"[X]" where A == "z" and X in ["a"]', 'A == "z"', {}),
        ('argmax\n    "[X]"\nwhere n > 5 and len(X) < 3', "n > 5", {"n": 2}),
        ('"[X: int]" where X > 3 and flag', "flag", {"flag": False}),
        ('"[X: list[int]]" where len(X) < 3 and flag', "flag", {"flag": False}),
        ('"[X]" where "foo" in context.prompt and len(X) < 4', '"foo" in context.prompt', {}),
        ('"[X]" where flag and X[0] in "abc"', "flag", {"flag": False}),
        ('argmax\n    "[X]"\nwhere flag and len(X) < 3\ndistribution X in ["a", "b"]', "flag", {"flag": False}),
        ('argmax\n    "[X] [Y]"\nwhere flag and len(X) < 3', "flag", {"flag": False}),
    ],
)
def test_a_part_of_and_without_a_hole_was_dropped(source: str, clause: str, inputs: dict[str, Any]) -> None:
    with pytest.raises(lq.ConstraintError) as error:
        run(source, "ab", **inputs)
    assert error.value.span and error.value.span.source == clause
    assert f"`{clause}`" in error.value.message


def test_a_constant_false_part_of_and_was_dropped() -> None:
    with pytest.raises(lq.ConstraintError, match=r"nothing can fill \[X\]: `False` is false"):
        run('"[X]" where False and len(X) < 3', "ab")


def test_a_part_of_and_that_raises_was_not_evaluated() -> None:
    with pytest.raises(ZeroDivisionError):
        run('"[X]" where 1 / 0 and len(X) < 3', "ab")
    with pytest.raises(lq.ConstraintError):  # as in Python, nothing after a false part is evaluated
        run('"[X]" where flag and 1 / 0 and len(X) < 3', "ab", flag=False)


def test_a_name_assigned_in_a_part_of_and_was_unknown_to_the_next() -> None:
    assert run('"[X]" where (n := 3) and len(X) == n', "abcd").variables["X"] == "abc"


@pytest.mark.parametrize(
    "source",
    [
        f'argmax\n    "[A] [B] [A]"\nwhere A != B and {XY}',
        f'"[A] [B] [A]" where A != B and {XY}',
        f'argmax\n    "[A] [B]"\n    " [A]"\nwhere A != B and {XY}',
        f'argmax\n    for i in (0, 1):\n        "[A] "\n        if i == 0:\n            "[B] "\nwhere A != B and {XY}',
    ],
)
def test_a_condition_over_two_holes_was_not_asked_again_when_one_was_filled_again(source: str) -> None:
    variables = run(source, "x y y").variables
    assert (variables["A"], variables["B"]) == ("x", "y")


def test_a_condition_over_two_holes_of_a_loop_missed_the_last_turn() -> None:
    source = """
argmax
    for turn in range(2):
        "[Q]"
        if Q == "s":
            break
        "[R]"
where not (Q == "s" and R == "1") and Q in ["g", "s"] and R in ["0", "1"]
"""
    variables = run(source, "g1s").variables
    assert variables["Q"] == "g"


def test_values_of_the_turn_before_do_not_bind_those_of_this_turn() -> None:
    source = f'argmax\n    for i in range(2):\n        "[A][B] "\nwhere A == B and {XY}'
    assert run(source, "xx yy").prompt == "xx yy "


@pytest.mark.parametrize("order", [True, False])
def test_a_condition_over_holes_whose_order_depends_on_the_run_raised_a_name_error(order: bool) -> None:
    source = f'argmax\n    if order:\n        "[B] [A]"\n    else:\n        "[A] [B]"\nwhere A != B and {XY}'
    variables = run(source, "x x", order=order).variables
    assert variables["A"] != variables["B"]


def test_a_clause_of_a_string_that_reads_an_unfilled_hole_raised_a_name_error() -> None:
    with pytest.raises(lq.ConstraintError, match=r"`X != Y` reads \[Y\], which has no value yet") as error:
        run('"[X]" where X != Y and X in ["a", "b"]\n"[Y]"', "ab")
    assert error.value.hint and "`where` at the end of the query" in error.value.hint


def test_a_condition_over_two_holes_holds_where_a_try_may_skip_one() -> None:
    source = f"""
argmax
    "[B]"
    try:
        "[A]"
        raise ValueError
        "[B]"
    except ValueError:
        " and on"
where A != B and {XY}
"""
    variables = run(source, "xx").variables
    assert variables["A"] != variables["B"]


def test_python_judges_a_clause_over_two_holes_at_the_one_that_is_filled_again() -> None:
    source = """
def differ(one, other):
    return one != other
argmax
    for i in range(2):
        "[A]"
        if i == 0:
            "[B]"
where differ(A, B) and A in ["x", "y"] and B in ["x", "y"]
"""
    variables = run(source, "xyy").variables
    assert (variables["A"], variables["B"]) == ("x", "y")


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


@pytest.mark.parametrize(
    "source",
    [
        'try:\n    "[X]" where no(X) and X in ["a", "b"]\nexcept lq.ConstraintError:\n    pass\nreturn X',
        'try:\n    "[X]" where no(X) distribution X in ["a", "b"]\nexcept lq.ConstraintError:\n    pass\nreturn X',
    ],
)
def test_a_rejected_value_stayed_in_the_variable(source: str) -> None:
    assert run(f'def no(value):\n    return False\nX = "orig"\n{source}', "b").value == "orig"


def test_the_rejected_value_of_a_nested_query_stayed_in_the_variable() -> None:
    source = """
@query
def answer():
    '''lq
    return "no"
    '''
X = "orig"
try:
    "[X: answer]" where X.upper() == "YES"
except lq.ConstraintError:
    pass
return X
"""
    assert run(source).value == "orig"


@pytest.mark.parametrize(
    "source",
    [
        '"[A] [B]" where INT(A) and len(A) + len(B) < 5',
        '"[A: int] [B]" where len(A) < len(B)',
        'argmax\n    "[A] [B]"\nwhere INT(A) and len(A) + len(B) < 5 and INT(B)',
        'argmax\n    if True:\n        "[A: int]"\n    else:\n        "[C]"\n    "[B]"\nwhere len(A) < len(B)',
        '"[A]" where INT(A)\n"[B]" where A.startswith("1") and len(B) < 4',
        '"[A]" where INT(A)\n"[B]" where len(B) < 4 and str.upper(B) == A.upper()',
    ],
)
def test_an_earlier_hole_that_is_a_number_is_no_text_and_the_error_says_so(source: str) -> None:
    with pytest.raises(lq.ConstraintError, match=r"reads \[A\], which is then the number 12") as error:
        lq.run_sync(source, model=lq.ScriptedModel("12 34"))
    assert error.value.hint == "write str(A) for its text" and error.value.span is not None


def test_the_text_of_an_earlier_number_is_what_str_gives() -> None:
    source = '"[A] [B]" where INT(A) and len(str(A)) + len(B) < 5 and INT(B)'
    result = lq.run_sync(source, model=lq.ScriptedModel("12 345"))
    assert result["A"] == 12 and 0 <= result["B"] < 100


@pytest.mark.parametrize(
    ("where", "script"),
    [
        ('X.lower() == "σ"', "hello"),
        ('X.lower() in ["οδος", "σ"]', "hello"),
        ('X.strip().lower() == "ὀδυσσεύς"', "hello"),
        ('X.lower().startswith("σας") and len(X) < 6', "hello"),
        ('"σ" in X.lower() and len(X) < 4', "hello"),
    ],
)
def test_a_greek_sigma_in_small_letters_guides_the_model(where: str, script: str) -> None:
    """Of the few texts that are the same but for the form of a sigma Python takes the right one."""
    result = lq.run_sync(f'argmax\n"[X]"\nwhere {where}', model=lq.ScriptedModel(script))
    assert eval(where, {"X": result["X"]})


def test_texts_that_are_equal_in_small_letters_are_equal_in_casefold() -> None:
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assert all(character.lower().casefold() == character.casefold() for character in every)


@pytest.mark.parametrize(
    ("source", "says", "value"),
    [
        ('"[Y] [X]" where FLOAT(X) and X in ["9", "-9"] and (Y in ["a", "b"] or len(str(X)) < 4)', "c -9", 9.0),
        ('"[X]." where FLOAT(X) and str(X) in ["-9.0", "8"]', "-9.", -9.0),
        ('"[X]." where FLOAT(X) and str(X).startswith("2.5") and len(str(X)) == 3', "2.50.", 2.5),
        ('"[X]." where INT(X) and len(str(X)) == len(X) and str(X) == "41"', "41.", 41),
        ('"[X: float]." where len(str(X)) == 3 and len(X) == 4', "2.50.", 2.5),
        ('"[X: date]." where len(str(X)) == len(X) and str(X) < "2026-01-02"', "2026-01-01.", date(2026, 1, 1)),
        ('"[X: bool]." where str(X) in ["True"] and len(X) == 4', "True.", True),
        ('"[X: list[float]]." where str(X) == "[1.0, 2.0]"', "[1, 2].", [1.0, 2.0]),
        ('"[@given X]." where FLOAT(X) and X == "2.50" and f"{X}!" == "2.5!" and str(X) == "2.5"', "", 2.5),
    ],
)
def test_str_of_a_number_was_judged_on_its_text(source: str, says: str, value: object) -> None:
    given = {"given": lq.Decorator(pre=lambda name: "2.50")} if "@given" in source else {}
    assert run(source, says, **given).variables["X"] == value


@pytest.mark.parametrize("kind", ["int", "float", "bool", "date", "datetime", "Literal['12', 345]"])
def test_a_length_beside_python_failed_on_the_value_of_a_typed_hole(kind: str) -> None:
    source = f'"[X: {kind}]." where (len(X) < 12 or yes(X)) and len(X) % 2 < 3 and not any(len(X) > 5 for X in "ab")'
    result = lq.run_sync(source, {"yes": lambda value: True}, model=lq.ScriptedModel("12."), session=lq.Session())
    assert not isinstance(result["X"], str) or result["X"] == "12"


def test_an_earlier_hole_that_is_a_date_is_no_text_and_the_error_says_so() -> None:
    with pytest.raises(lq.ConstraintError, match=r"reads \[A\], which is then the date 2026-01-01"):
        run('"[A: date] [B]" where len(B) < len(A)', "2026-01-01 b")
