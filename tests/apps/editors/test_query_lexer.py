"""The Pygments lexer: every text comes back whole, and each kind of word has its token."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from pygments.token import Comment, Error, Keyword, Name, Number, String, _TokenType

from lmql_lite.apps.editors.query_lexer import QueryLexer

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted([*(ROOT / "examples").glob("*.lq"), *(ROOT / "examples" / "lmql").glob("*.lmql")])
QUERY = '''\
# a comment
sample(temperature=0.8)
    "🏖 {:user} for {place[0]}: [@str.strip THING] [[no hole]]\\n" where STOPS_AT(THING, "\\n")
    """several [beam(n=2) LINES_: list[int]]
    lines"""
    if THING == "[no hole]" and not None:
        x = 3; "again [AGAIN]"
distribution THING in ["a"]
'''


def tokens(text: str) -> list[tuple[_TokenType, str]]:
    return [(kind, value) for kind, value in QueryLexer().get_tokens(text)]


def of(kind: _TokenType) -> list[str]:
    return [value for each, value in tokens(QUERY) if each in kind]


def test_each_kind_of_word_has_its_token() -> None:
    assert of(Name.Variable) == ["THING", "LINES_", "AGAIN"]
    assert of(Keyword.Reserved) == ["sample", "where", "beam", "distribution"]
    assert of(Keyword) == ["sample", "where", "beam", "if", "and", "not", "None", "distribution", "in"]
    assert of(Name.Builtin) == ["STOPS_AT"] and of(Name.Tag) == ["{:user}"] and of(Name.Decorator) == ["@str.strip"]
    assert of(Comment) == ["# a comment"] and of(Number) == ["0.8", "0", "2", "3"]
    assert of(String.Escape) == ["[[", "]]", "\\n"] and of(String.Interpol) == ["{", "}"]
    assert '"[no hole]"' in of(String)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_come_back_whole_and_without_errors(path: Path) -> None:
    text = path.read_text("utf-8").strip("\n") + "\n"
    found = tokens(text)
    assert "".join(value for _, value in found) == text
    assert not [value for kind, value in found if kind in Error]


def test_the_entry_point_names_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [(name, value)] = project["entry-points"]["pygments.lexers"].items()
    assert name in QueryLexer.aliases and EntryPoint(name, value, "pygments.lexers").load() is QueryLexer
