"""Types that are spelled as JSON. Pydantic makes their JSON Schema, and converts JSON to their values."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any

from lmql_lite.constraints import formats
from lmql_lite.constraints.formats import CLOCK, DATE, DURATION, OFFSET
from lmql_lite.constraints.json_schema import finite_schema, grammar, is_impossible, refuse_impossible
from lmql_lite.constraints.simplify import conflict
from lmql_lite.constraints.terms import And, Constant, Term
from lmql_lite.errors import ConstraintError, Span
from lmql_lite.program.narrowing import FAITHFUL, MARK, has_text_keys, is_plain, narrowed, unmarked
from lmql_lite.program.values import finite, wrong

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema
    from pydantic_core import core_schema

Convert = Callable[[str], Any]
"""From text to value. Raises ValueError for a text that has none."""


@dataclass(frozen=True)
class JsonType:
    """Spelled as JSON, guided by a grammar of llguidance."""

    schema: dict[str, Any]
    convert: Convert
    judges: bool = False
    """True if `convert` may refuse a text that the grammar allows."""
    has_length: bool = True
    """True if values may have a `len()`."""
    marked: dict[str, Any] | None = None
    """The schema with marks that number the `cores`, pydantic's schemas of the places; None for a JSON Schema."""
    cores: Sequence[Any] | None = None

    def rules(self, term: Term, name: str, span: Span, *, free_spelling: bool = False) -> str:
        """Grammar of the values that may meet the term."""
        return grammar(self.bounded(term, name, span), free_spelling=free_spelling)

    def bounded(self, term: Term, name: str, span: Span) -> dict[str, Any]:
        """Schema of the values that may meet the term: bounds on their length, and conditions on places inside them.

        Raises ConstraintError with a minimal set of the conditions that no value of the type meets.
        """
        parts = term.terms if isinstance(term, And) else (term,)
        found = self._narrowed(parts)
        if found is None or (found is not self.schema and is_impossible(grammar(found))):
            raise self._no_value(conflict(parts, self._are_impossible), name, span)
        return found

    def _are_impossible(self, parts: Sequence[Term]) -> bool:
        found = self._narrowed(parts)
        return found is None or is_impossible(grammar(found))

    def _narrowed(self, parts: Sequence[Term], hints: list[str] | None = None) -> dict[str, Any] | None:
        """The schema of the values that may meet all parts of a term; None if there are none."""
        asked = tuple(part for part in parts if part != Constant(True))
        if not asked:
            return self.schema
        return narrowed(self.marked or self.schema, self.cores, And(asked), [] if hints is None else hints)

    def _no_value(self, guilty: Sequence[Term], name: str, span: Span) -> ConstraintError:
        """Error for conditions that no value of the type meets."""
        hints: list[str] = []
        self._narrowed(guilty, hints)
        clauses = list(dict.fromkeys(f"`{part.span.source}`" for part in guilty if part.span))
        reason = ": no value of its type meets " + clauses[0] if clauses else ""
        if len(clauses) > 1:
            reason = f": {', '.join(clauses[:-1])} and {clauses[-1]} cannot hold together"
        place = next((part.span for part in reversed(guilty) if part.span), span)
        return ConstraintError(f"nothing can fill [{name}]{reason}", span=place, hint=hints[0] if hints else None)

    def spelled(self, value: Any) -> str:
        """JSON of a value that no model generated. Raises ValueError if it has none."""
        from pydantic_core import to_json

        return to_json(value).decode()


def of_schema(schema: dict[Any, Any], name: str, span: Span) -> JsonType:
    """Type of a JSON Schema: its values are those of `json.loads`."""
    try:
        schema = _with_patterns(schema)
        rules = grammar(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"the JSON Schema of [{name}] is not JSON: {error}", span=span) from None
    refuse_impossible(rules, name, span)
    schema = _finite(schema, name, span)
    return JsonType(schema, finite_json)


