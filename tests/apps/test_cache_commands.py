"""`lq cache`: what a file holds, why a run hits or misses, and no command that loses or overwrites anything unasked."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lmql_lite as lq
from lmql_lite.apps.terminal import ago, written_ago
from lmql_lite.cache.columns import Model
from lmql_lite.cache.compaction import packed, write_new
from lmql_lite.cache.file_contents import ModelEntries, read_file
from lmql_lite.cache.framing import MARK, frame_bytes
from lmql_lite.models.demo import DemoModel
from lmql_lite.models.scripted import ScriptedCompleter
from tests.apps.test_cli import Shell
from tests.cache.batches import batch
from tests.cache.written import write

JOKE = """argmax
    "A good dad joke. A indicates the punchline\\nQ:[JOKE]\\nA:[PUNCHLINE]"
where
    len(JOKE) < 60 and STOPS_AT(JOKE, "?") and STOPS_AT(PUNCHLINE, "\\n") and len(PUNCHLINE) > 1
"""
DRAWN = 'sample(temperature=1.2)\n    "Say {word}:[A][B]"\nwhere len(A) == 3 and len(B) == 3\n'
COMMANDS = ("stats", "verify", "inspect", "explain", "compact", "merge", "export", "clear")


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)


@pytest.fixture
def joke(shell: Shell) -> Shell:
    """A folder with a query and what the demo model said to it."""
    shell.write("joke.lq", JOKE)
    assert shell("run", "joke.lq", "--cache", "joke.tokens").code == 0
    return shell


def entries_of(name: str) -> ModelEntries:
    """Of a file with one model."""
    (one,) = read_file(name).by_model.values()
    return one


def hit(shell: Shell, query: str, file: str) -> bool:
    """Whether a process that begins now finds all of a run in the file."""
    try:
        lq.run_sync(shell.folder / query, cache=str(shell.folder / file), cache_mode="replay", session=lq.Session())
    except lq.CacheError:
        return False
    return True


# what stands in a file


def test_inspect_shows_the_text_as_a_tree_with_what_is_known_in_it(joke: Shell) -> None:
    joke.write("other.lq", JOKE.replace("\\nA:", "\\nAnswer:"))
    joke("run", "other.lq", "--cache", "joke.tokens")
    ended = joke("cache", "inspect", "joke.tokens")
    first, *lines = ended.out.splitlines()
    stats = json.loads(joke("cache", "stats", "joke.tokens", "--json").out)
    assert first.startswith(f"demo (demo:2c075f5c): {stats['topks']} entries, written ")
    assert lines[0].startswith('  <0> "A good dad joke. A indicates the punchline\\nQ:') and "entries below" in lines[0]
    assert [line[:5] for line in lines[1:]] == ['    "'] * 2
    assert sum("Answer:" in line for line in lines) == 1
    told = json.loads(joke("cache", "inspect", "joke.tokens", "--json").out)
    stretches = told["models"][0]["stretches"]
    assert told["ok"] and told["damage"] == 0 and sum(len(one["ids"]) for one in stretches) == stats["nodes"]
    assert sum(one["here"]["topks"] for one in stretches) == stats["topks"]
    assert stretches[0]["text"].startswith("A good dad joke") and stretches[1]["parent"] == 0


def test_inspect_shows_the_largest_lines_and_says_what_it_leaves_out(joke: Shell) -> None:
    for text in ("Tell", "Tell me", "Sing"):
        joke("run", joke.write("q.lq", f'"{text}:[X]" where len(X) < 9'), "--cache", "joke.tokens")
    ended = joke("cache", "inspect", "joke.tokens", "--limit", "2")
    assert len(ended.out.splitlines()) == 4 and ended.out.splitlines()[-1].endswith("more branches")
    assert "dad joke" in ended.out  # the one of which most is known
    assert len(joke("cache", "inspect", "joke.tokens", "--depth", "0").out.splitlines()) == 3
    assert joke("cache", "inspect", "joke.tokens", "--model", "demo:2c").code == 0
    other = joke("cache", "inspect", "joke.tokens", "--model", "gpt")
    assert other.code == 6 and "it knows demo (demo:2c075f5c)" in other.err


def test_a_model_whose_tokenizer_is_not_at_hand_is_shown_by_numbers(shell: Shell) -> None:
    model = lq.ScriptedModel("- a\n", name="evil\x1b[31m")
    lq.run_sync('"Q\x1b[[2J:\\n[X]" where len(X) < 3', model=model, cache="x.tokens", session=lq.Session())
    lq.run_sync('"Q\x1b[[2J\u202e:\\n[X]" where len(X) < 3', cache="x.tokens", session=lq.Session())
    for command in (["inspect", "x.tokens"], ["stats", "x.tokens"], ["inspect", "x.tokens", "--model", "y"]):
        ended = shell("cache", *command)
        assert all(one.isprintable() or one == "\n" for one in ended.out + ended.err), ended
        assert r"evil\x1b[31m" in ended.out + ended.err
    ended = shell("cache", "inspect", "x.tokens")
    assert "[0 83 " in ended.out and "its tokens are shown as numbers" in ended.err
    assert r"Q\x1b[2J\u202e:\n" in ended.out


def test_an_empty_file_and_a_damaged_one_are_shown_as_they_are(joke: Shell) -> None:
    joke.write("empty.tokens", b"")
    assert joke("cache", "inspect", "empty.tokens").out == "the file is empty: nothing has been generated yet\n"
    assert joke("cache", "export", "empty.tokens").out == ""
    assert "no entries" not in joke("cache", "compact", "empty.tokens").out
    data = bytearray((joke.folder / "joke.tokens").read_bytes())
    data[-20] ^= 1
    joke.write("joke.tokens", bytes(data))
    for command in ("inspect", "export"):
        ended = joke("cache", command, "joke.tokens")
        assert ended.code == 0 and "damaged" in ended.err and "lq cache verify joke.tokens" in ended.err


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-5, "just now"),
        (0.5, "just now"),
        (1, "1 second ago"),
        (59, "59 seconds ago"),
        (60, "1 minute ago"),
        (7199, "1 hour ago"),
        (7200, "2 hours ago"),
        (86_399, "23 hours ago"),
        (86_400 * 400, "400 days ago"),
    ],
)
def test_ages_are_said_in_their_largest_unit(seconds: float, said: str) -> None:
    assert ago(seconds) == said


def test_times_that_are_not_known_are_said_so() -> None:
    assert written_ago(0, 0, 100) == "written at an unknown time"
    assert written_ago(0, 40, 100) == "written between an unknown time and 1 minute ago"
    assert written_ago(38, 39, 100) == "written 1 minute ago"


# why a run hits or misses


def test_a_run_that_is_known_is_explained_without_asking_or_writing(
    joke: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DemoModel, "score", None)
    before = (joke.folder / "joke.tokens").read_bytes()
    ended = joke("cache", "explain", "joke.lq", "--cache", "joke.tokens")
    assert ended.code == 0 and ended.err == ""
    first, second, last = ended.out.splitlines()
    assert first.startswith("[JOKE]       line 2: ") and " tokens known, written " in first
    assert second.startswith("[PUNCHLINE]  line 2: ")
    assert last == "all is known: this run asks the model for nothing"
    told = json.loads(joke("cache", "explain", "joke.lq", "--cache", "joke.tokens", "--json").out)
    assert told["complete"] and told["miss"] is None and all(hole["complete"] for hole in told["holes"])
    assert 0 < told["holes"][0]["oldest"] <= told["holes"][0]["newest"]
    assert joke("cache", "explain", "joke.lq", "--cache", "joke.tokens", "--model", "demo").code == 0
    assert (joke.folder / "joke.tokens").read_bytes() == before


def test_ages_are_those_of_the_entries_that_a_hole_uses_S4(joke: Shell) -> None:
    one = entries_of("joke.tokens")
    (joke.folder / "joke.tokens").unlink()
    write_new(joke.folder / "joke.tokens", packed([replace(one, written=np.full(len(one), 10**9))])[0])
    more = JOKE.replace("[PUNCHLINE]", "[PUNCHLINE] Ha[MORE]") + " and len(MORE) < 9"
    joke("run", joke.write("more.lq", more), "--cache", "joke.tokens")
    told = json.loads(joke("cache", "explain", "more.lq", "--cache", "joke.tokens", "--json").out)
    joke_hole, punchline, more = told["holes"]
    assert joke_hole["oldest"] == joke_hole["newest"] == punchline["newest"] == 10**9
    assert more["oldest"] > 10**9
    assert "days ago" in joke("cache", "explain", "more.lq", "--cache", "joke.tokens").out


def explained(shell: Shell, query: str, *options: str) -> tuple[int, str]:
    ended = shell("cache", "explain", shell.write("asked.lq", query), *options)
    assert ended.code == (0 if "all is known" in ended.out else 6), ended
    assert hit(shell, "asked.lq", options[1]) == (ended.code == 0)
    return ended.code, ended.out


def test_a_miss_says_at_which_token_another_text_was_asked(joke: Shell) -> None:
    code, out = explained(joke, JOKE.replace("good", "bad"), "--cache", "joke.tokens")
    assert (code, out) == (
        6,
        "[JOKE]  line 2: 0 tokens known; the next one is not known\n"
        '  at token 3, after "A": stored " good", asked " b"\n',
    )
    code, out = explained(joke, JOKE.replace("\\nA:", "\\nAnswer:"), "--cache", "joke.tokens")
    first, second, why = out.splitlines()
    assert " tokens known, written " in first
    assert second == "[PUNCHLINE]  line 2: 0 tokens known; the next one is not known"
    assert why.endswith('?\\n": stored "A", asked "Answer"')
    told = json.loads(joke("cache", "explain", "asked.lq", "--cache", "joke.tokens", "--json").out)
    assert told["miss"]["reason"] == "prefix" and told["miss"]["asked"]["text"] == "Answer"
    assert [one["text"] for one in told["miss"]["stored"]] == ["A"] and not told["complete"]


def test_a_miss_says_that_the_place_is_known_and_the_question_is_another(shell: Shell) -> None:
    shell.write("q.lq", DRAWN)
    for drawn in ("1", "2"):
        assert shell("run", "q.lq", "--var", "word=x", "--cache", "x.tokens", "--seed", drawn).code == 0
    ended = shell("cache", "explain", "q.lq", "--var", "word=x", "--cache", "x.tokens", "--seed", "2")
    assert ended.code == 0 and ended.err == ""
    reasons = set()
    for seed in range(3, 30):
        command = ["explain", "q.lq", "--var", "word=x", "--cache", "x.tokens", "--seed", str(seed), "--json"]
        miss = json.loads(shell("cache", *command).out)["miss"]
        if miss is not None and miss["reason"] == "question":
            reasons.add(miss["sentences"][0].partition(": ")[2].partition(f" and seed {seed}")[0])
    assert any(reason.startswith("stored the scores of its 32 best tokens") for reason in reasons), reasons
    assert any("answers sampled under seed " in reason for reason in reasons), reasons


def test_a_condition_that_the_best_tokens_cannot_meet_is_another_question(joke: Shell) -> None:
    query = '"A good dad joke. A indicates the punchline\\nQ:[JOKE]" where JOKE in ["zz", "xx"]'
    code, out = explained(joke, query, "--cache", "joke.tokens")
    assert code == 6 and out.splitlines()[1].endswith(
        "best tokens, and that does not decide the conditions of this hole"
    )


def test_a_seed_of_its_own_is_named_where_a_run_draws_one(shell: Shell) -> None:
    shell.write("q.lq", DRAWN)
    shell("run", "q.lq", "--var", "word=x", "--cache", "x.tokens")
    ended = shell("cache", "explain", "q.lq", "--var", "word=x", "--cache", "x.tokens")
    assert "each run of this query draws its own seed; this is for seed " in ended.err


def test_what_a_server_said_is_explained_without_asking_it(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ScriptedCompleter("Things:\n- Sun\n- Towel\n")
    monkeypatch.setattr("lmql_lite.engine.session.load", lambda name: server)
    query = '"Things:\\n-[X]" where STOPS_AT(X, "\\n")'
    shell.write("q.lq", query)
    assert shell("run", "q.lq", "--model", "server", "--cache", "x.tokens").out == "Things:\n- Sun\n"
    asked = server.requests

    def told(source: str) -> list[str]:
        shell.write("asked.lq", source)
        return shell("cache", "explain", "asked.lq", "--cache", "x.tokens", "--model", "server").out.splitlines()

    assert told(query)[-1].startswith("all is known")
    assert told(query.replace("Things", "Thongs"))[1] == '  at byte 3, after "Th": stored "i", asked "o"'
    other = told('"Things:\\n-[X]" where X in [" a", " b"]')
    assert other[1].endswith(
        "stored what is said without conditions, and that does not decide the conditions of this hole"
    )
    assert server.requests == asked
    assert shell("cache", "inspect", "x.tokens").out.splitlines()[1].startswith('  "Things:\\n- Sun')


def test_a_file_that_knows_other_models_only_says_which(shell: Shell) -> None:
    model = lq.ScriptedModel("- a\n")
    query = '"Things:\\n[X]" where len(X) < 3'
    lq.run_sync(query, model=model, cache="x.tokens", session=lq.Session())
    code, out = explained(shell, query, "--cache", "x.tokens")
    assert code == 6 and "x.tokens holds nothing of demo (demo:2c075f5c, 1,536 tokens)" in out
    assert f"it knows scripted ({model.fingerprint[:17]}), {len(model.tokenizer.vocabulary)} tokens" in out
    namesake = Model("demo:0123456789abcdef", "demo", 9)
    write(shell.folder / "y.tokens", [batch(np.random.default_rng(1), 3, model=namesake)])
    code, out = explained(shell, query, "--cache", "y.tokens")
    assert "demo (demo:01234567), 9 tokens: the name is the same, weights or tokenizer are not" in out
    shell.write("z.tokens", b"")
    ended = shell("cache", "explain", "asked.lq", "--cache", "z.tokens")
    assert ended.code == 6 and ended.out.endswith("  z.tokens holds nothing yet\n")
    assert (shell.folder / "z.tokens").read_bytes() == b""


@pytest.mark.parametrize(
    ("query", "options", "code", "sentence"),
    [
        ('"{place}[X]"', [], 2, "'place' is missing"),
        ('"a[1X]"', [], 3, "is not a valid name for a hole"),
        ('"a"\nx = 1 / 0', [], 1, "ZeroDivisionError"),
        ('"a[X]" where X in none\n', ["--var-json", "none=[]"], 4, "no text satisfies"),
        ('"a"', ["--model", "gpt-9"], 5, "no model is called"),
        ('"a"', ["--cache", "nothing.tokens"], 6, "there is no file nothing.tokens"),
        ('"a"', ["--seed", "-1"], 2, "seed is a whole number"),
    ],
    ids=["input", "query", "python", "condition", "model", "file", "seed"],
)
def test_what_a_run_would_end_with_an_explanation_ends_with(
    joke: Shell, query: str, options: list[str], code: int, sentence: str
) -> None:
    ended = joke("cache", "explain", joke.write("q.lq", query), "--cache", "joke.tokens", *options)
    assert ended.code == code and sentence in ended.err and ended.out == ""


def test_a_query_that_needs_nothing_is_known(joke: Shell) -> None:
    code, out = explained(joke, '"a[B]" where B == " yes"', "--cache", "joke.tokens")
    assert code == 0 and out.startswith("[B]  line 1: 0 tokens known, 2 forced\n")


# rewriting


def test_compact_makes_one_frame_of_many_and_every_run_still_hits(shell: Shell) -> None:
    for word in "abcd":
        shell("run", shell.write(f"{word}.lq", f'"Say {word}:[X]" where len(X) < 9'), "--cache", "x.tokens")
    ended = shell("cache", "compact", "x.tokens")
    assert ended.code == 0 and ended.err == ""
    table = [line.replace(",", "").split() for line in ended.out.splitlines()[1:]]
    rows = {what: (int(before), int(after)) for what, before, after in table}
    assert rows["frames"] == (4, 1) and rows["entries"][0] == rows["entries"][1] and rows["bytes"][0] > rows["bytes"][1]
    assert rows["bytes"][1] == (shell.folder / "x.tokens").stat().st_size
    assert all(hit(shell, f"{word}.lq", "x.tokens") for word in "abcd")
    most = rows["bytes"][1] * 2 // 3
    told = json.loads(shell("cache", "compact", "x.tokens", "--max-bytes", str(most), "--json").out)
    assert (shell.folder / "x.tokens").stat().st_size == told["after"]["bytes"] <= most
    assert hit(shell, "d.lq", "x.tokens") and not hit(shell, "a.lq", "x.tokens")
    assert shell("cache", "compact", "x.tokens", "--older-than", "1").code == 0 and hit(shell, "d.lq", "x.tokens")
    shell("cache", "compact", "x.tokens", "--older-than", "0", "--model", "demo")
    assert json.loads(shell("cache", "stats", "x.tokens", "--json").out)["topks"] == 0


def test_compact_mends_a_damaged_file_and_says_what_that_costs(joke: Shell) -> None:
    joke("run", joke.write("q.lq", '"Say:[X]" where len(X) < 9'), "--cache", "joke.tokens")
    data = bytearray((joke.folder / "joke.tokens").read_bytes())
    data[-20] ^= 1
    joke.write("joke.tokens", bytes(data))
    ended = joke("cache", "compact", "joke.tokens")
    assert ended.code == 0 and "its unreadable part was dropped" in ended.err
    assert joke("cache", "verify", "joke.tokens").code == 0
    assert hit(joke, "joke.lq", "joke.tokens") and not hit(joke, "q.lq", "joke.tokens")


def test_merge_joins_files_and_leaves_them_as_they_are(joke: Shell) -> None:
    joke.write("q.lq", '"Say:[X]" where len(X) < 9')
    joke("run", "q.lq", "--cache", "q.tokens")
    joke("run", "joke.lq", "--cache", "q.tokens")
    before = [(joke.folder / name).read_bytes() for name in ("joke.tokens", "q.tokens")]
    ended = joke("cache", "merge", "joke.tokens", "q.tokens", "-o", "alle 🌳.tokens")
    assert ended.code == 0 and ended.err == ""
    assert ended.out.startswith("alle 🌳.tokens: 1 model, ")
    assert hit(joke, "joke.lq", "alle 🌳.tokens") and hit(joke, "q.lq", "alle 🌳.tokens")
    assert [(joke.folder / name).read_bytes() for name in ("joke.tokens", "q.tokens")] == before
    for output in ("alle 🌳.tokens", "joke.tokens", "."):
        again = joke("cache", "merge", "joke.tokens", "q.tokens", "-o", output)
        assert again.code == 6 and "exists, and is not overwritten" in again.err


def test_merge_takes_the_answer_of_the_preferred_file_where_files_contradict_each_other(joke: Shell) -> None:
    other = entries_of("joke.tokens")
    topks = other.entries.topks
    ids = topks.ids.copy()
    first_of_row = np.cumsum(topks.sizes) - topks.sizes
    ids[first_of_row[:12]] = 67
    wrong = replace(other, entries=replace(other.entries, topks=replace(topks, ids=ids)))
    write_new(joke.folder / "wrong.tokens", packed([wrong])[0])
    files = ("joke.tokens", "wrong.tokens")
    assert joke("cache", "merge", *files, "-o", "new.tokens").code == 0
    assert joke("run", "joke.lq", "--cache", "new.tokens", "--cache-mode", "replay").out == joke("run", "joke.lq").out
    merged = json.loads(joke("cache", "merge", *files, "-o", "last.tokens", "--prefer", "last", "--json").out)
    last = entries_of("last.tokens")
    assert (merged["models"], merged["nodes"], merged["entries"]) == (1, len(last.tree) - 1, len(last))
    assert last.entries.topks.ids.tolist() == ids.tolist()


def test_export_is_one_json_object_per_entry(joke: Shell) -> None:
    ended = joke("cache", "export", "joke.tokens")
    records = [json.loads(line, parse_constant=pytest.fail) for line in ended.out.splitlines()]
    stats = json.loads(joke("cache", "stats", "joke.tokens", "--json").out)
    assert len(records) == stats["topks"] and ended.err == ""
    for record in records:
        assert record["model"] == "demo" and record["kind"] == "top-k" and record["written"] > 10**9
        assert record["path"][0] == 0 and len(record["ids"]) == len(record["logprobs"])
        assert sum(np.exp(record["logprobs"])) + record["rest"] == pytest.approx(1, abs=1e-4)
    assert joke("cache", "export", "joke.tokens", "-o", "x.jsonl").out == ""
    assert (joke.folder / "x.jsonl").read_text("ascii") == ended.out
    for output in ("x.jsonl", "joke.tokens"):
        again = joke("cache", "export", "joke.tokens", "-o", output)
        assert again.code == 6 and "exists, and is not overwritten" in again.err
    assert joke("cache", "export", "joke.tokens", "-o", "no/x.jsonl").code == 6
    assert hit(joke, "joke.lq", "joke.tokens")


def test_clear_asks_at_a_terminal_and_needs_yes_elsewhere(joke: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (joke.folder / "joke.tokens").read_bytes()
    refused = joke("cache", "clear", "joke.tokens")
    assert refused.code == 2 and "add --yes" in refused.err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    for answer, code in (("n", 130), ("", 130), (None, 130)):
        monkeypatch.setattr("click.termui.visible_prompt_func", lambda prompt, answer=answer: _typed(answer))
        declined = joke("cache", "clear", "joke.tokens")
        assert declined.code == code and declined.out == "", declined
        assert (joke.folder / "joke.tokens").read_bytes() == before
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda prompt: _typed("y"))
    ended = joke("cache", "clear", "joke.tokens")
    assert ended.code == 0 and ended.out.endswith("entries of demo (demo:2c075f5c) dropped, 0 entries left\n")
    assert (joke.folder / "joke.tokens").stat().st_size == 0
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


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("what", ["missing", "folder", "text", "newer", "earlier", "strange name"])
def test_what_is_no_tokens_file_is_named_and_left_alone(joke: Shell, command: str, what: str) -> None:
    path = joke.folder / ("no\udcff\x1bname.tokens" if what == "strange name" else "x.tokens")
    newer = frame_bytes(b"x").replace(MARK, MARK[:-1] + b"\x63")
    planted = {"text": b"my diary", "newer": newer, "earlier": MARK[:-1] + b"\n\1\0\0\0" + bytes(99)}.get(what)
    if planted:
        path.write_bytes(planted)
    elif what == "folder":
        path.mkdir()
    arguments = {
        "explain": ["joke.lq", "--cache", str(path)],
        "merge": ["joke.tokens", str(path), "-o", "new.tokens"],
        "clear": [str(path), "--yes"],
    }.get(command, [str(path)])
    ended = joke("cache", command, *arguments)
    if (command, what) == ("stats", "folder"):  # of pages and encoder entries, of which it has none
        assert (ended.code, ended.out) == (0, "no pages, and no encoder entries\n")
        return
    assert ended.code == 6 and ended.out == ""
    said = {
        "missing": "there is no file",
        "folder": "is a directory",
        "text": "is not a .tokens file",
        "newer": "was written by a newer lmql-lite",
        "earlier": "was written by an earlier lmql-lite",
        "strange name": "there is no file",
    }[what]
    assert said in ended.err and "hint: " in ended.err
    assert (path.read_bytes() == planted) if planted else (path.is_dir() == (what == "folder"))
    names = {"joke.lq", "joke.tokens"} | ({path.name} if path.exists() else set())
    assert {file.name for file in joke.folder.iterdir()} == names
    if command not in ("verify", "export"):
        told = joke("cache", command, *arguments, "--json")
        assert told.code == 6 and json.loads(told.out)["error"]["code"] == "CacheError"


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
@pytest.mark.parametrize("command", [["compact", "joke.tokens"], ["clear", "joke.tokens", "--yes"]])
def test_a_file_that_may_not_be_rewritten_stays_and_says_so(
    joke: Shell, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = (joke.folder / "joke.tokens").read_bytes(), os.open

    def refusing(name: str, flags: int, mode: int = 0o777) -> int:  # chmod does not stop root
        if flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied", str(name))
        return real(name, flags, mode)

    monkeypatch.setattr("lmql_lite.cache.log_file.os.open", refusing)
    ended = joke("cache", *command)
    assert ended.code == 6 and "cannot be written" in ended.err and "nothing was changed" in ended.err
    assert (joke.folder / "joke.tokens").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compact", "joke.tokens", "--model", "demo"], "add --older-than or --max-bytes"),
        (["compact", "joke.tokens", "--max-bytes", "-1"], "is not in the range"),
        (["merge", "joke.tokens"], "Missing option '-o'"),
        (["merge", "-o", "x.tokens"], "Missing argument"),
        (["merge", "joke.tokens", "-o", "x.tokens", "--prefer", "me"], "'me' is not one of"),
        (["explain", "joke.lq"], "Missing option '--cache'"),
        (["inspect", "joke.tokens", "--limit", "0"], "is not in the range"),
    ],
)
def test_wrong_usage_is_one_sentence_and_changes_nothing(joke: Shell, arguments: list[str], sentence: str) -> None:
    ended = joke("cache", *arguments)
    assert ended.code == 2 and sentence in ended.err and ended.out == ""
    assert {file.name for file in joke.folder.iterdir()} == {"joke.lq", "joke.tokens"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_does(shell: Shell, command: str) -> None:
    ended = shell("cache", command, "--help")
    assert ended.code == 0 and len(ended.out.splitlines()) > 6
    assert command in shell("cache", "--help").out
