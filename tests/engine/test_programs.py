"""Programs with what they do. Each is run as a user runs it, cold, warm and without a cache, and does the same (law 1).

A section of `programs/*.txt` is a name, the source, and below `---` lines of a word and Python. Settings of the run are
`says` (the script of the model), `model`, `given` (inputs), `options`, `after` (programs that ran before), and `beams`:
the program runs with one drawn branch too, and with three, which are refused with this sentence if there is one.

All other words are facts of the result or of the error, and holes are names in them. `holds` is a condition, and `cold`
one on the first run and its model; `calls` and `uncached` are calls of the model, or requests to the server.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from lmql_lite.models.scripted import WORDS
from tests.engine.test_path_turns import ROLES, Chatty, chat_format, says
from tests.servers.scored import ScoredCompleter


def noisy(seed: int = 1, *words: bytes) -> lq.ScriptedModel:
    """A model that generates anything at all."""
    return lq.ScriptedModel("", certainty=0, seed=seed, words=words)


def served(script: Any, words: tuple[bytes, ...] = WORDS, **able: Any) -> ScoredCompleter:
    """A server with these capabilities."""
    return ScoredCompleter(lq.ScriptedModel(script, words=words), **able)


def speaking(*lines: tuple[str, str]) -> lq.ScriptedModel:
    """A model that answers text that ends with the first of a pair with the second."""

    def script(text: bytes) -> bytes:
        found: list[tuple[int, bytes]] = []
        for end, answer in lines:
            whole = (end + answer).encode()
            reached = [size for size in range(len(end) - 1, len(whole) + 1) if text.endswith(whole[:size])]
            found += [(min(size, len(end)), whole[size:]) for size in reached if size]
        return max(found)[1] if found else b""

    return lq.ScriptedModel(script)


def answering(make: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    """An async function that returns what `make` does."""

    async def answer() -> Any:
        return make()

    return answer


async def late() -> str:
    """The answer of something outside of the query."""
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(0.2, event.set)
    await event.wait()
    return "late"


MODULES = (asyncio, itertools, pydantic, re, threading, time)
HELPERS = (Chatty, ScoredCompleter, answering, chat_format, date, late, noisy, says, served, speaking)
NAMES: Mapping[str, Any] = {
    **{module.__name__: module for module in MODULES},
    **{each.__name__: each for each in HELPERS},
    "lq": lq,
    "ROLES": ROLES,
    "WORDS": WORDS,
    "__file__": __file__,
    "__name__": __name__,
}
"""Names in all lines below programs."""
SETTINGS = ("says", "model", "given", "options", "after", "beams")


class Program(NamedTuple):
    source: str
    settings: dict[str, str]
    facts: list[tuple[str, str]]

    def setting(self, word: str, default: Any) -> Any:
        return eval(self.settings[word], dict(NAMES)) if word in self.settings else default

    def model(self) -> Any:
        return self.setting("model", None) or lq.ScriptedModel(self.setting("says", ""))


def _read(path: Path) -> dict[str, Program]:
    sections = re.split(r"^### (.+)\n", path.read_text("utf-8"), flags=re.MULTILINE)
    found = {}
    for name, text in zip(sections[1::2], sections[2::2], strict=True):
        source, below = text.split("---\n")
        lines = [(word, code) for word, _, code in (line.partition(": ") for line in below.strip().splitlines())]
        settings = {word: code for word, code in lines if word in SETTINGS}
        found[f"{path.stem}: {name}"] = Program(source, settings, [each for each in lines if each[0] not in SETTINGS])
    return found


FILES = sorted(Path(__file__).with_name("programs").glob("*.txt"))
PROGRAMS = {name: program for path in FILES for name, program in _read(path).items()}


def facts_of(result: lq.Result) -> dict[str, Any]:
    kept = [token for token in result.tokens if token.fate == "kept"]
    lost = ("cut", "removed", "rejected")
    return {
        "prompt": result.prompt,
        "value": result.value,
        "variables": dict(result.variables),
        "endings": dict(result.endings),
        "kept": [(token.data, token.hole) for token in kept],
        "forced": [token.data for token in kept if token.source == "forced"],
        **{fate: [token.data for token in result.tokens if token.fate == fate] for fate in lost},
    }


def facts_of_error(error: BaseException) -> dict[str, Any]:
    """Facts of an error of the package at its place, or of Python's own in a line of the query."""
    if isinstance(error, lq.LmqlLiteError):
        place = {"place": error.span.source, "line": error.span.line} if error.span else {}
        return {"error": type(error), "sentence": error.message, "hint": error.hint or "", **place}
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == "<query>"]
    return {"error": type(error), "sentence": str(error), "line": frames[0].lineno}


