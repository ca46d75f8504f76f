"""JSON Schemas narrowed to the values whose places meet a condition (S21).

A narrowed schema allows every value of the type that meets the condition; it may allow others, which Python rejects.
So a place whose Python value may differ from its JSON, such as a field that a validator changes, is left as it is.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from fractions import Fraction
from numbers import Rational
from typing import Any

from lmql_lite.constraints import formats
from lmql_lite.constraints.json_schema import Way, schema_pattern
from lmql_lite.constraints.terms import And, Constant, Inside, Or, PlaceStep, PlaceTest, Term
from lmql_lite.errors import did_you_mean
from lmql_lite.program.symbols import MAX_LISTED, OPERATORS, ORDER, WITHOUT_ZONE, NumberRange, compared
from lmql_lite.program.where import MAX_POSITIONS

Schema = dict[str, Any]
Path = tuple[PlaceStep, ...]
Tests = tuple[PlaceTest, ...]
Keys = tuple[str, str, str, str]
"""Keys of a schema for bounds: least, exclusive least, greatest, exclusive greatest."""
MARK = "x-core"
"""Key of a schema under which the numbers of its core schemas are listed, innermost first."""
MAX_SCHEMA = 100_000
"""Most characters of a narrowed schema. A condition that would make it longer narrows nothing."""
MAX_RUNS = 100
"""Most intervals into which a condition cuts the numbers of a place."""
RELATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    **OPERATORS,
    "contains": lambda value, item: item in value,
    "startswith": lambda value, phrase: value.startswith(phrase),
    "endswith": lambda value, phrase: value.endswith(phrase),
    "true": lambda value, _: value,
}
MAX_EXACT = 2**53
"""Greatest bound that a grammar's floats hold exactly."""
MAX_FLOAT = 10**308
BOUNDS: Keys = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
SIZES: Mapping[Any, Keys] = {
    "array": ("minItems", "", "maxItems", ""),
    "string": ("minLength", "", "maxLength", ""),
    "object": ("minProperties", "", "maxProperties", ""),
}
"""Keys of the bounds of a length, by the type of a schema."""
SPECIAL = frozenset("\\.^$*+?{}[]|()")
"""Characters that mean something else in a regular expression."""
RECORDS = ("model-fields", "dataclass-args", "typed-dict")
LISTS = ("list", "tuple", "named-tuple")
SETS = ("set", "frozenset")
THROUGH = (
    *("default", "nullable", "union", "tagged-union", "definitions", "definition-ref", "model", "dataclass"),
    *("model-field", "dataclass-field", "typed-dict-field", "named-tuple-field"),
)
"""Core schemas that say nothing about the value, or wrap one that does."""
PLAIN = frozenset(
    ("none", "bool", "int", "float", "str", "literal", "enum", "dict", "date", "datetime", "time", "decimal")
    + (RECORDS + LISTS + SETS + THROUGH)
)
"""Core schemas whose values can be told from their JSON. All others may change the value."""
CHANGING = ("strip_whitespace", "to_lower", "to_upper", "str_strip_whitespace", "str_to_lower", "str_to_upper")
"""Settings of texts that change them."""


def narrowed(root: Schema, cores: Sequence[Any] | None, term: Term, hints: list[str]) -> Schema | None:
    """The schema of the values that may meet the term; None if there are none. `hints` gets what to write instead of
    places that no value has.

    `cores` are the core schemas that its marks number (`json_types.generator_of`), None for a JSON Schema without a
    Python type, whose values are those of `json.loads`.
    """
    if cores is None and any(not str(each).startswith(("#/$defs/", "#/definitions/")) for each in _references(root)):
        return root
    whole = {
        key: value for key, value in root.items() if key in ("$defs", "definitions", "x-guidance", "$schema", "$id")
    }
    node = {key: value for key, value in root.items() if key not in whole}
    found = Narrower(root, cores, hints).meeting(node, term)
    return None if found is None else unmarked({**found, **whole}) if found is not node else unmarked(root)


