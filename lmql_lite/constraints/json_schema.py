"""JSON Schemas as grammars of llguidance, and llguidance's errors as sentences. Needs no vocabulary.

Values are written as `json.dumps` writes them, `{"a": 1, "b": [2, 3]}`, with letters of any script unescaped. Fixed
white space keeps the model from rambling and forces more bytes. This is the form that models have read most often.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
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


def finite_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema without the references whose values never end; None if it has no finite value.

    A value is finite if it needs no other value of the reference that it stands for. References are taken for endless
    until llguidance finds a value without those that still are.
    """
    endless = _recursive(schema)
    while ending := {each for each in endless if _ends(schema, each, endless)}:
        endless -= ending
    if not endless:
        return dict(schema)
    found = _cut(schema, endless)
    return None if schema.get("$ref") in endless or is_impossible(grammar(found)) else found


def _recursive(schema: Mapping[str, Any]) -> set[str]:
    """References that lead to themselves."""
    leads: dict[str, set[str]] = {}
    waiting = list(_references(schema))
    for each in waiting:
        if each not in leads:
            leads[each] = set(_references(_target(schema, each)))
            waiting += leads[each]
    for middle in leads:
        for several in leads.values():
            several |= leads[middle] if middle in several else set()
    return {each for each in leads if each in leads[each]}


def _references(part: Any) -> Iterator[str]:
    """The references inside a schema, to places of the same document."""
    if isinstance(part, Mapping):
        if isinstance(reference := part.get("$ref"), str) and reference.startswith("#"):
            yield reference
        part = list(part.values())
    for each in part if isinstance(part, list) else ():
        yield from _references(each)


def _target(schema: Mapping[str, Any], reference: str) -> Any:
    """The schema that a reference names; None if there is none."""
    found: Any = schema
    for part in unquote(reference[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _ends(schema: Mapping[str, Any], reference: str, endless: set[str]) -> bool:
    """True if a reference has a value that needs no value of the endless ones."""
    whole, target = "#/$defs/whole", _target(schema, reference)
    if isinstance(target, Mapping) and target.get("$ref") in endless:
        return False
    return not is_impossible(grammar({"$ref": whole + reference[1:], "$defs": {"whole": _cut(schema, endless, whole)}}))


def _cut(schema: Mapping[str, Any], endless: set[str], whole: str = "#") -> dict[str, Any]:
    """The schema with False in place of the endless references inside it, moved to the place `whole`."""

    def cut(part: Any) -> Any:
        if isinstance(part, list):
            return [cut(each) for each in part]
        if not isinstance(part, Mapping):
            return part
        return False if part.get("$ref") in endless else _cut(part, endless, whole)

    found = {key: cut(value) for key, value in schema.items()}
    if isinstance(reference := found.get("$ref"), str) and reference.startswith("#"):
        found["$ref"] = whole + reference[1:]
    return found
