"""Regular expressions of Python for the `pattern` of a JSON Schema, whose readers differ from Python's `re`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

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
