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
from datetime import datetime, time
from decimal import Decimal
from fractions import Fraction
from numbers import Rational
from typing import Any

from lmql_lite.constraints import formats
from lmql_lite.constraints.json_schema import Way, schema_pattern
from lmql_lite.constraints.terms import And, Constant, Inside, Or, PlaceStep, PlaceTest, Term
from lmql_lite.errors import did_you_mean
from lmql_lite.program.symbols import (
    DATE_PARTS,
    OPERATORS,
    ORDER,
    WITHOUT_ZONE,
    date_pattern,
    pattern_of_days,
    whole_bounds,
)
from lmql_lite.program.where import MAX_POSITIONS

Schema = dict[str, Any]
Path = tuple[PlaceStep, ...]
Keys = Mapping[str, str]
"""Maps relations to the keys of a schema for such a bound."""
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
BOUNDS: Keys = {">=": "minimum", ">": "exclusiveMinimum", "<=": "maximum", "<": "exclusiveMaximum"}
SIZES: Mapping[Any, Keys] = {
    "array": {">=": "minItems", "<=": "maxItems"},
    "string": {">=": "minLength", "<=": "maxLength"},
    "object": {">=": "minProperties", "<=": "maxProperties"},
}
"""Keys of the bounds of a length, by the type of a schema."""
SPECIAL = frozenset("\\.^$*+?{}[]|()")
"""Characters that mean something else in a regular expression."""
RECORDS = ("model-fields", "dataclass-args", "typed-dict")
LISTS = ("list", "tuple", "named-tuple")
SETS = ("set", "frozenset")
FAITHFUL = frozenset(
    (
        *("none", "bool", "int", "float", "str", "literal", "enum", "nullable", "union", "tagged-union", "default"),
        *("definitions", "definition-ref", "list", "tuple", "model", "model-field", "dataclass", "dataclass-field"),
        *("typed-dict-field", *RECORDS),
    )
)
"""Kinds of pydantic's core schemas whose values are what their JSON says, and whose JSON Schema is complete."""
PLAIN = FAITHFUL.union(SETS, ("named-tuple", "named-tuple-field", "dict", "date", "datetime", "time", "decimal"))
"""Kinds whose values are what their JSON says. All others may change the value."""
CHANGING = ("strip_whitespace", "to_lower", "to_upper")
"""Settings by which pydantic changes a text before it judges it."""


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


