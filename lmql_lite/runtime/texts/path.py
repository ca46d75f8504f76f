"""Text onto the path of a server: the path is the text itself, byte by byte (S6, S10). No part of it is ever cut into
tokens here: a record of it is a token that the server said, or a stretch of text that it was given.
"""

from __future__ import annotations

from dataclasses import replace

from lmql_lite.cache.texts import TURNS, Said, Texts
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.state import Piece, State, Step, data_of, join, steps_since, until
from lmql_lite.tokens import Role, Source, Token

UNNUMBERED = -1
"""The id of what is told as text."""


class TextPath:
    """Belongs to one run, as a `Path` does.

    In a `chat`, and once the query has named a turn, holes are answers; text that is in no turn is the user's (S29).
    """

    def __init__(self, texts: Texts, ledger: Ledger, *, chat: bool) -> None:
        self._texts = texts
        self._ledger = ledger
        self._chat = chat

    def start(self) -> State:
        """An empty text."""
        return State(pc=0, node=self._texts.tree.root)

    def begin(self, state: State, role: Role) -> State:
        """A turn of the chat begins."""
        state = self.settle(state)
        return state._replace(node=self._texts.tree.extend(state.node, TURNS[role]), turn=role)

    def answer(self, state: State) -> State:
        """Where a hole begins: in a chat it is the assistant that fills it."""
        if (self._chat or state.turn) and state.turn != "assistant":
            return self.begin(state, "assistant")
        return state

    def settle(self, state: State) -> State:
        """Puts what is pending on the path."""
        if not state.pending:
            return state
        if self._chat and state.turn is None:
            state = state._replace(node=self._texts.tree.extend(state.node, TURNS["user"]), turn="user")
        for piece in state.pending:
            state = self._add(state, piece.data, Token(UNNUMBERED, piece.data, piece.hole, piece.source, "kept", None))
        return state._replace(pending=())

    def choose(self, state: State, said: Said, hole: str, matcher: Matcher | None = None) -> State:
        """Puts a token of the server on the path; `matcher` is where the hole stands after it."""
        source: Source = "model" if said.run == self._ledger.run else "cache"
        record = Token(UNNUMBERED, said.data, hole, source, "kept", said.logprob)
        return self._add(state, said.data, record, matcher)

    def force(self, state: State, data: bytes, hole: str) -> State:
        """Text that a constraint leaves no choice about: pending, like the program's own."""
        return state._replace(pending=join(state.pending, Piece(data, hole, "forced")))

    def close(self, opened: State, state: State, matcher: Matcher) -> State:
        """The end of a hole that began in `opened`: what was said beyond its value leaves the path (S14).

        It stays in the tree: text that says the same finds it there.
        """
        surplus = len(matcher.text) - len(matcher.value)
        waiting = len(data_of(state.pending))
        pending = until(state.pending, waiting - surplus)
        surplus -= waiting - len(data_of(pending))
        text = state.text + matcher.value.decode()
        state = state._replace(pending=pending, matcher=None, hole=None, used=0, text=text)
        if surplus <= 0:
            return state
        state = state._replace(depth=state.depth - surplus)
        steps = steps_since(opened, state)
        newest = len(steps)
        while surplus > 0:
            newest -= 1
            steps[newest], surplus = self._cut(steps[newest], surplus)
        history, node = opened.history, steps[0].parent if steps else state.node
        for step in steps:
            history = replace(step, before=history)
            node = step.node if step.token.fate == "kept" else node
        return state._replace(node=node, history=history)

    def _cut(self, step: Step, surplus: int) -> tuple[Step, int]:
        """The step without so many of its last bytes, and how many are left to cut. However few stay, it is one token
        (S15); where none do, it is a cut one."""
        self._ledger.drop(step, "cut")
        size = len(step.token.data)
        if size <= surplus:
            return replace(step, token=replace(step.token, fate="cut")), surplus - size
        data = step.token.data[: size - surplus]
        step = replace(step, token=replace(step.token, data=data), node=self._texts.walk(step.parent, data))
        self._ledger.add(step)
        return step, 0

    def _add(self, state: State, data: bytes, record: Token, matcher: Matcher | None = None) -> State:
        node = self._texts.walk(state.node, data)
        step = Step(record, state.node, node, state.history)
        self._ledger.add(step)
        return state._replace(
            node=node,
            history=step,
            depth=state.depth + len(data),
            used=state.used + (record.hole is not None and record.hole == state.hole),
            score=state.score + (record.logprob or 0.0),
            matcher=matcher or state.matcher,
        )
