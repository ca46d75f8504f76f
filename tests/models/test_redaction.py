"""One scrub of keys: in errors and files, in any form in which a server says them again."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lmql_lite as lq
from lmql_lite.errors import ModelError
from lmql_lite.models.openai.address import Address
from lmql_lite.models.openai.model import OpenAIModel
from lmql_lite.redaction import is_secret, redacted, without
from tests.models.api import choice, run, sse
from tests.servers.answering import NOT_FOUND, Reply, Request, answering
from tests.tables import cases

pytestmark = pytest.mark.usefixtures("quick_and_alone")
KEY = "0123456789abcdef0123456789abcdef"
"""Of no known shape, as Azure's are."""
PRINTABLE = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40)


@settings(deadline=None)
@given(PRINTABLE, st.binary(max_size=7), st.binary(max_size=7))
def test_a_key_is_found_in_every_form(key: str, before: bytes, after: bytes) -> None:
    begin, end = -(-len(before) * 8 // 6), (len(before) + len(key)) * 8 // 6
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        data = encode(before + key.encode() + after)
        assert data.decode()[begin:end] not in without(data.decode(), key)
    for spelled in (key, quote(key), quote(key, safe=""), json.dumps(key)[1:-1].replace("/", "\\/")):
        assert without(f"it is {spelled}", key) == "it is [hidden]"


def test_what_is_no_secret_is_shown() -> None:
    assert without("an example of x", "x") == "an example of x"
    assert without("nothing", "") == "nothing"
    assert redacted("Bearer abcdefgh sk-12345678 hf_abcdefghij") == "Bearer [hidden] [hidden] [hidden]"
    assert redacted("key_of_a_dict, sk-1, a token") == "key_of_a_dict, sk-1, a token"
    assert all(map(is_secret, ("api_key", "X-Api-Key", "Authorization", "access_token", "client_secret", "token")))
    assert not any(map(is_secret, ("max_tokens", "key", "tokenizer", "api-version", "X-Title")))


@cases("models/redaction", "a key that the server said again was shown", globals())
def test_a_key_that_the_server_said_again_was_shown(events: list[object], tmp_path: Path) -> None:
    """R11: on the terminal, in events, and in every kind of trace."""

    def answer(request: Request) -> Reply:
        if request.method == "GET":
            return Reply(200, {"data": [{"id": "m", "owned_by": "vllm"}]}) if "models" in request.path else NOT_FOUND
        return Reply(200, sse(*events).encode())

    with answering(answer) as server:
        for suffix in ("json", "lqrun", "html"):
            trace = tmp_path / f"x.{suffix}"
            with pytest.raises(ModelError) as caught:
                model = OpenAIModel("m", base_url=server.base_url, api_key=KEY)
                lq.run_sync('"Hi:[X]"', model=model, trace=str(trace), max_tokens=3)
            shown = caught.value.report() + str(caught.value.args) + trace.read_text("utf-8")
            for part in (KEY, KEY[:12], base64.b64encode(KEY.encode()).decode()[:16]):
                assert part not in shown


@pytest.mark.parametrize("models", [{"data": KEY}, {"data": [{"id": KEY, "owned_by": "vllm"}]}, [KEY]])
def test_a_key_among_the_models_was_shown(models: object) -> None:
    def answer(request: Request) -> Reply:
        found = {"/v1/models": models, "/version": {"version": "0.11.2"}}.get(request.path)
        return NOT_FOUND if found is None else Reply(200, found)

    with answering(answer) as server, pytest.raises(ModelError) as caught:
        run(OpenAIModel("m", base_url=server.base_url, api_key=KEY).probe())
    assert KEY not in caught.value.report() and "[key]" in caught.value.report()


@cases("models/redaction", "an address that is none was quoted with its password")
def test_an_address_that_is_none_was_quoted_with_its_password(url: str) -> None:
    """R11."""
    with pytest.raises(ModelError) as caught:
        Address.of(url.format(key=KEY), None)
    assert KEY not in caught.value.report()


def test_a_key_in_the_path_of_an_address_was_written_into_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R11. Two keys are two places."""
    one, other = (Address.of(f"http://host/{key}/v1", None) for key in (KEY, KEY[::-1]))
    assert KEY not in one.shown and one.shown != other.shown
    assert one.url == f"http://host/{KEY}/v1"

    def answer(request: Request) -> Reply:
        if request.method == "GET":
            listed = {"data": [{"id": "m", "owned_by": "someone"}]}
            return Reply(200, listed) if request.path.endswith("/v1/models") else NOT_FOUND
        return Reply(200, [choice(text="Hi"), choice(text="", finish_reason="stop")])

    with answering(answer) as server:
        monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Api-Key: another-secret")
        model = OpenAIModel("m", base_url=f"{server.root}/{KEY}/v1")
        lq.run_sync('"Hi:[X]"', model=model, cache=str(tmp_path / "x.tokens"))
        kept = (tmp_path / "x.tokens").read_bytes()
        assert KEY.encode() not in kept and b"another-secret" not in kept
        assert server.requests[-1].headers["x-api-key"] == "another-secret"


def test_a_redirect_is_not_followed_so_that_nobody_else_gets_the_key() -> None:
    with answering(lambda request: Reply(307, None, {"Location": "http://127.0.0.1:9/v1/models"})) as server:
        with pytest.raises(
            ModelError, match=r"refers to http://127\.0\.0\.1:9/v1/models, which is not followed"
        ) as caught:
            run(OpenAIModel("m", base_url=server.base_url, api_key=KEY).probe())
        assert caught.value.hint and len(server.requests) == 1


def test_a_proxy_that_leads_nowhere_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """R22."""
    monkeypatch.setenv("HTTP_PROXY", f"http://user:{KEY}@127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    with pytest.raises(ModelError, match=r"no server answers at http://example\.invalid/v1") as caught:
        run(OpenAIModel("m", base_url="http://example.invalid/v1").probe())
    assert "HTTP_PROXY" in (caught.value.hint or "") and "NO_PROXY" in (caught.value.hint or "")
    assert KEY not in caught.value.report()
