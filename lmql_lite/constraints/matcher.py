"""Matcher of one hole: the interface between constraints and decoders (S35)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lmql_lite.constraints.automaton import FAR, Automaton, Flags, Place
from lmql_lite.constraints.json import Grammars
from lmql_lite.constraints.masks import ChoiceMasks, Masks, Memory, Recent
from lmql_lite.constraints.simplify import conflict, counts_tokens, simplify, with_characters
from lmql_lite.constraints.terms import (
    And,
    Begins,
    Choice,
    Constant,
    Ending,
    Ends,
    Length,
    Occurrences,
    Stop,
    Term,
    atoms,
    conjuncts,
)
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.errors import ConstraintError, Span


class Matcher(Protocol):
    """Position of one hole in its constraint: an immutable value, so that a fork is an assignment.

    It reads bytes. Only `allowed` needs the vocabulary, because a server has none.
    """

    @property
    def text(self) -> bytes:
        """All bytes fed so far, those past the end of the value included."""
        ...

    @property
    def ending(self) -> Ending | None:
        """Reason for the end of the hole; None while it is open."""
        ...

    @property
    def value(self) -> bytes:
        """The value so far; after the end of the hole, the final value. `text[len(value):]` is the surplus (S14)."""
        ...

    @property
    def certain(self) -> int:
        """Number of leading bytes of `text` that stay in the value however the hole ends. They may be shown (S33)."""
        ...

    @property
    def may_end(self) -> bool:
        """True if the value meets the condition as it stands, so that the hole may be closed here."""
        ...

    def allowed(self, held: bytes, tokens_left: int) -> NDArray[np.bool_]:
        """Mask of the tokens that may be chosen now, shape (vocabulary,), read-only.

        `held` is text that is settled already but not yet on the path (S10). A token must agree with it as far as both
        go; only the bytes after it are judged here. End-of-text ids are set where the hole may end. A token is allowed
        only if the hole can still end validly within `tokens_left` tokens, this one included (S19). If all are False,
        the constraint cannot be met.
        """
        ...

    def advance(self, data: bytes, tokens: int = 1) -> Matcher:
        """Matcher after the bytes of an allowed token, `held` left out. The hole may end inside `data`. Raises
        ValueError if the bytes do not fit as that many tokens.

        `tokens` is the number of this hole's tokens in the bytes. A token that was healed over the end of the text
        before the hole counts (S15); one that an earlier hole chose does not.
        """
        ...

    def end(self, ending: Ending) -> Matcher:
        """Matcher closed here for this reason. Only valid where `may_end`."""
        ...

    def forced(self) -> bytes:
        """Bytes that must come next whatever the model prefers; b"" if it has a choice."""
        ...

    def longest_valid(self, data: bytes) -> int:
        """Number of leading bytes of `data` that fit as no tokens of this hole. For text from a server, which has not
        been masked."""
        ...


def matcher_after(matcher: Matcher, data: bytes, tokens: int) -> Matcher | None:
    """Matcher after bytes that no mask has judged; None if they do not fit as that many tokens of the hole.

    `longest_valid` cannot tell: the tokens may be too many, or just those that the bytes need.
    """
    try:
        return matcher.advance(data, tokens)
    except ValueError:
        return None


AUTOMATA_BYTES = 128 * 2**20
REFUSED_BYTES = 2**18
MAX_PHRASES = 4000
"""Most bytes of phrases whose tokens shorten distances."""


@dataclass(frozen=True, slots=True, eq=False)
class HoleMatcher:
    """A `Matcher` over an automaton, or over the options of a choice."""

    masks: Masks | ChoiceMasks
    place: Place
    text: bytes = b""
    ending: Ending | None = None
    length: int = 0
    """Number of leading bytes of `text` that are the value."""

    @property
    def value(self) -> bytes:
        return self.text[: self.length]

    @property
    def certain(self) -> int:
        return self.masks.certain(self.place, self.text) if self.ending is None else self.length

    @property
    def may_end(self) -> bool:
        return self.masks.may_end(self.place, self.value)

    @property
    def lives(self) -> bool:
        """True if the text, or some longer one, can meet the condition."""
        return self.masks.lives(self.place, self.text)

    def allowed(self, held: bytes, tokens_left: int) -> Flags:
        return self.masks.mask(self.place, self.text, held, tokens_left)

    def advance(self, data: bytes, tokens: int = 1) -> HoleMatcher:
        after = self.masks.after(self.place, self.text, data, tokens)
        if after is None:
            raise ValueError(f"{data!r} is not allowed after {self.text!r}")
        text = self.text + data
        return HoleMatcher(self.masks, after.place, text, after.ending, len(text) - after.cut)

    def end(self, ending: Ending) -> HoleMatcher:
        return replace(self, ending=ending)

    def forced(self) -> bytes:
        return b"" if self.ending is not None else self.masks.forced(self.place, self.text)

    def longest_valid(self, data: bytes) -> int:
        if self._fits(data):
            return len(data)
        return bisect_left(range(len(data)), True, key=lambda at: not self._fits(data[: at + 1]))

    def _fits(self, data: bytes) -> bool:
        return self.masks.after(self.place, self.text, data, 0) is not None


class Engine:
    """Makes matchers for one vocabulary. Equal terms share their automaton and its masks; the rest is per hole.

    Threads may share it. If the tokens of a model are not known, `token_characters` characters count as one token.
    """

    def __init__(self, vocabulary: Vocabulary, *, token_characters: int | None = None) -> None:
        self.vocabulary = vocabulary
        self._token_characters = token_characters
        self.grammars = Grammars(vocabulary)
        self._memory = Memory()
        self._automata: Recent[tuple[Term, bool], Automaton] = Recent(AUTOMATA_BYTES)
        self._opened: Recent[tuple[Term, bytes, int], HoleMatcher] = Recent(AUTOMATA_BYTES)
        """Initial matchers of holes that can be filled, by term, following text and `max_tokens`."""
        self._refused: Recent[tuple[Term, int, str, Span], ConstraintError] = Recent(REFUSED_BYTES)
        """Errors of holes that cannot be filled: naming the clauses takes much longer than finding the conflict."""

    def matcher(self, term: Term, following: bytes, max_tokens: int, name: str, span: Span) -> HoleMatcher:
        """Matcher at the beginning of a hole.

        `following` is the text known to come after the hole, b"" if it is not known. Raises ConstraintError, which
        names the clause, if nothing can fill the hole within `max_tokens` tokens.
        """
        term = self._counted(term)
        key, refusal = (term, following, max_tokens), (term, max_tokens, name, span)
        opened, refused = self._opened.get(key), self._refused.get(refusal)
        if refused is not None:
            raise _again(refused)
        if opened is not None:
            return opened
        try:
            opened = self._open(term, following, max_tokens, name, span)
        except ConstraintError as error:
            self._refused.put(refusal, _again(error), 1000)
            raise
        return self._opened.put(key, opened, opened.masks.size_bytes)

    def _open(self, term: Term, following: bytes, max_tokens: int, name: str, span: Span) -> HoleMatcher:
        masks, shortest = None, _least_characters(simplify(term))
        if shortest <= max_tokens * self.vocabulary.longest:
            masks = self._masks(term, following, max_tokens)
            shortest = masks.shortest
        if shortest >= FAR and masks is not None:
            raise self._unsatisfiable(term, name, span)
        if shortest > max_tokens or masks is None:
            raise ConstraintError(
                f"[{name}] cannot meet its condition within max_tokens={max_tokens}",
                span=term.span or span,
                hint=f"the shortest text that meets it has {shortest} bytes; raise max_tokens",
            )
        return HoleMatcher(masks, masks.start, ending="forced" if masks.is_empty else None)

    def _masks(self, term: Term, following: bytes, max_tokens: int) -> Masks | ChoiceMasks:
        """Masks of a term. Their distances are in tokens where bytes say that there are too few."""
        simple = simplify(term)
        if isinstance(simple, Choice):
            return ChoiceMasks(simple.options, self.vocabulary, following, self._memory)
        by_tokens = counts_tokens(simple)
        masks = Masks(self._automaton(term, by_tokens=by_tokens), self.vocabulary, following, self._memory)
        if max_tokens < masks.shortest < FAR and _has_lengths(simple) and not by_tokens:
            automaton = self._automaton(term, by_tokens=True)
            masks = Masks(automaton, self.vocabulary, following, self._memory)
        return masks

    def automaton(self, term: Term) -> Automaton:
        """Automaton of a term for a server grammar."""
        term = self._counted(term)
        return self._automata.get((term, False)) or Automaton(term)

    def _automaton(self, term: Term, *, by_tokens: bool = False) -> Automaton:
        """Automaton of a term, shared with its matchers. With `by_tokens`, its distances are in tokens."""
        automaton = self._automata.get((term, by_tokens))
        if automaton is None:
            automaton = self._made(term, by_tokens=by_tokens)
            automaton = self._automata.put((term, by_tokens), automaton, automaton.size_bytes)
        return automaton

    def _made(self, term: Term, *, by_tokens: bool) -> Automaton:
        leaps = self.vocabulary.leaps + tuple(self.vocabulary.pieces(_phrases(term))) if by_tokens else ()
        return Automaton(term, leaps)

    def _counted(self, term: Term) -> Term:
        return term if self._token_characters is None else with_characters(term, self._token_characters)

    def _unsatisfiable(self, term: Term, name: str, span: Span) -> ConstraintError:
        """Error that names a minimal set of conjuncts that cannot hold together."""
        guilty = conflict(conjuncts(term), self._is_impossible)
        clauses = list(dict.fromkeys(f"`{part.span.source}`" if part.span else "its condition" for part in guilty))
        if len(clauses) > 1:
            reason = f"{', '.join(clauses[:-1])} and {clauses[-1]} cannot hold together"
        elif any(isinstance(part, Constant) for part in guilty):
            reason = f"{clauses[0]} is false"
        else:
            reason = f"no text satisfies {clauses[0]}"
        return ConstraintError(f"nothing can fill [{name}]: {reason}", span=guilty[-1].span or span)

    def _is_impossible(self, parts: Sequence[Term]) -> bool:
        term = And(tuple(parts))
        try:
            return self._made(term, by_tokens=counts_tokens(term)).shortest >= FAR
        except ConstraintError:  # too large to decide
            return False


def _again(error: ConstraintError) -> ConstraintError:
    """Copy of an error without its traceback."""
    return ConstraintError(error.message, span=error.span, hint=error.hint)


def _least_characters(term: Term) -> int:
    """A lower bound on the characters of a value, from its conjuncts."""
    lengths = [part for part in conjuncts(term) if isinstance(part, Length)]
    return max((each.at_least for each in lengths if each.unit == "characters"), default=0)


def _has_lengths(term: Term) -> bool:
    return any(isinstance(atom, Length) for atom in atoms(term))


def _phrases(term: Term) -> Iterator[bytes]:
    """Texts that a term names, as far as there are few."""
    room = MAX_PHRASES
    for atom in atoms(term):
        match atom:
            case Choice(texts) | Begins(texts) | Ends(texts):
                several = texts
            case Length(unit=Occurrences(phrase)) | Stop(phrase, flags=None):
                several = (phrase,)
            case _:
                continue
        for each in several:
            room -= len(each)
            if room >= 0:
                yield each