def holds(value: Any, path: Path, test: PlaceTest | None) -> bool:
    """True if the value has such a place, and Python finds the test, if any, true for it."""
    try:
        if not path:
            return test is None or _holds(test, value)
        (kind, key), *rest = path
        match kind:
            case "attribute":
                return holds(getattr(value, str(key)), tuple(rest), test)
            case "item":
                return holds(value[key], tuple(rest), test)
            case "each":
                return all(holds(each, tuple(rest), test) for each in value)
            case "some":
                return any(holds(each, tuple(rest), test) for each in value)
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
            case Inside(path, test):
                return self.at(node, path, test)
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
                return self._either(node, [self.meeting(node, part) for part in terms])
        return node

    def at(self, node: Any, path: Path, test: PlaceTest | None, seen: frozenset[str] = frozenset()) -> Any:
        """The node with its place at `path` narrowed. `seen` are the references that led here."""
        if not isinstance(node, dict) or not (path or test):
            return node
        if self.cores is None and isinstance(node.get("type"), list) and "anyOf" not in node:
            arms = [{**node, "type": each} for each in node["type"]]
            found = self._arms({"anyOf": arms}, path, test, seen)
            return found if found is None or found["anyOf"] is not arms else node
        if "$ref" in node:
            reference, target = str(node["$ref"]), self._resolved(node)
            if target is None or reference in seen:
                return node
            found = self.at(target, path, test, seen | {reference})
            return node if found is target else found
        cores = self._cores(node)
        if cores is None:
            return node
        if "anyOf" in node:
            is_decimal = any(core["type"] == "decimal" for core in cores)  # a number, or a text for more digits
            return node if is_decimal else self._arms(node, path, test, seen)
        if (listed := _listed(node, cores)) is not None:
            return _among(node, listed, path, test)
        if test and not path:
            return self._tested(node, cores, test)
        return self._inside(node, cores, path, test)

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

    def _arms(self, node: Schema, path: Path, test: PlaceTest | None, seen: frozenset[str]) -> Any:
        before = node["anyOf"]
        left = [arm for each in before if (arm := self.at(each, path, test, seen)) is not None]
        if len(left) == len(before) and all(map(operator.is_, left, before)):
            return node
        return {**node, "anyOf": left} if left else None

    # A step of the path ---------------------------------------------------------------------------------------------

    def _inside(self, node: Schema, cores: list[Any], path: Path, test: PlaceTest | None) -> Any:
        (kind, key), *rest = path
        steps, kinds = tuple(rest), {core["type"] for core in cores}
        match node.get("type"), kind:
            case "object", "attribute" | "item" if isinstance(key, str):
                return self._in_object(node, cores, key, kind == "item", steps, test)
            case "string", "attribute" if kinds & {"date", "datetime"} and key in DATE_PARTS and test and not rest:
                pattern = date_pattern(str(key), lambda each: _holds(test, each))
                return None if pattern is None else _with_pattern(node, f"^{pattern}$")
            case "array", _ if self.cores is not None and not kinds & {*LISTS, *SETS}:
                return node
            case "array", "each":
                return self._each(node, steps, test)
            case "array", "some":
                return self._some(node, steps, test)
            case "array", "attribute":
                names = [field["name"] for core in cores if core["type"] == "named-tuple" for field in core["fields"]]
                return self._position(node, names.index(key), steps, test) if key in names else node
            case "array", "item" if type(key) is int and not kinds & {*SETS}:
                return self._position(node, key, steps, test)
        return node

    def _in_object(
        self, node: Schema, cores: list[Any], key: str, is_item: bool, path: Path, test: PlaceTest | None
    ) -> Any:
        record = next((core for core in cores if core["type"] in RECORDS), None)
        is_mapping = self.cores is None or any(core["type"] == "dict" for core in cores)
        if is_mapping or (record and record["type"] == "typed-dict"):
            if not is_item:
                return node if hasattr(dict, key) else self._lacking(f'a dict has items: write ["{key}"]')
        elif record and is_item:
            has_items = any(hasattr(core["cls"], "__getitem__") for core in cores if "cls" in core)
            return node if has_items else self._lacking(f"a record has attributes: write .{key}")
        if is_mapping:
            is_open = all(has_text_keys(core) for core in cores if core["type"] == "dict")
            return self._property(node, key, path, test, may_lack=False) if is_open else node
        if record is None:
            return node
        if _surely_lacks(cores, record, key):
            return self._lacking(did_you_mean(key, _names(record)) or f"its fields are {', '.join(_names(record))}")
        field = _field(record, key)
        name = field.get("validation_alias", key) if field else None
        if field is None or not isinstance(name, str) or name not in node.get("properties", {}):
            return node
        return self._property(node, name, path, test, may_lack=_may_lack(field, path, test))

    def _lacking(self, hint: str) -> None:
        self.hints.append(hint)

    def _property(self, node: Schema, name: str, path: Path, test: PlaceTest | None, *, may_lack: bool) -> Any:
        """The object with one property narrowed. Unless it `may_lack` the property, it is required."""
        properties, required = node.get("properties", {}), node.get("required", [])
        others = node.get("additionalProperties", True)
        if name not in properties and (others is False or "patternProperties" in node):
            return node
        before = properties.get(name, others)
        after = self.at(before, path, test)
        is_required = name in required
        if after is None:
            return None if is_required or not may_lack else {**node, "properties": {**properties, name: False}}
        if after is before and (is_required or may_lack):
            return node
        required = required if is_required or may_lack else [*required, name]
        return {**node, "properties": {**properties, name: after}, **({"required": required} if required else {})}

    def _each(self, node: Schema, path: Path, test: PlaceTest | None) -> Any:
        first = node.get("prefixItems", [])
        after = [self.at(item, path, test) for item in first]
        others = self.at(node.get("items", True), path, test)
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

    def _some(self, node: Schema, path: Path, test: PlaceTest | None) -> Any:
        """The list with at least one item that meets the test, which guides if its length is bounded."""
        most = node.get("maxItems")
        if most == 0:
            return None
        if most is None or most > MAX_POSITIONS:
            items = [*node.get("prefixItems", []), node.get("items", True)]
            is_possible = any(self.at(item, path, test) is not None for item in items)
            found = {**node, "minItems": max(node.get("minItems", 0), 1)} if is_possible else None
            return node if found == node else found
        return self._either(node, [self._position(node, at, path, test) for at in range(most)])

    def _position(self, node: Schema, at: int, path: Path, test: PlaceTest | None) -> Any:
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
        after = self.at(items[at], path, test)
        if after is None:
            return None
        if after is items[at] and least > at:
            return node
        return {**node, "prefixItems": [*items[:at], after, *items[at + 1 :]], "minItems": max(least, at + 1)}

    # The place ------------------------------------------------------------------------------------------------------

    def _tested(self, node: Schema, cores: list[Any], test: PlaceTest) -> Any:
        kinds, shape = {core["type"] for core in cores}, node.get("type")

        def may_be(*names: str) -> bool:
            return self.cores is None or not kinds.isdisjoint(names)

        if test.of_length or (test.relation == "true" and shape in SIZES):
            is_known = shape in SIZES and may_be("str", "dict", *LISTS, *SETS)
            return _of_number(node, test, SIZES[shape], is_set=not kinds.isdisjoint(SETS)) if is_known else node
        match shape:
            case "string" | "array" | "object" | "integer" | "number" if test.relation == "is":
                return None if test.holds else node
            case "integer" if may_be("int"):
                return _of_number(node, test, BOUNDS)
            case "number" if may_be("float"):
                return _of_number(node, test, BOUNDS)
            case "string" if kinds & {"date", "datetime", "time"}:
                return _of_moment(node, kinds, test)
            case "string" if may_be("str"):
                return _of_text(node, test)
            case "array" if test.relation == "contains" and may_be(*LISTS, *SETS):
                item = PlaceTest("==", test.value, test.holds)
                return self._some(node, (), item) if test.holds else self._each(node, (), item)
            case "object" if test.relation == "contains" and test.holds and isinstance(test.value, str):
                return self._in_object(node, cores, test.value, True, (), None) if may_be("dict") else node
        return node


