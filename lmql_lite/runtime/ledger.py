"""The books of one run, kept while it runs; a result checks them against its tokens (law 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace

from lmql_lite.cache.tree import Node
from lmql_lite.models.base import Spent
from lmql_lite.runtime.alternatives import Choosable
from lmql_lite.runtime.budget import Bill, Budget
from lmql_lite.runtime.calls import Calls
from lmql_lite.runtime.result import Usage
from lmql_lite.runtime.state import Step
from lmql_lite.tokens import Fate, Source, Token

GUESSES_ANYWAY = 64
"""So many guesses are made before a run looks at how many came true."""


UNLIMITED = Budget()


@dataclass(slots=True)
class Meter:
    """What a run asked its model for, in all of its hypotheses."""

    forward_passes: int = 0


class Ledger:
    """`run` tells this run's own questions from facts that were known before.

    `purse` are the ledgers of all runs that spend from one budget, this one with them; without it, it is alone.
    """

    def __init__(
        self, run: int, budget: Budget = UNLIMITED, purse: list[Ledger] | None = None, calls: Calls | None = None
    ) -> None:
        self.run = run
        self.budget = budget
        self.calls = calls
        """Where what the models are asked is put down; None where nobody asks for it."""
        self._purse = [] if purse is None else purse
        self._purse.append(self)
        self.requests = 0
        self.meter = Meter()
        self.by_server = False
        """What a run costs is what the server says, in its own tokens."""
        self._arrived: list[Node] = []
        """Of each token that a server sent for this run, where its first byte leads."""
        self._reached: list[Node] = []
        """The ends of what it sent: while they are in hand, the nodes that lead to them are the same."""
        self.news: list[Step] = []
        """Tokens that joined or left the path since the watcher last looked."""
        self.choosable: dict[Node, Choosable] = {}
        """What those that lead to these nodes were chosen from."""
        self.guesses: list[Step] = []
        """Tokens that were guessed since the watcher last looked."""
        self.draft: tuple[Node, ...] = ()
        """The last guess of what the run comes by."""
        self._guessed: set[Node] = set()
        self._missed: set[Node] = set()
        self._kept: Counter[str] = Counter()
        self._prompt = 0
        self._wasted = 0
        self._bills: list[Bill] = []

    def fork(self) -> Ledger:
        """The books of another hypothesis of the same run, which has said the same so far."""
        fork = copy(self)
        fork.news, fork.choosable, fork.guesses = [], {}, []
        fork._kept = Counter(self._kept)
        return fork

    @property
    def forward_passes(self) -> int:
        return self.meter.forward_passes

    def prune(self, steps: Iterable[Step]) -> list[Token]:
        """Tokens of hypotheses that were given up, and stand in no result, come on the books; gives them so."""
        pruned = [replace(step.token, fate="pruned") for step in steps if step.token.hole is not None]
        self._wasted += len(pruned)
        return pruned

    def guess(self, nodes: tuple[Node, ...]) -> None:
        """What comes after these nodes was put to the model before the run came by them, if it ever will."""
        self._missed.update(node for node in nodes if node not in self._guessed)
        self._guessed.update(nodes)

    def guessed(self, node: Node) -> bool:
        """Whether what comes after this node is known because it was guessed that the run would come by."""
        return node in self._guessed

    def source(self, node: Node, run: int) -> Source:
        """Who said a token after `node` that `run` asked for (S31)."""
        if run != self.run:
            return "cache"
        return "draft" if self.guessed(node) else "model"

    @property
    def guesses_pay(self) -> bool:
        """Whether it is worth guessing what the query's own Python will say."""
        return len(self._guessed) < GUESSES_ANYWAY or 4 * len(self._missed) <= 3 * len(self._guessed)

    def came_true(self) -> int:
        """How many tokens of the last draft the run has come by."""
        return len(self.draft) - sum(node in self._missed for node in self.draft)

    def add(self, step: Step) -> None:
        self.news.append(step)
        self._missed.discard(step.node)
        if step.token.hole is None:
            self._prompt += 1
        else:
            self._kept[step.token.source] += 1

    def drop(self, step: Step, fate: Fate) -> None:
        """A token that was kept so far leaves the path."""
        self.news.append(replace(step, token=replace(step.token, fate=fate)))
        if step.token.hole is None:
            self._prompt -= 1
        else:
            self._kept[step.token.source] -= 1
            self._wasted += 1

    def remove(self, step: Step, *, is_said_again: bool) -> None:
        """A token leaves the path with the query that said it (S26)."""
        self.drop(step, "removed")
        if is_said_again and step.token.hole is not None:
            self._wasted -= 1

    def reject(self, steps: Iterable[Step]) -> list[Step]:
        """Takes steps off the books that are not on the way any more; gives those of a hole, as rejected."""
        rejected = []
        for step in steps:
            self.drop(step, "rejected")
            if step.token.hole is not None:
                rejected.append(replace(step, token=replace(step.token, fate="rejected")))
        return rejected

    def request(self, most_prompt_tokens: int) -> int | None:
        """A server is about to be asked. Gives how many tokens the answer may have, None where nothing limits it.

        Raises BudgetError as `afford`.
        """
        room = self.afford(most_prompt_tokens)
        self.requests += 1
        return room

    def afford(self, most_prompt_tokens: int) -> int | None:
        """How many tokens the answer to another request may have, None where nothing limits it.

        Raises BudgetError where a token of it would be more than the run may spend.

        A token has at least one byte: where the server does not say how many there were, its bytes are the bound.
        """
        prompt = sum(bill.at_most[0] for each in self._purse for bill in each._bills)
        completion = sum(each._completion() for each in self._purse)
        spent = prompt + most_prompt_tokens, completion
        self.budget.check(sum(each.requests for each in self._purse) + 1, spent[0], spent[1] + 1)
        return self.budget.room(*spent)

    def _completion(self) -> int:
        return max(sum(bill.completion_tokens or 0 for bill in self._bills), len(self._arrived))

    def learn(self, spent: Spent | None) -> None:
        """What this run has paid to find out what its model's server can do."""
        if spent is not None:
            self.requests += 1
            self.pay(Bill(0, 0, spent))

    def pay(self, bill: Bill) -> None:
        """What a request of this run cost."""
        self._bills.append(bill)
        self.requests += bill.spent.requests - 1 if bill.spent else 0

    def arrive(self, way: Sequence[Node], sizes: Iterable[int]) -> None:
        """A server sent tokens of so many bytes for this run, which lead by these nodes."""
        self._reached.append(way[-1])
        first = 0
        for size in sizes:
            self._arrived.append(way[first])
            first += size

    def used(self, path: Iterable[Node]) -> None:
        """The run ends on this path: tokens of a server of which no part lies on it were paid for and not used."""
        self._wasted = len(set(self._arrived).difference(path))

    def usage(self) -> Usage:
        if self.by_server:
            return Usage(
                requests=self.requests,
                forward_passes=None,
                prompt_tokens=_sum(bill.prompt_tokens for bill in self._bills),
                completion_tokens=_sum(bill.completion_tokens for bill in self._bills),
                tokens_from_cache=self._kept["cache"],
                tokens_from_model=self._kept["model"],
                tokens_forced=self._kept["forced"],
                wasted_tokens=self._wasted,
                received_tokens=len(self._arrived),
                provider_cached_tokens=_sum(bill.cached_tokens for bill in self._bills),
                cost=self.budget.cost_of(self._bills),
            )
        return Usage(
            requests=self.requests,
            forward_passes=self.forward_passes,
            prompt_tokens=self._prompt,
            completion_tokens=sum(self._kept.values()) + self._wasted,
            tokens_from_cache=self._kept["cache"],
            tokens_from_model=self._kept["model"],
            tokens_forced=self._kept["forced"],
            draft_accepted=self._kept["draft"],
            draft_rejected=len(self._missed),
            wasted_tokens=self._wasted,
        )


def _sum(counts: Iterable[int | None]) -> int | None:
    """None where one of them is not known."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
