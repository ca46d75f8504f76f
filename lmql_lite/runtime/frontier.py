"""Where the tree meets the model: what is known is answered at once, what is asked already is waited for, the rest is
put to the model, together. The only file that awaits a Scorer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from lmql_lite.cache.scores import Scores
from lmql_lite.cache.tree import Fact, Node, TokenTree
from lmql_lite.errors import ModelError
from lmql_lite.models.base import Scorer, ScoreRequest
from lmql_lite.runtime.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Question:
    """Scores wanted after `nodes[0]` and after each token of the draft that leads on from it to the other nodes."""

    nodes: tuple[Node, ...]
    draft: tuple[int, ...]
    ledger: Ledger


class Frontier:
    """One model and its tree, for one event loop. All questions of one tick of the loop are one call of the model.

    A question belongs to the frontier, not to the run that asked: cancelling a run takes nothing from another run
    that waits for the same answer (S32).
    """

    def __init__(self, scorer: Scorer, tree: TokenTree) -> None:
        self.scorer = scorer
        self.tree = tree
        self._asked: dict[Node, asyncio.Future[Fact]] = {}
        self._questions: list[Question] = []
        self._asking: asyncio.Task[None] | None = None

    async def fact(self, node: Node, draft: tuple[int, ...], ledger: Ledger) -> Fact:
        """The scores of what follows `node`.

        `draft` are tokens likely to come next; their scores come along in the same pass and land in the tree. Raises
        ModelError where the model fails; what it said before stays.
        """
        known = self.tree.scores(node)
        if known is not None:
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
                ScoreRequest(self.tree.path(question.nodes[0]), question.draft, tuple(range(len(question.nodes))))
                for question in questions
            ]
            for ledger in {id(question.ledger): question.ledger for question in questions}.values():
                ledger.forward_passes += 1
            try:
                answers = await self.scorer.score(requests)
            except Exception as error:
                self._fail(questions, error)
                continue
            for question, rows in zip(questions, answers, strict=True):
                for node, row in zip(question.nodes, rows, strict=True):
                    fact = self.tree.add_scores(node, Scores(row), question.ledger.run)
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
        for question in questions:
            for node in question.nodes:
                answer = self._asked.pop(node, None)
                if answer is not None and not answer.done():
                    answer.set_exception(error)
                    answer.exception()  # a draft's answer may have no reader: that is no lost exception
