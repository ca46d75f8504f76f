"""LMQL 0.7.3 on the servers of `scenarios.py`, run by an interpreter of its own that has it (`lmql_runs.py`).

It speaks to completions servers that tell log-probabilities, as it does to OpenAI's `gpt-3.5-turbo-instruct`: by that
name it does not ask for `echo`, which servers refuse beside a stream. The tokens of the model are told to it. What it
learns it keeps for one run, and in a file for others: its warm runs are those with the file of a cold one.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.scenario_servers import Near, Played, Speaker
from benchmarks.scenario_texts import TOOL

INSTRUCT = "gpt-3.5-turbo-instruct"
CHAT = "gpt-4"
"""By this name it takes a model for one of a chat."""

TEMPLATE = r"""
argmax(chunksize=CHUNK)
    "A list of things not to forget when going to the sea (not travelling): \n"
    "- Sunglasses \n"
    "-[THING]"
    "-[THING]"
    "-[THING]"
    "-[THING]"
where
    STOPS_AT(THING, "\n")
"""
OPTIONS = """
argmax
    "If we have the choice we choose[OPTION]"
where
    OPTION in [
        "Option A with a whole lot of extra context",
        "Option B with context",
        "Another Option, also with a lot of additional text"
    ]
"""
JOKE = r'''
argmax
    """A good dad joke. A indicates the punchline
    Q:[JOKE]
    A:[PUNCHLINE]"""
where
    len(JOKE) < 120 and STOPS_AT(JOKE, "?") and STOPS_AT(PUNCHLINE, "\n") and len(PUNCHLINE) > 1
'''
_BEFORE, _PROMPT, _AFTER = TOOL.replace("return BALL", "").rsplit('"""', 2)
TOOLS = _BEFORE + json.dumps(_PROMPT) + _AFTER
"""LMQL drops the blank lines of a string of several lines."""


def template(chunk: int = 64) -> str:
    """The query with four holes. `chunk`: so many tokens LMQL asks for at once; 64 unless told, as it has it."""
    return TEMPLATE.replace("CHUNK", str(chunk))


class Cannot(Exception):
    """LMQL does not run a query, and says why."""


class Lmql:
    """A process that runs queries with LMQL, one after the other."""

    def __init__(self, python: str) -> None:
        self._command = [python, str(Path(__file__).with_name("lmql_runs.py"))]

    def __enter__(self) -> Lmql:
        self._home = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"HOME": self._home.name},  # it keeps masks of vocabularies there
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()
        self._home.cleanup()

    def play(self, near: Near, query: str, runs: int) -> dict[str, list[Played]]:
        """Each mode so many times, after one run that is not counted. Raises Cannot."""
        self._run(near, query, False)
        played: dict[str, list[Played]] = {"off": [], "cold": [], "warm": []}
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as folder:
                file = str(Path(folder) / "lmql.tokens")
                for mode, cache in (("off", False), ("cold", file), ("warm", file)):
                    before = near.counts()
                    answer = self._run(near, query, cache)
                    played[mode].append(Played(near.counts().since(before), answer["seconds"], answer["prompt"]))
        return played

    def _run(self, near: Near, query: str, cache: bool | str) -> dict[str, Any]:
        served = near.served
        vocabulary = Speaker(served.scripts, served.words).tokenizer.vocabulary
        asked = {
            "query": query,
            "endpoint": near.base_url + ("/completions" if served.config.text else "/chat/completions"),
            "model": served.config.model,
            "vocabulary": [None if data is None else data.decode("latin-1") for data in vocabulary],
            "cache": cache,
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            said = self._process.communicate()[1].strip().splitlines()
            raise Cannot(f"it does not start: {said[-1] if said else 'it says nothing'}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Cannot(answer["error"])
        return answer
