"""Holes with a type: the value is an instance of it, the prompt keeps the text, conditions and cache do as ever."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import json
import re
from typing import Annotated, Any

import pydantic
import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from tests.tables import cases

PERSON = """
from pydantic import BaseModel

class Person(BaseModel):
    name: str
    age: int

"""
BOB = '{"name": "Bob", "age": 42}'


@dataclasses.dataclass
class Point:
    x: int
    y: int


def run(source: str, script: str, session: lq.Session, **inputs: Any) -> lq.Result:
    return lq.run_sync(source, inputs=inputs, model=lq.ScriptedModel(script), session=session)


# Values --------------------------------------------------------------------------------------------------------------


@cases("engine/filling_types", "the value is of the type and the prompt keeps the text", globals())
def test_the_value_is_of_the_type_and_the_prompt_keeps_the_text(
    annotation: str, text: str, value: object, session: lq.Session
) -> None:
    result = run(f'"It is [X: {annotation}]\\n."\nreturn X', f"It is {text}\n.", session)
    assert result.prompt == f"It is {text}\n."
    assert result.value == result["X"] == value and type(result.value) is type(value)


def test_str_is_no_condition(session: lq.Session) -> None:
    result = run('"It is [X: str]" where STOPS_BEFORE(X, ".")', "It is any text.", session)
    assert result["X"] == "any text"


def test_a_model_a_dataclass_and_an_enum_of_the_query_itself(session: lq.Session) -> None:
    result = run(PERSON + '"[X: Person]\\n"\nreturn X.age + 1, type(X) is Person', BOB, session)
    assert result.value == (43, True) and result.prompt == BOB + "\n"
    source = """
import dataclasses, enum

class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"

@dataclasses.dataclass
class Car:
    color: Color
    doors: int = 4

