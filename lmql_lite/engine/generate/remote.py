"""Generator with a server. The model writes freely, and one answer may serve the holes of a whole segment."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lmql_lite.cache.tokens.bytes import VOCABULARY
from lmql_lite.cache.tokens.draws import is_greedy
from lmql_lite.cache.tokens.nodes import Answer, Node
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.constraints.language import Language
from lmql_lite.constraints.terms import Term, identity
from lmql_lite.engine.forms import TOKEN_BYTES, Form, Forms, requested, text_engine
from lmql_lite.engine.generate.byte_path import BytePath
from lmql_lite.engine.generate.remote_fill import RemoteFill
from lmql_lite.engine.generate.remote_scheduler import Reader, RemoteScheduler
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.segment import Lookahead
from lmql_lite.engine.settings import Settings
from lmql_lite.engine.state import NO_ID, State, TokenChoice, data_of
from lmql_lite.errors import Span
from lmql_lite.media import Media
from lmql_lite.models.base import Capabilities, Completer
from lmql_lite.options import Sampling
from lmql_lite.program.ops import Hole
from lmql_lite.tokens import Role

SCORED = 0
"""Token of an answer that holds only a score."""


class RemoteModel:
    """A model on a server, with everything that its runs share. Its matchers read bytes, for want of a vocabulary."""

    vocabulary_size = VOCABULARY

    def __init__(self, completer: Completer, capabilities: Capabilities) -> None:
        self.name = completer.name
        self.fingerprint = capabilities.fingerprint
        self.completer = completer
        self.capabilities = capabilities
        self.engine = text_engine(by_server=True)
        self.forms = Forms(self.engine, capabilities)

    def scheduler(self, tree: TokenTree) -> RemoteScheduler:
        return RemoteScheduler(self.completer, self.capabilities, tree)

    def generator(
        self, scheduler: RemoteScheduler, ledger: Ledger, settings: Settings, sampling: Sampling
    ) -> RemoteGenerator:
        return RemoteGenerator(self, scheduler, ledger, settings)


class RemoteGenerator:
    """Generator of one run."""

    spells_freely = True

    def __init__(self, model: RemoteModel, scheduler: RemoteScheduler, ledger: Ledger, settings: Settings) -> None:
        chat = scheduler.capabilities.chat_only
        self.path = BytePath(scheduler.byte_tree, model.engine.vocabulary, ledger, chat=chat)
        self.model = model.name
        self.engine = model.engine
        self.ledger = ledger
        self.scheduler = scheduler
        self.tree = scheduler.byte_tree.tree
        self.reader = Reader(ledger)
        ledger.by_server = True
        self._forms = model.forms
        self._settings = settings
        self._isolated = settings.is_isolated
        """True if each hole is a separate request, which ends with the hole (S7)."""
        self._segment: Form | None = None
        self._left = 0
        """Number of holes of the segment that are not open yet."""
        self._own: bytes | None = None
        """Key of the answers to a hole, or to holes drawn together, that is asked alone."""
        self._fill: RemoteFill | None = None

    def turn(self, state: State, role: Role, span: Span) -> State:
        return self.path.begin(state, role)

    def show(self, state: State, item: Media) -> State:
        self.scheduler.media[item.digest] = item
        return self.path.show_item(state, item)

    def fill(
        self, op: Hole, term: Term, state: State, sampling: Sampling, limit: int, lookahead: Callable[[], Lookahead]
    ) -> RemoteFill:
        before = self._fill
        goes_on = op.continues_segment and self._left > 0 and not (before and before.fell_short)
        if self._segment is None or not goes_on:
            self._segment = self._begun(op, state, lookahead())
        elif before is not None and before.is_held:
            self._segment = self._segment.under_condition()
        self._left -= 1
        question = self._segment
        # a server counts penalties from the start of a request, so each hole is a separate request
        if self._isolated or sampling.penalises:
            # holes under the grammar of a segment are drawn together, as with a cache (law 1)
            is_drawn = isinstance(question.pushed, Language) and not (is_greedy(sampling) or sampling.penalises)
            if self._own is None or not (goes_on and is_drawn):
                self.reader.leave()
                self._own = self._own_key(question, state)
            question = replace(self._forms.alone(question, op, term), key=self._own)
        question = replace(question, sampling=sampling)
        self._fill = RemoteFill(
            op, self.path, self.reader, self.scheduler, question, limit, self._settings.hole_requests
        )
        return self._fill

    def _begun(self, op: Hole, state: State, lookahead: Lookahead) -> Form:
        """The question for the rest of the segment."""
        lookahead = requested(lookahead, speculates=self._settings.speculate)
        known = [part if isinstance(part, bytes) else identity(part) for part in lookahead.parts]
        parts = (state.text.encode(), repr((known, lookahead.schema)).encode())
        begin = len(self.scheduler.text_to(state.node)) + len(data_of(state.pending))
        question = replace(
            self._forms.form(op, lookahead, tells=self._settings.tells), key=_digest(*parts), begin=begin
        )
        self._left = question.lookahead.holes
        return question

    def _own_key(self, question: Form, state: State) -> bytes:
        """Key of the answers to one hole; if it is isolated, only this run's."""
        own = b"%d" % secrets.randbits(64) if self._isolated else b""
        return _digest(question.key, state.text.encode(), own)

    # Options that are scored ----------------------------------------------------------------------------------------

    def begin_options(self) -> None:
        self.reader.leave()  # scoring is a separate request

    def spell(self, state: State, text: str) -> tuple[tuple[int, ...], int]:
        return (), 1

    def count(self, text: str) -> int:
        return -(-len(text) // TOKEN_BYTES)

    async def weigh(
        self, state: State, texts: Sequence[str], ids: Sequence[tuple[int, ...]]
    ) -> tuple[list[tuple[Answer, ...]], tuple[float, ...]]:
        """The answer for each option, and its log-probability. One request asks for all unknown options; each score is
        stored as the answer to its own question."""
        known: dict[str, Answer] = {}
        for text in () if self._isolated else texts:
            answer = self.tree.answer(state.node, _question(text))
            if answer is not None:
                known[text] = answer
        unknown = [text for text in texts if text not in known]
        logprobs = await self.scheduler.score(state.node, unknown, self.ledger)
        for text, logprob in zip(unknown, logprobs, strict=True):
            answer = Answer(SCORED, float(np.float32(logprob)), self.ledger.run)  # float32, as in a file
            known[text] = answer if self._isolated else self.tree.add_answer(state.node, _question(text), answer)
        return [(known[text],) for text in texts], tuple(known[text].logprob for text in texts)

    def choices(self, node: Node, text: str, answers: tuple[Answer, ...]) -> list[TokenChoice]:
        """The text as one piece, since its tokens are not known."""
        (answer,) = answers
        source, after = self.ledger.source(node, answer.run), self.tree.extend_path(node, text.encode())
        return [TokenChoice(NO_ID, text.encode(), answer.logprob, source, node=after)]

    # The course of a run --------------------------------------------------------------------------------------------

    async def waiting(self, answer: Awaitable[Any], state: State, span: Span) -> Any:
        """The answer. The open stream goes on meanwhile."""
        return await answer

    def leave(self) -> None:
        self.reader.leave()

    async def close(self) -> None:
        await self.reader.close()

    async def finish(self, state: State) -> State:
        stream = self.reader.stream
        if stream is not None and stream.ends(self.scheduler.text_to(stream.tip)):
            await stream.over()  # the server ends here by itself, and then reports its usage
        self.reader.leave()
        state = self.path.settle(state)
        self.ledger.used(self.tree.nodes_to(state.node))
        return state


def _digest(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"\0".join(parts), digest_size=16).digest()


def _question(text: str) -> bytes:
    return hashlib.blake2b(b"score\0" + text.encode(), digest_size=16).digest()
