"""Numbers and colours of the page against the lines of the same run, read by other means."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import ROOT, Open, Server, Tab
from tests.browser.test_page import CLAUSES

EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.lq") if "chat" not in path.name)
SOURCES = {
    "cache": "tokens_from_cache",
    "model": "tokens_from_model",
    "draft": "draft_accepted",
    "forced": "tokens_forced",
}
BEAM = """beam(n=3)
    "We choose [DRINK]\\n"
    "Then [NEXT]"
where
    DRINK in ["tea", "coffee", "cocoa"] and len(NEXT) < 9
"""
REJECTED = """def never(text):
    return False

"Things to pack:\\n-[FIRST]" where STOPS_AT(FIRST, "\\n")
"-[THING]" where STOPS_AT(THING, "\\n") and never(THING)
"""
UNICODE = '"\\u65e5\\u672c \\U0001f468\\u200d\\U0001f469 {emoji}\\n[X]\\n" where X in ["日本語 é", "ß👩‍👧"]\n'

IN_VIEW = """() => {
    const panel = document.getElementById("trie").getBoundingClientRect();
    const isOutside = (box) => box.left < panel.left - 1 || box.right > panel.right + 1;
    return [...document.querySelectorAll("#trie [role=treeitem]")]
        .filter((part) => isOutside(part.getBoundingClientRect()))
        .map((part) => part.textContent);
}"""


def lines_of(server: Server) -> list[dict[str, Any]]:
    """The lines of the server's last run."""
    runs = json.loads(asked(server, "/api/runs"))["runs"]
    found = asked(server, f"/api/runs/{runs[-1]['run']}/events")
    return [json.loads(line) for line in found.splitlines() if line]


