"""Ledger of a run: its costs. Counts of tokens are made from the record of a branch, so that they add up (law 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce

from lmql_lite.cache.tokens.nodes import Node
from lmql_lite.engine.budget import Account, Bill, Budget
from lmql_lite.engine.calls import Calls
from lmql_lite.engine.result import Usage
from lmql_lite.models.base import BEFORE_REQUEST, Capabilities, PassCounts, ServerUsage
from lmql_lite.tokens import Source, Token

UNLIMITED = Budget()


class Ledger:
    """Costs of a run in all its branches. `run` distinguishes this run's questions from entries that were known before.

    Runs with one budget share an `account`; the default is an account of its own.
    """

    def __init__(
        self,
        run: int,
        budget: Budget = UNLIMITED,
        account: Account | None = None,
        calls: Calls | None = None,
        *,
        speculates: bool = False,
        replays: bool = False,
    ) -> None:
        self.run = run
        self.speculates = speculates
        """True if the model may score drafts of the tree in the passes of this run."""
        self.replays = replays
        """True if nothing may be asked for this run."""
        self.budget = budget
        self.calls = calls
        """Log of calls of models; None if there is none."""
        self.account = account or Account()
        self.requests = 0
        self.forward_passes = 0
        self.close_calls: int | None = None
        self.passes = PassCounts()
        """Counts of a model in this process."""
        self.drafted: set[Node] = set()
        """Nodes that were scored before the run reached them."""
        self.missed: set[Node] = set()
        """Those of them that it has not reached yet."""
        self.by_server = False
        """True if a server reports the costs, in its own tokens."""
        self.notices: list[str] = []
        """Sentences about the server that a user should read."""
        self._reported = 0
        """Number of answer tokens that the server has reported."""
        self._arrived: list[Node] = []
        """The node after the first byte of each token that a server sent for this run."""
        self._reached: list[Node] = []
        """The last nodes of the text that the server sent, kept so that the nodes on their paths stay the same."""
        self._unread = 0
        """Number of tokens of a server that have no part in the text."""
        self._bills: list[Bill] = []

    def source(self, node: Node, run: int) -> Source:
        """The source of a token after `node` that `run` asked for (S31)."""
        if run != self.run:
            return "cache"
        return "draft" if node in self.drafted else "model"

    def guess(self, nodes: Iterable[Node]) -> None:
        """Adds nodes that are scored before the run reaches them."""
        new = set(nodes) - self.drafted
        self.missed |= new
        self.drafted |= new

    def count_close_call(self, is_close: bool) -> None:
        """Counts a choice that the noise of the model's scores might have changed."""
        self.close_calls = (self.close_calls or 0) + is_close

    def request(self, most_prompt_tokens: int, most_tokens: int) -> OpenRequest | None:
        """A request for at most `most_tokens` tokens, or for the number that the budget allows.

        None while other requests have reserved the budget; the caller tries again when one of them ends. Raises
        BudgetError if the budget does not cover one more token.

        A token has at least one byte, so bytes bound the tokens that a server does not report.
        """
        room = self.account.room(self.budget, most_prompt_tokens)
        if room == 0:
            return None
        return OpenRequest(self, Bill(most_prompt_tokens, most_tokens if room is None else min(most_tokens, room)))

    def count_request(self) -> None:
        """Counts a request that is sent now. Raises BudgetError if it is one too many."""
        self.budget.check(self.account.requests + 1, 0, 0)
        self._add_requests(1)

    def _add_requests(self, many: int) -> None:
        self.requests += many
        self.account.requests += many

    async def probed(self, probe: Callable[[], Awaitable[Capabilities]]) -> Capabilities:
        """The result of a probe, whose requests are counted before they are sent."""
        before = self.requests
        with self.counting(self.count_request):
            found = await probe()
        if found.spent is not None:
            self._add_requests(max(found.spent.requests - (self.requests - before), 0))
            self.pay(Bill(0, 0, found.spent))
        return found

    @contextmanager
    def counting(self, count: Callable[[], None]) -> Iterator[None]:
        """Calls `count` before each request of a Completer within."""
        token = BEFORE_REQUEST.set(count)
        try:
            yield
        finally:
            BEFORE_REQUEST.reset(token)

    def pay(self, bill: Bill) -> None:
        """Adds the cost of a request."""
        self._bills.append(bill)
        before = self._completion
        self._reported += bill.spent.completion_tokens or 0
        self.account.spend(bill.at_most[0], self._completion - before)

    def arrive(self, way: Sequence[Node], sizes: Iterable[int]) -> None:
        """Adds tokens that a server sent: `way` are the nodes of their bytes, `sizes` their lengths in bytes."""
        self._reached.append(way[-1])
        first, before = 0, self._completion
        for size in sizes:
            self._arrived.append(way[first])
            first += size
        self.account.spend(0, self._completion - before)

    @property
    def _completion(self) -> int:
        return max(self._reported, len(self._arrived))

    def used(self, path: Iterable[Node]) -> None:
        """Counts tokens of a server as wasted if no part of them is on the path on which the run ends."""
        self._unread = len(set(self._arrived).difference(path)) if self._arrived else 0

    def usage(self, tokens: Sequence[Token]) -> Usage:
        """Usage of a run whose record has these tokens."""
        kept = Counter(token.source if token.hole is not None else None for token in tokens if token.fate == "kept")
        prompt_tokens = kept.pop(None, 0)
        if self.by_server:
            spent = reduce(ServerUsage.plus, (bill.spent for bill in self._bills), ServerUsage(0, 0, 0, 0, 0))
            return Usage(
                requests=self.requests,
                forward_passes=None,
                prompt_tokens=spent.prompt_tokens,
                completion_tokens=spent.completion_tokens,
                tokens_from_cache=kept["cache"],
                tokens_from_model=kept["model"],
                tokens_forced=kept["forced"],
                wasted_tokens=self._unread,
                received_tokens=len(self._arrived),
                provider_cached_tokens=spent.cached_tokens,
                reasoning_tokens=spent.reasoning_tokens,
                cost=self.budget.cost_of(self._bills),
            )
        wasted = sum(token.hole is not None and token.fate != "kept" for token in tokens)
        return Usage(
            requests=self.requests,
            forward_passes=self.forward_passes,
            prompt_tokens=prompt_tokens,
            completion_tokens=sum(kept.values()) + wasted,
            tokens_from_cache=kept["cache"],
            tokens_from_model=kept["model"],
            tokens_forced=kept["forced"],
            draft_accepted=kept["draft"],
            draft_rejected=len(self.missed),
            wasted_tokens=wasted,
            tokens_fed=self.passes.fed or None,
            kv_from_memory=self.passes.reused.get("memory"),
            kv_from_disk=self.passes.reused.get("disk"),
            kv_from_redis=self.passes.reused.get("redis"),
            close_calls=self.close_calls,
        )


class OpenRequest:
    """A request to a server that is not paid yet. Its tokens are reserved meanwhile."""

    def __init__(self, ledger: Ledger, bill: Bill) -> None:
        self.bill = bill
        self._ledger = ledger
        self._sent = 0
        ledger.count_request()
        ledger.account.reserve(bill)

    def count(self) -> None:
        """Called before each try to send the request; tries after the first are counted now."""
        self._sent += 1
        if self._sent > 1:
            self._ledger.count_request()

    def repeat(self, ledger: Ledger, spent: ServerUsage | None) -> None:
        """Adds the cost so far to `ledger`; the request is sent again. Raises BudgetError if it cannot be afforded."""
        ledger.pay(replace(self.bill, spent=spent or ServerUsage()))
        ledger.account.room(ledger.budget, self.bill.most_prompt)

    def pay(self, ledger: Ledger, spent: ServerUsage | None) -> None:
        """Adds the cost to `ledger`, that of the run that follows the request now."""
        self._ledger.account.release(self.bill)
        if spent is not None:
            ledger._add_requests(max(spent.requests - max(self._sent, 1), 0))
        ledger.pay(replace(self.bill, spent=spent or ServerUsage()))
