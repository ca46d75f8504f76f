"""Path of a server: the text itself, byte by byte (S6, S10). A step is a token that the server generated, or a stretch
of text that it was given.
"""

from __future__ import annotations

from dataclasses import replace

from lmql_lite.cache.tokens.bytes import END, TURNS, ByteTree, media_tokens
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.path import Path
from lmql_lite.engine.state import NO_ID, State, Step, data_of, ended, steps_since, until
from lmql_lite.errors import ModelError
from lmql_lite.media import Media, article
from lmql_lite.tokens import Role


class ByteTokenizer:
    """Tokenizer of a server's text: every byte is a token, so that nothing is ambiguous and nothing is held back."""

    vocabulary = (*(bytes([byte]) for byte in range(END)), None)
    eos = frozenset({END})
    bos: tuple[int, ...] = ()

    def encode(self, text: bytes) -> tuple[int, ...]:
        return tuple(text)


class BytePath(Path):
    """Path of one run with a server.

    In a `chat`, and once the query has a role tag, holes are turns of the assistant; text outside any turn is the
    user's (S29).
    """

    def __init__(self, texts: ByteTree, vocabulary: Vocabulary, ledger: Ledger, *, chat: bool) -> None:
        super().__init__(texts.tree, ByteTokenizer(), vocabulary, ledger)
        self._chat = chat

    def begin(self, state: State, role: Role) -> State:
        """The state at the beginning of a turn of the chat."""
        state = self.settle(state)
        return state._replace(node=self._tree.extend(state.node, TURNS[role]), turn=role)

    def answer(self, state: State) -> State:
        """The state at the beginning of a hole: in a chat the assistant fills it."""
        if (self._chat or state.turn) and state.turn != "assistant":
            return self.begin(state, "assistant")
        return state

    def show_item(self, state: State, item: Media) -> State:
        """The state after a picture, video or clip, whose digest joins the path. Raises ModelError outside a turn of
        the user."""
        if state.turn in ("assistant", "system") or (state.turn is None and not self._chat):
            sentence = f"a server takes {article(item.modality)} only in a turn of the user"
            raise ModelError(sentence, span=item.span, hint="begin the turn with {:user}")
        return self.show(state, item, media_tokens(item))

    def _in_turn(self, state: State, *, is_asked: bool) -> State:
        return self._showing(state) if state.pending else state

    def _showing(self, state: State) -> State:
        if not self._chat or state.turn is not None:
            return state
        return state._replace(node=self._tree.extend(state.node, TURNS["user"]), turn="user")

    def _spell(self, state: State, *, last: bool) -> State:
        for piece in state.pending:
            node = self._tree.extend_path(state.node, piece.data)
            state = self._add(state, NO_ID, (piece,), node, state.depth + len(piece.data))
        return state._replace(pending=())

    def close(self, opened: State, state: State) -> State:
        """The state after a hole that began in `opened`. Text generated beyond its value leaves the path (S14).

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
        node = self._tree.extend_path(step.parent, data)
        step = replace(step, token=replace(step.token, data=data), node=node)
        self._ledger.add(step)
        return step, 0
