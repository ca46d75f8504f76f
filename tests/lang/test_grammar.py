"""The two grammars are the reference of the language: they and the parser take the same programs, and read them alike.

Three ways to compare: the grammar reads the terminals of every query that the parser read; the parser reads sentences
that the grammar makes; and of broken programs what the parser reads as well is none that the grammar refuses.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.lark import from_lark
from lark import Lark, Token, Tree
from lark.lexer import Lexer

from lmql_lite.assets import asset
from lmql_lite.errors import QueryError
from lmql_lite.lang import nodes
from lmql_lite.lang.grammar import OPTIONS, loaded, made, misfits, stored, tables
from lmql_lite.lang.keywords import CLAUSES, CONSTRAINTS, DECODERS, DECODERS_NOT_YET, INLINE_CLAUSES
from lmql_lite.lang.parser import parse
from lmql_lite.lang.source import Source

HERE = Path(__file__).parent
PROMPTS = ["", "a [X] {y}", "[@f(1) @g sample(n=2) X: list['a']]", "{:user}{x + (1)!r:>{w}}", "[f(X, [1])] ]]"]
Outline = list[Any]
SIMPLE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.For, ast.AsyncFor, ast.While, ast.With)


class Terminals(Lexer):
    """The text was cut into terminals before: `data` is these."""

    def __init__(self, lexer_conf: object) -> None:
        pass

    def lex(self, data: Any) -> Iterator[Token]:
        return iter(data)


@cache
def grammar(name: str) -> Lark:
    text = asset("grammar", f"{name}.lark").read_text("utf-8")
    return Lark(text, parser="lalr", lexer=Terminals, start="query", maybe_placeholders=True)


def read(name: str, terminals: list[str]) -> Tree[Token]:
    tokens: Any = [Token(each, "") for each in terminals]
    return grammar(name).parse(tokens)


# A query as terminals, each statement on a line of its own ----------------------------------------------------------


def terminals(query: nodes.QueryNode) -> list[str]:
    found = [each for code in query.prologue for each in _statement(code)]
    body = [each for statement in query.body for each in _statement(statement)]
    if query.decoder:
        found += ["DECODER", *["ARGUMENTS"] * bool(query.decoder.arguments), "_INDENT", *body, "_DEDENT"]
    else:
        found += body
    found += ["FROM", "EXPRESSION", "_NEWLINE"] * bool(query.model)
    found += ["WHERE", "EXPRESSION", "_NEWLINE"] * bool(query.where)
    return found + ["DISTRIBUTION", "NAME", "_IN", "EXPRESSION", "_NEWLINE"] * bool(query.distribution)


def _suite(statements: tuple[nodes.Statement, ...]) -> list[str]:
    inside = [each for statement in statements for each in _statement(statement)]
    return ["_COLON", "_NEWLINE", "_INDENT", *inside, "_DEDENT"]


def _else(statements: tuple[nodes.Statement, ...]) -> list[str]:
    return ["ELSE", *_suite(statements)] if statements else []


def _statement(statement: nodes.Statement) -> list[str]:
    match statement:
        case nodes.PromptNode(_, _, where, distribution):
            inline = ["WHERE", "EXPRESSION"] * bool(where)
            inline += ["DISTRIBUTION", "NAME", "_IN", "EXPRESSION"] * bool(distribution)
            return ["STRING", *inline, "_NEWLINE"]
        case nodes.Code():
            return ["CODE_BLOCK" if is_block(statement) else "CODE", "_NEWLINE"]
        case nodes.IfNode(_, _, body, orelse):
            found = ["IF", "EXPRESSION", *_suite(body)]
            while len(orelse) == 1 and isinstance(orelse[0], nodes.IfNode) and orelse[0].span.source.startswith("elif"):
                found += ["ELIF", "EXPRESSION", *_suite(orelse[0].body)]
                orelse = orelse[0].orelse
            return found + _else(orelse)
        case nodes.WhileNode():
            return ["WHILE", "EXPRESSION", *_suite(statement.body), *_else(statement.orelse)]
        case nodes.ForNode():
            head = [*["ASYNC"] * statement.is_async, "FOR", "TARGET", "_IN", "EXPRESSION"]
            return [*head, *_suite(statement.body), *_else(statement.orelse)]
        case nodes.WithNode():
            return ["WITH", *_suite(statement.body)]
        case nodes.TryNode():
            found = ["TRY", *_suite(statement.body)]
            for handler in statement.handlers:
                found += ["EXCEPT", *_suite(handler.body)]
            found += _else(statement.orelse)
            return found + (["FINALLY", *_suite(statement.final)] if statement.final else [])
        case nodes.MatchNode():
            cases = [each for case in statement.cases for each in ("CASE", *_suite(case.body))]
            return ["MATCH", "_COLON", "_NEWLINE", "_INDENT", *cases, "_DEDENT"]
        case nodes.ReturnNode():
            return ["RETURN", *["EXPRESSION"] * bool(statement.value), "_NEWLINE"]
    return [type(statement).__name__.removesuffix("Node").upper(), "_NEWLINE"]


def is_block(code: nodes.Code) -> bool:
    (statement,) = code.tree.body
    return isinstance(statement, (*SIMPLE, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match))


# From the parser to the grammar --------------------------------------------------------------------------------------


def _texts() -> list[str]:
    top = HERE.parent.parent
    found = [path.read_text("utf-8") for path in sorted((top / "examples").rglob("*.lq"))]
    for name in ("good_queries", "broken_queries", "broken_programs"):
        pieces = re.split(r"^### .+\n", (HERE / f"{name}.txt").read_text("utf-8"), flags=re.MULTILINE)[1:]
        found += pieces[::2]
    for path in [*sorted((top / "docs").rglob("*.md")), top / "README.md"]:
        found += re.findall(r"^```lq\n(.*?)^```", path.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return found


def test_the_grammars_take_every_query_that_the_parser_reads() -> None:
    taken = 0
    for text in _texts():
        try:
            query = parse(Source("q", text))
        except QueryError:
            continue
        taken += 1
        assert outline(read("lq", terminals(query))) == outline_of(query), text
    assert taken > 200


def outline(tree: Tree[Token]) -> Outline:
    """The names of the rules, one inside the other; lines are no level of their own."""
    found: Outline = []
    for child in tree.children:
        if not isinstance(child, Tree):
            continue
        inner = outline(child)
        if child.data in ("simple_line", "suite", "body"):
            found += inner
        elif not child.data.startswith("inline_") and child.data not in (
            "header",
            *(f"{word}_clause" for word in CLAUSES),
        ):
            found.append([str(child.data), *inner])
    return found


def outline_of(query: nodes.QueryNode) -> Outline:
    return [each for statement in (*query.prologue, *query.body) for each in _outline(statement)]


def _inside(statements: tuple[nodes.Statement, ...]) -> Outline:
    return [each for statement in statements for each in _outline(statement)]


def _outline(statement: nodes.Statement) -> Outline:
    match statement:
        case nodes.Code():
            return [["code_block" if is_block(statement) else "code"]]
        case nodes.IfNode(_, _, body, orelse):
            branches: Outline = []
            while len(orelse) == 1 and isinstance(orelse[0], nodes.IfNode) and orelse[0].span.source.startswith("elif"):
                branches.append(["elif", *_inside(orelse[0].body)])
                orelse = orelse[0].orelse
            return [["if", *_inside(body), *branches, *_branch("else", orelse)]]
        case nodes.WhileNode() | nodes.ForNode():
            name = type(statement).__name__.removesuffix("Node").lower()
            return [[name, *_inside(statement.body), *_branch("else", statement.orelse)]]
        case nodes.TryNode():
            handlers = [["except", *_inside(handler.body)] for handler in statement.handlers]
            after = [*_branch("else", statement.orelse), *_branch("finally", statement.final)]
            return [["try", *_inside(statement.body), *handlers, *after]]
        case nodes.MatchNode():
            return [["match", *(["case", *_inside(case.body)] for case in statement.cases)]]
        case nodes.WithNode():
            return [["with", *_inside(statement.body)]]
    return [[type(statement).__name__.removesuffix("Node").lower()]]


def _branch(name: str, statements: tuple[nodes.Statement, ...]) -> Outline:
    return [[name, *_inside(statements)]] if statements else []


# From the grammar to the parser --------------------------------------------------------------------------------------

SPELLED = {
    "DECODER": "argmax", "ARGUMENTS": "(n=2)", "NAME": "X", "STRING": '"[X]"', "EXPRESSION": "len(X) < 3",
    "TARGET": "(a, b)", "CODE": "y = f(x)", "CODE_BLOCK": "def f(): pass", "WITH": "with a as b",
    "EXCEPT": "except KeyError", "MATCH": "match x", "CASE": "case 1", "OPEN": "(", "CLOSE": ")", "_IN": "in",
    "_COLON": ":", "_SEMICOLON": ";",
}  # fmt: skip
"""The terminals that are not spelled as they are called."""
BESIDE_THE_STRUCTURE = re.compile("stands outside a loop|second '|neither 'except' nor|before the decoder|has no body")


def spelled(terminals: list[str]) -> str:
    """A query with these terminals, blocks as indentation."""
    text, depth = "", 0
    for name, following in zip(terminals, [*terminals[1:], ""], strict=False):
        if name in ("_INDENT", "_DEDENT"):
            depth += 1 if name == "_INDENT" else -1
        elif name != "_NEWLINE":
            text += "    " * depth * (text[-1:] in ("", "\n")) + SPELLED.get(name, name.lower()) + " "
        is_header = name in ("DECODER", "ARGUMENTS") and following not in ("ARGUMENTS", "STRING")
        text += "\n" * (name == "_NEWLINE" or is_header)  # only a prompt can begin on the line of a header
    return text


def as_code(statement: Outline) -> Outline:
    """Statements without a prompt inside are one piece of Python."""
    name, *inner = statement
    if name in ("if", "while", "for", "with", "try", "match") and not speaks(statement):
        return ["code_block"]
    return [name, *map(as_code, inner)]


def speaks(statement: Outline, looped: bool = False) -> bool:
    name, *inner = statement
    if name in ("prompt", "return"):
        return True
    if name in ("break", "continue"):
        return not looped
    loop = name in ("while", "for")
    return any(speaks(each, looped or (loop and each[0] != "else")) for each in inner)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_parser_reads_every_sentence_of_the_grammar_as_the_grammar_does() -> None:
    names = {
        name: st.just(f"{name} ") for name in {each.name for each in grammar("lq").terminals} | declared("lq.lark")
    }
    compared = set[str]()

    @settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(from_lark(grammar("lq"), start="query", explicit=names))
    def compare(sentence: str) -> None:
        text = spelled(sentence.split())
        assume(text.strip() and "_NEWLINE DECODER ARGUMENTS" not in sentence)  # after a prompt that may be any call
        try:
            query = parse(Source("q", text))
        except QueryError as error:
            assert all(BESIDE_THE_STRUCTURE.search(each.message) for each in error.problems), error.report()
            return
        expected = [as_code(each) for each in outline(read("lq", sentence.split()))]
        assert outline_of(query) == expected, text
        compared.add(text)

    compare()
    assert len(compared) > 100


def declared(name: str) -> set[str]:
    text = asset("grammar", name).read_text("utf-8")
    return {word for line in text.splitlines() if line.startswith("%declare") for word in line.split()[1:]}


# The files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIONS)
def test_there_are_no_conflicts_and_every_terminal_is_used(name):
    pytest.importorskip("interegular")
    parser = made(name, strict=True).parser
    text = asset("grammar", f"{name.removeprefix('raw_')}.lark").read_text("utf-8")
    rules = "\n".join(line.split("//")[0] for line in text.splitlines() if not re.match("%declare|[A-Z_]+[.:]", line))
    assert {each.name for each in parser.terminals if each.name in text} <= set(re.findall(r"\b_?[A-Z]\w*", rules))
    assert set(re.findall(r"^(_?[A-Z]\w*)[.:]", text, re.MULTILINE)) <= {each.name for each in parser.terminals}


def test_stored_tables_are_those_of_the_grammars(tmp_path, monkeypatch):
    """What a build stores parses alike, is read again, and is not read for another grammar."""
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
    program = """
import sys, lmql_lite, lmql_lite.api, lmql_lite.decorators
assert "lark" not in sys.modules
lmql_lite.compile('"[X]" where len(X) < 3')
assert "lark" in sys.modules and not {"regex", "interegular"} & sys.modules.keys()
import regex, interegular
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_tables_do_not_contradict_each_other():
    assert not set(DECODERS) & set(DECODERS_NOT_YET)
    assert set(INLINE_CLAUSES) < set(CLAUSES)
    assert all(name.isupper() for name in CONSTRAINTS)
