"""Each example shows a run that was recorded with the demo model, and that is the run which it gives today."""

from __future__ import annotations

import asyncio
import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apps.playground_server import Server
from tests.conftest import ROOT

MADE: dict[str, Any] = runpy.run_path(str(ROOT / "playground" / "record.py"))
EXAMPLES = sorted((ROOT / "examples").glob("*.lq"))
"""Of all recordings, compressed as in a wheel."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.end()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_a_recording_is_the_run_that_its_example_gives(example: Path) -> None:
    kept, found = MADE["place_of"](example).read_bytes(), asyncio.run(MADE["recorded"](example))
    assert MADE["alike"](kept, found), "python playground/record.py makes it anew; read the difference"


def test_a_recording_that_says_something_else_or_less_is_not_alike() -> None:
    one = MADE["place_of"](EXAMPLES[0]).read_bytes()
    assert MADE["alike"](one, one.replace(b'"ms":', b'"ms":1'))
    assert not MADE["alike"](one, one.replace(b"Umbrella", b"Umbrella."))
    assert not MADE["alike"](one, b"".join(one.splitlines(keepends=True)[:-1]))
    token = next(line for line in one.splitlines() if b'"logprob":-' in line)
    assert not MADE["alike"](one, one.replace(token, token.replace(b'"logprob":-', b'"logprob":-1')))


def test_there_is_one_for_each_example_and_none_besides() -> None:
    kept = {path.stem for path in (ROOT / "examples" / "recorded").glob("*.lqrun")}
    assert kept == {path.stem for path in EXAMPLES}
    assert set(MADE["INPUTS"]) <= kept


def test_the_server_tells_them_and_runs_nothing(server: Server) -> None:
    page = server.page()
    for example in page.http.get("/api/examples").json()["examples"]:
        answer = page.http.get(f"/api/examples/{example['name']}/recording")
        assert answer.headers["content-type"] == "application/x-ndjson"
        first, *_, last = (json.loads(line) for line in answer.text.splitlines())
        assert (first["type"], last["type"]) == ("started", "done")
        assert all(value in last["prompt"] for value in example["inputs"].values())
    assert page.http.get("/api/runs").json() == {"runs": []}


@pytest.mark.parametrize(
    "name", ["none.lq", "01_packing_list", "inputs.json", "..%2F01_packing_list.lq", "*.lq", "recorded%2F01.lq"]
)
def test_there_are_no_others(server: Server, name: str) -> None:
    assert server.page().http.get(f"/api/examples/{name}/recording").status_code == 404
