"""What the header of a query says, once its prologue has run."""

from __future__ import annotations

from dataclasses import replace

from lmql_lite.errors import BudgetError
from lmql_lite.program.ops import Program
from lmql_lite.runtime.environment import Environment, evaluate, execute
from lmql_lite.runtime.settings import Settings, checked

PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
POLICY = ("decoder", "temperature", "top_k", "top_p", "min_p", *PENALTIES)
OF_A_HOLE = ("max_tokens", "max_backtracks")


async def header(program: Program, environment: Environment) -> Settings:
    """Runs the prologue and reads the header. Raises InputError for a wrong option, at its place."""
    for let in program.prologue:
        try:
            await execute(let.code, environment)
        except BudgetError as error:  # of a loop without end
            error.span = error.span or let.span
            raise
    values = {option.name: await evaluate(option.value, environment) for option in program.options}
    return checked({"decoder": program.decoder, **values}, {option.name: option.span for option in program.options})


def within(caller: Settings, own: Settings, seed: int) -> Settings:
    """For the holes of a query that another one calls: a decoder of its own and the bounds of a hole are heeded, how
    many hypotheses there are and all that is said of a whole run is the caller's."""
    said = {name: getattr(own, name) for name in OF_A_HOLE if getattr(own, name) is not None}
    if own.decoder in ("argmax", "sample"):
        said |= {name: getattr(own, name) for name in POLICY}
    return replace(caller, **said, seed=seed)
