"""The two grammars are what the program parses with: they have no conflicts, and each of their sentences is a query."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.lark import from_lark
from lark import Lark, Token
from lark.lexer import Lexer as LarkLexer

from lmql_lite.assets import asset
from lmql_lite.errors import QueryError
from lmql_lite.lang.grammar import OPTIONS, loaded, made, misfits, stored, tables
from lmql_lite.lang.keywords import CLAUSES, CONSTRAINTS, DECODERS, DECODERS_NOT_YET, INLINE_CLAUSES
from lmql_lite.lang.lines import Scanner
from lmql_lite.lang.query import parse
from lmql_lite.lang.source import Problems, Source
from lmql_lite.lang.terminals import Lexer, find_header

PROMPTS = ["", "a [X] {y}", "[@f(1) @g sample(n=2) X: list['a']]", "{:user}{x + (1)!r:>{w}}", "[f(X, [1])] ]]"]

SPELLED = {
    "DECODER": "argmax", "ARGUMENTS": "(n=2)", "NAME": "X", "STRING": '"[X]"', "EXPRESSION": "len(X) < 3",
    "PYTHON": "y = f(x)", "HEAD": "if x:", "_IN": "in", "_SEMICOLON": ";",
}  # fmt: skip
"""The terminals that are not spelled as they are called."""
BESIDE_THE_FRAME = re.compile("second '|before the decoder")


class Terminals(LarkLexer):
    """The text was cut into terminals before: `data` is these."""

    def __init__(self, lexer_conf: object) -> None:
        pass

    def lex(self, data: Any) -> Iterator[Token]:
        return iter(data)


def spelled(terminals: list[str]) -> str:
    """A query with these terminals, blocks as indentation."""
    text, depth = "", 0
    for name in terminals:
        if name in ("_INDENT", "_DEDENT"):
            depth += 1 if name == "_INDENT" else -1
        elif name == "_NEWLINE":
            text += "\n"
        else:
            text += "    " * depth * (text[-1:] in ("", "\n")) + SPELLED.get(name, name.lower()) + " "
    return text


def terminals_of(source: Source) -> list[str]:
    lines = Scanner(source, Problems()).lines()
    return [each.type for each in Lexer(source, lines, Problems(), find_header(lines)).terminals()]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_sentence_of_the_grammar_is_a_query() -> None:
    text = asset("grammar", "lq.lark").read_text("utf-8")
    grammar = Lark(text, parser="lalr", lexer=Terminals, start="query", maybe_placeholders=True)
    rules = re.sub("//.*|%declare.*", "", text)
    names = {each: st.just(f"{each} ") for each in re.findall(r"\b_?[A-Z]+\b", rules)}
    compared = set[str]()

    @settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(from_lark(grammar, start="query", explicit=names))
    def compare(sentence: str) -> None:
        expected = sentence.split()
        assume(not re.search("(DECODER|ARGUMENTS) PYTHON", sentence))  # only a prompt begins on the header's line
        assume(not re.search("STRING.* DECODER ARGUMENTS", sentence))  # after a prompt that may be any call
        assume("EXPRESSION _NEWLINE _INDENT HEAD" not in sentence)  # below a condition `if` goes on with it
        source = Source("q", spelled(expected))
        assert terminals_of(source) == expected, source.text
        try:
            parse(source)
        except QueryError as error:
            assert all(BESIDE_THE_FRAME.search(each.message) for each in error.problems), error.report()
            return
        compared.add(source.text)

    compare()
    assert len(compared) > 100


# The files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIONS)
def test_there_are_no_conflicts_and_every_terminal_is_used(name, monkeypatch):
    interegular = pytest.importorskip("interegular")
    monkeypatch.setattr("lark.lexer.interegular", interegular, raising=False)  # hidden from Lark where we imported it
    monkeypatch.setattr("lark.lexer.has_interegular", True)
    parser = made(name, strict=True).parser
    text = asset("grammar", f"{name.removeprefix('raw_')}.lark").read_text("utf-8")
    rules = "\n".join(line.split("//")[0] for line in text.splitlines() if not re.match("%declare|[A-Z_]+[.:]", line))
    assert {each.name for each in parser.terminals if each.name in text} <= set(re.findall(r"\b_?[A-Z]\w*", rules))
    assert set(re.findall(r"^(_?[A-Z]\w*)[.:]", text, re.MULTILINE)) <= {each.name for each in parser.terminals}


def test_stored_tables_are_those_of_the_grammars(tmp_path, monkeypatch):
    """Stored tables parse as made ones, and are not read for another grammar."""
    (tmp_path / "tables.json").write_text(tables(), "utf-8")
    homes = {"tables.json": tmp_path / "tables.json"}
    monkeypatch.setattr(
        "lmql_lite.lang.grammar.asset", lambda folder, name: homes.get(name) or asset(folder, name), raising=True
    )
    read_tables = stored.__wrapped__()
    assert read_tables.keys() == {"digest", *OPTIONS}
    for name in OPTIONS:
        grammar_, read_grammar = made(name), loaded(read_tables[name])
        assert set(read_grammar.misfits.values()) == set(grammar_.misfits.values())
        for text in PROMPTS if "prompt" in name else ():
            assert read_grammar.parser.parse(text, start="prompt") == grammar_.parser.parse(text, start="prompt")
    homes["prompt.lark"] = tmp_path / "prompt.lark"
    homes["prompt.lark"].write_text("another one", "utf-8")
    assert stored.__wrapped__() == {}


@pytest.mark.parametrize(
    "row", ["LSQB NAME ! RSQB | @ | it is right", "! RBRACE | @ | it has a row\n! RBRACE | @ | above"]
)
def test_a_row_of_errors_is_an_error_and_has_no_row_above(row):
    with pytest.raises(ValueError, match=re.escape(row.splitlines()[-1])):
        misfits(made("prompt").parser, row)


def test_a_compile_alone_loads_the_parser_generator_and_nothing_beside_it():
    pytest.importorskip("interegular")
    program = """
import sys, lmql_lite, lmql_lite.api, lmql_lite.decorators
assert "lark" not in sys.modules
lmql_lite.compile('"[X]" where len(X) < 3')
assert "lark" in sys.modules and not {"regex", "interegular"} & sys.modules.keys()
import interegular
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_tables_do_not_contradict_each_other():
    assert not set(DECODERS) & set(DECODERS_NOT_YET)
    assert set(INLINE_CLAUSES) < set(CLAUSES)
    assert all(name.isupper() for name in CONSTRAINTS)
