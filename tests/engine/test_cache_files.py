"""`cache="x.tokens"`: what a model said outlives the process, and only what is new is asked."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import lmql_lite as lq
from lmql_lite.apps.cli import main
from lmql_lite.cache.tokens.inspect import cleared, compacted, read_file
from tests.cache.tokens.entries import damage

JOKE = """
argmax(cache="joke.tokens")
    "A good dad joke. A indicates the punchline\\nQ:[JOKE]\\nA:[PUNCHLINE]"
where
    len(JOKE) < 60 and STOPS_AT(JOKE, "?") and STOPS_AT(PUNCHLINE, "\\n") and len(PUNCHLINE) > 1
"""


def run(source: str, **options: object) -> lq.Result:
    """In a process of its own, as far as the cache can tell."""
    return lq.run_sync(source, **{"session": lq.Session(), **options})  # type: ignore[arg-type]


def test_a_second_process_makes_no_call(tmp_path: Path) -> None:
    first, second = run(JOKE), run(JOKE)
    assert first.usage.forward_passes and second.usage.forward_passes == 0
    assert second.prompt == first.prompt
    assert [token.logprob for token in second.tokens] == [token.logprob for token in first.tokens]
    assert second.usage.tokens_from_cache == first.usage.tokens_from_model


def test_a_file_whose_tables_another_process_is_making_could_not_be_read(tmp_path: Path) -> None:
    """It already has a page, and no table yet."""
    with closing(sqlite3.connect("joke.tokens")) as other:
        other.execute("PRAGMA journal_mode = WAL")
        assert Path("joke.tokens").stat().st_size
        assert run(JOKE).notices == ()
    assert run(JOKE).usage.forward_passes == 0


def test_an_edited_later_text_is_all_that_is_asked_for(tmp_path: Path) -> None:
    whole = run(JOKE).usage.forward_passes or 0
    edited = run(JOKE.replace("\\nA:", "\\nAnswer:"))
    assert 0 < (edited.usage.forward_passes or 0) < whole
    assert (edited.usage.tokens_from_cache or 0) > 0
    assert edited.prompt == run(JOKE.replace("\\nA:", "\\nAnswer:"), cache=False).prompt


def test_read_only_writes_nothing(tmp_path: Path) -> None:
    run(JOKE)
    before = (tmp_path / "joke.tokens").read_bytes()
    other = JOKE.replace("good", "bad")
    assert run(other, cache_mode="ro").usage.forward_passes
    assert (tmp_path / "joke.tokens").read_bytes() == before


def test_a_replay_says_what_it_does_not_know(tmp_path: Path) -> None:
    run(JOKE)
    assert run(JOKE, cache_mode="replay").usage.forward_passes == 0
    with pytest.raises(lq.CacheError, match=r'the recording has no answer of demo at token .* asked " b"'):
        run(JOKE.replace("good", "bad"), cache_mode="replay")
    with pytest.raises(lq.InputError, match="cache_mode='replay' needs a cache file"):
        run('"[X]"', cache_mode="replay")


def test_what_was_said_before_an_error_stays(tmp_path: Path) -> None:
    source = '"Say:[A]" where len(A) < 9\nraise ValueError(A)'
    with pytest.raises(ValueError):
        run(source, cache="x.tokens")
    assert run('"Say:[A]" where len(A) < 9', cache="x.tokens").usage.forward_passes == 0


def test_sessions_at_once_share_a_file_and_lose_nothing(tmp_path: Path) -> None:
    texts = [f'"Say {number}:[A]" where len(A) < 12' for number in range(6)]

    async def crowd() -> list[lq.Result]:
        return await asyncio.gather(*(lq.run(text, cache="x.tokens", session=lq.Session()) for text in texts))

    results = asyncio.run(crowd())
    for text, result in zip(texts, results, strict=True):
        again = run(text, cache="x.tokens")
        assert again.prompt == result.prompt and again.usage.forward_passes == 0


MANY = """
import asyncio
import os
import lmql_lite as lq

async def crowd():
    session = lq.Session()
    texts = [f'"Say {number}:[A]" where len(A) < 3' for number in range(40)]
    await asyncio.gather(*(lq.run(text, cache="x.tokens", session=session) for text in texts))
    files = "/proc/self/fd"
    if os.path.isdir(files):
        opened = [os.path.realpath(os.path.join(files, each)) for each in os.listdir(files)]
        assert opened.count(os.path.realpath("x.tokens")) == 2, "one connection that reads, one that writes"

