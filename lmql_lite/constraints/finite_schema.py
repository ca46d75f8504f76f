"""The finite values of a JSON Schema that refers to itself.

llguidance accepts schemas of which no value is finite, and begins values that cannot end. A schema *ends* if it has a
finite value. The others are taken out of the places that can do without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import unquote

NAMED = ("properties", "patternProperties", "$defs", "definitions")
"""Keys of a schema whose value is a mapping of names to schemas."""
LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE = ("items", "additionalProperties")
OF_OBJECTS = ("properties", "patternProperties")
VALUES = ("enum", "const", "default", "examples")
"""Keys of a schema whose value holds no schemas."""
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


def finite_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema without the parts in which a value cannot end; None if it has no finite value."""
    parts = _Subschemas(schema)
    if not parts.ends(schema):
        return None
    return dict(schema) if parts.all_end else parts.without_endless(schema)


def _inside(schema: Mapping[str, Any]) -> Iterator[Any]:
    """The schemas directly inside a schema."""
    for key in NAMED:
        yield from schema.get(key, {}).values()
    for key in LISTED:
        yield from schema.get(key, ())
    yield from (schema[key] for key in SINGLE if key in schema)


class _Subschemas:
    """The schemas inside a schema, and which of them end."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    @cached_property
    def _all(self) -> dict[int, Mapping[str, Any]]:
        """The schemas inside the root and those that they refer to, by their `id`."""
        found: dict[int, Mapping[str, Any]] = {}
        waiting: list[Any] = [self._root]
        while waiting:
            each = waiting.pop()
            if isinstance(each, Mapping) and id(each) not in found:
                found[id(each)] = each
                waiting += [*_inside(each), self._target(each)]
        return found

    @cached_property
    def _ending(self) -> set[int]:
        found: set[int] = set()
        while more := {at for at, each in self._all.items() if at not in found and self._may_end(each, found)}:
            found |= more
        return found

    @property
    def all_end(self) -> bool:
        return len(self._ending) == len(self._all)

    def ends(self, schema: Any) -> bool:
        return self._is_known(schema, self._ending)

    def _is_known(self, schema: Any, ending: set[int]) -> bool:
        return id(schema) in ending if isinstance(schema, Mapping) else schema is not False

    def _may_end(self, schema: Mapping[str, Any], ending: set[int]) -> bool:
        """True if a value of the schema is finite, given the schemas of which that is known."""
        together = self._together(schema)
        if together is None:
            return False
        if any("enum" in each or "const" in each for each in together):
            return True
        for each in together:
            for key in ("anyOf", "oneOf"):
                if key in each and not any(self._is_known(arm, ending) for arm in each[key]):
                    return False
        kinds = set(TYPES).intersection(*map(_kinds, together))
        return (
            bool(kinds - {"object", "array"})
            or ("object" in kinds and self._has_object(together, ending))
            or ("array" in kinds and self._has_array(together, ending))
        )

    def _together(self, schema: Any, inside: tuple[Any, ...] = ()) -> list[Mapping[str, Any]] | None:
        """The schema, the one that it refers to, and those under its allOf: its values meet all of them. None if it is
        itself among these."""
        if not isinstance(schema, Mapping):
            return []
        if any(schema is each for each in inside):
            return None
        found = [schema]
        for each in (self._target(schema), *schema.get("allOf", ())):
            more = self._together(each, (*inside, schema))
            if more is None:
                return None
            found += more
        return found

    def _has_object(self, together: list[Mapping[str, Any]], ending: set[int]) -> bool:
        required = {key for each in together for key in each.get("required", ())}
        if not all(self._is_known(value, ending) for key in required for value in _values_of(together, key)):
            return False
        count: int = max(each.get("minProperties", 0) for each in together)
        if count <= len(required):
            return True
        if all(self._is_known(each.get("additionalProperties", True), ending) for each in together):
            return True
        if any(
            self._is_known(value, ending) for each in together for value in each.get("patternProperties", {}).values()
        ):
            return True
        named = {key for each in together for key in each.get("properties", {})}
        ended = [key for key in named if all(self._is_known(value, ending) for value in _values_of(together, key))]
        return len(required.union(ended)) >= count

    def _has_array(self, together: list[Mapping[str, Any]], ending: set[int]) -> bool:
        count = max(each.get("minItems", 0) for each in together)
        listed = max(len(each.get("prefixItems", ())) for each in together)
        return all(self._is_known(_item(each, at), ending) for each in together for at in range(min(count, listed + 1)))

    def _target(self, schema: Mapping[str, Any]) -> Any:
        """The schema that a schema refers to; None if there is none in the root."""
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: Any = self._root
        for part in unquote(reference[1:]).split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                found = found.get(key) if isinstance(found, Mapping) else None
        return found

    def without_endless(self, schema: Any) -> Any:
        """The schema without what does not end, which itself ends."""
        if not isinstance(schema, Mapping):
            return schema
        found = {key: value if key in VALUES else self._copied(value) for key, value in schema.items()}
        for key in ("anyOf", "oneOf"):
            if key in found:
                found[key] = [each for each in found[key] if each is not False]
        for key in NAMED:
            if key in found and (key not in OF_OBJECTS or found.get("additionalProperties") is False):
                found[key] = {name: each for name, each in found[key].items() if each is not False}
        items = [*found.get("prefixItems", ()), found.get("items", True)]
        if False in items:  # servers know a bound better than a schema that nothing meets
            length = items.index(False)
            found["maxItems"] = min(length, found.get("maxItems", length))
            found = {key: value for key, value in found.items() if key not in ("items", "prefixItems")}
            found |= {"prefixItems": items[:length]} if length else {}
        return found

    def _copied(self, value: Any) -> Any:
        """A value in a schema, with False in place of each schema that does not end."""
        if id(value) in self._all:
            return self.without_endless(value) if self.ends(value) else False
        if isinstance(value, Mapping):
            return {key: self._copied(each) for key, each in value.items()}
        return [self._copied(each) for each in value] if isinstance(value, list) else value


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    kinds = schema.get("type", TYPES)
    found = {kinds} if isinstance(kinds, str) else set(kinds)
    return found | {"integer"} if "number" in found else found


def _values_of(together: list[Mapping[str, Any]], key: str) -> Iterator[Any]:
    """The schemas that the value of a property meets."""
    for each in together:
        named = each.get("properties", {})
        has_patterns = "patternProperties" in each
        yield named[key] if key in named else has_patterns or each.get("additionalProperties", True)


def _item(schema: Mapping[str, Any], at: int) -> Any:
    listed = schema.get("prefixItems", ())
    return listed[at] if at < len(listed) else schema.get("items", True)
