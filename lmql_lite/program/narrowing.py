"""JSON Schemas narrowed to the values whose places meet a condition (S21).

A narrowed schema allows every value of the type that meets the condition; it may allow others, which Python rejects.
So a place whose Python value may differ from its JSON, such as a field that a validator changes, is left as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time
from enum import Enum
from typing import Any

from lmql_lite.constraints.formats import OFFSET
from lmql_lite.constraints.terms import And, Constant, Inside, PlaceStep, PlaceTest, Term
from lmql_lite.errors import did_you_mean
from lmql_lite.program.symbols import OPERATORS, ORDER, WITHOUT_ZONE, pattern_of_days, whole_bounds

Schema = dict[str, Any]
Path = tuple[PlaceStep, ...]
Keys = Mapping[str, str]
"""Maps relations to the keys of a schema for such a bound."""
MARK = "x-core"
"""Key of a schema under which the numbers of its core schemas are listed, innermost first."""
MAX_EXACT = 2**53
"""Greatest bound that a grammar's floats hold exactly."""
BOUNDS: Keys = {">=": "minimum", ">": "exclusiveMinimum", "<=": "maximum", "<": "exclusiveMaximum"}
SIZES: Mapping[Any, Keys] = {
    "array": {">=": "minItems", "<=": "maxItems"},
    "string": {">=": "minLength", "<=": "maxLength"},
    "object": {">=": "minProperties", "<=": "maxProperties"},
}
"""Keys of the bounds of a length, by the type of a schema."""
MAX_ITEMS = 1_000
"""Most items that a condition on one of them requires."""
KEY = PlaceTest("==", ())
"""Test of a key of an object."""
SPECIAL = frozenset("\\.^$*+?{}[]|()")
"""Characters that mean something else in a regular expression."""
RECORDS = ("model-fields", "dataclass-args", "typed-dict")
FAITHFUL = frozenset(
    (
        *("none", "bool", "int", "float", "str", "literal", "enum", "nullable", "union", "tagged-union", "default"),
        *("definitions", "definition-ref", "list", "tuple", "model", "model-field", "dataclass", "dataclass-field"),
        *("typed-dict-field", *RECORDS),
    )
)
"""Kinds of pydantic's core schemas whose values are what their JSON says, and whose JSON Schema is complete."""
MOMENTS = ("date", "datetime", "time")
PLAIN = FAITHFUL.union(MOMENTS, ("dict",))
"""Kinds whose values are what their JSON says. All others may change the value."""
CHANGING = ("strip_whitespace", "to_lower", "to_upper")
"""Settings by which pydantic changes a text before it judges it."""


def narrowed(root: Schema, cores: Sequence[Any] | None, term: Term, hints: list[str]) -> Schema | None:
    """The schema of the values that may meet the term; None if there are none. `hints` gets what to write instead of
    places that no value has.

    `cores` are the core schemas that its marks number (`json_types.generator_of`), None for a JSON Schema without a
    Python type, whose values are those of `json.loads`.
    """
    if re.search(r'"\$ref": "(?!#/(\$defs|definitions)/)', json.dumps(root)):
        return root  # a part of the root may mean another one
    whole = {
        key: value for key, value in root.items() if key in ("$defs", "definitions", "x-guidance", "$schema", "$id")
    }
    node = {key: value for key, value in root.items() if key not in whole}
    found = Narrower(root, cores, hints).meeting(node, term)
    return None if found is None else unmarked({**found, **whole})


def unmarked(schema: Schema) -> Schema:
    """The schema without its marks."""

    def inside(part: Any) -> Any:
        if isinstance(part, list):
            return [inside(each) for each in part]
        return unmarked(part) if isinstance(part, dict) else part

    return {key: inside(value) for key, value in schema.items() if key != MARK}


