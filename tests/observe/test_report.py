"""The report of a run and the view in a notebook: whole, with one script, and whatever a model says stays text.

What the script draws is tested in a browser (tests/browser/test_elsewhere.py, test_hostile.py).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmql_lite as lq
from lmql_lite.engine import events
from lmql_lite.html import bundle, kept, ledger, shown
from lmql_lite.observe.lines import Line, Lines, failed, read, written
from lmql_lite.observe.report import report
from lmql_lite.tokens import Token
from tests.conftest import ROOT

EVIL = (
    "<img src=x onerror=alert(1)></span></div><script>alert(2)</script><style>*{display:none}</style>"
    "\"' onmouseover='x' &lt;b&gt; <!-- ]]> \x1b[31m \u202e gnp.exe \u2066 \x00 \ufeff javascript:1"
)
ELEMENTS = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "span", "b", "pre"}
ELEMENTS |= {"table", "tr", "th", "td", "main", "lq-view", "script"}
ATTRIBUTES = {"lang", "charset", "http-equiv", "content", "name", "class", "title", "type"}


class Page(HTMLParser):
    """Elements of a page, its texts, its scripts and the data in it."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.open: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.data: list[Any] = []
        self.feed(page)
        self.close()
        assert not self.open, f"elements that nobody closes: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        assert {name for name, _ in attributes} <= ATTRIBUTES, attributes
        if tag != "meta":
            self.open.append((tag, dict(attributes).get("type") or ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == ("script", ""):
            self.scripts.append(data)
        elif self.open and self.open[-1][0] == "script":
            self.data.append(json.loads(data))
        elif {"pre", "div"} & {tag for tag, _ in self.open}:
            self.texts.append(data)

    def text(self) -> str:
        """The text that it spells, its marks turned back."""
        return re.sub("⟨U\\+([0-9A-F]{4,6})⟩", lambda found: chr(int(found[1], 16)), "".join(self.texts))


def told_by(source: str, script: str, **options: object) -> list[events.Record]:
    async def seen() -> list[events.Record]:
        told = list[events.Record]()
        try:
            stream = lq.compile(source).stream(model=lq.ScriptedModel(script), session=lq.Session(), **options)  # type: ignore[arg-type]
            async for event in stream:
                told.append(event)
        except lq.ConstraintError as error:
            told.append(failed(error))
        return told

    return asyncio.run(seen())


def lines_of(told: list[events.Record]) -> list[Line]:
    lines = Lines()
    return [lines.line(record) for record in told]


def run_of(source: str, script: str, **options: object) -> list[Line]:
    return lines_of(told_by(source, script, **options))


def result_of(told: list[events.Record]) -> lq.Result:
    last = told[-1]
    assert isinstance(last, events.Finished)
    return last.result


def test_hostile_text_stays_text_in_a_report_and_in_a_notebook() -> None:
    told = told_by('"Say:[X]" where len(X) < 300', "Say:" + EVIL)
    result = result_of(told)
    assert result["X"] == EVIL
    for page in (report(lines_of(told)), result._repr_html_()):
        found = Page(page)
        assert set(found.elements) <= ELEMENTS
        assert result.prompt in found.text()
        assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069\ufeff]", page)
        assert found.scripts == ([bundle()] if bundle() else []), "no other script"


def test_hostile_names_and_errors_stay_text() -> None:
    model = lq.ScriptedModel("Say: x", name=EVIL)
    with pytest.raises(lq.ConstraintError) as raised:
        lq.run_sync('"Say:[X]" where X == "<b>" and X[::-1] == "</pre><script>"', model=model, session=lq.Session())
    told: list[events.Record] = [
        events.Started(EVIL, EVIL, 1),
        events.Notice(EVIL),
        events.ToolCalled(EVIL, EVIL, EVIL),
        events.Bound(EVIL, {EVIL: EVIL}),
        events.Text(EVIL, EVIL),
        events.TokenMoved(Token(1, EVIL.encode(), EVIL, "model", "kept", None), 2, 1),
        failed(raised.value),
    ]
    assert set(Page(report(lines_of(told))).elements) <= ELEMENTS


def test_a_report_asks_nobody_for_anything_and_runs_one_script() -> None:
    page = report(run_of('"Say:[X]" where len(X) < 9', "Say: hello"))
    [policy] = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    digest = base64.b64encode(hashlib.sha256((bundle() or "").encode()).digest()).decode()
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    for script in Page(page).scripts:
        page = page.replace(script, "")
    assert not re.search(r"https?:|url\(|@import|src=|href=", page)


def test_a_report_has_the_lines_of_its_run_and_what_each_token_was_chosen_from() -> None:
    told = run_of('"Say:[X]\\n[Y]" where STOPS_BEFORE(X, "\\n") and Y in ["yes please"]', "Say: hello\nyes")
    [data] = Page(report(told)).data
    assert [line["type"] for line in data] == [line["type"] for line in told]
    asked = [line for line in data if line["type"] == "token" and line["source"] == "model"]
    assert asked and all(line["allowed"] <= line["vocabulary"] for line in asked)


def test_what_was_not_reported_is_not_0() -> None:
    assert "not reported" in ledger({"requests": None}) and "not reported" not in ledger({"requests": 0})


def test_a_run_that_failed_shows_its_error_and_the_text_so_far() -> None:
    page = report(run_of('"Say: hello\\n"\n"[X]" where X == "a" and str.upper(X) == "b"', "Say: hello\na"))
    assert "It failed" in page and "has no value that meets" in page
    assert "Say: hello\n" in Page(page).text()


def test_several_results_are_all_in_the_report() -> None:
    told = run_of('sample(n=3, seed=4)\n    "A:[X]"\nwhere len(X) < 4', "A:")
    page = report(told)
    assert all(f"<h2>Text {number}</h2>" in page for number in (1, 2, 3))


def test_a_report_of_a_recording_is_the_one_that_the_run_makes() -> None:
    for source in ('"Say:[X]" where STOPS_BEFORE(X, "lo")', 'beam(n=2)\n    "Say:[X]"\nwhere len(X) < 4'):
        told = run_of(source, "Say: hello there", seed=1)
        again = list(read(io.BytesIO("".join(map(written, told)).encode()), "x.lqrun"))
        assert report(again) == report(told)
        assert told[-1]["prompt"] in Page(report(again)).text()


def test_an_empty_run_has_a_page() -> None:
    assert set(Page(report([])).elements) <= ELEMENTS


PIECES = st.lists(st.tuples(st.binary(max_size=5), st.sampled_from([None, "X", "Y"])), max_size=30)


@given(PIECES)
def test_tokens_of_a_result_keep_their_bytes(pieces: list[tuple[bytes, str | None]]) -> None:
    tokens = [Token(at, data, hole, "model", "kept", -math.inf) for at, (data, hole) in enumerate(pieces)]
    found = json.loads(json.dumps(kept(tokens)))
    assert [base64.b64decode(cut[0]) if cut else text.encode() for text, _, _, _, *cut in found] == [
        data for data, _ in pieces
    ]
    assert all(logprob is None for _, _, _, logprob, *_ in found)


@given(st.text())
def test_nothing_that_is_shown_acts(text: str) -> None:
    page = Page(f"<div class='text'>{shown(text)}</div>")
    assert set(page.elements) <= {"div", "span"}
    assert page.text() == re.sub("[\ud800-\udfff]", "\ufffd", text)


def test_a_notebook_shows_the_kept_text_alone() -> None:
    result = result_of(told_by('"Say:[X]!" where STOPS_BEFORE(X, "lo")', "Say: hello there"))
    assert any(token.fate != "kept" for token in result.tokens)
    page = Page(result._repr_html_())
    assert result.prompt in page.text()
    assert all("".join(token[0] for token in data["tokens"]) == result.prompt for data in page.data)


def test_a_report_has_the_query_the_inputs_and_the_date_and_no_key_law_7() -> None:
    source = '"Say:[A]{who}{api_key}" where STOPS_AT(A, "\\n")'

    async def told() -> list[Line]:
        lines = Lines()
        inputs = {"who": "<b>me</b>", "api_key": "sk-0123456789abcdef"}
        stream = lq.compile(source).stream(inputs, model=lq.ScriptedModel("Say: hi\n"), session=lq.Session())
        return [lines.line(event) async for event in stream]

    page = report(asyncio.run(told()))
    assert shown(source) in page and shown("<b>me</b>") in page
    assert re.search(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ, lq \d", page)
    assert "sk-0123456789abcdef" not in page[page.index("<h2>Query") :]
    assert page.index("<h2>Text") < page.index("<h2>Query"), "the answer comes first"


def test_a_hole_that_is_complete_is_not_called_forced_in_a_report() -> None:
    recording = ROOT / "tests" / "browser" / "recorded" / "05_sentiment.lqrun"
    page = report(list(read(io.BytesIO(recording.read_bytes()), recording.name)))
    assert "<td>complete</td>" in page and "<td>forced</td>" not in page
