"""Proxies and certificates that the environment names: a sentence each, and none for a server on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

import lmql_lite as lq
from lmql_lite.models.openai.address import is_on_this_machine
from tests.models.api import choice
from tests.servers.answering import NOT_FOUND, Reply, Request, answering
from tests.tables import cases

SOURCE = '"Hi[X]" where len(X) < 5'
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
pytestmark = pytest.mark.usefixtures("plain_environment")


@pytest.fixture
def plain_environment(quick_and_alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXIES, *map(str.lower, PROXIES), *CERTIFICATES):
        monkeypatch.delenv(name, raising=False)


def asked(url: str) -> lq.ModelError:
    with pytest.raises(lq.ModelError) as caught:
        lq.run_sync(SOURCE, model=lq.model("openai/m", base_url=url), session=lq.Session())
    assert "\n" not in caught.value.message and caught.value.hint
    return caught.value


def speaking(request: Request) -> Reply:
    if request.method == "GET":
        return NOT_FOUND
    return Reply(200, [choice(text="!", finish_reason="stop"), "[DONE]"])


@cases("models/network_environment", "a wrong proxy is one sentence and a server on this machine does not need it")
def test_a_wrong_proxy_is_one_sentence_and_a_server_on_this_machine_does_not_need_it(
    name: str, value: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    error = asked("http://example.invalid/v1")
    assert sentence in error.message and "HTTP_PROXY" in error.report() and "secret" not in error.report()
    with answering(speaking) as server:
        for host in ("127.0.0.1", "localhost"):
            model = lq.model("openai/m", base_url=server.base_url.replace("127.0.0.1", host))
            assert lq.run_sync(SOURCE, model=model, session=lq.Session())["X"] == "!"


def test_a_server_that_NO_PROXY_excepts_is_asked_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(speaking) as server:
        monkeypatch.setenv("HTTP_PROXY", server.root)
        monkeypatch.setenv("NO_PROXY", "other, example.invalid")
        assert "no server answers" in asked("http://example.invalid/v1").message and not server.requests


@pytest.mark.parametrize("key", ["sk-0123456789", ""])
def test_a_proxy_gets_the_requests_of_other_machines(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(speaking) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.root)
        model = lq.model("openai/m", base_url="http://example.invalid/v1", api_key=key or None)
        assert lq.run_sync(SOURCE, model=model, session=lq.Session())["X"] == "!"
        assert proxy.posts


HERE = ("localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "::1", "0.0.0.0")
ELSEWHERE = ("localhost.example", "notlocalhost", "128.0.0.1", "10.0.0.1", "::2", "127", "")


def test_names_of_this_machine() -> None:
    assert all(map(is_on_this_machine, HERE)) and not any(map(is_on_this_machine, ELSEWHERE))


@pytest.mark.parametrize("kind", ["nothing", "rubbish", "empty", "a folder"])
def test_a_file_of_certificates_that_cannot_be_read_is_one_sentence(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "certificates.pem"
    if kind == "a folder":
        path.mkdir()
    elif kind != "nothing":
        path.write_text("rubbish" if kind == "rubbish" else "")
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    error = asked("https://example.invalid/v1")
    assert f"no certificates can be read from '{path}'" in error.message
    assert "unset SSL_CERT_FILE" in (error.hint or "")
    assert "no server answers" in asked("http://example.invalid/v1").message
    for url in ("http://127.0.0.1:9/v1", "https://localhost:9/v1", "https://[::1]:9/v1"):
        assert "no server answers" in asked(url).message
    with answering(speaking) as server:
        assert lq.run_sync(SOURCE, model=lq.model("openai/m", base_url=server.base_url), session=lq.Session())["X"]
