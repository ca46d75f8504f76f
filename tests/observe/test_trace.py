"""`trace=`: what a run leaves in a file, whether it ends well, badly or not at all; and no keys in it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from lmql_lite.models.base import CompletionRequest, Prompt, StreamPiece
from lmql_lite.observe.lines import Line, read
from lmql_lite.redaction import redacted, without_secrets
from tests.servers.scored import ScoredCompleter, ScriptedCompleter
from tests.tables import cases

LIST = "A list:\n- Sun\n- Hat\n"
QUERY = '"A list:\\n-[A]-[B]" where STOPS_AT(A, "\\n") and STOPS_AT(B, "\\n")'
NEVER = '"A list:\\n-[A]" where A == "x" and str.upper(A) == "Y"'


def lines(path: str) -> list[Line]:
    with open(path, "rb") as file:
        return list(read(file, path))


def certificate(path: str = "run.json") -> Any:
    return json.loads(Path(path).read_text("utf-8"))


# Certificates ----------------------------------------------------------------------------------------------------


def test_a_certificate_has_every_call_of_a_model_in_this_process(session: lq.Session) -> None:
    model = lq.ScriptedModel(LIST)
    result = lq.run_sync(QUERY, model=model, session=session, trace="run.json", seed=5)
    found = certificate()
    started, ended = found["started"], found["ended"]
    assert (found["schema"], started["model"], started["seed"], ended["type"]) == (1, "scripted", 5, "done")
    assert ended["prompt"] == result.prompt and ended["usage"] == result.usage.as_dict()
    assert found["parameters"]["seed"] == 5 and "trace" not in found["parameters"]
    made = found["calls"]
    assert len(made) == model.calls == result.usage.forward_passes
    asked = [request for call in made for request in call["asked"]["requests"]]
    assert sum(len(request["positions"]) for request in asked) == model.positions
    first = made[0]
    assert first["asked"]["requests"][0]["prefix"] + len(first["asked"]["requests"][0]["new"]) >= 8
    assert first["answered"]["best"][0][-1]["text"] == " S"
    assert first["ms"] >= 0 and first["at_ms"] <= found["ms"]


def test_what_was_known_is_no_call(session: lq.Session) -> None:
    for _ in range(2):
        lq.run_sync(QUERY, model=lq.ScriptedModel(LIST), session=session, trace="run.json")
    assert certificate()["calls"] == []


def test_a_run_that_shares_a_pass_has_its_own_questions_in_its_certificate(session: lq.Session) -> None:
    async def both() -> None:
        model = lq.ScriptedModel(LIST)
        query = lq.compile('"{x}[A]" where len(A) < 3')
        await asyncio.gather(
            query.run({"x": "one"}, model=model, session=session, trace="one.json"),
            query.run({"x": "two"}, model=model, session=session, trace="two.json"),
            query.run({"x": "three"}, model=model, session=session),
        )

    asyncio.run(both())
    for name in ("one", "two"):
        made = certificate(f"{name}.json")["calls"]
        assert made[0]["asked"]["in_pass"] == 3
        for call in made:
            (request,) = call["asked"]["requests"]
            assert (request["after"] + request["text"]).startswith(name)


def test_a_certificate_has_every_request_to_a_server(session: lq.Session) -> None:
    model = ScriptedCompleter(LIST)
    result = lq.run_sync(QUERY, model=model, session=session, trace="run.json")
    made = certificate()["calls"]
    assert len(made) == model.requests == result.usage.requests
    assert made[0]["kind"] == "stream" and made[0]["asked"]["prompt"] == [{"role": None, "text": "A list:\n-"}]
    assert made[0]["asked"]["request"]["max_tokens"] >= 1
    assert result["A"].strip() in made[0]["answered"]["text"] and made[0]["answered"]["pieces"] >= 1


def test_a_scored_option_is_a_call_too(session: lq.Session) -> None:
    model = ScoredCompleter(lq.ScriptedModel(LIST), scores=True)
    lq.run_sync('"A list:\\n-[A]" distribution A in [" Sun", " Hat"]', model=model, session=session, trace="run.json")
    scored = [call for call in certificate()["calls"] if call["kind"] == "score"]
    assert [call["asked"]["options"] for call in scored] == [[" Sun", " Hat"]]
    assert len(scored[0]["answered"]["logprobs"]) == 2


class Failing(ScriptedCompleter):
    async def stream(self, prompt: Prompt, request: CompletionRequest) -> AsyncGenerator[StreamPiece, None]:
        yield StreamPiece(b" Su")
        raise lq.ModelError("https://me:pass@host/v1?api_key=abc says: Bearer sk-0123456789abc is no key")


def test_a_run_that_fails_has_its_certificate_without_keys(session: lq.Session) -> None:
    with pytest.raises(lq.ModelError):
        lq.run_sync(QUERY, model=Failing(LIST), session=session, trace="run.json")
    found = certificate()
    assert found["ended"]["kind"] == "ModelError" and found["ended"]["span"]["line"] == 1
    assert found["calls"][0]["answered"]["text"] == " Su"
    assert "https://[hidden]@host/v1?api_key=[hidden] says" in found["calls"][0]["error"]
    written = Path("run.json").read_text("utf-8")
    assert "sk-0123456789abc" not in written and "pass@" not in written and "abc says" not in written


def test_a_key_that_a_query_says_is_hidden_in_its_certificate_and_not_in_its_result(session: lq.Session) -> None:
    key = "sk-0123456789abc"
    query = '"Use {key}.[A]" where len(A) == 2\nreturn {"api_key": key, "said": A}'
    found = lq.run_sync(query, {"key": key}, model=lq.ScriptedModel("ab"), session=session, trace="run.json")
    assert found.value["api_key"] == key and key in found.prompt
    assert key not in Path("run.json").read_text("utf-8")
    assert certificate()["ended"]["value"] == {"api_key": "[hidden]", "said": found["A"]}


def test_a_run_that_is_cancelled_leaves_what_it_did(session: lq.Session) -> None:
    begun = asyncio.Semaphore(0)

    async def wait() -> None:
        begun.release()
        await asyncio.sleep(60)

    async def cancelled() -> None:
        query = lq.compile(QUERY + "\nawait wait()")
        work = [
            asyncio.create_task(
                query.run({"wait": wait}, model=lq.ScriptedModel(LIST), session=session, trace=f"run.{suffix}")
            )
            for suffix in ("json", "lqrun", "html")
        ]
        for _ in work:
            await begun.acquire()
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    asyncio.run(cancelled())
    found = certificate()
    assert found["ended"]["kind"] == "Stopped" and found["calls"]
    assert lines("run.lqrun")[-1]["kind"] == "Stopped"
    assert "the run was stopped" in Path("run.html").read_text("utf-8")


def test_several_results_are_all_there(session: lq.Session) -> None:
    model = lq.ScriptedModel(LIST, certainty=2.0)
    results = lq.run_sync(
        'sample(seed=1)\n    "A:[A]"\nwhere len(A) < 5', n=3, model=model, session=session, trace="run.json"
    )
    found = certificate()
    assert [each["prompt"] for each in found["ended"]["results"]] == [each.prompt for each in results]


# Files -----------------------------------------------------------------------------------------------------------


def test_a_recording_grows_with_the_run_and_what_a_crash_leaves_can_be_read(session: lq.Session) -> None:
    async def left() -> None:
        stream = lq.compile(QUERY).stream(model=lq.ScriptedModel(LIST), session=session, trace="run.lqrun")
        seen = 0
        async for event in stream:
            seen += 1
            assert len(lines("run.lqrun")) >= seen, f"{event} was told before it was written"
            if isinstance(event, events.HoleClosed):
                break
        await stream.aclose()

    asyncio.run(left())
    assert lines("run.lqrun")[-1]["type"] == "error"


@pytest.mark.parametrize("suffix", [".json", ".lqrun", ".html"])
def test_the_file_is_there_before_the_result_is(session: lq.Session, suffix: str) -> None:
    async def finished() -> bool:
        stream = lq.compile(QUERY).stream(model=lq.ScriptedModel(LIST), session=session, trace=Path(f"run{suffix}"))
        async for event in stream:
            if isinstance(event, events.Finished):
                return "done" in Path(f"run{suffix}").read_text("utf-8") or suffix == ".html"
        return False

    assert asyncio.run(finished())
    assert os.listdir(".") == [f"run{suffix}"], "nothing is left beside it"


@pytest.mark.parametrize("suffix", [".json", ".lqrun", ".html"])
def test_what_cannot_be_written_is_said_before_anything_is_asked(session: lq.Session, suffix: str) -> None:
    model = lq.ScriptedModel(LIST)
    os.mkdir(f"folder{suffix}")
    for name in (f"nowhere/run{suffix}", f"folder{suffix}"):
        with pytest.raises(lq.InputError, match="the trace cannot be written to"):
            lq.run_sync(QUERY, model=model, session=session, trace=name)
    assert model.calls == 0


@pytest.mark.parametrize("name", ["run.txt", "run", "", 3, b"run.json"], ids=repr)
def test_the_suffix_says_what_is_written(session: lq.Session, name: Any) -> None:
    with pytest.raises(lq.InputError, match=r"ends in \.json, \.lqrun or \.html") as refused:
        lq.run_sync(QUERY, model=lq.ScriptedModel(LIST), session=session, trace=name)
    assert refused.value.hint and "run.lqrun for the playground" in refused.value.hint


def test_an_old_certificate_stays_until_the_new_one_is_whole(session: lq.Session) -> None:
    Path("run.json").write_text("old", "utf-8")

    async def seen() -> str:
        stream = lq.compile(QUERY).stream(model=lq.ScriptedModel(LIST), session=session, trace="run.json")
        async for event in stream:
            if isinstance(event, events.HoleClosed):
                return Path("run.json").read_text("utf-8")
        return ""

    assert asyncio.run(seen()) == "old"


def test_a_failing_query_is_recorded_with_its_place(session: lq.Session) -> None:
    with pytest.raises(lq.ConstraintError):
        lq.run_sync(NEVER, model=lq.ScriptedModel(LIST), session=session, trace="run.lqrun")
    with pytest.raises(ZeroDivisionError):
        lq.run_sync('"a"\n1 / 0', model=lq.ScriptedModel(LIST), session=session, trace="own.lqrun")
    failed = lines("run.lqrun")[-1]
    assert failed["kind"] == "ConstraintError" and failed["span"] is not None
    own = lines("own.lqrun")[-1]
    assert (own["kind"], own["message"], own["span"]["line"]) == ("ZeroDivisionError", "division by zero", 2)


def test_an_error_of_the_querys_own_with_files_is_its_own(session: lq.Session) -> None:
    with pytest.raises(FileNotFoundError):
        lq.run_sync('"a"\nopen("nowhere.txt")', model=lq.ScriptedModel(LIST), session=session, trace="run.json")
    assert certificate()["ended"]["kind"] == "FileNotFoundError"


# Keys ------------------------------------------------------------------------------------------------------------


@cases("observe/trace", "what looks like a key is hidden in texts")
def test_what_looks_like_a_key_is_hidden_in_texts(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_what_is_named_like_a_key_is_hidden_in_data() -> None:
    data = {"api_key": "a", "headers": {"Authorization": "b", "X-Api-Key": "c"}, "token": "d", "max_tokens": 5}
    hidden = without_secrets({**data, "tokens": ["e"], "list": [{"password": "f"}], "key": "g"})
    assert hidden == {
        "api_key": "[hidden]",
        "headers": {"Authorization": "[hidden]", "X-Api-Key": "[hidden]"},
        "token": "[hidden]",
        "max_tokens": 5,
        "tokens": ["e"],
        "list": [{"password": "[hidden]"}],
        "key": "g",
    }