def unmarked(schema: Any) -> Any:
    """The schema without its marks."""
    if isinstance(schema, list):
        return [unmarked(each) for each in schema]
    if isinstance(schema, dict):
        return {key: unmarked(value) for key, value in schema.items() if key != MARK}
    return schema


def _references(schema: Any) -> Iterator[Any]:
    if isinstance(schema, list):
        for each in schema:
            yield from _references(each)
    elif isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"]
        for each in schema.values():
            yield from _references(each)


def holds(value: Any, path: Path, tests: Tests) -> bool:
    """True if the value has such a place, and Python finds one of the tests, if any, true for it."""
    try:
        if not path:
            return not tests or any(_holds(test, value) for test in tests)
        (kind, key, default), *rest = path
        steps = tuple(rest)
        match kind:
            case "attribute":
                return holds(getattr(value, str(key)), steps, tests)
            case "item":
                return holds(value[key], steps, tests)
            case "get":
                return holds(value.get(key, default), steps, tests)
            case "each":
                return all(holds(each, steps, tests) for each in value)
            case "some":
                return any(holds(each, steps, tests) for each in value)
            case "values":
                return holds(list(value.values()), steps, tests)
    except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError):
        return False


def _holds(test: PlaceTest, value: Any) -> bool:
    relation = RELATIONS.get(test.relation)
    try:
        return relation is None or bool(relation(len(value) if test.of_length else value, test.value)) is test.holds
    except (TypeError, AttributeError, ValueError, ArithmeticError):
        return False


