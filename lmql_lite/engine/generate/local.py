"""Generator with a model in this process."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

from lmql_lite.cache.tokens.nodes import Answer, Node
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.constraints.matcher import Engine
from lmql_lite.constraints.terms import Constant, Term
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.engine.generate.hole_fill import matcher_of, quoted
from lmql_lite.engine.generate.local_fill import LocalFill
from lmql_lite.engine.ledger import Ledger
from lmql_lite.engine.path import Path
from lmql_lite.engine.scheduler import Scheduler
from lmql_lite.engine.segment import Lookahead
from lmql_lite.engine.settings import Settings
from lmql_lite.engine.state import State, Step, TokenChoice, data_of, steps_since
from lmql_lite.engine.turns import TemplatePath
from lmql_lite.errors import InputError, LmqlLiteError, ModelError, Span
from lmql_lite.media import Media
from lmql_lite.models.base import KVScope, Scorer
from lmql_lite.models.chat import chat_of
from lmql_lite.options import Sampling
from lmql_lite.program.ops import Hole
from lmql_lite.tokens import Role

MOST_AHEAD = 64
"""Maximum number of tokens generated while the query's own Python is awaited."""


class LocalModel:
    """A model in this process, with everything that its runs share."""

    def __init__(self, scorer: Scorer) -> None:
        self.name = scorer.name
        self.fingerprint = scorer.fingerprint
        self.vocabulary_size = len(scorer.tokenizer.vocabulary)
        self.scorer = scorer
        self.blocks = scorer if scorer.reuses_blocks else None
        """The scorer if it reuses blocks, else None."""
        self.chat = chat_of(scorer.tokenizer)
        self.engine = Engine(Vocabulary(scorer.tokenizer.vocabulary, scorer.tokenizer.eos))

    def scheduler(self, tree: TokenTree) -> Scheduler:
        return Scheduler(self.scorer, tree)

    def generator(self, scheduler: Scheduler, ledger: Ledger, settings: Settings, sampling: Sampling) -> LocalGenerator:
        """The generator of one run. Raises InputError for an option of servers."""
        if sampling.effort is not None:
            sentence = f"effort is an option of models on servers, but {self.name} runs in this process"
            raise InputError(sentence, hint="leave effort= out")
        is_isolated, uses_caches = settings.is_isolated, settings.use_caches
        return LocalGenerator(self, scheduler, ledger, sampling, isolated=is_isolated, uses_caches=uses_caches)


