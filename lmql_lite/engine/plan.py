"""Plan of a run, as plain values for people and scripts. It is made before anything is spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lmql_lite.engine.budget import Budget
from lmql_lite.errors import Span
from lmql_lite.html import framed, grid, shown

Way = Literal["masks", "grammar", "schema", "stops", "freely", "told", "scores", "later"]
"""Means by which a model meets the conditions of a hole.

`masks` for a model in this process. A server gets a `grammar`, a JSON `schema` or `stops`, or generates `freely` and
its text is checked. `told`: a sentence lists the allowed answers of a chat. `scores`: it scores given texts. `later`:
the values of the run decide.
"""


@dataclass(frozen=True, slots=True)
class PlannedHole:
    """A hole in a plan. `conditions` guide the model; `judged` are checked by Python on the complete value. Both are
    source text.

    `later` are conditions, types or options that depend on the run. `ends` are the places where the value ends.
    Holes with equal `segment` numbers are matched as one (S16); `way` is the means by
    which the model meets the conditions.
    """

    name: str
    span: Span
    conditions: tuple[str, ...]
    judged: tuple[str, ...]
    later: tuple[str, ...]
    ends: tuple[str, ...]
    segment: int
    way: Way


@dataclass(frozen=True, slots=True)
class Plan:
    """Holes of a run, and the means by which a model meets their conditions.

    `max_tokens` is None if it depends on the run. `missing` are inputs that are not given, `unknown` are options of the
    header that depend on the run. `problems` would end a run. Unless `is_met`, a probe of the server would cost money.
    The run then probes first, and the plan assumes a server with few features.
    """

    model: str
    decoder: str
    max_tokens: int | None
    holes: tuple[PlannedHole, ...]
    budget: Budget = Budget()  # noqa: RUF009  a frozen value
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    is_met: bool = True

    def __repr__(self) -> str:
        holes = ", ".join(hole.name for hole in self.holes)
        return f"Plan({self.model!r}, {self.decoder}, holes=[{holes}])"

    def _repr_html_(self) -> str:
        rows = [(hole.name, " and ".join(hole.conditions), hole.way) for hole in self.holes]
        return framed(f"<p>{shown(self.model)}, {shown(self.decoder)}</p>{grid(('hole', 'conditions', 'way'), rows)}")