asyncio.run(crowd())
"""


def test_more_runs_at_once_than_there_are_threads_do_not_wait_forever(tmp_path: Path, root: Path) -> None:
    subprocess.run([sys.executable, "-c", MANY], cwd=tmp_path, check=True, timeout=60, env={"PYTHONPATH": str(root)})
    assert len(read_file(tmp_path / "x.tokens").models) == 1
    for number in range(40):
        assert run(f'"Say {number}:[A]" where len(A) < 3', cache="x.tokens").usage.forward_passes == 0


def test_a_flipped_bit_costs_a_notice_and_no_result_law_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "joke.tokens"
    first = run(JOKE)
    damage(path)
    with pytest.raises(SystemExit):
        main(["cache", "verify", "joke.tokens"])
    said = capsys.readouterr().out.splitlines()
    assert [line.rsplit(": ", 1)[1] for line in said] == ["its checksum is wrong"]
    second, third = run(JOKE), run(JOKE)
    assert first.prompt == second.prompt == third.prompt
    assert (second.usage.forward_passes, third.usage.forward_passes) == (1, 0)
    (notice,) = second.notices
    assert "joke.tokens: is damaged; unreadable entries are asked for again" in notice
    assert not third.notices and read_file(path).is_sound


def test_a_session_that_was_there_before_the_damage_reads_what_others_write_after_it_and_they_what_it_does(
    tmp_path: Path,
) -> None:
    texts = [f'"Say {number}:[A]" where len(A) < 12' for number in range(5)]
    right = [run(text, cache=False).prompt for text in texts]
    early, late = lq.Session(), lq.Session()

    def prompt(number: int, session: lq.Session, *, is_known: bool) -> str:
        result = lq.run_sync(texts[number], cache="x.tokens", session=session)
        assert (result.usage.forward_passes == 0) == is_known, number
        return result.prompt

    prompt(0, early, is_known=False)
    damage(tmp_path / "x.tokens")
    prompt(1, late, is_known=False)
    prompt(2, early, is_known=False)
    prompt(3, late, is_known=False)
    for session in (early, late, lq.Session()):
        for number in (1, 2, 3):
            assert prompt(number, session, is_known=True) == right[number]
    assert prompt(0, early, is_known=True) == right[0]
    assert prompt(0, late, is_known=False) == right[0]
    assert prompt(0, lq.Session(), is_known=True) == right[0]


@pytest.mark.parametrize("mode", ["ro", "replay"])
def test_reading_an_empty_file_leaves_it_as_it_is(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "joke.tokens"
    path.touch()
    if mode == "ro":
        assert run(JOKE, cache_mode=mode).usage.forward_passes
    else:
        with pytest.raises(lq.CacheError, match="the recording has no answer of"):
            run(JOKE, cache_mode=mode)
    assert path.read_bytes() == b""
    assert run(JOKE).usage.forward_passes and run(JOKE).usage.forward_passes == 0


@pytest.mark.parametrize("how", ["cleared", "removed", "made small"])
def test_what_a_session_runs_again_after_its_file_lost_it_is_in_the_file_again(tmp_path: Path, how: str) -> None:
    path, session = tmp_path / "joke.tokens", lq.Session()
    first = run(JOKE, session=session)
    if how == "cleared":
        cleared(path)
    elif how == "removed":
        path.unlink()
    else:
        compacted(path, max_bytes=0)
    again = run(JOKE, session=session)
    assert again.prompt == first.prompt and again.usage.forward_passes == 0
    other = run(JOKE, cache_mode="replay")
    assert other.prompt == first.prompt and other.usage.forward_passes == 0


def test_what_a_session_no_longer_runs_does_not_come_back_into_a_cleared_file(tmp_path: Path) -> None:
    session = lq.Session()
    run('"Say one:[A]" where len(A) < 12', cache="x.tokens", session=session)
    run('"Say two:[A]" where len(A) < 12', cache="x.tokens", session=session)
    cleared(tmp_path / "x.tokens")
    run('"Say two:[A]" where len(A) < 12', cache="x.tokens", session=session)
    run('"Say three:[A]" where len(A) < 12', cache="x.tokens", session=session)
    for number, is_known in (("two", True), ("three", True), ("one", False)):
        passes = run(f'"Say {number}:[A]" where len(A) < 12', cache="x.tokens", cache_mode="ro").usage.forward_passes
        assert (passes == 0) == is_known, number
