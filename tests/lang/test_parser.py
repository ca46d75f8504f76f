"""What a right query becomes: its tree, the place of every node, the same tree whatever the line ends."""

from __future__ import annotations

import ast
import copy
import dataclasses
import sys
from collections.abc import Iterator

import pytest

from lmql_lite.lang import nodes
from lmql_lite.lang.query import parse
from lmql_lite.lang.source import Source


def every_node(node: nodes.SyntaxNode) -> Iterator[nodes.SyntaxNode]:
    yield node
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        value = tuple(value.values()) if isinstance(value, dict) else value
        for child in value if isinstance(value, tuple) else (value,):
            if isinstance(child, nodes.SyntaxNode):
                yield from every_node(child)


def piece(text: str, first_line: int, node: ast.expr | ast.stmt) -> str:
    """The source of a Python node, found by its lines and its columns in UTF-8 bytes."""
    lines = [line.encode("utf-8") for line in text.split("\n")]
    first, last = node.lineno - first_line, node.end_lineno - first_line
    lines = lines[first : last + 1]
    lines[-1] = lines[-1][: node.end_col_offset]
    lines[0] = lines[0][node.col_offset :]
    return b"\n".join(lines).decode("utf-8")


class Promptless(ast.NodeTransformer):
    def __init__(self, query: nodes.QueryNode) -> None:
        self.query = query

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.copy_location(ast.Pass(), node) if self.query.prompt(node) else node


def trees(query: nodes.QueryNode) -> Iterator[ast.AST]:
    """All Python of a query; the statements that stand for its prompts are none."""
    for statement in (*query.prologue, *query.body):
        yield Promptless(query).visit(copy.deepcopy(statement))
    for node in every_node(query):
        if isinstance(node, nodes.Expression):
            yield node.tree


def test_outline(good, outline):
    assert outline(parse(Source(good.name, good.text))) == good.outline


def test_carriage_returns_change_nothing(good, outline):
    text = good.text.replace("\n", "\r\n")
    query = parse(Source(good.name, text))
    assert outline(query) == good.outline
    check_spans(query, text)


def check_spans(query: nodes.QueryNode, text: str, first_line: int = 1) -> None:
    starts = {
        nodes.InterpolationNode: "{",
        nodes.TagNode: "{",
        nodes.HoleNode: "[",
        nodes.DistributionNode: "distribution",
    }
    ends = {nodes.InterpolationNode: "}", nodes.TagNode: "}", nodes.HoleNode: "]"}
    for node in every_node(query):
        source = node.span.source
        assert node.span.text == text and node.span.first_line == first_line
        assert source, node
        kind = type(node)
        assert source.lower().startswith(starts.get(kind, "")) and source.endswith(ends.get(kind, "")), node
        if not isinstance(node, nodes.LiteralNode | nodes.QueryNode):
            assert source == source.strip(), node
        match node:
            case nodes.QueryNode():
                assert source == text
            case nodes.Expression():
                if "\\" not in source:  # else the source may spell escaped quotes
                    assert ast.dump(ast.parse(f"({source}\n)", mode="eval")) == ast.dump(node.tree)
            case nodes.ArgumentNode():
                assert source.replace(" ", "").startswith(f"{node.name}=")
            case nodes.DecoderNode():
                assert source.lower().startswith(node.name)
            case nodes.HoleNode():
                assert node.name in source
            case nodes.PromptNode():
                assert source[0] in "\"'(r" and node.parts
                assert node.span.start <= node.parts[0].span.start and node.parts[-1].span.end <= node.span.end
                for left, right in zip(node.parts, node.parts[1:], strict=False):
                    assert left.span.end <= right.span.start


@pytest.mark.parametrize(("above", "first_line"), [("", 1), ("", 40), ("# 😀é日本\n", 1)])
def test_every_node_is_where_it_says(good, above, first_line):
    """Spans are exact, and the piece of source that a node of Python claims, read alone, is that node. Characters shift
    byte columns, UTF-16 columns and code points differently."""
    text = good.text if good.text[0].isspace() else above + good.text
    query = parse(Source(good.name, text, first_line))
    check_spans(query, text, first_line)
    for tree in trees(query):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                assert piece(text, first_line, node) == node.id
            elif isinstance(node, ast.stmt):
                assert text.split("\n")[node.lineno - first_line].strip()
            elif isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
                source = piece(text, first_line, node)
                if not isinstance(node, ast.Starred | ast.Slice) and "\\" not in text and "f'" not in text:
                    assert ast.dump(ast.parse(f"({source}\n)", mode="eval").body) == ast.dump(node), source
        if isinstance(tree, ast.Expression) or not query.speaks(tree):
            whole = tree if isinstance(tree, ast.Expression) else ast.Module([tree], [])
            mode = "eval" if isinstance(tree, ast.Expression) else "exec"
            compile(whole, "<query>", mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("for i in 1, 2 :\n    'a'", "1, 2"),
        ("'{a for a in b}'", "a for a in b"),
        ("return (\n  1), 2 # c", "(\n  1), 2"),
    ],
)
def test_what_needs_no_parentheses_gets_no_place_for_them(text, source):
    query = parse(Source("q", text))
    (statement,) = query.body
    prompt = query.prompt(statement)
    node = prompt.parts[0].value.tree.body if prompt else getattr(statement, "iter", None) or statement.value
    assert piece(text, 1, node) == source
    compile(ast.Expression(node), "q", "eval")


