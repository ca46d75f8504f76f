"""Decorators of a hole: `[@a @b(1) X]`, as in LMQL: `pre` in order, `stream` and `post` in reverse."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine import events
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


def test_the_value_that_a_plain_function_gives_replaces_the_text() -> None:
    result = run('"Say [@str.upper X]." where len(X) == 5\n"{X}"', "Say hello.")
    assert (result["X"], result.prompt) == ("HELLO", "Say HELLO.HELLO")
    kept = [token for token in result.tokens if token.hole and token.fate == "kept"]
    assert (b"".join(token.data for token in kept), {token.source for token in kept}) == (b"HELLO", {"forced"})
    assert "".join(token.data.decode() for token in result.tokens if token.fate == "removed") == "hello"


def test_a_later_hole_reads_the_value_that_replaced_the_text() -> None:
    model = lq.ScriptedModel("Say HELLO.AB", certainty=60)
    source = '"Say [@str.upper X].[Y]" where X == "hello" and len(Y) == 2'
    session, plain = lq.Session(), lq.run_sync(source, model=model, session=lq.Session(), cache=False)
    assert (plain.prompt, plain["Y"]) == ("Say HELLO.AB", "AB")
    for _ in range(2):
        result = lq.run_sync(source, model=model, session=session)
        result.check_ledger()
        assert (result.prompt, dict(result.variables)) == (plain.prompt, dict(plain.variables))
    assert result.usage.forward_passes == 0


@pytest.mark.parametrize(
    ("annotation", "says", "post", "value", "prompt"),
    [
        ("float", "3.50", lambda value: value, 3.5, "3.50."),
        ("float", "3.50", lambda value: value * 2, 7.0, "7.0."),
        ("int", "12", lambda value: None, None, "12."),
        ("list[int]", "[1, 2]", lambda value: len(value), 2, "2."),
        ("str", "ab", lambda value: ("a", "b", "c"), ("a", "b", "c"), "('a', 'b', 'c')."),
    ],
    ids=["same", "other", "none", "list", "tuple"],
)
def test_a_value_that_is_the_same_or_none_leaves_the_text(
    annotation: str, says: str, post: Any, value: object, prompt: str
) -> None:
    clause = f" where len(X) == {len(says)}" if annotation == "str" else ""
    result = run(f'"[@post X: {annotation}]."{clause}', f"{says}.", {"post": post})
    assert (result["X"], result.prompt) == (value, prompt)


def test_a_pair_takes_the_place_of_the_text_too() -> None:
    def tidy(width: int) -> Any:
        return lambda value, text: (len(value), text[:width] + "..")

    result = run('"Say [@tidy(3) X]!" where len(X) == 5', "Say hello!", {"tidy": tidy})
    assert (result["X"], result.prompt) == (5, "Say hel..!")


def test_a_value_that_is_there_already_is_not_asked_for() -> None:
    model = lq.ScriptedModel("")
    known = lq.Decorator(pre=lambda name, context: f"{name} of {context.prompt.strip()}")
    result = lq.run_sync('"Rome [@known X]!"', {"known": known}, model=model, session=lq.Session())
    assert (result["X"], result.prompt, model.calls) == ("X of Rome", "Rome X of Rome!", 0)


def test_a_value_that_is_there_already_meets_the_conditions() -> None:
    with pytest.raises(lq.ConstraintError, match="a decorator gave 'maybe'") as caught:
        run('"[@known X]" where X in ["yes", "no"]', inputs={"known": lq.Decorator(pre=lambda: "maybe")})
    assert caught.value.span is not None and caught.value.span.source == 'X in ["yes", "no"]'


def test_a_value_that_is_there_already_is_a_number_by_INT() -> None:
    known = lq.Decorator(pre=lambda: "41")
    assert run('"[@known X]" where INT(X)\nreturn X + 1', inputs={"known": known}).value == 42


def test_stages_may_be_async() -> None:
    async def later(value: str) -> int:
        await asyncio.sleep(0)
        return int(value) + 1

    assert run('"[@later X: int]" where X in [41]', "41", {"later": later})["X"] == 42


def test_text_that_a_decorator_may_replace_is_told_when_it_stands() -> None:
    async def told() -> str:
        query = lq.compile('"a[@swap X]b" where len(X) == 3')
        given = {"swap": lambda value: (value, "?")}
        stream = query.stream(given, model=lq.ScriptedModel("axyzb"), session=lq.Session())
        return "".join([event.text async for event in stream if isinstance(event, events.Text)])

    assert asyncio.run(told()) == "a?b"


def test_a_query_and_a_distribution_are_decorated_too() -> None:
    source = '@query\ndef word(n):\n    """lq\n    return "w" * n\n    """\n"[@str.upper X: word(3)] [@len Y]"'
    result = run(source + ' distribution Y in ["yes", "no"]', "www yes")
    assert (result["X"], result.prompt) == ("WWW", f"WWW {result['Y']}")


def test_what_a_decorator_raises_can_be_caught_and_leaves_no_text() -> None:
    source = 'try:\n    "a[@int X]"  where len(X) == 2\nexcept ValueError:\n    "!"'
    assert run(source, "ahi").prompt == "a!"


def test_what_is_no_decorator_is_said_at_its_place() -> None:
    with pytest.raises(lq.InputError, match="decorated with functions; this is 5") as caught:
        run('"[@five X]"', inputs={"five": 5})
    assert caught.value.span is not None and caught.value.span.source == "five"


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
