"""The plan of a run, as plain values: made before anything is spent, and shown to people and scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lmql_lite.engine.budget import Budget
from lmql_lite.engine.drawing import framed, grid, shown
from lmql_lite.errors import Span

PROBE_REQUESTS, PROBE_TOKENS = 3, 16
"""Upper bounds of a probe: of its requests, some of which may be refused, and of the tokens of each."""
Way = Literal["masks", "grammar", "schema", "stops", "freely", "told", "scores", "later"]
"""Means by which a model is held to the conditions of a hole.

`masks`: it is in this process. A server gets a `grammar`, a JSON `schema` or `stops`, or generates `freely`, and its
text is checked; a chat may be `told` what it may answer; `scores`: it scores given texts. `later`: the values of the
run decide.
"""


@dataclass(frozen=True, slots=True)
class Spending:
    """A rough bound. None: there is none, or what it depends on is not known."""

    requests: int | None
    prompt_tokens: int | None
    completion_tokens: int | None

    def with_probe(self) -> Spending:
        """The same and a probe: at most a request of plain text and one of a chat, for a token."""
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return Spending(
            None if self.requests is None else self.requests + PROBE_REQUESTS,
            None if prompt is None else prompt + PROBE_REQUESTS * PROBE_TOKENS,
            None if completion is None else completion + PROBE_TOKENS,
        )


@dataclass(frozen=True, slots=True)
class PlannedHole:
    """`conditions` guide the model, `judged` are judged by Python when the value is complete; both as they are written.

    `later` are those of the conditions, and the type or the options, that depend on the run. `ends` are the places
    where the value ends. A hole is filled `times` times at most. Holes with equal `segment` numbers are matched as one
    (S16); `way` is how the model is held to it.
    """

    name: str
    span: Span
    conditions: tuple[str, ...]
    judged: tuple[str, ...]
    later: tuple[str, ...]
    ends: tuple[str, ...]
    most_tokens: int | None
    times: int | None
    segment: int
    way: Way


@dataclass(frozen=True, slots=True)
class Plan:
    """Requests of a run, hole by hole, with a rough bound on its cost.

    `spending` is an upper bound if all that the model generates fits, so that nothing is asked for twice: every branch
    of the program counts, text of the program as a token per byte, text of holes as the tokens of an answer. `loops`
    are those with holes and without a bound. `missing` are inputs that are not given, `unknown` options of the header
    that depend on the run. `problems` would end a run. Not `is_met`: the server
    tells what it can do only for money, so the run asks that first, and the plan is for one that can do little.
    """

    model: str
    decoder: str
    max_tokens: int | None
    holes: tuple[PlannedHole, ...]
    loops: tuple[Span, ...]
    spending: Spending
    budget: Budget = Budget()  # noqa: RUF009  a frozen value
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    is_met: bool = True
    on_server: bool = False

    def __repr__(self) -> str:
        """One line: the holes, and the most that the run may ask for; ? is without a bound."""
        holes = ", ".join(hole.name for hole in self.holes)
        return f"Plan({self.model!r}, {self.decoder}, holes=[{holes}], at most {', '.join(self._bounds())})"

    def _repr_html_(self) -> str:
        rows = [(hole.name, " and ".join(hole.conditions), _number(hole.most_tokens)) for hole in self.holes]
        most = f"<p>{shown(self.model)}, {shown(self.decoder)}: at most {shown(', '.join(self._bounds()))}</p>"
        return framed(most + grid(("hole", "conditions", "tokens"), rows))

    def _bounds(self) -> list[str]:
        spending = self.spending
        counts = [("prompt tokens", spending.prompt_tokens), ("completion tokens", spending.completion_tokens)]
        requests = [("requests", spending.requests)] if self.on_server else []
        return [f"{_number(count)} {what}" for what, count in [*requests, *counts]]

    @property
    def cost(self) -> float | None:
        """The cost with the prices of the run; None without prices, without a server or without a bound."""
        prompt, completion = self.spending.prompt_tokens, self.spending.completion_tokens
        if not self.on_server or self.budget.prices is None or prompt is None or completion is None:
            return None
        return self.budget.cost(prompt, completion)


def _number(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"
