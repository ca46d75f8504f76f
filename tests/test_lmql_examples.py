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
ROWS = {"L": 24, "A": 9, "O": 15, "C": 19, "E": 17}
"""How many rows the page has of the language, decoders, options, constraints, and what stands around them."""

TALKS: dict[str, tuple[Config, str]] = {
    "27_chat": (
        OPENAI_CHAT,
        "You answer in one sentence.What is the capital of France? It is Paris.And of Italy? It is Rome.",
    ),
    "28_react": (
        VLLM,
        "What ball does Ada have?\nThought: I look.\nAction: look(Ada)\nObservation: red\nAnswer: The red ball.",
    ),
    "30_messages": (OPENAI_CHAT, "You answer in one sentence.What is the capital of France? It is Paris."),
    "31_conversation": (
        OPENAI_CHAT,
        "You answer in one sentence. What is the capital of Peru? It is Lima. And of Cuba? It is Havana.",
    ),
}
TYPED = {"31_conversation": "What is the capital of Peru?\nAnd of Cuba?\n"}
"""What the user types where a query asks."""


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
    with model_for(path) as model, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", StringIO(TYPED.get(path.stem, "")))
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


@pytest.mark.parametrize(
    "source",
    [
        'argmax "Hi[X]" from "demo" where len(X) < 5',
        'ARGMAX "Hi[X]" FROM "demo" WHERE len(X) < 5',
        'argmax "Hi[X]" where len(X) < 5 from "demo"',
        '  sample(temperature=0.5, seed=1) "Hi[X]" from "demo" where len(X) < 5',
        'argmax\n    "Hi[X]" from "demo"\nwhere len(X) < 5',
        'argmax "Hi[X]" from "demo" \\\n    where len(X) < 5',
    ],
)
def test_clauses_may_stand_on_the_line_of_the_prompt(source: str, session: lq.Session) -> None:
    query = lq.compile(source)
    assert query.program.model is not None and len(query.run_sync(session=session)["X"]) < 5


def test_a_line_below_clauses_on_the_line_of_the_prompt_is_refused_at_its_place() -> None:
    with pytest.raises(lq.QueryError, match=r":2:1: this line comes after the clauses"):
        lq.compile('argmax "Hi[X]" from "demo"\n"more"')


# Where LMQL gave something else --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "says", "value"),
    [
        ('"zzz" in X and len(TOKENS(X)) < 6', "hello", "zzz"),
        ('X in ["ab", "abcdef"] and len(X) < 4', "abcd", "ab"),
        ('X in ["ab", "cd"] and not X == "ab"', "ab", "cd"),
        ('not X in ["ab", "cd"] and len(X) == 2', "ab", None),
        ('REGEX(X, r"(cat|dog)s?")', "dogs", "dogs"),
    ],
    ids=["contains", "choice-and-length", "not-equal", "not-in", "groups"],
)
def test_what_lmql_let_pass_holds_here(session: lq.Session, where: str, says: str, value: str | None) -> None:
    found = lq.run_sync(f'"Say [X]" where {where}', model=lq.ScriptedModel(f"Say {says}\n"), session=session)["X"]
    assert value in found if value else found not in ("ab", "cd")


@pytest.mark.parametrize("where", ['X in ["abc"] and len(X) > 5', '"zzz" in X and len(X) < 3'])
def test_what_nothing_can_meet_is_an_error(session: lq.Session, where: str) -> None:
    model = lq.ScriptedModel("Say abc\n")
    with pytest.raises((lq.QueryError, lq.ConstraintError)) as caught:
        lq.run_sync(f'"Say [X]" where {where}', model=model, session=session)
    assert caught.value.span is not None and caught.value.span.source in where
    assert model.calls == 0


@pytest.mark.parametrize("name", ["ESCAPED", "ERASE"])
def test_a_condition_of_lmql_that_is_not_here_says_so(name: str) -> None:
    with pytest.raises(lq.QueryError, match=f"no constraint is called '{name}'") as caught:
        lq.compile(f'"Say [X]" where {name}(X)')
    assert caught.value.hint is not None and "REGEX" in caught.value.hint


@pytest.mark.parametrize("kind", ["Person", "int"])
def test_a_type_in_where_is_refused_before_a_model_is_asked(kind: str) -> None:
    with pytest.raises(lq.QueryError, match="the type of a hole is written inside its brackets") as caught:
        lq.compile(f'"Say [X]" where type(X) is {kind}')
    assert caught.value.hint == f"write [X: {kind}] in the prompt"


def test_a_key_in_the_environment_changes_no_model(session: lq.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    monkeypatch.setenv("LMQL_DEFAULT_MODEL", "openai/gpt-4")
    assert lq.run_sync('"Q: What is 3 plus 4?\\nA:[X]" where len(X) == 2', session=session)["X"] == " 7"


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
