"""Identity of a server: what goes with every request belongs to it, credentials and the order of names do not (S4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.models.openai.address import is_credential
from lmql_lite.models.openai.model import OpenAIModel
from tests.models.api import KEY, choice, run
from tests.servers.answering import NOT_FOUND, Answering, Reply, Request, answering
from tests.tables import cases

pytestmark = pytest.mark.usefixtures("quick_and_alone")
SOURCE = '"{:user}Which number?{:assistant}[X]"'
SECRET = "very-secret-0123"


class Counting:
    """Each answer is another one."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, request: Request) -> Reply:
        if request.method == "GET" or request.path.endswith("/v1/completions"):
            return NOT_FOUND
        if min(request.body.get("max_tokens", 99), request.body.get("max_completion_tokens", 99)) == 1:
            return Reply(200, [choice(delta={"content": "a"}, finish_reason="length") | {"model": "m"}, "[DONE]"])
        self.count += 1
        said = choice(delta={"content": f"Number {self.count}."}, finish_reason="stop") | {"model": "m"}
        return Reply(200, [said, "[DONE]"])


def named(server: Answering, path: str = "/v1", headers: dict[str, str] | None = None, **options: Any) -> Any:
    """The model of a process with these headers in its environment."""
    with pytest.MonkeyPatch.context() as patch:
        if headers:
            lines = "\n".join(f"{name}: {value}" for name, value in headers.items())
            patch.setenv("OPENAI_CUSTOM_HEADERS", lines)
        return lq.model("openai/m", **{"base_url": server.root + path, "api_key": KEY} | options)


def said(server: Answering, cache: Path, **options: Any) -> str:
    """The answer to a process of its own."""
    result = lq.run_sync(SOURCE, model=named(server, **options), session=lq.Session(), cache=str(cache))
    return str(result["X"])


@cases("models/server_identity", "two headers or queries had one answer", globals())
def test_two_headers_or_queries_had_one_answer(one: dict[str, Any], other: dict[str, Any], tmp_path: Path) -> None:
    with answering(Counting()) as server:
        first, second = (said(server, tmp_path / "h.tokens", **each) for each in (one, other))
        assert (first, second) == ("Number 1.", "Number 2.")
        assert [said(server, tmp_path / "h.tokens", **each) for each in (one, other)] == [first, second]


@cases("models/server_identity", "what makes no difference invalidates nothing", globals())
def test_what_makes_no_difference_invalidates_nothing(
    one: dict[str, Any], other: dict[str, Any], tmp_path: Path
) -> None:
    with answering(Counting()) as server:
        assert said(server, tmp_path / "h.tokens", **one) == said(server, tmp_path / "h.tokens", **other) == "Number 1."
    assert SECRET.encode() not in (tmp_path / "h.tokens").read_bytes()


def test_values_of_headers_are_in_no_file(tmp_path: Path) -> None:
    with answering(Counting()) as server:
        said(server, tmp_path / "h.tokens", headers={"X-Tenant": "blue-whale"}, path="/v1?team=grey-seal")
    data = (tmp_path / "h.tokens").read_bytes()
    assert b"blue-whale" not in data and b"grey-seal" not in data


def test_one_session_keeps_models_with_other_headers_apart() -> None:
    with answering(Counting()) as server:
        session = lq.Session()
        models = [named(server, headers={"X-V": value}) for value in "aba"]
        found = [lq.run_sync(SOURCE, model=model, session=session)["X"] for model in models]
    assert found == ["Number 1.", "Number 2.", "Number 1."]


def test_headers_of_the_environment_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(Counting()) as server:
        found = []
        for value in ("X-V: a", "X-V: b", "X-V: b\nx-v: a\nX-Empty:"):
            monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", value)
            found.append(said(server, tmp_path / "h.tokens"))
        assert found == ["Number 1.", "Number 2.", "Number 1."], "one header, not two"
        said(server, tmp_path / "other.tokens")
        assert server.posts[-1].headers["x-v"] == "a"


def test_a_model_without_headers_keeps_its_fingerprint() -> None:
    """Files that earlier versions wrote stay valid."""
    with answering(Counting()) as server:
        model = OpenAIModel("m", base_url="http://127.0.0.1:1/v1", revision="r")
        assert model.place == "openai/m at http://127.0.0.1:1/v1, r"
        plain, paying = (
            run(named(server, headers=headers).probe()).fingerprint
            for headers in (None, {"OpenAI-Organization": "org-1"})
        )
    assert plain == paying


def test_a_name_that_occurs_twice_in_an_address_is_sent_twice() -> None:
    model = OpenAIModel("m", base_url="http://127.0.0.1:1/v1?tag=a&tag=b")
    assert model._address.query == (("tag", "a"), ("tag", "b"))


@pytest.mark.parametrize("name", ["X-Keyboard", "X-Monkey", "max_tokens", "X-Author", "X-Tokenizer", "X-Design", "v"])
def test_names_of_headers_that_give_no_access(name: str) -> None:
    assert not is_credential(name)