def of_python(annotation: Any, name: str, span: Span) -> JsonType:
    """Type of a Python annotation. Raises ConstraintError if pydantic has no JSON for it."""
    adapter = adapted(annotation, name, span)
    cores: list[Any] = []
    marked = closed(schema_of(adapter, annotation, name, span, cores))
    refuse_impossible(grammar(unmarked(marked)), name, span)
    marked = _finite(marked, name, span)
    schema = unmarked(marked)
    validate, has_floats = validating(adapter.validate_json), _has_floats(schema)

    def convert(text: str) -> Any:
        finite_json(text, has_floats)
        return validate(text)

    judges = not says_all(adapter.core_schema)
    return JsonType(schema, convert, judges, _has_length(annotation), marked, cores)


def _finite(schema: Mapping[str, Any], name: str, span: Span) -> dict[str, Any]:
    """The schema of its finite values. Raises ConstraintError if there are none."""
    found = finite_schema(schema)
    if found is None:
        raise ConstraintError(
            f"nothing can fill [{name}]: each value of its type contains another one, so none is finite",
            span=span,
            hint="make the part that refers to the type optional, or a list that may be empty",
        )
    if found != schema:
        refuse_impossible(grammar(found), name, span)
    return found


def finite_json(text: str, has_floats: bool = False) -> Any:
    """Value of a JSON text. Raises ValueError for a number too large for a float, and with `has_floats` also for an
    integer."""
    return json.loads(text, parse_float=finite, parse_int=_float_sized if has_floats else None)


def _float_sized(text: str) -> int:
    finite(text)
    return int(text)


def adapted(annotation: Any, name: str, span: Span) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

    is_function = callable(annotation) and not isinstance(annotation, type) and typing.get_origin(annotation) is None
    if is_function:
        raise _no_type(annotation, name, span)
    try:
        return TypeAdapter(annotation)
    except (PydanticUserError, PydanticUndefinedAnnotation, TypeError) as error:
        raise _no_type(annotation, name, span, error) from error


def schema_of(adapter: TypeAdapter[Any], annotation: Any, name: str, span: Span, cores: list[Any]) -> dict[str, Any]:
    """The JSON Schema of a type, with marks; the core schemas that these number are added to `cores`."""
    from pydantic.errors import PydanticUserError

    try:
        return adapter.json_schema(schema_generator=generator_of(cores))
    except PydanticUserError as error:
        raise _no_type(annotation, name, span, error) from error