def has_text_keys(core: Mapping[Any, Any]) -> bool:
    """True if any text is a key of such a dict."""
    keys = core.get("keys_schema", {})
    return set(keys) <= {"type"} and keys.get("type", "any") in ("str", "any")


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
                for part in terms:
                    node = None if node is None else self.meeting(node, part)
        return node

    def at(self, node: Any, path: Path, test: PlaceTest | None, seen: frozenset[str] = frozenset()) -> Any:
        """The node with its place at `path` narrowed. `seen` are the references that led here."""
        if not isinstance(node, dict) or not (path or test):
            return node
        if "$ref" in node:
            reference, target = str(node["$ref"]), self._resolved(node)
            found = node if target is None or reference in seen else self.at(target, path, test, seen | {reference})
            return node if found is target else found
        cores = self._cores(node)
        if cores is None:
            return node
        if "anyOf" in node:
            arms = [self.at(each, path, test, seen) for each in node["anyOf"]]
            left = [each for each in arms if each is not None]
            return {**node, "anyOf": left} if left else None
        if test and not path:
            is_record = any(core["type"] in RECORDS for core in cores)
            return node if is_record else _tested(node, cores, test)
        match node.get("type"), path[0].kind, path[0].key:
            case "null", _, _:
                return None
            case "object", "attribute" | "item" as kind, str(key):
                return self._in_object(node, cores, key, kind == "item", path[1:], test)
            case "array", "each" | "some" as kind, _ if "prefixItems" not in node:
                items = self.at(node.get("items", True), path[1:], test)
                if kind == "some":
                    return None if items is None else _within(node, ">=", 1, SIZES["array"])
                return node if items is None else {**node, "items": items}
            case "object", "some", _ if test and test._replace(values=()) == KEY and isinstance(test.values[0], str):
                return self.at(node, (PlaceStep("item", test.values[0]),), None)
            case "array" | "string" as shape, "item", int(number) if not node.keys() & {"enum", "const"}:
                items = node.get("items", True) if "prefixItems" not in node else True
                if self.at(items, path[1:], test) is None:
                    return None
                least = number + 1 if number >= 0 else -number
                return _within(node, ">=", least, SIZES[shape]) if least <= MAX_ITEMS else node
        return node

    def _resolved(self, node: Schema) -> Schema | None:
        """The node in place of its reference."""
        target: Any = self.root
        for key in node["$ref"].removeprefix("#/").split("/"):
            target = target.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            return None
        others = {key: value for key, value in node.items() if key != "$ref"}
        if others.keys() - {MARK, "title", "description", "default", "examples", "deprecated"}:
            return None  # both may bound the value
        return {**target, **others, MARK: [*target.get(MARK, ()), *node.get(MARK, ())]}

    def _cores(self, node: Schema) -> list[Any] | None:
        """The core schemas of a node, innermost first; None if its value may differ from its JSON."""
        if self.cores is None or node.get("type") == "null":
            return []
        found = [self.cores[number] for number in node.get(MARK, ())]
        named = [core["schema_ref"] for core in found if core["type"] == "definition-ref"]
        found += [core for core in self.cores if core.get("ref") in named]
        return found if found and all(is_plain(core, PLAIN) for core in found) else None

    def _in_object(
        self, node: Schema, cores: list[Any], key: str, is_item: bool, path: Path, test: PlaceTest | None
    ) -> Schema | None:
        record = next((core for core in cores if core["type"] in RECORDS), None)
        classes = [core["cls"] for core in cores if core["type"] in ("model", "dataclass")]
        if is_item and classes:
            has_items = any(hasattr(each, "__getitem__") for each in classes)
            return node if has_items else self._lacking(f"a record has attributes: write .{key}")
        if not is_item and not classes:
            return node if hasattr(dict, key) else self._lacking(f'a dict has items: write ["{key}"]')
        if record is None:
            is_open = all(has_text_keys(core) for core in cores if core["type"] == "dict")
            return self._property(node, key, path, test) if is_open else node
        fields = record["fields"]
        if record["type"] == "dataclass-args":
            fields = {field["name"]: field for field in fields if field.get("init", True)}
        if key not in fields:
            is_open = any("allow" in str(core.get("extra_behavior", core.get("config"))) for core in cores)
            may_have = is_open or any(hasattr(each, key) or "__getattr__" in vars(each) for each in classes)
            return (
                node if may_have else self._lacking(did_you_mean(key, fields) or f"its fields are {', '.join(fields)}")
            )
        name, core = fields[key].get("validation_alias", key), fields[key]["schema"]
        if not isinstance(name, str):
            return node
        is_met = not path and (
            "default" in core and _holds(core["default"], test) if test else core["type"] == "default"
        )
        return self._property(node, name, path, test, may_lack=is_met)

    def _lacking(self, hint: str) -> Schema | None:
        self.hints.append(hint)
        return None

    def _property(
        self, node: Schema, name: str, path: Path, test: PlaceTest | None, *, may_lack: bool = False
    ) -> Schema | None:
        """The object with one property narrowed. It is required, unless an object that `may_lack` it meets the test."""
        properties, required = node.get("properties", {}), node.get("required", [])
        before = properties.get(name, node.get("additionalProperties", True))
        if before is False or (name not in properties and "patternProperties" in node):
            return node
        after = self.at(before, path, test)
        if after is None:
            return None if name in required or not (may_lack or path) else node
        required = required if may_lack or name in required else [*required, name]
        return {**node, "properties": {**properties, name: after}, **({"required": required} if required else {})}


