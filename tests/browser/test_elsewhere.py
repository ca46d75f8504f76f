"""A run in the report, in a notebook, in VS Code's panel and in the report of a data set: what the page shows of it."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lmql_lite as lq
from lmql_lite.html import BUNDLE, WITHOUT_BUNDLE
from lmql_lite.observe.lines import Line, read
from lmql_lite.observe.report import report
from tests.browser.conftest import ROOT, Open, Tab
from tests.browser.test_truth import SOURCES

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

RECORDED = sorted((ROOT / "tests" / "browser" / "recorded").glob("*.lqrun"))
EXTENSION = ROOT / "editors" / "vscode"
BOXES = """labels => { const found = {}; for (const label of labels)
    for (const [kind, count] of Object.entries(JSON.parse(label.dataset.counts)))
        if (count) found[kind] = (found[kind] ?? 0) + count;
    return found; }"""
TEXT = """output => { const copy = output.cloneNode(true);
    copy.querySelectorAll(".label").forEach((label) => label.remove());
    return [...copy.children].map((block) => block.textContent).join(""); }"""
ROWS = "rows => rows.map(row => [row.dataset.count, row.querySelector('td').textContent])"
LEDGER = {
    "cache": "tokens_from_cache",
    "model": "tokens_from_model",
    "draft": "draft_accepted",
    "forced": "tokens_forced",
}
NODES = "nodes => nodes.map(node => node.getAttribute('aria-label')).sort()"
PUT = """html => {
    const place = document.getElementById("place");
    place.innerHTML = html;
    for (const old of place.querySelectorAll("script")) {
        const script = document.createElement("script");
        for (const { name, value } of old.attributes) script.setAttribute(name, value);
        script.text = old.textContent;
        old.replaceWith(script);
    }
}"""
"""An output in HTML, as a notebook treats it."""


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 1000, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    context.close()
    assert complaints == []


def shown(page: Page) -> dict[str, Any]:
    """Text, sums of the boxes, ledger and tree of the run on a page."""
    page.wait_for_selector(".panels[aria-busy=false] .output .block")
    found = {
        "text": page.locator(".output").evaluate(TEXT),
        "boxes": page.locator(".output .hole > .label[data-counts]").evaluate_all(BOXES),
        "ledger": dict(page.locator("[data-count]").evaluate_all(ROWS)),
        "hero": page.inner_text(".hero strong"),
    }
    page.get_by_role("tab", name="Tree").click()
    page.wait_for_selector(".panels[aria-busy=false] .trie [role=treeitem]")
    return {**found, "tree": page.locator(".trie .run").evaluate_all(NODES)}


def on_the_page(tab: Tab, recording: Path) -> dict[str, Any]:
    tab.page.click("#share")
    tab.page.set_input_files("#open-lqrun", recording)
    tab.until("document.getElementById('banner').textContent.includes('is a recording')")
    tab.settle()
    return shown(tab.page)


def in_a_report(page: Page, recording: Path, place: Path) -> dict[str, Any]:
    place.write_text(report(lines_of(recording)), "utf-8")
    page.goto(place.as_uri())
    return shown(page)


def in_a_notebook(page: Page, recording: Path) -> dict[str, Any]:
    """Outputs of a cell that replace each other, and the last one alone, as in a notebook that is opened."""
    pytest.importorskip("IPython", reason="needs IPython: pip install ipython")
    outputs = cell_outputs(recording)
    assert len(outputs) > 5
    found = []
    for some in (outputs, outputs[-1:]):
        page.goto("about:blank")
        page.set_content("<!doctype html><title>x</title><main id=place></main>")
        for html in some:
            page.evaluate(PUT, html)
        found.append(shown(page))
    assert found[0] == found[1]
    return found[0]


def cell_outputs(recording: Path) -> list[str]:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    from lmql_lite.apps.editors import notebook

    InteractiveShell.clear_instance()
    InteractiveShell.instance()
    with pytest.MonkeyPatch.context() as patch, capture_output() as captured:
        patch.setattr(notebook, "REDRAWN_AFTER_S", 0.0)
        view = notebook.CellView()
        for line in lines_of(recording):
            view.add(line)
    InteractiveShell.clear_instance()
    return [each.data["text/html"] for each in captured.outputs]


def in_a_panel(page: Page, recording: Path, folder: Path) -> dict[str, Any]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    command = folder / "lq"
    command.write_text(f"#!/bin/sh\nexec cat '{recording}'\n")
    command.chmod(0o755)
    done = subprocess.run(
        [node, "test/panel.mjs", command, "q.lq"], cwd=EXTENSION, capture_output=True, text=True, check=True, timeout=60
    )
    panel = json.loads(done.stdout)
    files = {"/": panel["html"], "/extension/lq-view.js": (ROOT / "playground" / BUNDLE).read_text("utf-8")}

    def answer(route: Any) -> None:
        path = route.request.url.removeprefix("https://panel.example")
        kind = "text/html" if path == "/" else "text/javascript"
        route.fulfill(body=files[path], content_type=kind)

    page.route("https://panel.example/**", answer)
    page.add_init_script("window.acquireVsCodeApi = () => ({ postMessage: (message) => { window.told = message; } })")
    page.goto("https://panel.example/")
    assert page.evaluate("told") == {"ready": True}
    assert panel["sent"].pop() == {"shown": "q.lq"}
    for message in panel["sent"]:
        page.evaluate("message => postMessage(message)", message)
    return shown(page)


def lines_of(recording: Path) -> list[Line]:
    return list(read(io.BytesIO(recording.read_bytes()), recording.name))


@pytest.mark.parametrize("recording", RECORDED, ids=lambda path: path.stem)
def test_one_recorded_run_shows_the_same_in_all_four_places(
    open_tab: Open, page: Page, tmp_path: Path, recording: Path
) -> None:
    expected = on_the_page(open_tab(), recording)
    boxes = {kind: count for kind, count in expected["boxes"].items() if count}
    assert boxes == {
        kind: int(expected["ledger"][row]) for kind, row in LEDGER.items() if expected["ledger"][row] != "0"
    }
    assert in_a_report(page, recording, tmp_path / "report.html") == expected
    assert in_a_panel(page, recording, tmp_path) == expected
    assert in_a_notebook(page, recording) == expected


def test_a_result_in_a_notebook_shows_its_tokens_and_its_ledger(page: Page) -> None:
    query = (ROOT / "examples" / "07_record.lq").read_text("utf-8")
    session = lq.Session()
    for _ in ("cold", "warm"):
        result = lq.run_sync(query, model="demo", session=session)
        page.set_content("<!doctype html><title>x</title><main id=place></main>")
        page.evaluate(PUT, result._repr_html_())
        found = shown(page)
        counts = result.usage.as_dict()
        assert found["text"] == result.prompt
        assert found["boxes"] == {kind: counts[row] for kind, row in SOURCES.items() if counts[row]}
        assert found["ledger"]["prompt_tokens"] == str(counts["prompt_tokens"])


def test_rows_of_a_data_set_show_output_tree_and_ledger_when_they_are_opened(page: Page, tmp_path: Path) -> None:
    (tmp_path / "q.lq").write_text('"The weather is[X]" where X in [" rainy and cold", " sunny"]\n"in {place}"\n')
    rows = [{"id": str(at), "place": f"Rome {at}", "target": "x"} for at in range(3)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for command in (["eval", "q.lq", "d.jsonl", "-o", "run", "--model", "demo"], ["eval", "show", "run", "--html"]):
        subprocess.run([sys.executable, "-m", "lmql_lite", *command], cwd=tmp_path, check=True, timeout=120,
                       capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "run" / "rows.jsonl").read_text().splitlines()]
    usage = {row["id"]: row["usage"] for row in rows if "usage" in row}
    page.goto((tmp_path / "run" / "report.html").as_uri())
    assert page.locator("lq-view").count() == 3 and page.locator(".output").count() == 0
    page.locator("summary").nth(1).click()
    name = page.locator("tr:has(details[open]) td").first.inner_text()
    found = shown(page)
    assert found["boxes"] == {kind: usage[name][row] for kind, row in SOURCES.items() if usage[name][row]}
    assert found["ledger"]["tokens_forced"] == str(usage[name]["tokens_forced"])


def test_the_element_is_without_findings_in_light_and_dark(page: Page, tmp_path: Path) -> None:
    axe = (ROOT / "playground" / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")
    place = tmp_path / "report.html"
    place.write_text(report(lines_of(RECORDED[0])).replace("script-src ", "script-src 'unsafe-eval' "), "utf-8")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.goto(place.as_uri())
        for name in ("Output", "Tree"):
            page.get_by_role("tab", name=name).click()
            page.wait_for_selector(".panels[aria-busy=false]")
            page.evaluate(f"() => {{ {axe} }}")
            found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
            assert [each["id"] for each in found["violations"]] == [], found["violations"]


def test_a_cell_that_missed_lines_says_so_and_shows_the_text(page: Page) -> None:
    outputs = cell_outputs(RECORDED[0])
    page.set_content("<!doctype html><title>x</title><main id=place></main>")
    page.evaluate(PUT, outputs[0])
    page.evaluate(PUT, outputs[-3])
    assert page.get_by_text("cannot be drawn: line 0 is missing").is_visible()
    assert page.locator("#place pre").is_visible()


def test_without_the_bundle_every_place_has_plain_text_and_says_what_is_missing(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmql_lite.html.BUNDLE", "dist/none.js")
    result = lq.run_sync('"Say:[X]" where X in [" hi"]', model=lq.ScriptedModel("Say: hi"))
    told = lines_of(RECORDED[0])
    for html, text in (
        (result._repr_html_(), result.prompt),
        (report(told), told[-1]["prompt"]),
        (cell_outputs(RECORDED[0])[-1], told[-1]["prompt"]),
    ):
        page.set_content(html)
        assert page.locator("pre", has_text=text.strip()).first.is_visible()
        assert WITHOUT_BUNDLE in page.inner_text("body")
        assert page.locator("script:not([type='application/json'])").count() == 0
