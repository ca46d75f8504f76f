"""Text onto the path: what is pending becomes canonical tokens when the model is next asked (S10, S14).

A `Path` belongs to one run; its methods take a state and give the next one, and report every token that joins or
leaves the path to the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lmql_lite.cache.tree import TokenTree
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.state import Overhang, Piece, State, Step, data_of, join, joined, until, without
from lmql_lite.tokens import Fate, Source, Token, Tokenizer


class Path:
    def __init__(self, tree: TokenTree, tokenizer: Tokenizer, vocabulary: Vocabulary, ledger: Ledger) -> None:
        self._tree = tree
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._ledger = ledger

    def start(self) -> State:
        """An empty text: the model's bos stands before it and is no part of it."""
        node = self._tree.root
        for token in self._tokenizer.bos:
            node = self._tree.extend(node, token)
        return State(pc=0, node=node, depth=len(self._tokenizer.bos))

    def settle(self, state: State, *, last: bool = False) -> State:
        """Encodes what is pending, in one piece, and takes back its ambiguous tail as `held`.

        Nothing is held back at the `last` time, when no token will follow.
        """
        state = self.resolve(state)
        if not state.pending and not last:
            return state
        # what an earlier hole left held, when it ended before its first token, is text like any other
        state = replace(state, pending=joined(state.held, state.pending), held=())
        ids = self._tokenizer.encode(data_of(state.pending))
        back = 0 if last else self._ambiguous(ids, first=state.depth == 0)
        for token in ids[: len(ids) - back]:
            state = self.take(state, token)
        return replace(state, held=state.pending, pending=())

    def _ambiguous(self, ids: tuple[int, ...], *, first: bool) -> int:
        """How many of the last tokens some token could swallow and go beyond: there the model must have the choice."""
        back, tail = 0, b""
        for count, token in enumerate(reversed(ids), start=1):
            tail = self._data(token) + tail
            if len(tail) >= self._vocabulary.longest:
                break
            if self._vocabulary.extends(tail):
                back = count
        # something has to stand before the first token that is asked for
        return min(back, len(ids) - 1) if first else back

    def take(self, state: State, token: int) -> State:
        """Puts a token of settled text on the path: from `held` where there is some, else from `pending`."""
        data = self._data(token)
        whose = (state.held or state.pending)[0]
        record = Token(token, data, whose.hole, whose.source, "kept", None)
        if state.held:
            state = replace(state, held=without(state.held, len(data)))
        else:
            state = replace(state, pending=without(state.pending, len(data)))
        return self._add(state, record)

    def choose(self, state: State, token: int, hole: str, source: Source, logprob: float) -> State:
        """Puts a token that was chosen for a hole on the path; it covers `held` and goes beyond."""
        record = Token(token, self._data(token), hole, source, "kept", logprob)
        state = replace(state, held=(), score=state.score + logprob)
        return self._add(state, record)

    def force(self, state: State, data: bytes, hole: str) -> State:
        """Text that a constraint leaves no choice about: pending, like the program's own."""
        return replace(state, pending=join(state.pending, Piece(data, hole, "forced")))

    def close(self, state: State, matcher: Matcher) -> State:
        """The end of a hole: where its tokens run past the value, they hang over until the next text is known."""
        hole, entry, value = state.hole, state.entry, matcher.value
        state = replace(state, matcher=None, hole=None, used=0, entry=(), text=state.text + value.decode())
        surplus = matcher.text[len(value) :]
        if surplus:  # what a constraint said of it is not on the path yet, and need not be
            waiting = joined(state.held, state.pending)
            pending = until(waiting, len(data_of(waiting)) - len(surplus))
            surplus = surplus[: max(len(surplus) - len(data_of(waiting)), 0)]
            state = replace(state, held=(), pending=pending)
        if not surplus:
            return state
        steps: list[Step] = []
        covered, step = 0, state.history
        while covered < len(surplus):
            assert step is not None, "surplus bytes are on the path"
            if step.token.fate == "kept":
                steps.append(step)
                covered += len(step.token.data)
            step = step.before
        first, kept = steps[-1].token, covered - len(surplus)
        before = join(entry, Piece(value, hole, first.source))
        if len(data_of(before)) < kept:  # the token begins in text that was held back before the hole
            before = join((), Piece(first.data[:kept], hole, first.source))
        before = without(before, len(data_of(before)) - kept)
        return replace(state, overhang=Overhang(tuple(reversed(steps)), before, surplus))

    def resolve(self, state: State) -> State:
        """Keeps the tokens of an overhang that the text since then begins with; takes the others off the path."""
        overhang = state.overhang
        if overhang is None:
            return state
        following, keep = data_of(state.pending), 0
        while keep < len(overhang.steps) and following.startswith(overhang.surplus[: overhang.reach(keep + 1)]):
            keep += 1
        return self._keep(state, overhang, keep)

    def run_on(self, state: State, begin: Callable[[bytes, int], Matcher | None]) -> State:
        """Into a hole of the same segment: a surplus that covers the text between may be the beginning of its value.

        `begin` tells what the hole makes of bytes, among them the first ones of so many tokens; None where they do
        not fit. Tokens that do not fit leave the path: the cut is where the last hole ended (S14).
        """
        overhang, between = state.overhang, data_of(state.pending)
        if overhang is None or not overhang.surplus.startswith(between):
            return self.resolve(state)
        for many in range(len(overhang.steps), 0, -1):
            beginning = overhang.surplus[len(between) : overhang.reach(many)]
            tokens = sum(overhang.reach(earlier) >= len(between) for earlier in range(many))
            matcher = begin(beginning, tokens) if beginning else None
            if matcher is not None:
                entry = joined(overhang.before, state.pending)
                return replace(self._keep(state, overhang, many), matcher=matcher, used=tokens, entry=entry)
        return self.resolve(state)

    def _keep(self, state: State, overhang: Overhang, many: int) -> State:
        """The first `many` tokens of an overhang stay, the others leave the path."""
        # what replaces the part before the cut keeps its provenance (S31)
        pending = without(state.pending, overhang.reach(many)) if many else joined(overhang.before, state.pending)
        state = replace(state, overhang=None, pending=pending)
        dropped = overhang.steps[many:]
        if not dropped:
            return state
        for step in dropped:
            self._ledger.drop(step, "cut")
        history = _with_fate(state.history, {id(step) for step in dropped})
        return replace(
            state,
            node=dropped[0].parent,
            depth=state.depth - len(dropped),
            history=history,
            score=state.score - sum(step.token.logprob or 0.0 for step in dropped),
        )

    def _add(self, state: State, token: Token) -> State:
        node = self._tree.extend(state.node, token.id)
        step = Step(token, state.node, node, state.history)
        self._ledger.add(step)
        used = state.used + (token.hole is not None and token.hole == state.hole)
        return replace(state, node=node, history=step, depth=state.depth + 1, used=used)

    def _data(self, token: int) -> bytes:
        data = self._vocabulary.tokens[token]
        assert data is not None, "only tokens with text are put on the path"
        return data


def _with_fate(history: Step | None, cut: set[int]) -> Step | None:
    """The history with those of its newest steps marked as cut."""
    newer: list[Step] = []
    left = len(cut)
    while left:
        assert history is not None, "only steps of the history are cut"
        newer.append(history)
        left -= id(history) in cut
        history = history.before
    for step in reversed(newer):
        fate: Fate = "cut" if id(step) in cut else step.token.fate
        history = replace(step, token=replace(step.token, fate=fate), before=history)
    return history
