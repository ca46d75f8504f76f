"""Budgets of a run: its steps; and its requests, tokens and costs with a server.

A limit stops the run before the request that would pass it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from lmql_lite.errors import BudgetError
from lmql_lite.models.base import ServerUsage

PER_MILLION = 1e-6


@dataclass(frozen=True, slots=True)
class Bill:
    """Of one request: the most tokens that it can have had, and what the server says; None where it was left before."""

    most_prompt: int
    most_completion: int
    spent: ServerUsage | None = None

    @property
    def prompt_tokens(self) -> int | None:
        return self.spent.prompt_tokens if self.spent else None

    @property
    def completion_tokens(self) -> int | None:
        return self.spent.completion_tokens if self.spent else None

    @property
    def cached_tokens(self) -> int | None:
        return self.spent.cached_tokens if self.spent else None

    @property
    def reasoning_tokens(self) -> int | None:
        return self.spent.reasoning_tokens if self.spent else None

    @property
    def is_told(self) -> bool:
        return self.prompt_tokens is not None and self.completion_tokens is not None

    @property
    def at_most(self) -> tuple[int, int]:
        """Tokens of the prompt and of the answer: what is told, else the most that they can be."""
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return (
            self.most_prompt if prompt is None else prompt,
            self.most_completion if completion is None else completion,
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """In the currency of the prices. Not `is_told`: the server did not say it all, and it is no more than this."""

    amount: float
    is_told: bool


@dataclass(frozen=True, slots=True)
class Budget:
    """None: no limit. `prices`: of a million tokens of prompts, of answers, and, if it is not that of the others, of
    prompt tokens that the server has in a cache, in the currency of `max_cost`."""

    max_requests: int | None = None
    max_total_tokens: int | None = None
    max_cost: float | None = None
    prices: tuple[float, ...] | None = None

    @property
    def counts_tokens(self) -> bool:
        """True if one of several requests at once may get less than it would alone."""
        return self.max_total_tokens is not None or self.max_cost is not None

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """Cost of tokens; `cached_tokens` are those of the prompt that the server had."""
        prompt, completion, *others = self.prices or (0.0, 0.0)
        cached = others[0] if others else prompt
        fresh_tokens = prompt_tokens - cached_tokens
        return (fresh_tokens * prompt + cached_tokens * cached + completion_tokens * completion) * PER_MILLION

    def cost_of(self, bills: Iterable[Bill]) -> Cost | None:
        """None without prices."""
        bills = tuple(bills)
        if self.prices is None:
            return None
        amount = sum(self.cost(*bill.at_most, bill.cached_tokens or 0) for bill in bills)
        return Cost(amount, all(bill.is_told for bill in bills))

    def room(self, prompt_tokens: int, completion_tokens: int) -> int | None:
        """Number of tokens that an answer may still have; None without a limit."""
        rooms: list[int] = []
        if self.max_total_tokens is not None:
            rooms.append(self.max_total_tokens - prompt_tokens - completion_tokens)
        if self.max_cost is not None and self.prices is not None and self.prices[1] > 0:
            left = self.max_cost - self.cost(prompt_tokens, completion_tokens)
            rooms.append(int(left / (self.prices[1] * PER_MILLION)))
        return min(rooms, default=None)

    def check(self, requests: int, prompt_tokens: int, completion_tokens: int) -> None:
        """Raises BudgetError if this is more than may be spent."""
        if self.max_requests is not None and requests > self.max_requests:
            raise BudgetError(
                f"the run may make {_many(self.max_requests, 'request')}, and needs another one",
                hint="raise max_requests; what was answered so far is in the cache",
            ).of("max_requests", self.max_requests, requests)
        total = prompt_tokens + completion_tokens
        if self.max_total_tokens is not None and total > self.max_total_tokens:
            raise BudgetError(
                f"the run may use {_many(self.max_total_tokens, 'token')}, and may have used {total:,} with what comes",
                hint="raise max_total_tokens; what was answered so far is in the cache",
            ).of("max_total_tokens", self.max_total_tokens, total)
        if self.max_cost is not None and self.cost(prompt_tokens, completion_tokens) > self.max_cost:
            raise BudgetError(
                f"the run may cost {self.max_cost:g}, and may come to "
                f"{self.cost(prompt_tokens, completion_tokens):.4g} with what comes",
                hint="raise max_cost; what was answered so far is in the cache",
            ).of("max_cost", self.max_cost, self.cost(prompt_tokens, completion_tokens))


@dataclass(slots=True, eq=False)
class Purse:
    """Spending of runs together: of a map, of several results, of queries that others call."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    _open: list[Bill] = field(default_factory=list)
    """Requests under way, at the most that they can have."""
    _waiting: list[asyncio.Future[None]] = field(default_factory=list)

    def spend(self, prompt_tokens: int, completion_tokens: int) -> None:
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens

    def reserve(self, bill: Bill) -> None:
        self._open.append(bill)

    def release(self, bill: Bill) -> None:
        """The request is over, and paid."""
        self._open.remove(bill)
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def released(self) -> None:
        """Waits until one of the requests under way is over."""
        self._waiting.append(asyncio.get_running_loop().create_future())
        await self._waiting[-1]

    def room(self, budget: Budget, prompt_tokens: int, requests: int = 1) -> int | None:
        """Number of tokens that the answer to another request may have, None without a limit.

        0 where others have reserved what it needs. Raises BudgetError where it would be more than may be spent anyway.
        """
        prompt = self.prompt_tokens + prompt_tokens
        budget.check(self.requests + requests, prompt, self.completion_tokens + 1)
        reserved = sum(bill.most_prompt for bill in self._open), sum(bill.most_completion for bill in self._open)
        room = budget.room(prompt + reserved[0], self.completion_tokens + reserved[1])
        return room if room is None else max(room, 0)


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


STEP_BUDGET = 1_000_000
"""Steps of a run if not given. An endless loop reaches them within seconds."""
LAST_STEPS = 1000
"""Of what a query runs in any case, behind the last step that it may have."""


class Steps:
    """Steps that a run may still take, in all branches: ops, tokens, and rounds of `while` in its Python.

    `spent` is what was raised when there were no more; it has no place yet.
    """

    def __init__(self, most: int = STEP_BUDGET) -> None:
        self.spent: BudgetError | None = None
        self._most = most
        self.left = most

    def take(self) -> None:
        """Raises BudgetError where none is left. A few more may be taken then, by what the query runs in any case."""
        self.left -= 1
        if self.left < 0:
            self.left = LAST_STEPS
            self.spent = BudgetError(
                f"the run has not ended within {self._most:,} steps, and is here",
                hint="if this is not an endless loop, raise step_budget",
            ).of("step_budget", self._most, self._most + 1)
            raise self.spent
