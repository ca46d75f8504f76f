"""Other APIs than the plain ones: reasoning models, Azure, the Responses API. Wordings are from public reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.errors import ModelError
from lmql_lite.models.base import CompletionRequest, JsonSchema, PromptTurn, StreamPiece
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


def azure(form: str) -> Callable[[Request], Reply]:
    """Azure's forms of address: `v1` lists base models and no deployments, `deployments` has a route for each."""

    def answer(request: Request) -> Reply:
        if form == "deployments" and request.query.get("api-version") != "2024-10-21":
            return Reply(404, {"error": {"code": "404", "message": "Resource not found"}})
        if request.method == "GET":
            return listing(request, "gpt-4o-2024-08-06") if form == "v1" else NOT_FOUND
        if form == "deployments" and "api-key" not in request.headers:
            return Reply(401, {"error": {"code": "401", "message": "Access denied due to invalid subscription key"}})
        if not request.path.endswith("/chat/completions"):
            told = "The completion operation does not work with the specified model, m. Please choose different model."
            return Reply(400, {"error": {"code": "OperationNotSupported", "message": told}})
        return Reply(200, ANSWER)

    return answer


def test_azure_could_not_be_used_in_its_current_form() -> None:
    """R3: its probe was refused, and deployments are not among the models that it lists."""
    with answering(azure("v1")) as server:
        assert text(said(server, f"{server.root}/openai/v1/")) == "Hi"
        assert {post.path for post in server.posts} == {"/openai/v1/completions", "/openai/v1/chat/completions"}


@pytest.mark.parametrize("given", ["address", "option"])
def test_azure_could_not_be_used_with_a_version(given: str) -> None:
    with answering(azure("deployments")) as server:
        url, version = f"{server.root}/openai/deployments/m", "2024-10-21"
        if given == "address":
            pieces = said(server, f"{url}?api-version={version}", api_key="0123456789abcdef")
        else:
            pieces = said(server, url, api_key="0123456789abcdef", default_query={"api-version": version})
        assert text(pieces) == "Hi"
        assert all("authorization" not in post.headers for post in server.posts)


@cases("models/openai_apis", "Azure takes a key in a header of its own")
def test_Azure_takes_a_key_in_a_header_of_its_own(options: dict[str, Any], sent: dict[str, str]) -> None:
    def answer(request: Request) -> Reply:
        return NOT_FOUND if request.method == "GET" else Reply(200, ANSWER)

    with answering(answer) as server:
        assert text(said(server, f"{server.root}/openai/deployments/m?api-version=2024-10-21", **options)) == "Hi"
        for post in server.posts:
            found = {name: post.headers[name] for name in ("authorization", "api-key") if name in post.headers}
            assert found == sent and post.query == {"api-version": "2024-10-21"}


def test_the_version_of_azure_is_read_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(azure("deployments")) as server:
        url = f"{server.root}/openai/deployments/m"
        with pytest.raises(ModelError, match="is an address of Azure without a version") as caught:
            said(server, url, api_key="0123456789abcdef")
        assert "OPENAI_API_VERSION" in (caught.value.hint or "") and not server.requests
        monkeypatch.setenv("OPENAI_API_VERSION", "2024-10-21")
        assert text(said(server, url, api_key="0123456789abcdef")) == "Hi"


def test_the_key_of_azure_is_read_from_its_own_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-openai")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "of-azure")
    assert Address.of("https://mine.openai.azure.com/openai/v1", None).key == "of-azure"
    assert Address.of("http://host/v1", None).key == "of-openai"
    monkeypatch.setenv("AZURE_OPENAI_AD_TOKEN", "eyJ-token")
    assert Address.of("https://mine.openai.azure.com/openai/v1", None).key == "eyJ-token"


def test_organisation_project_and_headers_go_with_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj_1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Title: mine\nHTTP-Referer: https://example.com")
    with answering(reasoning) as server:
        said(server, headers={"X-Title": "other"})
        for request in server.requests:
            assert request.headers["openai-organization"] == "org-1"
            assert request.headers["openai-project"] == "proj_1"
            assert request.headers["x-title"] == "other"
            assert request.headers["http-referer"] == "https://example.com"


