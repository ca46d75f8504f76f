"""Trees that several processes share through the rows of a server that forgets, hangs and comes back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

import lmql_lite as lq
from lmql_lite.apps.cache_commands import cache
from lmql_lite.cache.tokens.inspect import read_file
from lmql_lite.cache.tokens.server import TreeServer
from lmql_lite.cache.tokens.trees import ModelTrees
from lmql_lite.errors import CacheError
from tests.cache.tokens.process import VOCABULARY, Clock, Process, at, head, said
from tests.store.redis_server import BreakerClock, RedisServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as running:
        yield running


def shared(server: RedisServer, work: Callable[..., Awaitable[None]], many: int = 2) -> None:
    """Runs `work` with processes that share the rows of a server."""

    async def main() -> None:
        clock = Clock()
        opened = [await ModelTrees.open(f"{server.url}/trees", clock=clock) for _ in range(many)]
        try:
            await work(*(Process(trees, clock) for trees in opened))
        finally:
            for trees in opened:
                await trees.close()

    asyncio.run(main())


def test_three_writers_at_once_keep_everything(server: RedisServer) -> None:
    async def work(*processes: Process) -> None:
        async def learn(number: int, process: Process) -> None:
            for token in range(30):
                await process.learn(token, number, token, token + 1)

        await asyncio.gather(*(learn(number, process) for number, process in enumerate(processes)))
        for process in processes:
            await process.trees.follow()
            check(process)

    def check(process: Process) -> None:
        assert all(said(process.tree, n, t, t + 1) == t for n in range(3) for t in range(30))
        assert not process.trees.notices

    async def fresh(process: Process) -> None:
        await process.trees.follow()
        check(process)

    shared(server, work, 3)
    shared(server, fresh, 1)


def test_a_refresh_takes_the_place_of_what_all_others_knew(server: RedisServer) -> None:
    async def work(one: Process, two: Process) -> None:
        await one.learn(7, 1, 2)
        await two.trees.follow()
        await two.refresh(lambda tree: tree.add_scores(at(tree, 1, 2), head(9), run=1))
        await two.save()
        await one.trees.follow()
        assert said(one.tree, 1, 2) == said(two.tree, 1, 2) == 9

    shared(server, work)


def test_while_the_server_is_away_everybody_works_on_and_appends_later(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = BreakerClock(monkeypatch)

    async def work(one: Process, two: Process) -> None:
        async def learn_alone(token: int, *path: int) -> None:
            one.tree.add_scores(at(one.tree, *path), head(token), run=1)
            assert not await one.trees.save("model", "a model", VOCABULARY)

        await one.learn(7, 1, 2)
        await two.trees.follow()
        server.hang()
        await learn_alone(8, 1, 2, 7)
        await learn_alone(9, 1, 2, 7, 8)
        assert said(one.tree, 1, 2, 7, 8) == 9 and "does not answer" in one.trees.notices[0]
        server.wake()
        clock.now += 60.0
        await two.learn(5, 3)
        await one.trees.follow()
        assert await one.trees.save("model", "a model", VOCABULARY), "what waits is written, though nothing is new"
        await two.trees.follow()
        assert [said(two.tree, *path) for path in ((1, 2), (1, 2, 7), (1, 2, 7, 8), (3,))] == [7, 8, 9, 5]
        assert said(one.tree, 3) == 5

    shared(server, work)


@pytest.mark.parametrize("loss", ["flush", "restart"])
def test_a_server_that_forgets_is_told_again_what_runs_use(
    server: RedisServer, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = pytest.importorskip("redis")
    clock = BreakerClock(monkeypatch)

    async def work(one: Process, two: Process) -> None:
        await one.learn(7, 1, 2)
        await one.learn(8, 1, 2, 7)
        await two.trees.follow()
        if loss == "restart":
            server.stop()
            server.start()
        else:
            client = redis.Redis.from_url(server.url)
            client.flushall()
            client.close()
        for _ in range(2):
            clock.now += 60.0
            await one.trees.follow()
        assert said(one.tree, 1, 2) == 7  # from memory; what is used is written again
        await one.learn(9, 5)
        await two.trees.follow()
        assert said(two.tree, 5) == 9 and said(two.tree, 1, 2) == 7

    shared(server, work)

    async def fresh(process: Process) -> None:
        await process.trees.follow()
        assert said(process.tree, 5) == 9 and said(process.tree, 1, 2) == 7
        assert said(process.tree, 1, 2, 7) is None  # nobody used it since

    shared(server, fresh, 1)


def test_above_the_cap_the_oldest_runs_go(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    redis = pytest.importorskip("redis")
    most = 4000
    monkeypatch.setattr("lmql_lite.cache.tokens.trees.TreeServer", partial(TreeServer, max_bytes=most))
    sizes = []

    async def work(one: Process, two: Process) -> None:
        client = redis.Redis.from_url(server.url)
        for token in range(60):
            await one.learn(token % 50, 1, token)
            await two.trees.follow()
            assert said(two.tree, 1, token) == token % 50  # what was kept is read by the other
            sizes.append(int(client.hget("lmql_lite:{trees}:state", "bytes")))
        assert len(client.keys("*")) < 100
        client.close()

    shared(server, work)
    assert max(sizes) <= most and sizes != sorted(sizes)

    async def fresh(process: Process) -> None:
        await process.trees.follow()
        assert said(process.tree, 1, 59) == 9 and said(process.tree, 1, 0) is None

    shared(server, fresh, 1)


def test_a_known_text_takes_one_round_trip_for_many_tokens(server: RedisServer) -> None:
    path = list(range(50))

    async def write(one: Process) -> None:
        for depth in range(50):
            one.tree.add_scores(at(one.tree, *path[:depth]), head(depth), run=1)
        await one.save()

    async def read(one: Process) -> None:
        rows = one.trees._rows
        assert isinstance(rows, TreeServer)
        asked, real = [], rows._asked
        rows._asked = lambda *given: asked.append(1) or real(*given)  # type: ignore[method-assign, func-returns-value]
        await one.trees.follow()
        assert [said(one.tree, *path[:depth]) for depth in range(50)] == path
        assert len(asked) < 6

    shared(server, write, 1)
    shared(server, read, 1)


def test_commands_read_the_rows_and_do_not_change_them(server: RedisServer, tmp_path: Path) -> None:
    async def work(one: Process) -> None:
        for token in range(5):
            await one.learn(token, 1, token)

    shared(server, work, 1)
    url, file = f"{server.url}/trees", tmp_path / "x.tokens"
    found = read_file(url)
    assert found.is_sound and found.count("top-k") == 5
    run = CliRunner()
    assert run.invoke(cache, ["stats", url]).exit_code == 0
    assert run.invoke(cache, ["merge", url, "-o", str(file)]).exit_code == 0 and read_file(file).count("top-k") == 5
    for command in (["compact", url], ["clear", "--yes", url]):
        refused = run.invoke(cache, command)
        assert refused.exit_code == 6 and "where files cannot be changed" in refused.output
    for wrong in (f"{server.url}/nothing", "redis://127.0.0.1:1/trees"):
        with pytest.raises(CacheError, match=r"has no rows 'nothing'|does not answer"):
            read_file(wrong)


def test_damaged_and_foreign_rows_are_misses(server: RedisServer) -> None:
    redis = pytest.importorskip("redis")

    async def work(one: Process, two: Process) -> None:
        client = redis.Redis.from_url(server.url)
        await one.learn(7, 1)
        await one.learn(8, 2)
        first = client.lrange("lmql_lite:{trees}:run:1", 0, -1)[0].decode()
        whole = client.hget(f"lmql_lite:{{trees}}:{first}", b"")
        for damaged in (b"garbage", whole[:-1], whole[:-1] + b"\xff"):
            client.hset(f"lmql_lite:{{trees}}:{first}", b"", damaged)
            client.hset(f"lmql_lite:{{trees}}:{first}", b"foreign", b"x")
            await two.trees.follow()
            assert said(two.tree, 1) is None and said(two.tree, 2) == 8
        assert any("holds damaged rows" in notice for notice in two.trees.notices)
        client.close()

    shared(server, work)


@pytest.mark.parametrize(
    "url", ["redis://", "redis://host", "redis://host:1/", "redis://host:1/a/b", "redis://host:x/a"]
)
def test_a_url_without_a_name_is_an_error(url: str) -> None:
    with pytest.raises(CacheError, match="names no rows on a server"):
        TreeServer(url)


def test_durable_is_refused() -> None:
    with pytest.raises(CacheError, match="cannot be durable"):
        TreeServer("redis://localhost:6379/name", durable=True)


QUERY = 'argmax\n    "The sky is[X]"\nwhere\n    len(TOKENS(X)) < 6\n'


def test_runs_share_a_server_and_say_the_same_without_it(server: RedisServer) -> None:
    url = f"{server.url}/runs"
    alone = lq.run_sync(QUERY, model="demo", cache=False)
    first = lq.run_sync(QUERY, model="demo", cache=url)
    assert first.prompt == alone.prompt and not first.notices
    script = f"""
import lmql_lite as lq
result = lq.run_sync({QUERY!r}, model="demo", cache={url!r})
assert result.prompt == {alone.prompt!r} and result.usage.tokens_from_model == 0, result.usage
print("known")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "known\n"), done.stderr
    server.stop()
    later = lq.run_sync(QUERY.replace("sky", "sea"), model="demo", cache=url)
    assert later.prompt == lq.run_sync(QUERY.replace("sky", "sea"), model="demo", cache=False).prompt
    assert any("does not answer" in notice for notice in later.notices)
