"""Path of a server: the text itself, byte by byte (S6, S10). A step is a token that the server generated, or a stretch
of text that it was given.
"""

from __future__ import annotations

from lmql_lite.cache.tokens.bytes import END, TURNS, ByteTree, media_tokens
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.path import Path
from lmql_lite.engine.state import NO_ID, State
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
        """The state after a hole. Text generated beyond its value leaves the path at once, whatever follows: the run
        finds it again in the tree."""
        state = super().close(opened, state)
        return state if state.overhang is None else self.settle(self._keep(state, state.overhang, 0))
