"""Queries as they were written for LMQL, run unchanged, and the page that tells where the two languages differ.

Most run on the demo model, whatever model their `from` names; the others on a server that says what stands in `TALKS`.
`python -m tests.test_lmql_examples` writes the expected outputs again; read the difference.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

import lmql_lite as lq
from lmql_lite.apps.results import as_text, with_distributions
from lmql_lite.models.base import Model
from tests.conftest import ROOT
from tests.servers.kinds import OPENAI_CHAT, VLLM, Config
from tests.servers.stub import serving

EXAMPLES = ROOT / "examples" / "lmql"
PAGE = ROOT / "docs" / "coming-from-lmql.md"
QUERIES = sorted(EXAMPLES.glob("*.lmql"))
HOSTS = sorted(EXAMPLES.glob("*.py"))
ROWS = {"L": 25, "D": 9, "O": 18, "C": 20, "E": 9}
"""How many rows the page has of the language, decoders, options, constraints, and what stands around them."""

TALKS: dict[str, tuple[Config, str]] = {
    "27_chat": (
        OPENAI_CHAT,
        "You answer in one sentence.What is the capital of France? It is Paris.And of Italy? It is Rome.",
    ),
    "28_react": (
        VLLM,
        "What ball does Ada have?\nThought: I have to look.\nAction: look(Ada)\nObservation: red\nAnswer: The red ball.",
    ),
    "30_messages": (OPENAI_CHAT, "You answer in one sentence.What is the capital of France? It is Paris."),
}


def ids(paths: list[Path]) -> list[str]:
    return [path.stem for path in paths]


@contextmanager
def model_for(path: Path) -> Iterator[str | Model]:
    if path.stem not in TALKS:
        yield "demo"
        return
    with serving(*TALKS[path.stem]) as server:
        yield lq.model(f"openai/{server.config.model}", base_url=server.base_url, api_key="x")


def shown(path: Path, session: lq.Session, cache: bool = True) -> str:
    """Each result with its distributions, and what its query returned."""
    query = lq.compile(path)
    with model_for(path) as model:
        found = query.run_sync(session=session, model=model, seed=1, cache=cache)
    texts = []
    for result in found if isinstance(found, list) else [found]:
        value = f"\n-> {as_text(result.value)}" if query.returns else ""
        texts.append(with_distributions(result).rstrip("\n") + value + "\n")
    return "---\n".join(texts)


def printed(path: Path) -> str:
    with redirect_stdout(StringIO()) as out:
        runpy.run_path(str(path), run_name="__main__")
    return out.getvalue()


def expected(path: Path) -> Path:
    return EXAMPLES / "expected" / f"{path.stem}.txt"


@pytest.mark.parametrize("path", QUERIES, ids=ids(QUERIES))
def test_a_query_of_lmql_says_what_it_should(path: Path, session: lq.Session) -> None:
    assert shown(path, session) == expected(path).read_text("utf-8")


@pytest.mark.parametrize("path", QUERIES, ids=ids(QUERIES))
def test_it_says_the_same_without_a_cache(path: Path, session: lq.Session) -> None:
    assert shown(path, session, cache=False) == expected(path).read_text("utf-8")


@pytest.mark.parametrize("path", HOSTS, ids=ids(HOSTS))
def test_a_program_of_lmql_prints_what_it_should(path: Path) -> None:
    assert printed(path) == expected(path).read_text("utf-8")


def test_each_says_in_its_first_line_what_it_shows_and_has_its_expected_output() -> None:
    assert len(QUERIES) >= 25
    assert {path.stem for path in QUERIES + HOSTS} == {path.stem for path in (EXAMPLES / "expected").glob("*.txt")}
    for path in QUERIES + HOSTS:
        assert re.match(r'(# |""")[A-Z`].+[.:]', path.read_text("utf-8")), path


# The page ------------------------------------------------------------------------------------------------------------


def rows() -> dict[str, list[str]]:
    """The lines of the page's tables that have a key: key -> the other cells."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if re.match(r"\| [A-Z]\d+ \|", line)]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert len({key for key, *_ in cells}) == len(cells), "a key is there twice"
    return {key: rest for key, *rest in cells}


def test_the_page_has_a_line_for_every_row_of_the_inventory() -> None:
    assert list(rows()) == [f"{section}{number}" for section, count in ROWS.items() for number in range(1, count + 1)]


@pytest.mark.parametrize("key", rows() if PAGE.exists() else [])
def test_a_line_of_the_page_says_how_it_is_here_and_names_what_shows_it(key: str) -> None:
    _, here, shows = rows()[key]
    assert re.match(r"same\b|different: |not there: ", here)
    places = re.findall(r"`([^`]+)`", shows)
    assert places
    for place in places:
        name, _, test = place.partition("::")
        file = EXAMPLES / name if not name.startswith(("tests/", "examples/")) else ROOT / name
        assert file.exists(), place
        assert not test or f"def {test}(" in file.read_text("utf-8"), place


def test_every_example_is_named_on_the_page() -> None:
    text = PAGE.read_text("utf-8")
    assert [path.name for path in QUERIES + HOSTS if path.name not in text] == []


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or QUERIES + HOSTS:
        text = printed(path) if path.suffix == ".py" else shown(path, lq.Session())
        expected(path).write_text(text, "utf-8")