"[X: Color] [Y: list[Car]]"
return X is Color.BLUE, Y == [Car(Color.RED, 4)]
"""
    assert run(source, 'blue [{"color": "red", "doors": 4}]', session).value == (True, True)


def test_a_type_that_is_given_as_input(session: lq.Session) -> None:
    class Town(pydantic.BaseModel):
        name: str

    assert run('"[X: T]"\nreturn X', '{"name": "Rome"}', session, T=Town).value == Town(name="Rome")
    assert run('"[X: T]"\nreturn X', '{"x": 1, "y": 2}', session, T=Point).value == Point(1, 2)
    assert run('"[X: list[T]]"\nreturn X', "[3]", session, T=int).value == [3]
    with pytest.raises(lq.ConstraintError, match=r"the type of \[X\] cannot be spelled") as caught:
        run('"[X: T]"', "a", session, T=42)
    assert caught.value.span is not None and caught.value.span.source == "T"


def test_a_name_that_is_an_input_in_the_text_is_still_a_type_in_an_annotation(session: lq.Session) -> None:
    result = run('"Today {date}, due [X: date]"\nreturn X', "due 2026-12-24", session, date="2026-11-21")
    assert result.value == datetime.date(2026, 12, 24)


def test_in_a_function_the_types_of_its_module_are_known(session: lq.Session) -> None:
    @lq.query(model=lq.ScriptedModel('{"x": 1, "y": 2}'), session=session)
    def place() -> Any:
        """lq
        "[X: Point]"
        return X
        """

    assert place() == Point(1, 2)


def test_a_value_is_used_by_later_holes_and_text(session: lq.Session) -> None:
    result = run('"[A: int] [B: int] {A + B}" where B > A', "5 3 ", session)
    assert result["B"] > 5 and result.prompt.endswith(str(5 + result["B"]))


# Conditions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "where", "script", "holds"),
    [
        ("int", "0 < X < 20", "42 ", lambda x: 0 < x < 20),
        ("int", "X in [1, 2, 30]", "42 ", lambda x: x in (1, 2, 30)),
        ("int", "X != 42 and X % 2 == 0", "42 ", lambda x: x != 42 and x % 2 == 0),
        ("int", "len(X) == 3 and '7' in X", "42 ", lambda x: len(str(x)) == 3 and "7" in str(x)),
        ("float", "X > 41.5 and X < 41.75", "42.5 ", lambda x: 41.5 < x < 41.75),
        ("bool", "not X", "True ", lambda x: x is False),
        ("bool", "X == False", "True ", lambda x: x is False),
        ("date", "X > date(2026, 11, 21)", "2020-01-01 ", lambda x: x > datetime.date(2026, 11, 21)),
        ("date", "X.startswith('2024-02-2') and X.day > 28", "2020-01-01 ", lambda x: x == datetime.date(2024, 2, 29)),
        ("Literal[1, 2, 3]", "X >= 3", "1 ", lambda x: x == 3),
        ("Literal['a', 'b']", "X not in banned", "a ", lambda x: x == "b"),
        ("list[int]", "len(X) == 2", "[1, 2, 3]", lambda x: len(x) == 2),
        ("list[bool]", "len(X) < 2 and True in X", "[false, true]", lambda x: x == [True]),
        ("bool | None", "X is not None", "null", lambda x: x is not None),
    ],
)
def test_conditions_are_kept(annotation: str, where: str, script: str, holds: Any, session: lq.Session) -> None:
    source = f'from datetime import date\nbanned = ["a"]\n"x [X: {annotation}]" where {where}'
    assert holds(run(source, "x " + script, session)["X"])


def test_what_guides_spends_nothing_on_what_is_impossible(session: lq.Session) -> None:
    for where in ("X > 5 and X < 3", "X in []", "X == 2.5"):
        with pytest.raises(lq.LmqlLiteError, match="nothing can fill"):
            run(f'"[X: int]" where {where}', "1", session)
    model = lq.ScriptedModel("1")
    for source in (
        '"[X: list[int]]" where len(X) < n and len(X) > 5',
        '"[X: Literal[1, 2]]" where X > n',
        '"[X: int]" where X > 3 and X < n',
        '"[X: T]"',
    ):
        query = lq.compile(source)
        inputs = {"n": 3, "T": pydantic.conint(gt=3, lt=3)}
        with pytest.raises(lq.ConstraintError, match="nothing can fill") as caught:
            query.run_sync({name: inputs[name] for name in query.inputs}, model=model, session=session)
        assert caught.value.span is not None
    assert model.calls == 0


def test_a_clause_that_the_type_cannot_honour_is_an_error_before_the_model_is_asked(session: lq.Session) -> None:
    model = lq.ScriptedModel(BOB)
    with pytest.raises(lq.QueryError, match=r"a length of \[X\] cannot be honoured") as caught:
        lq.run_sync(PERSON + '"[X: Person]" where len(X) < 40', model=model, session=session)
    assert caught.value.span is not None and caught.value.span.source == "len(X)"
    with pytest.raises(lq.QueryError, match="STOPS_AT cannot be honoured"):
        lq.run_sync(PERSON + '"[X: Person]" where STOPS_AT(X, "}")', model=model, session=session)
    assert model.calls == 0


def test_python_judges_the_value_and_another_one_is_found(session: lq.Session) -> None:
    model = lq.ScriptedModel("[true, false]", certainty=9)
    result = lq.run_sync('"[X: list[bool]]" where len(X) < 4 and X[0] == X[-1]', model=model, session=session)
    assert result["X"][0] == result["X"][-1]
    assert any(token.fate == "rejected" for token in result.tokens)


VALIDATED = """
from pydantic import BaseModel, field_validator

