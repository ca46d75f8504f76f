"""Where the tree meets the model: what is known is answered at once, what is asked already is waited for, the rest is
put to the model, together. The only file that awaits a Scorer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from lmql_lite.cache.head import Head, Miss, question
from lmql_lite.cache.scores import Mask, Scores
from lmql_lite.cache.tree import Answer, Fact, Node, TokenTree
from lmql_lite.errors import CacheError, ModelError
from lmql_lite.models.base import Scorer, ScoreRequest
from lmql_lite.runtime.decoders import pick
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.tokens import Sampling

SHOWN = 60
"""Characters of a path that an error quotes."""


@dataclass(frozen=True, slots=True)
class Question:
    """Scores wanted after `nodes[0]` and after each token of the draft that leads on from it to the other nodes."""

    nodes: tuple[Node, ...]
    draft: tuple[int, ...]
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Choice:
    """A token, the raw log-probability that the model gave it, and the run that asked for it first."""

    token: int
    logprob: float
    run: int


class Frontier:
    """One model and its tree, for one event loop. All questions of one tick of the loop are one call of the model.

    A question belongs to the frontier, not to the run that asked: cancelling a run takes nothing from another run
    that waits for the same answer (S32). Where the tree will be `saved`, what the head of an entry does not tell is
    remembered as the answer to that very question (S1, S3); in `replay` the model is never asked.
    """

    def __init__(self, scorer: Scorer, tree: TokenTree, *, saved: bool = False, replay: bool = False) -> None:
        self.scorer = scorer
        self.tree = tree
        self._saved = saved
        self._replay = replay
        self._asked: dict[Node, asyncio.Future[Fact]] = {}
        self._questions: list[Question] = []
        self._asking: asyncio.Task[None] | None = None

    async def choose(
        self, node: Node, draft: tuple[int, ...], mask: Mask, sampling: Sampling, ledger: Ledger
    ) -> Choice | None:
        """The token after `node` that `sampling` picks from those that the mask allows, None where it allows none.

        `draft` are tokens likely to come next; their scores come along in the same pass and land in the tree. Raises
        ModelError where the model fails, what it said before stays; and CacheError where a replay does not know.
        """
        path_hash = self.tree.path_hash(node)
        known = self.tree.scores(node)
        if known is not None:
            picked = pick(known.scores, mask, sampling, path_hash)
            if not isinstance(picked, Miss):
                self._remember(node, known.scores, picked, mask, sampling, known.run)
                return self._choice(known, picked)
            answer = self._recall(node, mask, sampling)
            if answer is not None:
                return Choice(answer.token, answer.logprob, answer.run)
        if self._replay:
            raise self._unknown(node, known is not None)
        fact = await self._fact(node, draft, ledger)
        picked = pick(fact.scores, mask, sampling, path_hash)
        assert not isinstance(picked, Miss), "scores that were just made are whole"
        self._remember(node, fact.scores, picked, mask, sampling, fact.run)
        return self._choice(fact, picked)

    def _choice(self, fact: Fact, token: int | None) -> Choice | None:
        if token is None:
            return None
        logprob = fact.scores.logprob(token)
        assert logprob is not None, "what was picked is known"
        return Choice(token, logprob, fact.run)

    def _recall(self, node: Node, mask: Mask, sampling: Sampling) -> Answer | None:
        if sampling.temperature <= 0:
            return self.tree.verdict(node, question(mask, None))
        return self.tree.draw(node, question(mask, sampling), sampling.seed, sampling.index)

    def _remember(
        self, node: Node, scores: Scores | Head, token: int | None, mask: Mask, sampling: Sampling, run: int
    ) -> None:
        """Keeps an answer that whoever reads only the head of this entry would have to ask for again."""
        if not self._saved or token is None or isinstance(scores, Head):
            return
        if isinstance(pick(scores.head(), mask, sampling, self.tree.path_hash(node)), Miss):
            answer = Answer(token, scores.logprob(token), run)
            if sampling.temperature <= 0:
                self.tree.add_verdict(node, question(mask, None), answer)
            else:
                self.tree.add_draw(node, question(mask, sampling), sampling.seed, sampling.index, answer)

    def _unknown(self, node: Node, asked_otherwise: bool) -> CacheError:
        said = b"".join(self.scorer.tokenizer.vocabulary[token] or b"" for token in self.tree.path(node))
        shown = said.decode("utf-8", "replace")[-SHOWN:]
        why = (
            "what is stored there answers other conditions or another seed"
            if asked_otherwise
            else "nothing is stored there"
        )
        return CacheError(
            f"the replay does not know what {self.scorer.name} says after {shown!r}: {why}",
            hint="run it once with cache_mode='rw' to record what is new",
        )

    async def _fact(self, node: Node, draft: tuple[int, ...], ledger: Ledger) -> Fact:
        """The whole scores of what follows `node`."""
        known = self.tree.scores(node)
        if known is not None and isinstance(known.scores, Scores):
            return known
        answer = self._asked.get(node)
        if answer is None:
            answer = self._ask(node, draft, ledger)
        return await asyncio.shield(answer)

    def _ask(self, node: Node, draft: tuple[int, ...], ledger: Ledger) -> asyncio.Future[Fact]:
        loop = asyncio.get_running_loop()
        nodes = [node]
        for token in draft:
            nodes.append(self.tree.extend(nodes[-1], token))
        for place in nodes:
            if place not in self._asked:
                self._asked[place] = loop.create_future()
        self._questions.append(Question(tuple(nodes), draft, ledger))
        if self._asking is None:
            self._asking = loop.create_task(self._step())
        return self._asked[node]

    async def _step(self) -> None:
        while self._questions:
            questions, self._questions = self._questions, []
            requests = [
                ScoreRequest(self.tree.path(wanted.nodes[0]), wanted.draft, tuple(range(len(wanted.nodes))))
                for wanted in questions
            ]
            for ledger in {id(wanted.ledger): wanted.ledger for wanted in questions}.values():
                ledger.forward_passes += 1
            try:
                answers = await self.scorer.score(requests)
            except Exception as error:
                self._fail(questions, error)
                continue
            for wanted, rows in zip(questions, answers, strict=True):
                for node, row in zip(wanted.nodes, rows, strict=True):
                    fact = self.tree.add_scores(node, Scores(row), wanted.ledger.run)
                    self._answer(node, fact)
        self._asking = None

    def _answer(self, node: Node, fact: Fact) -> None:
        answer = self._asked.pop(node, None)
        if answer is not None and not answer.done():
            answer.set_result(fact)

    def _fail(self, questions: list[Question], error: Exception) -> None:
        if not isinstance(error, ModelError):
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            failure = ModelError(f"the model {self.scorer.name} failed: {reason}")
            failure.__cause__ = error
            error = failure
        for wanted in questions:
            for node in wanted.nodes:
                answer = self._asked.pop(node, None)
                if answer is not None and not answer.done():
                    answer.set_exception(error)
                    answer.exception()  # a draft's answer may have no reader: that is no lost exception
