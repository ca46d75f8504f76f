"""Writes what editors know of the language: the page's table of words, and the grammar for TextMate's readers.

`python playground/words.py` after a change in `lmql_lite/lang/keywords.py`; a test compares.
"""

from __future__ import annotations

import json
import keyword
from pathlib import Path
from typing import Any

from lmql_lite.lang import keywords

TOP = Path(__file__).parent.parent
GRAMMAR = TOP / "grammar" / "lq.tmLanguage.json"
TABLE = TOP / "playground" / "src" / "words.js"

CONSTANTS = ("True", "False", "None")


def table() -> dict[str, list[str]]:
    """The words by what they are."""
    return {
        "clauses": list(keywords.CLAUSES),
        "decoders": list(keywords.DECODERS),
        "roles": list(keywords.ROLES),
        "constraints": list(keywords.CONSTRAINTS),
        "types": list(keywords.TYPES),
        "provided": list(keywords.PROVIDED),
        "python": [word for word in keyword.kwlist if word not in CONSTANTS],
        "soft": ["match", "case"],  # keywords only where a statement begins
        "constants": list(CONSTANTS),
    }


def module() -> str:
    """The table as a module of the page."""
    return (
        "// Made by playground/words.py from lmql_lite/lang/keywords.py.\n"
        f"export const WORDS = {json.dumps(table(), indent=2)};\n"
    )


def grammar() -> str:
    """The grammar for TextMate's readers: VS Code, Sublime Text, GitHub."""
    return json.dumps(_grammar(table()), indent=2) + "\n"


def _grammar(words: dict[str, list[str]]) -> dict[str, Any]:
    def any_of(kind: str) -> str:
        return rf"\b(?:{'|'.join(sorted(words[kind], key=len, reverse=True))})\b"

    return {
        "name": "lq",
        "scopeName": "source.lq",
        "fileTypes": ["lq", "lmql"],
        "comment": "Made by playground/words.py from lmql_lite/lang/keywords.py.",
        "patterns": [{"include": f"#{name}"} for name in ("header", "soft", "clause", "prompt", "python")],
        "repository": {
            "header": {
                "match": rf"^\s*({any_of('decoders')})(?=\s*(?:\(|$|#|[\"']))",
                "captures": {"1": {"name": "keyword.control.decoder.lq"}},
            },
            "soft": {
                "match": rf"^\s*({any_of('soft')})(?=\s+[^\s=.,)].*:)",
                "captures": {"1": {"name": "keyword.control.python"}},
            },
            "clause": {"match": any_of("clauses"), "name": "keyword.control.clause.lq"},
            "prompt": {
                "patterns": [
                    _prompt(r'^\s*("""|\'\'\')', r"\1"),
                    _prompt(r'^\s*("|\')', r"\1|$"),
                    _prompt(r'(?<=;)\s*("|\')', r"\1|$"),
                ]
            },
            "inside": {
                "patterns": [
                    {"match": r"\[\[|\]\]|\{\{|\}\}", "name": "constant.character.escape.lq"},
                    {"match": r"\\(?:N\{[^}]*\}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-7]{1,3}|.|$)",
                     "name": "constant.character.escape.lq"},
                    {"match": rf"\{{:({'|'.join(words['roles'])})\}}", "name": "entity.name.tag.role.lq"},
                    {"include": "#hole"},
                    {
                        "begin": r"\{",
                        "end": r"\}",
                        "beginCaptures": {"0": {"name": "punctuation.section.embedded.begin.lq"}},
                        "endCaptures": {"0": {"name": "punctuation.section.embedded.end.lq"}},
                        "contentName": "source.python.embedded.lq",
                        "patterns": [{"include": "#python"}],
                    },
                ]
            },
            "hole": {
                "begin": r"\[",
                "end": r"\]",
                "name": "meta.hole.lq",
                "beginCaptures": {"0": {"name": "punctuation.definition.hole.begin.lq"}},
                "endCaptures": {"0": {"name": "punctuation.definition.hole.end.lq"}},
                "patterns": [
                    {"match": any_of("decoders"), "name": "keyword.control.decoder.lq"},
                    {"match": r"@\s*[A-Za-z_][\w.]*", "name": "entity.name.function.decorator.lq"},
                    {
                        "match": r"([A-Za-z_]\w*)\s*(:)\s*([^\]\[]*(?:\[[^\]]*\][^\]\[]*)*)(?=\])",
                        "captures": {
                            "1": {"name": "variable.other.hole.lq"},
                            "2": {"name": "punctuation.separator.annotation.lq"},
                            "3": {"name": "support.type.lq"},
                        },
                    },
                    {"match": r"[A-Za-z_]\w*(?=\s*\])", "name": "variable.other.hole.lq"},
                    {"include": "#python"},
                ],
            },
            "python": {
                "patterns": [
                    {"match": r"#.*$", "name": "comment.line.number-sign.lq"},
                    {"match": any_of("constraints"), "name": "support.function.constraint.lq"},
                    {"match": any_of("constants"), "name": "constant.language.python"},
                    {"match": any_of("python"), "name": "keyword.control.python"},
                    {"match": r"\b(?:0[xX][0-9A-Fa-f_]+|\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d+)?)\b",
                     "name": "constant.numeric.python"},
                    {"begin": r'([rRbBfFuU]{0,2})("""|\'\'\')', "end": r"\2", "name": "string.quoted.triple.python",
                     "patterns": [{"match": r"\\.", "name": "constant.character.escape.python"}]},
                    {"begin": r"([rRbBfFuU]{0,2})(\"|')", "end": r"\2|$", "name": "string.quoted.single.python",
                     "patterns": [{"match": r"\\.", "name": "constant.character.escape.python"}]},
                    {"match": any_of("types"), "name": "support.type.lq"},
                ]
            },
        },
    }  # fmt: skip


def _prompt(begin: str, end: str) -> dict[str, Any]:
    return {
        "begin": begin,
        "end": end,
        "name": "string.interpolated.prompt.lq",
        "beginCaptures": {"1": {"name": "punctuation.definition.string.begin.lq"}},
        "endCaptures": {"0": {"name": "punctuation.definition.string.end.lq"}},
        "patterns": [{"include": "#inside"}],
    }


if __name__ == "__main__":
    TABLE.write_text(module(), "utf-8", newline="\n")
    GRAMMAR.write_text(grammar(), "utf-8", newline="\n")
