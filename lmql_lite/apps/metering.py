"""What a run may have cost: what the server says, and where it does not say, the most that it can be."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from lmql_lite.models.base import Completer, Endpoint, Model, Piece, Prompt, Spent, Wish
from lmql_lite.runtime.session import Session
from lmql_lite.runtime.settings import Settings
from lmql_lite.runtime.text_frontier import TURN_TOKENS


@dataclass(slots=True)
class Bill:
    """Of one request: the most tokens that it can have had, and what the server says."""

    most_prompt: int
    most_completion: int
    spent: Spent | None = None

    @property
    def is_told(self) -> bool:
        return self.tokens == (self._told.prompt_tokens, self._told.completion_tokens)

    @property
    def tokens(self) -> tuple[int, int]:
        """Of the prompt and of the answer, at most."""
        prompt, completion = self._told.prompt_tokens, self._told.completion_tokens
        return (
            self.most_prompt if prompt is None else prompt,
            self.most_completion if completion is None else completion,
        )

    @property
    def _told(self) -> Spent:
        return self.spent or Spent()


@dataclass(frozen=True, slots=True)
class Cost:
    """In the currency of the prices. Not `is_told`: it is no more than this."""

    amount: float
    is_told: bool


class Meter:
    """A model behind an API, with a bill of each of its requests."""

    def __init__(self, completer: Completer) -> None:
        self.name = completer.name
        self.bills: list[Bill] = []
        self._completer = completer

    async def meet(self) -> Endpoint:
        endpoint = await self._completer.meet()
        if endpoint.spent is not None:
            self.bills.append(Bill(0, 0, endpoint.spent))
        return endpoint

    async def stream(self, prompt: Prompt, wish: Wish) -> AsyncGenerator[Piece, None]:
        bill = Bill(_most(prompt), wish.max_tokens)
        self.bills.append(bill)
        async with aclosing(self._completer.stream(prompt, wish)) as pieces:
            async for piece in pieces:
                bill.spent = piece.spent
                yield piece

    async def score(self, prompt: Prompt, options: Sequence[str]) -> tuple[float, ...]:
        self.bills += [Bill(_most(prompt) + len(option.encode()), 1) for option in ("", *options)]
        return await self._completer.score(prompt, options)

    def cost(self, prices: tuple[float, float]) -> Cost:
        """`prices`: of a million tokens of prompts, and of answers."""
        budget = Settings(prices=prices).budget
        amount = sum(budget.cost(*bill.tokens) for bill in self.bills)
        return Cost(amount, all(bill.is_told for bill in self.bills))


def _most(prompt: Prompt) -> int:
    """A token has at least one byte; a chat puts some of its own around a turn."""
    return sum(len(turn.text.encode()) + (TURN_TOKENS if turn.role else 1) for turn in prompt)


class MeteredSession(Session):
    """For one run."""

    _meter: Meter | None = None

    def model(self, model: str | Model | None) -> Model:
        found = super().model(model)
        if not isinstance(found, Completer):
            return found
        self._meter = Meter(found)
        return self._meter

    def cost(self, prices: tuple[float, float]) -> Cost | None:
        """None for a model in this process."""
        return None if self._meter is None else self._meter.cost(prices)
