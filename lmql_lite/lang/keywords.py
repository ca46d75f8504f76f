"""The words that mean something in a query: one table for parser, scope, compiler and editors.

Only Python's own keywords are reserved. Every word here is soft: `where = 3` or `argmax = max` stay plain Python.
"""

from __future__ import annotations

from collections.abc import Mapping

from lmql_lite import options
from lmql_lite.tokens import Role

DECODERS = tuple(options.DECODERS)
"""First word of a header, or of a hole before its name."""

DECODERS_NOT_YET = tuple(options.NEAREST)

MARKS = ("lq", "lmql")
"""Marks of a docstring that is a query: one of them stands alone on its first line."""

CLAUSES = ("from", "where", "distribution")
INLINE_CLAUSES = ("where", "distribution")

ROLES: Mapping[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
"""Roles by the word of their tag: `{:user}`."""

STOPS = ("STOPS_AT", "STOPS_BEFORE")
"""Functions of a `where` clause that end a hole."""

CONSTRAINTS = (
    *STOPS,
    "STARTS_WITH",
    "ENDS_WITH",
    "TOKENS",
    "CHARS",
    "WORDS",
    "SENTENCES",
    "LINES",
    "INT",
    "FLOAT",
    "REGEX",
    "DATE",
)
"""Functions of a `where` clause. Their first argument is a hole."""

OF_LMQL: Mapping[str, tuple[str, ...]] = {
    "lmql": (),
    "lmql.decorators": ("post", "pre", "streaming"),
    "lmql.http": ("fetch",),
    "lmql.lib": (),
    "lmql.lib.actions": ("calc", "inline_use", "reAct", "wiki"),
    "lmql.lib.chat": ("message",),
}
"""Modules of LMQL that a query may import, with their names. `lmql` itself is this package."""

NOT_OF_LMQL: Mapping[str, str] = {
    "algorithms": "a query has map()",
    "graph": "queries call each other in their holes, and there is no graph of them: leave the line out",
    "models": "model= names a model: demo, local:PATH, openai/NAME",
    "ops": "a condition of your own is a Python function of the hole",
    "runtime": "these were inner parts of LMQL: leave the line out",
}
"""Modules of LMQL that do not exist here, and their replacements."""

MODULES: Mapping[str, str] = {"re": "re", **dict.fromkeys(MARKS, "lmql_lite")}
"""Modules that every query has without importing them, unless it binds the name or is given it: name -> module."""

BLOCK = "block"
"""Function that marks text as a block: `{block(text)}`. Every query has it unless it binds the name or is given it."""

CONTEXT = ("prompt", "score")
"""Attributes of `context`."""

PROVIDED = ("context", BLOCK, *MODULES)
"""Names that every query can read without being given them."""

MEDIA = ("image", "video", "audio")
"""Functions that make pictures, videos and clips for a prompt, if the query does not bind the name and only calls it.
Otherwise the name is an input."""

TYPES = ("Literal", "Optional", "Union", "Annotated", "Any", "Enum", "date", "datetime")
"""Names that the annotation of a hole can use without an import."""

DATES = ("date", "datetime")
"""Names that a `where` clause can use without an import, unless they are inputs."""
