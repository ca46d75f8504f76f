"""A process to which all answers are known asks its server nothing, not even what it is; one that goes on meets it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine import events
from tests.servers.kinds import LLAMA_CPP, OPENAI_CHAT, OPENAI_TEXT, Config
from tests.servers.stub import Server, serving
from tests.servers.voice import Voice

SAYS = "Say: hi\nThen: ho\n" * 9
OTHERWISE = "Say: so\nAnd then yes\n" * 9
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


def plain(text: str) -> str:
    """Without blanks, of which answers of a chat lack the first."""
    return text.replace(" ", "")


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
        before = server.requests
        with pytest.raises(lq.BudgetError):
            process(server, MORE, tmp_path / "x.tokens", max_requests=0)
        assert server.requests == before  # what is free may be asked again
        with pytest.raises(lq.BudgetError):
            process(server, MORE, tmp_path / "x.tokens", max_requests=1)
        asked = server.requests
        usage = process(server, MORE, tmp_path / "x.tokens").usage
        assert usage.requests == server.requests - asked > 1 and usage.tokens_from_cache


CHANGED = "has changed since the cache was written"


@COSTLY
def test_a_server_that_has_changed_ends_the_run_and_the_next_one_asks_anew_S4(config: Config, tmp_path: Path) -> None:
    """No result holds text of two servers, and no query is executed twice."""
    file = tmp_path / "x.tokens"
    with serving(config, SAYS) as server:
        process(server, FIRST, file)
        server.config, server.voice = replace(config, snapshot="2026-02-02"), Voice(lq.ScriptedModel(OTHERWISE))
        assert "hi" in process(server, FIRST, file).prompt, "all of that is known, and was said by the one before"
        with pytest.raises(lq.ModelError, match=CHANGED) as caught:
            process(server, MORE, file)
        assert "run it again" in (caught.value.hint or "") and caught.value.span is not None
        before = server.requests
        result = process(server, MORE, file)
        result.check_ledger()
        assert result.prompt == process(server, MORE, tmp_path / "y.tokens").prompt
        assert plain(result.prompt).startswith("Say:so\nAndthenyes")
        assert result.notices == () and result.usage.requests and result.usage.tokens_from_cache == 0
        assert server.requests > before
        before = touched(server)
        warm = process(server, MORE, file)
        assert (warm.prompt, warm.notices, touched(server)) == (result.prompt, (), before)


@pytest.mark.parametrize("decoder", ["argmax", "sample(n=2, seed=3)"])
def test_a_changed_server_ran_the_python_of_the_query_twice(decoder: str, tmp_path: Path) -> None:
    file, log = tmp_path / "x.tokens", list[str]()
    source = f'{decoder}\n    {FIRST}\n    log.append(A)\n    "And then[B]" where STOPS_AT(B, "\\n")'
    with serving(OPENAI_CHAT, SAYS) as server:
        process(server, f"{decoder}\n    {FIRST}", file)
        server.config = replace(OPENAI_CHAT, snapshot="2026-02-02")
        model = lq.model("openai/stub", base_url=server.base_url)
        with pytest.raises(lq.ModelError, match=CHANGED):
            lq.run_sync(source, {"log": log}, model=model, session=lq.Session(), cache=str(file))
    assert len(log) <= (1 if decoder == "argmax" else 2)


def test_a_reader_of_events_sees_the_text_of_a_run_once(tmp_path: Path) -> None:
    """S33: what was shown is neither taken back nor said again."""
    file = str(tmp_path / "x.tokens")
    with serving(OPENAI_CHAT, SAYS) as server:
        process(server, FIRST, Path(file))
        server.config = replace(OPENAI_CHAT, snapshot="2026-02-02")
        model, seen = lq.model("openai/stub", base_url=server.base_url), list[events.Event]()

        async def read() -> None:
            async for event in lq.compile(MORE).stream(model=model, session=lq.Session(), cache=file):
                seen.append(event)

        with pytest.raises(lq.ModelError, match=CHANGED):
            asyncio.run(read())
    shown = "".join(event.text for event in seen if isinstance(event, events.Text))
    assert plain(shown).startswith("Say:hi") and shown.count("Say") == 1
    assert not [event for event in seen if isinstance(event, events.Pruned)]


def test_rows_behind_a_changed_server_fail_once(tmp_path: Path) -> None:
    """The rows that met the new server end; the others, and those of the next command, have its answers."""
    file, row = str(tmp_path / "x.tokens"), '"{number} Say: hi\\nTell:[X]" where len(X) < 4'
    with serving(OPENAI_CHAT, "Say: hi\nTell: ho\n") as server:
        process(server, FIRST, Path(file))
        server.config = replace(OPENAI_CHAT, snapshot="2026-02-02")
        model, rows = lq.model("openai/stub", base_url=server.base_url), [{"number": each} for each in range(20)]
        options: Any = {"model": model, "session": lq.Session(), "cache": file, "concurrency": 2}
        found = lq.compile(row).map_sync(rows, on_error="keep", **options)
        failed = [each for each in found if not isinstance(each, lq.Result)]
        assert 0 < len(failed) <= 2
        again = lq.compile(row).map_sync(rows, **options)
        assert len(again) == 20


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


def test_a_server_that_was_taken_for_another_one_once_locked_its_user_out(tmp_path: Path) -> None:
    """The capabilities that the next process trusts are those that the last probe found, whatever they cost."""
    file = tmp_path / "x.tokens"
    with serving(LLAMA_CPP, SAYS) as server:
        server.failing["props"] = [404]
        process(server, FIRST, file)
        with pytest.raises(lq.ModelError, match=CHANGED):
            process(server, MORE, file)
        assert "ho" in process(server, MORE, file).prompt
        before = server.requests
        process(server, MORE, file)
        assert server.requests == before
