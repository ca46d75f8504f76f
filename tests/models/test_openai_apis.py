"""Other APIs than the plain ones: reasoning models, and Azure. Wordings are from public reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.errors import ModelError
from lmql_lite.models.base import CompletionRequest, PromptTurn, StreamPiece
from lmql_lite.models.openai.address import Address
from lmql_lite.models.openai.model import OpenAIModel
from tests.models.api import CHAT, DRAWN, choice, pieces_of, run, sse, text
from tests.servers.answering import NOT_FOUND, Answering, Reply, Request, answering
from tests.servers.kinds import OPENAI_CHAT, VLLM
from tests.servers.stub import Fault, serving
from tests.tables import cases

pytestmark = pytest.mark.usefixtures("quick_and_alone")
ONLY_CHAT = Reply(404, {"error": {"message": "This is a chat model and not supported in the v1/completions endpoint"}})
DREW = CompletionRequest(60, sampling=DRAWN)
LOW = replace(DREW, sampling=replace(DRAWN, effort="low"))
ANSWER = [choice(delta={"content": "Hi"}) | {"model": "m-1"}, choice(delta={}, finish_reason="stop"), "[DONE]"]


def listing(request: Request, *names: str) -> Reply:
    models = [{"id": name, "owned_by": "openai"} for name in names]
    return Reply(200, {"data": models}) if request.path.endswith("/models") else NOT_FOUND


def said(
    server: Answering, base_url: str | None = None, request: CompletionRequest = DREW, **options: Any
) -> list[StreamPiece]:
    model = OpenAIModel("m", base_url=base_url or server.base_url, **options)
    return run(pieces_of(model, (PromptTurn("user", "Hello"),), request))


# Reasoning models -----------------------------------------------------------------------------------------------------


def reasoning(request: Request) -> Reply:
    """A model that needs room to think."""
    if request.method == "GET":
        return listing(request, "m")
    if not request.path.endswith("/chat/completions"):
        return ONLY_CHAT
    if request.body["max_completion_tokens"] < 16:
        told = "Could not finish the message because max_tokens or model output limit was reached. Please try again."
        return Reply(400, {"error": {"message": told, "type": "invalid_request_error", "param": None, "code": None}})
    if request.body["temperature"] != 1.0:
        told = "Unsupported value: 'temperature' does not support 0 with this model."
        return Reply(400, {"error": {"message": told, "param": "temperature", "code": "unsupported_value"}})
    return Reply(200, ANSWER)


def test_a_reasoning_model_that_refuses_one_token_could_not_be_reached() -> None:
    """R2."""
    with answering(reasoning) as server:
        assert text(said(server)) == "Hi"
        assert [post.body.get("max_completion_tokens") for post in server.posts] == [None, 1, 16, 60]
        with pytest.raises(ModelError, match="does not support greedy decoding") as caught:
            said(server, request=CompletionRequest(60))
        assert caught.value.hint == "use sample(temperature=1)"


def test_effort_is_an_option_of_every_scope_and_an_answer_with_another_one_is_another_answer() -> None:
    query = lq.compile('sample(effort="low")\n"Say:[X]\\n[sample(effort=\'high\') Y]"')
    with answering(reasoning) as server:
        model, session = OpenAIModel("m", base_url=server.base_url), lq.Session()
        for _ in range(2):
            query.run_sync(model=model, session=session, seed=1)
        for effort in ("low", "high", "low", None):
            lq.run_sync('sample "Say:[X]"', model=model, session=session, seed=1, effort=effort)
        efforts = [post.body.get("reasoning_effort") for post in server.posts if post.body.get("seed")]
        assert efforts == ["low", "high", "low", "high", None], "those of the header and of the hole, then one of each"


def test_effort_is_not_for_models_that_do_not_think() -> None:
    with pytest.raises(lq.InputError, match="effort is one of none, minimal"):
        lq.run_sync('"[X]"', model="demo", effort="much")
    with pytest.raises(lq.InputError, match="effort is an option of models on servers"):
        lq.run_sync('"[X]"', model=lq.ScriptedModel("a"), effort="low")
    with serving(VLLM, "Hi") as server, pytest.raises(ModelError, match="effort= is for chats"):
        lq.run_sync('"[X]"', model=OpenAIModel("stub", base_url=server.base_url), effort="low")


@cases("models/openai_apis", "thoughts in the content were taken for the answer", globals())
def test_thoughts_in_the_content_were_taken_for_the_answer(parts: list[str], answer: str, thoughts: str) -> None:
    """R23."""
    events = [choice(delta={"content": part}) for part in parts]
    body = sse({"model": "m"}, *events, choice(delta={}, finish_reason="stop"), "[DONE]")
    with serving(OPENAI_CHAT, "", None, None, Fault(plain=body)) as server:
        model = OpenAIModel("stub", base_url=server.base_url)
        pieces = run(pieces_of(model, CHAT, DREW))
        assert text(pieces) == answer and "".join(piece.thought for piece in pieces) == thoughts


# Azure ----------------------------------------------------------------------------------------------------------------


def azure(request: Request) -> Reply:
    """Azure lists base models and no deployments."""
    if request.method == "GET":
        return listing(request, "gpt-4o-2024-08-06")
    if not request.path.endswith("/chat/completions"):
        told = "The completion operation does not work with the specified model, m. Please choose different model."
        return Reply(400, {"error": {"code": "OperationNotSupported", "message": told}})
    return Reply(200, ANSWER)


def test_azure_could_not_be_used_in_its_current_form() -> None:
    """R3: its probe was refused, and deployments are not among the models that it lists."""
    with answering(azure) as server:
        assert text(said(server, f"{server.root}/openai/v1/")) == "Hi"
        assert {post.path for post in server.posts} == {"/openai/v1/completions", "/openai/v1/chat/completions"}


def test_the_key_of_azure_is_read_from_its_own_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-openai")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "of-azure")
    assert Address.of("https://mine.openai.azure.com/openai/v1", None).key == "of-azure"
    assert Address.of("http://host/v1", None).key == "of-openai"
    monkeypatch.setenv("AZURE_OPENAI_AD_TOKEN", "eyJ-token")
    assert Address.of("https://mine.openai.azure.com/openai/v1", None).key == "eyJ-token"


def test_organisation_project_and_headers_go_with_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X Title: mine")
    with pytest.raises(ModelError, match="OPENAI_CUSTOM_HEADERS: 'X Title' is not the name of a header") as caught:
        lq.model("openai/m")
    assert caught.value.hint
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj_1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Title: mine\nHTTP-Referer: https://example.com")
    with answering(reasoning) as server:
        said(server)
        for request in server.requests:
            assert request.headers["openai-organization"] == "org-1"
            assert request.headers["openai-project"] == "proj_1"
            assert request.headers["x-title"] == "mine"
            assert request.headers["http-referer"] == "https://example.com"