async def streamed(source: str, given: dict[str, Any], **options: Any) -> list[lq.Result]:
    """The results of a run. The text of each is that of the events of its branch (S33)."""
    texts, results = {0: ""}, list[lq.Result]()
    async with aclosing(lq.compile(source).stream(given, **options)) as stream:
        async for event in stream:
            match event:
                case events.Text(text, _, branch):
                    texts[branch] = texts.get(branch, "") + text
                case events.Forked(branch, others):
                    texts.update(dict.fromkeys(others, texts[branch]))
                case events.Pruned(branch):
                    del texts[branch]
                case events.Finished(result, several):
                    results = list(several) or [result]
    assert sorted(texts.values()) == sorted(result.prompt for result in results)
    return results


def check(program: Program, model: Any, session: lq.Session, is_cold: bool = False, **options: Any) -> None:
    """Runs the program, and compares each of its results with what stands below it."""
    results, found = list[lq.Result](), list[dict[str, Any]]()
    try:
        options = {**program.setting("options", {}), **options}
        given = program.setting("given", {})
        results = asyncio.run(streamed(program.source, given, model=model, session=session, **options))
        found = [facts_of(result) for result in results]
    except (lq.LmqlLiteError, TypeError, ZeroDivisionError) as error:
        if "error" not in dict(program.facts):
            raise
        found = [facts_of_error(error)]
    for facts, result in zip(found, results or [None], strict=True):
        own = {"result": result, "results": results, "model": model, **(facts.get("variables") or {})}
        names = {**NAMES, **facts, **own}
        for word, code in program.facts:
            if word in ("calls", "uncached") or (word == "cold" and not is_cold):
                continue
            expected = eval(code, names)
            if word in ("holds", "cold"):
                assert expected, code
            elif word in ("sentence", "hint"):
                assert re.search(expected, facts[word]), facts
            else:
                assert facts.get(word) == expected, (word, facts)


def calls_of(model: Any) -> int:
    return int(getattr(model, "requests", getattr(model, "calls", 0)))


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_does_what_stands_below_it(program: Program) -> None:
    session, model, facts = lq.Session(), program.model(), dict(program.facts)
    for source in program.setting("after", ()):
        lq.run_sync(source, model=model, session=session)
    before = calls_of(model)
    check(program, model, session, is_cold=True)
    calls = calls_of(model)
    assert calls - before == int(facts.get("calls", calls - before))
    check(program, model, session)
    is_guessed = "error" in facts or "await " in program.source  # while Python waits, the model goes on
    assert calls_of(model) == calls or is_guessed, "all is known"
    alone = program.model()
    check(program, alone, lq.Session(), cache=False)
    assert calls_of(alone) == int(facts.get("uncached", calls_of(alone)))


BRANCHES: dict[str, dict[str, Any]] = {"drawn": {"decoder": "sample", "seed": 1}, "beams": {"decoder": "beam", "n": 3}}


@pytest.mark.parametrize("decoder", BRANCHES)
@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if "beams" in program.settings])
def test_it_does_so_with_other_decoders_or_is_refused_under_beams_S23(
    name: str, decoder: str, caplog: pytest.LogCaptureFixture
) -> None:
    program = PROGRAMS[name]
    refused = program.setting("beams", "")
    if decoder == "beams" and refused:
        with pytest.raises((lq.QueryError, lq.InputError, RuntimeError), match=refused):
            check(program, program.model(), lq.Session(), **BRANCHES[decoder])
    else:
        check(program, program.model(), lq.Session(), **BRANCHES[decoder])
    gc.collect()
    assert not caplog.records, "no task is left behind"