# Responses ------------------------------------------------------------------------------------------------------------


def responses(request: Request) -> Reply:
    """A model that only the Responses API serves."""
    if request.method == "GET":
        return listing(request, "m")
    if request.path.endswith("/chat/completions"):
        told = "This model is only supported in v1/responses and not in v1/chat/completions."
        return Reply(404, {"error": {"message": told, "param": "model", "code": None}})
    if not request.path.endswith("/responses"):
        return ONLY_CHAT
    if "temperature" in request.body:
        told = "Unsupported parameter: 'temperature' is not supported with this model."
        return Reply(400, {"error": {"message": told, "param": "temperature", "code": None}})
    if request.body.get("top_logprobs") or "include" in request.body:
        told = "logprobs are not supported with reasoning models."
        return Reply(400, {"error": {"message": told, "param": "include", "code": None}})
    assert request.body["max_output_tokens"] >= 16
    usage = {"input_tokens": 9, "output_tokens": 20, "output_tokens_details": {"reasoning_tokens": 18}}
    usage |= {"input_tokens_details": {"cached_tokens": 4}}
    created = {"type": "response.created", "response": {"model": "m-2026", "status": "in_progress"}}
    deltas = [{"type": "response.output_text.delta", "delta": part, "logprobs": []} for part in ("Fo", "ur")]
    thought = {"type": "response.reasoning_summary_text.delta", "delta": "Hm."}
    done = {"type": "response.completed", "response": {"model": "m-2026", "usage": usage, "output": []}}
    return Reply(200, [created, thought, *deltas, done])


def test_a_model_of_the_responses_api_alone() -> None:
    with answering(responses) as server:
        pieces = said(server, request=LOW)
        assert text(pieces) == "Four" and "".join(piece.thought for piece in pieces) == "Hm."
        spent = pieces[-1].spent
        assert spent and (spent.prompt_tokens, spent.cached_tokens, spent.completion_tokens) == (9, 4, 20)
        assert spent.reasoning_tokens == 18
        last = server.posts[-1].body
        assert last["input"] == [{"role": "user", "content": "Hello"}] and last["reasoning"] == {
            "summary": "auto",
            "effort": "low",
        }
        assert last["store"] is False and last["max_output_tokens"] == 60


@pytest.mark.parametrize(
    ("told", "param"),
    [
        ("Your organization must be verified to generate reasoning summaries.", "reasoning.summary"),
        ("Unsupported parameter: 'reasoning.summary' is not supported with this model.", None),
    ],
)
def test_summaries_of_thoughts_that_are_refused_are_left_out_and_the_effort_is_not(
    told: str, param: str | None
) -> None:
    def strict(request: Request) -> Reply:
        if "summary" in request.body.get("reasoning", {}):
            return Reply(400, {"error": {"message": told, "param": param, "code": "unsupported_value"}})
        return responses(request)

    with answering(strict) as server:
        assert text(said(server, request=LOW)) == "Four"
        assert server.posts[-1].body["reasoning"] == {"effort": "low"}
        assert text(said(server)) == "Four"
        assert "reasoning" not in server.posts[-1].body


def test_an_effort_that_is_refused_is_an_error() -> None:
    def strict(request: Request) -> Reply:
        if "effort" in request.body.get("reasoning", {}):
            told = "Unsupported parameter: 'reasoning.effort' is not supported with this model."
            return Reply(400, {"error": {"message": told, "param": "reasoning.effort", "code": None}})
        return responses(request)

    with answering(strict) as server, pytest.raises(ModelError, match=r"reasoning\.effort"):
        said(server, request=LOW)


def test_a_schema_goes_to_the_responses_api_in_its_own_form() -> None:
    with answering(responses) as server:
        assert text(said(server, request=replace(DREW, pushed=JsonSchema('{"type": "string"}')))) == "Four"
        form = server.posts[-1].body["text"]["format"]
        assert (form["type"], form["schema"]) == ("json_schema", {"type": "string"})


def test_fewer_tokens_than_the_responses_api_takes() -> None:
    with answering(responses) as server:
        pieces = said(server, request=replace(DREW, max_tokens=2))
        assert pieces[-1].finish == "length" and text(pieces) == "Fo"  # the thought is a piece, too
