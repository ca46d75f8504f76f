"""`lq eval show` and `export` of runs that are going on, that died, that are empty, and that hold odd characters."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lmql_lite.apps.cli import lq as command
from lmql_lite.store.log import line_of, read_lines

SLOW = """
import asyncio
if int(word) >= 5:
    await asyncio.sleep(600)
"{word}"
return "a"
"""
"""Five rows end at once, the others never."""


def lq(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["eval", *map(str, arguments)])


@pytest.fixture
def running() -> Iterator[subprocess.Popen[bytes]]:
    Path("q.lq").write_text(SLOW)
    Path("d.csv").write_text("id,word,g,target\n" + "".join(f"r{n},{n},{n % 2},a\n" for n in range(8)))
    arguments = ["eval", "q.lq", "d.csv", "-o", "r", "-m", "exact", "--cluster", "g"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lmql_lite", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        log, until = Path("r/rows.jsonl"), time.monotonic() + 120
        while not log.exists() or len(log.read_bytes().splitlines()) < 6:
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


def table(name: str) -> list[dict[str, str]]:
    with Path(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_is_looked_at_while_it_runs_and_after_it_was_killed(running: subprocess.Popen[bytes]) -> None:
    shown = lq("show", "r")
    assert shown.exit_code == 0, shown.output
    assert "5 of 8 attempts so far: the run is going on" in shown.output
    assert "exact            1.0000" in shown.output and "n 5" in shown.output and "2 clusters of g" in shown.output
    found = json.loads(lq("show", "r", "--json").output)
    assert (found["status"], found["attempts"], found["asked"]) == ("running", 5, 8)
    assert lq("export", "r", "-o", "running.csv").exit_code == 0 and len(table("running.csv")) == 5
    running.send_signal(signal.SIGKILL)
    running.wait()
    with Path("r/rows.jsonl").open("ab") as file:
        file.write(b'{"kind":"attempt","schema":1,"id":"r')
    for form in ((), ("--html",), ("--wrong",), ("--json",)):
        assert lq("show", "r", *form).exit_code == 0
    assert "5 of 8 attempts so far: the run did not end; run the same command to continue" in lq("show", "r").output
    assert lq("export", "r", "-o", "killed.csv").exit_code == 0 and len(table("killed.csv")) == 5
    assert lq("compare", "r", "r").exit_code == 0


def test_scores_of_an_earlier_version_are_refused_and_computed_anew() -> None:
    Path("q.lq").write_text('"{word}"\nreturn word\n')
    Path("d.csv").write_text("id,word,target\nr1,a,a\nr2,b,c\n")
    Path("m.py").write_text("def half(answer):\n    return 0.5\n")
    arguments = ["q.lq", "d.csv", "-o", "r", "-m", "m.py:half"]
    assert lq(*arguments).exit_code == 0
    log, version = Path("r/rows.jsonl"), blake2b(Path("m.py").read_bytes(), digest_size=8).hexdigest()
    _, *attempts = [line.record or {} for line in read_lines(log)]
    earlier = {"scores": {"half": [0.5, 1.0]}, "scored": [f"half@{version}"]}
    log.write_bytes(b"".join(line_of({n: v for n, v in (each | earlier).items() if n != "crc32"}) for each in attempts))
    Path("r/report.json").unlink()
    for looked in (["show", "r"], ["compare", "r", "r"], ["export", "r", "-o", "x.csv"]):
        assert "r has scores of an earlier lmql-lite" in lq(*looked).output
    assert "half             0.5000" in lq(*arguments).output
    assert "half             0.5000" in lq("show", "r").output and lq("compare", "r", "r").exit_code == 0


def words_of(page: str) -> str:
    """Text of a page, a blank for each run of tags."""
    return re.sub(r"\s+", " ", re.sub(r"(<[^>]*>\s*)+", " ", page[page.index("<h1>") :]))


def test_the_page_begins_with_the_result_and_shows_the_input_of_each_row_in_the_order_of_the_data() -> None:
    Path("q.lq").write_text('if word == "w3":\n    raise ValueError("no <b>")\n"{word}"\nreturn "a"\n')
    rows = [(f"r{n}", f"w{n}", "<i>x" if n % 2 else "y", "b" if n % 4 else "a") for n in range(40)]
    Path("d.csv").write_text("id,word,kind,target\n" + "".join(f"{','.join(row)}\n" for row in rows))
    lq("q.lq", "d.csv", "-o", "r", "-m", "exact", "-m", "f1")
    page = Path(lq("show", "r", "--html").output.strip()).read_text("utf-8")
    report = json.loads(Path("r/report.json").read_text())
    first = words_of(page[: page.index("<tbody>")])
    for metric in report["metrics"]:
        assert f"{metric['name']} 0.2500 [{metric['low']:.4f}, {metric['high']:.4f}] 40" in first
    facts = (
        "rows 40 attempts of 40 rows",
        "errors 1, counted as wrong",
        "model demo",
        "settings seed 0",
        "data d.csv",
        "UTC",
    )
    places = [first.index(fact) for fact in ("exact 0.2500", *facts)]
    assert places == sorted(places)
    assert "kind exact f1 n &lt;i&gt;x 0.0000 0.0000 20 y 0.5000 0.5000 20" in first
    assert "target a b other error a 10 0 0 0 b 29 0 0 1" in first
    body = page[page.index("<tbody>") :]
    places = [body.index(f"<td>r{n}</td>") for n in range(40)]
    assert places == sorted(places)
    assert "word: w0\nkind: y" in body and "<i>" not in page and "no &lt;b&gt;" in body
    assert body.count('class="wrong"') == 29 and body.count('class="wrong error"') == 1
    assert all(control in page for control in ('id="kind"', 'id="find"', "<button>target</button></th>"))


def test_two_runs_are_put_side_by_side() -> None:
    rows = [(f"r{n}", f"w{n}", "a") for n in range(8)]
    Path("d.csv").write_text("id,word,target\n" + "".join(f"{','.join(row)}\n" for row in rows))
    for run, right in (("one", "w0 w1 w2"), ("two", "w1 w2 w3 w4 w5")):
        Path("q.lq").write_text(f'"{{word}}"\nreturn "a" if word in {right.split()} else word\n')
        lq("q.lq", "d.csv", "-o", run, "-m", "exact")
    page = Path(lq("compare", "one", "two", "--html").output.strip()).read_text("utf-8")
    assert Path("two/compare.html").exists()
    first = words_of(page[: page.index("<tbody>")])
    assert "exact 0.3750 0.6250 +0.2500" in first and " 3 4 1 0.625 " in first
    assert "A: one B: two" in first and "model demo demo" in first
    body = page[page.index("<tbody>") :]
    kinds = re.findall(r'<tr class="([^"]*)"><td class="number">\d+</td><td>(r\d)</td>', body)
    assert {name: kind for kind, name in kinds} == {
        **dict.fromkeys(("r1", "r2", "r6", "r7"), "equal"), "r0": "changed worse",
        **dict.fromkeys(("r3", "r4", "r5"), "changed better"),
    }  # fmt: skip


def test_a_page_of_five_hundred_short_rows_is_small() -> None:
    Path("q.lq").write_text('"{word}[X]" where X in [" a"]\nreturn X\n')
    Path("d.csv").write_text("id,word,target\n" + "".join(f"r{n},the room was clean {n},a\n" for n in range(500)))
    lq("q.lq", "d.csv", "-o", "r", "-m", "exact")
    page = Path(lq("show", "r", "--html").output.strip()).read_text("utf-8")
    rows = page[page.index("<tbody>") : page.index("</tbody>")]
    without_bundle = "<pre>" in rows
    assert len(rows) < 500 * (2_000 if without_bundle else 800)


ODD = ["x\ud83dy", "\udc00", "a\x00b", "two\nlines", "a\rb", '"quoted", with commas', "=1+1", "\u2028", "\U0001f600"]


def test_a_run_with_odd_characters_is_exported_whole_and_no_file_is_overwritten() -> None:
    Path("q.lq").write_text('"x"\nreturn ans\n')
    rows = [{"id": f"r{n}{odd}", "ans": odd, "target": odd} for n, odd in enumerate(ODD)]
    Path("d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert lq("q.lq", "d.jsonl", "-o", "r", "-m", "exact").exit_code == 0
    assert lq("export", "r", "-o", "x").exit_code == 0
    answers = [each["answer"] for each in table("x")]
    assert answers == [odd.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for odd in ODD]
    assert all(each["exact"] == "1.0" for each in table("x"))
    before = Path("x").read_bytes()
    assert lq("export", "r", "-o", "x").exit_code == 2 and Path("x").read_bytes() == before