class Even(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def is_even(cls, value):
        if value % 2:
            raise ValueError("this is odd")
        return value

"""


@pytest.mark.parametrize("decoder", ["argmax", "sample"])
def test_a_value_that_its_type_refuses_is_replaced(decoder: str, session: lq.Session) -> None:
    model = lq.ScriptedModel('{"number": 7}', certainty=6)
    result = lq.run_sync(VALIDATED + '"[X: Even]"', model=model, session=session, decoder=decoder, seed=1)
    assert result["X"].number % 2 == 0


def test_a_type_that_refuses_everything_says_why(session: lq.Session) -> None:
    with pytest.raises(
        lq.ConstraintError, match=r"was '\{\"number\": 7\}' \(number: Value error, this is odd\)"
    ) as caught:
        lq.run_sync(
            VALIDATED + '"[X: Even]"', model=lq.ScriptedModel('{"number": 7}'), session=session, max_backtracks=0
        )
    assert caught.value.span is not None and caught.value.span.source == "Even"


# Tokens --------------------------------------------------------------------------------------------------------------


def test_what_is_forced_costs_nothing_and_an_end_is_not_asked_for(session: lq.Session) -> None:
    constant = run("\"x [X: {'const': [1, 2]}] y\"", "x", session)
    assert constant["X"] == [1, 2] and constant.usage.forward_passes == 0
    choice = run("\"x [X: list[Literal['yes', 'no']]] y\" where len(X) == 1", 'x ["yes"]', session)
    assert choice["X"] == ["yes"] and choice.usage.forward_passes == 1
    assert choice.endings["X"] == "forced" and choice.prompt == 'x ["yes"] y'


def test_the_limit_on_tokens_never_cuts_json(session: lq.Session) -> None:
    rambling = lq.ScriptedModel('["' + "a" * 200)
    result = lq.run_sync('"[X: list[str]]"', model=rambling, session=session, max_tokens=20)
    assert result["X"][0].startswith("a" * 16) and len([token for token in result.tokens if token.hole == "X"]) == 20
    closing = lq.ScriptedModel('["' + "a" * 200, words=(b'"]', b'["'))
    assert lq.run_sync('"[X: list[str]]"', model=closing, session=session, max_tokens=20)["X"] == ["a" * 18]
    people = lq.ScriptedModel('[{"name": "Al", "age": 3}, ' * 20)
    for limit in range(30, 90, 7):
        result = lq.run_sync(PERSON + '"[X: list[Person]]"', model=people, session=session, max_tokens=limit)
        assert all(person.name == "Al" for person in result["X"][:-1])
        assert len([token for token in result.tokens if token.hole == "X"]) <= limit
    with pytest.raises(lq.ConstraintError, match=r"\[X\] is not complete within its limit of 20 tokens") as caught:
        source = "\"[X: {'type': 'string', 'minLength': 30}]\""
        lq.run_sync(source, model=rambling, session=session, max_tokens=20)
    assert caught.value.hint is not None and "max_tokens" in caught.value.hint
    number = lq.run_sync('"[X: int | None]"', model=lq.ScriptedModel("1" * 200), session=session, max_tokens=20)
    assert number["X"] == int("1" * 20) and number.endings["X"] == "bound"


def test_a_number_in_json_ends_where_the_text_goes_on_S18(session: lq.Session) -> None:
    result = run('"x [X: int | None]\\n- [Y: int | None]."', "x 12\n- 3.", session)
    assert (result["X"], result["Y"], result.prompt) == (12, 3, "x 12\n- 3.")


def test_no_token_of_json_passes_its_end_S16(session: lq.Session) -> None:
    model = lq.ScriptedModel("x [true]\n\n- 2", words=(b"]\n", b"]\n\n", b"e]\n\n", b"e]", b"true"))
    result = lq.run_sync('"x [X: list[bool]]\\n\\n- [Y: int]" where len(X) == 1', model=model, session=session)
    assert (result["X"], result["Y"], result.prompt) == ([True], 2, "x [true]\n\n- 2")
    assert not any(b"]\n" in token.data for token in result.tokens if token.source == "model")


def test_text_before_a_typed_hole_is_healed_S10(session: lq.Session) -> None:
    model = lq.ScriptedModel('x: ["a"] "b"', words=(b' ["', b" [", b' "', b' "b', b': ["a', b"12", b" 12"))
    result = lq.run_sync('"x: [X: list[str]] [Y: str | None]"', model=model, session=session)
    assert (result["X"], result["Y"]) == (["a"], "b")
    assert b' ["' in {token.data for token in result.tokens} or b': ["a' in {token.data for token in result.tokens}


def test_special_token_text_in_a_type_is_plain_text_S12() -> None:
    session = lq.Session()
    special = "<|endoftext|>"
    source = f"\"Say [X: Literal['{special}', '<s>']] and [Y: {{'enum': ['{special}', '</s>']}}].\""
    result = lq.run_sync(source, session=session)
    assert result["X"] in (special, "<s>") and result["Y"] in (special, "</s>")
    vocabulary = session.model(None).tokenizer.vocabulary
    assert all(vocabulary[token.id] == token.data for token in result.tokens)


def test_what_the_demo_model_draws_is_always_of_the_type() -> None:
    source = """
from pydantic import BaseModel, Field

class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(gt=17, lt=100)
    pets: list[str] = Field(max_length=2)
    city: str | None = None

sample(temperature=1.2)
    "A person as JSON:\\n[WHO: Person]\\n[AGE: int] [DAY: date]"
where 3 < AGE < 1000 and DAY.year > 1999
"""
    query, session = lq.compile(source), lq.Session()
    for seed in range(8):
        try:
            result = query.run_sync(session=session, seed=seed, max_tokens=200, max_backtracks=500)
        except lq.ConstraintError as error:
            assert "is not complete within" in error.message
            continue
        who = result["WHO"]
        assert len(who.name) <= 12 and 17 < who.age < 100 and len(who.pets) <= 2
        assert 3 < result["AGE"] < 1000 and result["DAY"].year > 1999


# Law 1, events -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", ["argmax", "sample"])
@pytest.mark.parametrize("annotation", ["list[bool]", "dict[str, int | None]", "int", "{'enum': ['ab', 'ac', 1]}"])
def test_cache_on_off_and_warm_are_alike(annotation: str, decoder: str, session: lq.Session) -> None:
    model = lq.ScriptedModel("", certainty=0, seed=4, words=(b"true", b', "', b'": ', b"12", b"null", b" ["))
    query = lq.compile(
        f'"go [X: {annotation}]\\n" where len(str(X)) < 30' if "dict" not in annotation else f'"go [X: {annotation}]"'
    )
    runs = []
    for cache in (False, True, True, False):
        try:
            runs.append(
                query.run_sync(model=model, session=session, decoder=decoder, seed=2, cache=cache, max_tokens=300)
            )
        except lq.ConstraintError as error:
            runs.append(str(error))
    if isinstance(runs[0], str):
        assert len(set(runs)) == 1
        return
    assert len({run.prompt for run in runs}) == 1
    assert len({tuple((token.id, token.fate) for token in run.tokens) for run in runs}) == 1
    assert runs[2].usage.forward_passes == 0


def test_json_is_shown_as_it_comes_where_it_cannot_be_refused_S33(session: lq.Session) -> None:
    async def shown(source: str, script: str) -> list[str]:
        stream = lq.compile(source).stream(model=lq.ScriptedModel(script), session=session)
        return [event.text async for event in stream if isinstance(event, events.Text) and event.hole == "X"]

    assert len(asyncio.run(shown('"[X: list[int]]"', "[1, 2, 3]"))) > 3
    assert asyncio.run(shown('"[X: list[int]]" where X[0] == 1', "[1, 2, 3]")) == ["[1, 2, 3]"]
    assert asyncio.run(shown(VALIDATED + '"[X: Even]"', '{"number": 2}')) == ['{"number": 2}']


def test_the_event_shows_the_text_and_the_result_the_value(session: lq.Session) -> None:
    async def closed() -> list[events.HoleClosed]:
        stream = lq.compile(PERSON + '"[X: Person]"').stream(model=lq.ScriptedModel(BOB), session=session)
        return [event async for event in stream if isinstance(event, events.HoleClosed)]

    assert asyncio.run(closed())[0].value == BOB
    assert json.loads(BOB) == run(PERSON + '"[X: Person]"', BOB, session)["X"].model_dump()


def test_a_function_that_wants_to_hear_partial_text_hears_the_value_at_the_end_only(session: lq.Session) -> None:
    source = """
heard = []
def small(number, final):
    heard.append(number)
    return number < 30 and final
"[X: int]" where small(X)
return heard
"""
    result = run(source, "12 ", session)
    assert all(isinstance(number, int) for number in result.value) and result["X"] < 30


def test_a_where_clause_offers_date_as_an_annotation_does() -> None:
    query = lq.compile('"[X: date]" where date(2024, 2, 28) < X')
    assert query.inputs == ()
    result = query.run_sync(model=lq.ScriptedModel("2024-03-01"))
    assert isinstance(result, lq.Result) and result.value is None and str(result.variables["X"]) == "2024-03-01"


def test_a_date_that_is_given_stays_an_input_in_a_where_clause() -> None:
    query = lq.compile('"Today is {date}: [X]" where date in X and len(X) < 12')
    assert query.inputs == ("date",)


@pytest.mark.parametrize(("says", "rejected"), [("7.25.", False), ("0.75.", True)])
def test_the_whole_part_of_an_annotated_float_guides_the_model(says: str, rejected: bool, session: lq.Session) -> None:
    source = 'from pydantic import Field\n"It is [X: Annotated[float, Field(gt=0, lt=.5)]]."\nreturn X'
    result = run(source, f"It is {says}", session)
    assert 0 < result.value < 0.5
    assert bool([token for token in result.tokens if token.fate == "rejected"]) >= rejected


@pytest.mark.parametrize(
    ("pattern", "script", "value"),
    [
        ("^[0-9]{3}$", "nothing like a number", r"[0-9]{3}"),
        ("b", "aaaa", r"(?s).*b.*"),
        ("^(cat|dog)s?$", "horses", r"(cat|dog)s?"),
    ],
)
def test_the_pattern_of_an_annotated_text_guides_the_model(
    pattern: str, script: str, value: str, session: lq.Session
) -> None:
    annotation = Annotated[str, pydantic.Field(pattern=pattern, max_length=12)]
    result = run('argmax(max_backtracks=0)\n"[X: T]"', script, session, T=annotation)
    assert re.fullmatch(value, result.variables["X"])


def test_an_end_of_a_pattern_is_the_end_of_the_text_as_pydantic_has_it(session: lq.Session) -> None:
    annotation = Annotated[str, pydantic.Field(pattern="^ab?$")]
    assert run('argmax(max_backtracks=0)\n"[X: T]"', "a\n", session, T=annotation).variables == {"X": "a"}


def test_a_pattern_that_cannot_guide_is_judged_by_pydantic(session: lq.Session) -> None:
    annotation = Annotated[str, pydantic.Field(pattern=r"\bno\b")]
    assert run('"[X: T]"', "well, no", session, T=annotation).variables == {"X": "well, no"}
    with pytest.raises(lq.ConstraintError, match="has no value that meets"):
        run('argmax(max_backtracks=1)\n"[X: T]"', "known", session, T=annotation)


@cases("engine/filling_types", "a key or a value that json has no word for guides", globals())
def test_a_key_or_a_value_that_json_has_no_word_for_guides(
    annotation: Any, script: str, value: object, session: lq.Session
) -> None:
    """No draw is refused: the model is let say nothing else."""
    result = run('argmax(max_backtracks=0)\n"[X: T]"', script, session, T=annotation)
    found = result.variables["X"]
    assert found == value if script != '{"one": "a"}' else all(isinstance(key, int) for key in found)


def test_keys_of_an_enum_are_the_only_ones(session: lq.Session) -> None:
    class Kind(enum.Enum):
        CAT = "cat"
        DOG = "dog"

    result = run('argmax(max_backtracks=0)\n"[X: T]"', '{"dog": 3}', session, T=dict[Kind, int])
    assert result.variables == {"X": {Kind.DOG: 3}}


def test_json_inside_json_is_refused_with_what_to_write(session: lq.Session) -> None:
    with pytest.raises(lq.ConstraintError, match="cannot be spelled as text") as caught:
        run('"[X: T]"', '"1"', session, T=pydantic.Json[int])
    assert caught.value.hint is not None and "without Json" in caught.value.hint


@pytest.mark.parametrize(
    ("annotation", "script"),
    [
        (list[float], "[97E0479]"),
        (list[float], f"[{'9' * 320}]"),
        (list[Any], "[1, 97E0479]"),
        ({"type": "array", "items": {"type": "number"}}, "[-97E0479]"),
    ],
)
def test_a_number_in_json_is_never_infinite(annotation: Any, script: str, session: lq.Session) -> None:
    with pytest.raises(lq.ConstraintError, match="too large for a float"):
        run('"[X: T]"', script, session, T=annotation)


def test_a_large_integer_in_json_is_no_float(session: lq.Session) -> None:
    assert run('"[X: list[int]]"', f"[{'9' * 320}]", session).variables == {"X": [int("9" * 320)]}


def test_an_optional_value_that_is_asked_to_be_none_is_none(session: lq.Session) -> None:
    result = run('"[X: Optional[int]]" where X is None', "7", session)
    assert result.variables == {"X": None}