def test_escaped_quotes_keep_their_places():
    text = r'''"é [X: f(\"a\", ü)] {d[\"k\"] + name}"''' + "\n"
    query = parse(Source("q", text))
    names = {
        node.id: piece(text, 1, node) for tree in trees(query) for node in ast.walk(tree) if isinstance(node, ast.Name)
    }
    assert names == {"f": "f", "ü": "ü", "d": "d", "name": "name"}


def test_a_traceback_points_into_the_query():
    query = parse(Source("joke.lq", '\n"[A]"\nx = 1\nif x:\n    "b"\n    y = missing\n', first_line=10))
    with pytest.raises(NameError) as error:
        exec(compile(ast.Module([query.body[2].body[1]], []), "joke.lq", "exec"), {})
    assert error.traceback[-1].lineno + 1 == 15


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"a\\\n  b"', "a  b"),
        ('"""a\\\n    b"""', "a    b"),
        ('    """a\n      b\n\n   c\n    """', "a\n  b\n\nc\n"),
        ('    """a\\\n      b"""', "a  b"),
        ('    "a\\\n      b"', "a      b"),
        ('    r"""a\\\n      b"""', "a\\\n  b"),
        ('if x: """a\n  b"""', "a\n  b"),
        ('    """a\\n      b"""', "a\n      b"),
        ('"\\x5bX\\x5d \\173y}}"', "[X] {y}"),
        ('"\\\'\\"\\a\\b\\f\\v\\r\\0\\777"', "'\"\a\b\f\v\r\0\u01ff"),
        ("u'x'", "x"),
        ('R"\\n"', "\\n"),
        ('"]"', "]"),
        ('"]]]"', "]]"),
    ],
)
def test_text_of_a_prompt(text, said):
    (prompt,) = parse(Source("q", text)).prompts.values()
    assert "".join(part.text for part in prompt.parts if isinstance(part, nodes.LiteralNode)) == said


def test_names_of_holes_are_plain_text(good):
    assert all(type(hole.name) is str for hole in parse(Source(good.name, good.text)).holes)


def test_an_empty_string_is_a_prompt_without_parts():
    (prompt,) = parse(Source("q", '""')).prompts.values()
    assert prompt.parts == ()


def test_a_query_may_end_without_a_line_feed(good, outline):
    text = good.text.rstrip("\n")
    if good.name == "prologue" or not text.endswith("\\"):
        assert outline(parse(Source("q", text))) == good.outline


def test_strings_side_by_side_are_a_prompt_inside_a_block_too():
    (prompt,) = parse(Source("q", 'if x: "a" ("b")')).prompts.values()
    assert len(prompt.parts) == 2


def test_warnings_of_python_stay_silent(recwarn):
    query = parse(Source("q", 'x = "\\d"\ny = b"\\N", f"\\{x}"\n"[A: \'\\d\']" where REGEX(A, "\\d\\n")\n'))
    assert not recwarn
    assert ast.literal_eval(query.body[0].value) == "\\d"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="an f-string cannot hold its own quotes before Python 3.12")
@pytest.mark.parametrize(
    "code",
    [
        'x = f"{y["a"]}"',
        'x = f"{y["#"]} {"(".join(z)}"',
        """x = f'{f'{f'{1}'}'}'""",
        'x = f"{y:{"<"}{w}}" + f"{{" + f"\\N{BULLET}{z!r:>8}"',
        'x = f"{\n  y["]"]  # why\n}"',
    ],
)
def test_fstrings_with_their_own_quotes_inside(code):
    query = parse(Source("q", f'{code}\n"[A]"\n'))
    statement, prompt = query.body
    assert piece(query.span.text, 1, statement) == code and query.prompt(prompt)


def test_a_parse_of_python_in_another_thread_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    failures, parse_python = [SystemError("AST constructor recursion depth mismatch")], ast.parse

    def parsed(*arguments: object) -> ast.AST:
        if failures:
            raise failures.pop()
        return parse_python(*arguments)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(ast, "parse", parsed)
    assert parse(Source("q.lq", '"{x}[X]"')).holes[0].name == "X" and not failures
