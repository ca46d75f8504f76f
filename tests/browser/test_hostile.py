"""Whatever a model, a query or a recording says stays text, wherever it is shown: nothing runs, nothing turns round."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lmql_lite.engine import events
from lmql_lite.engine.result import Result, Usage
from lmql_lite.errors import Span
from lmql_lite.observe.lines import Lines, as_object
from lmql_lite.observe.report import report
from lmql_lite.tokens import Token
from tests.browser.conftest import Open, Tab
from tests.browser.recordings import lines

EVIL = "</script></svg><img id=evil src=x onerror='window.ran=1'><script>window.ran=1</script>"
EVIL += "<style>*{display:none}</style>&lt;b&gt;\u202egnp.exe\u2066\x1b[31m\x00\x9b31m\u200b javascript:window.ran=1"
NO_ELEMENT = "document.querySelector('#evil, main img:not(.cm-widgetBuffer), svg img, iframe') === null"
NOT_RAN = "window.ran === undefined"
ACTING = r"/[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/.test(document.body.textContent)"
SHADOW = "document.querySelector('lq-view').shadowRoot"
IN_ALL_ROOTS = f"""wanted => document.querySelectorAll(wanted).length
    + {SHADOW}.querySelectorAll(wanted).length"""
SPAN = Span("q.lq", f'"[X]" where X == "{EVIL}"', 1, 4)


def said(text: str, hole: str | None, node: int, parent: int, **fields: Any) -> Mapping[str, Any]:
    token = Token(node, text.encode(), hole, "model" if hole else "prompt", "kept", -1.0)
    return {**as_object(events.TokenMoved(token, node, parent)), **fields}


def evil_run() -> Iterator[Mapping[str, Any] | events.Record]:
    """A run in which every text is hostile: names, values, alternatives, clauses, what it printed."""
    other = {"id": 9, "text": EVIL, "logprob": -0.5, "allowed": False, "clause": EVIL}
    yield events.Started(EVIL, EVIL, 1)
    yield events.Text(EVIL)
    yield events.MediaShown(EVIL, "x.jpg")
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
    assert "⟨U+202E⟩" in tab.page.inner_text("#holes") and "⟨U+001B⟩" in tab.page.inner_text("#holes")
    tab.show("trie")
    tab.page.locator("#trie .run").last.click()
    harmless(tab, "card of the tree")
    tab.show("tokens")
    tab.page.locator("#tokens .token.model").click()
    card = tab.page.inner_text("#card")
    assert "forbidden by" in card and card.count("⟨U+202E⟩") >= 4
    harmless(tab, "card")
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
    lines_of_run = Lines()
    moments = [lines_of_run.line(record) for record in (*records, events.Finished(result))]
    page = report(moments) if kind == "report" else f"<!doctype html><title>x</title>{result._repr_html_()}"
    place = tmp_path / "page.html"
    place.write_text(page, "utf-8")
    tab = open_tab()
    tab.page.goto("about:blank")  # the playground's page may ask for one more check until it is left
    tab.page.goto(place.as_uri())
    assert tab.page.evaluate(NOT_RAN)
    tab.page.wait_for_selector(".panels[aria-busy=false] .output .block")
    for view in ("Output", "Tree"):
        tab.page.get_by_role("tab", name=view).click()
        tab.page.wait_for_selector(".panels[aria-busy=false]")
        assert tab.page.evaluate(IN_ALL_ROOTS, "img, iframe, a, form, link, script:not([type='application/json'])") == 1
        assert tab.page.evaluate(IN_ALL_ROOTS, "style") == 1
        assert not tab.page.evaluate(f"{ACTING.replace('document.body', SHADOW)}")
        assert "<img id=evil" in (tab.page.locator(".panels").text_content() or "").replace("…", "") or view == "Tree"
        assert tab.page.evaluate(NOT_RAN)
    assert "⟨U+202E⟩" in (tab.page.locator(".output").text_content() or "")
    assert tab.asked[-1] == place.as_uri()


def test_a_thumbnail_is_drawn_where_its_picture_stands(tab: Tab, tmp_path: Path) -> None:
    pixel = io.BytesIO()
    Image.new("RGB", (4, 3), (200, 10, 10)).save(pixel, "JPEG")

    def run() -> Iterator[events.Record]:
        yield events.Started("m", "argmax", 1)
        yield events.Text("Look: <image 0123456789ab>")
        yield events.MediaShown(
            "<image 0123456789ab>", "data:image/jpeg;base64," + b64encode(pixel.getvalue()).decode()
        )
        yield events.Text(" well")
        yield events.Finished(Result("Look: <image 0123456789ab> well", {}, None, (), Usage(), {}, 1, "m", ()))

    replayed(tab, tmp_path / "shown.lqrun", run(), "done")
    tab.show("output")
    picture = tab.page.locator("#output img.thumbnail")
    picture.evaluate("image => image.decode()")
    assert picture.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [4, 3]
    assert tab.page.locator("#output").inner_text().strip() == "Look: <image 0123456789ab> well"
    assert picture.evaluate("image => image.previousSibling.textContent").endswith("ab>")
