"""JSON Schemas as grammars of llguidance, and llguidance's errors as sentences. Needs no vocabulary.

Values are written as `json.dumps` writes them, `{"a": 1, "b": [2, 3]}`, with letters of any script unescaped. Fixed
white space keeps the model from rambling and forces more bytes. This is the form that models have read most often.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal
from urllib.parse import unquote

from lmql_lite.errors import ConstraintError, Span

SPELLING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
IMPOSSIBLE = "Unsatisfiable schema: "
"""Beginning of llguidance's error for a schema that no value meets."""

REFUSALS = (
    (
        r"Unimplemented keys: \[(.*)\]",
        r"its JSON Schema has \1, which no grammar can say",
        "leave it out and ask for it in `where`, where Python judges the value",
    ),
    (
        r"Unknown format: (.*)",
        r"its JSON Schema has the format '\1', which is not known",
        'write a "pattern" in its place, or ask for it in `where`',
    ),
    (
        r"lookarounds not supported|regex parse error",
        "it has a pattern that no grammar can follow",
        r"look-around, back-references and \\b cannot guide; ask for them in `where`, with Python's re",
    ),
    (r"oneOf constraints", "its JSON Schema has oneOf, which no grammar can say", "write anyOf"),
    (r"Pointer '(.*)' does not exist", r"its JSON Schema has no '\1'", 'a "$ref" names what stands under "$defs"'),
    (
        r"Resource '(.*?)' is not present",
        r"its JSON Schema refers to '\1'",
        'nothing is fetched; write what it says under "$defs"',
    ),
)
"""Triples: a pattern of llguidance's errors, the sentence in its place, and the hint."""

CONTRADICTIONS = (
    (r"Regex is empty", "its pattern, format and length contradict each other"),
    (r"range \[.*\] does not contain a multiple of (.*)", r"no number within its bounds is a multiple of \1"),
    (r"anyOf is empty", "its list of alternatives is empty"),
    (r"incompatible types", "its parts ask for different types"),
)
"""Pairs: a pattern of llguidance's reasons for a schema that no value meets, and the sentence in its place."""


def grammar(schema: Mapping[str, Any] | bool, *, free_spelling: bool = False) -> str:
    """llguidance's grammar of a JSON Schema. Options in the schema's own `x-guidance` take precedence.

    With `free_spelling`, white space may stand wherever JSON allows it, because servers format JSON differently.
    """
    if not isinstance(schema, bool):
        spelling = {"whitespace_flexible": True} if free_spelling else SPELLING
        schema = {**schema, "x-guidance": {**spelling, **schema.get("x-guidance", {})}}
    return f'%llguidance {{"no_forcing": true}}\nstart: %json {json.dumps(schema)}'


def refuse_impossible(rules: str, name: str, span: Span) -> None:
    """Raises ConstraintError for a grammar that no text can meet, or that llguidance cannot follow.

    Needs no vocabulary, so a query can be refused when it is compiled.
    """
    from llguidance import LLMatcher

    reason = LLMatcher.validate_grammar(rules)
    if reason:
        raise refusal(reason, name, span)


def is_impossible(rules: str) -> bool:
    """True if llguidance finds that no text meets the grammar."""
    from llguidance import LLMatcher

    return IMPOSSIBLE in LLMatcher.validate_grammar(rules)


def refusal(reason: str, name: str, span: Span) -> ConstraintError:
    """ConstraintError for an error of llguidance: its first line, without the position in a generated grammar."""
    said = reason.partition("\n")[0].partition("JSON schema: ")
    sentence = said[2] or said[0]
    if sentence.startswith(IMPOSSIBLE):
        said_why = sentence.removeprefix(IMPOSSIBLE)
        for pattern, better in CONTRADICTIONS:
            if known := re.match(pattern, said_why):
                said_why = known.expand(better)
        return ConstraintError(f"nothing can fill [{name}]: no value has this type, {said_why}", span=span)
    hint = "a type is guided by its JSON Schema; leave out what that cannot say, and ask for it in `where`"
    for pattern, better, mended in REFUSALS:
        if known := re.search(pattern, sentence):
            sentence, hint = known.expand(better), known.expand(mended)
            break
    return ConstraintError(f"the type of [{name}] cannot guide a model: {sentence}", span=span, hint=hint)


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


Way = Literal["match", "fullmatch", "search"]
PART = re.compile(
    r"""
    (?P<plain>[^\\.^$*+?{}\[\]|()])
    | (?P<escape>\\(?:[^A-Za-z0-9<>\s]|[dDsSwnrt]))
    | (?P<any>\.) | (?P<group>\((?:\?:)?(?!\?)) | (?P<close>\)) | (?P<either>\|)
    | (?P<repeat>(?:[*+?]|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})\??(?![*+?{]))
    | \[(?P<not>\^?)(?P<class>(?:[^\\\[\]^&~|-]|\\(?:[^A-Za-z0-9<>\s]|[dswnrt])|(?<=[A-Za-z0-9])-(?=[A-Za-z0-9]))+-?)\]
    """,
    re.VERBOSE,
)
"""Parts of patterns that mean the same everywhere, or at least as much as in Python when they are `WIDENED`."""
WIDENED: Mapping[str, str] = {r"\d": r"\p{Nd}", r"\s": r"\s\x1c-\x1f\x85\p{Z}", r"\w": r"_\p{L}\p{M}\p{N}"}
"""Classes of characters that have more members in Python, and their members for other readers."""


def schema_pattern(pattern: str, way: Way) -> str | None:
    """A pattern that is found in every text which Python's `re.match`, `re.fullmatch` or `re.search` accepts; None if
    none is known."""
    body = pattern
    begins, ends = body.startswith("^"), body.endswith("$") and not body.endswith("\\$")
    if "|" in body and (begins or ends):
        return None
    body = body[begins : len(body) - ends]
    found, at = "", 0
    while at < len(body):
        part = PART.match(body, at)
        if part is None or (part["not"] and any(each in part["class"] for each in WIDENED)):
            return None
        text = part[0]
        if part["class"]:
            members = re.sub(r"\\.", lambda each: WIDENED.get(each[0], each[0]), part["class"])
            text = f"[{part['not']}{members}]"
        elif text in WIDENED:
            text = f"[{WIDENED[text]}]"
        found, at = found + text, part.end()
    begin = "^" if begins or way != "search" else ""
    end = "$" if way == "fullmatch" else r"\n?$" if ends else ""
    return f"{begin}(?:{found}){end}"