# Core schemas of pydantic --------------------------------------------------------------------------------------------


def _is_plain(core: Any) -> bool:
    """True if the value is what its JSON says: no validator, no `__post_init__` and no setting of texts changes it."""
    texts = core.get("config", {})
    if core["type"] not in PLAIN or any(core.get(name) or texts.get(f"str_{name}") for name in CHANGING):
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


def _may_lack(field: Any, path: Path, test: PlaceTest | None) -> bool:
    """True if an object without the field may meet the test: by its default, or by one that is made at run time."""
    core = field["schema"]
    if field["type"] == "typed-dict-field" and core["type"] != "default":
        return False  # the key is then missing
    if core["type"] != "default":
        return True
    return holds(core["default"], path, test) if "default" in core else True


def has_text_keys(core: Mapping[Any, Any]) -> bool:
    """True if any text is a key of such a dict."""
    keys = core.get("keys_schema", {})
    return set(keys) <= {"type"} and keys.get("type", "any") in ("str", "any")


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


def _among(node: Schema, listed: Sequence[tuple[Any, Any]], path: Path, test: PlaceTest | None) -> Schema | None:
    """The node with those of its listed values that Python finds true, such as members of an Enum by their `value`."""
    left = [spelled for spelled, value in listed if holds(value, path, test)]
    if len(left) == len(listed):
        return node
    return {**{key: node[key] for key in node if key != "const"}, "enum": left} if left else None


# Numbers -------------------------------------------------------------------------------------------------------------


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Rational | Decimal)


def _of_number(node: Schema, test: PlaceTest, keys: Keys, *, is_set: bool = False) -> Any:
    """The node with bounds on a number, or on its length. Equal items of a set count once, so that only a lower bound
    holds for its length."""
    wanted = _intervals(test)
    if wanted is None:
        return node
    arms = []
    for bounds in wanted:
        found = _within(node, [each for each in bounds if not is_set or ">" in each[0]], keys)
        arms += [] if found is None else [found]
    if len(arms) > MAX_RUNS or node in arms:
        return node
    return arms[0] if len(arms) == 1 else {"anyOf": arms, MARK: []} if arms else None


