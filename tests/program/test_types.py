"""The types of holes: which texts spell a value, what text becomes, what cannot be a type."""

from __future__ import annotations

import ast
import dataclasses
import enum
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NewType

import pydantic
import pytest

import lmql_lite as lq
from lmql_lite.constraints.simplify import satisfies
from lmql_lite.errors import ConstraintError, QueryError, Span
from lmql_lite.lang.keywords import TYPES
from lmql_lite.program.bytecode import NotWritten
from lmql_lite.program.json_types import JsonType, closed
from lmql_lite.program.ops import Hole
from lmql_lite.program.types import NAMES, TextType, typed, written_type
from tests.tables import cases

SPAN = Span("test.lq", "[X: T]", 4, 5)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


class Person(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)
    friends: list[Person] = []


class Picky(pydantic.BaseModel):
    even: int

    @pydantic.field_validator("even")
    @classmethod
    def is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("this is odd")
        return value


class Pair(NamedTuple):
    one: int
    two: str


UserId = NewType("UserId", int)


@cases("program/types", "plain types are plain text", globals())
def test_plain_types_are_plain_text(annotation: Any, spelled: dict[str, Any]) -> None:
    spec = typed(annotation, "X", SPAN)
    assert isinstance(spec, TextType)
    for text, value in spelled.items():
        assert satisfies(spec.term, text.encode())
        assert spec.convert(text) == value and type(spec.convert(text)) is type(value)


@cases("program/types", "other texts are none of a type", globals())
def test_other_texts_are_none_of_a_type(annotation: Any, text: str) -> None:
    spec = typed(annotation, "X", SPAN)
    assert isinstance(spec, TextType) and not satisfies(spec.term, text.encode())


@cases("program/types", "all other types are json", globals())
def test_all_other_types_are_json(annotation: Any, text: str, value: Any) -> None:
    spec = typed(annotation, "X", SPAN)
    assert isinstance(spec, JsonType)
    assert spec.convert(text) == value and type(spec.convert(text)) is type(value)


@cases("program/types", "whether values that the model may say can be refused", globals())
def test_whether_values_that_the_model_may_say_can_be_refused(annotation: Any, judges: bool) -> None:
    assert typed(annotation, "X", SPAN).judges is judges


def test_a_value_that_is_refused_says_where_and_why() -> None:
    with pytest.raises(ValueError, match=r"^0\.even: Value error, this is odd$"):
        typed(list[Picky], "X", SPAN).convert('[{"even": 3}]')


def test_a_class_has_no_properties_but_its_own() -> None:
    schema = closed(pydantic.TypeAdapter(Person).json_schema())
    assert schema["$defs"]["Person"]["additionalProperties"] is False
    tricky = {"type": "object", "properties": {"properties": {"type": "object", "properties": {}}}}
    assert closed(tricky)["properties"]["properties"]["additionalProperties"] is False
    mapping = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert closed(mapping) == mapping


def lambda_type() -> Callable[[int], int]:
    return lambda number: number


@cases("program/types", "what is no type is refused with a sentence", globals())
def test_what_is_no_type_is_refused_with_a_sentence(annotation: Any) -> None:
    with pytest.raises(ConstraintError, match=r"the type of \[X\] cannot be spelled as text; this is ") as caught:
        typed(annotation, "X", SPAN)
    assert caught.value.span == SPAN and caught.value.hint
    if isinstance(annotation, list | tuple):
        assert "Literal" in caught.value.hint


@cases("program/types", "types without values or without a grammar", globals())
def test_types_without_values_or_without_a_grammar(annotation: Any, sentence: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        typed(annotation, "X", SPAN)
    assert sentence in caught.value.message or sentence == "[X]"
    assert caught.value.span == SPAN


# As it is written ----------------------------------------------------------------------------------------------------


def of(text: str, own: frozenset[str] = frozenset()) -> Any:
    return written_type(ast.parse(text, mode="eval").body, own)


@cases("program/types", "a type that is written out is known at once", globals())
def test_a_type_that_is_written_out_is_known_at_once(text: str, value: object) -> None:
    assert of(text) == value


@pytest.mark.parametrize(
    "text", ["Person", "models.Person", "list[Person]", "make()", "int[3]", "'a' | 3", "x[0]", "f'{a}'"]
)
def test_others_are_known_when_the_query_runs(text: str) -> None:
    with pytest.raises(NotWritten):
        of(text)


def test_a_name_of_the_query_is_its_own() -> None:
    assert set(NAMES) == set(TYPES)
    for name in ("int", "date", "datetime.date", "list[int]", "re.compile('a')"):
        with pytest.raises(NotWritten):
            of(name, frozenset({"int", "date", "datetime", "list", "re"}))


# In a query ----------------------------------------------------------------------------------------------------------


def hole(source: str) -> Hole:
    return next(op for op in lq.compile(source).program.parts if isinstance(op, Hole))


def test_the_compiler_knows_what_is_written_and_leaves_the_rest_to_the_run() -> None:
    known = hole('"[X: int]" where X < 5 and len(X) == 1')
    assert known.type is not None and known.type.spec is not None and not known.judges
    later = hole('"[X: T]" where X < 5')
    assert later.type is not None and later.type.spec is None
    assert lq.compile('"[X: T] [Y: Literal[1, 2]] [Z: date]"').inputs == ("T",)
    own = hole('date = int\n"[X: date]"')
    assert own.type is not None and own.type.spec is None and own.type.offered == ()


def test_which_conditions_on_a_typed_hole_guide_and_which_judge() -> None:
    assert not hole('"[X: int]" where 0 < X < 120 and X != 7 and X in [1, 2, 3] and "1" in X').judges
    assert len(hole('"[X: float]" where 0.5 < X <= 1').judges) == 1
    assert not hole('"[X: date]" where X.startswith("2026") and "-01" in X').judges
    assert len(hole('"[X: date]" where X != day').judges) == 1
    assert not hole("\"[X: Literal['a', 'b']]\" where X != 'a'").judges
    assert len(hole('"[X: list[int]]" where 1 < len(X) < 5').judges) == 1
    assert len(hole('"[X: int]" where X % 2 == 0').judges) == 1
    assert len(hole('"[X: list[int]]" where len(X) != 3 and X[0] > 2').judges) == 2
    assert len(hole('"[X: dict[str, int]]" where len(X) < 3').judges) == 1
    assert len(hole('"[X: datetime]" where X < then').judges) == 1


@cases("program/types", "mistakes are found when the query is compiled")
def test_mistakes_are_found_when_the_query_is_compiled(source: str, where: str, sentence: str) -> None:
    with pytest.raises(QueryError, match=sentence) as caught:
        lq.compile(source)
    assert caught.value.span is not None and caught.value.span.source == where
    assert caught.value.hint or "spelled" in caught.value.message


def test_a_plain_type_loads_nothing() -> None:
    code = """
import sys
from lmql_lite.lang.query import parse
from lmql_lite.lang.source import Source
from lmql_lite.program.compiler import compile
query = parse(Source("q.lq", '"[X: int] [Y: date] [Z: Literal[1, 2]]" where X < 5'))
compile(query)
heavy = {"pydantic", "llguidance", "numpy"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
