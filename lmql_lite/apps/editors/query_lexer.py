"""The Pygments lexer of queries, which colours documentation, notebooks and terminals."""

from __future__ import annotations

import keyword
from typing import Any, ClassVar

from pygments.lexer import RegexLexer, bygroups, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

from lmql_lite.lang.keywords import CLAUSES, CONSTRAINTS, DECODERS, ROLES, TYPES

_DECODER = rf"(?:{'|'.join(sorted(DECODERS, key=len, reverse=True))})\b"
_CONSTANTS = ("True", "False", "None")
_PYTHON: list[Any] = [
    (r"\n|[^\S\n]+", Text),
    (r"#.*$", Comment.Single),
    (words(CONSTRAINTS, r"\b", r"\b"), Name.Builtin),
    (words(TYPES, r"\b", r"\b"), Name.Class),
    (words(_CONSTANTS, r"\b", r"\b"), Keyword.Constant),
    (words(sorted({*keyword.kwlist} - {*_CONSTANTS}), r"\b", r"\b"), Keyword),
    (r'[rRbBfFuU]{0,2}("""|\'\'\')(?:\\[\s\S]|(?!\1)[\s\S])*\1', String),
    (r"[rRbBfFuU]{0,2}([\"'])(?:\\.|(?!\1)[^\\\n])*\1", String),
    (r"\d[\w.]*", Number),
    (r"[^\W\d]\w*", Name),
    (r"[-+*/%@&|^~<>=!]+", Operator),
    (r"[()\[\]{},:.;]", Punctuation),
    (r".", Text),
]


def _prompt(end: str, text: str) -> list[Any]:
    return [
        (end, String.Double, "#pop"),
        (r"\[\[|\]\]|\{\{|\}\}|\\(?:N\{[^}]*\}|.)", String.Escape),
        (rf"\{{:(?:{'|'.join(ROLES)})\}}", Name.Tag),
        (r"\[", Punctuation, "hole"),
        (r"\{", String.Interpol, "value"),
        (text, String.Double),
    ]


class QueryLexer(RegexLexer):  # type: ignore[misc]
    """Python, in which a string that stands alone is a prompt with holes."""

    name = "lq"
    aliases: ClassVar = ["lq", "lmql"]
    filenames: ClassVar = ["*.lq", "*.lmql"]

    tokens: ClassVar = {
        "root": [
            (rf"^(\s*)({_DECODER})(?=\s*(?:\(|$|#|[\"']))", bygroups(Text, Keyword.Reserved)),
            (words(CLAUSES, r"\b", r"\b"), Keyword.Reserved),
            *[(rf"((?:^|;)\s*)({quote})", bygroups(Text, String.Double), state) for quote, state in (
                ('"""', "double-lines"), ("'''", "single-lines"), ('"', "double"), ("'", "single"))],
            *_PYTHON,
        ],
        "double": _prompt('"|$', r'[^"\\\[\]{}\n]+|.'),
        "single": _prompt("'|$", r"[^'\\\[\]{}\n]+|."),
        "double-lines": _prompt('"""', r'[^"\\\[\]{}]+|[\s\S]'),
        "single-lines": _prompt("'''", r"[^'\\\[\]{}]+|[\s\S]"),
        "hole": [
            (r"\]", Punctuation, "#pop"),
            (_DECODER, Keyword.Reserved),
            (r"@\s*[^\W\d][\w.]*", Name.Decorator),
            (r"[^\W\d]\w*(?=\s*[\]:])", Name.Variable),
            (r":", Punctuation, "annotation"),
            (r"\[", Punctuation, "brackets"),
            *_PYTHON,
        ],
        "annotation": [
            (r"(?=\])", Text, "#pop"),
            (r"\[", Punctuation, "brackets"),
            *_PYTHON,
        ],
        "brackets": [
            (r"\]", Punctuation, "#pop"),
            (r"\[", Punctuation, "#push"),
            *_PYTHON,
        ],
        "value": [
            (r"\}", String.Interpol, "#pop"),
            (r"\{", Punctuation, "#push"),
            *_PYTHON,
        ],
    }  # fmt: skip