@dataclass(frozen=True, slots=True)
class Narrower:
    """Narrows the nodes of one schema. Every method returns the node itself where nothing is known, and None where no
    value of the node meets the condition.

    Nodes are never changed: a definition that is used in two places is copied into the place that is narrowed.
    """

    root: Schema
    cores: Sequence[Any] | None
    hints: list[str]

    def meeting(self, node: Any, term: Term) -> Any:
        """The node narrowed by a term about places inside its value."""
        match term:
            case Constant(holds=False):
                return None
            case Inside(path, tests):
                return self.at(node, path, tests)
            case And(terms):
                # lengths first: an item is looked for in a list whose greatest length is known
                for part in sorted(terms, key=_is_of_length, reverse=True):
                    found = self.meeting(node, part)
                    if found is None:
                        return None
                    if found is node or len(json.dumps(found, default=str)) <= MAX_SCHEMA:
                        node = found
                return node
            case Or(terms):
                places = [part for part in terms if isinstance(part, Inside)]
                if len(places) == len(terms) and len({part.path for part in places}) == 1:
                    return self.at(node, places[0].path, tuple(test for part in places for test in part.tests))
                return self._either(node, [self.meeting(node, part) for part in terms])
        return node

    def at(self, node: Any, path: Path, tests: Tests, seen: frozenset[str] = frozenset()) -> Any:
        """The node with its place at `path` narrowed. `seen` are the references that led here."""
        if not isinstance(node, dict) or not (path or tests):
            return node
        if self.cores is None and isinstance(node.get("type"), list) and "anyOf" not in node:
            arms = [{**node, "type": each} for each in node["type"]]
            found = self._arms({"anyOf": arms}, path, tests, seen, is_decimal=False)
            return found if found is None or found["anyOf"] is not arms else node
        if "$ref" in node:
            reference, target = str(node["$ref"]), self._resolved(node)
            if target is None or reference in seen:
                return node
            found = self.at(target, path, tests, seen | {reference})
            return node if found is target else found
        cores = self._cores(node)
        if cores is None:
            return node
        kinds = [core["type"] for core in cores]
        if "anyOf" in node:
            return self._arms(node, path, tests, seen, is_decimal="decimal" in kinds)
        if not path:
            return self._either(node, [self._tested(node, cores, test) for test in tests])
        return self._inside(node, cores, path, tests)

    def _resolved(self, node: Schema) -> Schema | None:
        """The node in place of its reference."""
        others = node.keys() - {"$ref", MARK, "title", "description", "default", "examples", "deprecated"}
        target: Any = self.root
        for key in node["$ref"].removeprefix("#/").split("/"):
            target = target.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
        if others or not isinstance(target, dict):
            return None
        return {**target, MARK: [*target.get(MARK, ()), *node.get(MARK, ())]}

    def _cores(self, node: Schema) -> list[Any] | None:
        """The core schemas of a node, innermost first; None if its value may differ from its JSON."""
        if self.cores is None or node.get("type") == "null":
            return []
        if MARK not in node:
            return None
        found = [self.cores[number] for number in node[MARK]]
        return found if all(map(_is_plain, found)) else None

    def _either(self, node: Any, arms: list[Any]) -> Any:
        if any(arm is node for arm in arms):
            return node
        left = [arm for arm in arms if arm is not None]
        if len(left) < 2:
            return left[0] if left else None
        return {"anyOf": left, MARK: []}

    def _arms(self, node: Schema, path: Path, tests: Tests, seen: frozenset[str], *, is_decimal: bool) -> Any:
        before = node["anyOf"]
        if is_decimal:  # a number, or a text for numbers of more digits
            arms = [
                self._either(arm, [_of_number(arm, test, BOUNDS, is_whole=False) for test in tests])
                if arm.get("type") == "number" and not path
                else arm
                for arm in before
            ]
        else:
            arms = [self.at(arm, path, tests, seen) for arm in before]
        left = [arm for arm in arms if arm is not None]
        if len(left) == len(before) and all(map(operator.is_, left, before)):
            return node
        return {**node, "anyOf": left} if left else None

    # A step of the path ---------------------------------------------------------------------------------------------

    def _inside(self, node: Schema, cores: list[Any], path: Path, tests: Tests) -> Any:
        (kind, key, default), *rest = path
        steps, kinds, shape = tuple(rest), {core["type"] for core in cores}, node.get("type")
        if shape == "null":
            return node if kind == "attribute" and hasattr(None, str(key)) else None
        if shape == "object":
            if kind == "values" and (self.cores is None or "dict" in kinds):
                return self._values(node, steps, tests)
            if not isinstance(key, str) or kind not in ("attribute", "item", "get"):
                return node
            is_item = kind in ("item", "get")
            if self.cores is None or ("dict" in kinds and _has_text_keys(cores)):
                if not is_item:
                    return node if hasattr(dict, key) else self._lacking(f'a dict has items: write ["{key}"]')
                may_lack = kind == "get" and holds(default, steps, tests)
                return self._property(node, key, steps, tests, may_lack=may_lack)
            record = next((core for core in cores if core["type"] in RECORDS), None)
            if record is None:
                return node
            if (record["type"] == "typed-dict") is not is_item:
                if not is_item:
                    return node if hasattr(dict, key) else self._lacking(f'a dict has items: write ["{key}"]')
                made = [core["cls"] for core in cores if core["type"] in ("model", "dataclass")]
                has_items = any(hasattr(cls, "__getitem__") for cls in made)
                return node if has_items else self._lacking(f"a record has attributes: write .{key}")
            if _surely_lacks(cores, record, key):
                if kind == "get" and holds(default, steps, tests):
                    return node
                close = did_you_mean(key, _names(record))
                return self._lacking(close or f"its fields are {', '.join(_names(record))}")
            field = _field(record, key)
            name = field.get("validation_alias", key) if field else None
            if field is None or not isinstance(name, str) or name not in node.get("properties", {}):
                return node
            may_lack = _may_lack(field, steps, tests) or (kind == "get" and holds(default, steps, tests))
            return self._property(node, name, steps, tests, may_lack=may_lack)
        if shape == "array" and (self.cores is None or kinds & {*LISTS, *SETS}):
            if kind == "each":
                return self._each(node, steps, tests)
            if kind == "some":
                return self._some(node, steps, tests)
            if kind == "attribute":
                names = [field["name"] for core in cores if core["type"] == "named-tuple" for field in core["fields"]]
                return self._position(node, names.index(key), steps, tests) if key in names else node
            if kind == "item" and type(key) is int and not kinds & {*SETS}:
                return self._position(node, key, steps, tests)
        return node

    def _lacking(self, hint: str) -> None:
        self.hints.append(hint)

    def _property(self, node: Schema, name: str, path: Path, tests: Tests, *, may_lack: bool) -> Any:
        """The object with one property narrowed. Unless it `may_lack` the property, it is required."""
        properties, required = node.get("properties", {}), node.get("required", [])
        others = node.get("additionalProperties", True)
        if name not in properties and (others is False or "patternProperties" in node):
            return node
        before = properties.get(name, others)
        after = self.at(before, path, tests)
        is_required = name in required
        if after is None:
            return None if is_required or not may_lack else {**node, "properties": {**properties, name: False}}
        if after is before and (is_required or may_lack):
            return node
        required = required if is_required or may_lack else [*required, name]
        return {**node, "properties": {**properties, name: after}, **({"required": required} if required else {})}

    def _values(self, node: Schema, path: Path, tests: Tests) -> Any:
        """The object with all its values narrowed: those of `properties`, and the others."""
        if not path or path[0].kind != "each" or "patternProperties" in node:
            return node
        properties = {}
        for name, before in node.get("properties", {}).items():
            after = self.at(before, path[1:], tests)
            if after is None and name in node.get("required", ()):
                return None
            properties[name] = False if after is None else after
        others = self.at(node.get("additionalProperties", True), path[1:], tests)
        found = {**node, "additionalProperties": False if others is None else others}
        return found | ({"properties": properties} if properties else {})

    def _each(self, node: Schema, path: Path, tests: Tests) -> Any:
        first = node.get("prefixItems", [])
        after = [self.at(item, path, tests) for item in first]
        others = self.at(node.get("items", True), path, tests)
        most = [node["maxItems"]] if "maxItems" in node else []
        if None in after:
            most.append(after.index(None))
            after = after[: after.index(None)]
        if others is None:
            most.append(len(after))
            others = False
        if most and min(most) < node.get("minItems", 0):
            return None
        if others is node.get("items", True) and len(after) == len(first) and all(map(operator.is_, after, first)):
            return node
        found = {key: value for key, value in node.items() if key != "prefixItems"} | {"items": others}
        return found | ({"prefixItems": after} if after else {}) | ({"maxItems": min(most)} if most else {})

    def _some(self, node: Schema, path: Path, tests: Tests) -> Any:
        """The list with at least one item that meets the tests, which guides if its length is bounded."""
        most = node.get("maxItems")
        if most == 0:
            return None
        if most is None or most > MAX_POSITIONS:
            items = [*node.get("prefixItems", []), node.get("items", True)]
            is_possible = any(self.at(item, path, tests) is not None for item in items)
            found = {**node, "minItems": max(node.get("minItems", 0), 1)} if is_possible else None
            return node if found == node else found
        return self._either(node, [self._position(node, at, path, tests) for at in range(most)])

    def _position(self, node: Schema, at: int, path: Path, tests: Tests) -> Any:
        """The list with one item narrowed, which must be there."""
        least, most = node.get("minItems", 0), node.get("maxItems")
        if at < 0:
            if least != most or -at > most:
                return None if most is not None and -at > most else {**node, "minItems": max(least, -at)}
            at += most
        if most is not None and at >= most:
            return None
        first, others = node.get("prefixItems", []), node.get("items", True)
        if at > MAX_POSITIONS + len(first):
            return node
        items = [*first, *[others] * (at + 1 - len(first))]
        after = self.at(items[at], path, tests)
        if after is None:
            return None
        if after is items[at] and least > at:
            return node
        return {**node, "prefixItems": [*items[:at], after, *items[at + 1 :]], "minItems": max(least, at + 1)}

    # The place ------------------------------------------------------------------------------------------------------

    def _tested(self, node: Schema, cores: list[Any], test: PlaceTest) -> Any:
        listed = _listed(node, cores)
        if listed is not None:
            left = [spelled for spelled, value in listed if _holds(test, value)]
            if len(left) == len(listed):
                return node
            return {**{key: node[key] for key in node if key != "const"}, "enum": left} if left else None
        kinds, shape = {core["type"] for core in cores}, node.get("type")

        def may_be(*names: str) -> bool:
            return self.cores is None or not kinds.isdisjoint(names)

        if test.of_length or (test.relation == "true" and shape in SIZES):
            known = shape in SIZES and may_be("str", "dict", *LISTS, *SETS)
            return (
                _of_number(node, test, SIZES[shape], is_whole=True, is_set=not kinds.isdisjoint(SETS))
                if known
                else node
            )
        match shape:
            case "string" | "array" | "object" | "integer" | "number" if test.relation == "is":
                return None if test.holds else node
            case "integer" if may_be("int"):
                return _of_number(node, test, BOUNDS, is_whole=True)
            case "number" if may_be("float"):
                return _of_number(node, test, BOUNDS, is_whole=False)
            case "string" if kinds & {"date"}:
                return _of_date(node, test)
            case "string" if kinds & {"datetime", "time"}:
                return _of_moment(node, test, datetime if "datetime" in kinds else time)
            case "string" if may_be("str"):
                return _of_text(node, test)
            case "array" if test.relation == "contains" and may_be(*LISTS, *SETS):
                item = PlaceTest("==", test.value, test.holds)
                return self._some(node, (), (item,)) if test.holds else self._each(node, (), (item,))
            case "object" if test.relation == "contains" and test.holds and isinstance(test.value, str):
                if self.cores is None or ("dict" in kinds and _has_text_keys(cores)):
                    return self._property(node, test.value, (), (), may_lack=False)
        return node


