"""JSON Schemas as grammars of llguidance, and llguidance's errors as sentences. Needs no vocabulary.

Values are written as `json.dumps` writes them, `{"a": 1, "b": [2, 3]}`, with letters of any script unescaped. Fixed
white space keeps the model from rambling and forces more bytes. This is the form that models have read most often.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

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
