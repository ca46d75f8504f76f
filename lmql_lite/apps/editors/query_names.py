"""Names in a query for editors: the meaning of a word, and every place that names a hole."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from lmql_lite.apps.examination import Examination
from lmql_lite.errors import Span
from lmql_lite.lang import nodes
from lmql_lite.lang.keywords import CONSTRAINTS, DECODERS
from lmql_lite.lang.names import Names, values
from lmql_lite.lang.scope import python_of
from lmql_lite.lang.source import span_of
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


@dataclass(frozen=True, slots=True)
class NamePlace:
    """A place that names a hole. A definition is the hole itself."""

    name: str
    span: Span
    kind: Literal["definition", "use"]


def hole_places(found: Examination) -> list[NamePlace]:
    """Every place of every hole, in source order; none where the query cannot be read."""
    if found.tree is None or found.scope is None:
        return []
    return sorted(_places(found.tree, frozenset(found.scope.holes), found), key=lambda place: place.span.start)


def _places(tree: nodes.QueryNode, holes: frozenset[str], found: Examination) -> Iterator[NamePlace]:
    trees: list[ast.AST] = [*tree.body]
    distributions = [tree.distribution] if tree.distribution else []
    for prompt in tree.prompts.values():
        trees += python_of(prompt)
        trees += [prompt.where.tree] if prompt.where else []
        distributions += [prompt.distribution] if prompt.distribution else []
    for hole in tree.holes:
        if span := _name_in(hole):
            yield NamePlace(hole.name, span, "definition")
    trees += [tree.where.tree] if tree.where else []
    trees += [tree.distribution.options.tree] if tree.distribution else []
    for each in distributions:
        name = re.compile(rf"\b{re.escape(each.name)}\b").search(each.span.text, each.span.start + len("distribution"))
        if name:
            yield NamePlace(each.name, found.source.span(*name.span()), "use")
    names = Names().scan(trees)
    for node in (*names.reads, *names.stores):
        if node.id in holes:
            yield NamePlace(node.id, span_of(node, tree.span), "use")


def _name_in(hole: nodes.HoleNode) -> Span | None:
    """Place of the name in `[@decorators call NAME: annotation]`."""
    text = list(hole.span.source)
    for part in (hole.annotation, hole.call, *hole.decorators):
        if part is not None:
            start, end = part.span.start - hole.span.start, part.span.end - hole.span.start
            text[start:end] = " " * (end - start)
    name = re.search(rf"\b{re.escape(hole.name)}\b", "".join(text))
    if name is None:  # written with other forms of the same letters
        return None
    start = hole.span.start + name.start()
    return hole.span.at(start, start + len(hole.name))


# Meanings ----------------------------------------------------------------------------------------------------------


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
    places = hole_places(found)
    if any(place.span.start <= offset <= place.span.end for place in places):
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
