"""JSON Schemas that pydantic generates, with what it leaves out of them and a grammar can follow: keys of dicts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from lmql_lite.constraints.shapes import DATE

if TYPE_CHECKING:
    from pydantic.json_schema import GenerateJsonSchema
    from pydantic_core import core_schema

_UNSIGNED = r"(0|[1-9][0-9]*)(\.[0-9]+)?"
COMPLEX = rf"^-?{_UNSIGNED}[+-]{_UNSIGNED}j$"
KEYS: Mapping[str, str] = {
    "integer": "^(0|-?[1-9][0-9]*)$",
    "number": f"^-?{_UNSIGNED}$",
    "boolean": "^(true|false)$",
    "date": f"^({DATE})$",
}
"""Patterns of the keys of a dict, by the type or the format of their schema."""


@cache
def generator() -> type[GenerateJsonSchema]:
    """The class of pydantic's generators whose schemas say what the keys of a dict are, and how a complex number is
    spelled. What it leaves out, such as the bounds of a key, pydantic judges.
    """
    from pydantic.errors import PydanticInvalidForJsonSchema
    from pydantic.json_schema import GenerateJsonSchema

    class Generated(GenerateJsonSchema):
        def dict_schema(self, schema: core_schema.DictSchema) -> dict[str, Any]:
            found = super().dict_schema(schema)
            keys = found.pop("propertyNames", None) or (
                self.generate_inner(schema["keys_schema"]) if "keys_schema" in schema else {}
            )
            if "$ref" in keys:
                keys = self.resolve_ref_schema(keys)
            names = keys.get("enum", [keys["const"]] if "const" in keys else None)
            pattern = KEYS.get(str(keys.get("format", keys.get("type"))))
            values = found.get("additionalProperties", {})
            if names is not None and all(isinstance(name, str) for name in names):
                found |= {"properties": dict.fromkeys(names, values), "additionalProperties": False}
            elif pattern is not None:
                found |= {"patternProperties": {pattern: values}, "additionalProperties": False}
            elif "patternProperties" in found:
                found["additionalProperties"] = False
            return found

        def complex_schema(self, schema: core_schema.ComplexSchema) -> dict[str, Any]:
            return {**super().complex_schema(schema), "pattern": COMPLEX}

        def json_schema(self, schema: core_schema.JsonSchema) -> dict[str, Any]:
            raise PydanticInvalidForJsonSchema(
                "Json[..] is JSON inside a text; write the type that it holds without Json"
            )

    return Generated