def _intervals(test: PlaceTest) -> list[list[tuple[str, Any]]] | None:
    """The numbers that meet a test, as intervals with their bounds; None if that is not known, or if there are too
    many."""
    value: Any = test.value
    match test.relation:
        case "<" | "<=" | ">" | ">=" if not _is_number(value) or value in (math.inf, -math.inf):
            return [[]] if _holds(test._replace(of_length=False), 0) else []
        case "<" | "<=" | ">" | ">=":
            return [[(test.relation, value)]]
        case "in" if test.holds and isinstance(value, range) and (abs(value.step) == 1 or len(value) > MAX_RUNS):
            low, high = sorted((value[0], value[-1])) if value else (1, 0)
            return [[(">=", low), ("<=", high)]]
        case "==" | "in" | "true":
            among = value if test.relation == "in" else (0,) if test.relation == "true" else (value,)
        case "is" | "match" | "fullmatch" | "search":
            return None
        case _:
            return []
    if len(among) > MAX_RUNS:
        return None
    numbers = [each for each in among if _is_number(each) and each not in (math.inf, -math.inf)]
    points = sorted(set(map(Fraction, numbers)))
    if test.holds is not (test.relation == "true"):
        return [[(">=", each), ("<=", each)] for each in points]
    above, below = [[], *([(">", each)] for each in points)], [*([("<", each)] for each in points), []]
    return [low + high for low, high in zip(above, below, strict=True)]


def _within(node: Schema, bounds: Iterable[tuple[str, Any]], keys: Keys) -> Schema | None:
    """The node with its own bounds and these; None if there is no number between them."""
    found, is_length = dict(node), keys is not BOUNDS
    known = [(relation, node[key]) for relation, key in keys.items() if key in node]
    known += [(">=", 0)] if is_length else []
    for relation, bound in bounds:
        is_low = ">" in relation
        if is_length or node.get("type") == "integer":
            relation, bound = relation[0] + "=", whole_bounds(relation, bound)[0 if is_low else 1]
        bound = max(bound, 0) if is_length and is_low else bound
        known.append((relation, bound))
        key, number = keys[relation], _in_json(Fraction(bound), -math.inf if is_low else math.inf)
        if number is None and is_length and is_low:
            return None  # nothing is that long
        if number is not None:
            found[key] = (max if is_low else min)(found.get(key, number), number)
    pairs = [(low, high) for low in known for high in known if ">" in low[0] and "<" in high[0]]
    for (above, low), (below, high) in pairs:
        if low > high or (low == high and not ("=" in above and "=" in below)):
            return None
    return found


def _in_json(bound: Fraction, outward: float) -> float | None:
    """A bound as JSON. One that a grammar's floats do not hold is rounded outwards, or left out."""
    if bound.denominator == 1:
        return int(bound) if abs(bound) <= MAX_EXACT else None
    if abs(bound) > MAX_FLOAT:
        return None
    nearest = float(bound)
    return nearest if Fraction(nearest) == bound else math.nextafter(nearest, outward)


# Texts and dates -----------------------------------------------------------------------------------------------------


def _of_text(node: Schema, test: PlaceTest) -> Any:
    value: Any = test.value
    if not test.holds:
        is_filled = test.relation in ("==", "in") and "" in ((value,) if test.relation == "==" else value)
        return _within(node, [(">=", 1)], SIZES["string"]) if is_filled else node
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


def _of_moment(node: Schema, kinds: set[str], test: PlaceTest) -> Schema:
    """The dates, datetimes or times that Python can order, all or none of which have a time zone, near the value."""
    value = test.value
    has_zone = any(getattr(each, "tzinfo", None) for each in (value if isinstance(value, tuple) else (value,)))
    kind = next((each for each in (datetime, time) if each.__name__ in kinds), None)
    if kind and isinstance(value, kind) and test.relation in ORDER:
        pattern = f"(?:{formats.OFFSET})$" if has_zone else f"^(?:{WITHOUT_ZONE[kind.__name__]})$"
        node = _with_pattern(node, pattern)
    days = pattern_of_days(test.relation, value) if test.holds and not has_zone and kind is not time else None
    return node if days is None else _with_pattern(node, f"^{days}$")


def _is_of_length(term: Term) -> bool:
    return isinstance(term, Inside) and term.test is not None and term.test.of_length
