"""Scheduler of a model in this process. It answers a question from the tree, lets it wait for the same question in
flight, or puts it to the model with all others of the tick. Only this module awaits a Scorer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from lmql_lite.cache.tokens.draws import Mask, Penalties
from lmql_lite.cache.tokens.nodes import Answer, Node, ScoreEntry
from lmql_lite.cache.tokens.nodes import Question as StoredQuestion
from lmql_lite.cache.tokens.outcomes import OUTCOMES, Outcomes, outcomes_of, outcomes_question, uniform
from lmql_lite.cache.tokens.scores import MISS, Miss, Scores, TopK, question
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.engine.calls import recorded_scores
from lmql_lite.engine.events import Guessed
from lmql_lite.engine.record import Record
from lmql_lite.engine.state import TokenChoice
from lmql_lite.errors import CacheError, InputError, ModelError
from lmql_lite.models.base import KVScope, Scorer, ScoreRequest
from lmql_lite.options import Sampling
from lmql_lite.tokens import Token


@dataclass(frozen=True, slots=True)
class Question:
    """Question for the scores at some `positions` of a draft: 0 is right after `node`, 1 after the draft's first token.

    `nodes` are the nodes of these positions.
    """

    node: Node
    draft: tuple[int, ...]
    positions: tuple[int, ...]
    nodes: tuple[Node, ...]
    record: Record
    scope: KVScope | None


class DraftPlace(NamedTuple):
    """Hole that is filled, for drafts: its `key`, and the number of leading tokens that do not leave it or end it."""

    key: Hashable
    fitting: Callable[[tuple[int, ...]], int]


class Scheduler:
    """Scheduler of one model and its tree, for one event loop. All questions of one tick of the loop are one call of
    the model, and no call waits for another one.

    A question belongs to the scheduler, not to the run that asked: cancelling a run does not affect other runs that
    wait for the same answer (S32). An answer outside the top k of a row is stored as the answer to its question, so
    that it survives the row (S1, S3). Drafts of the tree are scored in the same pass for runs that speculate; for a run
    that replays, nothing is asked.
    """

    def __init__(self, scorer: Scorer, tree: TokenTree) -> None:
        self.scorer = scorer
        self.tree = tree
        self._spelled, self._eos = scorer.tokenizer.vocabulary, scorer.tokenizer.eos
        self._epsilon = scorer.epsilon
        self._coming: dict[Node, asyncio.Future[ScoreEntry]] = {}
        """Answers that are on their way."""
        self._questions: list[Question] = []
        self._next: asyncio.Task[None] | None = None
        """The task that sends the questions of this tick."""
        self._under_way: set[asyncio.Task[None]] = set()

    def known(
        self,
        node: Node,
        mask: Mask,
        sampling: Sampling,
        record: Record,
        penalties: Penalties,
        entry: ScoreEntry | None = None,
    ) -> TokenChoice | Miss | None:
        """The token after `node` that `sampling` picks among the allowed ones, if the tree, or the `entry` that the
        model just made, decides that; else a Miss, which an entry never is. None if the mask allows none.

        `penalties` are those of the earlier tokens.
        """
        entry, is_close = entry or self.tree.scores(node), None
        token, logprob = (MISS, None) if entry is None else self._picked(node, entry, mask, sampling, penalties)
        if token is None:
            return None
        if entry is None or isinstance(token, Miss):
            answer = self.tree.answer(node, self._asked(mask, sampling, penalties))
            if answer is None:
                return MISS
            token, logprob, run = answer.token, answer.logprob, answer.run
        else:
            run = entry.run
            if self._epsilon is not None:
                path = self.tree.path_hash(node)
                is_close = self._epsilon > 0 and entry.scores.is_close(self._epsilon, mask, sampling, path, penalties)
        data = b"" if token in self._eos else self._spelled[token] or b""
        return TokenChoice(token, data, logprob, record.ledger.source(node, run), is_close)

    def asked(
        self, node: Node, draft: tuple[int, ...], mask: Mask, record: Record, place: DraftPlace | None
    ) -> asyncio.Future[ScoreEntry]:
        """The scores of a node, which are on their way or asked of the model now.

        `draft` are tokens likely to come next; their scores come from the same pass and enter the tree. At a `place`, a
        draft of the tree continues it. Raises ModelError if the model fails, and CacheError if a replay lacks the
        answer.
        """
        if record.ledger.replays:
            raise self._unknown(node)
        if node not in self._coming:
            draft = self._speculated(node, draft, mask, record, place)
            way = self._way(node, draft)
            self._ask(node, draft, [at for at, each in enumerate(way) if not at or not self.tree.scores(each)], record)
        return asyncio.shield(self._coming[node])

    async def outcomes(
        self, node: Node, draft: tuple[int, ...], mask: Mask, ends: Mask, most: int, seed: int, record: Record
    ) -> list[tuple[TokenChoice, float]]:
        """At most `most` of the allowed tokens after `node`, each with the logarithm of the probability that it stands
        for (S36). The allowed tokens that are `ends` are one. `draft` and exceptions are those of `asked`."""
        asked = outcomes_question(mask, ends, most)
        entry, found = self.tree.scores(node), None
        if entry is not None:
            found = self._outcomes(node, asked, entry, mask, ends, most, seed)
        answer = self.tree.answer(node, (asked, seed, 0)) if found is None else None
        if answer is not None and answer.outcomes is not None:
            found = answer.outcomes, None, answer.run
        if found is None:
            entry = await self.asked(node, draft, mask, record, None)
            found = self._outcomes(node, asked, entry, mask, ends, most, seed)
            assert found is not None, "scores that were just made are whole"
        outcomes, is_close, run = found
        source, choices = record.ledger.source(node, run), list[tuple[TokenChoice, float]]()
        columns = (outcomes.ids.tolist(), outcomes.logprobs.tolist(), outcomes.weights.tolist())
        for token, logprob, weight in zip(*columns, strict=True):
            data = b"" if token in self._eos else self._spelled[token] or b""
            choices.append((TokenChoice(token, data, logprob, source, is_close), weight))
        return choices

    def _outcomes(
        self, node: Node, asked: bytes, entry: ScoreEntry, mask: Mask, ends: Mask, most: int, seed: int
    ) -> tuple[Outcomes, bool | None, int] | None:
        """The outcomes from known scores, True if the model's noise might have changed their choice, and the run that
        asked. None if a top-k entry lacks an allowed token; where it does, the answer is stored."""
        ids, top_k = np.flatnonzero(mask), entry.top_k()
        is_known = bool(np.isin(ids, top_k.ids).all())
        if isinstance(entry.scores, Scores):
            logprobs = entry.scores.logprobs[ids]
        elif is_known:
            order = np.argsort(top_k.ids)
            logprobs = top_k.logprobs[order][np.searchsorted(top_k.ids[order], ids)]
        else:
            return None
        noise = uniform(seed, OUTCOMES, self.tree.path_hash(node))
        outcomes, margin = outcomes_of(ids, logprobs, ends[ids], most, noise)
        if not is_known:
            first = (int(outcomes.ids[0]), float(outcomes.logprobs[0])) if outcomes.ids.size else (-1, -np.inf)
            self.tree.add_answer(node, (asked, seed, 0), Answer(*first, entry.run, outcomes=outcomes))
        is_close = None if self._epsilon is None else margin < self._epsilon
        return outcomes, is_close, entry.run

    async def logprobs(
        self, node: Node, options: Sequence[tuple[int, ...]], record: Record
    ) -> list[tuple[Answer, ...]]:
        """For each option the raw log-probabilities of its tokens, in order after `node` (S25).

        Unknown scores take one call of the model; options with a common beginning share its nodes. Raises as `asked`
        does.
        """
        known: dict[tuple[Node, int], Answer] = {}
        coming: dict[Node, asyncio.Future[ScoreEntry]] = {}
        ways = [list(zip(self._way(node, option[:-1]), option, strict=False)) for option in options]
        for way, option in zip(ways, options, strict=True):
            told = [(step, self._logprob(*step)) for step in way]
            known.update((step, answer) for step, answer in told if answer is not None)
            unknown = [at for at, (_, answer) in enumerate(told) if answer is None]
            if unknown and record.ledger.replays:
                raise self._unknown(way[unknown[0]][0])
            self._ask(node, option[:-1], unknown, record)
            coming.update((way[at][0], self._coming[way[at][0]]) for at in unknown)
        entries = {place: await asyncio.shield(entry) for place, entry in coming.items()}
        for way in ways:
            known.update((step, self._answer_for(*step, entries[step[0]])) for step in way if step not in known)
        return [tuple(known[step] for step in way) for way in ways]

    def _way(self, node: Node, tokens: tuple[int, ...]) -> list[Node]:
        """The node, and the nodes to which the tokens lead."""
        way = [node]
        for token in tokens:
            way.append(self.tree.extend(way[-1], token))
        return way

    # Answers from the tree ----------------------------------------------------------------------------------------

    def _picked(
        self, node: Node, entry: ScoreEntry, mask: Mask, sampling: Sampling, penalties: Penalties
    ) -> tuple[int | Miss | None, float | None]:
        """The token that known scores decide, and its log-probability: a function of scores, penalties, mask, seed and
        path alone (law 1). None if the mask allows none. Where the top k alone misses it, it is stored as an answer."""
        for scores in (entry.scores,) if isinstance(entry.scores, TopK) else (entry.scores.top_k(), entry.scores):
            if sampling.temperature <= 0:
                token = scores.best(mask, penalties)
            else:
                token = scores.sample(mask, sampling, self.tree.path_hash(node), penalties)
            if token is None:
                return None, None
            # an only allowed token outside the top k is found without its log-probability
            logprob = None if isinstance(token, Miss) else scores.logprob(token)
            if isinstance(token, Miss) or logprob is None:
                continue
            if isinstance(scores, Scores):
                self.tree.add_answer(node, self._asked(mask, sampling, penalties), Answer(token, logprob, entry.run))
            return token, logprob
        return MISS, None

    @staticmethod
    def _asked(mask: Mask, sampling: Sampling, penalties: Penalties) -> StoredQuestion:
        """The question of a choice, as the tree has it."""
        if sampling.temperature <= 0:
            return question(mask, None, penalties)
        return question(mask, sampling, penalties), sampling.seed, sampling.index

    def _logprob(self, node: Node, token: int) -> Answer | None:
        """The answer for one token, from the scores or from a question that allows only this token."""
        entry = self.tree.scores(node)
        if entry is not None and isinstance(entry.scores, Scores):
            return self._answer_for(node, token, entry)
        logprob = None if entry is None else entry.scores.logprob(token)
        if entry is None or logprob is None:
            return self.tree.answer(node, self._only(token))
        return Answer(token, logprob, entry.run)

    def _answer_for(self, node: Node, token: int, entry: ScoreEntry) -> Answer:
        assert isinstance(entry.scores, Scores), "scores that were just made are whole"
        answer = Answer(token, entry.scores.logprob(token), entry.run)
        if entry.scores.top_k().logprob(token) is None:
            self.tree.add_answer(node, self._only(token), answer)
        return answer

    def _only(self, token: int) -> bytes:
        """Key of the question that allows only this token."""
        mask = np.zeros(len(self.scorer.tokenizer.vocabulary), dtype=np.bool_)
        mask[token] = True
        return question(mask, None)

    def _unknown(self, node: Node) -> CacheError:
        vocabulary = self.scorer.tokenizer.vocabulary
        found = self.tree.difference(node)
        why = found.describe(vocabulary)
        if found.asked is None and self.tree.scores(node) is not None:
            why = f"{found.place(vocabulary)}: the stored answers are for other conditions or another seed"
        return CacheError(
            f"the recording has no answer of {self.scorer.name} {why}",
            hint="run it once with cache_mode='rw' to record what is new",
        )

    # Questions to the model ---------------------------------------------------------------------------------------

    def learn(self, record: Record) -> None:
        """Learns from the last draft of a branch, whose fate is known now."""
        if record.draft:
            self.tree.draft_lengths.learn(record.draft_place, len(record.draft), record.drafted())
            record.draft = ()

    def _speculated(
        self, node: Node, draft: tuple[int, ...], mask: Mask, record: Record, place: DraftPlace | None
    ) -> tuple[int, ...]:
        """The draft, continued by a draft from the tree as long as that pays."""
        if not record.ledger.speculates or place is None:
            return draft
        self.learn(record)
        room = self.scorer.context_length - len(self.tree.path(node)) - len(draft)
        length = self.tree.draft_lengths.of(place.key)
        most = min(length.next(), room)
        if most <= 0:
            return draft
        way = self._way(node, draft)
        guess = self.tree.draft(way[-1], most, skip=length.are_lucky)
        size = len(self.scorer.tokenizer.vocabulary)
        guess = tuple(
            takewhile(lambda token: token < size and token not in self.scorer.marks, guess)
        )  # marks of blocks and of items, which the run may not have, are no tokens to guess
        guess = guess[: place.fitting(guess)]
        if not guess or not (draft or mask[guess[0]]):
            return draft
        nodes = self._way(way[-1], guess)
        record.draft, record.draft_place = tuple(nodes[1:]), place.key
        vocabulary = self.scorer.tokenizer.vocabulary
        record.guessed += [
            Guessed(
                Token(token, vocabulary[token] or b"", None, "draft", "kept", None),
                place.number,
                parent.number,
                record.number,
            )
            for token, parent, place in zip(guess, nodes, nodes[1:], strict=False)
            if place not in record.ledger.drafted
        ]
        record.ledger.guess(record.draft)
        return draft + guess

    def _ask(self, node: Node, draft: tuple[int, ...], positions: Iterable[int], record: Record) -> None:
        """Asks for the scores at these positions of the draft, unless they are in flight."""
        loop = asyncio.get_running_loop()
        way = self._way(node, draft)
        wanted = tuple(at for at in positions if way[at] not in self._coming)
        if not wanted:
            return
        nodes = tuple(way[at] for at in wanted)
        self._coming.update((place, loop.create_future()) for place in nodes)
        self._questions.append(Question(node, draft[: wanted[-1]], wanted, nodes, record, record.scope))
        if self._next is None:
            self._next = loop.create_task(self._send())
            self._under_way.add(self._next)
            self._next.add_done_callback(self._under_way.discard)

    async def _send(self) -> None:
        """Puts the questions of one tick to the model without waiting for earlier calls, which the model batches."""
        self._next = None
        questions, self._questions = self._questions, []
        requests = [
            ScoreRequest(
                self.tree.path(wanted.node),
                wanted.draft,
                wanted.positions,
                wanted.record.ledger.passes,
                wanted.scope,
            )
            for wanted in questions
        ]
        for ledger in {wanted.record.ledger for wanted in questions}:
            ledger.forward_passes += 1
        logs = [wanted.record.ledger.calls for wanted in questions]
        try:
            answers = await (recorded_scores(self.scorer, requests, logs) if any(logs) else self.scorer.score(requests))
        except Exception as error:
            self._fail(questions, error)
            return
        for wanted, rows in zip(questions, answers, strict=True):
            for node, row in zip(wanted.nodes, rows, strict=True):
                entry = self.tree.add_scores(node, Scores(row), wanted.record.ledger.run)
                self._answer(node, entry)

    def _answer(self, node: Node, entry: ScoreEntry) -> None:
        answer = self._coming.pop(node, None)
        if answer is not None and not answer.done():
            answer.set_result(entry)

    def _fail(self, questions: list[Question], error: Exception) -> None:
        if not isinstance(error, ModelError | InputError):
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            failure = ModelError(f"the model {self.scorer.name} failed: {reason}")
            failure.__cause__ = error
            error = failure
        for wanted in questions:
            for node in wanted.nodes:
                answer = self._coming.pop(node, None)
                if answer is not None and not answer.done():
                    answer.set_exception(error)
                    answer.exception()  # marks it as retrieved, since a draft's answer may have no reader