# Core schemas of pydantic --------------------------------------------------------------------------------------------


def _is_plain(core: Any) -> bool:
    """True if the value is what its JSON says: no validator, no `__post_init__` and no setting of texts changes it."""
    settings = {**core, **core.get("config", {})}
    if core["type"] not in PLAIN or any(settings.get(name) for name in CHANGING):
        return False
    if any(core.get(name) for name in ("post_init", "custom_init", "root_model")):
        return False
    is_made = core["type"] in ("model", "dataclass")
    return not is_made or core["cls"].__getattribute__ is object.__getattribute__


def _surely_lacks(cores: Iterable[Any], record: Any, name: str) -> bool:
    """True if no value of a record has this attribute or key."""
    settings = [(core.get("extra_behavior"), core.get("config", {}).get("extra_fields_behavior")) for core in cores]
    if name in _names(record) or any("allow" in each for each in settings):
        return False
    made = [core["cls"] for core in cores if core["type"] in ("model", "dataclass")]
    return all(not hasattr(cls, name) and cls.__dict__.get("__getattr__") is None for cls in made)


def _names(record: Any) -> list[str]:
    fields = record["fields"]
    return [field["name"] for field in fields] if record["type"] == "dataclass-args" else list(fields)


def _field(record: Any, name: object) -> Any:
    """The field of a record with this name in Python; None if there is none, or if its JSON has no single name."""
    fields = record["fields"]
    if record["type"] == "dataclass-args":
        fields = {field["name"]: field for field in fields if field.get("init", True)}
    field = fields.get(name)
    return field if field and isinstance(field.get("validation_alias", name), str) else None


