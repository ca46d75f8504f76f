"""Path of a server: the text itself, byte by byte (S6, S10). Nothing here tokenizes text: a step is a token that the
server generated, or a stretch of text that it was given.
"""

from __future__ import annotations

from dataclasses import replace

from lmql_lite.cache.byte_tree import TURNS, ByteTree, KnownToken, media_tokens
from lmql_lite.cache.entry import Node
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.state import Piece, State, Step, data_of, ended, join, steps_since, until
from lmql_lite.errors import ModelError
from lmql_lite.media import Media, article
from lmql_lite.tokens import Role, Source, Token

UNNUMBERED = -1
"""Token id of a stretch of text, which has none."""


class BytePath:
    """`Path` of one run with a server.

    In a `chat`, and once the query has a role tag, holes are turns of the assistant; text outside any turn is the
    user's (S29).
    """

    def __init__(self, texts: ByteTree, ledger: Ledger, *, chat: bool) -> None:
        self._texts = texts
        self._ledger = ledger
        self._chat = chat

    def start(self) -> State:
        """The state of an empty text."""
        return State(pc=0, node=self._texts.tree.root)

    def begin(self, state: State, role: Role) -> State:
        """The state at the beginning of a turn of the chat."""
        state = self.settle(state)
        return state._replace(node=self._texts.tree.extend(state.node, TURNS[role]), turn=role)

    def answer(self, state: State) -> State:
        """The state at the beginning of a hole: in a chat the assistant fills it."""
        if (self._chat or state.turn) and state.turn != "assistant":
            return self.begin(state, "assistant")
        return state

    def settle(self, state: State) -> State:
        """The state with pending text on the path."""
        if not state.pending:
            return state
        if self._chat and state.turn is None:
            state = state._replace(node=self._texts.tree.extend(state.node, TURNS["user"]), turn="user")
        for piece in state.pending:
            record = Token(UNNUMBERED, piece.data, piece.hole, piece.source, "kept", None)
            state = self._add(state, piece.data, record, counts=piece.is_of(state.hole))
        return state._replace(pending=())

    def show(self, state: State, item: Media) -> State:
        """The state after a picture, video or clip, whose digest joins the path. Raises ModelError outside a turn of
        the user."""
        if state.turn in ("assistant", "system") or (state.turn is None and not self._chat):
            sentence = f"a server takes {article(item.modality)} only in a turn of the user"
            raise ModelError(sentence, span=item.span, hint="begin the turn with {:user}")
        state = self.settle(state)
        if self._chat and state.turn is None:
            state = state._replace(node=self._texts.tree.extend(state.node, TURNS["user"]), turn="user")
        node = state.node
        for token in media_tokens(item):
            node = self._texts.tree.extend(node, token)
        step = Step(
            Token(UNNUMBERED, str(item).encode(), None, "prompt", "kept", None), state.node, node, state.history
        )
        self._ledger.add(step)
        return state.shown(item, step, 0)

    def choose(self, state: State, said: KnownToken, hole: str, matcher: Matcher | None = None) -> State:
        """The state after a token of the server; `matcher` is the hole's after it."""
        source: Source = "model" if said.run == self._ledger.run else "cache"
        record = Token(UNNUMBERED, said.data, hole, source, "kept", said.logprob)
        return self._add(state, said.data, record, matcher, counts=True, node=said.behind)

    def force(self, state: State, data: bytes, hole: str) -> State:
        """The state with text that a constraint forces; it is pending, like the program's own."""
        return state._replace(pending=join(state.pending, Piece(data, hole, "forced")))

    def close(self, opened: State, state: State) -> State:
        """The end of a hole that began in `opened`. Text generated beyond its value leaves the path (S14).

        That text stays in the tree, where the run finds it again if the same text follows.
        """
        matcher = state.matcher
        assert matcher is not None, "a hole is open"
        surplus = len(matcher.text) - len(matcher.value)
        waiting = len(data_of(state.pending))
        pending = ended(until(state.pending, waiting - surplus), state.hole)
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
        """The step without its last `surplus` bytes, and the number of bytes left to cut. The rest counts as one token
        (S15); a step without a rest becomes a cut token."""
        self._ledger.drop(step, "cut")
        size = len(step.token.data)
        if size <= surplus:
            return replace(step, token=replace(step.token, fate="cut")), surplus - size
        data = step.token.data[: size - surplus]
        step = replace(step, token=replace(step.token, data=data), node=self._texts.walk(step.parent, data))
        self._ledger.add(step)
        return step, 0

    def _add(
        self,
        state: State,
        data: bytes,
        record: Token,
        matcher: Matcher | None = None,
        *,
        counts: bool,
        node: Node | None = None,
    ) -> State:
        node = self._texts.walk(state.node, data) if node is None else node
        step = Step(record, state.node, node, state.history)
        self._ledger.add(step)
        return state._replace(
            node=node,
            history=step,
            depth=state.depth + len(data),
            used=state.used + counts,
            score=state.score + (record.logprob or 0.0),
            matcher=matcher or state.matcher,
        )
