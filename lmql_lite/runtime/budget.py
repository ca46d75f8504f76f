"""What a run may spend at most with a model behind an API, and what it may have cost. A limit stops it before the
request that would pass it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lmql_lite.errors import BudgetError
from lmql_lite.models.base import Spent

PER_MILLION = 1e-6


@dataclass(frozen=True, slots=True)
class Bill:
    """Of one request: the most tokens that it can have had, and what the server says; None where it was left before."""

    most_prompt: int
    most_completion: int
    spent: Spent | None = None

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
    """None: no limit. `prices`: of a million tokens of prompts, and of answers, in the currency of `max_cost`."""

    max_requests: int | None = None
    max_total_tokens: int | None = None
    max_cost: float | None = None
    prices: tuple[float, float] | None = None

    @property
    def counts_tokens(self) -> bool:
        """Whether it cannot be told beforehand if two requests at once would be too many."""
        return self.max_total_tokens is not None or self.max_cost is not None

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        prompt, completion = self.prices or (0.0, 0.0)
        return (prompt_tokens * prompt + completion_tokens * completion) * PER_MILLION

    def cost_of(self, bills: Iterable[Bill]) -> Cost | None:
        """None without prices."""
        bills = tuple(bills)
        if self.prices is None:
            return None
        return Cost(sum(self.cost(*bill.at_most) for bill in bills), all(bill.is_told for bill in bills))

    def room(self, prompt_tokens: int, completion_tokens: int) -> int | None:
        """How many tokens an answer may have yet; None where there is no limit."""
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
            )
        total = prompt_tokens + completion_tokens
        if self.max_total_tokens is not None and total > self.max_total_tokens:
            raise BudgetError(
                f"the run may use {_many(self.max_total_tokens, 'token')}, and may have used {total:,} with what comes",
                hint="raise max_total_tokens; what was answered so far is in the cache",
            )
        if self.max_cost is not None and self.cost(prompt_tokens, completion_tokens) > self.max_cost:
            raise BudgetError(
                f"the run may cost {self.max_cost:g}, and may come to "
                f"{self.cost(prompt_tokens, completion_tokens):.4g} with what comes",
                hint="raise max_cost; what was answered so far is in the cache",
            )


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")