class LocalGenerator:
    """Generator of one branch of a run. `isolated`: each hole asks anew. Without `uses_caches`, the model computes its
    prompt anew as well (S7)."""

    spells_freely = False

    def __init__(
        self,
        model: LocalModel,
        scheduler: Scheduler,
        ledger: Ledger,
        sampling: Sampling,
        *,
        isolated: bool,
        uses_caches: bool,
    ) -> None:
        mark = model.blocks.mark if model.blocks is not None else None
        vocabulary, tokenizer = model.engine.vocabulary, model.scorer.tokenizer
        self.path = Path(scheduler.tree, tokenizer, vocabulary, ledger, mark)
        if model.chat is not None:
            self.path = TemplatePath(model.chat, scheduler.tree, tokenizer, vocabulary, ledger, mark)
        self.model = model.name
        self.engine = model.engine
        self.ledger = ledger
        self.scheduler = scheduler
        self.tree = scheduler.tree
        self._sampling = sampling
        self._isolated = isolated
        self._uses_caches = uses_caches

    def fork(self) -> LocalGenerator:
        fork = copy(self)
        fork.ledger = self.ledger.fork()
        fork.path = self.path.fork(fork.ledger)
        return fork

    def turn(self, state: State, role: Role, span: Span) -> State:
        if not isinstance(self.path, TemplatePath):
            raise ModelError(
                f"{self.model} has no turns, so {{:{role}}} has no meaning for it",
                span=span,
                hint="leave the role tags out, or use a model with a chat template",
            )
        try:
            return self.path.begin(state, role)
        except ModelError as error:
            raise ModelError(error.message, span=span, hint=error.hint) from error

    def show(self, state: State, item: Media) -> State:
        return self.path.show(state, item, self.scheduler.scorer.show(item))

    def fill(
        self, op: Hole, term: Term, state: State, sampling: Sampling, limit: int, lookahead: Callable[[], Lookahead]
    ) -> LocalFill:
        self.begin_options()
        return LocalFill(op, term, self.path, self.ledger, self.scheduler, self.engine, sampling, limit)

    def begin_options(self) -> None:
        """Forgets what is known before a hole or a score (S7)."""
        if self._isolated:
            self.tree.drop_scores()
        if not self._uses_caches:
            self.ledger.scope = KVScope()

    def spell(self, state: State, text: str) -> tuple[tuple[int, ...], int]:
        held, end, own = data_of(state.held), 0, 0
        ids = self.scheduler.scorer.tokenizer.encode(held + text.encode())
        for token in ids:  # tokens within held text do not belong to the hole (S15)
            end += len(self.engine.vocabulary.tokens[token] or b"")
            own += end > len(held)
        return ids, own

    def count(self, text: str) -> int:
        return len(self.scheduler.scorer.tokenizer.encode(text.encode()))

    async def weigh(
        self, state: State, texts: Sequence[str], ids: Sequence[tuple[int, ...]]
    ) -> tuple[list[tuple[Answer, ...]], tuple[float, ...]]:
        scorer = self.scheduler.scorer
        longest = max(range(len(ids)), key=lambda at: len(ids[at]))
        length = state.depth + len(ids[longest])
        if length > scorer.context_length:
            raise ModelError(
                f"the option {quoted(texts[longest])} is too long: with it the text has {length} tokens, but "
                f"{scorer.name} reads at most {scorer.context_length}",
                hint="shorten the prompt or the option, or use a model with a longer context",
            )
        answers = await self.scheduler.logprobs(state.node, ids, self.ledger)
        # exact sums do not depend on the order of the tokens or the version of Python
        return answers, tuple(math.fsum(answer.logprob for answer in tokens) for tokens in answers)

    def choices(self, node: Node, text: str, answers: tuple[Answer, ...]) -> list[TokenChoice]:
        choices = []
        for each in answers:
            data, source = self.engine.vocabulary.tokens[each.token] or b"", self.ledger.source(node, each.run)
            choices.append(TokenChoice(each.token, data, each.logprob, source))
            node = self.tree.extend(node, each.token)
        return choices

    async def logprobs(self, steps: Sequence[Step]) -> list[float]:
        ids = tuple(step.token.id for step in steps)
        (answers,) = await self.scheduler.logprobs(steps[0].parent, [ids], self.ledger)
        return [answer.logprob for answer in answers]

    def leave(self) -> None:
        pass

    async def close(self) -> None:
        self.scheduler.learn(self.ledger)

    async def finish(self, state: State) -> State:
        return self.path.settle(state, last=True)

    # While Python is awaited ----------------------------------------------------------------------------------------

    async def waiting(self, answer: Awaitable[Any], state: State, span: Span) -> Any:
        """The answer. Meanwhile the text is continued as if a free hole came next. If the answer of the query's Python
        is what the model expected, its scores are in the tree already. A wrong guess is a branch that nobody reads."""
        if not self.ledger.speculates or not self.ledger.drafted.pay:
            return await answer
        writing = asyncio.create_task(self._write(state, span))
        try:
            return await answer
        finally:
            writing.cancel()
            with suppress(asyncio.CancelledError, LmqlLiteError):
                await writing

    async def _write(self, state: State, span: Span) -> None:
        op, term, aside = Hole(span, "ahead"), Constant(True), self.path.fork(Ledger(self.ledger.run))
        fill = LocalFill(op, term, aside, self.ledger, self.scheduler, self.engine, self._sampling, MOST_AHEAD)
        matcher = self.engine.matcher(Constant(True), b"", MOST_AHEAD, "ahead", span)
        state = fill.open(state._replace(matcher=None, hole=None, used=0), matcher)
        while matcher_of(state).ending is None:
            before = state
            if forced := fill.forced(state):
                state = fill.force(state, forced)
            else:
                pick = fill.pick(state)
                state = fill.take(pick, await fill.choose(pick))
            asked = (step.parent for step in steps_since(before, state) if step.token.logprob is not None)
            self.ledger.drafted.add(tuple(asked))
