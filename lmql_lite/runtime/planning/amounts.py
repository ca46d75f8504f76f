"""What the ways through a program come to: of each hole it is known what it may ask for, here they are added up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Literal

from lmql_lite.models.base import Endpoint
from lmql_lite.runtime.plan import PlannedLoop, Spending
from lmql_lite.runtime.planning.flow import Flow, Loop
from lmql_lite.runtime.texts.frontier import GO_ON, TURN_TOKENS

Kind = Literal["usual", "most"]


@dataclass(frozen=True, slots=True)
class Asked:
    """For one hole, once: so many requests, each of which sends the text so far `texts` times, and is answered with so
    many tokens."""

    requests: float
    answer: float
    texts: float = 1


class Amounts:
    """`asked`: by place in the program, for its holes. `text`: tokens that each op adds to the prompt, at most.

    `endpoint` is None for a model in this process. `ways`: so many texts are written side by side.
    """

    def __init__(
        self,
        flow: Flow,
        endpoint: Endpoint | None,
        asked: Mapping[int, Mapping[Kind, Asked]],
        text: Sequence[float],
        ways: float,
    ) -> None:
        self._flow = flow
        self._endpoint = endpoint
        self._asked = asked
        self._text = text
        self._ways = ways

    def loops(self) -> Iterator[PlannedLoop]:
        for loop in self._flow.loops:
            if any(loop.holds(at) for at in self._asked):
                yield PlannedLoop(loop.span, whole(loop.passes), self.total("usual", loop))

    def total(self, kind: Kind, within: Loop | None = None) -> Spending:
        """Of the whole run, or of the first pass of a loop."""
        reach = self._flow.heaviest(self._text)
        if within is not None:
            before = reach[within.head - 1] if within.head else 0.0
            reach = [before + text for text in self._flow.heaviest(self._text, within)]
        each = [self._spent(at, kind, reach, within) for at in range(len(self._text))]
        sums = (self._flow.heaviest(weights, within)[-1] for weights in zip(*each, strict=True))
        return Spending(*(whole(times(amount, self._ways)) for amount in sums))

    def _spent(self, at: int, kind: Kind, reach: list[float], within: Loop | None) -> tuple[float, float, float]:
        """By one op, once: requests, tokens of prompts and of answers."""
        if at not in self._asked:
            return 0, 0.0 if self._endpoint else self._text[at], 0
        asked = self._asked[at][kind]
        if self._endpoint is None:
            return 0, 0, asked.answer
        inside = (loop for loop in self._flow.loops if loop.holds(at) and (within is None or loop.head > within.head))
        longest = next((reach[loop.last] for loop in inside), reach[at])  # the text of its last pass
        prompt = times(times(asked.requests, asked.texts), self._prompt(self._endpoint, longest))
        return asked.requests, prompt, times(asked.requests, asked.answer)

    def _prompt(self, endpoint: Endpoint, text: float) -> float:
        """Tokens of a prompt with this text."""
        text += 1  # that of the beginning
        if endpoint.chat_only:
            text += 2 * TURN_TOKENS + (0 if endpoint.continues_turns else TURN_TOKENS + len(GO_ON))
        return min(text, inf if endpoint.context_length is None else endpoint.context_length)


def times(many: float, each: float) -> float:
    """None of what has no bound is nothing."""
    return many * each if many and each else 0.0


def whole(number: float) -> int | None:
    """None where there is no bound."""
    return None if number == inf else ceil(number)
