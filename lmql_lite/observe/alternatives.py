"""Alternatives of a chosen token: the likeliest other tokens at its place, with the clauses that forbid them."""

from __future__ import annotations

from dataclasses import dataclass

from lmql_lite.cache.tokens.scores import TopK
from lmql_lite.constraints.matcher import HoleMatcher, Matcher
from lmql_lite.constraints.terms import And
from lmql_lite.engine.events import Choosable
from lmql_lite.errors import ConstraintError

MIN_LOGPROB = -7.0
"""Minimum raw log-probability of an alternative: about one in a thousand."""
MAX_LENGTH = 4096
"""Maximum length of a value whose clauses are tested one by one, in bytes: each clause reads the whole value."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that was likely at a place. `data` is None for end-of-text.

    `clause` is the source of the clause that alone forbids the token. It is None for an allowed token, and for one that
    is forbidden by several clauses together or by the number of tokens left.
    """

    id: int
    data: bytes | None
    logprob: float
    is_allowed: bool
    clause: str | None


def alternatives(choosable: Choosable, most: int) -> list[Alternative]:
    """At most `most` alternatives at a place, likeliest first; none if the scores are evicted."""
    entry = choosable.tree.scores(choosable.node)
    if entry is None:
        return []
    head = entry.scores if isinstance(entry.scores, TopK) else entry.scores.top_k()
    vocabulary = choosable.engine.vocabulary
    likely = [
        (token, float(logprob))
        for token, logprob in zip(head.ids.tolist(), head.logprobs, strict=True)
        if logprob >= MIN_LOGPROB and (vocabulary.tokens[token] is not None or token in vocabulary.eos)
    ][:most]
    allowed = [bool(choosable.mask[token]) for token, _ in likely]
    clauses = [] if all(allowed) or len(choosable.matcher.text) > MAX_LENGTH else _clauses(choosable)
    return [
        Alternative(token, vocabulary.tokens[token], logprob, may, None if may else _guilty(choosable, clauses, token))
        for (token, logprob), may in zip(likely, allowed, strict=True)
    ]


def _clauses(choosable: Choosable) -> list[tuple[str, Matcher]]:
    """Each clause by itself, with its matcher at this place of the hole. A JSON value has one clause: its type."""
    op = choosable.op
    if not isinstance(choosable.matcher, HoleMatcher):
        return [(op.type.span.source, choosable.matcher)] if op.type else []
    parts = choosable.term.terms if isinstance(choosable.term, And) else (choosable.term,)
    found: list[tuple[str, Matcher]] = []
    for part in parts:
        if part.span is None:
            continue
        try:
            alone: Matcher = choosable.engine.matcher(part, b"", MAX_LENGTH, op.name, op.span)
            if choosable.matcher.text:
                alone = alone.advance(choosable.matcher.text, tokens=0)
        except (ConstraintError, ValueError):  # the clause alone needs more tokens, or the value ended inside it
            continue
        if alone.ending is None:
            found.append((part.span.source, alone))
    return found


def _guilty(choosable: Choosable, clauses: list[tuple[str, Matcher]], token: int) -> str | None:
    data = choosable.engine.vocabulary.tokens[token]
    """The clause that alone forbids a token; None if no clause does."""
    for source, matcher in clauses:
        if data is None:
            if not matcher.may_end:
                return source
        elif data.startswith(choosable.held):
            new = data[len(choosable.held) :]
            if matcher.longest_valid(new) < len(new):
                return source
    return None
