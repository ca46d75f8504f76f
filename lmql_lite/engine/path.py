"""Path of a branch: text becomes canonical tokens when the model is next asked (S10, S14).

The methods take a state and return the next one. The record has every token that joins or leaves the path.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from copy import copy

import numpy as np

from lmql_lite.cache.tokens.bytes import END, TURNS, ByteTree, media_tokens
from lmql_lite.cache.tokens.nodes import Node
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.constraints.matcher import Matcher
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.engine.events import Choosable
from lmql_lite.engine.record import Record, Step, steps_between
from lmql_lite.engine.state import (
    NO_ID,
    UNREAD,
    Overhang,
    Piece,
    State,
    TokenChoice,
    begun,
    block_marks,
    cut_off,
    data_of,
    ended,
    join,
    joined,
    read,
    until,
    without,
)
from lmql_lite.errors import ModelError
from lmql_lite.media import Media, article
from lmql_lite.tokens import Role, Token, Tokenizer

LONG = 256
"""Number of tokens from which a text is added to the tree as one stretch."""


class Path:
    """Path of one branch of a run, for a model without turns."""

    def __init__(
        self,
        tree: TokenTree,
        tokenizer: Tokenizer,
        vocabulary: Vocabulary,
        record: Record,
        mark: Callable[[int], int] | None = None,
    ) -> None:
        """For a model that reuses blocks, `mark` returns the token before a block of a given number of tokens."""
        self._tree = tree
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self.record = record
        self._mark = mark

    def fork(self, record: Record) -> Path:
        """A copy for another branch, with a record of its own."""
        fork = copy(self)
        fork.record = record
        return fork

    def start(self) -> State:
        """The state of an empty text. The model's bos is on the path but not part of the text."""
        bos = self._tokenizer.bos
        return State(part=-1, node=self._tree.extend_path(self._tree.root, bos), depth=len(bos))

    def begin(self, state: State, role: Role) -> State:
        """The state at the beginning of a turn of a chat. Raises ModelError if the model allows no such turn here."""
        raise ModelError(
            f"the model has no turns, so {{:{role}}} has no meaning for it",
            hint="leave the role tags out, or use a model with a chat template",
        )

    def answer(self, state: State) -> State:
        """The state at the beginning of a hole."""
        return state

    def settle(self, state: State, *, last: bool = False) -> State:
        """Encodes pending text in one piece, and takes back its ambiguous tail as `held`.

        The `last` call, which no token follows, holds nothing back.
        """
        if state.overhang is not None:
            state = self.resolve(state)
        if not state.pending and not last:
            return state
        # text left held by a hole that ended before its first token is ordinary text
        pending = joined(state.held, state.pending) if state.held else state.pending
        return self._spell(state._replace(pending=pending, held=()), last=last)

    def show(self, state: State, item: Media, tokens: tuple[int, ...]) -> State:
        """The state after a picture, video or clip, which `tokens` represent on the path. Text before and after it is
        encoded separately."""
        state = self.resolve(state)
        state = self._showing(state._replace(pending=joined(state.held, state.pending), held=()))
        state = self._spell(state, last=True)
        token = Token(NO_ID, str(item).encode(), None, "prompt", "kept", None)
        step = self.record.join(token, state.node, self._tree.extend_path(state.node, tokens), state.newest)
        return state.shown(item, step, len(tokens))

    def _showing(self, state: State) -> State:
        """The state in a turn that may show an item."""
        return state

    def _spell(self, state: State, *, last: bool) -> State:
        ids = self._tokenizer.encode(read(state.pending))
        taken = ids if last else ids[: len(ids) - self._ambiguous(ids, state)]
        marks = block_marks(self._vocabulary.lengths[list(taken)].tolist(), state.pending) if self._mark else {}
        if self._mark is None:
            state, taken = self._take_text(state, taken)
        for at, token in enumerate(taken):
            if self._mark is not None and at in marks:
                state = state._replace(node=self._tree.extend(state.node, self._mark(marks[at])))
            state = self.take(state, token)
        if state.pending and state.pending[0].hole == UNREAD:  # the model reads nothing of this text
            white, left = begun(state.pending, 0)
            before = self._tree.path(state.node)[-1:] or (NO_ID,)
            state = self._add(state._replace(pending=left), before[0], white, state.node, state.depth)
        return state._replace(held=state.pending, pending=())

    def _ambiguous(self, ids: tuple[int, ...], state: State) -> int:
        """Number of tokens at the end that may be part of a longer token, which the model must be free to choose."""
        back, tail = 0, b""
        for count, token in enumerate(reversed(ids), start=1):
            tail = (self._vocabulary.tokens[token] or b"") + tail
            if len(tail) >= self._vocabulary.longest:
                break
            if self._vocabulary.extends(tail):
                back = count
        # the first question needs at least one token before it
        return back if state.depth else min(back, len(ids) - 1)

    def _take_text(self, state: State, ids: tuple[int, ...]) -> tuple[State, tuple[int, ...]]:
        """The state after the tokens that hold only the program's own text, added all at once, and the other tokens."""
        if not state.pending or state.pending[0].hole is not None:
            return state, ids
        piece, *others = state.pending
        ends = np.cumsum(self._vocabulary.lengths[list(ids)]).tolist()
        many = bisect_left(ends, len(piece.data)) if others else bisect_right(ends, len(piece.data))
        if not many:  # the first token also holds text of the next piece
            return state, ids
        node, newest, begin = state.node, state.newest, 0
        for token, end in zip(ids[:many], ends[:many], strict=True):
            child = self._tree.extend(node, token)
            said = Token(token, piece.data[begin:end], None, piece.source, "kept", None)
            newest = self.record.join(said, node, child, newest)
            node, begin = child, end
        if many >= LONG:  # a pin below it then need not walk up to the root
            self._tree.extend_path(state.node, ids[:many])
        _, pending = begun(state.pending, ends[many - 1])
        return state._replace(node=node, newest=newest, depth=state.depth + many, pending=pending), ids[many:]

    def take(self, state: State, token: int, logprob: float | None = None) -> State:
        """The state after a token of settled text, taken from `held`, or from `pending` if nothing is held.

        `logprob` is set if the model had the choice and took the held text.
        """
        spelled, left = begun(state.held or state.pending, int(self._vocabulary.lengths[token]))
        held, pending = (left, state.pending) if state.held else ((), left)
        state = state._replace(held=held, pending=pending, score=state.score + (logprob or 0.0))
        return self._add(state, token, spelled, self._tree.extend(state.node, token), state.depth + 1, logprob)

    # Holes -------------------------------------------------------------------------------------------------------

    def choose(
        self,
        state: State,
        choice: TokenChoice,
        hole: str,
        matcher: Matcher | None = None,
        choosable: Choosable | None = None,
    ) -> State:
        """The state after a token chosen for a hole; it covers `held` and goes beyond. `matcher` is the hole's after
        it, and `choosable` the alternatives."""
        node = self._tree.extend(state.node, choice.token) if choice.node is None else choice.node
        token = Token(choice.token, choice.data, hole, choice.source, "kept", choice.logprob)
        step = self.record.join(token, state.node, node, state.newest, choosable)
        return state._replace(
            node=node,
            held=(),
            matcher=matcher,
            newest=step,
            depth=state.depth + 1,
            used=state.used + (hole == state.hole),
            score=state.score + (choice.logprob or 0.0),
        )

    def force(self, state: State, data: bytes, hole: str) -> State:
        """The state with text that a constraint forces; it is pending, like the program's own."""
        return state._replace(pending=join(state.pending, Piece(data, hole, "forced")))

    def close(self, state: State) -> State:
        """The state after a hole. Tokens that run past its value become an overhang until the next text is known."""
        matcher, hole, entry = state.matcher, state.hole, state.entry
        assert matcher is not None, "a hole is open"
        value = matcher.value
        state = state._replace(matcher=None, hole=None, used=0, entry=(), text=state.text + value.decode())
        surplus = matcher.text[len(value) :]
        if surplus:  # forced text in it is not on the path yet, and is dropped
            waiting = joined(state.held, state.pending)
            pending = until(waiting, len(data_of(waiting)) - len(surplus))
            surplus = surplus[: max(len(surplus) - len(data_of(waiting)), 0)]
            state = state._replace(held=(), pending=pending)
        if state.held or state.pending:
            state = state._replace(held=ended(state.held, hole), pending=ended(state.pending, hole))
        if not surplus:
            return state
        steps: list[Step] = []
        covered, step = 0, state.newest
        while covered < len(surplus):
            assert step is not None, "surplus bytes are on the path"
            steps.append(step)
            covered += len(step.token.data)
            step = step.before
        first, kept = steps[-1].token, covered - len(surplus)
        before = join(entry, Piece(value, hole, first.source, is_ended=True))
        if len(data_of(before)) < kept:  # the token begins in text that was held back before the hole
            before = join((), Piece(first.data[:kept], hole, first.source, is_ended=True))
        before = without(before, len(data_of(before)) - kept)
        return state._replace(overhang=Overhang(tuple(reversed(steps)), before, surplus))

    def resolve(self, state: State) -> State:
        """Keeps the tokens of an overhang that match the following text, and removes the others from the path."""
        overhang = state.overhang
        if overhang is None:
            return state
        following, keep = data_of(state.pending), 0
        while keep < len(overhang.steps) and following.startswith(overhang.surplus[: overhang.reach(keep + 1)]):
            keep += 1
        return self._keep(state, overhang, keep)

    def run_on(self, state: State, begin: Callable[[bytes, int], Matcher | None]) -> State:
        """The state at the beginning of another hole of the segment. A surplus that covers the text between the holes
        may begin its value.

        `begin` returns the matcher of the hole after some bytes, which are a number of its tokens; None if they do not
        fit. Tokens that do not fit leave the path; the cut is at the end of the last hole (S14).
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
                return self._keep(state, overhang, many)._replace(matcher=matcher, used=tokens, entry=entry)
        return self.resolve(state)

    def _keep(self, state: State, overhang: Overhang, many: int) -> State:
        """The state with the first `many` tokens of an overhang; the others leave the path."""
        # text that replaces the part before the cut keeps its source (S31)
        pending = without(state.pending, overhang.reach(many)) if many else joined(overhang.before, state.pending)
        state = state._replace(overhang=None, pending=pending)
        dropped = overhang.steps[many:]
        if not dropped:
            return state
        self.record.leave(dropped, "cut")
        # their score stays, as the cost of the end of the hole
        return state._replace(node=dropped[0].parent, depth=state.depth - len(dropped), newest=dropped[0].before)

    def _add(
        self,
        state: State,
        token: int,
        pieces: tuple[Piece, ...],
        node: Node,
        depth: int,
        logprob: float | None = None,
    ) -> State:
        """The state after a recorded token, which leads to `node` and belongs to its first piece that the model
        reads."""
        first = next((piece for piece in pieces if piece.hole != UNREAD), None)
        hole, source = (first.hole, first.source) if first else (None, pieces[0].source)
        step = self.record.join(
            Token(token, data_of(pieces), hole, source, "kept", logprob), state.node, node, state.newest
        )
        used = state.used + (first is not None and first.is_of(state.hole))
        return state._replace(node=node, newest=step, depth=depth, used=used)


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

    def __init__(self, texts: ByteTree, vocabulary: Vocabulary, record: Record, *, chat: bool) -> None:
        super().__init__(texts.tree, ByteTokenizer(), vocabulary, record)
        self._chat = chat

    def begin(self, state: State, role: Role) -> State:
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

    def settle(self, state: State, *, last: bool = False) -> State:
        state = self.resolve(state)
        return super().settle(self._showing(state) if state.pending else state, last=last)

    def _showing(self, state: State) -> State:
        if not self._chat or state.turn is not None:
            return state
        return state._replace(node=self._tree.extend(state.node, TURNS["user"]), turn="user")

    def _spell(self, state: State, *, last: bool) -> State:
        for piece in state.pending:
            node = self._tree.extend_path(state.node, piece.data)
            state = self._add(state, NO_ID, (piece,), node, state.depth + len(piece.data))
        return state._replace(pending=())

    def close(self, state: State) -> State:
        """The state after a hole. Text generated beyond its value leaves the path at once, whatever follows: the run
        finds it again in the tree."""
        state = super().close(state)
        return state if state.overhang is None else self.settle(self._keep(state, state.overhang, 0))


def answered(before: State, after: State, answer: str, hole: str, record: Record) -> State:
    """The state in which an answer replaces everything that joined the path between the two states.

    Text that was pending in `before` joins again. Tokens that ran past the end of the hole before it are cut there, if
    their fate was decided meanwhile (S14).
    """
    hanging: tuple[Step, ...] = ()
    if before.overhang is not None and after.overhang is not before.overhang:
        hanging, before = before.overhang.steps, cut_off(before)
    record.reject(before.newest, after.newest)
    waiting = len(data_of(before.held)) + len(data_of(before.pending))
    for step in steps_between(before.newest, after.newest):
        waiting -= len(step.token.data)
        record.leave([step], "cut" if step in hanging else "removed" if waiting < 0 else "rejected")
    pending = join(before.pending, Piece(answer.encode(), hole, "forced"))
    return before._replace(pending=pending, text=before.text + answer)
