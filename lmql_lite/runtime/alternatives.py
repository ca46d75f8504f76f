"""What might have come where a token was chosen, and which clause forbade it. Worked out only where a watcher asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lmql_lite.cache.head import Head
from lmql_lite.cache.scores import Mask
from lmql_lite.cache.tree import Node, TokenTree
from lmql_lite.constraints.hole import Engine, HoleMatcher
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.constraints.terms import And, Term
from lmql_lite.errors import ConstraintError
from lmql_lite.program.ops import Hole

LEAST = -7.0
"""The raw log-probability below which a token is no alternative: one in a thousand."""
LONGEST = 4096
"""Bytes of a value up to which clauses are told apart: each is asked anew about all of it."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that the model had in mind. `data` is None for the end of the text.

    `clause`: the source of the clause that forbids it all by itself; None where it is allowed, and where it takes
    several clauses, or the number of tokens that are left.
    """

    id: int
    data: bytes | None
    logprob: float
    is_allowed: bool
    clause: str | None


class Choosable(NamedTuple):
    """Where a token was chosen: behind `node`, in the hole `op`, from those that `mask` allows. `matcher` and `held` as
    in `Matcher.allowed`. `term` is the hole's condition, None as long as nobody has said it."""

    tree: TokenTree
    node: Node
    engine: Engine
    op: Hole
    matcher: Matcher
    held: bytes
    mask: Mask
    term: Term | None = None

    @property
    def allowed(self) -> int:
        """How many tokens were allowed."""
        return int(self.mask.sum())

    def alternatives(self, most: int) -> list[Alternative]:
        """At most so many, likeliest first; none where the scores are not at hand any more."""
        fact = self.tree.scores(self.node)
        if fact is None:
            return []
        head = fact.scores if isinstance(fact.scores, Head) else fact.scores.head()
        vocabulary = self.engine.vocabulary
        likely = [
            (token, float(logprob))
            for token, logprob in zip(head.ids.tolist(), head.logprobs, strict=True)
            if logprob >= LEAST and (vocabulary.tokens[token] is not None or token in vocabulary.eos)
        ][:most]
        allowed = [bool(self.mask[token]) for token, _ in likely]
        clauses = [] if all(allowed) or len(self.matcher.text) > LONGEST else self._clauses()
        return [
            Alternative(token, vocabulary.tokens[token], logprob, may, None if may else self._guilty(clauses, token))
            for (token, logprob), may in zip(likely, allowed, strict=True)
        ]

    def _clauses(self) -> list[tuple[str, Matcher]]:
        """Each conjunct on its own, where the hole stands now. A value of JSON has one: its type."""
        op = self.op
        if not isinstance(self.matcher, HoleMatcher):
            return [(op.type.span.source, self.matcher)] if op.type else []
        parts = self.term.terms if isinstance(self.term, And) else (self.term,)
        found: list[tuple[str, Matcher]] = []
        for part in parts:
            if part is None or part.span is None:
                continue
            try:
                alone: Matcher = self.engine.matcher(part, b"", LONGEST, op.name, op.span)
                if self.matcher.text:
                    alone = alone.advance(self.matcher.text, tokens=0)
            except (ConstraintError, ValueError):  # too few tokens for it alone, or ended in the middle
                continue
            if alone.ending is None:
                found.append((part.span.source, alone))
        return found

    def _guilty(self, clauses: list[tuple[str, Matcher]], token: int) -> str | None:
        data = self.engine.vocabulary.tokens[token]
        for source, matcher in clauses:
            if data is None:
                if not matcher.may_end:
                    return source
            elif data.startswith(self.held):
                new = data[len(self.held) :]
                if matcher.longest_valid(new) < len(new):
                    return source
        return None