def validating(validate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The validator with one sentence for each error."""
    from pydantic import ValidationError

    def validated(value: Any) -> Any:
        try:
            return validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None

    return validated


TYPES = (
    "a type is int, float, bool, str, date, Literal, Enum, list[..], dict[str, ..], Optional, a dataclass, a pydantic "
    "model, a JSON Schema or a regular expression"
)


def _no_type(annotation: object, name: str, span: Span, error: Exception | None = None) -> ConstraintError:
    if isinstance(annotation, list | tuple | set | frozenset):
        hint = "to choose among values write Literal[..], or X in [..] in the `where` clause"
    elif error is not None and getattr(error, "code", None) != "schema-for-unknown-type":
        hint = str(error).partition("\n")[0]
    else:
        hint = TYPES
    return wrong(f"the type of [{name}] cannot be spelled as text", annotation, hint, span)


def _has_length(annotation: object) -> bool:
    if typing.get_origin(annotation) is typing.Annotated:
        return _has_length(typing.get_args(annotation)[0])
    origin = typing.get_origin(annotation) or annotation
    return not isinstance(origin, type) or origin in (object, Any, UnionType) or hasattr(origin, "__len__")


# Schemas of pydantic -------------------------------------------------------------------------------------------------

SUBSCHEMAS = ("properties", "patternProperties", "$defs")
"""Keys of a schema whose value is a mapping of names to schemas."""


FORMATS = frozenset(("email", "hostname", "ipv4", "ipv6", "uri", "uuid", "unknown"))
"""Formats that guide without a pattern. Those that are not in `formats.NAMED` either are judged by pydantic only."""


def _with_pattern(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with the pattern of its format in place of the format."""
    name = schema.get("format")
    if not isinstance(name, str) or name not in formats.NAMED:
        return schema
    pattern = _whole(formats.NAMED[name])["pattern"]
    rest = {key: value for key, value in schema.items() if key != "format"}
    if "pattern" in schema:
        return {**rest, "allOf": [*schema.get("allOf", ()), {"pattern": pattern}]}
    return {**rest, "pattern": pattern}


def _with_patterns(value: Any) -> Any:
    """A JSON Schema, or a value inside of it, with patterns in place of the formats that have one."""
    if isinstance(value, list):
        return [_with_patterns(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    kept = ("enum", "const", "default", "examples")
    return _with_pattern({key: each if key in kept else _with_patterns(each) for key, each in value.items()})


def closed(schema: Any) -> Any:
    """The schema, closed: the model generates no properties that pydantic would ignore.

    Formats that no grammar knows are left to pydantic. Items may occur twice in a set, which counts them once.
    """
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inside: dict[str, Any] = {}
    for key, value in schema.items():
        if key in SUBSCHEMAS:
            inside[key] = {name: closed(each) for name, each in value.items()}
        elif key in ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf"):
            inside[key] = closed(value)
        elif key not in ("uniqueItems", "default", "discriminator", "examples"):
            inside[key] = value
    inside = _with_pattern(inside)
    if isinstance(inside.get("format"), str) and inside["format"] not in FORMATS:
        del inside["format"]
    if "oneOf" in inside:  # of a tagged union: that no two are met at once is plain from the tag
        inside["anyOf"] = inside.pop("oneOf")
    if "properties" in inside:
        inside.setdefault("additionalProperties", False)
    return inside


def _has_floats(schema: Any) -> bool:
    """True if a number of its values may be a float."""
    if isinstance(schema, list):
        return any(map(_has_floats, schema))
    return isinstance(schema, dict) and (schema.get("type") == "number" or any(map(_has_floats, schema.values())))


SAID = FAITHFUL.union(("any", "call", "arguments", "json-or-python", "lax-or-strict"))
"""Kinds of pydantic's schemas whose JSON Schema is complete."""


def says_all(core: Any) -> bool:
    """True if the JSON Schema certainly contains every check of pydantic."""
    if isinstance(core, list | tuple):
        return all(map(says_all, core))
    if not isinstance(core, Mapping):
        return True
    is_dict = core.get("type") == "dict" and has_text_keys(core)
    if isinstance(core.get("type"), str) and not is_dict and not is_plain(core, SAID):
        return False
    return all(says_all(value) for key, value in core.items() if key not in ("metadata", "serialization", "config"))


_UNSIGNED = r"(0|[1-9][0-9]*)(\.[0-9]+)?"
KEYS: Mapping[str, str] = {
    "integer": "^(0|-?[1-9][0-9]*)$",
    "number": f"^-?{_UNSIGNED}$",
    "boolean": "^(true|false)$",
    "date": f"^({DATE})$",
    "uuid": "^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$",
}
"""Patterns of the keys of a dict, by the type or the format of their schema."""


NO_KEYS = (
    "a key of a dict is a text in JSON; use str, int, float, bool, date, UUID, an Enum or a Literal of texts, or a "
    "list of pairs"
)


def _may_be_key(schema: Mapping[str, Any]) -> bool:
    """True if a text may mean a value of the schema."""
    return schema.get("type") not in ("object", "array", "null")


def _are_compared(core: Mapping[Any, Any]) -> bool:
    """True if pydantic compares a key with the listed values: the text "1" is not the number."""
    return core.get("type") == "literal" or (core.get("type") == "enum" and "sub_type" not in core)


OFFSETS: Mapping[str | None, str] = {None: f"({OFFSET})?", "naive": "", "aware": OFFSET}
"""Patterns of the offset from UTC, by what pydantic asks of the time zone."""


def _whole(pattern: str) -> dict[str, Any]:
    """Schema of the texts that match. Servers read plain groups alike."""
    return {"type": "string", "pattern": f"^({pattern})$".replace("(?:", "(")}


def _offset(schema: Mapping[str, Any]) -> str:
    return OFFSETS.get(schema.get("tz_constraint"), OFFSETS[None])


def generator_of(cores: list[Any]) -> type[GenerateJsonSchema]:
    """Generator of JSON Schemas that also describe the keys of a dict. Other
    checks, such as bounds of a key, are left to pydantic.

    It collects the core schemas in `cores`, and lists in each schema their numbers under MARK.
    """
    from pydantic.errors import PydanticInvalidForJsonSchema
    from pydantic.json_schema import GenerateJsonSchema

    class Generated(GenerateJsonSchema):
        def generate_inner(self, schema: Any) -> dict[str, Any]:
            found = super().generate_inner(schema)
            cores.append(schema)
            return {**found, MARK: [*found.get(MARK, ()), len(cores) - 1]}

        def _arms(self, schema: Any) -> Iterator[dict[str, Any]]:
            """The schemas of which a value meets one."""
            schema = self.resolve_ref_schema(schema) if "$ref" in schema else schema
            arms = schema.get("anyOf", schema.get("oneOf"))
            if arms is None:
                yield schema
            for arm in arms or ():
                yield from self._arms(arm)

        def dict_schema(self, schema: core_schema.DictSchema) -> dict[str, Any]:
            found = super().dict_schema(schema)
            keys = found.pop("propertyNames", None) or (
                self.generate_inner(schema["keys_schema"]) if "keys_schema" in schema else {}
            )
            if "$ref" in keys:
                keys = self.resolve_ref_schema(keys)
            names = keys.get("enum", [keys["const"]] if "const" in keys else None)
            if names is not None and _are_compared(schema.get("keys_schema", {})):
                names = [name for name in names if isinstance(name, str | bool)]
            if names == [] or not any(map(_may_be_key, self._arms(keys))):
                raise PydanticInvalidForJsonSchema(NO_KEYS)
            pattern = KEYS.get(str(keys.get("format", keys.get("type"))))
            values = found.get("additionalProperties", {})
            if names is not None and all(isinstance(name, str) for name in names):
                found |= {"properties": dict.fromkeys(names, values), "additionalProperties": False}
            elif pattern is not None:
                found |= {"patternProperties": {pattern: values}, "additionalProperties": False}
            elif "patternProperties" in found:
                found["additionalProperties"] = False
            return found

        def date_schema(self, schema: core_schema.DateSchema) -> dict[str, Any]:
            return _whole(DATE)

        def datetime_schema(self, schema: core_schema.DatetimeSchema) -> dict[str, Any]:
            offset = _offset(schema)
            clock = f"[T ]{CLOCK}{offset}"
            return _whole(f"({DATE}){clock}" if offset == OFFSET else f"({DATE})({clock})?")

        def time_schema(self, schema: core_schema.TimeSchema) -> dict[str, Any]:
            return _whole(CLOCK + _offset(schema))

        def timedelta_schema(self, schema: core_schema.TimedeltaSchema) -> dict[str, Any]:
            found = super().timedelta_schema(schema)
            return _whole(DURATION) if found.get("type") == "string" else found

        def uuid_schema(self, schema: core_schema.UuidSchema) -> dict[str, Any]:
            version = schema.get("version")
            if version is None:
                return super().uuid_schema(schema)
            digit = "[0-9a-fA-F]"
            return _whole(f"{digit}{{8}}-{digit}{{4}}-{version}{digit}{{3}}-[89abAB]{digit}{{3}}-{digit}{{12}}")

        def decimal_schema(self, schema: core_schema.DecimalSchema) -> dict[str, Any]:
            found = super().decimal_schema(schema)
            arms = [
                _whole(f"-?{_UNSIGNED}") if each.get("type") == "string" else each for each in found.get("anyOf", ())
            ]
            return {**found, "anyOf": arms} if arms else found

        def json_schema(self, schema: core_schema.JsonSchema) -> dict[str, Any]:
            raise PydanticInvalidForJsonSchema(
                "Json[..] is JSON inside a text; write the type that it holds without Json"
            )

    return Generated
