"""Thoughts of reasoning models: events of their own, in each of the forms in which servers send them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite import events
from lmql_lite.engine.events import Thought
from lmql_lite.errors import ModelError
from lmql_lite.models.base import Capabilities, StreamPiece
from lmql_lite.models.openai.model import OpenAIModel
from tests.apps.conftest import Shell
from tests.models.api import choice
from tests.models.test_openai_apis import ONLY_CHAT, listing
from tests.servers.answering import Reply, Request, answering
from tests.servers.kinds import OPENAI_REASONING, VLLM, Config
from tests.servers.stub import Fault, serving

ONE = 'sample(temperature=1)\n    "{:user}How many legs has a cat?{:assistant}[LEGS]"\n'


async def seen(source: str, model: Any, **options: Any) -> list[events.Event]:
    options.setdefault("session", lq.Session())
    return [event async for event in lq.compile(source).stream(model=model, **options)]


def thoughts(run: Sequence[events.Event]) -> str:
    return "".join(event.text for event in run if isinstance(event, Thought))


def done(run: Sequence[events.Event]) -> lq.Result:
    assert isinstance(run[-1], events.Finished)
    run[-1].result.check_ledger()
    return run[-1].result


@pytest.mark.parametrize(
    "config",
    [OPENAI_REASONING, replace(VLLM, thoughts="Let me see.")],
    ids=["reasoning_content", "reasoning"],
)
def test_thoughts_of_a_chat_are_events_before_the_text_of_the_hole(config: Config) -> None:
    with serving(config, "Four.") as server:
        run = asyncio.run(seen(ONE, OpenAIModel("stub", base_url=server.base_url), seed=1))
        assert thoughts(run).split() == ["Let", "me", "see."]
        order = [type(event).__name__ for event in run if not isinstance(event, events.Text) or event.hole]
        assert order.index("HoleOpened") < order.index("Thought") < order.index("Text")
        assert {event.hole for event in run if isinstance(event, Thought)} == {"LEGS"}
        assert "Let me see" not in done(run).prompt


def chat(request: Request, *deltas: dict[str, Any], thoughts: int = 3) -> Reply:
    if request.method == "GET":
        return listing(request, "m")
    if not request.path.endswith("/chat/completions"):
        return ONLY_CHAT
    usage = {"prompt_tokens": 9, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": thoughts}}
    parts = [choice(delta=delta) | {"model": "m"} for delta in deltas]
    return Reply(200, [*parts, choice(delta={}, finish_reason="stop") | {"usage": usage}, "[DONE]"])


FORMS = {
    "think": [{"content": "<think>Hm."}, {"content": "</think>\n\nFour"}],
    "reasoning": [{"reasoning": "Hm."}, {"content": "Four"}],
    "reasoning_content": [{"reasoning_content": "Hm."}, {"content": "Four"}],
}


@pytest.mark.parametrize("form", FORMS)
def test_thoughts_are_counted_and_streamed_once(form: str) -> None:
    with answering(lambda request: chat(request, *FORMS[form])) as server:
        session, model = lq.Session(), OpenAIModel("m", base_url=server.base_url)
        first = asyncio.run(seen(ONE, model, session=session, seed=1))
        assert (thoughts(first), done(first)["LEGS"]) == ("Hm.", "Four")
        assert done(first).usage.reasoning_tokens == 3 + 3  # those of the probe as well
        warm = asyncio.run(seen(ONE, model, session=session, seed=1))
        assert (thoughts(warm), done(warm)["LEGS"]) == ("", "Four")
        assert done(warm).usage.reasoning_tokens == 0


def test_what_a_server_does_not_count_is_unknown_and_not_0() -> None:
    with serving(replace(VLLM, thoughts="Let me see."), "Four.") as server:
        run = asyncio.run(seen(ONE, OpenAIModel("stub", base_url=server.base_url), seed=1))
        assert done(run).usage.reasoning_tokens is None


class Thinking:
    """A model that goes on thinking when it is told to."""

    name = place = "openai/thinking"

    def __init__(self, *parts: str | None) -> None:
        self.parts = parts
        """None: the answer breaks off."""
        self.go_on = asyncio.Event()
        self.streams = 0

    async def probe(self, known: Capabilities | None = None) -> Capabilities:
        return Capabilities(fingerprint="thinking", chat_only=True)

    async def stream(self, prompt: Any, request: Any) -> AsyncIterator[StreamPiece]:
        self.streams += 1
        for part in self.parts:
            if part is None:
                raise lq.errors.BrokenOff("the answer broke off")
            yield StreamPiece(b"", thought=part)
            await self.go_on.wait()
        yield StreamPiece(b"Four.")
        yield StreamPiece(b"", finish="stop")

    async def score(self, prompt: Any, options: Any) -> Any:
        raise AssertionError


def test_a_thought_is_emitted_while_the_model_still_thinks() -> None:
    async def told() -> list[str]:
        model, order = Thinking("one", "two"), []
        async for event in lq.compile(ONE).stream(model=model, seed=1, session=lq.Session()):
            if isinstance(event, Thought):
                order.append(event.text)
                model.go_on.set()
            elif isinstance(event, events.Text) and event.hole:
                order.append(event.text)
        return order

    assert asyncio.run(asyncio.wait_for(told(), 10)) == ["one", "two", "Four."]


def test_thoughts_are_no_steps_and_python_does_not_judge_them() -> None:
    judged = []

    def fits(text: str) -> bool:
        judged.append(text)
        return True

    async def told() -> lq.Result:
        model = Thinking(*map(str, range(300)))
        model.go_on.set()
        source = 'sample(temperature=1)\n    "How many?[LEGS]"\nwhere fits(LEGS)\n'
        return done(await seen(source, model, inputs={"fits": fits}, seed=1, step_budget=50))

    assert asyncio.run(told())["LEGS"] == "Four."
    assert len(judged) < 10


def test_an_answer_that_breaks_off_after_its_thoughts_is_asked_for_three_times_at_most() -> None:
    async def told() -> None:
        model = Thinking("one", None)
        model.go_on.set()
        try:
            await seen(ONE, model, seed=1)
        finally:
            assert model.streams == 3

    with pytest.raises(ModelError, match="broke off"):
        asyncio.run(told())


def test_each_of_several_results_has_its_thoughts() -> None:
    with serving(OPENAI_REASONING, "Four.") as server:
        source = ONE.replace("sample(", "sample(n=2, ")
        run = asyncio.run(seen(source, OpenAIModel("stub", base_url=server.base_url), seed=1))
        assert {event.state for event in run if isinstance(event, Thought)} == {0, 1}


def test_lines_the_usage_line_and_traces_have_thoughts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    shell = Shell(tmp_path, capsys)
    shell.write("q.lq", ONE)
    with answering(lambda request: chat(request, *FORMS["think"])) as server:
        command = ["run", "q.lq", "--model", "openai/m", "--base-url", server.base_url]
        lines = [json.loads(line) for line in shell(*command, "--format", "events").out.splitlines()]
        assert [line["text"] for line in lines if line["type"] == "thought"] == ["Hm."]
        assert lines[-1]["usage"]["reasoning_tokens"] == 6
        assert "out 10 (6 thoughts)" in shell(*command, "-u").err
        for trace in ("run.json", "run.html"):
            assert shell(*command, "--trace", trace).code == 0
            assert "Hm." in (tmp_path / trace).read_text()
        (call,) = json.loads((tmp_path / "run.json").read_text())["calls"]
        assert call["answered"]["thoughts"] == "Hm."


def test_thoughts_with_a_cut_connection_are_not_lost(tmp_path: Path) -> None:
    with serving(OPENAI_REASONING, "Four.", None, None, None, Fault(cut=True, after=2)) as server:
        run = asyncio.run(seen(ONE, OpenAIModel("stub", base_url=server.base_url), seed=1))
        assert done(run)["LEGS"] == "Four."
        assert thoughts(run).endswith("Let me see. ")