def _may_lack(field: Any, path: Path, tests: Tests) -> bool:
    """True if an object without the field may meet the tests: by its default, or by one that is made at run time."""
    core = field["schema"]
    if field["type"] == "typed-dict-field" and core["type"] != "default":
        return False  # the key is then missing
    if core["type"] != "default":
        return True
    return holds(core["default"], path, tests) if "default" in core else True


def _has_text_keys(cores: Iterable[Any]) -> bool:
    keys = next(core for core in cores if core["type"] == "dict").get("keys_schema", {"type": "any"})
    return keys["type"] in ("str", "any") and _is_plain({**keys, "type": "str"})


def _listed(node: Schema, cores: Sequence[Any]) -> list[tuple[Any, Any]] | None:
    """All values of a node as pairs of JSON and value; None if they are not listed."""
    kinds = {core["type"]: core for core in cores}
    shape = node.get("type")
    allowed = node.get("enum", [node["const"]] if "const" in node else None)
    if "enum" in kinds:
        pairs = [(member.value, member) for member in kinds["enum"]["members"]]
    elif "literal" in kinds:
        pairs = [(getattr(value, "value", value), value) for value in kinds["literal"]["expected"]]
    elif shape == "null":
        return [(None, None)]
    elif shape == "boolean":
        pairs = [(False, False), (True, True)]
    elif allowed is not None and ("float" in kinds or not cores):
        return [(each, float(each) if "float" in kinds else each) for each in allowed]
    elif allowed is not None and kinds.keys() & {"int", "str"}:
        return [(each, each) for each in allowed]
    else:
        return None
    if allowed is None:
        return pairs if shape == "boolean" else None
    spelled = {(type(each), each) for each in allowed if isinstance(each, str | int | float | None)}
    return [pair for pair in pairs if (type(pair[0]), pair[0]) in spelled]


