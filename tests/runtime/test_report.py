"""The report of a run and the view in a notebook: whole, without scripts, and whatever a model says stays text."""

from __future__ import annotations

import asyncio
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lmql_lite as lq
from lmql_lite.runtime import events
from lmql_lite.runtime.drawing import BLOCK, KINDS, fragment, ledger, shown, text_of
from lmql_lite.runtime.shown.failures import failed
from lmql_lite.runtime.shown.report import Moment, report
from lmql_lite.tokens import Token

EVIL = (
    "<img src=x onerror=alert(1)></span></div><script>alert(2)</script><style>*{display:none}</style>"
    "\"' onmouseover='x' &lt;b&gt; <!-- ]]> \x1b[31m \u202e gnp.exe \u2066 \x00 \ufeff javascript:1"
)
ELEMENTS = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "span", "b", "pre"}
ELEMENTS |= {"table", "tr", "th", "td"}
ATTRIBUTES = {"lang", "charset", "http-equiv", "content", "name", "class", "title"}


class Page(HTMLParser):
    """Which elements a page has, and the text in those that show tokens."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.open: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open, f"elements that nobody closes: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        assert {name for name, _ in attributes} <= ATTRIBUTES, attributes
        if tag != "meta":
            self.open.append((tag, dict(attributes).get("class") or ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        classes = [name for _, name in self.open]
        if "text" in classes and self.open[-1][0] != "b":
            self.texts.append(data)

    def text(self) -> str:
        """What it spells, its marks turned back."""
        return re.sub("⟨U\\+([0-9A-F]{4,6})⟩", lambda found: chr(int(found[1], 16)), "".join(self.texts))


def run_of(source: str, script: str, **options: object) -> list[Moment]:
    async def seen() -> list[Moment]:
        moments: list[Moment] = []
        try:
            stream = lq.compile(source).stream(model=lq.ScriptedModel(script), session=lq.Session(), **options)  # type: ignore[arg-type]
            async for event in stream:
                moments.append(Moment(len(moments), event))
        except lq.ConstraintError as error:
            moments.append(Moment(len(moments), failed(error)))
        return moments

    return asyncio.run(seen())


def result_of(moments: list[Moment]) -> lq.Result:
    last = moments[-1].record
    assert isinstance(last, events.Finished)
    return last.result


def test_hostile_text_stays_text_in_a_report_and_in_a_notebook() -> None:
    moments = run_of('"Say:[X]" where len(X) < 300', "Say:" + EVIL)
    result = result_of(moments)
    assert result["X"] == EVIL
    for page in (report(moments), result._repr_html_()):
        found = Page(page)
        assert set(found.elements) <= ELEMENTS
        assert found.text().startswith(result.prompt)
        assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069\ufeff]", page)
    assert Page(report(moments)).elements.count("script") == 0


def test_hostile_names_and_errors_stay_text() -> None:
    model = lq.ScriptedModel("Say: x", name=EVIL)
    with pytest.raises(lq.ConstraintError) as raised:
        lq.run_sync('"Say:[X]" where X == "<b>" and X[::-1] == "</pre><script>"', model=model, session=lq.Session())
    moments = [
        Moment(0, events.Started(EVIL, EVIL, 1)),
        Moment(1, events.Notice(EVIL)),
        Moment(2, events.ToolCalled(EVIL, EVIL, EVIL)),
        Moment(3, events.Bound(EVIL, {EVIL: EVIL})),
        Moment(4, events.Text(EVIL, EVIL)),
        Moment(5, events.TokenMoved(Token(1, EVIL.encode(), EVIL, "model", "kept", None), 2, 1)),
        Moment(6, failed(raised.value)),
    ]
    assert set(Page(report(moments)).elements) <= ELEMENTS


def test_a_report_asks_nobody_for_anything() -> None:
    page = report(run_of('"Say:[X]" where len(X) < 9', "Say: hello"))
    assert "default-src 'none'" in page
    assert not re.search(r"https?:|url\(|@import|src=|href=", page)


def test_tokens_are_coloured_by_who_said_them_and_holes_have_boxes() -> None:
    moments = run_of('"Say:[X]\\n[Y]" where STOPS_BEFORE(X, "\\n") and Y in ["yes please"]', "Say: hello\nyes")
    page = report(moments)
    result = result_of(moments)
    there = {token.source for token in result.tokens if token.fate == "kept"}
    for kind in KINDS:
        assert (f'class="{kind}"' in page) == (kind in there)
    assert {"prompt", "model"} <= there
    assert '<span class="hole"><b>X</b>' in page and '<span class="hole"><b>Y</b>' in page
    assert "@media (prefers-color-scheme:dark)" in page and "@media (forced-colors:active)" in page


def test_what_was_not_reported_is_not_0() -> None:
    assert "not reported" in ledger({"requests": None}) and "not reported" not in ledger({"requests": 0})


def test_a_run_that_failed_shows_its_error_and_the_text_so_far() -> None:
    page = report(run_of('"Say: hello\\n"\n"[X]" where X == "a" and str.upper(X) == "b"', "Say: hello\na"))
    assert "It failed" in page and "has no value that meets" in page
    assert Page(page).text().startswith("Say: hello\n")


def test_several_results_are_all_in_the_report() -> None:
    moments = run_of('sample(n=3, seed=4)\n    "A:[X]"\nwhere len(X) < 4', "A:")
    page = report(moments)
    assert all(f"<h2>Text {number}</h2>" in page for number in (1, 2, 3))


def test_an_empty_run_has_a_page() -> None:
    assert set(Page(report([])).elements) <= ELEMENTS


PIECES = st.lists(st.tuples(st.binary(max_size=5), st.sampled_from([None, "X", "Y"])), max_size=30)


@given(PIECES)
def test_tokens_that_cut_characters_spell_their_text(pieces: list[tuple[bytes, str | None]]) -> None:
    tokens = [Token(at, data, hole, "model", "kept", None) for at, (data, hole) in enumerate(pieces)]
    text = b"".join(data for data, _ in pieces).decode("utf-8", "replace")
    assert Page(text_of(tokens)).text() == text


@given(st.text())
def test_nothing_that_is_shown_acts(text: str) -> None:
    page = Page(f"<div class='text'>{shown(text)}</div>")
    assert set(page.elements) <= {"div", "span"}
    assert page.text() == re.sub("[\ud800-\udfff]", "\ufffd", text)


def test_many_tokens_are_laid_out_in_blocks_and_keep_their_text() -> None:
    tokens = [Token(7, b"line\n", None, "model", "kept", -0.5) for _ in range(5 * BLOCK)]
    page = text_of(tokens)
    assert page.count("<div>") == 5
    assert Page(page).text() == "line\n" * (5 * BLOCK)


def test_a_notebook_shows_the_kept_text_alone() -> None:
    result = result_of(run_of('"Say:[X]!" where STOPS_BEFORE(X, "lo")', "Say: hello there"))
    assert any(token.fate != "kept" for token in result.tokens)
    assert Page(fragment(result.tokens, result.usage.as_dict())).text() == result.prompt
