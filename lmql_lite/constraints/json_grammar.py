"""The rules of JSON in the words of llguidance, and what it says of them as sentences. Needs no vocabulary.

Values are spelled as `json.dumps` does, `{"a": 1, "b": [2, 3]}`, with letters of any script as themselves: one fixed
white space leaves the model no way to ramble and forces more bytes; this is the one that models have read most.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from lmql_lite.errors import ConstraintError, Span

SPELLING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
IMPOSSIBLE = "Unsatisfiable schema: "
"""How llguidance begins its sentence about a schema that no value has."""

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
"""What llguidance says, as a pattern; what is said instead; and the hint."""


def grammar(schema: Mapping[str, Any] | bool, *, free_spelling: bool = False) -> str:
    """A JSON Schema in the words of llguidance. Options of it that the schema brings along, `x-guidance`, stay.

    With `free_spelling` white space may stand wherever JSON lets it: servers have habits of their own.
    """
    if not isinstance(schema, bool):
        spelling = {"whitespace_flexible": True} if free_spelling else SPELLING
        schema = {**schema, "x-guidance": {**spelling, **schema.get("x-guidance", {})}}
    return f'%llguidance {{"no_forcing": true}}\nstart: %json {json.dumps(schema)}'


def refuse_impossible(rules: str, name: str, span: Span) -> None:
    """Raises ConstraintError for a grammar that no text can meet, or that llguidance cannot follow.

    Needs no vocabulary: a query can be refused when it is compiled.
    """
    from llguidance import LLMatcher

    reason = LLMatcher.validate_grammar(rules)
    if reason:
        raise refusal(reason, name, span)


def refusal(reason: str, name: str, span: Span) -> ConstraintError:
    """An error of llguidance as a sentence: its first line, without the place in a grammar that nobody wrote."""
    said = reason.partition("\n")[0].partition("JSON schema: ")
    sentence = said[2] or said[0]
    if sentence.startswith(IMPOSSIBLE):
        said_why = sentence.removeprefix(IMPOSSIBLE)
        return ConstraintError(f"nothing can fill [{name}]: no value has this type, {said_why}", span=span)
    hint = "a type is guided by its JSON Schema; leave out what that cannot say, and ask for it in `where`"
    for pattern, better, mended in REFUSALS:
        if known := re.search(pattern, sentence):
            sentence, hint = known.expand(better), known.expand(mended)
            break
    return ConstraintError(f"the type of [{name}] cannot guide a model: {sentence}", span=span, hint=hint)
