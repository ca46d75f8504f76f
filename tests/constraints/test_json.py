"""JSON by schema through llguidance: its masks against brute force, and each of its traps."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from lmql_lite.constraints.json import GrammarMatcher, Grammars, JsonPlace, Texts, way_to_end
from lmql_lite.constraints.json_schema import grammar, refuse_impossible
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.errors import ConstraintError, Span

SPAN = Span("test.lq", "[X: T]", 4, 5)
WORDS = (
    b'{"', b'": ', b'", "', b'"]', b'"}', b'"a', b' "', b"true", b"tr", b"\\u", b"\\ud8", b"e9", b"3d\\u", b'0"',
    b"a\\", b"\\/", b'/"', b"false", b"null", b", ", b"[1", b"12", b" 12", b"1, 2", b"END", b'END"', b"\n\n", b" the",
    "é".encode(), "😀".encode(), "😀".encode()[:2], b"<|end", b"|>", b": 1",
)  # fmt: skip
SPECIAL = "<|end|>"
TOKENS = (None, None, *(bytes([byte]) for byte in range(256)), *WORDS, b"true")
EOS = 1
VOCABULARY = Vocabulary(TOKENS, frozenset({EOS}))
GRAMMARS = Grammars(VOCABULARY)


def start(schema: Mapping[str, Any] | bool, following: bytes = b"") -> GrammarMatcher:
    return GRAMMARS.matcher(grammar(schema), following, "X", SPAN)


def allowed(matcher: GrammarMatcher, held: bytes = b"", left: int = 100) -> set[bytes | None]:
    """Bytes of the allowed tokens; None stands for end-of-text."""
    return {TOKENS[token] for token in np.flatnonzero(matcher.allowed(held, left)).tolist()}


def unescaped(matcher: GrammarMatcher, left: int = 100) -> set[bytes | None]:
    """Allowed tokens without a backslash."""
    return {token for token in allowed(matcher, left=left) if not token or b"\\" not in token}


def units(value: Any) -> list[list[bytes]]:
    """Each character of the JSON of a value, and in strings each escape for it."""
    found, inside = [], False
    for part in re.findall(r"\\u....|\\.|[^\\]", json.dumps(value, ensure_ascii=False)):
        inside = inside != (part == '"')
        ways = [part.encode()]
        if inside and part != '"':
            character = json.loads(f'"{part}"')
            pair = character.encode("utf-16-be").hex()
            ways.append("".join(f"\\u{pair[at : at + 4]}" for at in range(0, len(pair), 4)).encode())
            ways += [b"\\/"] if character == "/" else []
        found.append(ways)
    return found


def same(way: bytes, data: bytes) -> bool:
    """True if two beginnings of an escape differ at most in the case of their digits."""
    return way == data or (way[:2] == b"\\u" and way.lower() == data.lower() and b"U" not in data)


Place = tuple[int, bytes]
"""Index of a character of a value, and the bytes of it that are written."""


def after(spelled: list[list[bytes]], places: set[Place], data: bytes) -> set[Place]:
    """All places of a value where a text may be after more bytes of it."""
    for at in range(len(data)):
        begun = {(index, said + data[at : at + 1]) for index, said in places if index < len(spelled)}
        places = set()
        for index, said in begun:
            for way in spelled[index]:
                if same(way[: len(said)], said):
                    places.add((index + 1, b"") if len(way) == len(said) else (index, said))
    return places


def brute(values: list[Any], text: bytes, held: bytes) -> set[bytes | None]:
    """Tokens that continue a spelling of one of the values; after a whole value, all that continue none."""
    begun = [(each, after(each, {(0, b"")}, text)) for each in map(units, values)]
    begun = [(each, places) for each, places in begun if places]

    def goes_on(data: bytes) -> bool:
        return any(after(each, places, data) for each, places in begun)

    going_on = {byte for byte in range(256) if goes_on(bytes([byte]))}
    found: set[bytes | None] = {token for token in TOKENS if token and held.startswith(token)}
    for token in TOKENS:
        if token and token.startswith(held):
            rest = token[len(held) :]
            found |= {token} if not rest or (rest[0] in going_on and goes_on(rest)) else set()
    if not held and any((len(each), b"") in places for each, places in begun):
        found |= {None} | {token for token in TOKENS if token and token[0] not in going_on}
    return found


FINITE: list[tuple[Mapping[str, Any], list[Any]]] = [
    (
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        [[], *([a] for a in (True, False)), *([a, b] for a in (True, False) for b in (True, False))],
    ),
    ({"enum": ["a", "ab", "é😀", 1, 12, 120, None, True]}, ["a", "ab", "é😀", 1, 12, 120, None, True]),
    ({"type": "string", "pattern": "^[é😀/\n]$"}, ["é", "😀", "/", "\n"]),
    (
        {"type": "object", "patternProperties": {"^(é|a/?)$": {"const": 1}}, "additionalProperties": False},
        [dict.fromkeys(names, 1) for count in range(4) for names in itertools.permutations(["é", "a", "a/"], count)],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 9, "maximum": 12}, "the": {"const": "END"}},
            "required": ["a"],
            "additionalProperties": False,
        },
        [{"a": a, **rest} for a in range(9, 13) for rest in ({}, {"the": "END"})],
    ),
    ({"type": "integer", "minimum": 17, "maximum": 123}, list(range(17, 124))),
]


@pytest.mark.parametrize(("schema", "values"), FINITE, ids=["array", "enum", "pattern", "keys", "object", "integer"])
def test_masks_are_those_of_brute_force_with_and_without_held_text(
    schema: Mapping[str, Any], values: list[Any]
) -> None:
    rng = random.Random(7)
    for _ in range(40):
        matcher, held = start(schema), rng.choice([b"", b"", b" ", b"\n", b'{"', b"1"])
        while matcher.ending is None:
            found = allowed(matcher, held)
            assert found == brute(values, matcher.text, held), (matcher.text, held)
            token = rng.choice(sorted(token for token in found if token) or [b""])
            if not token or len(token) <= len(held):
                if not token:
                    break
                held = held[len(token) :]
                continue
            matcher, held = matcher.advance(token[len(held) :]), b""
        if matcher.ending in ("forced", "end-of-text"):
            assert json.loads(matcher.value) in values


def test_every_value_as_json_dumps_spells_it_is_accepted() -> None:
    schema = {"type": "object", "additionalProperties": {"type": ["string", "number", "null", "boolean", "array"]}}
    rng = random.Random(3)
    for _ in range(50):
        value = {
            "".join(rng.choices('ab"\\é😀\n', k=rng.randint(0, 4))): rng.choice(
                [1, -2.5, "x\t", None, True, [1, "a"], []]
            )
            for _ in range(rng.randint(0, 3))
        }
        text = json.dumps(value, ensure_ascii=False).encode()
        assert start(schema).longest_valid(text) == len(text)
        assert start(schema).advance(text).ending == "forced"


def test_other_white_space_is_not_accepted() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    for text in (b"[1,2]", b"[ 1]", b"[1, 2 ]", b" [1]", b"[1,  2]"):
        assert start(schema).longest_valid(text) < len(text)


def test_a_place_is_a_value_and_can_be_left_in_two_directions() -> None:
    matcher = start({"enum": ["ab", "ac"]}).advance(b'"a')
    one, other = matcher.advance(b'b"'), matcher.advance(b'c"')
    assert (one.value, other.value, matcher.value) == (b'"ab"', b'"ac"', b'"a')
    assert matcher.ending is None and one.ending == other.ending == "forced"
    with pytest.raises(ValueError, match="not allowed"):
        matcher.advance(b"x")
    assert matcher.advance(b'c"').value == b'"ac"'


def test_how_bytes_are_fed_makes_no_difference() -> None:
    schema, text = {"type": "array", "items": {"type": "string"}}, '["é", "😀 the"'.encode()
    whole, bytewise = start(schema).advance(text), start(schema)
    for byte in text:
        bytewise = bytewise.advance(bytes([byte]))
    assert allowed(whole) == allowed(bytewise)


# The traps of llguidance ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"enum": []},
        {"type": "array", "minItems": 3, "maxItems": 2},
        {"type": "string", "pattern": "^abc$", "maxLength": 2},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        False,
    ],
)
def test_trap_a_schema_that_nothing_meets_is_refused_before_it_is_asked_for_a_mask(schema: Any) -> None:
    with pytest.raises(ConstraintError, match=r"^test.lq:1:5: nothing can fill \[X\]: no value has this type, \w"):
        start(schema)
    with pytest.raises(ConstraintError, match="nothing can fill"):
        refuse_impossible(grammar(schema), "X", SPAN)


def test_trap_an_error_masks_to_end_of_text_and_is_raised_instead() -> None:
    texts = Texts(VOCABULARY)
    limits = LLParserLimits(step_max_items=1)
    rules = grammar({"type": "array"})
    broken = LLMatcher(LLTokenizer(TokenizerWrapper(texts)), rules, log_level=0, limits=limits)
    matcher = start({"type": "array"})
    matcher = replace(matcher, place=matcher.place._replace(parser=broken))
    broken.consume_tokens(texts(b"[[1, "))
    with pytest.raises(ConstraintError, match=r"the type of \[X\] cannot guide a model") as caught:
        matcher.allowed(b"", 10)
    assert caught.value.span == SPAN
    with pytest.raises(ConstraintError):  # it stays in error
        matcher.allowed(b"", 10)


def test_trap_the_spelling_of_a_special_token_is_plain_text_S12() -> None:
    matcher = start({"enum": [SPECIAL, "<s>"]}).advance(b'"')
    assert unescaped(matcher) == {b"<", b"<|end"}
    matcher = matcher.advance(b"<|end")
    assert matcher.forced() == b'|>"'
    assert matcher.advance(b'|>"').ending == "forced"


def test_trap_a_lexeme_does_not_swallow_the_literal_behind_it() -> None:
    matcher = start({"type": "string", "pattern": "END$"}).advance(b'"the END')
    assert b'"' in allowed(matcher) and b" the" in allowed(matcher)
    assert matcher.advance(b'"').ending == "forced"
    assert b'"' not in allowed(matcher.advance(b" the"))
    assert b'END"' in allowed(matcher.advance(b" the"))


def test_trap_an_end_that_only_the_mask_shows_is_seen_at_once() -> None:
    assert start({"enum": [1, 12]}).advance(b"12").ending == "forced"
    assert start({"enum": [1, 12]}).advance(b"1").ending is None
    assert start({"type": "integer"}).advance(b"0").ending == "forced"
    assert start({"type": "null"}).advance(b"null").ending == "forced"
    assert start({"type": "object"}).advance(b'{"a": 1}').ending == "forced"


def test_trap_forced_bytes_are_reported_and_narrow_no_mask() -> None:
    matcher = start({"const": "END"})
    assert matcher.forced() == b'"END"'
    assert unescaped(matcher.advance(b'"')) == {b"E", b"END", b'END"'}
    assert start({"enum": ["a", "b"]}).forced() == b'"'
    assert start({"type": "integer"}).advance(b"1").forced() == b""


def test_trap_a_limit_never_cuts_a_value() -> None:
    matcher = start({"type": "array", "items": {"type": "string"}}).advance(b'["a')
    assert allowed(matcher, left=1) == {b'"]'}
    assert b'"' in allowed(matcher, left=2)
    assert not matcher.may_end
    assert allowed(matcher.advance(b'", "a'), left=1) == {b'"]'}
    nested = start({"type": "array", "items": {"type": "array", "items": {"type": "string"}}}).advance(b'[["a')
    assert allowed(nested, left=1) == set()


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"not": {"type": "string"}}, 'its JSON Schema has "not", which no grammar can say'),
        ({"type": "array", "uniqueItems": True}, 'its JSON Schema has "uniqueItems", which no grammar can say'),
        ({"type": "string", "format": "path"}, "its JSON Schema has the format 'path', which is not known"),
        ({"type": "string", "pattern": r"\ba"}, "it has a pattern that no grammar can follow"),
        ({"oneOf": [{"type": "string"}, {"minLength": 1}]}, "its JSON Schema has oneOf, which no grammar can say"),
        ({"type": "strin"}, "Invalid type: strin"),
        ({"$ref": "#/$defs/X"}, "its JSON Schema has no '/$defs/X'"),
    ],
)
def test_what_llguidance_cannot_follow_is_refused_with_its_reason(schema: Any, reason: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        start(schema)
    assert caught.value.message == f"the type of [X] cannot guide a model: {reason}"
    assert caught.value.span == SPAN and caught.value.hint


# Ends ----------------------------------------------------------------------------------------------------------------


def test_a_number_ends_where_the_model_says_what_no_number_goes_on_with_S18() -> None:
    matcher = start({"type": "integer"}).advance(b"12")
    assert {None, b"3", b"\n\n", b" the"} <= allowed(matcher)
    ended = matcher.advance(b"\n\n")
    assert (ended.ending, ended.value, ended.text) == ("end-of-text", b"12", b"12\n\n")
    known = start({"type": "integer"}, following=b"\nthe").advance(b"12")
    assert {None, b"3", b"\n"} <= allowed(known)
    assert not {b"\n\n", b" the"} & allowed(known)


def test_no_token_passes_the_end_of_a_value_S16() -> None:
    matcher = start({"type": "array", "items": {"type": "integer"}}).advance(b"[1")
    assert b"]" in allowed(matcher)
    assert all(start({"type": "array"}).longest_valid(b"[1]" + extra) == 3 for extra in (b"\n", b" ", b"]"))


def test_characters_are_said_byte_by_byte_where_the_model_does() -> None:
    emoji = "😀".encode()
    matcher = start({"type": "string"}).advance(b'"' + emoji[:2])
    assert b'"' not in allowed(matcher)
    assert {emoji[2:3]} <= allowed(matcher)
    assert matcher.advance(emoji[2:] + b'"').value.decode() == '"😀"'


# Near a limit --------------------------------------------------------------------------------------------------------

NESTED: Mapping[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {
            "a": {"type": "string", "minLength": 2},
            "b": {"enum": ["the", None, 12]},
            "c": {"type": "number"},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}


def test_a_way_to_the_end_is_found_from_everywhere() -> None:
    rng = random.Random(11)
    for _ in range(20):
        matcher = start(NESTED)
        while matcher.ending is None and len(matcher.text) < 60:
            way = way_to_end(matcher.place)
            assert way is not None
            assert json.loads((matcher.text + way).decode()) and matcher.advance(way).may_end
            matcher = matcher.advance(rng.choice(sorted(token for token in unescaped(matcher) if token)))


def test_near_a_limit_the_way_behind_each_number_was_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand tokens of digits: the rest of the value is the same after each."""
    numbers = tuple(str(number).encode() for number in range(10, 1000))
    vocabulary = Vocabulary((*TOKENS, *numbers), frozenset({EOS}))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    rules = grammar({**schema, "required": ["a", "b"], "additionalProperties": False})
    matcher = Grammars(vocabulary).matcher(rules, b"", "X", Span("test.lq", "[X]", 0, 3)).advance(b'{"a": 1')
    searches: list[JsonPlace] = []

    def counted(place: JsonPlace) -> bytes | None:
        searches.append(place)
        return way_to_end(place)

    monkeypatch.setattr("lmql_lite.constraints.json.way_to_end", counted)
    masks = [matcher.allowed(b"", left) for left in (30, 6, 2)]
    assert len(searches) < 60
    assert masks[0][len(TOKENS) :].all() and not masks[2][len(TOKENS) :].any()


@pytest.mark.parametrize("limit", [24, 40, 70])
def test_whatever_is_chosen_the_value_is_complete_within_the_limit_S13(limit: int) -> None:
    rng = random.Random(limit)
    for _ in range(5):
        matcher, left = start(NESTED), limit
        while matcher.ending is None:
            found = sorted(token for token in allowed(matcher, left=left) if token)
            assert found and left > 0, matcher.text
            matcher, left = matcher.advance(rng.choice(found)), left - 1
        assert json.loads(matcher.value.decode())