# Numbers -------------------------------------------------------------------------------------------------------------


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Rational | Decimal)


def _intervals(test: PlaceTest) -> list[NumberRange] | None:
    """The numbers that meet a test; None if that is not known, or if there are too many intervals."""
    value: Any = test.value
    match test.relation:
        case "<" | "<=" | ">" | ">=":
            return compared(test.relation, value) if _is_number(value) else []
        case "true":
            among, holds = (0,), not test.holds
        case "==" | "in":
            among, holds = value if test.relation == "in" else (value,), test.holds
        case "is" | "match" | "fullmatch" | "search":
            return None
        case _:
            return []
    if holds and isinstance(among, range) and (abs(among.step) == 1 or len(among) > MAX_LISTED):
        return [NumberRange(min(among), max(among))] if among else []
    if not holds and len(among) > MAX_RUNS:
        return None
    points = sorted({Fraction(each) for each in among if _is_number(each) and math.isfinite(each)})
    if holds:
        return [NumberRange(point, point) for point in points]
    return [NumberRange(low, high, True, True) for low, high in zip([None, *points], [*points, None], strict=True)]


def _of_number(node: Schema, test: PlaceTest, keys: Keys, *, is_whole: bool, is_set: bool = False) -> Any:
    """The node with bounds on a number, or on its length. Equal items of a set count once, so that only a lower bound
    holds for its length."""
    wanted = _intervals(test)
    if wanted is None:
        return node
    arms = []
    for each in wanted:
        found = _within(node, each._replace(high=None) if is_set else each, keys, is_whole=is_whole)
        arms += [] if found is None else [found]
    if len(arms) > MAX_RUNS or node in arms:
        return node
    values = [arm["minimum"] for arm in arms if keys == BOUNDS and arm.get("minimum") == arm.get("maximum", ...)]
    if test.relation == "in" and len(values) == len(arms) > 1:
        return {**_without(node, keys), "enum": values}
    return arms[0] if len(arms) == 1 else {"anyOf": arms, MARK: []} if arms else None


def _without(node: Schema, keys: Iterable[str]) -> Schema:
    return {key: value for key, value in node.items() if key not in keys}


def _within(node: Schema, wanted: NumberRange, keys: Keys, *, is_whole: bool) -> Schema | None:
    """The node with its own bounds on a number and these; None if there is no number between them."""
    least, above, most, below = keys
    lows = [(Fraction(node[key]), key == above) for key in (least, above) if key in node]
    highs = [(-Fraction(node[key]), key == below) for key in (most, below) if key in node]
    lows += [] if keys == BOUNDS else [(Fraction(0), False)]
    lows += [] if wanted.low is None else [(Fraction(wanted.low), wanted.open_low)]
    highs += [] if wanted.high is None else [(-Fraction(wanted.high), wanted.open_high)]
    low, open_low = max(lows) if lows else (None, False)
    negative, open_high = max(highs) if highs else (None, False)
    both = NumberRange(low, None if negative is None else -negative, open_low, open_high)
    if is_whole:
        both = NumberRange(*both.whole())
    if both.is_empty:
        return None
    found = _without(node, keys)
    found |= _bound(both.low, above if both.open_low else least, least, -math.inf, is_whole=is_whole)
    return found | _bound(both.high, below if both.open_high else most, most, math.inf, is_whole=is_whole)


