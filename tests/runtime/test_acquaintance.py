"""A process to which all answers are known asks its server nothing, not even what it is; one that goes on meets it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from tests.servers.kinds import LLAMA_CPP, OPENAI_CHAT, OPENAI_TEXT, Config
from tests.servers.stub import Server, serving

SAYS = "Say: hi\nThen: ho\n" * 9
FIRST = '"Say:[A]" where STOPS_AT(A, "\\n")'
MORE = FIRST + '\n"And then[B]" where STOPS_AT(B, "\\n")'
UNKNOWN = replace(OPENAI_TEXT, about={"v1/models": {"data": [{"id": "stub"}]}})
"""It says nothing about itself."""
COSTLY = pytest.mark.parametrize(
    "config", [OPENAI_CHAT, OPENAI_TEXT, UNKNOWN], ids=["openai chat", "openai text", "unknown"]
)


def process(server: Server, query: str, file: Path, **options: Any) -> lq.Result:
    """A run as in a process of its own: nothing is known but what the file holds."""
    return lq.run_sync(
        query,
        model=lq.model("openai/stub", base_url=server.base_url),
        session=lq.Session(),
        cache=str(file),
        **options,
    )


def touched(server: Server) -> int:
    """Everything that has reached its socket."""
    return server.requests + server.looks


@COSTLY
def test_a_second_process_sends_nothing_at_all(config: Config, tmp_path: Path) -> None:
    with serving(config, SAYS) as server:
        first = process(server, FIRST, tmp_path / "x.tokens")
        before = touched(server)
        again = process(server, FIRST, tmp_path / "x.tokens", max_requests=0)
        assert (again.prompt, touched(server)) == (first.prompt, before)
        assert again.usage.requests == 0


@COSTLY
def test_a_replay_needs_no_server(config: Config, tmp_path: Path) -> None:
    with serving(config, SAYS) as server:
        first = process(server, FIRST, tmp_path / "x.tokens")
    assert process(server, FIRST, tmp_path / "x.tokens", cache_mode="replay").prompt == first.prompt


@COSTLY
def test_what_is_missing_is_asked_for_and_what_it_costs_to_meet_the_server_is_counted(
    config: Config, tmp_path: Path
) -> None:
    with serving(config, SAYS) as server:
        process(server, FIRST, tmp_path / "x.tokens")
        before = touched(server)
        with pytest.raises(lq.BudgetError):
            process(server, MORE, tmp_path / "x.tokens", max_requests=0)
        assert touched(server) == before
        with pytest.raises(lq.BudgetError):
            process(server, MORE, tmp_path / "x.tokens", max_requests=1)
        asked = server.requests
        usage = process(server, MORE, tmp_path / "x.tokens").usage
        assert usage.requests == server.requests - asked > 1 and usage.tokens_from_cache


@COSTLY
def test_a_server_that_became_another_one_is_not_gone_on_with_S4(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "x.tokens"
    with serving(config, SAYS) as server:
        process(server, FIRST, file)
        server.config = replace(config, snapshot="2026-02-02")
        assert "hi" in process(server, FIRST, file).prompt, "all of that is known, and was said by the one before"
        with pytest.raises(lq.ModelError, match="is not what it was when the cache was written") as caught:
            process(server, MORE, file)
        assert "run it again" in (caught.value.hint or "")
        usage = process(server, MORE, file).usage
        assert usage.tokens_from_cache == 0
        before = touched(server)
        process(server, MORE, file)
        assert touched(server) == before


def test_the_session_of_a_run_that_met_another_server_goes_on_with_that_one(tmp_path: Path) -> None:
    file, session = str(tmp_path / "x.tokens"), lq.Session()
    with serving(OPENAI_CHAT, SAYS) as server:
        process(server, FIRST, Path(file))
        server.config = replace(OPENAI_CHAT, snapshot="2026-02-02")
        model = lq.model("openai/stub", base_url=server.base_url)
        with pytest.raises(lq.ModelError, match="is not what it was"):
            lq.run_sync(MORE, model=model, session=session, cache=file)
        assert lq.run_sync(MORE, model=model, session=session, cache=file).usage.tokens_from_cache == 0


def test_a_server_that_tells_freely_what_it_is_is_looked_at_by_every_process_S4(tmp_path: Path) -> None:
    with serving(LLAMA_CPP, SAYS) as server:
        process(server, FIRST, tmp_path / "x.tokens")
        requests, looks = server.requests, server.looks
        process(server, FIRST, tmp_path / "x.tokens")
        assert server.requests == requests and server.looks > looks


def test_a_refresh_meets_the_server_too(tmp_path: Path) -> None:
    with serving(OPENAI_CHAT, SAYS) as server:
        process(server, FIRST, tmp_path / "x.tokens")
        server.config = replace(OPENAI_CHAT, snapshot="2026-02-02")
        process(server, FIRST, tmp_path / "x.tokens", cache_mode="refresh")
        before = touched(server)
        assert process(server, FIRST, tmp_path / "x.tokens").usage.requests == 0
        assert touched(server) == before
