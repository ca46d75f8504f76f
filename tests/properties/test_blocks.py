"""Compound statements in a query do what they do in Python (S23).

Random nests of them, run as a query and as a function, leave the same trace: the order of the calls, the exception that
was being handled in each, and the result.
"""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lmql_lite as lq

MANY = 60
"""Number of calls after which the next one fails, which ends every loop."""


class Trace:
    """Log of the calls of a program under test. Its methods are the program's inputs."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, what: object) -> str:
        """Logs a call, with the exception that is being handled and those before it."""
        self.said.append(f"{what} {shown(sys.exc_info()[1])}")
        if len(self.said) >= MANY:
            raise RuntimeError("enough")
        return "x"

    def items(self, name: str, many: int, fails: bool) -> Iterator[int]:
        try:
            yield from range(many)
            if fails:
                raise KeyError(name)
        finally:
            self.said.append(f"{name} closed")

    async def later(self, name: str, many: int, fails: bool) -> AsyncIterator[int]:
        for number in range(many):
            await asyncio.sleep(0)
            yield number
        if fails:
            raise KeyError(name)

    def manager(self, name: str, at_enter: bool, at_exit: bool, swallows: bool) -> Manager:
        return Manager(self, name, at_enter, at_exit, swallows)


class Manager:
    def __init__(self, trace: Trace, name: str, at_enter: bool, at_exit: bool, swallows: bool) -> None:
        self.trace, self.name, self.at_enter, self.at_exit, self.swallows = trace, name, at_enter, at_exit, swallows

    def __enter__(self) -> str:
        self.trace.say(f"{self.name} entered")
        if self.at_enter:
            raise OSError(self.name)
        return self.name

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        assert kind is (type(error) if error else None)
        self.trace.say(f"{self.name} left by {shown(error)}")
        if self.at_exit:
            raise OSError(self.name)
        return self.swallows

    async def __aenter__(self) -> str:
        await asyncio.sleep(0)
        return self.__enter__()

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        await asyncio.sleep(0)
        return self.__exit__(kind, error, trace)


def shown(error: BaseException | None) -> str:
    """An exception and the chain of its contexts and causes, as text."""
    chain = []
    while error is not None:
        chain.append(f"{error!r}" + (f" from {error.__cause__!r}" if error.__cause__ else ""))
        error = error.__context__
    return " <- ".join(chain) or "-"


# Programs --------------------------------------------------------------------------------------------------------

KINDS = ["ValueError", "KeyError", "OSError", "(OSError, LookupError)", "Exception", "RuntimeError"]


class Writing:
    """Writes one random program. SAY stands for a prompt in the query and for a call of `say` in the function."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.names = 0

    def draw(self, *options: Any) -> Any:
        return self.data.draw(st.sampled_from(options))

    def yes(self) -> bool:
        return self.draw(False, False, True)

    def name(self) -> str:
        self.names += 1
        return f"n{self.names}"

    def block(self, depth: int, *, looped: bool, handling: bool) -> list[str]:
        lines = ["SAY"]
        for _ in range(self.draw(1, 1, 2, 3)):
            lines += self.statement(depth, looped, handling)
        return lines

    def statement(self, depth: int, looped: bool, handling: bool) -> list[str]:
        simple = ["say", "raise", "return"] + ["break", "continue"] * (2 * looped) + ["again", "from"] * handling
        kind = self.draw(*simple, *(["try", "try", "with", "for", "while", "if", "match"] * 2 if depth else ["say"]))
        inside: Callable[..., list[str]] = lambda **more: textwrap.indent(  # noqa: E731
            "\n".join(self.block(depth - 1, **{"looped": looped, "handling": handling, **more})), "    "
        ).split("\n")
        name = self.name()
        match kind:
            case "say":
                return ["SAY"]
            case "raise":
                return [f"raise {self.draw('ValueError', 'KeyError', 'OSError')}('{name}')"]
            case "from":
                return [f"raise ValueError('{name}') from sys.exc_info()[1]"]
            case "again":
                return ["raise"]
            case "return":
                return [f"return say('{name}')"]
            case "break" | "continue":
                return [kind]
            case "if":
                return [f"if {self.yes()}:", *inside(), "else:", *inside()]
            case "match":
                subject, guard = self.draw("[1, 2]", "{'a': 3}", "5"), self.draw("", " if False", " if say('guard')")
                return [
                    f"match {subject}:",
                    f"    case [first, *{name}]{guard}:",
                    *("    " + line for line in inside()),
                    f"    case {{'a': {name}}}{guard} | 6:".replace(f"{guard} | 6", guard),
                    *("    " + line for line in inside()),
                    "    case _:",
                    *("    " + line for line in inside()),
                ]
            case "for":
                items = self.draw("items", "items", "later")
                lines = [f"{'async ' * (items == 'later')}for {name} in {items}('{name}', {self.draw(0, 1, 3)}, "]
                lines[0] += f"{self.yes()}):"
                return [*lines, *inside(looped=True), *(["else:", *inside()] if self.yes() else [])]
            case "while":
                return [f"while say('{name}'):", *inside(looped=True), *(["else:", *inside()] if self.yes() else [])]
            case "with":
                managers = [
                    f"manager('{self.name()}', {self.yes()}, {self.yes()}, {self.yes()})" for _ in self.draw("1", "12")
                ]
                items = ", ".join(each + self.draw("", f" as {name}") for each in managers)
                return [f"{self.draw('', 'async ')}with {items}:", *inside()]
        handlers, final = self.draw(0, 1, 2), self.yes()
        lines = ["try:", *inside()]
        for _ in range(handlers):
            lines += [f"except {self.draw(*KINDS)}{self.draw('', f' as {name}')}:", *inside(handling=True)]
        if handlers and self.yes():
            lines += ["except:", *inside(handling=True)]
        if handlers and self.yes():
            lines += ["else:", *inside()]
        if final or not handlers:
            lines += ["finally:", *inside()]
        return lines


def as_function(lines: list[str], trace: Trace) -> str:
    body = "\n".join(f"{line.replace('SAY', 'say(1)')}" for line in lines)
    source = f"async def program(sys, say, items, later, manager):\n{textwrap.indent(body, '    ')}\n"
    names: dict[str, Any] = {}
    exec(source, names)
    return outcome(lambda: asyncio.run(names["program"](sys, trace.say, trace.items, trace.later, trace.manager)))


def as_query(lines: list[str], trace: Trace) -> str:
    source = "\n".join(line.replace("SAY", '"{say(1)}"') for line in lines)
    inputs = {"sys": sys, "say": trace.say, "items": trace.items, "later": trace.later, "manager": trace.manager}
    query = lq.compile(source)
    given = {name: inputs[name] for name in query.inputs}
    return outcome(lambda: query.run_sync(given, model=lq.ScriptedModel(""), session=lq.Session()).value)


def outcome(run: Callable[[], object]) -> str:
    try:
        return f"returned {run()!r}"
    except BaseException as error:
        return f"raised {shown(error)}"


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_nests_of_statements_do_what_they_do_in_python(data: st.DataObject) -> None:
    lines = Writing(data).block(3, looped=False, handling=False)
    python, query = Trace(), Trace()
    expected, found = as_function(lines, python), as_query(lines, query)
    assert (query.said, found) == (python.said, expected), "\n".join(lines)
