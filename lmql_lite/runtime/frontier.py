"""Where the tree meets the model: what is known is answered at once, what is asked already is waited for, the rest is
put to the model, together. The only file that awaits a Scorer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lmql_lite.cache.explain import difference
from lmql_lite.cache.head import MISS, Head, Miss, question
from lmql_lite.cache.penalties import NO_PENALTIES, Penalties
from lmql_lite.cache.scores import Mask, Scores
from lmql_lite.cache.tree import Answer, Fact, Node, TokenTree
from lmql_lite.errors import CacheError, ModelError
from lmql_lite.models.base import Scorer, ScoreRequest
from lmql_lite.runtime.calls import overheard
from lmql_lite.runtime.decoders import pick
from lmql_lite.runtime.drafts import Drafts
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.state import Step
from lmql_lite.tokens import Sampling, Source, Token


@dataclass(frozen=True, slots=True)
class Question:
    """Scores wanted at some `positions` of a draft: position 0 is right after `node`, 1 after the draft's first token.

    `nodes` are the places of these positions.
    """

    node: Node
    draft: tuple[int, ...]
    positions: tuple[int, ...]
    nodes: tuple[Node, ...]
    ledger: Ledger


class Choice(NamedTuple):
    """A token, the raw log-probability that the model gave it, and who said it."""

    token: int
    logprob: float
    source: Source


class Frontier:
    """One model and its tree, for one event loop. All questions of one tick of the loop are one call of the model.

    A question belongs to the frontier, not to the run that asked: cancelling a run takes nothing from another run
    that waits for the same answer (S32). What the head of an entry does not tell is remembered as the answer to that
    very question, so that it is not asked again when the whole row is gone (S1, S3). With `speculate` the model scores
    in one pass what the tree guesses to come next; in `replay` it is never asked.
    """

    def __init__(self, scorer: Scorer, tree: TokenTree, *, speculate: bool = False, replay: bool = False) -> None:
        self.scorer = scorer
        self.tree = tree
        self.speculates = speculate and not replay
        self._replay = replay
        self._drafts = Drafts()
        self._asked: dict[Node, asyncio.Future[Fact]] = {}
        self._questions: list[Question] = []
        self._asking: asyncio.Task[None] | None = None

    async def choose(
        self,
        node: Node,
        draft: tuple[int, ...],
        mask: Mask,
        sampling: Sampling,
        ledger: Ledger,
        penalties: Penalties = NO_PENALTIES,
    ) -> Choice | None:
        """The token after `node` that `sampling` picks from those that the mask allows, None where it allows none.

        `penalties` are what it makes of the tokens that stand before.
        `draft` are tokens likely to come next; their scores come along in the same pass and land in the tree. Raises
        ModelError where the model fails, what it said before stays; and CacheError where a replay does not know.
        """
        known = self.known(node, mask, sampling, ledger, penalties)
        if not isinstance(known, Miss):
            return known
        answer = self._recall(node, mask, sampling, penalties)
        if answer is not None:
            return Choice(answer.token, answer.logprob, ledger.source(node, answer.run))
        if self._replay:
            raise self._unknown(node)
        if node not in self._asked:
            draft = self._speculated(node, draft, mask, ledger)
            way = self._way(node, draft)
            unknown = [at for at, place in enumerate(way) if not at or self.tree.scores(place) is None]
            self._ask(node, draft, unknown, ledger)
        fact = await asyncio.shield(self._asked[node])
        choice = self._choice(node, fact, mask, sampling, ledger, penalties)
        assert not isinstance(choice, Miss), "scores that were just made are whole"
        return choice

    def known(
        self, node: Node, mask: Mask, sampling: Sampling, ledger: Ledger, penalties: Penalties
    ) -> Choice | Miss | None:
        """What `choose` gives, where it stands in the scores of the node; a Miss where these do not tell."""
        fact = self.tree.scores(node)
        return MISS if fact is None else self._choice(node, fact, mask, sampling, ledger, penalties)

    async def logprobs(
        self, node: Node, options: Sequence[tuple[int, ...]], ledger: Ledger
    ) -> list[tuple[Answer, ...]]:
        """For each option the raw log-probabilities of its tokens, one after the other from `node` (S25).

        All that is not known is one call of the model; options that share a beginning share its nodes. Raises as
        `choose` does.
        """
        known: dict[tuple[Node, int], Answer] = {}
        coming: dict[Node, asyncio.Future[Fact]] = {}
        ways = [list(zip(self._way(node, option[:-1]), option, strict=False)) for option in options]
        for way, option in zip(ways, options, strict=True):
            told = [(step, self._logprob(*step)) for step in way]
            known.update((step, answer) for step, answer in told if answer is not None)
            unknown = [at for at, (_, answer) in enumerate(told) if answer is None]
            if unknown and self._replay:
                raise self._unknown(way[unknown[0]][0])
            self._ask(node, option[:-1], unknown, ledger)
            coming.update((way[at][0], self._asked[way[at][0]]) for at in unknown)
        facts = {place: await asyncio.shield(fact) for place, fact in coming.items()}
        for way in ways:
            known.update((step, self._told(*step, facts[step[0]])) for step in way if step not in known)
        return [tuple(known[step] for step in way) for way in ways]

    def _way(self, node: Node, tokens: tuple[int, ...]) -> list[Node]:
        """The node and those that the tokens lead to."""
        way = [node]
        for token in tokens:
            way.append(self.tree.extend(way[-1], token))
        return way

    # What is known -----------------------------------------------------------------------------------------------

    def _choice(
        self, node: Node, fact: Fact, mask: Mask, sampling: Sampling, ledger: Ledger, penalties: Penalties
    ) -> Choice | Miss | None:
        """What is picked from known scores; where their head alone would not tell, that is kept as an answer."""
        token = self._pick(node, fact.scores, mask, sampling, penalties)
        if token is None or isinstance(token, Miss):
            return token
        self._remember(node, fact, token, mask, sampling, penalties)
        logprob = fact.scores.logprob(token)
        assert logprob is not None, "what was picked is known"
        return Choice(token, logprob, ledger.source(node, fact.run))

    def _pick(
        self, node: Node, scores: Scores | Head, mask: Mask, sampling: Sampling, penalties: Penalties
    ) -> int | Miss | None:
        path_hash = self.tree.path_hash(node) if sampling.temperature > 0 else 0  # of which argmax makes nothing
        return pick(scores, mask, sampling, path_hash, penalties)

    def _recall(self, node: Node, mask: Mask, sampling: Sampling, penalties: Penalties) -> Answer | None:
        if sampling.temperature <= 0:
            return self.tree.verdict(node, question(mask, None, penalties))
        return self.tree.draw(node, question(mask, sampling, penalties), sampling.seed, sampling.index)

    def _remember(
        self, node: Node, fact: Fact, token: int, mask: Mask, sampling: Sampling, penalties: Penalties
    ) -> None:
        """Keeps an answer that whoever reads only the head of this entry would have to ask for again."""
        scores = fact.scores
        if isinstance(scores, Head):
            return
        if sampling.temperature <= 0 and not penalties and scores.head().ids[0] == token:  # it says so at first sight
            return
        if isinstance(self._pick(node, scores.head(), mask, sampling, penalties), Miss):
            answer = Answer(token, scores.logprob(token), fact.run)
            if sampling.temperature <= 0:
                self.tree.add_verdict(node, question(mask, None, penalties), answer)
            else:
                asked = question(mask, sampling, penalties)
                self.tree.add_draw(node, asked, sampling.seed, sampling.index, answer)

    def _logprob(self, node: Node, token: int) -> Answer | None:
        """What is known of one token: it stands in the scores, or is the answer where no other was allowed."""
        fact = self.tree.scores(node)
        if fact is not None and isinstance(fact.scores, Scores):
            return self._told(node, token, fact)
        logprob = None if fact is None else fact.scores.logprob(token)
        if fact is None or logprob is None:
            return self.tree.verdict(node, self._only(token))
        return Answer(token, logprob, fact.run)

    def _told(self, node: Node, token: int, fact: Fact) -> Answer:
        assert isinstance(fact.scores, Scores), "scores that were just made are whole"
        answer = Answer(token, fact.scores.logprob(token), fact.run)
        if fact.scores.head().logprob(token) is None:
            self.tree.add_verdict(node, self._only(token), answer)
        return answer

    def _only(self, token: int) -> bytes:
        """The question that allows this token alone."""
        mask = np.zeros(len(self.scorer.tokenizer.vocabulary), dtype=np.bool_)
        mask[token] = True
        return question(mask, None)

    def _unknown(self, node: Node) -> CacheError:
        path, vocabulary = self.tree.path(node), self.scorer.tokenizer.vocabulary
        found = difference(self.tree.logged, path)
        why = found.told(vocabulary)
        if found.asked is None and self.tree.scores(node) is not None:
            why = f"{found.place(vocabulary)}: what is stored answers other conditions or another seed"
        return CacheError(
            f"the replay does not know what {self.scorer.name} says {why}",
            hint="run it once with cache_mode='rw' to record what is new",
        )

    # What is asked -----------------------------------------------------------------------------------------------

    def _speculated(self, node: Node, draft: tuple[int, ...], mask: Mask, ledger: Ledger) -> tuple[int, ...]:
        """The draft, and after it what the tree guesses, as much of it as is worth its time."""
        if not self.speculates:
            return draft
        if ledger.draft:
            self._drafts.learn(len(ledger.draft), ledger.came_true())
            ledger.draft = ()
        room = self.scorer.context_length - len(self.tree.path(node)) - len(draft)
        most = min(self._drafts.length(), room)
        if most <= 0:
            return draft
        way = self._way(node, draft)
        guess = self.tree.guess(way[-1], most, skip=self._drafts.are_lucky)
        if not guess or not (draft or mask[guess[0]]):
            return draft
        nodes = self._way(way[-1], guess)
        ledger.draft = tuple(nodes[1:])
        vocabulary = self.scorer.tokenizer.vocabulary
        ledger.guesses += [
            Step(Token(token, vocabulary[token] or b"", None, "draft", "kept", None), parent, place, None)
            for token, parent, place in zip(guess, nodes, nodes[1:], strict=False)
            if not ledger.guessed(place)
        ]
        ledger.guess(ledger.draft)
        return draft + guess

    def _ask(self, node: Node, draft: tuple[int, ...], positions: Iterable[int], ledger: Ledger) -> None:
        """Wants the scores at these positions of the draft, where they are not on their way."""
        loop = asyncio.get_running_loop()
        way = self._way(node, draft)
        wanted = tuple(at for at in positions if way[at] not in self._asked)
        if not wanted:
            return
        nodes = tuple(way[at] for at in wanted)
        self._asked.update((place, loop.create_future()) for place in nodes)
        self._questions.append(Question(node, draft[: wanted[-1]], wanted, nodes, ledger))
        if self._asking is None:
            self._asking = loop.create_task(self._step())

    async def _step(self) -> None:
        while self._questions:
            questions, self._questions = self._questions, []
            requests = [
                ScoreRequest(self.tree.path(wanted.node), wanted.draft, wanted.positions) for wanted in questions
            ]
            for meter in {id(wanted.ledger.meter): wanted.ledger.meter for wanted in questions}.values():
                meter.forward_passes += 1
            heard = [wanted.ledger.calls for wanted in questions]
            try:
                answers = await (overheard(self.scorer, requests, heard) if any(heard) else self.scorer.score(requests))
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
