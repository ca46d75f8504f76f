"""What a run may do, as plain values: found out before anything is spent, and shown to people and scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lmql_lite.errors import Span
from lmql_lite.models.base import Spent
from lmql_lite.runtime.budget import Budget

Way = Literal["masks", "grammar", "schema", "stops", "freely", "scores", "later"]
"""How a model is held to what may be said.

`masks`: it is in this process. A server gets a `grammar`, a JSON `schema` or `stops`, or speaks `freely`, and all that
it says is checked; `scores`: it weighs given texts. `later`: what is known then decides.
"""


@dataclass(frozen=True, slots=True)
class Spending:
    """At most so much. None: there is no bound, or what it depends on is not known."""

    requests: int | None
    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True, slots=True)
class PlannedHole:
    """`conditions` guide the model, `judged` are judged by Python when the value is complete; both as they are written.

    `later` are those of the conditions, and the type or the options, that depend on what only a run finds out. `ends`
    says where the value is over. A hole is filled `times` times at most, and `always` at least once. `segment`: equal
    numbers are matched as one thing (S16); `way`, and `with_holes`: how many of them one request is held to.
    """

    name: str
    span: Span
    conditions: tuple[str, ...]
    judged: tuple[str, ...]
    later: tuple[str, ...]
    ends: tuple[str, ...]
    most_tokens: int | None
    times: int | None
    always: bool
    segment: int
    way: Way
    with_holes: int


@dataclass(frozen=True, slots=True)
class PlannedLoop:
    """A loop with holes in it. `passes` is None where it may have any number."""

    span: Span
    passes: int | None
    each: Spending
    """Of its first pass, as a rule: later ones have longer prompts."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Bounds count text of the program as a token per byte, and text of holes as the tokens in which it was said.

    `usual`: if what the model says fits, so that nothing is asked for twice; `most`: in any case, but for answers that
    break off. Tokens of a server's prompts count as often as they are sent. `missing` are inputs that are not given,
    `unknown` options of the header that only a run finds out. `problems` would end a run. `met` is what it has cost to
    find out what the server can do.
    """

    model: str
    decoder: str
    max_tokens: int | None
    holes: tuple[PlannedHole, ...]
    loops: tuple[PlannedLoop, ...]
    usual: Spending
    most: Spending
    budget: Budget = Budget()  # noqa: RUF009  a frozen value
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    met: Spent | None = None
    on_server: bool = False

    def cost(self, spending: Spending) -> float | None:
        """With the prices of the run; None without, and where there is no bound."""
        if self.budget.prices is None or spending.prompt_tokens is None or spending.completion_tokens is None:
            return None
        return self.budget.cost(spending.prompt_tokens, spending.completion_tokens)
