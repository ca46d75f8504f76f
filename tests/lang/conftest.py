"""Queries that are right, with the outlines of their trees, for every test of the language."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from lmql_lite.lang import nodes


@dataclass(frozen=True)
class Good:
    """A query and the outline of its tree."""

    name: str
    text: str
    outline: str


def outline(query: nodes.QueryNode) -> str:
    """The query in short lines: strings with their text decoded, Python as `ast.unparse` writes it."""
    lines = [f"prologue {_code(statement)}" for statement in query.prologue]
    if query.decoder:
        arguments = ", ".join(f"{each.name}={_code(each.value.tree)}" for each in query.decoder.arguments)
        lines.append(f"{query.decoder.name}({arguments})")
    lines += _block(query, query.body, "")
    lines += [f"{word} {_code(each.tree)}" for word, each in (("from", query.model), ("where", query.where)) if each]
    return "\n".join([*lines, *_distribution(query.distribution)]) + "\n"


def _code(tree: ast.AST) -> str:
    return ast.unparse(ast.Module([tree], []) if isinstance(tree, ast.stmt) else tree).replace("\n", " | ")


def _distribution(given: nodes.DistributionNode | None) -> list[str]:
    return [f"distribution {given.name} in {_code(given.options.tree)}"] if given else []


def _block(query: nodes.QueryNode, statements: Sequence[ast.stmt], pad: str) -> list[str]:
    return [line for statement in statements for line in _statement(query, statement, pad)]


def _statement(query: nodes.QueryNode, statement: ast.stmt, pad: str) -> list[str]:
    if prompt := query.prompt(statement):
        where = [f"where {_code(prompt.where.tree)}"] if prompt.where else []
        return [pad + " ".join([*map(_part, prompt.parts), *where, *_distribution(prompt.distribution)])]
    if not query.speaks(statement):
        return [f"{pad}code {_code(statement)}"]
    match statement:
        case ast.If(test) | ast.While(test):
            word = "if" if isinstance(statement, ast.If) else "while"
            return [f"{pad}{word} {_code(test)}", *_suites(query, statement.body, statement.orelse, pad)]
        case ast.For(target, iterable) | ast.AsyncFor(target, iterable):
            word = "async for" if isinstance(statement, ast.AsyncFor) else "for"
            head = f"{pad}{word} {_code(target)} in {_code(iterable)}"
            return [head, *_suites(query, statement.body, statement.orelse, pad)]
        case ast.With(items) | ast.AsyncWith(items):
            word = "async with" if isinstance(statement, ast.AsyncWith) else "with"
            return [f"{pad}{word} {', '.join(map(_code, items))}", *_suites(query, statement.body, [], pad)]
        case ast.Try(handlers=handlers) | ast.TryStar(handlers=handlers):
            lines = [f"{pad}try", *_suites(query, statement.body, [], pad)]
            for each in handlers:
                head = "except*" if isinstance(statement, ast.TryStar) else "except"
                head += (f" {_code(each.type)}" if each.type else "") + (f" as {each.name}" if each.name else "")
                lines += [pad + head, *_suites(query, each.body, [], pad)]
            lines += _suites(query, [], statement.orelse, pad)
            final = [f"{pad}finally", *_suites(query, statement.finalbody, [], pad)]
            return lines + (final if statement.finalbody else [])
        case ast.Match(subject, cases):
            lines = [f"{pad}match {_code(subject)}"]
            for case in cases:
                guard = f" if {_code(case.guard)}" if case.guard else ""
                lines += [f"{pad}  case {_code(case.pattern)}{guard}", *_suites(query, case.body, [], pad + "  ")]
            return lines
    return [pad + _code(statement)]


def _suites(query: nodes.QueryNode, body: Sequence[ast.stmt], orelse: Sequence[ast.stmt], pad: str) -> list[str]:
    other = [f"{pad}else", *_block(query, orelse, pad + "  ")] if orelse else []
    return [*_block(query, body, pad + "  "), *other]


def _part(part: nodes.Part) -> str:
    match part:
        case nodes.LiteralNode():
            return repr(part.text)
        case nodes.TagNode():
            return f"<{part.role}>"
        case nodes.InterpolationNode():
            conversion = f"!{part.conversion}" if part.conversion else ""
            return "{" + _code(part.value.tree) + conversion + (f":{part.format}" if part.format else "") + "}"
        case nodes.HoleNode():
            decorators = "".join(f"@{_code(each.tree)} " for each in part.decorators)
            call = f"{_code(part.call.tree)} -> " if part.call else ""
            annotation = f": {_code(part.annotation.tree)}" if part.annotation else ""
            return f"[{decorators}{call}{part.name}{annotation}]"


def _read_good() -> list[Good]:
    text = Path(__file__).with_name("good_queries.txt").read_text("utf-8")
    pieces = re.split(r"^### (.+)\n", text, flags=re.MULTILINE)[1:]
    return [Good(*pieces[at : at + 2], pieces[at + 3]) for at in range(0, len(pieces), 4)]


GOOD = _read_good()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `good` runs once for every query."""
    if "good" in metafunc.fixturenames:
        metafunc.parametrize("good", GOOD, ids=lambda good: good.name)


@pytest.fixture(name="outline")
def outline_fixture():
    return outline


@pytest.fixture(scope="session")
def good_texts() -> list[str]:
    return [good.text for good in GOOD]
