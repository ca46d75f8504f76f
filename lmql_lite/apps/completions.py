"""Completions for editors: words of the language, and names in a query."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lmql_lite.apps.examination import Examination
from lmql_lite.lang.keywords import CLAUSES, CONSTRAINTS, DECODERS, ROLES, TYPES

WORDS: Mapping[str, Sequence[str]] = {
    "clauses": CLAUSES,
    "decoders": DECODERS,
    "constraints": CONSTRAINTS,
    "types": TYPES,
    "roles": tuple(ROLES),
    "python": tuple(keyword.kwlist),
}
KINDS = {"clauses": "clause", "decoders": "decoder", "constraints": "constraint", "types": "type", "python": "python"}
"""Kinds of completions; a role is none, since it is written in its tag only."""

_HOLE = re.compile(r"(?<!\[)(?:\[\[)*\[(?:[@\w][^\[\]\n]*\s)?([A-Z][A-Z0-9_]*)\s*[\]:]")
"""Holes of a text that cannot be parsed: names in capitals, since `[i]` may be an index."""


class Completion(NamedTuple):
    label: str
    kind: str


def holes_of(found: Examination) -> tuple[str, ...]:
    """Names of the holes; in a text that cannot be parsed, of what looks like one."""
    return found.scope.holes if found.scope else tuple(dict.fromkeys(_HOLE.findall(found.source.text)))


def inputs_of(found: Examination) -> tuple[str, ...]:
    return tuple(each.name for each in found.scope.inputs) if found.scope else ()


def completions(found: Examination) -> list[Completion]:
    return [
        *(Completion(name, "hole") for name in holes_of(found)),
        *(Completion(name, "input") for name in inputs_of(found)),
        *(Completion(word, KINDS[name]) for name in KINDS for word in WORDS[name]),
    ]
