"""`lq cache`: what a file holds, and no command that loses or overwrites anything unasked."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

import lmql_lite as lq
from lmql_lite.cache.tokens.inspect import read_file, write_new
from lmql_lite.cache.tokens.nodes import ScoreEntry
from lmql_lite.cache.tokens.rows import packed_scores, unpacked_scores
from tests.apps.conftest import Shell
from tests.cache.tokens.entries import damage

JOKE = """argmax
    "A good dad joke. A indicates the punchline\\nQ:[JOKE]\\nA:[PUNCHLINE]"
where
    len(JOKE) < 60 and STOPS_AT(JOKE, "?") and STOPS_AT(PUNCHLINE, "\\n") and len(PUNCHLINE) > 1
"""
COMMANDS = ("stats", "verify", "compact", "merge", "export", "clear")


@pytest.fixture
def joke(shell: Shell) -> Shell:
    """A folder with a query and what the demo model said to it."""
    shell.write("joke.lq", JOKE)
    assert shell("run", "joke.lq", "--cache", "joke.tokens").code == 0
    return shell


def hit(shell: Shell, query: str, file: str) -> bool:
    """Whether a process that begins now finds all of a run in the file."""
    try:
        lq.run_sync(shell.folder / query, cache=str(shell.folder / file), cache_mode="replay", session=lq.Session())
    except lq.CacheError:
        return False
    return True


# what stands in a file


def test_the_name_of_a_model_acts_on_no_terminal(shell: Shell) -> None:
    model = lq.ScriptedModel("- a\n", name="evil\x1b[31m")
    lq.run_sync('"Q:[X]" where len(X) < 3', model=model, cache="x.tokens", session=lq.Session())
    ended = shell("cache", "stats", "x.tokens")
    assert all(one.isprintable() or one == "\n" for one in ended.out + ended.err), ended
    assert r"evil\x1b[31m" in ended.out


def test_what_is_left_of_a_damaged_file_is_exported(joke: Shell) -> None:
    damage(joke.folder / "joke.tokens")
    ended = joke("cache", "export", "joke.tokens")
    assert ended.code == 0 and "damaged" in ended.err and "lq cache verify joke.tokens" in ended.err


# rewriting


def test_compact_drops_what_is_old_and_every_other_run_still_hits(shell: Shell) -> None:
    for word in "abcd":
        shell("run", shell.write(f"{word}.lq", f'"Say {word}:[X]" where len(X) < 9'), "--cache", "x.tokens")
    ended = shell("cache", "compact", "x.tokens")
    assert ended.code == 0 and ended.err == ""
    table = [line.replace(",", "").split() for line in ended.out.splitlines()[1:]]
    rows = {what: (int(before), int(after)) for what, before, after in table}
    assert rows["entries"][0] == rows["entries"][1] and rows["bytes"][0] >= rows["bytes"][1]
    assert rows["bytes"][1] == (shell.folder / "x.tokens").stat().st_size
    assert all(hit(shell, f"{word}.lq", "x.tokens") for word in "abcd")
    most = rows["bytes"][1] - 1
    told = json.loads(shell("cache", "compact", "x.tokens", "--max-bytes", str(most), "--json").out)
    assert (shell.folder / "x.tokens").stat().st_size == told["after"]["bytes"] <= most
    assert hit(shell, "d.lq", "x.tokens") and not hit(shell, "a.lq", "x.tokens")
    shell("cache", "compact", "x.tokens", "--max-bytes", "0")
    assert json.loads(shell("cache", "stats", "x.tokens", "--json").out)["topks"] == 0


def test_compact_mends_a_damaged_file_and_says_what_that_costs(joke: Shell) -> None:
    joke("run", joke.write("q.lq", '"Say:[X]" where len(X) < 9'), "--cache", "joke.tokens")
    damage(joke.folder / "joke.tokens")
    ended = joke("cache", "compact", "joke.tokens")
    assert ended.code == 0 and "its unreadable part was dropped" in ended.err
    assert joke("cache", "verify", "joke.tokens").code == 0
    assert hit(joke, "joke.lq", "joke.tokens") and not hit(joke, "q.lq", "joke.tokens")


def test_merge_takes_the_answer_of_the_first_file_where_files_contradict_each_other(joke: Shell) -> None:
    other = read_file("joke.tokens").rows
    for number, (model, written, row) in enumerate(other[:12]):
        scores = unpacked_scores(row.value, model.vocabulary_size).top_k()
        ids = scores.ids.copy()
        ids[0] = 67
        value = packed_scores(ScoreEntry(replace(scores, ids=ids), 0))
        other[number] = model, written, row._replace(value=value)
    write_new(joke.folder / "wrong.tokens", other)
    files = ("joke.tokens", "wrong.tokens")
    assert joke("cache", "merge", *files, "-o", "new.tokens").code == 0
    assert joke("run", "joke.lq", "--cache", "new.tokens", "--cache-mode", "replay").out == joke("run", "joke.lq").out
    merged = json.loads(joke("cache", "merge", *files[::-1], "-o", "last.tokens", "--json").out)
    last = [row for *_, row in read_file("last.tokens").rows]
    assert (merged["models"], merged["entries"]) == (1, len(last))
    assert {row.place: row.value for row in last if not row.question} == {row.place: row.value for *_, row in other}


def test_export_is_one_json_object_per_entry(joke: Shell) -> None:
    ended = joke("cache", "export", "joke.tokens")
    records = [json.loads(line, parse_constant=pytest.fail) for line in ended.out.splitlines()]
    stats = json.loads(joke("cache", "stats", "joke.tokens", "--json").out)
    assert len(records) == stats["topks"] and ended.err == ""
    for record in records:
        assert record["model"] == "demo" and record["kind"] == "top-k" and record["written"] > 10**9
        assert record["place"] != record["parent"] and record["logprob"] <= 0
    assert joke("cache", "export", "joke.tokens", "-o", "x.jsonl").out == ""
    assert (joke.folder / "x.jsonl").read_text("utf-8") == ended.out
    for output in ("x.jsonl", "joke.tokens"):
        again = joke("cache", "export", "joke.tokens", "-o", output)
        assert again.code == 6 and "exists, and is not overwritten" in again.err
    assert joke("cache", "export", "joke.tokens", "-o", "no/x.jsonl").code == 6
    assert hit(joke, "joke.lq", "joke.tokens")


def test_clear_asks_at_a_terminal(joke: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (joke.folder / "joke.tokens").read_bytes()
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    for answer, code in (("n", 130), ("", 130), (None, 130)):
        monkeypatch.setattr("click.termui.visible_prompt_func", lambda prompt, answer=answer: _typed(answer))
        declined = joke("cache", "clear", "joke.tokens")
        assert declined.code == code and declined.out == "", declined
        assert (joke.folder / "joke.tokens").read_bytes() == before
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda prompt: _typed("y"))
    ended = joke("cache", "clear", "joke.tokens")
    assert ended.code == 0 and ended.out.endswith("entries of demo (demo:2c075f5c) dropped, 0 entries left\n")
    assert not hit(joke, "joke.lq", "joke.tokens")
    lq.run_sync(JOKE, cache="joke.tokens", session=lq.Session())
    assert hit(joke, "joke.lq", "joke.tokens")


def _typed(answer: str | None) -> str:
    if answer is None:
        raise EOFError
    return answer


def test_clear_drops_one_model_and_leaves_the_others(joke: Shell) -> None:
    lq.run_sync('"Q:[X]" where len(X) < 3', model=lq.ScriptedModel("a"), cache="joke.tokens", session=lq.Session())
    told = json.loads(joke("cache", "clear", "joke.tokens", "--model", "scripted", "--yes", "--json").out)
    assert told["after"]["entries"] < told["before"]["entries"] and hit(joke, "joke.lq", "joke.tokens")
    assert "scripted" not in joke("cache", "stats", "joke.tokens").out
    assert joke("cache", "clear", "joke.tokens", "--model", "scripted", "--yes").code == 6


# what is no file, or not this one


def files_of(shell: Shell) -> set[str]:
    """Names in the folder, but for what SQLite has beside a file that this process has open."""
    return {file.name for file in shell.folder.iterdir() if not file.name.endswith(("-wal", "-shm"))}


NO_FILES = {
    "missing": "there is no file",
    "strange\udcff\x1bname": "there is no file",
    "folder": "is a directory",
    "text": "is not a .tokens file",
    "newer": "was written by a newer lmql-lite",
    "earlier": "was written by an earlier lmql-lite",
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("what", NO_FILES)
def test_what_is_no_tokens_file_is_named_and_left_alone(joke: Shell, command: str, what: str) -> None:
    path = joke.folder / f"{what}.tokens"
    newer = bytearray((joke.folder / "joke.tokens").read_bytes())
    newer[63] += 1  # its version
    earlier = b"\x93tokens\n\1\0\0\0" + bytes(99)
    planted = {"text": b"my diary", "newer": bytes(newer), "earlier": earlier}.get(what)
    if planted:
        path.write_bytes(planted)
    elif what == "folder":
        path.mkdir()
    before = files_of(joke)
    arguments = ["joke.tokens", str(path), "-o", "new.tokens"] if command == "merge" else [str(path)]
    ended = joke("cache", command, *arguments, *(["--yes"] if command == "clear" else []))
    assert (ended.code, ended.out) == (6, "")
    assert NO_FILES[what] in ended.err and "hint: " in ended.err
    assert files_of(joke) == before and (planted is None or path.read_bytes() == planted)


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
@pytest.mark.parametrize("command", [["compact", "joke.tokens"], ["clear", "joke.tokens", "--yes"]])
def test_a_file_that_may_not_be_rewritten_stays_and_says_so(
    joke: Shell, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (joke.folder / "joke.tokens").read_bytes()
    monkeypatch.setattr("lmql_lite.cache.tokens.tree_file.os.access", lambda path, mode: mode != os.W_OK)
    ended = joke("cache", *command)
    assert ended.code == 6 and "cannot be written" in ended.err and "nothing was changed" in ended.err
    assert (joke.folder / "joke.tokens").read_bytes() == before
