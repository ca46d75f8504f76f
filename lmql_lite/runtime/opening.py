"""A hole on its way to a value: what is known of it when it opens, and what becomes of it until it closes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from lmql_lite.constraints.matcher import Matcher
from lmql_lite.constraints.terms import Term, conjunction
from lmql_lite.errors import ConstraintError
from lmql_lite.program.ops import Hole
from lmql_lite.program.schemas import JsonType
from lmql_lite.program.types import TextType
from lmql_lite.runtime.judge import Judge, Objection
from lmql_lite.runtime.writer import Filling, Writer


@dataclass(slots=True)
class OpenHole:
    """`op` has its type and its conditions; `term` is what these say, their values being known."""

    op: Hole
    term: Term
    filling: Filling
    judge: Judge
    shown: int = 0
    """So many bytes of its text have been told."""
    rejections: int = 0

    def fork(self, writer: Writer) -> OpenHole:
        return replace(self, filling=self.filling.fork(writer), judge=self.judge.fork())

    def ready(self, matcher: Matcher) -> str:
        """Text that can be told. What may still be cut or rejected waits, and so does half a character (S33)."""
        if matcher.ending is not None or self.op.may_reject:
            return ""
        ready = matcher.text[self.shown : matcher.certain].decode("utf-8", "ignore")
        self.shown += len(ready.encode())
        return ready

    def rejected(self, broken: Objection, matcher: Matcher) -> ConstraintError:
        value = matcher.value.decode("utf-8", "replace")
        if not self.op.may_reject:
            sentence = f"[{self.op.name}] is no value of its type: {value!r} ({broken.reason})"
            hint = "bound the numbers in it, such as Annotated[float, Field(ge=0, le=100)]"
            return ConstraintError(sentence, span=broken.span, hint=hint)
        tries = self.rejections + 1
        times = "the only value that was left" if tries == 1 else f"the last of {tries} values"
        return ConstraintError(
            f"[{self.op.name}] has no value that meets `{broken.span.source}`: {times} was {value!r}"
            + (f" ({broken.reason})" if broken.reason else ""),
            span=broken.span,
            hint="a higher max_backtracks tries more; a condition that needs no Python guides the model from the start",
        )


def text_term(op: Hole, term: Term) -> Term:
    """The condition with what the hole's type says of its text."""
    spec = op.type.spec if op.type else None
    return conjunction((spec.term, term)) if isinstance(spec, TextType) else term


def schema_of(op: Hole, term: Term) -> str | None:
    """The JSON Schema of a hole that is JSON."""
    spec = op.type.spec if op.type else None
    return json.dumps(spec.bounded(term, op.name, op.span)) if isinstance(spec, JsonType) else None


def matcher_of(op: Hole, term: Term, limit: int, writer: Writer) -> Matcher:
    """The beginning of the hole."""
    spec, engine = op.type.spec if op.type else None, writer.engine
    if isinstance(spec, JsonType) and op.type:
        rules = spec.rules(term, op.name, op.type.span, free_spelling=writer.spells_freely)
        return engine.grammars.matcher(rules, op.following, op.name, op.type.span)
    return engine.matcher(text_term(op, term), op.following, limit, op.name, op.span)
