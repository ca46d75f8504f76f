"""Matcher of one hole: a configuration of its automaton, a vocabulary for masks, and the bytes so far."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock

from lmql_lite.constraints.atoms import NEVER
from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.json_matcher import Grammars
from lmql_lite.constraints.masks import Mask, Masks, Memory
from lmql_lite.constraints.matcher import Ending
from lmql_lite.constraints.products import refuse_product
from lmql_lite.constraints.search import TooLarge
from lmql_lite.constraints.simplify import conflict, counts_tokens, with_characters, without_tokens
from lmql_lite.constraints.superstrings import LARGEST_GROUP
from lmql_lite.constraints.terms import And, Constant, Term
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.errors import ConstraintError, Span


@dataclass(frozen=True, slots=True, eq=False)
class HoleMatcher:
    """A `Matcher` over an `Automaton`."""

    masks: Masks
    state: int
    count: int = 0
    text: bytes = b""
    ending: Ending | None = None
    length: int = 0
    """Number of leading bytes of `text` that are the value."""

    @property
    def value(self) -> bytes:
        return self.text[: self.length]

    @property
    def certain(self) -> int:
        return self.length - self.masks.automaton.undecided(self.state) if self.ending is None else self.length

    @property
    def may_end(self) -> bool:
        return self.masks.automaton.holds(self.state, self.count)

    def allowed(self, held: bytes, tokens_left: int) -> Mask:
        try:
            return self.masks.mask(self.state, self.count, held, tokens_left)
        except TooLarge:
            fresh = self._renewed()
            return fresh.masks.mask(fresh.state, self.count, held, tokens_left)

    def _renewed(self) -> HoleMatcher:
        """The same place in a new automaton, so that states of earlier texts do not make the condition too large."""
        masks = self.masks.renewed()
        return replace(self, masks=masks, state=masks.automaton.resume(self.masks.automaton, self.state))

    def advance(self, data: bytes, tokens: int = 1) -> HoleMatcher:
        masks = self.masks
        try:
            after = masks.advances.after(masks.automaton, self.state, self.count, data, tokens)
        except TooLarge:
            fresh = self._renewed()
            masks = fresh.masks
            after = masks.advances.after(masks.automaton, fresh.state, self.count, data, tokens)
        if after is None:
            raise ValueError(f"{data!r} is not allowed after {self.text!r}")
        state, count, ending, length = after
        return HoleMatcher(masks, state, count, self.text + data, ending, len(self.text) + length)

    def end(self, ending: Ending) -> HoleMatcher:
        return replace(self, ending=ending)

    def forced(self) -> bytes:
        if self.ending is not None or self.masks.automaton.forces_nothing:
            return b""
        try:
            return self._forced()
        except TooLarge:
            return self._renewed()._forced()

    def _forced(self) -> bytes:
        automaton, state, count = self.masks.automaton, self.state, self.count
        forced = bytearray()
        listed = automaton.listed(state)
        if listed is not None:
            return listed[0].forced(listed[1])
        while not automaton.holds(state, count):
            only = automaton.only_edge(state, count)
            if only is None:
                break
            forced.append(only.byte)
            state, count = only.state, automaton.counts.add(count, only.added)
            if automaton.stops(state, count):
                break
        return bytes(forced)

    def longest_valid(self, data: bytes) -> int:
        masks = self.masks
        try:
            return masks.advances.longest_valid(masks.automaton, self.state, self.count, data)
        except TooLarge:
            fresh = self._renewed()
            return masks.advances.longest_valid(fresh.masks.automaton, fresh.state, self.count, data)


class Engine:
    """Makes matchers for one vocabulary. Equal terms share their automaton and its masks; the rest is per hole.

    Threads may share it. If the tokens of a model are not known, `token_characters` characters count as one token.
    """

    AUTOMATA_KEPT = 256

    def __init__(self, vocabulary: Vocabulary, *, token_characters: int | None = None) -> None:
        self.vocabulary = vocabulary
        self._token_characters = token_characters
        self.grammars = Grammars(vocabulary)
        self._memory = Memory()
        self._masks: OrderedDict[tuple[Term, bytes], Masks] = OrderedDict()
        self._opened: dict[tuple[Masks, int], HoleMatcher] = {}
        """Initial matchers of holes that can be filled, by masks and `max_tokens`."""
        self._refused: dict[tuple[Masks, int, str, Span], ConstraintError] = {}
        """Errors of holes that cannot be filled: naming the clauses takes much longer than finding the conflict."""
        self._lock = Lock()

    def matcher(self, term: Term, following: bytes, max_tokens: int, name: str, span: Span) -> HoleMatcher:
        """Matcher at the beginning of a hole.

        `following` is the text known to come after the hole, b"" if it is not known. Raises ConstraintError, which
        names the clause, if nothing can fill the hole within `max_tokens` tokens.
        """
        masks = self._masks_of(term, following)
        opened = self._opened.get((masks, max_tokens))
        if opened is None:
            refused = self._refused.get((masks, max_tokens, name, span))
            if refused is not None:
                raise _again(refused)
            if len(self._opened) + len(self._refused) >= self.AUTOMATA_KEPT:
                self._opened, self._refused = {}, {}
            refuse_product(masks.automaton.term)
            try:
                opened = self._opened[masks, max_tokens] = self._open(masks, term, max_tokens, name, span)
            except ConstraintError as error:
                if not isinstance(error, TooLarge):  # depends on earlier searches
                    self._refused[masks, max_tokens, name, span] = _again(error)
                raise
        return opened

    def _open(self, masks: Masks, term: Term, max_tokens: int, name: str, span: Span) -> HoleMatcher:
        automaton = masks.automaton
        start = automaton.start
        shortest = automaton.at_least(start, 0)
        if shortest <= max_tokens or shortest == NEVER:  # searching for an end that is too far would be slow
            way = automaton.witness(start, 0)
            if way is None and automaton.crowd:
                raise _too_many_phrases(term, automaton.crowd, name, span)
            if way is None:
                raise _too_few_tokens(term, name, span) or _unsatisfiable(without_tokens(term), name, span)
            shortest = way.length if way.length <= max_tokens else automaton.distance(start, 0)
        if shortest > max_tokens and (masks.in_tokens is None or not masks.in_tokens.is_within(max_tokens, start, 0)):
            raise ConstraintError(
                f"[{name}] cannot meet its condition within max_tokens={max_tokens}",
                span=term.span or span,
                hint=f"the shortest text that meets it has {shortest} bytes; raise max_tokens",
            )
        empty_only = automaton.holds(start, 0) and not automaton.goes_on(start, 0)
        return HoleMatcher(masks, start, ending="forced" if empty_only else None)

    def automaton(self, term: Term) -> Automaton:
        """Automaton of a term, shared with its matchers."""
        return self._masks_of(term, b"").automaton

    def _masks_of(self, term: Term, following: bytes) -> Masks:
        if self._token_characters is not None:
            term = with_characters(term, self._token_characters)
        with self._lock:
            masks = self._masks.get((term, following))
            if masks is None or masks.automaton.is_full:
                masks = Masks(Automaton(term), self.vocabulary, following, self._memory)
                self._masks[term, following] = masks
                if len(self._masks) > self.AUTOMATA_KEPT:
                    self._masks.popitem(last=False)
            self._masks.move_to_end((term, following))
            return masks


def _again(error: ConstraintError) -> ConstraintError:
    """Copy of an error without its traceback."""
    return ConstraintError(error.message, span=error.span, hint=error.hint)


def _too_few_tokens(term: Term, name: str, span: Span) -> ConstraintError | None:
    """Error if only the token limits cannot be met, else None. Bytes stand in for tokens: any byte may be a token."""
    if not counts_tokens(term):
        return None
    uncounted = Automaton(without_tokens(term))
    way = uncounted.witness(uncounted.start, 0)
    if way is None:
        return None
    return ConstraintError(
        f"[{name}] cannot meet its token limits",
        span=term.span or span,
        hint=f"the shortest text that meets its other conditions has {way.length} bytes, and each may cost a token",
    )


def _too_many_phrases(term: Term, crowd: tuple[bytes, ...], name: str, span: Span) -> ConstraintError:
    """Error if phrases do not fit one after another, and it is unknown whether they fit with their overlaps."""
    first, *_, last = crowd
    return ConstraintError(
        f"[{name}] is too short for {len(crowd)} phrases without their overlaps, {first.decode()!r} to "
        f"{last.decode()!r}, and overlaps are known of up to {LARGEST_GROUP}",
        span=term.span or span,
        hint=f"allow {len(b''.join(crowd))} characters for them, or ask for fewer phrases in one hole",
    )


def _unsatisfiable(term: Term, name: str, span: Span) -> ConstraintError:
    """Error that names a minimal set of conjuncts that cannot hold together."""
    parts = term.terms if isinstance(term, And) else (term,)
    guilty = conflict(parts, _is_impossible)
    clauses = list(dict.fromkeys(f"`{part.span.source}`" if part.span else "its condition" for part in guilty))
    if len(clauses) > 1:
        reason = f"{', '.join(clauses[:-1])} and {clauses[-1]} cannot hold together"
    elif any(isinstance(part, Constant) for part in guilty):
        reason = f"{clauses[0]} is false"
    else:
        reason = f"no text satisfies {clauses[0]}"
    return ConstraintError(f"nothing can fill [{name}]: {reason}", span=guilty[-1].span or span)


def _is_impossible(parts: Sequence[Term]) -> bool:
    automaton = Automaton(And(tuple(parts)))
    try:
        return not automaton.lives(automaton.start, 0)
    except ConstraintError:  # too large to decide
        return False