def asked(server: Server, path: str) -> str:
    request = urllib.request.Request(server.origin + path, headers={"Authorization": f"Bearer {server.token}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())


def kept(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tokens of the result of a run with one branch: the way from the last kept token up, by the nodes' parents."""
    found: dict[int, dict[str, Any]] = {}
    last = None
    for line in lines:
        if line["type"] != "token":
            continue
        found[line["node"]] = line
        if line["fate"] == "kept":
            last = line["node"]
    path = []
    while last in found:
        path.append(found[last])
        last = found[last]["parent"]
    return [token for token in path[::-1] if token["fate"] == "kept"]


def boxes(tab: Tab) -> Counter[str]:
    """Sums of what the names of all boxes say."""
    found: Counter[str] = Counter()
    for counts in tab.page.locator("#output .hole > .label[data-counts]").evaluate_all(
        "labels => labels.map(label => JSON.parse(label.dataset.counts))"
    ):
        found.update(counts)
    return +found


def coloured(tab: Tab) -> Counter[str]:
    """Characters of each colour."""
    parts = tab.page.locator("#output .source").evaluate_all(
        "parts => parts.map(part => [part.dataset.kind, part.textContent])"
    )
    found: Counter[str] = Counter()
    for kind, text in parts:
        found[kind] += len(text)
    return found


def ledger(tab: Tab) -> Counter[str]:
    return +Counter({kind: int(tab.count(row)) for kind, row in SOURCES.items()})


def usage_of_lq_run(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Usage of the example in `lq run --json`, with a cache of its own in the folder."""
    inputs = (
        json.loads((ROOT / "examples" / "inputs.json").read_text("utf-8")).get(Path(name).stem, {}).get("inputs", {})
    )
    given = [part for key, value in inputs.items() for part in ("--var", f"{key}={value}")]
    command = ["run", str(ROOT / "examples" / name), "--model", "demo", "--cache", "own.tokens", "--json", *given]
    done = subprocess.run(
        [sys.executable, "-m", "lmql_lite", *command, "--seed", str(seed)], cwd=folder, capture_output=True, timeout=60
    )
    return dict(json.loads(done.stdout)["usage"])


@pytest.mark.parametrize("name", EXAMPLES)
def test_boxes_ledger_and_lines_agree_with_lq_run(
    open_tab: Open, server: Server, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tab, elsewhere = open_tab(server), tmp_path_factory.mktemp("elsewhere")
    tab.page.click("#examples")
    tab.page.click(f"#gallery button:has-text('{name}')")
    for _ in ("cold", "warm"):
        tab.run()
        lines = lines_of(server)
        done = lines[-1]
        assert tab.text() == done["prompt"]
        assert boxes(tab) == ledger(tab) == +Counter({kind: done["usage"][row] for kind, row in SOURCES.items()})
        assert done["usage"] == usage_of_lq_run(name, done["seed"], elsewhere)
        if not any(line["type"] == "forked" for line in lines):
            tokens = [token for token in kept(lines) if token["hole"] is not None]
            assert boxes(tab) == Counter(token["source"] for token in tokens)
            if not any("base64" in token for token in tokens) and "tool" not in {line["type"] for line in lines}:
                expected: Counter[str] = Counter()
                for token in tokens:
                    expected[token["source"]] += len(token["text"])
                assert coloured(tab) == +expected
    tab.show("trie")
    assert tab.page.evaluate(IN_VIEW) == []


def test_of_a_beam_the_boxes_are_those_of_the_result(open_tab: Open, server: Server) -> None:
    tab = open_tab(server)
    for _ in ("cold", "warm"):
        tab.run(BEAM)
        assert boxes(tab) == ledger(tab)
        assert tab.text() == lines_of(server)[-1]["prompt"]


def test_forced_keys_have_the_colour_of_forced_text_where_they_stand(open_tab: Open, server: Server) -> None:
    tab = open_tab(server)
    tab.run('"The weather is[X]" where X in [" rainy and cold, as we know it", " sunny"]')
    parts = tab.page.locator("#output .hole .source").evaluate_all(
        "parts => parts.map(part => [part.dataset.kind, part.textContent])"
    )
    tokens = [(token["source"], token["text"]) for token in kept(lines_of(server)) if token["hole"]]
    joined: list[list[str]] = []
    for source, text in tokens:
        if joined and joined[-1][0] == source:
            joined[-1][1] += text
        else:
            joined.append([source, text])
    assert parts == joined and len(parts) > 1


def test_a_failed_run_shows_its_text_and_no_rejected_value_as_kept(open_tab: Open, server: Server) -> None:
    tab = open_tab(server)
    tab.run(REJECTED, state="failed")
    text = tab.text()
    assert text.startswith("Things to pack:\n-") and text.endswith("\n-")
    assert boxes(tab).total() == coloured_tokens(lines_of(server), "FIRST")
    tab.show("trie")
    drawn = tab.page.locator("#trie .run").evaluate_all("runs => runs.map(run => run.getAttribute('aria-label'))")
    assert sum("THING" in label for label in drawn) > 20
    assert all("taken back" in label for label in drawn if "in THING" in label)


def coloured_tokens(lines: list[dict[str, Any]], hole: str) -> int:
    return sum(line["type"] == "token" and line["fate"] == "kept" and line["hole"] == hole for line in lines)


def test_characters_of_several_tokens_have_one_colour_and_the_text_stays_whole(open_tab: Open, server: Server) -> None:
    tab = open_tab(server)
    tab.write(UNICODE.replace("{emoji}", "x"))
    tab.run()
    done = lines_of(server)[-1]
    assert boxes(tab) == ledger(tab)
    assert (
        "".join(tab.page.locator("#output .hole .source").all_text_contents()).replace("⟨U+200D⟩", "\u200d")
        == done["vars"]["X"]
    )


def test_the_tree_shows_what_else_the_model_had_in_mind_and_which_clause_forbade_it(
    open_tab: Open, server: Server
) -> None:
    tab = open_tab(server)
    tab.run(CLAUSES)
    tab.show("trie")
    asked = [line for line in lines_of(server) if line["type"] == "token" and line.get("alternatives")]
    clauses = {each["clause"] for token in asked for each in token["alternatives"] if each["clause"]}
    struck = tab.page.locator("#trie g.ghost.struck title").all_text_contents()
    assert struck and set(struck) <= {f"forbidden by {clause}" for clause in clauses}
    before = tab.page.locator("#trie g.ghost").count()
    tab.page.uncheck("#trie-ghosts")
    tab.settle()
    assert before > 3 and tab.page.locator("#trie g.ghost").count() == 0
