"""The words that mean something in a query: one table for parser, scope, compiler and editors.

Only Python's own keywords are reserved. Every word here is soft: `where = 3` or `argmax = max` stay plain Python.
"""

from __future__ import annotations

from collections.abc import Mapping

from lmql_lite.tokens import Role

DECODERS = ("argmax", "sample", "beam", "beam_search", "beam_sample")
"""What may stand in a header or before the name of a hole."""

ALIASES: Mapping[str, str] = {"beam_search": "beam"}
"""Decoders that have two names."""

NEAREST: Mapping[str, str] = {
    "var": "beam(n=...) is nearest: it also weighs whole programs, by how likely all their text is",
    "beam_var": "beam(n=...) is nearest: it also weighs whole programs, by how likely all their text is",
    "bsseq": "beam(n=...) is nearest: its hypotheses may be of different lengths",
    "best_k": "beam(n=...) is nearest: it also keeps the best few, and looks no further back",
    "incontext": "argmax is nearest: what stands in the prompt is all that it reads",
}
"""Decoders of LMQL that this version does not have, and which one does nearest."""

DECODERS_NOT_YET = tuple(NEAREST)

MARKS = ("lq", "lmql")
"""What stands alone on the first line of a docstring that is a query."""

CLAUSES = ("from", "where", "distribution")
INLINE_CLAUSES = ("where", "distribution")

ROLES: Mapping[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
"""What may stand in a tag: `{:user}`."""

STOPS = ("STOPS_AT", "STOPS_BEFORE")
"""Functions of a `where` clause that say where a hole ends."""

CONSTRAINTS = (
    *STOPS,
    "STARTS_WITH",
    "ENDS_WITH",
    "TOKENS",
    "CHARS",
    "WORDS",
    "SENTENCES",
    "INT",
    "FLOAT",
    "REGEX",
    "DATE",
)
"""Functions of a `where` clause. Their first argument is a hole."""

GONE: Mapping[str, str] = {
    "ESCAPED": "a decorator changes the value: [@f X] with def f(value): return value.replace(...)",
    "ERASE": "a decorator takes the text out of the prompt: [@f X] with def f(value): return value, ''",
}
"""Functions of LMQL's `where` that changed a value, and what does so here."""

MODULES: Mapping[str, str] = {"re": "re", **dict.fromkeys(MARKS, "lmql_lite")}
"""Modules that every query has without importing them, unless it binds the name or is given it: name -> module."""

CONTEXT = ("prompt", "score")
"""Attributes of `context`."""

PROVIDED = ("context", *MODULES)
"""Names that every query can read without being given them."""

TYPES = ("Literal", "Optional", "Union", "Annotated", "Any", "Enum", "date", "datetime")
"""Names that the annotation of a hole can use without an import."""

DATES = ("date", "datetime")
"""What a `where` clause can use without an import, where the name is no input."""
