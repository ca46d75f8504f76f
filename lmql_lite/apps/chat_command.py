"""`lq chat`: a query that asks the user for the next message, with `input()`, in a terminal.

The assistant's answers are shown as they are generated, except for holes whose names begin with `_`, which are its
notes. An answer that is interrupted or fails is taken back, together with the message before it: the query runs again
up to that place, with the messages that the user typed, and the token tree answers instead of the model.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import click

from lmql_lite.apps.results import as_text, kept
from lmql_lite.apps.run_command import run
from lmql_lite.apps.terminal import (
    INTERRUPTED,
    QueryCommand,
    as_report,
    counted,
    input_options,
    load,
    model_named,
    model_options,
    note,
    read_inputs,
    reporting,
    write,
    write_error,
)
from lmql_lite.errors import ConstraintError, InputError, ModelError
from lmql_lite.program.ops import Snippet

if TYPE_CHECKING:
    from lmql_lite.api import Options, Query
    from lmql_lite.engine import events
    from lmql_lite.engine.user_input import InputLine
    from lmql_lite.program.ops import Program

PROMPT = "> "
GOODBYE = "exit"


@click.command(cls=QueryCommand, short_help="Hold a conversation with a query.")
@click.argument("file", type=click.Path())
@input_options
@model_options
@click.option(
    "--cache", metavar="on|off|FILE", help="off: ask the model again. FILE (x.tokens): keep its answers there."
)
@click.option("--seed", type=int, metavar="N", help="Makes sampling repeatable.")
@click.option("--max-tokens", type=int, metavar="N", help="Maximum number of tokens of a hole (default: 1024).")
@click.pass_context
def chat(
    context: click.Context,
    /,
    file: str,
    texts: tuple[str, ...],
    values: tuple[str, ...],
    model: str | None,
    cache: str | None,
    seed: int | None,
    max_tokens: int | None,
    **access: Any,
) -> None:
    """Hold the conversation in FILE, a query that reads what you type with `input()`.

    Ctrl-C stops an answer and takes it back. Ctrl-D or `exit` ends the conversation, with a line on stderr about its
    tokens.
    """
    with reporting(as_json=False):
        if file == "-":
            raise InputError(
                "a chat reads your messages from stdin, so the query cannot come from there", hint="name its file"
            )
        query = load(file)
        if not asks(query.program):
            note(f"{file} never calls input(): this runs it once, as lq run does")
            given = {"model": model, **access, "cache": cache, "seed": seed, "max_tokens": max_tokens}
            context.invoke(run, file=file, texts=texts, values=values, **given)
            return
        options: Options = {
            "model": model_named(model, access),
            "cache": {"on": True, "off": False}.get(cache, cache) if cache else None,
            "seed": seed,
            "max_tokens": max_tokens,
        }
        asyncio.run(Conversation(query, read_inputs(texts, values), options).hold())


def asks(part: object) -> bool:
    """True if Python in this part of a program reads the name `input`."""
    if isinstance(part, CodeType):
        return "input" in part.co_names or any(map(asks, part.co_consts))
    if isinstance(part, Snippet):
        return asks(part.code)
    if isinstance(part, tuple):
        return any(map(asks, part))
    if is_dataclass(part) and not isinstance(part, type):
        return any(asks(getattr(part, field.name)) for field in fields(part))
    return False


class UserLeft(EOFError):
    """The user ended the conversation. A query may catch it and add a last word."""


class Interrupted(Exception):
    """The user has stopped an answer."""


class Conversation:
    """One conversation in this terminal, or with lines from a file."""

    def __init__(self, query: Query, inputs: Mapping[str, Any], options: Options) -> None:
        from lmql_lite.api import Query
        from lmql_lite.engine.session import Session
        from lmql_lite.program.ops import Turn

        self._query = Query(with_input(query.program))
        self._has_turns = any(isinstance(part, Turn) for part in query.program.parts)
        """False: all is one text, and the query's own text in it is not an answer."""
        self._inputs = inputs
        self._options: Options = {**options, "n": 1, "session": Session()}
        self._is_typed = sys.stdin is not None and sys.stdin.isatty()
        self._messages: list[str] = []
        """The user's messages, without those that were taken back."""
        self._shown: list[str] = []
        """The shown text before each of them."""
        self._repeated: str | None = None
        """The shown text before the message that was taken back last, while the run repeats it."""
        self._asked = 0
        """Number of these messages that the current run has read."""
        self._text = ""
        """The text that this run has shown, or would have."""
        self._is_open = False
        """True if the last line of an answer on the screen has not ended."""
        self._is_asking = False
        self._is_stopping = False
        self._was_interrupted = False
        self._tokens: Counter[str] = Counter()
        self._answers = 0
        self._is_answered = False
        """True if something was shown since the user was asked last."""

    async def hold(self) -> None:
        """Runs until the user leaves or the query ends. Raises as `Query.stream` if nothing can be taken back."""
        began = time.monotonic()
        try:
            while not await self._is_over():
                self._messages.pop()
                self._answers -= self._is_answered
                self._repeated = self._shown.pop()
                note("the answer and your message before it are taken back")
        finally:
            self._end_line()
            write_error(self._summary(time.monotonic() - began))
        if self._was_interrupted:
            sys.exit(INTERRUPTED)

    async def _is_over(self) -> bool:
        """One run of the query; False where its last answer is to be taken back."""
        from lmql_lite.engine import events

        self._asked, self._text = 0, ""
        talk = asyncio.ensure_future(self._talk())
        try:
            with self._interrupting(talk):
                finished = await talk
        except UserLeft:
            return True
        except (ModelError, ConstraintError) as error:
            if not self._is_typed or not self._messages:
                raise
            self._end_line()
            write_error(as_report(error, sys.stderr))
            return False
        except Interrupted:
            self._end_line()
            self._was_interrupted = not self._messages
            return self._was_interrupted
        if self._query.returns:
            self._end_line()
            assert isinstance(finished, events.Finished), "a run ends with Finished or raises"
            write(as_text(finished.result.value))
        return True

    async def _talk(self) -> events.Event | None:
        from lmql_lite.engine import events

        event: events.Event | None = None
        inputs = {**self._inputs, "input": self.ask}
        try:
            async with aclosing(self._query.stream(inputs, **self._options)) as stream:
                async for event in stream:
                    match event:
                        case events.Started(seed=seed):
                            self._options["seed"] = seed  # what is taken up again goes as it went
                        case events.Text(text, str(hole)) if not hole.startswith("_"):
                            self._show(text)
                        case events.Text(text, None, role="assistant") if self._has_turns:
                            self._show(text)
                        case events.TokenMoved(token) if token.hole is not None and self._repeated is None:
                            self._tokens[token.source] += 1 if token.fate == "kept" else -1
                        case events.Notice(message):
                            note(message)
        except asyncio.CancelledError:
            raise Interrupted from None
        return event

    # The user ----------------------------------------------------------------------------------------------------

    def ask(self, prompt: object = PROMPT) -> InputLine:
        """The user's next message: `input()` in the query."""
        from lmql_lite.engine.user_input import checked

        self._asked += 1
        if self._asked <= len(self._messages):
            return checked(self._messages[self._asked - 1])
        if self._repeated not in (None, self._text):
            note("the repeated conversation differs from the first one: the query depends on more than your messages")
        self._repeated = None
        message = self._read(str(prompt))
        self._is_answered = False
        self._messages.append(message)
        self._shown.append(self._text)
        return checked(message)

    def _read(self, prompt: str) -> str:
        """Raises Left."""
        from lmql_lite.engine.user_input import read_line

        self._end_line()
        with suppress(ImportError):
            import readline  # noqa: F401  lets one edit a line, and call back earlier ones
        self._is_asking = True
        try:
            message = read_line(prompt if self._is_typed else "")
        except (EOFError, KeyboardInterrupt) as error:
            if self._is_typed:
                click.echo(err=True)
            self._was_interrupted = isinstance(error, KeyboardInterrupt)
            raise UserLeft from None
        finally:
            self._is_asking = False
        if message.strip() == GOODBYE:
            raise UserLeft
        return message

    @contextmanager
    def _interrupting(self, talk: asyncio.Task[Any]) -> Iterator[None]:
        """Ctrl-C stops the answer. A second one, or one while the user types, is Python's own."""
        loop = asyncio.get_running_loop()

        def interrupt(signal_number: int, frame: FrameType | None) -> None:
            if self._is_asking or self._is_stopping:
                raise KeyboardInterrupt
            self._is_stopping = True
            loop.call_soon_threadsafe(talk.cancel)

        self._is_stopping = False
        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    # The screen --------------------------------------------------------------------------------------------------

    def _show(self, text: str) -> None:
        self._text += text
        if self._repeated is not None:
            return
        text = text if self._is_open else text.lstrip()
        if sys.stdout.isatty():  # a model's control characters never reach a terminal
            text = "".join(character for character in text if character.isprintable() or character in "\n\t")
        if text:
            self._answers += not self._is_answered
            self._is_answered = True
            click.echo(text, nl=False, color=True)
            self._is_open = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._is_open:
            click.echo()
            self._is_open = False

    def _summary(self, seconds: float) -> str:
        return f"{counted(self._answers, 'answer')} · {kept(self._tokens)} · {seconds:.1f} s"


def with_input(program: Program) -> Program:
    """The program with `input` as an input."""
    from lmql_lite.program.ops import Input

    return replace(program, inputs=(*program.inputs, Input("input", program.span)))
