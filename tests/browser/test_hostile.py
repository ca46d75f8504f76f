"""Whatever a model, a query or a recording says stays text, wherever it is shown: nothing runs, nothing turns round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lmql_lite.errors import Span
from lmql_lite.runtime import events
from lmql_lite.runtime.drawing import fragment
from lmql_lite.runtime.result import Result, Usage
from lmql_lite.runtime.shown.report import Moment, report
from lmql_lite.runtime.shown.wire import as_object
from lmql_lite.tokens import Token
from tests.browser.conftest import Open, Tab
from tests.browser.recordings import lines

EVIL = "</script></svg><img id=evil src=x onerror='window.ran=1'><script>window.ran=1</script>"
EVIL += "<style>*{display:none}</style>&lt;b&gt;\u202egnp.exe\u2066\x1b[31m\x00\x9b31m\u200b javascript:window.ran=1"
NO_ELEMENT = "document.querySelector('#evil, main img:not(.cm-widgetBuffer), svg img, iframe') === null"
NOT_RAN = "window.ran === undefined"
ACTING = r"/[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/.test(document.body.textContent)"
SPAN = Span("q.lq", f'"[X]" where X == "{EVIL}"', 1, 4)


def said(text: str, hole: str | None, node: int, parent: int, **fields: Any) -> Mapping[str, Any]:
    token = Token(node, text.encode(), hole, "model" if hole else "prompt", "kept", -1.0)
    return {**as_object(events.TokenMoved(token, node, parent)), **fields}


def evil_run() -> Iterator[Mapping[str, Any] | events.Record]:
    """A run in which every text is hostile: names, values, alternatives, clauses, what it printed."""
    other = {"id": 9, "text": EVIL, "logprob": -0.5, "allowed": False, "clause": EVIL}
    yield events.Started(EVIL, EVIL, 1)
    yield events.Text(EVIL)
    yield said(EVIL, None, 1, 0)
    yield events.HoleOpened(EVIL, SPAN)
    yield said(EVIL, EVIL, 2, 1, allowed=1, vocabulary=9, alternatives=[other, {**other, "id": 2, "allowed": True}])
    yield events.Guessed(Token(3, EVIL.encode(), None, "draft", "kept", None), 3, 2)
    yield events.Text(EVIL, EVIL)
    yield events.HoleClosed(EVIL, EVIL, "stop")
    yield events.Bound(EVIL, EVIL)
    yield events.ToolCalled(EVIL, EVIL, EVIL)
    yield events.Notice(EVIL)
    yield {"type": "log", "text": EVIL}
    usage = Usage(prompt_tokens=1, completion_tokens=1, tokens_from_model=1, forward_passes=1)
    names = {EVIL: EVIL, f"P({EVIL})": [(EVIL, 0.5), ("x", 0.5)]}
    yield events.Finished(Result(EVIL * 2, names, EVIL, (), usage, {EVIL: "stop"}, 1, EVIL, (EVIL,)))


def failed_run() -> Iterator[events.Record]:
    yield events.Started(EVIL, "argmax", 1)
    yield events.Text(EVIL)
    yield events.Failed(EVIL, EVIL, EVIL, SPAN, (events.Failed(EVIL, EVIL),))


def replayed(tab: Tab, place: Path, run: Iterator[Mapping[str, Any] | events.Record], state: str) -> None:
    place.write_text("".join(lines(run)), "utf-8")
    tab.page.click("#share")
    tab.page.set_input_files("#open-lqrun", place)
    tab.wait(state)


def harmless(tab: Tab, where: str) -> None:
    assert tab.page.evaluate(NOT_RAN), where
    assert tab.page.evaluate(NO_ELEMENT), where
    assert not tab.page.evaluate(ACTING), where


def test_hostile_text_stays_text_in_every_view(tab: Tab, tmp_path: Path) -> None:
    replayed(tab, tmp_path / "<img src=x onerror=window.ran=1>.lqrun", evil_run(), "done")
    for view, root in (("output", "#output"), ("trie", "#trie"), ("tokens", "#tokens"), ("log", "#log")):
        tab.show(view)
        harmless(tab, view)
        shown = tab.page.locator(root).text_content() or ""
        assert "<img" in shown or "</script>" in shown, view
        assert "⟨U+202E⟩" in shown or view == "trie", view
    tab.show("output")
    assert "⟨U+202E⟩" in tab.page.inner_text("#result") and "⟨U+001B⟩" in tab.page.inner_text("#result")
    tab.show("trie")
    tab.page.locator("#trie .run").last.click()
    harmless(tab, "card of the tree")
    tab.page.check("#trie-as-list")
    tab.settle()
    harmless(tab, "list")
    assert "⟨U+202E⟩" in tab.page.inner_text("#trie-list")
    tab.show("tokens")
    tab.page.locator("#tokens .token.model").click()
    card = tab.page.inner_text("#card")
    assert "forbidden by" in card and card.count("⟨U+202E⟩") >= 4
    harmless(tab, "card")
    tab.show("constraints")
    harmless(tab, "constraints")
    assert tab.page.inner_text("#model").startswith("demo")


def test_a_hostile_failure_stays_text(tab: Tab, tmp_path: Path) -> None:
    replayed(tab, tmp_path / "failed.lqrun", failed_run(), "failed")
    harmless(tab, "failure")
    failure = tab.page.inner_text("#result")
    assert failure.count("<img id=evil") == 5 and "⟨U+202E⟩" in failure


def test_what_a_query_prints_and_is_called_stays_text(tab: Tab) -> None:
    query = f"evil = {EVIL!r}\nprint(evil)\n\"{{evil}}[X]\" where X in [evil, 'x']\nraise ValueError(evil)"
    tab.run(query, "failed")
    harmless(tab, "output")
    assert "⟨U+202E⟩" in tab.page.inner_text("#result")
    tab.page.wait_for_selector("#problems li")
    harmless(tab, "problems")
    tab.show("log")
    harmless(tab, "log")
    assert "<img id=evil" in tab.page.inner_text("#log")


@pytest.mark.parametrize("kind", ["report", "notebook"])
def test_reports_and_notebooks_show_hostile_text_as_text(open_tab: Open, tmp_path: Path, kind: str) -> None:
    tokens = (
        Token(1, EVIL.encode(), None, "prompt", "kept", None),
        Token(2, EVIL.encode(), EVIL, "model", "kept", -1.0),
        Token(3, EVIL.encode(), EVIL, "model", "rejected", -1.0),
    )
    usage = Usage(prompt_tokens=1, completion_tokens=1, tokens_from_model=1, forward_passes=1)
    result = Result(EVIL * 2, {EVIL: EVIL}, EVIL, tokens, usage, {EVIL: "stop"}, 1, EVIL, (EVIL,))
    records = [record for record in evil_run() if not isinstance(record, Mapping | events.Finished)]
    moments = [Moment(number, record) for number, record in enumerate([*records, events.Finished(result)])]
    inner = fragment(tokens, usage.as_dict())
    page = report(moments) if kind == "report" else f"<!doctype html><title>x</title>{inner}"
    place = tmp_path / "page.html"
    place.write_text(page, "utf-8")
    tab = open_tab()
    tab.page.goto(place.as_uri())
    assert tab.page.evaluate(NOT_RAN)
    assert tab.page.evaluate("document.querySelectorAll('img, script, iframe, a, form, link').length") == 0
    assert tab.page.evaluate("document.querySelectorAll('style').length") == 1
    assert not tab.page.evaluate(ACTING)
    text = tab.page.inner_text("body")
    assert "<script>window.ran=1</script>" in text and "⟨U+202E⟩" in text
    assert tab.asked[-1] == place.as_uri()
