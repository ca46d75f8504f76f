"""Plan of a run, as plain values for people and scripts. It is made before anything is spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lmql_lite.engine.budget import Budget
from lmql_lite.engine.drawing import framed, grid, shown
from lmql_lite.errors import Span

PROBE_REQUESTS, PROBE_TOKENS = 3, 16
"""Upper bounds of a probe: its requests, some of which may be refused, and the tokens of each."""
Way = Literal["masks", "grammar", "schema", "stops", "freely", "told", "scores", "later"]
"""Means by which a model meets the conditions of a hole.

`masks` for a model in this process. A server gets a `grammar`, a JSON `schema` or `stops`, or generates `freely` and
its text is checked. `told`: a sentence lists the allowed answers of a chat. `scores`: it scores given texts. `later`:
the values of the run decide.
"""


@dataclass(frozen=True, slots=True)
class Spending:
    """Rough upper bounds on the requests and tokens of a run. None: unbounded, or not known before the run."""

    requests: int | None
    prompt_tokens: int | None
    completion_tokens: int | None

    def with_probe(self) -> Spending:
        """These bounds with those of a probe: at most one request of plain text and one of a chat, for one token
        each."""
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return Spending(
            None if self.requests is None else self.requests + PROBE_REQUESTS,
            None if prompt is None else prompt + PROBE_REQUESTS * PROBE_TOKENS,
            None if completion is None else completion + PROBE_TOKENS,
        )


@dataclass(frozen=True, slots=True)
class PlannedHole:
    """A hole in a plan. `conditions` guide the model; `judged` are checked by Python on the complete value. Both are
    source text.

    `later` are conditions, types or options that depend on the run. `ends` are the places where the value ends. A hole
    is filled at most `times` times. Holes with equal `segment` numbers are matched as one (S16); `way` is the means by
    which the model meets the conditions.
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

    `spending` is an upper bound if every answer fits, so that nothing is asked for twice. It counts every branch of the
    program, a token per byte of the program's text, and the answer's tokens for the text of holes. `loops` are the
    unbounded loops with holes. `missing` are inputs that are not given, `unknown` are options of the header that depend
    on the run. `problems` would end a run. Unless `is_met`, a probe of the server would cost money. The run then probes
    first, and the plan assumes a server with few features.
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
        """One line: the holes, and upper bounds of requests and tokens; ? stands for no bound."""
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
        """Upper bound of the cost; None without prices, without a server or without a bound."""
        prompt, completion = self.spending.prompt_tokens, self.spending.completion_tokens
        if not self.on_server or self.budget.prices is None or prompt is None or completion is None:
            return None
        return self.budget.cost(prompt, completion)


def _number(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"
