"""What is said about queries that are wrong: the place, the sentence and the hint."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lmql_lite.errors import QueryError
from lmql_lite.lang.query import parse
from lmql_lite.lang.source import Source
from lmql_lite.program.compiler import compile


def problems(text: str) -> list[QueryError]:
    with pytest.raises(QueryError) as caught:
        compile(parse(Source("q", text)))
    return list(caught.value.problems)


def _read_broken() -> list[tuple[str, str, str]]:
    text = Path(__file__).with_name("broken_queries.txt").read_text("utf-8")
    pieces = re.split(r"^### (.+)\n", text, flags=re.MULTILINE)[1:]
    return [(pieces[at], pieces[at + 1], pieces[at + 3]) for at in range(0, len(pieces), 4)]


BROKEN = _read_broken()


@pytest.mark.parametrize(("text", "said"), [each[1:] for each in BROKEN], ids=[each[0] for each in BROKEN])
def test_what_is_said(text, said):
    lines = [
        f"{each.span.line}:{each.span.column} {each.message}" + (f" | {each.hint}" if each.hint else "")
        for each in problems(text)
    ]
    assert "\n".join(lines) + "\n" == said


@pytest.mark.parametrize(("text", "said"), [each[1:] for each in BROKEN], ids=[each[0] for each in BROKEN])
def test_carriage_returns_change_nothing(text, said):
    found = problems(text.replace("\n", "\r\n"))
    assert [(each.span.line, each.message) for each in found] == [
        (int(line.split(":")[0]), line.partition(" ")[2].partition(" | ")[0]) for line in said.splitlines()
    ]


@pytest.mark.parametrize(("text", "said"), [each[1:] for each in BROKEN], ids=[each[0] for each in BROKEN])
def test_manners(text, said):
    """One plain sentence each, in source order, inside the text, and without the words of the machinery."""
    found = problems(text)
    places = [each.span.start for each in found]
    assert places == sorted(places)
    for each in found:
        assert 0 <= each.span.start <= each.span.end <= len(text)
        for sentence in (each.message, each.hint):
            if sentence is None:
                continue
            assert not sentence.endswith(".") and "\n" not in sentence and len(sentence) < 120
            assert not re.search(r"token|terminal|_NEWLINE|_INDENT|BROKEN|Lark|\bast\b|AST|NoneType|Error", sentence)
        assert not each.message[0].isupper() or each.message.startswith("Python")
        assert each.span.source.strip() or "nothing but" in each.message or "is empty" in each.message


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "the file is empty"),
        ("\n  \n\t\n", 1, 1, "the file is empty"),
        ("# a\n", 1, 1, "there is nothing but comments"),
        ('"a"\n"b\0"', 2, 3, "a query cannot hold the character '\\x00'"),
        ('"\ud800"', 1, 2, "a query cannot hold the character '\\ud800'"),
        ('"a"\r"b"', 1, 4, "a query cannot hold the character '\\r'"),
        ("x = " + "(" * 3000 + ")" * 3000, 1, 1, "this is nested too deeply"),
        ("x = " + "not " * 5000 + "y", 1, 1, "this is nested too deeply"),
        ("x = a" + ".b" * 3000, 1, 1, "this is nested too deeply"),
        ('"[X]" where ' + "(" * 900 + "X" + ")" * 900, 1, 13, "this is nested too deeply"),
        ('"{' + "[" * 500 + "]" * 500 + '}"', 1, 3, "this is nested too deeply"),
        ("[" * 50_000, 1, 50_000, "'[' is never closed"),
        ("".join(" " * i + "if x:\n" for i in range(90)) + " " * 90 + '"a"', 62, 62, "this is nested too deeply"),
        ("".join(" " * i + "if x:\n" for i in range(150)) + " " * 150 + "y", 101, 101, "this is nested too deeply"),
        ('if a: "x"\n' + 'elif b: "y"\n' * 400, 61, 1, "this is nested too deeply"),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str) else str(value),
)
def test_texts_that_are_not_written_by_hand(text, line, column, message):
    first = problems(text)[0]
    assert (first.span.line, first.span.column, first.message) == (line, column, message)


def test_lines_are_counted_from_the_first_line():
    with pytest.raises(QueryError) as caught:
        parse(Source("module.py", 'x = 1\n"[1]"\n', first_line=30))
    assert str(caught.value) == "module.py:31:3: '1' is not a valid name for a hole"


def test_columns_count_code_points_in_a_line_with_wide_characters():
    (problem,) = problems('"日本😀 {x y}"')
    assert (problem.span.column, problem.span.source) == (7, "x y")


def test_enough_is_enough():
    assert len(problems('"[1]"\n' * 500)) == 20


def test_a_warning_of_python_s_compiler_is_given_once(recwarn):
    text = 'x = 3 is 3\nif y is 3:\n    "{z is 3}[X]"\nassert (x, "y")\nx = () ()\nx = "a"["b"]\nx = 1[0]\n'
    compile(parse(Source("q", text)))
    assert [each.lineno for each in recwarn] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("code", [r'"\d"', r"b'\d'", r'f"\d{y:\d}"', r'"\8"', r"r'\777'", 'f"{y:02d} {{1if}}"'])
def test_python_warns_of_no_text_that_is_parsed(code, recwarn):
    for text in (f'x = {code}\n"[X]"', f'"[X]" where X == {code}', f'argmax(cache={code})\n  "[X]"'):
        parse(Source("q", text))
    assert not recwarn.list


WORD, OCTAL = "a word follows this number without a space", "this octal escape is too large"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        *((WORD, code) for code in ("1if x else 2", "[0x1for y in x]", "1or 2", "1.5in x", "1jis x", "0b1and x")),
        *((WORD, code) for code in ("1_0not in x", 'f"{1if x else 2}"', "1 if x else(2if y else 3)")),
        *((OCTAL, code) for code in (r'"\777"', r"b'\400'", r'f"\400"')),
    ],
)
def test_what_python_warns_of_when_it_parses_is_refused(said, code, recwarn):
    (first,), (second,) = problems(f'x = {code}\n"[X]"'), problems(f'"[X]" where X == ({code})')
    assert first.message == second.message == said
    assert not recwarn.list
