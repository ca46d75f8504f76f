"""The meaning of a word in a query, for editors."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from lmql_lite.apps.examination import Examination
from lmql_lite.errors import Span
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import CONSTRAINTS, DECODERS
from lmql_lite.lang.names import values
from lmql_lite.options import DECODERS as DECODER_ROWS
from lmql_lite.options import OPTIONS

WORD = re.compile(r"[^\W\d]\w*")

CONSTRAINT_HELP: Mapping[str, str] = {
    "STOPS_AT": "`STOPS_AT(X, phrase)` ends X with the phrase, which is part of it.",
    "STOPS_BEFORE": "`STOPS_BEFORE(X, phrase)` ends X before the phrase, which is not part of it.",
    "STARTS_WITH": "`STARTS_WITH(X, text)`: X begins with the text, or with one of a list.",
    "ENDS_WITH": "`ENDS_WITH(X, text)`: X ends with the text, or with one of a list.",
    "TOKENS": "`len(TOKENS(X)) < n`: number of the model's tokens in X.",
    "CHARS": "`len(CHARS(X)) < n`: number of characters in X, as `len(X)`.",
    "WORDS": "`len(WORDS(X)) < n`: number of words in X.",
    "SENTENCES": "`len(SENTENCES(X)) < n`: number of sentences in X.",
    "LINES": "`len(LINES(X)) < n`: number of lines in X.",
    "INT": "`INT(X)`: X is a whole number, and its value an `int`.",
    "FLOAT": "`FLOAT(X)`: X is a number, and its value a `float`.",
    "REGEX": '`REGEX(X, r"...")`: X matches the regular expression as a whole.',
    "DATE": "`DATE(X)`: X is a date, such as 2026-11-23; its value is still text.",
}


def word_at(found: Examination, offset: int) -> Span | None:
    """The word at or before an offset of the query."""
    text = found.source.text
    begin = text.rfind("\n", 0, offset) + 1
    for word in WORD.finditer(text, begin):
        if word.start() <= offset <= word.end():
            return found.source.span(*word.span())
        if word.start() > offset:
            break
    return None


def meaning(found: Examination, offset: int) -> str | None:
    """Help for the word at an offset, in Markdown; None for a word of Python or of the prompt's text."""
    word = word_at(found, offset)
    if word is None or found.tree is None or found.scope is None:
        return None
    if word.source in found.scope.holes and not _is_prompt_text(found.tree, offset):
        return _hole(found.tree, word.source)
    if option := _header_word(found.tree, word):
        return option
    if word.source in CONSTRAINTS and word.source in found.scope.constraints:
        return CONSTRAINT_HELP[word.source]
    if any(each.name == word.source for each in found.scope.inputs) and not _is_prompt_text(found.tree, offset):
        return (
            f"`{word.source}` is an input of the query: `--var {word.source}=...`, or `run({{{word.source!r}: ...}})`."
        )
    return None


def _hole(tree: nodes.QueryNode, name: str) -> str:
    lines = [f"`{hole.span.source}`, a hole that the model fills." for hole in tree.holes if hole.name == name]
    wheres = [where for where in [*(each.where for each in tree.prompts.values()), tree.where] if where]
    for where in wheres:
        body = where.tree.body
        parts = body.values if isinstance(body, ast.BoolOp) and isinstance(body.op, ast.And) else [body]
        lines += [f"`{ast.unparse(part)}`" for part in parts if name in {each.id for each in values(part)}]
    return "\n\n".join(dict.fromkeys(lines))


def _header_word(tree: nodes.QueryNode, word: Span) -> str | None:
    """Help for a decoder or an option, in the header of the query or of a hole."""
    calls = [each.span for each in (tree.decoder, *(hole.call for hole in tree.holes)) if each]
    if not any(call.start <= word.start < call.end for call in calls):
        return None
    if word.source in DECODERS:
        return f"`{word.source}`: {DECODER_ROWS[word.source].help}."
    if word.source in OPTIONS:
        row = OPTIONS[word.source]
        return f"`{word.source}`: {row.help}" + (f" Values: {row.values}." if row.values else "")
    return None


def _is_prompt_text(tree: nodes.QueryNode, offset: int) -> bool:
    parts = [part for prompt in tree.prompts.values() for part in prompt.parts]
    literals = [part.span for part in parts if isinstance(part, nodes.LiteralNode)]
    return any(span.start <= offset < span.end for span in literals)
