"""Ledger of a run: its costs. Counts of tokens are made from the record of the path, so that they add up (law 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import reduce

from lmql_lite.cache.tokens.nodes import Node
from lmql_lite.engine import events
from lmql_lite.engine.budget import Account, Bill, Budget
from lmql_lite.engine.calls import Calls
from lmql_lite.engine.events import Choosable
from lmql_lite.engine.result import Usage
from lmql_lite.engine.state import Step
from lmql_lite.models.base import BEFORE_REQUEST, Capabilities, KVScope, PassCounts, ServerUsage
from lmql_lite.tokens import Fate, Source, Token

DRAFTED_ANYWAY = 64
"""Number of tokens that a run drafts before it checks how many came true."""
UNLIMITED = Budget()


@dataclass(slots=True)
class Drafted:
    """Nodes that were scored before the run reached them; `missed` are those that it has not reached yet."""

    nodes: set[Node] = field(default_factory=set)
    missed: set[Node] = field(default_factory=set)
    last: tuple[Node, ...] = ()
    """The last draft."""
    place: Hashable = None
    """The hole of the last draft."""
    events: list[events.Event] = field(default_factory=list)
    """Events of drafts that are not emitted yet."""

    def fork(self) -> Drafted:
        return replace(self, events=[])

    def add(self, nodes: tuple[Node, ...]) -> None:
        self.missed.update(node for node in nodes if node not in self.nodes)
        self.nodes.update(nodes)

    @property
    def pay(self) -> bool:
        """True if drafts pay while the query's own Python is awaited."""
        return len(self.nodes) < DRAFTED_ANYWAY or 4 * len(self.missed) <= 3 * len(self.nodes)

    def came_true(self) -> int:
        """Number of tokens of the last draft that the run has reached."""
        return len(self.last) - sum(node in self.missed for node in self.last)


@dataclass(slots=True)
class Meter:
    """Forward passes of a run in all its branches, and the counts of a model in this process."""

    forward_passes: int = 0
    close_calls: int | None = None
    passes: PassCounts = field(default_factory=PassCounts)


class Ledger:
    """Bookkeeping of tokens and costs. `run` distinguishes this run's questions from entries that were known before.

    Runs with one budget share a `account`; the default is a account of its own.
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
        self._reported = 0
        """Number of answer tokens that the server has reported."""
        self.meter = Meter()
        self.by_server = False
        """True if a server reports the costs, in its own tokens."""
        self._arrived: list[Node] = []
        """The node after the first byte of each token that a server sent for this run."""
        self._reached: list[Node] = []
        """The last nodes of the text that the server sent, kept so that the nodes on their paths stay the same."""
        self.events: list[events.Event] = []
        """Events of the branch, in order."""
        self.scope: KVScope | None = None
        """Scope of the questions of the hole that is open, where nothing else may be reused for it."""
        self.notices: list[str] = []
        """Sentences about the server that a user should read."""
        self.drafted = Drafted()
        self._unread = 0
        """Number of tokens of a server that have no part in the text."""
        self._bills: list[Bill] = []

    def fork(self) -> Ledger:
        """The ledger of another branch of the run, with the same tokens so far."""
        fork = copy(self)
        fork.events, fork.drafted = [], self.drafted.fork()
        return fork

    def source(self, node: Node, run: int) -> Source:
        """The source of a token after `node` that `run` asked for (S31)."""
        if run != self.run:
            return "cache"
        return "draft" if node in self.drafted.nodes else "model"

    def add(self, step: Step, choosable: Choosable | None = None) -> None:
        """Records a token that joins the path."""
        self.events.append(_moved(step, step.token, choosable))
        self.drafted.missed.discard(step.node)
        if step.token.hole is not None and self.drafted.events:
            self.events += self.drafted.events
            self.drafted.events = []

    def add_prompt(self, steps: Sequence[Step]) -> None:
        """Records tokens of the program's own text."""
        self.events += [_moved(step, step.token) for step in steps]
        if self.drafted.missed:
            self.drafted.missed.difference_update(step.node for step in steps)

    def drop(self, step: Step, fate: Fate) -> None:
        """Records a kept token that leaves the path."""
        self.events.append(_moved(step, replace(step.token, fate=fate)))

    def reject(self, steps: Iterable[Step]) -> list[Step]:
        """Records steps that leave the path as rejected. Returns those of a hole."""
        rejected = []
        for step in steps:
            self.drop(step, "rejected")
            if step.token.hole is not None:
                rejected.append(replace(step, token=replace(step.token, fate="rejected")))
        return rejected

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

    def usage(self, record: Sequence[Token]) -> Usage:
        """Usage of a run whose path has this record of tokens."""
        kept = Counter(token.source if token.hole is not None else None for token in record if token.fate == "kept")
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
        passes = self.meter.passes
        wasted = sum(token.hole is not None and token.fate != "kept" for token in record)
        return Usage(
            requests=self.requests,
            forward_passes=self.meter.forward_passes,
            prompt_tokens=prompt_tokens,
            completion_tokens=sum(kept.values()) + wasted,
            tokens_from_cache=kept["cache"],
            tokens_from_model=kept["model"],
            tokens_forced=kept["forced"],
            draft_accepted=kept["draft"],
            draft_rejected=len(self.drafted.missed),
            wasted_tokens=wasted,
            tokens_fed=passes.fed or None,
            kv_from_memory=passes.reused.get("memory"),
            kv_from_disk=passes.reused.get("disk"),
            kv_from_redis=passes.reused.get("redis"),
            close_calls=self.meter.close_calls,
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


def _moved(step: Step, token: Token, choosable: Choosable | None = None) -> events.TokenMoved:
    """Event of a step's token, which joins the path or leaves it."""
    return events.TokenMoved(token, step.node.number, step.parent.number, choosable=choosable, place=step.parent)
