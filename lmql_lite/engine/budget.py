"""Budgets of a run: its steps, and its requests, tokens and costs at a server.

A limit stops the run before the request that would exceed it.
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
    """Bill of one request: upper bounds of its tokens, and the usage that the server reported."""

    most_prompt: int
    most_completion: int
    spent: ServerUsage = ServerUsage()  # noqa: RUF009  a frozen value

    @property
    def is_reported(self) -> bool:
        return self.spent.prompt_tokens is not None and self.spent.completion_tokens is not None

    @property
    def at_most(self) -> tuple[int, int]:
        """Tokens of the prompt and of the answer: the reported numbers, else their upper bounds."""
        prompt, completion = self.spent.prompt_tokens, self.spent.completion_tokens
        return (
            self.most_prompt if prompt is None else prompt,
            self.most_completion if completion is None else completion,
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost in the currency of the prices. Unless it `is_reported`, some numbers were not, and `amount` is
    an upper bound."""

    amount: float
    is_reported: bool


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a run; None for no limit. `prices` are those of a million prompt tokens, of a million answer tokens
    and, if different, of a million cached prompt tokens, in the currency of `max_cost`."""

    max_requests: int | None = None
    max_total_tokens: int | None = None
    max_cost: float | None = None
    prices: tuple[float, ...] | None = None

    @property
    def counts_tokens(self) -> bool:
        """True if concurrent requests share a limit on tokens."""
        return self.max_total_tokens is not None or self.max_cost is not None

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """Cost of tokens; `cached_tokens` is the number of prompt tokens in the server's cache."""
        prompt, completion, *others = self.prices or (0.0, 0.0)
        cached = others[0] if others else prompt
        fresh_tokens = prompt_tokens - cached_tokens
        return (fresh_tokens * prompt + cached_tokens * cached + completion_tokens * completion) * PER_MILLION

    def cost_of(self, bills: Iterable[Bill]) -> Cost | None:
        """Cost of requests; None without prices."""
        bills = tuple(bills)
        if self.prices is None:
            return None
        amount = sum(self.cost(*bill.at_most, bill.spent.cached_tokens or 0) for bill in bills)
        return Cost(amount, all(bill.is_reported for bill in bills))

    def room(self, prompt_tokens: int, completion_tokens: int) -> int | None:
        """Maximum number of tokens of the next answer; None without a limit."""
        rooms: list[int] = []
        if self.max_total_tokens is not None:
            rooms.append(self.max_total_tokens - prompt_tokens - completion_tokens)
        if self.max_cost is not None and self.prices is not None and self.prices[1] > 0:
            left = self.max_cost - self.cost(prompt_tokens, completion_tokens)
            rooms.append(int(left / (self.prices[1] * PER_MILLION)))
        return min(rooms, default=None)

    def check(self, requests: int, prompt_tokens: int, completion_tokens: int) -> None:
        """Raises BudgetError if these numbers exceed a limit."""
        if self.max_requests is not None and requests > self.max_requests:
            raise BudgetError(
                f"the run may make at most {_many(self.max_requests, 'request')}, and needs another one",
                hint="raise max_requests; the answers so far are in the cache",
            ).of("max_requests", self.max_requests, requests)
        total = prompt_tokens + completion_tokens
        if self.max_total_tokens is not None and total > self.max_total_tokens:
            raise BudgetError(
                f"the run may use at most {_many(self.max_total_tokens, 'token')}, "
                f"and the next request could bring it to {total:,}",
                hint="raise max_total_tokens; the answers so far are in the cache",
            ).of("max_total_tokens", self.max_total_tokens, total)
        if self.max_cost is not None and self.cost(prompt_tokens, completion_tokens) > self.max_cost:
            raise BudgetError(
                f"the run may cost at most {self.max_cost:g}, and the next request could bring it to "
                f"{self.cost(prompt_tokens, completion_tokens):.4g}",
                hint="raise max_cost; the answers so far are in the cache",
            ).of("max_cost", self.max_cost, self.cost(prompt_tokens, completion_tokens))


@dataclass(slots=True, eq=False)
class Account:
    """Spending that several runs share: the rows of a map, several results, a query and those that it calls."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    _open: list[Bill] = field(default_factory=list)
    """Upper bounds of the open requests."""
    _waiting: list[asyncio.Future[None]] = field(default_factory=list)

    def spend(self, prompt_tokens: int, completion_tokens: int) -> None:
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens

    def reserve(self, bill: Bill) -> None:
        self._open.append(bill)

    def release(self, bill: Bill) -> None:
        """Removes a finished request, whose tokens are spent."""
        self._open.remove(bill)
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def released(self) -> None:
        """Waits until one of the open requests ends."""
        self._waiting.append(asyncio.get_running_loop().create_future())
        await self._waiting[-1]

    def room(self, budget: Budget, prompt_tokens: int, requests: int = 1) -> int | None:
        """Maximum number of tokens of the answer to another request; None without a limit.

        0 while open requests reserve the rest. Raises BudgetError if the request exceeds a limit even without them.
        """
        prompt = self.prompt_tokens + prompt_tokens
        budget.check(self.requests + requests, prompt, self.completion_tokens + 1)
        reserved = sum(bill.most_prompt for bill in self._open), sum(bill.most_completion for bill in self._open)
        room = budget.room(prompt + reserved[0], self.completion_tokens + reserved[1])
        return room if room is None else max(room, 0)


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


STEP_BUDGET = 1_000_000
"""Default step budget of a run. An endless loop reaches it within seconds."""
LAST_STEPS = 1000
"""Extra steps that `finally` blocks may take after the step budget is spent."""


class Steps:
    """Steps left to a run, in all its branches: parts of prompts, tokens, and rounds of `while` in its Python.

    `spent` is the error raised at the last step; it has no place in the source yet.
    """

    def __init__(self, most: int = STEP_BUDGET) -> None:
        self.spent: BudgetError | None = None
        self._most = most
        self.left = most

    def take(self) -> None:
        """Takes a step. Raises BudgetError if none is left; after that `finally` blocks get `LAST_STEPS` more."""
        self.left -= 1
        if self.left < 0:
            self.left = LAST_STEPS
            self.spent = BudgetError(
                f"the run did not finish within {self._most:,} steps; it stopped here",
                hint="if this is not an endless loop, raise step_budget",
            ).of("step_budget", self._most, self._most + 1)
            raise self.spent
