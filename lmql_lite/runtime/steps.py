"""How long a run may go on: an endless loop meets this bound at its place."""

from __future__ import annotations

from lmql_lite.errors import BudgetError

STEP_BUDGET = 1_000_000
"""A loop that never ends meets it within seconds; a query that asks a model for so many tokens is not seen."""
LAST_STEPS = 1000
"""Of what a query runs in any case, behind the last step that it may have."""


class Steps:
    """Those that a run may still take, in all of its hypotheses: ops, tokens, and rounds of `while` in its Python.

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
                f"the run has not come to its end within {self._most:,} steps, and is here",
                hint="if this is no endless loop, raise step_budget",
            )
            raise self.spent
