"""JSON holes: every escape of JSON may be written, means its character, and a key occurs once."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Annotated, Any, Literal

import pydantic
import pytest

import lmql_lite as lq
from tests.tables import cases


@dataclasses.dataclass
class Note:
    t: str


class Named(pydantic.BaseModel):
    name: str
    tags: list[str] = []


def written(text: str, annotation: Any, *, model: Any = None, **options: Any) -> Any:
    """Value of a typed hole, filled by a model that wants to write `text`."""
    model = model or lq.ScriptedModel(f"J: {text}\n")
    result = lq.run_sync('"J: [X: T]\\n"', {"T": annotation}, model=model, **options)
    return (result[0] if isinstance(result, list) else result).variables["X"]


RAW = {"type": "string"}


@cases("engine/json_escapes", "an escape that the model writes is its character", globals())
@pytest.mark.parametrize(
    "options", [{}, {"cache": False}, {"decoder": "beam", "n": 2}], ids=["plain", "uncached", "beams"]
)
def test_an_escape_that_the_model_writes_is_its_character(
    annotation: Any, text: str, value: Any, options: dict[str, Any]
) -> None:
    assert written(text, annotation, **options) == value


@pytest.mark.parametrize("text", [r'"a\ud83d"', r'"a\ude00"', r'"a\ud83d\ud83d"', r'"a\ud83d\n"', r'"\x41"', r'"\u12"'])
def test_half_a_character_is_never_written(text: str) -> None:
    assert written(text, RAW, max_tokens=60).encode()


@cases("engine/json_escapes", "a key does not occur twice", globals())
def test_a_key_does_not_occur_twice(annotation: Any, text: str) -> None:
    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), pairs
        return dict(pairs)

    model = lq.ScriptedModel(f"J: {text}\n")
    result = lq.run_sync('"J: [X: T]\\n"', {"T": annotation}, model=model, max_tokens=200)
    json.loads(result.prompt.removeprefix("J: "), object_pairs_hook=distinct)


NAMED = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", "/": "/", '"': '"', "\\": "\\"}
CHARACTERS = 'abz019 /"\\\b\f\n\r\t\0\x1f\x7f\x80éßΩ€’\u2028\ud7ff\ue000\uffff😀𝒳\U0010ffff'


def spelled(rng: random.Random, text: str) -> str:
    """A JSON string with random escapes."""
    found = ""
    for character in text:
        pair = character.encode("utf-16-be").hex()
        units = [pair[at : at + 4] for at in range(0, len(pair), 4)]
        ways = ["".join(f"\\u{rng.choice([unit, unit.upper()])}" for unit in units)]
        ways += [f"\\{NAMED[character]}"] if character in NAMED else []
        ways += [character] if character >= " " and character not in '"\\' else []
        found += rng.choice(ways)
    return f'"{found}"'


@pytest.mark.parametrize("seed", range(24))
def test_a_text_with_random_escapes_is_the_value_of_json_loads(seed: int) -> None:
    rng = random.Random(seed)
    parts = ["".join(rng.choices(CHARACTERS, k=rng.randint(0, 8))) for _ in range(4)]
    pairs = ", ".join(f"{spelled(rng, key)}: {spelled(rng, parts[2])}" for key in dict.fromkeys(parts[:2]))
    text = f"[{{{pairs}}}, {spelled(rng, parts[3])}]"
    length = {"type": "string", "minLength": len(parts[3]), "maxLength": len(parts[3])}
    words = ('"', '": "', "\\u", "\\ud", "u00", "00", '9"', "\\\\", "\\/", "0a", "de", "é")
    for annotation in (list[dict[str, str] | str], Any, {"type": "array", "prefixItems": [{"type": "object"}, length]}):
        model = lq.ScriptedModel(f"J: {text}\n", words=[word.encode() for word in words] if seed % 2 else ())
        assert written(text, annotation, model=model, max_tokens=400) == json.loads(text)


class Record(pydantic.BaseModel):
    text: Annotated[str, pydantic.Field(max_length=5)]
    more: dict[Annotated[str, pydantic.Field(pattern="^[aé/]+$")], Literal["é/", "è"]] = {}


@pytest.mark.parametrize(("annotation", "max_tokens"), [(str | None, 6), (list[str], 20), (Record, 50), (Record, 90)])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_random_model_writes_is_json_of_the_schema(seed: int, annotation: Any, max_tokens: int) -> None:
    words = ('"', '", "', "\\u", "\\ud8", "\\", "\\\\", "00", 'd"', "/", '": ', "é", "u0", "n")
    model = lq.ScriptedModel("", seed=seed, certainty=0.0, words=[word.encode() for word in words])
    result = lq.run_sync('"J: [X: T]"', {"T": annotation}, model=model, max_tokens=max_tokens)
    text = result.prompt.removeprefix("J: ")
    assert pydantic.TypeAdapter(annotation).validate_json(text) == result.variables["X"]


def test_a_limit_is_no_reason_for_another_character() -> None:
    text = r'"caf\u00e9 \ud83d\ude00 \n\/"'
    for limit in range(20, 46):
        value = written(text, RAW, max_tokens=limit)
        assert json.loads(text).startswith(value) or value.startswith("caf"), (limit, value)
        assert "\x0e" not in value and "\x19" not in value