def _bound(value: Any, key: str, inclusive: str, outward: float, *, is_whole: bool) -> Schema:
    """A bound as JSON. One that a grammar's floats do not hold is rounded outwards, or left out."""
    if value is None or abs(value) > (MAX_EXACT if is_whole else MAX_FLOAT):
        return {}
    if value.denominator == 1 and abs(value) <= MAX_EXACT:
        return {key: int(value)}
    nearest = float(value)
    return {key: nearest} if Fraction(nearest) == value else {inclusive: math.nextafter(nearest, outward)}


# Texts and dates -----------------------------------------------------------------------------------------------------


def _of_text(node: Schema, test: PlaceTest) -> Any:
    value: Any = test.value
    if not test.holds:
        is_filled = test.relation in ("==", "in") and "" in ((value,) if test.relation == "==" else value)
        return _within(node, NumberRange(1), SIZES["string"], is_whole=True) if is_filled else node
    match test.relation:
        case "==" | "in":
            among = value if test.relation == "in" else (value,)
            fitting = [each for each in among if isinstance(each, str) and _fits(node, each)]
            return {**node, "enum": list(dict.fromkeys(fitting))} if fitting else None
        case "startswith" | "endswith" | "contains":
            phrases = value if isinstance(value, tuple) and test.relation != "contains" else (value,)
            if not all(isinstance(each, str) and _is_text(each) for each in phrases):
                return node
            either = "|".join(map(_escaped, phrases))
            begin, end = "^" if test.relation == "startswith" else "", "$" if test.relation == "endswith" else ""
            return _with_pattern(node, f"{begin}(?:{either}){end}")
        case "match" | "fullmatch" | "search" as way:
            pattern = _pattern(value, way)
            return node if pattern is None else _with_pattern(node, pattern)
        case "<" | "<=" | ">" | ">=" if not isinstance(value, str):
            return None
    return node


def _pattern(value: Any, way: Way) -> str | None:
    if isinstance(value, re.Pattern):
        value = value.pattern if value.flags == re.UNICODE else None
    return schema_pattern(value, way) if isinstance(value, str) and _is_text(value) else None


def _fits(node: Schema, text: str) -> bool:
    return _is_text(text) and node.get("minLength", 0) <= len(text) <= node.get("maxLength", len(text))


def _is_text(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _escaped(text: str) -> str:
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(named.get(each, f"\\{each}" if each in SPECIAL else each) for each in text)


def _with_pattern(node: Schema, pattern: str) -> Schema:
    """The node with one more pattern that must be found in the text."""
    if "pattern" not in node:
        return {**node, "pattern": pattern}
    return {**node, "allOf": [*node.get("allOf", []), {"pattern": pattern}]}


def _of_date(node: Schema, test: PlaceTest) -> Any:
    if test.relation not in ("==", "in") or not test.holds:
        return node
    among = test.value if isinstance(test.value, tuple) else (test.value,)
    days = [each.isoformat() for each in among if isinstance(each, date) and not isinstance(each, datetime)]
    return {**node, "enum": list(dict.fromkeys(days))} if days else None


def _of_moment(node: Schema, test: PlaceTest, kind: type[datetime] | type[time]) -> Any:
    """The datetimes or times that Python can order: all or none have a time zone."""
    if test.relation not in ORDER or not isinstance(test.value, kind):
        return node
    if test.value.utcoffset() is not None:
        return _with_pattern(node, f"(?:{formats.OFFSET})$")
    return _with_pattern(node, f"^(?:{WITHOUT_ZONE[kind.__name__]})$")


def _is_of_length(term: Term) -> bool:
    return isinstance(term, Inside) and all(test.of_length for test in term.tests)
