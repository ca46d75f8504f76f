"""The words of the language, as an editor wants to know them."""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence

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
"""Of those that are offered where somebody types."""