def is_plain(core: Any, kinds: Collection[str]) -> bool:
    """True if the value is what its JSON says: no validator, no `__post_init__` and no setting of texts changes it."""
    texts = core.get("config", {})
    is_changed = any(core.get(name) or texts.get(f"str_{name}") for name in CHANGING)
    if core["type"] not in kinds or is_changed or any(map(core.get, ("post_init", "custom_init", "root_model"))):
        return False
    is_made = core["type"] in ("model", "dataclass")
    return not is_made or core["cls"].__getattribute__ is object.__getattribute__


# The place -----------------------------------------------------------------------------------------------------------


def _holds(value: Any, test: PlaceTest) -> bool:
    """True if Python finds the test true for a value."""
    try:
        value = len(value) if test.of_length else value
        match test.relation:
            case "true":
                return bool(value)
            case "startswith":
                return bool(value.startswith(test.values))
        return any(OPERATORS[test.relation](value, each) for each in test.values)
    except (TypeError, AttributeError):
        return False


def _may_hold(listed: Any, members: Sequence[Any], test: PlaceTest) -> bool:
    """True if the test may hold for a value that JSON lists: for one of the members of an Enum or a Literal with it."""
    meant = [each for each in members if (each.value if isinstance(each, Enum) else each) == listed]
    return any(_holds(each, test) for each in meant or [listed]) or (not meant and bool(members))


def _tested(node: Schema, cores: list[Any], test: PlaceTest) -> Schema | None:
    """The node, narrowed to values that may meet the test."""
    shape, among = node.get("type"), test.values
    listed: Any = node.get("enum", [node["const"]] if "const" in node else None)
    listed = {"boolean": [False, True], "null": [None]}.get(str(shape)) if listed is None else listed
    if shape in ("array", "object") and test.relation != "true" and not test.of_length:
        return None
    if listed is not None:
        members = [each for core in cores for each in core.get("members", core.get("expected", ()))]
        return _among(node, [each for each in listed if _may_hold(each, members, test)])
    if any(core["type"] in MOMENTS for core in cores):
        return _of_moment(node, test)
    keys = SIZES.get(shape) if test.of_length else BOUNDS if shape in ("integer", "number") else None
    if test.relation == "true" or not (keys or (shape == "string" and not test.of_length)):
        return node
    fitting: list[Any] = [each for each in among if isinstance(each, (int, float) if keys else str)]
    if not fitting or (len(fitting) < len(among) and test.relation != "=="):
        return None
    fitting = [each + (0 if keys else "") for each in fitting]  # True is a number, too, and a member may be a text
    if keys and not all(abs(each) <= MAX_EXACT for each in fitting):
        return node
    match test.relation:
        case "startswith" if not keys:
            return _with_pattern(node, f"^(?:{'|'.join(_escaped(str(each)) for each in fitting)})")
        case "==" if not test.of_length:
            return _among(node, fitting)
        case "==" if len(fitting) == 1:
            found = _within(node, "<=", fitting[0], SIZES[shape])
            return found and _within(found, ">=", fitting[0], SIZES[shape])
        case "<" | "<=" | ">=" | ">" as relation if keys:
            return _within(node, relation, fitting[0], keys)
    return node


def _among(node: Schema, values: list[Any]) -> Schema | None:
    return {**{key: node[key] for key in node if key != "const"}, "enum": values} if values else None


def _within(node: Schema, relation: str, bound: Any, keys: Keys) -> Schema | None:
    """The node with a bound on its number or its length."""
    if keys is not BOUNDS or node["type"] == "integer":
        low, high = whole_bounds(relation, bound)
        relation, bound = f"{relation[0]}=", low if high is None else high
        if keys is not BOUNDS and bound < 0:
            return None if relation == "<=" else node
    key = keys[relation]
    return {**node, key: (max if relation[0] == ">" else min)(node.get(key, bound), bound)}


def _escaped(text: str) -> str:
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(named.get(each, f"\\{each}" if each in SPECIAL else each) for each in text)


def _with_pattern(node: Schema, pattern: str) -> Schema:
    """The node with one more pattern that must be found in the text."""
    return {**node, "allOf": [*node.get("allOf", []), {"pattern": pattern}]}


def _of_moment(node: Schema, test: PlaceTest) -> Schema:
    """The dates, datetimes or times near the values, all or none of which have a time zone where Python orders them."""
    value = test.values[0] if test.values else None
    zone = getattr(value, "tzinfo", None)
    if test.relation in ORDER and isinstance(value, datetime | time):
        kind = "datetime" if isinstance(value, datetime) else "time"
        node = _with_pattern(node, f"(?:{OFFSET})$" if zone else f"^(?:{WITHOUT_ZONE[kind]})$")
    relation = "in" if test.relation == "==" else test.relation
    days = None if zone else pattern_of_days(relation, test.values if relation == "in" else value)
    return node if days is None else _with_pattern(node, f"^{days}$")
