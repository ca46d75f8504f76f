"""Turns of a chat on a path (S29, S30).

The text of a chat template between turns is on the path but not part of the prompt: it is never healed, and counts like
the model's bos. A question to the model opens a turn of the assistant.
"""

from __future__ import annotations

from collections.abc import Callable

from lmql_lite.cache.tokens.nodes import Node
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.engine.path import Path
from lmql_lite.engine.record import Record
from lmql_lite.engine.state import (
    UNREAD,
    Piece,
    State,
    behind_template,
    data_of,
    first_answer,
    join,
    joined,
    of_template,
    read,
    shown,
    stripped_left,
    stripped_right,
    unread,
)
from lmql_lite.errors import ModelError
from lmql_lite.models.chat import ChatFormat, Delimiter
from lmql_lite.tokens import Role, Tokenizer


class TemplatePath(Path):
    """Path of a model in this process with a chat template."""

    def __init__(
        self,
        chat: ChatFormat,
        tree: TokenTree,
        tokenizer: Tokenizer,
        vocabulary: Vocabulary,
        record: Record,
        mark: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__(tree, tokenizer, vocabulary, record, mark)
        self.chat = chat

    def settle(self, state: State, *, last: bool = False) -> State:
        state = self.resolve(state)
        return super().settle(state if state.turn is None else self._answering(state, is_asked=not last), last=last)

    def _showing(self, state: State) -> State:
        is_new = state.turn is not None and self._is_new(state)
        return self._begun(state, is_asked=False) if is_new else state

    def _add(
        self,
        state: State,
        token: int,
        pieces: tuple[Piece, ...],
        node: Node,
        depth: int,
        logprob: float | None = None,
    ) -> State:
        """The state after a token. It is recorded if any of its text is in the prompt."""
        told = shown(pieces)
        if told:
            return super()._add(state, token, told, node, depth, logprob)
        return state._replace(node=node, depth=depth)

    def _ambiguous(self, ids: tuple[int, ...], state: State) -> int:
        """Text of the template is not ambiguous."""
        room, count = len(read(state.pending[behind_template(state.pending) :])), 0
        for token in ids[len(ids) - super()._ambiguous(ids, state) :][::-1]:
            room -= int(self._vocabulary.lengths[token])
            if room < 0:
                break
            count += 1
        return count

    def begin(self, state: State, role: Role) -> State:
        state = self.resolve(state)
        state = self._answering(state, is_asked=False) if state.turn else self._without_turns(state)
        state = state._replace(pending=joined(state.held, state.pending), held=())
        opening = self.chat.opening(state.turn, role)
        if state.turn in self.chat.strips:
            state = state._replace(pending=stripped_right(state.pending))
        return self._say(state, opening)._replace(turn=role)

    def _without_turns(self, state: State) -> State:
        """The state before the first turn, without the bos, which the template adds itself. Raises ModelError if there
        is text already."""
        before = data_of(joined(state.held, state.pending))
        if state.newest is not None or before.strip():
            raise ModelError(
                "text before the first role tag belongs to no turn",
                hint="begin with {:system} or {:user}",
            )
        return state._replace(node=self._tree.root, depth=0, held=(), pending=(unread(before),) if before else ())

    def _answering(self, state: State, *, is_asked: bool) -> State:
        """The state in a turn of the assistant if a hole has text or the model is asked. The turn's beginning is on the
        path."""
        answer = first_answer(state.pending)
        if state.turn != "assistant" and (is_asked or answer is not None):
            own = () if answer is None else state.pending[answer:]
            state = self.begin(state._replace(pending=state.pending[:answer]), "assistant")
            state = state._replace(pending=joined(state.pending, own))
        return self._begun(state, is_asked=is_asked) if self._is_new(state) else state

    def _is_new(self, state: State) -> bool:
        """True if none of the turn's text is on the path yet."""
        if behind_template(state.pending):
            return True
        if state.held or (state.newest is not None and state.newest.node == state.node):
            return False
        return bool(self.chat.borders.intersection(self._tree.path(state.node)[-1:]))

    def _begun(self, state: State, *, is_asked: bool) -> State:
        """The state with the template's text between the beginning of a turn and the text of the turn."""
        at = behind_template(state.pending)
        opening, text = state.pending[:at], state.pending[at:]
        if state.turn in self.chat.strips:
            text = stripped_left(text)
        first = next((piece for piece in text if piece.hole != UNREAD), None)
        is_said = first is not None and first.hole is None
        if first is None and not is_asked:
            return state
        state = state._replace(pending=opening)
        if state.turn == "assistant":
            state = self._say(state, self.chat.said if is_said else self.chat.asked)
        if not is_said:  # text that the model begins is encoded apart from the template's
            state = self._spell(state, last=True)
        return state._replace(pending=joined(state.pending, text))

    def _say(self, state: State, delimiter: Delimiter) -> State:
        """The state with text of the template, encoded together with the text around it, as the template intends."""
        for part in delimiter:
            if isinstance(part, bytes):
                state = state._replace(pending=join(state.pending, of_template(part)))
                continue
            if read(state.pending):
                state = self._spell(state, last=True)
            node = self._tree.extend(state.node, part)
            state = self._add(state._replace(pending=()), part, state.pending, node, state.depth + 1)
        return state
